"""A model as an ONNX graph: a file for other programs, an engine for this one, or with convolutions on 8-bit integers.

The graph holds normalisation, network, detector and calibration: uint8 pixels of the network's size in; logits, cosine, score
and p-value out. A program in any language needs onnxruntime and the file alone. As an engine onnxruntime runs a model's
network instead of PyTorch, faster on a CPU. Every graph is compared with PyTorch before it is written or used.
"""

import hashlib
import importlib
import io
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from offaxis.calibration.calibration import Calibration, Promise, check_overlap
from offaxis.calibration.classes import ClassCalibration, class_probabilities, masses
from offaxis.calibration.conformal import p_value
from offaxis.data import ImageSet, match
from offaxis.data.catalogue import cache_folder
from offaxis.data.images import unpack_hashes
from offaxis.data.transforms import Preprocessing
from offaxis.detectors import Reads
from offaxis.errors import ArgumentError, ExportError, MissingPackageError, StorageError
from offaxis.files import replacing
from offaxis.metrics import auroc
from offaxis.model import Model, versions
from offaxis.networks.run import eval_mode, tracing
from offaxis.options import EngineName
from offaxis.prediction import Floats, Scores

TOLERANCE = 1e-4
INPUT = "pixels"
LOGGERS = ("", "torch.onnx", "onnxscript", "torch.export", "onnx_ir")
MOST_LOST_ACCURACY = 0.01
MOST_LOST_AUROC = 0.005
RANGE_IMAGES = 256  # at most, of which the ranges of activations are taken
log = logging.getLogger("offaxis.onnx")


# the graph ------------------------------------------------------------------------------------------------------------


