"""Every table and figure of the paper: the commands that lead to it, and what is made of their results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from offaxis.errors import ArgumentError
from offaxis.reproduce import figures as drawings
from offaxis.reproduce import tables as tabulations
from offaxis.reproduce.commands import Command, Reproduction, TrainingRun
from offaxis.reproduce.settings import NetworkRecipe

TUNED = ("max-softmax", "odin", "mahalanobis")
"""What the paper compares with, on a standard network; the cosine network is given the cosine score."""


@dataclass(frozen=True)
class PaperItem:
    """A table or a figure.

    Attributes:
        name: what the command line calls it.
        title: what it shows.
        steps: the commands that lead to it, each of which can run on any machine once its networks are trained.
        finish: (chain, folder for files) -> the files that were made.
    """

    name: str
    title: str
    steps: Callable[[Reproduction], list[Command]]
    finish: Callable[[Reproduction, Path], list[Path]]


def pairs_of(chain: Reproduction, seeds: Sequence[int] | None = None) -> list[tuple[TrainingRun, TrainingRun]]:
    """(standard, cosine) networks of every kind, ID set and seed."""
    return [
        (TrainingRun(trained, name, seed, "linear"), TrainingRun(trained, name, seed, "cosine"))
        for trained in chain.scale.networks
        for name in chain.scale.ids
        for seed in (seeds or chain.scale.seeds)
    ]


def ablation_rows(trained: NetworkRecipe, id_name: str, seed: int, hidden: int = 512) -> dict[str, TrainingRun]:
    """The ten rows of the ablation: what is taken away or put in."""
    decayed, wide = ("--decay-head",), ("--hidden", str(hidden))
    variants: list[tuple[str, tuple[str, ...]]] = [("linear", ()), ("linear", ("--scale", "predicted"))]
    variants += [("cosine", ("--scale", scale, *decayed)) for scale in ("16", "32", "64", "128")]
    variants += [("cosine", decayed), ("cosine", ()), ("cosine", (*wide, *decayed)), ("cosine", wide)]
    return {f"row-{n}": TrainingRun(trained, id_name, seed, head, words) for n, (head, words) in enumerate(variants, 1)}


def _both(chain: Reproduction, ood: Sequence[str], protocol: str, seeds: Sequence[int] | None = None) -> list[Command]:
    """Train both networks of every pair; tune and test what needs it on the standard one."""
    steps = []
    for standard, cosine in pairs_of(chain, seeds):
        steps += [chain.train(standard), chain.train(cosine)]
        steps.append(chain.evaluate([standard], ood, TUNED, protocol))
        steps.append(chain.evaluate([cosine], ood, ("cosine",), protocol, tune=False))
    return steps


def _classification(chain: Reproduction) -> list[Command]:
    runs = [run for pair in pairs_of(chain) for run in pair]
    return [
        step
        for run in runs
        for step in (chain.train(run), chain.evaluate([run], ["gaussian"], ["max-softmax"], tune=False))
    ]


def _ablation(chain: Reproduction) -> list[Command]:
    steps = []
    for id_name in chain.scale.ids:
        for seed in chain.scale.seeds:
            for run in ablation_rows(chain.scale.networks[-1], id_name, seed, chain.scale.hidden).values():
                score = "max-softmax" if run.head == "linear" else "cosine"
                steps += [chain.train(run), chain.evaluate([run], [chain.scale.near], [score], tune=False)]
    return steps


def sweep(chain: Reproduction) -> dict[tuple[str, float | None], list[TrainingRun]]:
    """(ID set, fixed scale or None for the predicted one) -> the networks of every seed."""
    trained = chain.scale.networks[-1]
    variants = {scale: ("--scale", f"{scale:g}", "--decay-head") for scale in chain.scale.scales}
    return {
        (name, scale): [
            TrainingRun(trained, name, seed, "cosine", variants.get(scale or 0.0, ())) for seed in chain.scale.seeds
        ]
        for name in chain.scale.ids
        for scale in (*chain.scale.scales, None)
    }


def _fixed_scale(chain: Reproduction) -> list[Command]:
    runs = [run for members in sweep(chain).values() for run in members]
    near = [chain.scale.near]
    return [step for run in runs for step in (chain.train(run), chain.evaluate([run], near, ["cosine"], tune=False))]


def teams(chain: Reproduction) -> list[tuple[list[TrainingRun], list[TrainingRun]]]:
    """(cosine networks, leave-out networks) for every kind of network and ID set."""
    count = chain.scale.members
    return [
        (
            [TrainingRun(trained, name, seed, "cosine") for seed in range(count)],
            [
                TrainingRun(
                    trained,
                    name,
                    seed,
                    "linear",
                    ("--leave-out", f"{seed}/{count}"),
                    _leave_out_options(chain, trained),
                )
                for seed in range(count)
            ],
        )
        for trained in chain.scale.networks
        for name in chain.scale.ids
    ]


def _leave_out_options(chain: Reproduction, trained: NetworkRecipe) -> tuple[str, ...]:
    """As that paper trains them; its wide ResNets have dropout."""
    dropout = ("--dropout", "0.3") if chain.scale.leave_out and trained.network.startswith("wrn") else ()
    return (*chain.scale.leave_out, *dropout)


def _ensembles(chain: Reproduction) -> list[Command]:
    steps = []
    for cosine, left_out in teams(chain):
        steps += [chain.train(run) for run in (*cosine, *left_out)]
        steps.append(
            chain.evaluate(cosine, chain.scale.one_vs_one, ["cosine-ensemble"], tune=False, together="ensemble")
        )
        steps.append(chain.evaluate(left_out, chain.scale.one_vs_one, ["leave-out"], tune=False, together="leave-out"))
    return steps


def _figure_pair(chain: Reproduction) -> tuple[TrainingRun, TrainingRun]:
    return pairs_of(chain, chain.scale.seeds[:1])[-1]


def _histograms(chain: Reproduction) -> list[Command]:
    standard, cosine = _figure_pair(chain)
    steps = [chain.train(standard), chain.train(cosine)]
    steps.append(chain.evaluate([standard], chain.scale.shown, ["max-logit"], tune=False))
    return [*steps, chain.evaluate([cosine], chain.scale.shown, ["cosine"], tune=False)]


def _nothing(_: Reproduction) -> list[Command]:
    return []


def _less_biased(chain: Reproduction) -> list[Command]:
    return _both(chain, chain.scale.frame_free, "less-biased")


ITEMS: dict[str, PaperItem] = {
    paper_item.name: paper_item
    for paper_item in (
        PaperItem(
            "classification",
            "Accuracy with a standard and with a cosine head (table 1)",
            _classification,
            lambda chain, out: tabulations.classification(chain, pairs_of(chain), out),
        ),
        PaperItem(
            "one-vs-one",
            "Detection, tuned on the tested set (tables 2 and 7)",
            lambda chain: _both(chain, chain.scale.one_vs_one, "one-vs-one"),
            lambda chain, out: tabulations.detection(chain, pairs_of(chain), chain.scale.one_vs_one, "one-vs-one", out),
        ),
        PaperItem(
            "less-biased",
            "Detection, tuned on another set, crops without frames (table 5)",
            _less_biased,
            lambda chain, out: tabulations.detection(
                chain, pairs_of(chain), chain.scale.frame_free, "less-biased", out
            ),
        ),
        PaperItem(
            "less-biased-framed",
            "Detection, tuned on another set, crops with their frames (table 6)",
            lambda chain: _both(chain, chain.scale.framed, "less-biased"),
            lambda chain, out: tabulations.detection(
                chain, pairs_of(chain), chain.scale.framed, "less-biased-framed", out
            ),
        ),
        PaperItem(
            "ablation",
            "Ten variants of the head (table 3)",
            _ablation,
            lambda chain, out: tabulations.ablation(chain, ablation_rows, out),
        ),
        PaperItem("time", "Computing time of three detectors (table 4)", _nothing, tabulations.time),
        PaperItem(
            "ensembles",
            "Ensembles of networks (table 8)",
            _ensembles,
            lambda chain, out: tabulations.ensembles(chain, teams(chain), out),
        ),
        PaperItem("head", "The diagram of the head (figure 2)", _nothing, drawings.head),
        PaperItem(
            "histograms",
            "Histograms of the largest logit and cosine (figure 1)",
            _histograms,
            lambda chain, out: drawings.score_histograms(chain, *_figure_pair(chain), out),
        ),
        PaperItem(
            "less-biased-bars",
            "Bars over the assumed sets (figure 3)",
            _less_biased,
            lambda chain, out: drawings.bars(chain, pairs_of(chain), out),
        ),
        PaperItem(
            "dependency",
            "How the assumed set matters (figure 4 and the supplement's)",
            _less_biased,
            lambda chain, out: drawings.dependencies(chain, pairs_of(chain), out),
        ),
        PaperItem(
            "fixed-scale",
            "AUROC over a fixed scale (figure 5)",
            _fixed_scale,
            lambda chain, out: drawings.scales(chain, sweep(chain), out),
        ),
        PaperItem(
            "tsne",
            "Feature spaces of both networks (figure 6)",
            lambda chain: [chain.train(run) for run in _figure_pair(chain)],
            lambda chain, out: drawings.spaces(chain, *_figure_pair(chain), out),
        ),
        PaperItem("frames", "The black frames of cropped sets (supplement)", _nothing, drawings.framed_images),
    )
}
"""By name, tables first."""


def paper_item(name: str) -> PaperItem:
    """The item of that name."""
    if name not in ITEMS:
        raise ArgumentError(f"Expected an item out of {', '.join(ITEMS)} but got {name!r}.")
    return ITEMS[name]
