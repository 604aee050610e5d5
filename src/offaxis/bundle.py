"""Bundles: a model as one file ``x.oax``, or a folder, of safetensors and JSON. Nothing is pickled, and loading runs no code.

``bundle.json`` holds the description of the network, preprocessing, class names, detector, level, provenance and the SHA-256
of the other files; its own, ``sha256``, stands for everything. ``network``, ``detector``, ``calibration`` and
``used.safetensors`` hold the tensors. A detector of one's own is recorded as ``module:Class`` and must be registered where
the bundle is loaded.
"""

import hashlib
import json
import struct
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from torch import Tensor, nn

from offaxis.calibration.calibration import Calibration
from offaxis.calibration.classes import ClassCalibration
from offaxis.data.transforms import input_from_json
from offaxis.detectors import Detector
from offaxis.detectors.registry import describe_detector, rebuild_detector
from offaxis.errors import BundleError, DetectorError, MissingPackageError, OffaxisError, StorageError
from offaxis.files import check_plain, is_regular, remove_left, replacing
from offaxis.hub import PREFIX, download
from offaxis.model import Examples, Model, Source
from offaxis.networks.combine import AnyNetwork
from offaxis.networks.library import Builder
from offaxis.networks.open import NetworkSource, open_for_weights
from offaxis.networks.saved import build_checked, describe, must_be_given, restore, tensor_bytes
from offaxis.onnx import with_engine
from offaxis.options import EngineName

FORMAT = "offaxis-bundle"
VERSION = 2
MANIFEST = "bundle.json"
_AGAIN = "Copy it again, or make it again."
FILES = ("network.safetensors", "detector.safetensors", "calibration.safetensors", "used.safetensors")
LEFT_BY_SYSTEMS = (".DS_Store", "Thumbs.db", "desktop.ini")
MAX_MANIFEST = 8 * 2**20
MAX_BYTES = 16 * 2**30
PRECISIONS = {torch.float64, torch.float32, torch.bfloat16, torch.float16}
EXAMPLES = ("pixels", "features", "predicted")
PROMISED = ("alpha", "per_class", "confidence", "max_error", "accuracy")
TENSORS = {
    "scores": (torch.float64, 1),
    "predicted": (torch.int64, 1),
    "cosine": (torch.float64, 1),
    "mass": (torch.float64, 1),
    "probability": (torch.float64, 1),
    "hashes": (torch.uint8, 2),
    "calibrated_on": (torch.uint8, 2),
    "examples.pixels": (torch.uint8, 4),
    "examples.features": (torch.float32, 2),
    "examples.predicted": (torch.int64, 1),
}
"""Type and number of dimensions of the tensors beside those of network and detector."""
_END = struct.Struct("<4s4H2IH")  # the last record of a zip file
_MOST_DIRECTORY = 2**16  # bytes


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
    write_files(Path(path), meta, files, folder)


def load(path: str | Path, network: NetworkSource | None = None, *, engine: EngineName = "torch") -> Model:
    """Load a model from a bundle: it gives the same predictions as the saved one, in PyTorch to the bit.

    Args:
        path: a file or folder that ``Model.save`` or ``offaxis bundle`` wrote; or ``hf:name/repo``, perhaps with
            ``@revision``, that ``Model.push_to_hub`` wrote to the Hugging Face Hub.
        network: the network to put the weights into, for one that is not of offaxis, timm, torchvision or transformers: a
            Classifier, a Paired or an Ensemble; a bare module, which then gets the bundle's head (``attach``); or whatever
            else ``open_network`` takes, such as ``file.py:function``.
        engine: what runs the network: ``"torch"``, ``"onnx"`` (faster on a CPU, outputs within 1e-4), or ``"auto"``:
            onnxruntime wherever the model can be exported. The export takes some seconds.

    Raises:
        BundleError: it is absent, damaged, foreign or of another version; its network must be given, or its detector
            registered.
    """
    where = local_bundle(path)
    meta, files = read_files(where)
    given = network if network is None or isinstance(network, nn.Module) else _open_given(network, meta)
    try:
        model = _unpack(meta, files, given)
    except MissingPackageError:
        raise
    except OffaxisError as error:
        raise BundleError(f"{where}: {error}") from error
    except Exception as error:  # of whatever a description, tensors or a detector's arguments that lie run into
        raise BundleError(f"{where} does not hold a whole bundle ({_said(error)}).") from error
    name = str(path) if str(path).startswith(PREFIX) else where.resolve().name
    model = replace(model, source=Source(name, str(meta["sha256"])))
    return model if engine == "torch" else with_engine(model, engine)


