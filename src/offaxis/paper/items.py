"""Every table and figure of the paper: the commands that compute its results, and the function that writes it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from offaxis.errors import ArgumentError
from offaxis.names import alike
from offaxis.options import ProtocolName, TrainOptions
from offaxis.paper import figures, tables
from offaxis.paper.commands import Command, Reproduction
from offaxis.paper.settings import ablation_rows, native_score, pairs_of, runs_of, shown_pair, sweep, teams

TUNED = ("max-softmax", "odin", "mahalanobis")
"""What the paper compares with, on a standard network; the cosine network has the cosine score."""


@dataclass(frozen=True)
class PaperItem:
    """A table or a figure.

    Attributes:
        title: what it shows.
        steps: the commands that it needs, each of which can run on any machine once its networks are trained.
        finish: (reproduction, folder for files) -> the files that were written.
        shows_sets: whether that reads images of the two sets that figures show.
    """

    title: str
    steps: Callable[[Reproduction], list[Command]]
    finish: Callable[[Reproduction, Path], list[Path]]
    shows_sets: bool = False


def _tuned(chain: Reproduction, ood: Sequence[str], protocol: ProtocolName) -> list[Command]:
    """Train both networks of every pair; tune and test the other detectors on the standard one."""
    steps: list[Command] = []
    for standard, cosine in pairs_of(chain.scale):
        steps += [chain.train(standard), chain.train(cosine)]
        steps.append(chain.evaluate([standard], ood, TUNED, protocol))
        steps.append(chain.evaluate([cosine], ood, ("cosine",), protocol, tune=False))
    return steps


def _untuned(
    chain: Reproduction, runs: Sequence[TrainOptions], ood: str, detector: Callable[[TrainOptions], str] = native_score
) -> list[Command]:
    """Train every network and test it with one detector, untuned, on one set."""
    return [
        step for run in runs for step in (chain.train(run), chain.evaluate([run], [ood], [detector(run)], tune=False))
    ]


def _classification(chain: Reproduction) -> list[Command]:
    return _untuned(chain, runs_of(pairs_of(chain.scale)), "gaussian", lambda _: "max-softmax")


def _one_vs_one(chain: Reproduction) -> list[Command]:
    return _tuned(chain, chain.scale.one_vs_one, "one-vs-one")


def _less_biased(chain: Reproduction) -> list[Command]:
    return _tuned(chain, chain.scale.frame_free, "less-biased")


def _framed(chain: Reproduction) -> list[Command]:
    return _tuned(chain, chain.scale.framed, "less-biased")


def _ablation(chain: Reproduction) -> list[Command]:
    scale = chain.scale
    rows = [ablation_rows(scale.networks[-1], name, seed, scale.hidden) for name in scale.ids for seed in scale.seeds]
    return _untuned(chain, [run for row in rows for run in row.values()], scale.near)


def _fixed_scale(chain: Reproduction) -> list[Command]:
    return _untuned(chain, [run for runs in sweep(chain.scale).values() for run in runs], chain.scale.near)


def _ensembles(chain: Reproduction) -> list[Command]:
    steps: list[Command] = []
    ood = chain.scale.one_vs_one
    for cosine, left_out in teams(chain.scale):
        steps += [chain.train(run) for run in (*cosine, *left_out)]
        steps.append(chain.evaluate(cosine, ood, ["cosine-ensemble"], tune=False, kind="ensemble"))
        steps.append(chain.evaluate(left_out, ood, ["leave-out"], tune=False, kind="leave-out"))
    return steps


def _train_shown(chain: Reproduction) -> list[Command]:
    return [chain.train(run) for run in shown_pair(chain.scale)]


def _histograms(chain: Reproduction) -> list[Command]:
    both = zip(shown_pair(chain.scale), ("max-logit", "cosine"), strict=True)
    return _train_shown(chain) + [chain.evaluate([run], chain.scale.shown, [score], tune=False) for run, score in both]


def _nothing(_: Reproduction) -> list[Command]:
    return []


ITEMS = {
    "classification": PaperItem(
        "Accuracy with a standard and with a cosine head (table 1)", _classification, tables.classification
    ),
    "one-vs-one": PaperItem(
        "Detection, tuned on the tested set (tables 2 and 7)", _one_vs_one, tables.detection_one_vs_one
    ),
    "less-biased": PaperItem(
        "Detection, tuned on another set, crops without frames (table 5)", _less_biased, tables.detection_less_biased
    ),
    "less-biased-framed": PaperItem(
        "Detection, tuned on another set, crops with their frames (table 6)", _framed, tables.detection_framed
    ),
    "ablation": PaperItem("Ten variants of the head (table 3)", _ablation, tables.ablation),
    "time": PaperItem("Computing time of three detectors (table 4)", _nothing, tables.computing_time),
    "ensembles": PaperItem("Ensembles of networks (table 8)", _ensembles, tables.ensembles),
    "head": PaperItem("The diagram of the head (figure 2)", _nothing, figures.head),
    "histograms": PaperItem(
        "Histograms of the largest logit and cosine (figure 1)", _histograms, figures.score_histograms
    ),
    "less-biased-bars": PaperItem("Bars over the assumed sets (figure 3)", _less_biased, figures.bars),
    "dependency": PaperItem(
        "How the assumed set matters (figure 4 and the supplement's)", _less_biased, figures.dependencies
    ),
    "fixed-scale": PaperItem("AUROC over a fixed scale (figure 5)", _fixed_scale, figures.scales),
    "tsne": PaperItem("Feature spaces of both networks (figure 6)", _train_shown, figures.spaces, True),
    "frames": PaperItem("The black frames of cropped sets (supplement)", _nothing, figures.framed_images),
}
"""By name, tables first."""


def paper_items(name: str) -> dict[str, PaperItem]:
    """Return the item of that name, or all for ``all``."""
    if name not in (*ITEMS, "all"):
        raise ArgumentError(f"Expected an item out of {', '.join(ITEMS)}, all but got {name!r}.{alike(name, ITEMS)}")
    return ITEMS if name == "all" else {name: ITEMS[name]}
