"""Task 1: give a network of your own a cosine head and train it."""

import torch
from torch import nn

import offaxis


def make_network() -> nn.Module:
    """Any network whose output is a linear layer's; one of timm, torchvision or transformers does as well."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def main(out: str = "runs/digits", epochs: int = 4) -> None:
    torch.manual_seed(0)
    classifier = offaxis.attach(make_network(), head="cosine")
    recipe = offaxis.Recipe(epochs=epochs, batch_size=64, crop=1, flip=False)
    trained = offaxis.train(
        classifier,
        offaxis.load_images("digits", "train"),
        recipe,
        validation=offaxis.load_images("digits", "test"),
        out=out,
        quiet=True,
    )
    print(f"validation accuracy {trained.history[-1]['validation_accuracy']:.1%}, kept in {out}")


if __name__ == "__main__":
    main()
