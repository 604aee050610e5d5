"""Results and networks -> the paper's figures."""

from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from offaxis.data import ImageSet, limit_images, load_images
from offaxis.data.adapt import as_batches
from offaxis.errors import DataError
from offaxis.evaluation import Store
from offaxis.evaluation.summary import summarise
from offaxis.networks import run as inference
from offaxis.paper.commands import Reproduction
from offaxis.paper.settings import pairs_of, runs_of, shown_pair, sweep
from offaxis.paper.tables import paper_rows, results_of
from offaxis.reports.figures import (
    Panel,
    Space,
    dependency,
    dependency_full,
    dependency_matrix,
    feature_spaces,
    fixed_scale,
    frames,
    head_diagram,
    histograms,
    less_biased_bars,
    save_figure,
)
from offaxis.reports.result_tables import mean_by, set_title
from offaxis.training import Trained, load_run

SHOWN_FRAMES = 8
FRAME = 2  # pixels, on each side of the crops that the field uses


def head(_: Reproduction, out: Path) -> list[Path]:
    """Draw the diagram of the head."""
    return list(save_figure(head_diagram(), out / "head"))


def score_panels(chain: Reproduction) -> list[Panel]:
    """Return the largest logits of a standard network, then the largest cosines of a cosine network, set by set."""
    store = Store.existing(chain.store)
    standard, cosine = shown_pair(chain.scale)
    shown = (
        (standard, "max-logit", "standard network", "largest logit"),
        (cosine, "cosine", "cosine network", "largest cosine"),
    )
    panels = []
    for run, detector, title, label in shown:
        for r in results_of(chain, [run], chain.scale.shown):
            if r.detector == detector:
                id_values, ood_values = (-store.scores(name) for name in r.scores)  # a score is the value, negated
                sets = {"id_name": set_title(r.id), "ood_name": set_title(r.ood)}
                panels.append(Panel(title=title, id_scores=id_values, ood_scores=ood_values, **sets, label=label))
    return panels


def score_histograms(chain: Reproduction, out: Path) -> list[Path]:
    """Draw the largest logit of a standard network above the largest cosine of a cosine network, set by set."""
    return list(save_figure(histograms(score_panels(chain)), out / "histograms"))


def bars(chain: Reproduction, out: Path) -> list[Path]:
    """Draw a bar for each method over each assumed set, with the deviation over the other sets and the seeds."""
    panels: dict[str, dict[str, dict[str, tuple[float, float]]]] = {}
    results = results_of(chain, runs_of(pairs_of(chain.scale)), chain.scale.frame_free)
    for s in paper_rows(summarise(results, "less-biased by assumed set")):
        panel = panels.setdefault(f"{s.fields.architecture}, {set_title(s.id)}", {})
        panel[s.detector] = {set_title(n): (100 * cell.mean, 100 * (cell.std or 0.0)) for n, cell in s.rows.items()}
    return list(save_figure(less_biased_bars(panels), out / "less-biased-bars"))


def dependencies(chain: Reproduction, out: Path) -> list[Path]:
    """Draw AUROC over the assumed set: of two tested sets (figure 4), of all (the supplement's), and as a matrix."""
    runs = runs_of(pairs_of(chain.scale.replace(networks=chain.scale.networks[-1:], ids=chain.scale.ids[-1:])))
    shown = [
        r
        for r in results_of(chain, runs, chain.scale.frame_free)
        if (r.state == "tuned" and r.head.get("name") == "linear") or r.detector == "cosine"
    ]
    values = mean_by(shown, lambda r: (r.detector, r.assumed and set_title(r.assumed), set_title(r.ood)))
    panels: dict[str, dict[str, dict[str, float]]] = {}
    for (detector, assumed, tested), value in values.items():
        if assumed is not None:
            panels.setdefault(detector, {}).setdefault(assumed, {})[tested] = value
    figures: dict[str, Figure] = {
        "dependency-full": dependency_full(panels),
        "dependency-matrix": dependency_matrix(panels),
    }
    free = {tested: value for (detector, _, tested), value in values.items() if detector == "cosine"}
    both = [name for name in map(set_title, chain.scale.shown) if name in free] or list(free)[:2]
    rows = panels.get("mahalanobis", {})
    tuned = {tested: {a: row[tested] for a, row in rows.items() if tested in row} for tested in both}
    figures["dependency"] = dependency(tuned, {tested: free[tested] for tested in both})
    return [path for name, figure in figures.items() for path in save_figure(figure, out / name)]


