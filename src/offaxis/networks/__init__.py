"""Networks: Classifier, Paired and Ensemble; attach; the paper's two architectures and others; any network opened by name."""

from offaxis.names import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
