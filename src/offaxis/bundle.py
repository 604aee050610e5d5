"""Save a model as one file ``x.oax`` (or a folder) of safetensors and JSON, and load it: no pickle.

``bundle.json`` holds the network's describe, preprocessing, class names, detector, level, provenance and checksums;
``network``, ``detector``, ``calibration`` and ``used.safetensors`` hold the tensors. Loading runs no code out of the file:
a detector of one's own is recorded as ``module:Class`` and must be registered where the bundle is loaded.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from offaxis import container
from offaxis.calibration.calibration import Calibration
from offaxis.data.vectors import input_from_json
from offaxis.detectors import Detector
from offaxis.detectors.registry import describe_detector, rebuild_detector
from offaxis.engine import Engine, with_engine
from offaxis.errors import (
    ArgumentError,
    BundleError,
    CalibrationError,
    CheckpointError,
    DetectorError,
    DetectorFileError,
    OffaxisError,
)
from offaxis.hub import PREFIX, download_bundle
from offaxis.model import Examples, Model, Prediction
from offaxis.networks.combine import AnyNetwork
from offaxis.networks.describe import build_checked, describe, must_be_given
from offaxis.networks.library import Builder
from offaxis.networks.open import NetworkSource, open_for_weights
from offaxis.networks.weights import restore

EXAMPLES = ("pixels", "features", "predicted")
PRECISIONS = {torch.float64, torch.float32, torch.bfloat16, torch.float16}


def save_bundle(model: Model, path: str | Path, *, folder: bool = False, builder: Builder | None = None) -> None:
    """Save a model. First it is rebuilt in memory and must give the same predictions as the original.

    Args:
        model: the model.
        path: the file, usually ``x.oax``, or the folder.
        folder: write a folder of the same files.
        builder: how an attached network was made, where looking at it does not tell:
            ``{"library": "timm", "name": "resnet18", "arguments": {"in_chans": 1}}``.

    Raises:
        BundleError: the network cannot be built again from its name; the detector is not registered, cannot be built again
            from its arguments, or keeps fitted state outside of its buffers.
        StorageError: the file cannot be written.
    """
    meta, files = _pack(model, builder)
    _check_rebuilt(model, meta, files)
    container.write_container(Path(path), meta, files, folder)


def load(path: str | Path, network: NetworkSource | None = None, *, engine: Engine = "torch") -> Model:
    """Load a model from a bundle: it gives the same predictions as the saved one, in PyTorch to the bit.

    Args:
        path: a file or folder that ``Model.save`` or ``offaxis bundle`` wrote; or ``hf:name/repo``, perhaps with
            ``@revision``, that ``Model.push_to_hub`` wrote to the Hugging Face Hub.
        network: the network to put the weights into, for one that is not of offaxis, timm, torchvision or transformers: a
            Classifier, a Paired or an Ensemble; a bare module, which then gets the bundle's head (``attach``); or whatever
            else ``open_network`` takes, such as ``file.py:function``.
        engine: what runs the network: ``"torch"``, ``"onnx"`` (faster on a CPU, outputs within 1e-4), or ``"auto"``:
            onnxruntime wherever the model can be exported. The first time the export takes some seconds.

    Raises:
        BundleError: it is absent, damaged, foreign or of another version; its network must be given, or its detector
            registered.
    """
    where = local_bundle(path)
    meta, files = container.read_container(where)
    given = network if network is None or isinstance(network, nn.Module) else _open_given(network, meta)
    try:
        model = _unpack(meta, files, given)
    except (BundleError, DetectorFileError, ArgumentError, CalibrationError) as error:
        raise BundleError(f"{where}: {error}") from error
    except CheckpointError as error:
        raise BundleError(f"{where}: the weights do not fit the network that it names ({error}).") from error
    except OffaxisError:
        raise
    except (
        SafetensorError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        RuntimeError,
    ) as error:
        raise BundleError(
            f"{where} does not hold a whole bundle ({type(error).__name__}: {str(error)[:200]})."
        ) from error
    return model if engine == "torch" else with_engine(model, engine)


def _open_given(network: NetworkSource, meta: Mapping[str, Any]) -> AnyNetwork:
    classes, provenance = meta.get("classes"), meta.get("provenance")
    head = provenance.get("head") if isinstance(provenance, Mapping) else None
    count = len(classes) if isinstance(classes, list) else 0
    return open_for_weights(network, count, head if isinstance(head, dict) else None).network


def local_bundle(path: str | Path) -> Path:
    """Return the file or folder of a bundle; one of the Hugging Face Hub (``hf:name/repo``) is downloaded first."""
    return download_bundle(str(path)) if str(path).startswith(PREFIX) else Path(path)


def _pack(model: Model, builder: Builder | None) -> tuple[dict[str, Any], dict[str, bytes]]:
    detector, calibration = model.detector, model.calibration
    detector.check_fitted()
    if not detector.savable:
        raise BundleError(
            f"The detector {detector.name} keeps its state where a bundle cannot: what it was fitted with is inside "
            "pytorch-ood. Choose another."
        )
    try:
        description = describe_detector(detector)
    except DetectorError as error:
        raise BundleError(str(error)) from error
    tensors = {"scores": torch.from_numpy(calibration.scores), "predicted": torch.from_numpy(calibration.predicted)}
    if calibration.cosine is not None:
        tensors["cosine"] = torch.from_numpy(calibration.cosine)
    if model.examples is not None:
        tensors |= {f"examples.{name}": getattr(model.examples, name) for name in EXAMPLES}
    files = {
        "network.safetensors": _bytes(model.network.state_dict()),
        "detector.safetensors": _bytes(detector.state_dict()),
        "calibration.safetensors": _bytes(tensors),
        "used.safetensors": _bytes({"hashes": model.used, "calibrated_on": model.calibrated_on}),
    }
    meta = {
        "network": describe(model.network, builder),
        "preprocessing": model.preprocessing.to_json(),
        "classes": list(model.classes),
        "detector": description,
        "calibration": {name: getattr(calibration, name) for name in ("alpha", "per_class", "confidence", "accuracy")},
        "provenance": model.provenance,
    }
    return meta, files


def _unpack(meta: Mapping[str, Any], files: Mapping[str, bytes], given: nn.Module | None) -> Model:
    if given is not None and not must_be_given(meta["network"]):
        raise BundleError("it holds a network that it can build itself: leave out the network that was given.")
    weights = load_tensors(files["network.safetensors"])
    network = build_checked(meta["network"], {name: tensor.shape for name, tensor in weights.items()}, given)
    _restore(network, weights)
    if not isinstance(meta["classes"], list) or not all(isinstance(name, str) for name in meta["classes"]):
        raise BundleError("it does not hold a list of class names.")
    if not isinstance(meta["calibration"]["per_class"], bool) or not isinstance(meta["provenance"], dict):
        raise BundleError("it does not say whether verdicts are per class, or how it was made.")
    classes = tuple(meta["classes"])
    tensors = load_tensors(files["calibration.safetensors"])
    hashes = load_tensors(files["used.safetensors"])
    hashes.setdefault("calibrated_on", torch.empty(0, 16, dtype=torch.uint8))  # older bundles have none
    _check_kinds({**tensors, **hashes})
    scores: np.ndarray[Any, np.dtype[np.float64]] = tensors["scores"].numpy()
    calibration = Calibration.from_scores(
        scores,
        tensors["predicted"].numpy(),
        len(classes),
        meta["calibration"]["alpha"],
        per_class=meta["calibration"]["per_class"],
        confidence=meta["calibration"].get("confidence"),
        cosine=tensors["cosine"].numpy() if "cosine" in tensors else None,
    )
    calibration = replace(calibration, accuracy=meta["calibration"].get("accuracy"))
    return Model(
        network=network,
        preprocessing=input_from_json(meta["preprocessing"]),
        classes=classes,
        detector=_detector(meta, files),
        calibration=calibration,
        provenance=dict(meta["provenance"]),
        used=hashes["hashes"],
        calibrated_on=hashes["calibrated_on"],
        examples=_examples(tensors),
    )


def _examples(tensors: Mapping[str, Tensor]) -> Examples | None:
    found = {name: tensors[f"examples.{name}"] for name in EXAMPLES if f"examples.{name}" in tensors}
    return Examples(**found) if found else None


def _detector(meta: Mapping[str, Any], files: Mapping[str, bytes]) -> Detector:
    return rebuild_detector(meta["detector"], load_tensors(files["detector.safetensors"])).eval()


_KINDS = {"scores": torch.float64, "predicted": torch.int64, "cosine": torch.float64}
_HASHES = ("hashes", "calibrated_on")
_EXAMPLES = {
    "examples.pixels": (torch.uint8, 4),
    "examples.features": (torch.float32, 2),
    "examples.predicted": (torch.int64, 1),
}


def _check_kinds(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        known = (torch.uint8, 2) if name in _HASHES else (_KINDS.get(name), 1)
        kind, dimensions = _EXAMPLES.get(name, known)
        if tensor.dtype != kind or tensor.dim() != dimensions:
            raise BundleError(
                f"its tensor {name} is of another kind than it must be ({tensor.dtype}, {tensor.dim()}-d)."
            )
    if len({len(tensor) for name, tensor in tensors.items() if name in _EXAMPLES}) > 1:
        raise BundleError("its examples do not belong together.")
    if any(tensors[name].shape[1] != 16 for name in _HASHES):
        raise BundleError("its hashes of images are not of 16 bytes.")


def _restore(network: AnyNetwork, weights: dict[str, Tensor]) -> None:
    """Load the weights; the network takes their precision.

    Raises:
        BundleError: tensors are of other types than those of the network.
    """
    kinds = {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()}
    if len(kinds) == 1 and kinds <= PRECISIONS:
        network.to(kinds.pop())
    own = network.state_dict()
    wrong = [name for name, tensor in weights.items() if name in own and own[name].dtype != tensor.dtype]
    if wrong:
        raise BundleError(
            f"its weights {wrong[0]} are {weights[wrong[0]].dtype} where {own[wrong[0]].dtype} was expected."
        )
    restore(network, weights, Path("network.safetensors"))
    network.eval()


def _check_rebuilt(model: Model, meta: dict[str, Any], files: dict[str, bytes]) -> None:
    """Refuse a bundle that would predict otherwise: a name can stand for a network of the same shape but other strides."""
    try:
        _detector(meta, files)
    except (OffaxisError, TypeError, RuntimeError, KeyError) as error:
        raise BundleError(
            f"The detector {model.detector.name} cannot be built again from its arguments and buffers, so no bundle was "
            f"written ({error}). List every constructor argument in `tunable` or `options`, keep it in an attribute of that "
            "name, and keep what is fitted in buffers."
        ) from error
    if must_be_given(meta["network"]):
        return  # there is nothing to rebuild it from
    again = _unpack(meta, files, None)
    probe = model.preprocessing.example(2, torch.Generator().manual_seed(0))
    same = [_close(b, a) for b, a in zip(model.predict_batch(probe), again.predict_batch(probe), strict=True)]
    if not all(same):
        raise BundleError(
            "The model that was rebuilt from names and arguments gives other predictions than this one, so no bundle was "
            "written. Give the builder that made the network, save(path, builder={'library': ..., 'name': ..., 'arguments': "
            "{...}}); for a detector of your own, keep everything that it needs in arguments and buffers."
        )


def _close(first: Prediction, second: Prediction) -> bool:
    return bool(np.allclose([first.score, first.probability], [second.score, second.probability], 1e-3, 1e-4))


def _bytes(tensors: Mapping[str, Tensor]) -> bytes:
    # Tied parameters would share memory, which safetensors refuses; a clone of each is the plain way out.
    return save_tensors({name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()})