def local_bundle(path: str | Path) -> Path:
    """Return the file or folder of a bundle; one of the Hugging Face Hub (``hf:name/repo``) is downloaded first."""
    return download(str(path), (MANIFEST, *FILES)) if str(path).startswith(PREFIX) else Path(path)


def bundle_checksum(path: Path) -> str:
    """Return the SHA-256 that stands for everything in a bundle, which is checked first.

    Raises:
        BundleError: as for ``read_files``.
    """
    return str(read_files(path)[0]["sha256"])


# model -> manifest and tensors, and back ------------------------------------------------------------------------------


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
    promise: dict[str, Any] = {name: getattr(calibration, name) for name in PROMISED}
    if calibration.cosine is not None:
        tensors["cosine"] = torch.from_numpy(calibration.cosine)
    if (of_classes := calibration.classes) is not None:
        promise |= {"temperature": of_classes.temperature, "ece": list(of_classes.ece)}
        tensors["mass"], tensors["probability"] = map(torch.from_numpy, (of_classes.mass, of_classes.probability))
    if model.examples is not None:
        tensors |= {f"examples.{name}": getattr(model.examples, name) for name in EXAMPLES}
    files = {
        "network.safetensors": tensor_bytes(model.network.state_dict()),
        "detector.safetensors": tensor_bytes(detector.state_dict()),
        "calibration.safetensors": tensor_bytes(tensors),
        "used.safetensors": tensor_bytes({"hashes": model.used, "calibrated_on": model.calibrated_on}),
    }
    meta = {
        "network": describe(model.network, builder),
        "preprocessing": model.preprocessing.to_json(),
        "classes": list(model.classes),
        "detector": description,
        "calibration": promise,
        "provenance": model.provenance,
    }
    return meta, files


def _unpack(meta: Mapping[str, Any], files: Mapping[str, bytes], given: nn.Module | None) -> Model:
    if given is not None and not must_be_given(meta["network"]):
        raise BundleError("it holds a network that it can build itself: leave out the network that was given.")
    weights = load_tensors(files["network.safetensors"])
    preprocessing = input_from_json(meta["preprocessing"])
    network = build_checked(meta["network"], weights, preprocessing.shape, given)
    _restore_in_precision(network, weights)
    classes, promise = meta["classes"], meta["calibration"]
    names = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
    if not names or not isinstance(promise["per_class"], bool) or not isinstance(meta["provenance"], dict):
        raise BundleError("it does not name its classes, say whether verdicts are per class, or how it was made.")
    tensors = _other_tensors(files)
    calibration = Calibration.from_scores(
        tensors["scores"].numpy(),
        tensors["predicted"].numpy(),
        len(classes),
        cosine=tensors["cosine"].numpy() if "cosine" in tensors else None,
        classes=_class_calibration(promise, tensors),
        **{name: promise.get(name) for name in PROMISED},  # older bundles do not have all
    )
    examples = {name: tensors[f"examples.{name}"] for name in EXAMPLES if f"examples.{name}" in tensors}
    return Model(
        network=network,
        preprocessing=preprocessing,
        classes=tuple(classes),
        detector=_rebuilt_detector(meta, files),
        calibration=calibration,
        provenance=dict(meta["provenance"]),
        used=tensors["hashes"],
        calibrated_on=tensors["calibrated_on"],
        examples=Examples(**examples) if examples else None,
    )


