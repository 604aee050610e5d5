"""Run a model's network in onnxruntime instead of PyTorch: the same outputs, faster on a CPU.

The graph is exported once for each bundle and kept in the user's cache folder. Before it is used, here and at every later
start, its outputs are compared with PyTorch's; where a network or a detector cannot be exported, PyTorch runs it.
"""

import hashlib
import logging
import os
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offaxis.data.catalogue import cache_folder
from offaxis.deploy.model import Model
from offaxis.deploy.onnx import (
    INPUT,
    TOLERANCE,
    Graph,
    check_exportable,
    graph_bytes,
    largest_difference,
    output_names,
    package,
)
from offaxis.errors import ArgumentError, ExportError, MissingPackageError, OffaxisError
from offaxis.files import replacing
from offaxis.heads import Outputs

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

    def __call__(self, pixels: Tensor) -> tuple[NDArray[np.float64], Outputs]:
        """Compute scores (N,) and Outputs of pixels uint8 (N, c, h, w); features are not among them."""
        found = dict(zip(self.names, self.session.run(self.names, {INPUT: pixels.numpy()}), strict=True))
        logits = torch.from_numpy(found["logits"])
        cosine = torch.from_numpy(found["cosine"]) if "cosine" in found else None
        return found["score"].astype(np.float64), Outputs(logits.new_empty(len(logits), 0), logits, cosine, None)


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
    kept = cache_folder() / "onnx" / f"{_key(model)}.onnx"
    try:
        return _checked(model, kept.read_bytes(), threads, runtime)
    except OSError:
        pass  # there is none
    except Exception as error:  # damaged, or of another version; onnxruntime raises many kinds of errors
        log.info("the kept graph is made again: %s", error)
    content = graph_bytes(model, p_values=False)
    engine = _checked(model, content, threads, runtime)
    try:
        with replacing(kept) as temporary:
            temporary.write_bytes(content)
    except OffaxisError as error:  # a disk that is full or cannot be written: the next start exports again
        log.info("the graph could not be kept: %s", error)
    return engine


def _checked(model: Model, content: bytes, threads: int, runtime: Any) -> OnnxEngine:
    engine = OnnxEngine(make_session(content, threads, runtime), tuple(output_names(model, p_values=False)))
    difference = largest_difference(model, Graph(model, p_values=False).eval(), engine.session, engine.names)
    if not difference <= TOLERANCE:
        raise ExportError(f"onnxruntime differs from PyTorch by {difference:.2g}, more than {TOLERANCE:g}.")
    return engine


def make_session(content: bytes, threads: int, runtime: Any) -> Any:
    """Return a session of onnxruntime on the CPU whose threads leave the cores to others while they wait."""
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
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
