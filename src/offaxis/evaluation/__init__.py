"""Evaluate detectors on networks and image sets: tuning sees validation images alone, and all are tested on the same.

``evaluate`` is imported when it is first used, so that stored results can be read and reported without torch.
"""

from offaxis.names import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
