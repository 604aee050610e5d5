"""The study's store -> the figures of study/report/first.md and docs/results.md: ``python -m study.figures [tsne]``.

All but t-SNE, which needs the networks, are made from the copy of the results that is kept.
"""

import sys
from dataclasses import replace
from pathlib import Path

from offaxis.evaluation.summary import summarise
from offaxis.paper import figures as drawings
from offaxis.paper.commands import Reproduction
from offaxis.paper.settings import sweep
from offaxis.reports.figures import fixed_scale, histograms, ranking, save_figure
from study.query import is_evaluated, results_for
from study.sets import REPORTED
from study.steps import KEPT, SEEDS, WORK, chain_for
from study.tables import untuned

OUT = Path("docs/images")


def scales(id_name: str) -> None:
    """Draw the mean AUROC over the fixed scale, by group of sets."""
    curves: dict[str, dict[float, float]] = {}
    predicted: dict[str, float] = {}
    for (_, scale), runs in sweep(chain_for(id_name, KEPT).scale).items():
        if not is_evaluated(id_name, runs):
            continue
        cosine = [r for r in results_for(id_name, runs, REPORTED[id_name]) if r.detector == "cosine"]
        for group, spread in summarise(cosine)[0].groups.items():
            if scale is None:
                predicted[group] = 100 * spread.mean
            else:
                curves.setdefault(group, {})[scale] = 100 * spread.mean
    save_figure(fixed_scale(curves, predicted), OUT / "study-fixed-scale")


def ranks(id_name: str) -> None:
    """Draw the mean AUROC of every score on both networks, with the deviation over seeds."""
    intervals, states = {}, {}
    for s in untuned(id_name, REPORTED[id_name]):
        whole = s.groups["all"]
        half = whole.seed_std or 0.0
        head = "standard" if s.fields.head["name"] == "linear" else "cosine"
        name = f"{s.method} ({head})"
        states[name] = f"{head} network"
        intervals[name] = (100 * whole.mean, 100 * (whole.mean - half), 100 * (whole.mean + half))
    label = "mean AUROC (%), lines: one standard deviation over seeds"
    save_figure(ranking(intervals, states, label), OUT / f"study-ranking-{id_name}")


def readme(chain: Reproduction) -> None:
    """Draw the histograms of both networks on one OOD set, side by side."""
    panels = drawings.score_panels(chain)
    save_figure(histograms([panel for panel in panels if panel.ood_name == "SVHN"]), OUT / "readme")


def main() -> None:
    """Draw every figure that there are results for."""
    cifar, fashion = "cifar10", "fashion-mnist"
    if "tsne" in sys.argv:
        drawings.spaces(chain_for(cifar, WORK), OUT)
        return
    for id_name in (cifar, fashion):
        ranks(id_name)
    chain = chain_for(cifar, KEPT)
    drawings.score_histograms(chain, OUT)
    readme(chain)
    seeds = replace(chain, scale=chain.scale.replace(seeds=SEEDS))
    drawings.bars(seeds, OUT)
    drawings.dependencies(seeds, OUT)
    scales(fashion)


if __name__ == "__main__":
    main()
