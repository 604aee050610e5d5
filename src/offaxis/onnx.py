"""Export a model as one ONNX graph: uint8 pixels in; logits, cosine, score and p-value out.

The graph holds normalisation, network, detector and calibration, so that a program in any language needs onnxruntime and
the file alone. Pixels have the size that the network takes, or, with resizing in the graph, any size.
"""

import importlib
import io
import json
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from offaxis.calibration.calibration import Calibration
from offaxis.data.transforms import Preprocessing, fit_batch
from offaxis.detectors import Reads
from offaxis.errors import ExportError, MissingPackageError
from offaxis.files import replacing
from offaxis.heads import Outputs
from offaxis.model import Model
from offaxis.networks.run import eval_mode, tracing

TOLERANCE = 1e-4
INPUT = "pixels"


class Graph(nn.Module):
    """A module that maps pixels uint8 (N, c, h, w) to logits (N, C), cosine (N, C) if any, score (N,), p_value (N,).

    P-values are double: in single precision 5 / 100 is above 0.05, and an image on the border would not be flagged.
    With verdicts per class ``class_p_value`` (N,) follows, NaN where a class has too few calibration images.

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
        self.per_class = calibration.per_class

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs in the order of ``output_names``."""
        images = (pixels.float().div(255) - self.mean) / self.std
        outputs: Outputs = self.network.outputs(images)
        score: Tensor = self.detector(outputs)
        if not self.p_values:
            return tuple(value for value in (outputs.logits, outputs.cosine, score.float()) if value is not None)
        at_least = (self.id_scores.to(score.dtype).unsqueeze(0) >= score.unsqueeze(1)).double()
        p_value = (1 + at_least.sum(1)) / (len(self.id_scores) + 1)
        results = [outputs.logits, *([] if outputs.cosine is None else [outputs.cosine]), score.float(), p_value]
        if self.per_class:
            predicted = outputs.logits.argmax(1)
            same = (self.id_classes.unsqueeze(0) == predicted.unsqueeze(1)).double()
            within = (1 + (at_least * same).sum(1)) / (same.sum(1) + 1)
            results.append(within + self.nan_where_too_few[predicted])
        return tuple(results)


def output_names(model: Model, p_values: bool = True) -> list[str]:
    """Return the names of the graph's outputs in order."""
    names = ["logits", *([] if model.calibration.cosine is None else ["cosine"]), "score"]
    if p_values:
        names += ["p_value", *(["class_p_value"] if model.calibration.per_class else [])]
    return names


def export_onnx(model: Model, path: str | Path, *, with_resize: bool = False) -> float:
    """Export a model and compare the graph in onnxruntime with PyTorch before the file is put in place.

    Args:
        model: with a detector that reads outputs.
        path: the file, usually ``x.onnx``.
        with_resize: put the rule for the size into the graph, which then takes pixels of any size. They come out as Pillow
            gives them, up to a rounding by 1 of 255.

    Returns:
        The largest difference of an output between onnxruntime and PyTorch, at most ``TOLERANCE``: absolute for cosines,
        relative to the largest value above 1 for logits and scores, for p-values beyond what the difference of the scores
        explains.

    Raises:
        ExportError: the detector or the network cannot be exported, or the graph gives other outputs.
        MissingPackageError: the packages of ``offaxis[onnx]`` are not installed.
    """
    check_exportable(model)
    runtime = package("onnxruntime")
    device = model.device
    try:
        model.to("cpu")
        content = graph_bytes(model, with_resize=with_resize)
        with export_errors("onnxruntime cannot run the graph"):
            session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
            difference = largest_difference(model, Graph(model), session, output_names(model))
    finally:
        model.to(device)
    if not difference <= TOLERANCE:
        raise ExportError(
            f"onnxruntime differs from PyTorch by {difference:.2g}, more than {TOLERANCE:g}, so nothing was written. Is the "
            "network's arithmetic very sensitive, or in half precision?"
        )
    with replacing(Path(path)) as temporary:
        temporary.write_bytes(content)
    return difference


