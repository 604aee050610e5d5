"""ID scores -> p-values, thresholds and their guarantees; drift of a stream."""

from offaxis.names import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