def scales(chain: Reproduction, out: Path) -> list[Path]:
    """Draw AUROC over the fixed scale, and that of the predicted scale."""
    curves: dict[str, dict[float, float]] = {}
    predicted: dict[str, float] = {}
    for (id_name, scale), runs in sweep(chain.scale).items():
        results = [r for r in results_of(chain, runs, [chain.scale.near]) if r.detector == "cosine"]
        mean = 100 * float(np.mean([r.metrics["auroc"] for r in results]))
        if scale is None:
            predicted[set_title(id_name)] = mean
        else:
            curves.setdefault(set_title(id_name), {})[scale] = mean
    return list(save_figure(fixed_scale(curves, predicted), out / "fixed-scale"))


def spaces(chain: Reproduction, out: Path) -> list[Path]:
    """Draw t-SNE of both networks' features."""
    both, points = shown_pair(chain.scale), chain.scale.points
    test, train = (limit_images(load_images(both[0].id, split, root=chain.data), points) for split in ("test", "train"))
    first, second = (limit_images(load_images(name, root=chain.data, like=test), points) for name in chain.scale.shown)
    sets = {"train": train, "test": test, "first": first, "second": second}
    labels = {"train_labels": _labels(train), "test_labels": _labels(test)}
    rows = []
    for run, title in zip(both, ("standard", "cosine"), strict=True):
        network = load_run(chain.runs / chain.name(run))
        network.classifier.to(inference.resolve_device(chain.device))
        features = {name: _features(network, images) for name, images in sets.items()}
        rows.append(Space(title=title, **features, **labels))
    names = [set_title(name) for name in chain.scale.shown]
    return list(save_figure(feature_spaces(rows, names[0], names[1], limit=points), out / "tsne"))


def framed_images(chain: Reproduction, out: Path) -> list[Path]:
    """Show cropped images with and without their black frame; where no such set is here, photographs with a drawn one."""
    rows: dict[str, tuple[list[NDArray[np.uint8]], list[NDArray[np.uint8]]]] = {}
    for name in ("tin-crop", "lsun-crop"):
        try:
            images = load_images(name, "test", root=chain.data, in_memory=False)
        except DataError:
            continue
        rows[set_title(name)] = _with_and_without(images.batch(torch.arange(min(SHOWN_FRAMES, len(images)))))
    if not rows:
        pictures = load_images("photographs", "test", size=32, count=SHOWN_FRAMES).batch(torch.arange(SHOWN_FRAMES))
        padded = torch.nn.functional.pad(pictures, (FRAME, FRAME, FRAME, FRAME))
        rows["photographs, framed by us"] = _with_and_without(padded)
    return list(save_figure(frames(rows), out / "frames"))


def _with_and_without(images: Tensor) -> tuple[list[NDArray[np.uint8]], list[NDArray[np.uint8]]]:
    """Return images (N, c, h, w) as they are and without their frame, each (h, w, c)."""
    whole = images.permute(0, 2, 3, 1).numpy()
    return list(whole), list(whole[:, FRAME:-FRAME, FRAME:-FRAME])


def _features(trained: Trained, images: ImageSet) -> NDArray[np.float32]:
    batches = as_batches(images, trained.normalise, 256)
    parts = [outputs.features.cpu().numpy() for outputs, *_ in inference.run(trained.classifier, batches)]
    return np.concatenate(parts)


def _labels(images: ImageSet) -> NDArray[np.int64]:
    assert images.labels is not None
    return images.labels.numpy()