def _class_calibration(promise: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> ClassCalibration | None:
    """Return what a bundle knows of class probabilities; None where it is an older one, or was calibrated without labels."""
    if promise.get("temperature") is None:
        return None
    before, after = map(float, promise["ece"])
    mass, probability = tensors["mass"].numpy(), tensors["probability"].numpy()
    temperature = float(promise["temperature"])
    return ClassCalibration(temperature=temperature, ece=(before, after), mass=mass, probability=probability)


def _rebuilt_detector(meta: Mapping[str, Any], files: Mapping[str, bytes]) -> Detector:
    return rebuild_detector(meta["detector"], load_tensors(files["detector.safetensors"])).eval()


def _other_tensors(files: Mapping[str, bytes]) -> dict[str, Tensor]:
    """Return the tensors of calibration, hashes and examples, each of the type that it must be."""
    tensors = {"calibrated_on": torch.empty(0, 16, dtype=torch.uint8)}  # older bundles have none
    tensors |= load_tensors(files["calibration.safetensors"]) | load_tensors(files["used.safetensors"])
    wrong = [name for name, tensor in tensors.items() if (tensor.dtype, tensor.dim()) != TENSORS.get(name)]
    wrong = wrong or [name for name in ("hashes", "calibrated_on") if tensors[name].shape[1] != 16]
    examples = [name for name in tensors if name.startswith("examples.")]
    if len({len(tensors[name]) for name in examples}) > 1:
        wrong = examples
    if wrong:
        raise BundleError(f"its tensors {', '.join(wrong)} are of another type or shape than they must be.")
    return tensors


def _restore_in_precision(network: AnyNetwork, weights: dict[str, Tensor]) -> None:
    """Load the weights; the network takes their precision."""
    kinds = {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()}
    if len(kinds) == 1 and kinds <= PRECISIONS:
        network.to(kinds.pop())
    for name, tensor in network.state_dict().items():
        if name in weights and weights[name].dtype != tensor.dtype:
            raise BundleError(f"its weights {name} are {weights[name].dtype} where {tensor.dtype} was expected.")
    restore(network, weights, Path("network.safetensors"))
    network.eval()


def _open_given(network: NetworkSource, meta: Mapping[str, Any]) -> AnyNetwork:
    classes, provenance = meta.get("classes"), meta.get("provenance")
    head = provenance.get("head") if isinstance(provenance, dict) else None
    count = len(classes) if isinstance(classes, list) else 0
    return open_for_weights(network, count, head if isinstance(head, dict) else None).network


def _check_rebuilt(model: Model, meta: dict[str, Any], files: dict[str, bytes]) -> None:
    """Refuse a bundle that would predict otherwise: a name can stand for a network of the same shape but other strides."""
    try:
        _rebuilt_detector(meta, files)
    except (OffaxisError, TypeError, RuntimeError, KeyError) as error:
        raise BundleError(
            f"The detector {model.detector.name} cannot be built again from its arguments and buffers, so no bundle was "
            f"written ({error}). List every constructor argument in `tunable` or `options`, keep it in an attribute of that "
            "name, and keep what is fitted in buffers."
        ) from error
    if must_be_given(meta["network"]):
        return  # there is nothing to rebuild it from
    probe = model.preprocessing.example(2, torch.Generator().manual_seed(0))
    pairs = zip(model.predict_batch(probe), _unpack(meta, files, None).predict_batch(probe), strict=True)
    if not all(np.allclose([b.score, b.probability], [a.score, a.probability], 1e-3, 1e-4) for a, b in pairs):
        raise BundleError(
            "The model that was rebuilt from names and arguments gives other predictions than this one, so no bundle was "
            "written. Give the builder that made the network, save(path, builder={'library': ..., 'name': ..., 'arguments': "
            "{...}}); for a detector of your own, keep everything that it needs in arguments and buffers."
        )


# manifest and tensors -> one file or a folder, and back ---------------------------------------------------------------


def write_files(path: Path, meta: Mapping[str, Any], files: Mapping[str, bytes], folder: bool = False) -> None:
    """Write the manifest and the files of a bundle, whole or not at all; the same content gives the same bytes.

    Raises:
        StorageError: it cannot be written, or a folder would replace one that holds more than a bundle.
    """
    assert set(files) == set(FILES)
    manifest = {"format": FORMAT, "version": VERSION, **meta}
    manifest["files"] = {name: {"bytes": len(data), "sha256": _sha256(data)} for name, data in files.items()}
    manifest["sha256"] = manifest_digest(manifest)
    whole = {MANIFEST: json.dumps(manifest, indent=1).encode(), **files}
    if folder:
        _write_folder(path, whole)
        return
    if path.is_dir():
        raise StorageError(f"{path} is a folder: name a file, or write a folder (folder=True, --folder).")
    remove_left(path)
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as pack:
        for name, data in whole.items():
            pack.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)


