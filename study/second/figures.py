"""The figure of docs/results.md, from the committed results of the second study: ``python -m study.second.figures``."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from offaxis.reports.figures import save_figure
from offaxis.reports.figures.style import FAINT, blank, mark, styled
from study.second.answers import (
    Column,
    from_scratch_columns,
    photograph_columns,
    published_columns,
    unseen_columns,
)
from study.second.tables import Method

OUT = Path("docs/images/answers")
SHOWN: dict[str, Method] = {
    "two cosines": ("cosine", "two-cosines"),
    "cosine": ("cosine", "cosine"),
    "fDBD": ("linear", "fdbd"),
    "Mahalanobis++": ("linear", "mahalanobis++"),
    "KNN": ("linear", "knn"),
    "energy": ("linear", "energy"),
    "max-softmax": ("linear", "max-softmax"),
}
"""Name in the figure -> head and score."""


def values_of(columns: Mapping[str, Column]) -> dict[str, float]:
    """Return the last column, the mean over all that a table has, by name in the figure.

    A published network has its own, linear output layer.
    """
    last = {("linear" if head == "keep" else head, score): v for (head, score), v in list(columns.values())[-1].items()}
    return {name: last[method] for name, method in SHOWN.items() if method in last}


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
        "from scratch (CIFAR-10,\nFashion-MNIST)": from_scratch_columns(),
        "published networks, kept\n(two, CIFAR-10)": published_columns(),
        "photographs, frozen\n(fruit, clothing)": photograph_columns(),
        "unseen classes (fruit,\nclothing, CIFAR-10)": unseen_columns(),
    }
    save_figure(draw({title: values_of(columns) for title, columns in panels.items()}), OUT)


if __name__ == "__main__":
    main()
