"""Task 10: detectors of pytorch-ood in our evaluation, beside ours: pip install 'offaxis[pytorch-ood]'."""

import torch

import offaxis
from offaxis.detectors import PyTorchOOD
from offaxis.networks import by_name


def main(epochs: int = 3) -> None:
    torch.manual_seed(0)
    train, test = offaxis.load_images("small-digits", "train"), offaxis.load_images("small-digits", "test")
    network = by_name("wrn-10-1-half")(num_classes=10, in_channels=1, head="linear")
    trained = offaxis.train(
        network, train, offaxis.Recipe(epochs=epochs, batch_size=32, crop=0, flip=False), quiet=True
    )
    ood = {name: offaxis.load_images(name, like=test) for name in ("letters", "photographs")}
    # A name, or a class of pytorch-ood with its arguments; those that read logits or features share our forward pass.
    theirs = [PyTorchOOD("KNN", {"k": 10}), PyTorchOOD("DICE", {"p": 0.5})]
    detectors: list[str | offaxis.Detector] = ["energy", "knn:k=10", "pytorch-ood-she", *theirs]
    results = offaxis.evaluate(trained, test, ood, detectors=detectors, train=train)
    print(results.table())


if __name__ == "__main__":
    main()
