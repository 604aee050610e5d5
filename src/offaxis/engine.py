"""Run a model's network in onnxruntime instead of PyTorch: the same outputs, faster on a CPU.

The graph is exported once for each bundle and kept in the user's cache folder. Before it is used, here and at every later
start, its outputs are compared with PyTorch's; where a network or a detector cannot be exported, PyTorch runs it. A graph
for other programs can be quantised to 8-bit integers.
"""

import hashlib
import importlib
import logging
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offaxis.calibration.calibration import Calibration, check_overlap
from offaxis.data import ImageSet, match
from offaxis.data.catalogue import cache_folder
from offaxis.data.images import unpack_hashes
from offaxis.data.transforms import Preprocessing
from offaxis.errors import ArgumentError, ExportError, MissingPackageError, OffaxisError
from offaxis.files import read_arrays, replacing, write_arrays
from offaxis.metrics import auroc
from offaxis.model import Model
from offaxis.onnx import (
    INPUT,
    TOLERANCE,
    Graph,
    check_exportable,
    export_errors,
    graph_bytes,
    largest_difference,
    output_names,
    package,
)
from offaxis.prediction import Floats, Scores

Engine = Literal["auto", "onnx", "torch"]
ENGINES = ("auto", "onnx", "torch")
log = logging.getLogger("offaxis.engine")


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


def with_engine(model: Model, engine: Engine = "auto", *, threads: int | None = None) -> Model:
    """Return the model with the engine that runs its network.

    Args:
        model: a calibrated model.
        engine: ``"onnx"`` runs it in onnxruntime, ``"torch"`` in PyTorch, ``"auto"`` in onnxruntime on a CPU wherever the
            model can be exported with the same outputs and the packages of ``offaxis[onnx]`` are installed.
        threads: of onnxruntime; by default ``OMP_NUM_THREADS``, else one fewer than there are cores, so that images can be
            decoded meanwhile.

    Raises:
        ArgumentError: the engine is not known, or is ``"onnx"`` on another device than the CPU.
        ExportError, MissingPackageError: the engine is ``"onnx"`` and the model cannot be run in it.
    """
    if engine not in ENGINES:
        raise ArgumentError(f"Expected argument `engine` to be one of {', '.join(ENGINES)} but got {engine!r}.")
    plain = replace(model, engine=None)
    if engine == "torch" or (engine == "auto" and model.device.type != "cpu"):
        return plain
    if model.device.type != "cpu":
        raise ArgumentError(
            f"Expected the CPU for onnxruntime but the model is on {model.device}: choose --device cpu."
        )
    try:
        return replace(plain, engine=_open(plain, threads or default_threads()))
    except (ExportError, MissingPackageError) as error:
        if engine == "onnx":
            raise
        log.info("PyTorch runs the network: %s", error)
        return plain


