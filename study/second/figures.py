"""The figure of docs/results.md, from the committed results of both studies: ``python -m study.second.figures``."""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from offaxis.evaluation.summary import summarise
from offaxis.reports.figures import save_figure
from offaxis.reports.figures.style import FAINT, blank, mark, styled
from study.query import main_networks, results_for
from study.second import store
from study.second.sets import REPORTED
from study.second.tables import by_method, groups_of, mean_auroc, unseen_values
from study.sets import REPORTED as FIRST_REPORTED

OUT = Path("docs/images/answers")
SHOWN = {
    "two cosines": (("cosine", "two-cosines"),),
    "cosine": (("cosine", "cosine"),),
    "Mahalanobis++": (("linear", "mahalanobis++"), ("keep", "mahalanobis++"), ("any", "mahalanobis++")),
    "KNN": (("linear", "knn"), ("keep", "knn"), ("any", "knn")),
    "energy": (("linear", "energy"), ("keep", "energy")),
    "max-softmax": (("linear", "max-softmax"), ("keep", "max-softmax")),
}
"""Name in the figure -> head and score, of a network with that head; ``keep`` for a published
network, ``any`` where features are frozen and the score reads nothing else."""


def from_scratch() -> dict[str, float]:
    """Return the means over the reported sets of CIFAR-10: of the first study's networks, else of the second's."""
    results = results_for("cifar10", main_networks("cifar10"), FIRST_REPORTED["cifar10"])
    found = {}
    for name, methods in SHOWN.items():
        own = [r for r in results if (r.head["name"], r.detector) in methods]
        if own:
            found[name] = 100 * summarise(own)[0].groups["all"].mean
    rows = by_method(store.select(store.read("scratch"), id="cifar10", network="wrn-10-4-half", unseen=None))
    return {**_chosen({m: mean_auroc(own, REPORTED["cifar10"]) for m, own in rows.items()}), **found}


def published() -> dict[str, float]:
    """Return the means over the reported sets of both published networks."""
    rows = by_method(store.read("published"))
    return _chosen({m: mean_auroc(own, groups_of("cifar10")["all"]) for m, own in rows.items()})


def photographs() -> dict[str, float]:
    """Return the means over fruit and clothing of the means over the reported sets."""
    means: dict[tuple[str, str], list[float]] = {}
    for id_name in ("fruit", "clothing"):
        rows = by_method(store.select(store.read("photos"), id=id_name, unseen=None))
        for method, own in rows.items():
            value = mean_auroc(own, REPORTED[id_name])
            means.setdefault(method, []).extend([] if value is None else [value])
    return _chosen({method: fmean(values) for method, values in means.items() if len(values) == 2})


def unseen() -> dict[str, float]:
    """Return the means over choices of unseen classes of fruit and clothing."""
    both = [unseen_values(id_name) for id_name in ("fruit", "clothing")]
    methods = [method for method in both[0] if method in both[1]]
    return _chosen({m: fmean(fmean(each[m].values()) for each in both) for m in methods})


def _chosen(values: Mapping[tuple[str, str], float | None]) -> dict[str, float]:
    found = {name: next((values[m] for m in methods if m in values), None) for name, methods in SHOWN.items()}
    return {name: value for name, value in found.items() if value is not None}


@styled
def draw(panels: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw a panel for each question, a bar for each score.

    Args:
        panels: question -> score -> AUROC in percent.
    """
    names = list(SHOWN)
    figure = blank(8.4, 2.7)
    for axes, (title, values) in zip(figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True):
        for place, name in enumerate(names):
            colour = mark(0).colour if name in ("two cosines", "cosine") else FAINT
            if name in values:
                axes.barh(place, values[name] - 50, left=50, height=0.68, color=colour)
                axes.text(values[name] + 1, place, f"{values[name]:.1f}", va="center", fontsize=8)
            else:
                why = "needs a cosine head" if "cosine" in name else "not run"
                axes.text(51, place, why, va="center", fontsize=7, color=FAINT)
        axes.set_title(title, fontsize=8.5)
        axes.set_xlim(50, 112)
        axes.set_xticks([50, 75, 100])
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
    figure.supxlabel("mean AUROC in percent; 50 is guessing", fontsize=8.5)
    return figure


def main() -> None:
    """Draw the figure."""
    panels = {
        "trained from scratch\n(CIFAR-10)": from_scratch(),
        "published networks, kept\n(CIFAR-10)": published(),
        "photographs, frozen\n(fruit, clothing)": photographs(),
        "unseen classes\n(fruit, clothing)": unseen(),
    }
    save_figure(draw({title: values for title, values in panels.items() if values}), OUT)


if __name__ == "__main__":
    main()
