"""What the demo found -> one self-contained HTML page."""

from pathlib import Path

import numpy as np
import torch
from jinja2 import Environment, PackageLoader, select_autoescape
from matplotlib.figure import Figure
from torch import Tensor

from offaxis.demo import METHODS, NETWORK, RECIPE, Demo
from offaxis.files import write_text
from offaxis.reports.figures import Panel, as_png_data_uri, as_svg, histograms, image_sheet

SHOWN = 16
"""Images in each row of the sheet."""


def spread(values: list[float]) -> str:
    """Mean and standard deviation over seeds, in percent."""
    percent = 100 * np.asarray(values)
    if len(percent) == 1:
        return f"{percent[0]:.1f}"
    return f"{percent.mean():.1f} ± {percent.std(ddof=1):.1f}"


def table_rows(demo: Demo) -> list[tuple[str, list[tuple[str, bool]]]]:
    """For each set, the AUROC of each of METHODS and whether it is the highest."""
    rows = []
    for name in demo.strangers:
        values = [demo.auroc[method][name] for method in METHODS]
        best = max(float(np.mean(value)) for value in values)
        rows.append((name, [(spread(value), float(np.mean(value)) == best) for value in values]))
    return rows


def write_demo_page(demo: Demo, path: Path) -> None:
    """Write the page, whole or not at all."""
    environment = Environment(loader=PackageLoader("offaxis", "reports/templates"), autoescape=select_autoescape())
    page = environment.get_template("demo.html.j2").render(
        rows=table_rows(demo),
        methods=METHODS.values(),
        means=[spread(_means(demo, method)) for method in METHODS],
        accuracy={kind: spread(values) for kind, values in demo.accuracy.items()},
        seeds=len(demo.accuracy["cosine"]),
        epochs=RECIPE.epochs,
        network=NETWORK,
        histograms=as_svg(_histograms(demo), "Histograms of the largest logit and the largest cosine", "h"),
        sheet=as_png_data_uri(_sheet(demo)),
        images={"digits": len(demo.known), **{name: len(images) for name, images in demo.strangers.items()}},
    )
    write_text(path, page)


def _means(demo: Demo, method: str) -> list[float]:
    """The mean AUROC over all sets, one number a seed."""
    return [float(m) for m in np.mean(list(demo.auroc[method].values()), axis=0)]


def _histograms(demo: Demo) -> Figure:
    label = {"standard": "largest logit, standard network", "cosine": "largest cosine, cosine network"}
    panels = [
        Panel("", demo.largest[kind]["digits"], demo.largest[kind][name], "digits", name, label[kind])
        for name in demo.strangers
        for kind in ("standard", "cosine")
    ]
    return histograms(panels, columns=2, bins=40)


def _sheet(demo: Demo) -> Figure:
    """The digits and the strangers that the cosine network finds strangest and most familiar."""
    scores = demo.scores["cosine"]
    known = np.argsort(scores["digits"], kind="stable")
    names = np.repeat(list(demo.strangers), [len(s) for s in demo.strangers.values()])
    places = np.concatenate([np.arange(len(s)) for s in demo.strangers.values()])
    others = np.argsort(np.concatenate([scores[name] for name in demo.strangers]), kind="stable")

    def digit(i: int) -> tuple[Tensor, str]:
        return demo.known.images[i], f"{-scores['digits'][i]:.2f}"

    def stranger(i: int) -> tuple[Tensor, str]:
        name, place = str(names[i]), int(places[i])
        return demo.strangers[name].batch(torch.tensor([place]))[0], f"{-scores[name][place]:.2f}"

    return image_sheet(
        {
            "Digits it knows best": [digit(i) for i in known[:SHOWN]],
            "Digits it finds strangest": [digit(i) for i in known[::-1][:SHOWN]],
            "Strangers it finds strangest": [stranger(i) for i in others[::-1][:SHOWN]],
            "Strangers it takes for digits": [stranger(i) for i in others[:SHOWN]],
        },
        columns=SHOWN,
    )
