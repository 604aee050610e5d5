"""Training: images -> a trained Classifier."""

from offaxis.names import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
