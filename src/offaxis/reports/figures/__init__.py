"""Figures of plain arrays and dicts, without state and without pyplot."""

from offaxis.names import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
