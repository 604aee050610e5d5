"""``offaxis train``: images -> a trained network in a folder."""

from offaxis.cli.app import command, print_note
from offaxis.options import TrainOptions


@command(
    "train",
    TrainOptions,
    "offaxis train --id digits --network wrn-10-2-half --epochs 12 --out runs/digits",
    "offaxis train --id photos/ --network efficientnet-lite0 --freeze --out runs/photos",
    "offaxis train --id photos/ --network timm:resnet18 --pretrained --unfreeze layer4 --out runs/finetuned",
)
def train_command(options: TrainOptions, words: tuple[str, ...]) -> None:
    """Train a network with a cosine head (or another) and write it into a folder."""
    from offaxis.training.start import train_by_options

    train_by_options(options, words, print_note)
