"""Fine-tune small pretrained networks with a new head: does the scale collapse, and which optimiser learns more?

    python -m benchmarks.finetuning --json finetuning.json   # 40 trainings by the recipe, and AdamW beside it; resumes

A WRN-10-1 with halved maps learns drawn letters; then it is fine-tuned to digits with a new cosine head, 20 or 100 images a
class, each training with its own seed, learning rates from a quarter to twice that of the recipe. A training counts as
collapsed when it stops itself or its last loss is above 0.9 ln C. AdamW has 1e-3 for the head and a tenth for the backbone.
"""

import argparse
import copy
import json
import math
import statistics
import warnings
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from offaxis import Classifier
from offaxis.data import Normalise, TensorSet
from offaxis.data.embedded import digits, letters
from offaxis.errors import NotFiniteError, ScaleCollapseError
from offaxis.heads import make_head
from offaxis.networks import by_name
from offaxis.training import Recipe, finetune, short, train

RATES = (0.25, 0.5, 1.0, 2.0)
SIZES = (20, 100)


def subset(images: TensorSet, per_class: int, seed: int) -> TensorSet:
    """Take some images of each class at random."""
    assert images.labels is not None
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    labels = images.labels[order]
    chosen = torch.cat([order[labels == c][:per_class] for c in range(len(images.classes))])
    return TensorSet(images.name, images.images[chosen], images.labels[chosen], images.classes)


def with_new_head(pretrained: Classifier, num_classes: int, seed: int) -> Classifier:
    """Give a copy of a network a new cosine head."""
    torch.manual_seed(seed)
    backbone = copy.deepcopy(pretrained.backbone)
    head = make_head("cosine", pretrained.head.in_features, num_classes)
    return Classifier(backbone, head, origin=pretrained.origin)


@torch.no_grad()
def accuracy(network: Classifier, images: TensorSet, normalise: Normalise) -> float:
    """Measure the accuracy on test images."""
    assert images.labels is not None
    return float(network.eval()(normalise(images.images)).argmax(1).eq(images.labels).float().mean())


def adamw(network: Classifier, images: TensorSet, normalise: Normalise, recipe: Recipe, seed: int) -> float:
    """Fine-tune with AdamW under the recipe's warm-up; return the last epoch's loss."""
    groups = network.parameter_groups(0.01, backbone_rate=0.1)
    optimiser = torch.optim.AdamW([{**g, "lr": 1e-3} for g in groups])
    generator, pixels, labels = torch.Generator().manual_seed(seed), normalise(images.images), images.labels
    assert labels is not None
    per_epoch = len(pixels) // recipe.batch_size
    network.train()
    losses: list[float] = []
    for epoch in range(recipe.epochs):
        losses = []
        for place, rows in enumerate(
            torch.randperm(len(pixels), generator=generator).split(recipe.batch_size)[:per_epoch]
        ):
            share = recipe.learning_rate_at(epoch * per_epoch + place, recipe.epochs * per_epoch) / recipe.learning_rate
            for group in optimiser.param_groups:
                group["lr"] = 1e-3 * share * group.get("rate", 1.0)
            loss: Tensor = F.cross_entropy(network(pixels[rows]), labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    return statistics.fmean(losses)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainings", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    first, test = letters(2000), digits("test")
    normalise = Normalise.from_images(first)
    torch.manual_seed(0)
    pretrained = by_name("wrn-10-1-half")(num_classes=len(first.classes), in_channels=1)
    train(pretrained, first, short().replace(epochs=6, flip=False), normalise=normalise, quiet=True)
    chance = math.log(10)
    finished = options.json is not None and options.json.exists()
    rows = json.loads(options.json.read_text(encoding="utf-8")) if finished else []
    for number in range(len(rows), options.trainings):
        rate, size = RATES[number % len(RATES)], SIZES[number // len(RATES) % 2]
        images = subset(digits("train"), size, number)
        base = finetune().replace(epochs=options.epochs, crop=2, flip=False)
        recipe = base.replace(learning_rate=rate * base.learning_rate)
        network = with_new_head(pretrained, 10, number)
        try:
            trained = train(network, images, recipe, seed=number, normalise=normalise, quiet=True)
            last, stopped = trained.history[-1]["loss"], False
        except (ScaleCollapseError, NotFiniteError):
            last, stopped = math.inf, True
        row = {
            "rate": rate,
            "images_per_class": size,
            "seed": number,
            "loss": last,
            "collapsed": stopped or last > 0.9 * chance,
            "accuracy": accuracy(network, test, normalise),
        }
        if rate == 1.0:
            other = with_new_head(pretrained, 10, number)
            row["adamw_loss"] = adamw(other, images, normalise, base, number)
            row["adamw_accuracy"] = accuracy(other, test, normalise)
        rows.append(row)
        print(row, flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(f"{sum(row['collapsed'] for row in rows)} of {len(rows)} collapsed")
    for size in SIZES:
        both = [row for row in rows if row["images_per_class"] == size and "adamw_accuracy" in row]
        if both:
            means = [statistics.fmean(row[key] for row in both) for key in ("accuracy", "adamw_accuracy")]
            print(f"{size} images a class: SGD {means[0]:.1%}, AdamW {means[1]:.1%}")


if __name__ == "__main__":
    main()