def default_threads() -> int:
    """Return how many threads onnxruntime gets: ``OMP_NUM_THREADS``, else one fewer than there are cores."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) else max(1, cores() - 1)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _open(model: Model, threads: int) -> OnnxEngine:
    """Return the engine from the kept graph, or from a new one where there is none that agrees with PyTorch."""
    check_exportable(model)
    runtime = package("onnxruntime")
    kept = cache_folder() / "onnx" / f"{_key(model)}.npz"
    try:
        if kept.exists():
            graph = read_arrays(kept, ExportError, "it is exported again")["graph"]
            return _checked(model, graph.tobytes(), threads, runtime)
    except Exception as error:  # damaged, or of another version
        log.info("the kept graph is made again: %s", error)
    content = graph_bytes(model, p_values=False)
    engine = _checked(model, content, threads, runtime)
    try:
        write_arrays(kept, {"graph": np.frombuffer(content, np.uint8)}, compress=False)
    except OffaxisError as error:  # a disk that is full or cannot be written: the next start exports again
        log.info("the graph could not be kept: %s", error)
    return engine


def _checked(model: Model, content: bytes, threads: int, runtime: Any) -> OnnxEngine:
    engine = OnnxEngine(make_session(content, threads, runtime), tuple(output_names(model, p_values=False)))
    with export_errors("onnxruntime cannot run the graph"):
        difference = largest_difference(model, Graph(model, p_values=False), engine.session, engine.names)
    if not difference <= TOLERANCE:
        raise ExportError(f"onnxruntime differs from PyTorch by {difference:.2g}, more than {TOLERANCE:g}.")
    return engine


def make_session(content: bytes, threads: int, runtime: Any) -> Any:
    """Return a session of onnxruntime on the CPU whose threads leave the cores to others while they wait.

    Raises:
        ExportError: onnxruntime cannot run the graph.
    """
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with export_errors("onnxruntime cannot run the graph"):
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _settings(model: Model) -> tuple[Any, ...]:
    return torch.__version__, model.preprocessing.to_json(), model.detector.name, model.detector.arguments


def _key(model: Model) -> str:
    """Return a checksum of all that the graph is made from."""
    hashed = hashlib.sha256(repr(_settings(model)).encode())
    for state in (model.network.state_dict(), model.detector.state_dict()):
        for name, tensor in state.items():
            hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            hashed.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy() if tensor.numel() else b"")
    hashed.update(repr(model.network).encode())
    return hashed.hexdigest()[:32]


MOST_LOST_ACCURACY = 0.01
MOST_LOST_AUROC = 0.005
RANGE_IMAGES = 256  # at most, of which the ranges of activations are taken


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
    runtime, wanted = package("onnxruntime"), model.preprocessing
    assert isinstance(wanted, Preprocessing)  # check_exportable has refused others
    device = model.device
    try:
        model.to("cpu")
        images = match(images, wanted.shape, wanted.resize)
        check_overlap(images, [unpack_hashes(model.used)])
        for_ranges, others = _split(len(images))
        ranges, held_out = images.subset(for_ranges), images.subset(others)
        plain = graph_bytes(model, p_values=False)
        names = tuple(output_names(model, p_values=False))
        before = OnnxEngine(make_session(plain, default_threads(), runtime), names)
        after = OnnxEngine(make_session(_quantise(plain, ranges), default_threads(), runtime), names)
        old, new = _outputs(before, held_out), _outputs(after, held_out)
        accuracy, labelled = _accuracies(model, held_out, old[1], new[1])
        aurocs = {}
        for other in ood:
            shaped = match(other, wanted.shape, wanted.resize)
            scores = (auroc(old[0], _outputs(before, shaped)[0]), auroc(new[0], _outputs(after, shaped)[0]))
            aurocs[other.name] = scores
        _check_quantised(accuracy, labelled, aurocs)
        calibration = Calibration.from_scores(
            new[0],
            new[1],
            len(model.classes),
            model.calibration.alpha,
            per_class=model.calibration.per_class,
            confidence=model.calibration.confidence,
            cosine=new[2],
        )
        content = _quantise(graph_bytes(replace(model, calibration=calibration)), ranges)
    finally:
        model.to(device)
    with replacing(Path(path)) as temporary:
        temporary.write_bytes(content)
    sizes = (len(plain), len(content))
    return Quantised(accuracy=accuracy, labelled=labelled, aurocs=aurocs, images=len(held_out), bytes=sizes)


def _split(count: int) -> tuple[Tensor, Tensor]:
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

    root = logging.getLogger()
    level = root.level
    with tempfile.TemporaryDirectory() as room:
        source, prepared, target = (Path(room) / name for name in ("a.onnx", "b.onnx", "c.onnx"))
        source.write_bytes(content)
        root.setLevel(logging.ERROR)  # it logs to the root logger
        try:
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
        except Exception as error:  # onnxruntime raises many kinds of errors
            raise ExportError(f"onnxruntime cannot quantise the graph ({type(error).__name__}: {error}).") from error
        finally:
            root.setLevel(level)
        return target.read_bytes()


def _outputs(engine: OnnxEngine, images: ImageSet) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """Return scores (N,), predicted classes (N,) and largest cosines (N,), if any, of a set."""
    parts = []
    for pixels in images.batches(64):
        with export_errors("onnxruntime cannot run the graph"):
            parts.append(engine(pixels))
    cosines = [cosine.max(1).astype(np.float64) for _, _, cosine in parts if cosine is not None]
    predicted = np.concatenate([logits.argmax(1) for _, logits, _ in parts])
    return np.concatenate([scores for scores, _, _ in parts]), predicted, np.concatenate(cosines) if cosines else None


def _accuracies(
    model: Model, images: ImageSet, before: NDArray[Any], after: NDArray[Any]
) -> tuple[tuple[float, float], bool]:
    """Return the accuracies of two predictions, or the share of equal ones where there are no labels of these classes."""
    if images.labels is None or tuple(images.classes or ()) != model.classes:
        return (1.0, float((before == after).mean())), False
    labels = images.labels.numpy()
    return (float((before == labels).mean()), float((after == labels).mean())), True


def _check_quantised(accuracy: tuple[float, float], labelled: bool, aurocs: dict[str, tuple[float, float]]) -> None:
    what = "ID accuracy" if labelled else "share of equal classes"
    if accuracy[1] < accuracy[0] - MOST_LOST_ACCURACY:
        raise ExportError(
            f"With 8-bit integers the {what} falls from {accuracy[0]:.1%} to {accuracy[1]:.1%}, by more than a point, so "
            "nothing was written. Give more images to --calibrate, or leave out --int8."
        )
    for name, (before, after) in aurocs.items():
        if after < before - MOST_LOST_AUROC:
            raise ExportError(
                f"With 8-bit integers the AUROC on {name} falls from {before:.1%} to {after:.1%}, by more than half a point, "
                "so nothing was written. Give more images to --calibrate, or leave out --int8."
            )
