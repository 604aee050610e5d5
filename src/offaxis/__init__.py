"""offaxis tells whether an image is one that a classifier was trained for."""

from offaxis.names import lazy

__version__ = "0.2.0"
__getattr__, __dir__, __all__ = lazy(__name__, __file__)
__all__ += ["__version__"]
