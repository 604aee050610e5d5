"""Every table and figure of the paper: the commands that compute its results, and the function that writes it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from offaxis.errors import ArgumentError
from offaxis.options import ProtocolName, TrainOptions
from offaxis.paper import figures as drawings
from offaxis.paper import tables as tabulations
from offaxis.paper.commands import Command, Reproduction
from offaxis.paper.settings import NetworkRecipe

TUNED = ("max-softmax", "odin", "mahalanobis")
"""What the paper compares with, on a standard network; the cosine network has the cosine score."""


@dataclass(frozen=True)
class PaperItem:
    """A table or a figure.

    Attributes:
        name: what the command line calls it.
        title: what it shows.
        steps: the commands that it needs, each of which can run on any machine once its networks are trained.
        finish: (reproduction, folder for files) -> the files that were written.
    """

    name: str
    title: str
    steps: Callable[[Reproduction], list[Command]]
    finish: Callable[[Reproduction, Path], list[Path]]


def pairs_of(chain: Reproduction, seeds: Sequence[int] | None = None) -> list[tuple[TrainOptions, TrainOptions]]:
    """Return the (standard, cosine) networks of every architecture, ID set and seed."""
    return [
        (trained.training(name, seed, "linear"), trained.training(name, seed, "cosine"))
        for trained in chain.scale.networks
        for name in chain.scale.ids
        for seed in (seeds or chain.scale.seeds)
    ]


def ablation_rows(trained: NetworkRecipe, id_name: str, seed: int, hidden: int = 512) -> dict[str, TrainOptions]:
    """Return the ten rows of the ablation: what is left out or added."""

    def cosine(scale: float | None = None, hidden: int | None = None, decay_head: bool = False) -> TrainOptions:
        return trained.training(id_name, seed, "cosine", scale=scale, hidden=hidden, decay_head=decay_head)

    runs = [
        trained.training(id_name, seed, "linear"),
        trained.training(id_name, seed, "linear", scale="predicted"),
        *(cosine(scale=scale, decay_head=True) for scale in (16.0, 32.0, 64.0, 128.0)),
        cosine(decay_head=True),
        cosine(),
        cosine(hidden=hidden, decay_head=True),
        cosine(hidden=hidden),
    ]
    return {f"row-{number}": run for number, run in enumerate(runs, 1)}


def _both(
    chain: Reproduction, ood: Sequence[str], protocol: ProtocolName, seeds: Sequence[int] | None = None
) -> list[Command]:
    """Train both networks of every pair; tune and test the other detectors on the standard one."""
    steps: list[Command] = []
    for standard, cosine in pairs_of(chain, seeds):
        steps += [chain.train(standard), chain.train(cosine)]
        steps.append(chain.evaluate([standard], ood, TUNED, protocol))
        steps.append(chain.evaluate([cosine], ood, ("cosine",), protocol, tune=False))
    return steps


def _untuned(
    chain: Reproduction, runs: Sequence[TrainOptions], ood: str, detector: Callable[[TrainOptions], str]
) -> list[Command]:
    """Train every network and test it with one detector, untuned, on one set."""
    return [
        step for run in runs for step in (chain.train(run), chain.evaluate([run], [ood], [detector(run)], tune=False))
    ]


def native_score(run: TrainOptions) -> str:
    """Return the detector of the network's own head: max-softmax for a linear one, else the cosine."""
    return "max-softmax" if run.head == "linear" else "cosine"


def _classification(chain: Reproduction) -> list[Command]:
    return _untuned(chain, [run for pair in pairs_of(chain) for run in pair], "gaussian", lambda _: "max-softmax")


def _ablation(chain: Reproduction) -> list[Command]:
    trained = chain.scale.networks[-1]
    runs = [
        run
        for id_name in chain.scale.ids
        for seed in chain.scale.seeds
        for run in ablation_rows(trained, id_name, seed, chain.scale.hidden).values()
    ]
    return _untuned(chain, runs, chain.scale.near, native_score)


def sweep(chain: Reproduction) -> dict[tuple[str, float | None], list[TrainOptions]]:
    """Return (ID set, fixed scale or None for the predicted one) -> the networks of every seed."""
    trained = chain.scale.networks[-1]
    return {
        (name, scale): [
            trained.training(name, seed, "cosine", scale=scale, decay_head=scale is not None)
            for seed in chain.scale.seeds
        ]
        for name in chain.scale.ids
        for scale in (*chain.scale.scales, None)
    }


def _fixed_scale(chain: Reproduction) -> list[Command]:
    runs = [run for members in sweep(chain).values() for run in members]
    return _untuned(chain, runs, chain.scale.near, native_score)


def teams(chain: Reproduction) -> list[tuple[list[TrainOptions], list[TrainOptions]]]:
    """Return the (cosine networks, leave-out networks) of every architecture and ID set."""
    return [
        (
            [trained.training(name, seed, "cosine") for seed in range(chain.scale.members)],
            [_leave_out_run(chain, trained, name, seed) for seed in range(chain.scale.members)],
        )
        for trained in chain.scale.networks
        for name in chain.scale.ids
    ]


def _leave_out_run(chain: Reproduction, trained: NetworkRecipe, id_name: str, member: int) -> TrainOptions:
    """Return a leave-out network, trained as in its own paper; its wide ResNets have dropout."""
    return trained.training(
        id_name,
        member,
        "linear",
        leave_out=(member, chain.scale.members),
        **chain.scale.leave_out,
        dropout=chain.scale.leave_out_dropout if trained.architecture.startswith("wrn") else 0.0,
    )


def _ensembles(chain: Reproduction) -> list[Command]:
    steps: list[Command] = []
    ood = chain.scale.one_vs_one
    for cosine, left_out in teams(chain):
        steps += [chain.train(run) for run in (*cosine, *left_out)]
        steps.append(chain.evaluate(cosine, ood, ["cosine-ensemble"], tune=False, kind="ensemble"))
        steps.append(chain.evaluate(left_out, ood, ["leave-out"], tune=False, kind="leave-out"))
    return steps


def _figure_pair(chain: Reproduction) -> tuple[TrainOptions, TrainOptions]:
    return pairs_of(chain, chain.scale.seeds[:1])[-1]


def _histograms(chain: Reproduction) -> list[Command]:
    standard, cosine = _figure_pair(chain)
    steps: list[Command] = [chain.train(standard), chain.train(cosine)]
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
    """Return the item of that name."""
    if name not in ITEMS:
        raise ArgumentError(f"Expected an item out of {', '.join(ITEMS)} but got {name!r}.")
    return ITEMS[name]