def graph_bytes(model: Model, p_values: bool = True, *, with_resize: bool = False) -> bytes:
    """Export a model on the CPU as the bytes of an ONNX file.

    Args:
        model: the model.
        p_values: whether p-values are among the outputs; see ``Graph``.
        with_resize: put the rule for the size in front, so that pixels have any size.

    Raises:
        ExportError: the detector or the network cannot be exported, or onnxruntime resizes otherwise.
        MissingPackageError: the packages of ``offaxis[onnx]`` are not installed.
    """
    onnx, runtime = package("onnx"), package("onnxruntime")
    package("onnxscript")
    proto = _traced(model, Graph(model, p_values), output_names(model, p_values)).model_proto
    if with_resize:
        rule = model.preprocessing
        if not isinstance(rule, Preprocessing):
            raise ExportError(
                "The model takes feature vectors, which have no size to bring them to: leave out --with-resize."
            )
        with export_errors("onnxruntime cannot resize images"):
            _check_resize(rule, onnx, runtime, proto)
        _add_resize(rule, onnx, proto)
    _describe(proto, model, with_resize)
    if proto.ByteSize() >= 2**31:
        raise ExportError("The graph would have more than 2 GB, which one ONNX file cannot hold.")
    with export_errors("The graph is not valid"):
        onnx.checker.check_model(proto)
    content: bytes = proto.SerializeToString()
    return content


FITTED = "fitted_pixels"


def _resize_nodes(rule: Preprocessing, onnx: Any) -> tuple[list[Any], list[Any]]:
    """Return nodes and constants that bring ``pixels`` to the network's size, as offaxis.data.transforms does."""
    _, height, width = rule.shape
    constants = {"size": np.array([height, width])}
    nodes, source = [], INPUT
    if rule.resize == "crop":  # the largest centred part with the proportions of the result: see transforms.centre
        constants |= {
            "ratio": np.array([height / width, width / height]),
            "swap": np.array([1, 0]),
            "one": np.array([1]),
            "two": np.array([2]),
            "axes": np.array([2, 3]),
        }
        source = "fit_cut"
        nodes = [
            onnx.helper.make_node("Shape", [INPUT], ["fit_sides"], start=2),
            onnx.helper.make_node("Gather", ["fit_sides", "fit_swap"], ["fit_others"]),
            onnx.helper.make_node("Cast", ["fit_others"], ["fit_double"], to=onnx.TensorProto.DOUBLE),
            onnx.helper.make_node("Mul", ["fit_double", "fit_ratio"], ["fit_wanted"]),
            onnx.helper.make_node("Round", ["fit_wanted"], ["fit_rounded"]),
            onnx.helper.make_node("Cast", ["fit_rounded"], ["fit_whole"], to=onnx.TensorProto.INT64),
            onnx.helper.make_node("Max", ["fit_whole", "fit_one"], ["fit_least"]),
            onnx.helper.make_node("Min", ["fit_least", "fit_sides"], ["fit_kept"]),
            onnx.helper.make_node("Sub", ["fit_sides", "fit_kept"], ["fit_rest"]),
            onnx.helper.make_node("Div", ["fit_rest", "fit_two"], ["fit_start"]),
            onnx.helper.make_node("Add", ["fit_start", "fit_kept"], ["fit_end"]),
            onnx.helper.make_node("Slice", [INPUT, "fit_start", "fit_end", "fit_axes"], [source]),
        ]
    nodes.append(
        onnx.helper.make_node(
            "Resize",
            [source, "", "", "fit_size"],
            [FITTED],
            axes=[2, 3],
            mode="linear",
            antialias=1,
            exclude_outside=1,
            coordinate_transformation_mode="half_pixel",
        )
    )
    return nodes, [onnx.numpy_helper.from_array(value, f"fit_{name}") for name, value in constants.items()]


