"""Training: images -> a trained Classifier."""

from offaxis.names import RECIPES
from offaxis.training.frozen import train_frozen, train_head
from offaxis.training.loop import AfterEpoch, train
from offaxis.training.recipe import (
    Recipe,
    fast,
    finetune,
    frozen,
    laptop,
    openood_resnet,
    paper_densenet,
    paper_wide_resnet,
    short,
    usual_recipe,
)
from offaxis.training.record import Trained, load_run, read_run
from offaxis.training.step import Loss, cross_entropy

__all__ = [
    "RECIPES",
    "AfterEpoch",
    "Loss",
    "Recipe",
    "Trained",
    "cross_entropy",
    "fast",
    "finetune",
    "frozen",
    "laptop",
    "load_run",
    "openood_resnet",
    "paper_densenet",
    "paper_wide_resnet",
    "read_run",
    "short",
    "train",
    "train_frozen",
    "train_head",
    "usual_recipe",
]
