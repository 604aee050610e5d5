"""Images -> trained Classifier."""

from offaxis.training.loop import Loss, cross_entropy, train
from offaxis.training.recipe import RECIPES, Recipe, laptop, paper_densenet, paper_wide_resnet
from offaxis.training.run import Trained, load_run

__all__ = [
    "RECIPES",
    "Loss",
    "Recipe",
    "Trained",
    "cross_entropy",
    "laptop",
    "load_run",
    "paper_densenet",
    "paper_wide_resnet",
    "train",
]