def _any_size(rule: Preprocessing, onnx: Any) -> Any:
    """Return the declaration of the input: pixels of any size."""
    shape = ["batch", rule.shape[0], "height", "width"]
    return onnx.helper.make_tensor_value_info(INPUT, onnx.TensorProto.UINT8, shape)


def _add_resize(rule: Preprocessing, onnx: Any, proto: Any) -> None:
    """Put the rule for the size in front of a graph."""
    nodes, constants = _resize_nodes(rule, onnx)
    later = list(proto.graph.node)
    for node in later:
        node.input[:] = [FITTED if name == INPUT else name for name in node.input]
    del proto.graph.node[:]
    proto.graph.node.extend([*nodes, *later])
    proto.graph.initializer.extend(constants)
    del proto.graph.input[:]
    proto.graph.input.extend([_any_size(rule, onnx)])


def _check_resize(rule: Preprocessing, onnx: Any, runtime: Any, proto: Any) -> None:
    """Compare the rule in onnxruntime with ours, on images of several shapes: a rounding apart at most."""
    nodes, constants = _resize_nodes(rule, onnx)
    shape = rule.shape
    result = onnx.helper.make_tensor_value_info(FITTED, onnx.TensorProto.UINT8, ["batch", *shape])
    graph = onnx.helper.make_graph(nodes, "resize", [_any_size(rule, onnx)], [result], constants)
    opset = [onnx.helper.make_opsetid("", max(each.version for each in proto.opset_import if each.domain == ""))]
    alone = onnx.helper.make_model(graph, opset_imports=opset, ir_version=proto.ir_version)
    session = runtime.InferenceSession(alone.SerializeToString(), providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(0)
    for height, width in ((shape[1], 2 * shape[2]), (2 * shape[1] + 9, shape[2] + 3), (7, 11)):
        pixels = torch.randint(0, 256, (1, shape[0], height, width), dtype=torch.uint8, generator=generator)
        found = session.run(None, {INPUT: pixels.numpy()})[0].astype(int)
        apart = int(np.abs(found - fit_batch(pixels, shape, rule.resize).numpy()).max())
        if apart > 1:
            raise ExportError(
                f"onnxruntime resizes images otherwise than Pillow (by {apart} of 255), so nothing was written. Leave out "
                "--with-resize, and give pixels of the network's size."
            )


def check_exportable(model: Model) -> None:
    """Raise ExportError where the detector cannot be part of a graph, with the reason."""
    name = model.detector.name
    if not isinstance(model.preprocessing, Preprocessing):
        raise ExportError(
            "Expected a model of images to export but this one scores feature vectors: use the bundle itself (offaxis score, "
            "offaxis serve), or export the network that computes the features."
        )
    if model.detector.reads is Reads.IMAGES:
        raise ExportError(
            f"{name} calls the network itself, for gradients with respect to the image or in another mode, which an ONNX graph "
            "cannot. Make a bundle with a detector that reads outputs (cosine, cosine-ensemble, energy, max-softmax, knn, ...)."
        )
    if model.detector.reads is Reads.LAYERS:
        raise ExportError(
            f"{name} reads inner layers, which the network gives through hooks that a graph does not have. Make a bundle with "
            "a detector that reads outputs (cosine, energy, max-softmax, knn, vim, ...)."
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


def _traced(model: Model, graph: Graph, names: list[str]) -> Any:
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "torch.export", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        problem = f"The network or the detector {model.detector.name} cannot be written as an ONNX graph"
        with (
            export_errors(problem),
            tracing(),
            warnings.catch_warnings(),
            eval_mode(graph),
            torch.no_grad(),
        ):
            warnings.simplefilter("ignore")  # about operators of torchvision and the like, which no user can act on
            with redirect_stdout(
                io.StringIO()
            ):  # onnxscript 0.6 prints what it rewrites, which would stand among the rows
                return torch.onnx.export(
                    graph,
                    (_example(model, 3),),
                    input_names=[INPUT],
                    output_names=names,
                    dynamic_shapes={"pixels": {0: torch.export.Dim("batch", min=1)}},
                    dynamo=True,
                    verbose=False,
                )
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _describe(proto: Any, model: Model, with_resize: bool) -> None:
    """Write preprocessing, classes, detector, level and provenance into the metadata of the graph."""
    calibration = model.calibration
    metadata = {
        "offaxis": json.dumps({"format": "offaxis-onnx", "version": 1}),
        "preprocessing": json.dumps(model.preprocessing.to_json()),
        "resize_included": json.dumps(with_resize),
        "classes": json.dumps(list(model.classes)),
        "detector": model.detector.name,
        "alpha": repr(calibration.alpha),
        **_thresholds(calibration),
        "per_class": json.dumps(calibration.per_class),
        "provenance": json.dumps(model.provenance),
        "verdict": "out-of-distribution where "
        + ("class_p_value" if calibration.per_class else "p_value")
        + (" <= alpha" if calibration.confidence is None else " <= levels[class]"),
    }
    if calibration.confidence is not None:
        metadata |= {"confidence": repr(calibration.confidence), "levels": json.dumps(calibration.levels)}
    del proto.metadata_props[:]
    for key, value in metadata.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value
    proto.producer_name, proto.producer_version = (
        "offaxis",
        str(model.provenance.get("versions", {}).get("offaxis", "")),
    )


def _thresholds(calibration: Calibration) -> dict[str, str]:
    """Return the score above which images are flagged, or one for each predicted class, null where there is none."""
    if calibration.per_class:
        return {"class_thresholds": json.dumps(calibration.class_thresholds())}
    return {"threshold": repr(calibration.threshold())}


def largest_difference(model: Model, graph: Graph, session: Any, names: Sequence[str]) -> float:
    """Return the largest difference of the outputs, over batches of one and of five; NaN where there is NaN."""
    largest = 0.0
    for count in (1, 5):
        pixels = _example(model, count)
        with eval_mode(graph), torch.no_grad():
            values = graph(pixels)
        if len(values) != len(names):
            raise ExportError("The network gives cosines but its calibration has none: calibrate the bundle again.")
        expected = dict(zip(names, values, strict=True))
        found = dict(zip(names, session.run(names, {INPUT: pixels.numpy()}), strict=True))
        for name in ("logits", "cosine", "score"):
            if name in found:
                size = 1.0 if name == "cosine" else max(1.0, float(expected[name].abs().max()))
                apart = np.abs(found[name] - expected[name].numpy()).max() / size
                largest = float(np.maximum(largest, apart))  # unlike max() it keeps NaN
        if not largest <= TOLERANCE:
            return largest
        if "p_value" in found:
            largest = float(np.maximum(largest, _p_value_difference(model.calibration, found)))
    return largest


def _p_value_difference(calibration: Calibration, found: dict[str, NDArray[Any]]) -> float:
    """Return how far p-values lie outside of those of scores within the tolerance."""
    score, predicted = found["score"].astype(np.float64), found["logits"].argmax(1)
    slack = TOLERANCE * max(1.0, float(np.abs(score).max()))
    low, high = calibration.p_values(score + slack), calibration.p_values(score - slack)
    apart = np.maximum(low - found["p_value"], found["p_value"] - high)
    if calibration.per_class:
        own = found["class_p_value"]
        low, high = (calibration.class_p_values(score + s, predicted) for s in (slack, -slack))
        too_few = np.isnan(low) & np.isnan(own)
        apart = np.maximum(apart, np.where(too_few, 0.0, np.maximum(low - own, own - high)))
    return float(np.maximum(0.0, apart.max()))


def _example(model: Model, count: int) -> Tensor:
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