def _write_folder(path: Path, whole: Mapping[str, bytes]) -> None:
    """Fill a new folder beside the old one, then put it in its place."""
    check_replaceable(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as room:
            new, old = Path(room) / "new", Path(room) / "old"
            for name, data in whole.items():
                with replacing(new / name) as temporary:
                    temporary.write_bytes(data)
            try:
                if path.exists():
                    path.replace(old)
                new.replace(path)
            except BaseException:
                if old.exists():
                    old.replace(path)  # else it would go with the room
                raise
    except OSError as error:
        raise StorageError(f"{path} could not be written ({error.strerror or error}).") from error


def check_replaceable(path: Path) -> None:
    """Refuse to replace, and so to delete, what is no bundle or more than a bundle, such as a clone of a repository."""
    if not path.exists():
        return
    try:
        check_plain(path / MANIFEST, MAX_MANIFEST)
        ours = json.loads((path / MANIFEST).read_bytes())["format"] == FORMAT
    except (OSError, LookupError, TypeError, ValueError, RecursionError):
        ours = False
    if not ours:
        raise StorageError(f"{path} is there already and is no bundle: name another place.")
    own = (MANIFEST, *FILES, *LEFT_BY_SYSTEMS)
    if foreign := sorted(entry.name for entry in path.iterdir() if entry.name not in own):
        raise StorageError(
            f"Expected nothing but a bundle in the folder {path}, which is replaced as a whole, but got "
            f"{', '.join(foreign[:5])} beside it: name another folder, and copy the files of the bundle from there."
        )


def read_files(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Read the manifest and the files of a bundle and check every byte.

    Raises:
        BundleError: it is absent, damaged, foreign or of another version.
    """
    if not path.exists():
        raise BundleError(
            f"There is no bundle at {path}: make one with `offaxis bundle RUN --calibrate IMAGES --out {path}`."
        )
    try:
        files = _folder_files(path) if path.is_dir() else _zip_files(path)
        manifest = _check_manifest(path, files.pop(MANIFEST))
        for name in FILES:
            if _sha256(files[name]) != manifest["files"][name]["sha256"]:
                raise BundleError(f"{path} is damaged: the checksum of {name} is wrong. {_AGAIN}")
    except OSError as error:
        raise BundleError(f"{path} cannot be read ({error.strerror or error}).") from error
    except (zipfile.BadZipFile, struct.error, EOFError, RuntimeError, ValueError, LookupError, TypeError) as error:
        raise BundleError(f"{path} is damaged or truncated ({_said(error)}). {_AGAIN}") from error
    return manifest, files


def _folder_files(path: Path) -> dict[str, bytes]:
    files = {name: path / name for name in (MANIFEST, *FILES) if is_regular(path / name)}
    if MANIFEST not in files:
        run = " It is a training run, of which `offaxis bundle RUN --calibrate IMAGES --out x.oax` makes one."
        hint = run if (path / "run.json").is_file() else ""
        raise BundleError(f"Expected a bundle but the folder {path} has no {MANIFEST}.{hint}")
    if sum(file.stat().st_size for file in files.values()) > MAX_BYTES:
        raise BundleError(f"{path} is refused: its files are too large for a bundle.")
    return {name: file.read_bytes() for name, file in files.items()}


def _zip_files(path: Path) -> dict[str, bytes]:
    if not is_regular(path):
        raise BundleError(f"Expected a bundle of offaxis but {path} is no plain file.")
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(2)
        file.seek(max(0, size - _END.size))
        end = file.read()
    if start != b"PK":
        raise BundleError(f"Expected a bundle of offaxis but {path} is no zip file.")
    sign, _, _, _, members, directory, _, _ = _END.unpack(end)  # struct.error is for a file that is cut
    if sign != b"PK\x05\x06" or members > len(FILES) + 1 or directory > _MOST_DIRECTORY:
        # a list of millions would be read at once
        raise BundleError(f"{path} is damaged, or holds other files than a bundle. {_AGAIN}")
    with zipfile.ZipFile(path) as pack:
        if MANIFEST not in pack.namelist():
            raise BundleError(f"Expected a bundle of offaxis but {path} has no {MANIFEST}.")
        entries = pack.infolist()
        stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
        if not stored or sum(entry.file_size for entry in entries) > size:
            raise BundleError(
                f"{path} is refused: the files of a bundle are stored one after the other, not compressed."
            )
        return {name: pack.read(name) for name in pack.namelist()}


def _check_manifest(path: Path, data: bytes) -> dict[str, Any]:
    manifest = json.loads(data) if len(data) <= MAX_MANIFEST else None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BundleError(f"Expected a bundle of offaxis but {path} was written by something else.")
    version = manifest.get("version")
    if version != VERSION:
        older = isinstance(version, int) and version < VERSION
        raise BundleError(
            f"{path} is a bundle of version {version!r} but this offaxis reads version {VERSION}: "
            + ("make it again with `offaxis bundle`." if older else "install a newer offaxis.")
        )
    if manifest.get("sha256") != manifest_digest(manifest):
        raise BundleError(f"{path} is damaged: {MANIFEST} has been changed or cut. {_AGAIN}")
    return manifest


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of everything in a manifest but itself."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return _sha256(json.dumps(rest, sort_keys=True).encode())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"