class Graph(nn.Module):
    """A module that maps pixels uint8 (N, c, h, w) to logits (N, C), cosine (N, C) if any, score (N,), p_value (N,).

    P-values are double: in single precision 5 / 100 is above 0.05, and an image on the border would not be flagged.
    With verdicts per class ``class_p_value`` (N,) follows, NaN where a class has too few calibration images. Where labelled
    images have calibrated it, ``probability`` (N, C) follows, and ``could_be`` bool (N, C) where they were enough for it.

    Args:
        model: the model.
        p_values: whether p-values are among the outputs; without them the graph does not hold the calibration.
    """

    mean: Tensor
    std: Tensor
    id_scores: Tensor
    id_classes: Tensor
    nan_where_too_few: Tensor

    def __init__(self, model: Model, p_values: bool = True) -> None:
        super().__init__()
        self.network, self.detector, self.p_values = model.network, model.detector, p_values
        assert isinstance(model.preprocessing, Preprocessing)  # check_exportable has refused others
        normalise, calibration = model.preprocessing.normalise, model.calibration
        self.register_buffer("mean", torch.tensor(normalise.mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(normalise.std).view(-1, 1, 1))
        if not p_values:
            return
        self.register_buffer("id_scores", torch.from_numpy(calibration.scores))
        self.register_buffer("id_classes", torch.from_numpy(calibration.predicted))
        enough = torch.tensor(calibration.enough())
        self.register_buffer("nan_where_too_few", torch.where(enough, 0.0, torch.nan).double())
        self.per_class, self.classes, self.most_mass = calibration.per_class, calibration.classes, calibration.most_mass

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs in the order of ``output_names``."""
        images = (pixels.float().div(255) - self.mean) / self.std
        outputs = self.network.outputs(images)
        score: Tensor = self.detector(outputs)
        results = [outputs.logits, *([] if outputs.cosine is None else [outputs.cosine]), score.float()]
        if self.p_values:
            at_least = (self.id_scores.to(score.dtype).unsqueeze(0) >= score.unsqueeze(1)).double()
            results.append(p_value(at_least.sum(1), len(self.id_scores)))
            if self.per_class:
                predicted = outputs.logits.argmax(1)
                same = (self.id_classes.unsqueeze(0) == predicted.unsqueeze(1)).double()
                results.append(p_value((at_least * same).sum(1), same.sum(1)) + self.nan_where_too_few[predicted])
            if self.classes is not None:
                results.append((outputs.logits / self.classes.temperature).softmax(1))
            if self.most_mass is not None:
                ordered, places = results[-1].topk(outputs.logits.shape[1], dim=1)
                before = ordered.double().cumsum(1) - ordered.double()
                results.append(torch.zeros_like(before).scatter(1, places, (before <= self.most_mass).double()) > 0)
        return tuple(results)


def output_names(model: Model, p_values: bool = True) -> list[str]:
    """Return the names of the graph's outputs in order."""
    names = ["logits", *([] if model.calibration.cosine is None else ["cosine"]), "score"]
    if p_values:
        names += ["p_value", *(["class_p_value"] if model.calibration.per_class else [])]
        names += ["probability"] if model.calibration.classes is not None else []
        names += ["could_be"] if model.calibration.most_mass is not None else []
    return names


def export_onnx(model: Model, path: str | Path) -> float:
    """Export a model and compare the graph in onnxruntime with PyTorch before the file is put in place.

    Args:
        model: with a detector that reads outputs.
        path: the file, usually ``x.onnx``.

    Returns:
        The largest difference of an output between onnxruntime and PyTorch, at most ``TOLERANCE``: absolute for cosines,
        relative to the largest value above 1 for logits and scores, for p-values beyond what the difference of the scores
        explains.

    Raises:
        ExportError: the detector or the network cannot be exported, or the graph gives other outputs.
        MissingPackageError: the packages of ``offaxis[onnx]`` are not installed.
    """
    check_exportable(model)
    with _on_cpu(model):
        content = graph_bytes(model)
        difference = _check_same(model, make_session(content, default_threads()), p_values=True)
    with replacing(Path(path)) as temporary:
        temporary.write_bytes(content)
    return difference


def graph_bytes(model: Model, p_values: bool = True) -> bytes:
    """Export a model on the CPU as the bytes of an ONNX file.

    Args:
        model: the model.
        p_values: whether p-values are among the outputs; see ``Graph``.

    Raises:
        ExportError: the detector or the network cannot be exported.
        MissingPackageError: the packages of ``offaxis[onnx]`` are not installed.
    """
    onnx = package("onnx")
    package("onnxscript")
    graph = Graph(model, p_values)
    with (
        export_errors(f"The network or the detector {model.detector.name} cannot be written as an ONNX graph"),
        _quiet(),
        tracing(),
        eval_mode(graph),
        torch.no_grad(),
    ):
        proto = torch.onnx.export(
            graph,
            (_random_pixels(model, 3),),
            input_names=[INPUT],
            output_names=output_names(model, p_values),
            dynamic_shapes={"pixels": {0: torch.export.Dim("batch", min=1)}},
            dynamo=True,
            verbose=False,
        ).model_proto  # type: ignore[union-attr]
    _write_metadata(proto, model)
    if proto.ByteSize() >= 2**31:
        raise ExportError("The graph would have more than 2 GB, which one ONNX file cannot hold.")
    with export_errors("The graph is not valid"):
        onnx.checker.check_model(proto)
    content: bytes = proto.SerializeToString()
    return content


def check_exportable(model: Model) -> None:
    """Raise ExportError where the detector cannot be part of a graph, with the reason."""
    if not isinstance(model.preprocessing, Preprocessing):
        raise ExportError(
            "Expected a model of images to export but this one scores feature vectors: use the bundle itself (offaxis score, "
            "offaxis serve), or export the network that computes the features."
        )
    if model.detector.reads is not Reads.OUTPUTS:
        raise ExportError(
            f"Expected a detector that reads outputs but {model.detector.name} reads {model.detector.reads.value}, which a "
            "graph cannot. Make a bundle with another (cosine, cosine-ensemble, energy, max-softmax, knn, ...)."
        )


@contextmanager
def export_errors(problem: str) -> Iterator[None]:
    """Turn the errors of the block, of which PyTorch, onnx and onnxruntime have many kinds, into ExportError."""
    try:
        yield
    except (ExportError, MissingPackageError):
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0][:300]
        raise ExportError(
            f"{problem} ({type(error).__name__}: {reason}). Use the bundle itself in PyTorch: offaxis score, offaxis serve."
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters: no user can act on their warnings, and what they print would stand among rows."""
    levels = {logger: logger.level for logger in map(logging.getLogger, LOGGERS)}
    try:
        for logger in levels:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


@contextmanager
def _on_cpu(model: Model) -> Iterator[None]:
    device = model.device
    try:
        model.to("cpu")
        yield
    finally:
        model.to(device)


def _write_metadata(proto: Any, model: Model) -> None:
    """Write preprocessing, classes, detector, level and provenance into the metadata of the graph."""
    calibration = model.calibration
    deciding = "class_p_value" if calibration.per_class else "p_value"
    level = "alpha" if calibration.confidence is None else "levels[class]"
    metadata = {
        "offaxis": json.dumps({"format": "offaxis-onnx", "version": 1}),
        "preprocessing": json.dumps(model.preprocessing.to_json()),
        "classes": json.dumps(list(model.classes)),
        "detector": model.detector.name,
        "alpha": repr(calibration.alpha),
        "per_class": json.dumps(calibration.per_class),
        "provenance": json.dumps(model.public_provenance()),
        "verdict": f"out-of-distribution where {deciding} <= {level}",
    }
    if calibration.classes is not None:
        metadata |= {"temperature": repr(calibration.classes.temperature), "ece": json.dumps(calibration.classes.ece)}
    if calibration.alone is not None:
        metadata["verdict"] += f", else unsure where the largest probability < {calibration.alone.probability!r}"
        metadata |= {"max_error": repr(calibration.max_error), "decided_alone": repr(calibration.alone.share)}
    if calibration.per_class:
        metadata["class_thresholds"] = json.dumps(calibration.class_thresholds())
    else:
        metadata["threshold"] = repr(calibration.threshold())
    if calibration.confidence is not None:
        metadata |= {"confidence": repr(calibration.confidence), "levels": json.dumps(calibration.levels)}
    del proto.metadata_props[:]
    for key, value in metadata.items():
        proto.metadata_props.add(key=key, value=value)
    version = model.provenance.get("versions", {}).get("offaxis", "")
    proto.producer_name, proto.producer_version = "offaxis", str(version)


def _check_same(model: Model, session: Any, p_values: bool) -> float:
    """Return the largest difference of the outputs; raise ExportError where it is above the tolerance."""
    with export_errors("onnxruntime cannot run the graph"):
        difference = largest_difference(model, Graph(model, p_values), session, output_names(model, p_values))
    if not difference <= TOLERANCE:
        raise ExportError(
            f"onnxruntime differs from PyTorch by {difference:.2g}, more than {TOLERANCE:g}, so the graph is not used. Is the "
            "network's arithmetic very sensitive, or in half precision?"
        )
    return difference


def largest_difference(model: Model, graph: Graph, session: Any, names: Sequence[str]) -> float:
    """Return the largest difference of the outputs, over batches of one and of five; NaN where there is NaN."""
    largest = 0.0
    for count in (1, 5):
        pixels = _random_pixels(model, count)
        with eval_mode(graph), torch.no_grad():
            values = graph(pixels)
        if len(values) != len(names):
            raise ExportError("The network gives cosines but its calibration has none: calibrate the bundle again.")
        found = dict(zip(names, session.run(names, {INPUT: pixels.numpy()}), strict=True))
        for name, expected in zip(names, values, strict=True):
            if name != "could_be" and not name.endswith("p_value"):
                size = 1.0 if name == "cosine" else max(1.0, float(expected.abs().max()))
                apart = np.abs(found[name] - expected.numpy()).max() / size
                largest = float(np.maximum(largest, apart))  # unlike max() it keeps NaN
        if not largest <= TOLERANCE:
            return largest
        if "p_value" in found:
            largest = float(np.maximum(largest, _p_value_difference(model.calibration, found)))
        if "probability" in found:
            largest = float(np.maximum(largest, _class_difference(model.calibration, found)))
    return largest


def _p_value_difference(calibration: Calibration, found: dict[str, NDArray[Any]]) -> float:
    """Return how far p-values lie outside of those of scores within the tolerance."""
    score, predicted = found["score"].astype(np.float64), found["logits"].argmax(1)
    slack = TOLERANCE * max(1.0, float(np.abs(score).max()))
    bounds = {"p_value": [calibration.p_values(score + shift) for shift in (slack, -slack)]}
    if calibration.per_class:
        bounds["class_p_value"] = [calibration.class_p_values(score + shift, predicted) for shift in (slack, -slack)]
    apart = 0.0
    for name, (low, high) in bounds.items():
        own = found[name]
        outside = np.maximum(low - own, own - high)[~(np.isnan(low) & np.isnan(own))]  # NaN: too few calibration images
        apart = float(np.maximum(apart, outside.max(initial=0.0)))
    return apart


def _class_difference(calibration: Calibration, found: dict[str, NDArray[Any]]) -> float:
    """Return how far probabilities are from the formula; 1 where a class wrongly is, or is not, among those that could be."""
    assert calibration.classes is not None
    expected = class_probabilities(found["logits"], found.get("cosine"), calibration.classes.temperature)
    apart = float(np.abs(found["probability"] - expected).max())
    if "could_be" in found:
        assert calibration.most_mass is not None
        before = masses(found["probability"])
        certain = np.abs(before - calibration.most_mass) > TOLERANCE
        wrong = found["could_be"] != (before <= calibration.most_mass)
        apart = max(apart, float((wrong & certain & (before > 0)).any()))
    return apart


def _random_pixels(model: Model, count: int) -> Tensor:
    return model.preprocessing.example(count, torch.Generator().manual_seed(count))


def package(name: str) -> Any:
    """Import a package of ``offaxis[onnx]``, or raise MissingPackageError."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else onnxruntime sends usage reports, from its import on
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPackageError(
            f"ONNX export needs {name}, which is not installed: pip install 'offaxis[onnx]'."
        ) from error


# the engine -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OnnxEngine:
    """A session of onnxruntime that computes scores and outputs from pixels.

    Attributes:
        session: the session.
        names: its outputs: logits, cosine if any, score.
    """

    session: Any
    names: tuple[str, ...]

    def __call__(self, pixels: Tensor) -> tuple[Scores, Floats, Floats | None]:
        """Compute scores (N,), logits (N, C) and cosines (N, C), if any, of pixels uint8 (N, c, h, w)."""
        logits, *cosine, score = self.session.run(self.names, {INPUT: pixels.numpy()})
        return score.astype(np.float64), logits, cosine[0] if cosine else None


def with_engine(model: Model, engine: EngineName = "auto", *, threads: int | None = None) -> Model:
    """Return the model with the engine that runs its network.

    Args:
        model: a calibrated model.
        engine: ``"onnx"`` runs it in onnxruntime, ``"torch"`` in PyTorch, ``"auto"`` in onnxruntime on a CPU wherever the
            model can be exported with the same outputs and the packages of ``offaxis[onnx]`` are installed. An export takes
            some seconds.
        threads: of onnxruntime; by default ``OMP_NUM_THREADS``, else one fewer than there are cores, so that images can be
            decoded meanwhile.

    Raises:
        ArgumentError: the engine is not known, or is ``"onnx"`` on another device than the CPU.
        ExportError, MissingPackageError: the engine is ``"onnx"`` and the model cannot be run in it.
    """
    if engine not in get_args(EngineName):
        known = ", ".join(get_args(EngineName))
        raise ArgumentError(f"Expected argument `engine` to be one of {known} but got {engine!r}.")
    plain, on_cpu = replace(model, engine=None), model.device.type == "cpu"
    if engine == "torch" or (engine == "auto" and not on_cpu):
        return plain
    if not on_cpu:
        raise ArgumentError(f"Expected the CPU for onnxruntime but got {model.device}: choose --device cpu.")
    try:
        check_exportable(plain)
        session = make_session(_graph(plain), threads or default_threads())
        _check_same(plain, session, p_values=False)
    except (ExportError, MissingPackageError) as error:
        if engine == "onnx":
            raise
        log.info("PyTorch runs the network: %s", error)
        return plain
    return replace(plain, engine=OnnxEngine(session, tuple(output_names(model, p_values=False))))


def has_graph(model: Model) -> bool:
    """Return whether the graph of a bundle is in the cache folder, so that it runs in onnxruntime at once."""
    file = _kept_graph(model)
    return file is not None and file.is_file()


def _kept_graph(model: Model) -> Path | None:
    """Return where the graph of a bundle is kept; its versions are part of the name."""
    if model.source is None:
        return None
    key = f"{model.source.sha256} {versions()} {np.__version__}"
    return cache_folder() / "onnx" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.onnx"


def _graph(model: Model) -> bytes:
    """Return the graph without p-values; that of a bundle is kept, as an export takes seconds."""
    file = _kept_graph(model)
    if file is not None and file.is_file():
        return file.read_bytes()
    content = graph_bytes(model, p_values=False)
    if file is not None:
        with suppress(StorageError), replacing(file) as temporary:
            temporary.write_bytes(content)
    return content


def make_session(content: bytes, threads: int) -> Any:
    """Return a session of onnxruntime on the CPU whose threads leave the cores to others while they wait.

    Raises:
        ExportError: onnxruntime cannot run the graph.
    """
    runtime = package("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with export_errors("onnxruntime cannot run the graph"):
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def default_threads() -> int:
    """Return how many threads onnxruntime gets: ``OMP_NUM_THREADS``, else one fewer than there are cores."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) else max(1, cores() - 1)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# 8-bit integers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Quantised:
    """What quantisation has changed.

    Attributes:
        accuracy: ID accuracy before and after; without labels the share of equal classes, the first being 1.
        labelled: whether it is an accuracy.
        aurocs: AUROC before and after, by the name of each OOD set.
        images: how many calibration images the new p-values compare with.
        bytes: size of the file, before and after.
    """

    accuracy: tuple[float, float]
    labelled: bool
    aurocs: dict[str, tuple[float, float]]
    images: int
    bytes: tuple[int, int]

    def check(self) -> None:
        """Raise ExportError where too much is lost."""
        what = "ID accuracy" if self.labelled else "share of equal classes"
        lost = [(what, *self.accuracy, MOST_LOST_ACCURACY, "a point")]
        lost += [(f"AUROC on {name}", *pair, MOST_LOST_AUROC, "half a point") for name, pair in self.aurocs.items()]
        for name, before, after, most, words in lost:
            if after < before - most:
                raise ExportError(
                    f"With 8-bit integers the {name} falls from {before:.1%} to {after:.1%}, by more than {words}, so nothing "
                    "was written. Give more images to --calibrate, or leave out --int8."
                )


def export_int8(model: Model, path: str | Path, images: ImageSet, ood: Sequence[ImageSet] = ()) -> Quantised:
    """Export a model as an ONNX graph whose convolutions run on 8-bit integers, calibrated anew.

    Of every four images one gives the ranges of the activations, or 256 of these, spread over all, where there are more; the
    scores of the others, computed by the quantised graph, are the new calibration.

    Args:
        model: with a detector that reads outputs.
        path: the file, usually ``x.onnx``.
        images: ID images that the network has not seen; with labels of the model's classes the accuracy is compared.
        ood: OOD images whose AUROC is compared.

    Raises:
        ExportError: the model cannot be exported; the accuracy falls by more than 0.01, or an AUROC by more than 0.005.
        TooFewImagesError: there are too few images for the model's level.
        OverlapError: some of them were used for training.
    """
    check_exportable(model)
    wanted = model.preprocessing
    assert isinstance(wanted, Preprocessing)  # check_exportable has refused others
    images = match(images, wanted.shape, wanted.resize)
    check_overlap(images, [unpack_hashes(model.used)])
    for_ranges, others = _divide_for_ranges(len(images))
    ranges, held_out = images.subset(for_ranges), images.subset(others)
    with _on_cpu(model):
        plain = graph_bytes(model, p_values=False)
        names = tuple(output_names(model, p_values=False))
        graphs = (plain, _quantise(plain, ranges))
        engines = [OnnxEngine(make_session(content, default_threads()), names) for content in graphs]
        old, new = (_outputs(engine, held_out) for engine in engines)
        labelled = held_out.labels is not None and tuple(held_out.classes or ()) == model.classes
        truth = held_out.labels.numpy() if held_out.labels is not None and labelled else old[1]
        aurocs = {}
        for other in ood:
            before, after = (_outputs(engine, match(other, wanted.shape, wanted.resize))[0] for engine in engines)
            aurocs[other.name] = (auroc(old[0], before), auroc(new[0], after))
        promise: Promise = {
            "alpha": model.calibration.alpha,
            "per_class": model.calibration.per_class,
            "confidence": model.calibration.confidence,
            "max_error": model.calibration.max_error,
        }
        calibration = Calibration.from_scores(
            new[0],
            new[1],
            len(model.classes),
            cosine=new[2],
            classes=ClassCalibration.fitted(new[3], truth) if labelled else None,
            **promise,
        )
        content = _quantise(graph_bytes(replace(model, calibration=calibration)), ranges)
    found = Quantised(
        accuracy=(float((old[1] == truth).mean()), float((new[1] == truth).mean())),
        labelled=labelled,
        aurocs=aurocs,
        images=len(held_out),
        bytes=(len(plain), len(content)),
    )
    found.check()
    with replacing(Path(path)) as temporary:
        temporary.write_bytes(content)
    return found


def _divide_for_ranges(count: int) -> tuple[Tensor, Tensor]:
    """Return the numbers of the images that give the ranges, over all classes where images are in their order; and the rest."""
    fourth = torch.arange(0, count, 4)
    chosen = fourth[
        torch.from_numpy(np.linspace(0, len(fourth) - 1, min(len(fourth), RANGE_IMAGES)).round().astype(int))
    ]
    rest = torch.ones(count, dtype=torch.bool)
    rest[chosen] = False
    return chosen, rest.nonzero().flatten()


def _quantise(content: bytes, ranges: ImageSet) -> bytes:
    """Return a graph with convolutions in 8 bits; the ranges of their inputs are those over these images."""
    package("onnx")
    quantisation = importlib.import_module("onnxruntime.quantization")
    batches = iter([{INPUT: pixels.numpy()} for pixels in ranges.batches(32)])

    class Reader(quantisation.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def get_next(self) -> dict[str, Any] | None:
            return next(batches, None)

    with (
        tempfile.TemporaryDirectory() as room,
        _quiet(),
        export_errors("onnxruntime cannot quantise the graph"),
    ):
        source, prepared, target = (Path(room) / name for name in ("a.onnx", "b.onnx", "c.onnx"))
        source.write_bytes(content)
        quantisation.quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        quantisation.quantize_static(
            str(prepared),
            str(target),
            Reader(),
            quant_format=quantisation.QuantFormat.QDQ,
            op_types_to_quantize=["Conv"],
            per_channel=True,
            reduce_range=True,  # weights of 7 bits: on CPUs without VNNI sums of 8-bit products saturate
            activation_type=quantisation.QuantType.QUInt8,
            weight_type=quantisation.QuantType.QInt8,
        )
        return target.read_bytes()


def _outputs(
    engine: OnnxEngine, images: ImageSet
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None, NDArray[Any]]:
    """Return scores (N,), predicted classes (N,), largest cosines (N,), if any, and logits (N, C) of a set."""
    with export_errors("onnxruntime cannot run the graph"):
        scores, logits, cosines = zip(*(engine(pixels) for pixels in images.batches(64)), strict=True)
    largest = None if cosines[0] is None else np.concatenate(cosines).max(1).astype(np.float64)
    every = np.concatenate(logits)
    return np.concatenate(scores), every.argmax(1), largest, every
