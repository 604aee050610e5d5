r"""Why was this image flagged? The predicted class's cosine as a map over the image, and the nearest kept examples.

With features :math:`f = \frac1P \sum_p f_p`, the average over the places p of the last feature map, the cosine with the
axis w of a class is the average of

.. math:: m_p = \frac{w^\top f_p}{\lVert w \rVert \lVert f \rVert}

so that the map shows how much each place adds to the cosine; its mean is the cosine itself. (Local cosines, divided by the
length of :math:`f_p`, have no such mean.) For detectors of two cosines the map is the mean of the maps for w and for the
class mean.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from offaxis.calibration.calibration import Calibration
from offaxis.data import ImageSet, match
from offaxis.data.transforms import Preprocessing
from offaxis.detectors import Detector
from offaxis.detectors.cosine import MeanCosine, TwoCosines
from offaxis.errors import ArgumentError
from offaxis.heads.base import at_least_float32
from offaxis.model import Examples, Model
from offaxis.networks.classifier import Classifier
from offaxis.networks.combine import Paired
from offaxis.networks.run import run, run_batch, running, to_network, widest

POOLING = frozenset({"aten.mean.dim", "aten.avg_pool2d.default", "aten._adaptive_avg_pool2d.default"})
NEAREST = 3
Map = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What stands behind the prediction for one image.

    Attributes:
        class_name: the class whose cosine the map shows, the predicted one.
        of: what the map shows: ``"cosine"``, ``"mean of the two cosines"`` or ``"cosine with the class mean"``.
        cosine: that number, the mean of the map. None where there is no map.
        map: (h, w), what each place of the last feature map adds; None where there is none.
        reason: why there is no map.
        nearest: the classes with the largest cosines, with these (probabilities where there is no cosine).
        examples: (class, cosine, PNG file) of the nearest kept calibration images, nearest first.
    """

    class_name: str
    of: str
    cosine: float | None
    map: Map | None
    reason: str | None
    nearest: tuple[tuple[str, float], ...] = ()
    examples: tuple[tuple[str, float, bytes], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the explanation in types that JSON has; images are data URIs."""
        return {
            "class": self.class_name,
            "of": self.of,
            "cosine": self.cosine,
            "map": None if self.map is None else [[round(float(v), 5) for v in row] for row in self.map],
            "reason": self.reason,
            "examples": [
                {"class": name, "cosine": value, "image": data_uri("image/png", png)}
                for name, value, png in self.examples
            ],
        }


def explain(model: Model, pixels: Tensor) -> list[Explanation]:
    """Explain the predictions for pixels uint8 (N, c, h, w), of the size that the network takes.

    Always in PyTorch, in one pass through the network.
    """
    if not len(pixels):
        return []
    images = to_network(model.network, model.preprocessing.normalise(pixels))
    with running(), _Pooled() as pooled:
        outputs = run_batch(model.network, images)
    classes = outputs.logits.argmax(1)
    places = pooled.before(outputs.features)
    reason = _why_not(model, outputs.cosine is not None, places is not None)
    closeness = outputs.logits.softmax(1) if outputs.cosine is None else outputs.cosine
    nearest = closeness.float().topk(min(NEAREST, closeness.shape[1]))
    maps = None if reason or places is None else _maps(model, places, outputs.features, classes)
    found: list[Explanation] = []
    for number, (index, features) in enumerate(zip(classes.tolist(), outputs.features, strict=True)):
        own = None if maps is None else maps[number].float().cpu().numpy()
        found.append(
            Explanation(
                class_name=model.classes[index],
                of=_what_is_shown(model.detector),
                cosine=None if own is None else float(maps[number].mean()),  # type: ignore[index]
                map=own,
                reason=reason,
                nearest=tuple(
                    (model.classes[c], v)
                    for c, v in zip(nearest.indices[number].tolist(), nearest.values[number].tolist(), strict=True)
                ),
                examples=_nearest(model, features),
            )
        )
    return found


def overlay(image: Image.Image, values: Map, strength: float = 0.6) -> Image.Image:
    """Lay a map over an image: what adds to the cosine is blue, what takes from it red, nothing is clear.

    Args:
        image: as the network sees it, or larger.
        values: (h, w), see ``Explanation.map``.
        strength: the opacity of the largest value, in [0, 1].
    """
    largest = float(np.abs(values).max()) or 1.0
    small = Image.fromarray(np.asarray(values / largest, np.float32))
    scaled = np.asarray(small.resize(image.size, Image.Resampling.BICUBIC)).clip(-1, 1)
    weight = strength * np.abs(scaled)[..., None]
    mixed = np.asarray(image.convert("RGB")) * (1 - weight) + _colours(scaled) * weight
    return Image.fromarray(mixed.round().astype(np.uint8))


def map_scale(model: Model) -> tuple[float, float]:
    """Return where maps change from red to blue, and how far from there a colour is full: the same for all images.

    They change at the cosine below which a share alpha of the calibration images lies, and are full at the distance from
    there to the largest cosine of these images.
    """
    calibration = model.calibration
    cosine = calibration.cosine
    if cosine is None or isinstance(model.detector, (MeanCosine, TwoCosines)):
        cosine = -calibration.scores
    neutral = float(np.quantile(cosine, calibration.alpha))
    return neutral, float(cosine.max()) - neutral or 1.0


def map_png(values: Map, neutral: float = 0.0, full: float | None = None) -> bytes:
    """Return a map as a PNG file of its own size, to be laid over an image.

    Args:
        values: (h, w), see ``Explanation.map``.
        neutral: the value that is clear; what is above is blue, what is below red.
        full: the distance from there at which a colour is full; None for the largest of this map.
    """
    scaled = values - neutral
    scaled = (scaled / (full or float(np.abs(scaled).max()) or 1.0)).clip(-1, 1)
    pixels = np.empty((*values.shape, 4), np.uint8)
    pixels[..., :3] = _colours(scaled)
    pixels[..., 3] = (255 * np.abs(scaled)).round()
    return _png(pixels)


def calibration_histogram(calibration: Calibration, bins: int = 40) -> dict[str, Any]:
    """Return counts and edges of what verdicts depend on among the calibration images: ``of`` is "cosine" or "score"."""
    by_cosine = calibration.by_cosine
    counts, edges = np.histogram(-calibration.scores if by_cosine else calibration.scores, bins)
    return {"of": "cosine" if by_cosine else "score", "counts": counts.tolist(), "edges": edges.tolist()}


def data_uri(kind: str, data: bytes) -> str:
    """Return a file as a data: URI."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _colours(values: Map) -> NDArray[Any]:
    return np.where(values[..., None] >= 0, [33, 102, 214], [201, 48, 22])


def with_examples(model: Model, images: ImageSet, count: int) -> Model:
    """Return the model with ``count`` of these images kept as examples, spread over the predicted classes.

    The images themselves then leave with the bundle.
    """
    if count < 1:
        raise ArgumentError(f"Expected at least one example to keep but got {count}.")
    wanted = model.preprocessing
    if not isinstance(wanted, Preprocessing):
        raise ArgumentError("Expected a model of images to keep examples of but got one of feature vectors.")
    shaped = match(images, wanted.shape, wanted.resize)
    passes = [outputs for outputs, _, _ in run(model.network, map(wanted.normalise, shaped.batches(256)))]
    features = torch.cat([F.normalize(outputs.features.float(), dim=1).cpu() for outputs in passes])
    predicted = torch.cat([outputs.logits.argmax(1).cpu() for outputs in passes])
    chosen = _spread(predicted, count)
    kept = Examples(pixels=shaped.batch(chosen), features=features[chosen], predicted=predicted[chosen])
    return replace(model, examples=kept, source=None)


def _spread(classes: Tensor, count: int) -> Tensor:
    """Return the numbers of ``count`` images, in turns from each class."""
    turn = torch.zeros_like(classes)
    for c in classes.unique():
        own = classes == c
        turn[own] = torch.arange(int(own.sum()))
    return turn.argsort(stable=True)[:count].sort().values


def _why_not(model: Model, has_cosine: bool, has_places: bool) -> str | None:
    """Return why there is no map; None where there is one."""
    if not isinstance(model.network, (Classifier, Paired)):
        return "Maps are made for one network: this is an ensemble, whose members differ in what they look at."
    if not has_cosine:
        return "The network's output layer has no cosine."
    if getattr(model.network.head, "hidden", None) is not None:
        return "The network has a layer between its features and the cosine."
    if not has_places:
        return (
            "The network has no plain average pooling directly before its output layer, so that the cosine is no mean."
        )
    return None


def _what_is_shown(detector: Detector) -> str:
    if isinstance(detector, TwoCosines):
        return "mean of the two cosines"
    return "cosine with the class mean" if isinstance(detector, MeanCosine) else "cosine"


def _maps(model: Model, places: Tensor, features: Tensor, classes: Tensor) -> Tensor:
    """Compute maps (N, h, w) from feature maps (N, d, h, w), their averages (N, d) and classes (N,)."""
    detector, head = model.detector, model.network.head
    weight: Tensor = head.weight  # type: ignore[assignment]
    axes = []
    if isinstance(detector, TwoCosines) or not isinstance(detector, MeanCosine):
        axes.append(F.normalize(_wide(weight.detach())[classes], dim=1))
    if isinstance(detector, MeanCosine):
        axes.append(F.normalize(_wide(detector.directions)[classes], dim=1))
    axis = torch.stack(axes).mean(0)
    length = _wide(features).norm(dim=1).clamp_min(1e-12)
    maps: Tensor = torch.einsum("nd,ndhw->nhw", axis, _wide(places)) / length.view(-1, 1, 1)
    return maps


def _wide(tensor: Tensor) -> Tensor:
    """Return a tensor in float64; in float32 where the device has no float64."""
    return widest(at_least_float32(tensor))


def _nearest(model: Model, features: Tensor) -> tuple[tuple[str, float, bytes], ...]:
    kept = model.examples
    if kept is None:
        return ()
    cosines = kept.features @ F.normalize(features.float().cpu(), dim=0)
    order: Sequence[int] = cosines.argsort(descending=True)[:NEAREST].tolist()
    return tuple(
        (
            model.classes[int(kept.predicted[i])],
            float(cosines[i]),
            _png(kept.pixels[i].permute(1, 2, 0).squeeze(2).numpy()),
        )
        for i in order
    )


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """Return pixels (h, w) or (h, w, channels) as a PNG file."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


class _Pooled(TorchDispatchMode):
    """Keep the inputs of operations that average maps over all places."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.maps: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation; note its input if it may be a pooling."""
        result = func(*args, **(kwargs or {}))
        if str(func) in POOLING and isinstance(args[0], Tensor) and args[0].dim() == 4:
            self.maps.append(args[0])
        return result

    def before(self, features: Tensor) -> Tensor | None:
        """Return the maps (N, d, h, w) whose average over places the features (N, d) are; None where there are none."""
        for maps in reversed(self.maps):
            for turned in (maps, maps.permute(0, 3, 1, 2)):
                if turned.shape[:2] == features.shape and torch.allclose(turned.mean((2, 3)), features, 1e-4, 1e-5):
                    return turned
        return None
