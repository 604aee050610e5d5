"""Name, folder, Dataset or tensor -> ImageSet: the images that a network is trained on and tested with.

Names are imported when they are first used, so that the catalogue can be listed without torch.
"""

from offaxis.names import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
