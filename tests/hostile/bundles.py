"""Fuzzers of bundles, runs, weights and images. Each loads as it was, or is refused with a sentence that names the file."""

import copy
import json
import os
import random
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

import offaxis
from offaxis import Model
from offaxis.bundle import MANIFEST, read_files, write_files
from offaxis.calibration import Calibration
from offaxis.data import Normalise, Preprocessing, TensorSet
from offaxis.detectors import KNN, Energy
from offaxis.detectors.registry import describe_detector
from offaxis.errors import BundleError, CheckpointError, DataError, OffaxisError
from offaxis.evaluation import Store
from offaxis.evaluation import store as store_module
from offaxis.networks import wide_resnet
from offaxis.networks.saved import build_network, read_weights
from offaxis.options import TrainOptions
from offaxis.training import Recipe, load_run
from offaxis.training.record import Checkpoint, RunFolder, load_checkpoint, save_checkpoint
from tests.hostile.damage import Counts, damaged, flipped, picture, rewritten, try_inputs
from tests.operators import import_library

HUGE: tuple[Any, ...] = (
    10**9,
    10**7,
    2**31,
    2**63,
    10**30,
    -1,
    0,
    1e300,
    float("nan"),
    float("inf"),
    True,
    None,
    "",
    "x" * 1000,
    [],
    {},
)


def small_model(seed: int = 0, members: int = 1) -> Model:
    """An untrained model that is calibrated on random scores."""
    torch.manual_seed(seed)
    networks = [wide_resnet(10, 1, in_channels=1).eval() for _ in range(members)]
    network = networks[0] if members == 1 else offaxis.Ensemble(networks)
    scores, predicted = np.random.default_rng(seed).normal(size=100), np.arange(100) % 10
    detector: Any = "cosine"
    if members == 1:
        detector = KNN(3)
        detector.fit(network, [(torch.rand(20, 1, 8, 8), torch.arange(20) % 10)])
    else:
        from offaxis.detectors.registry import default_detector

        detector = default_detector(network)
    return Model(
        network=network,
        preprocessing=Preprocessing((1, 8, 8), Normalise((0.5,), (0.5,))),
        classes=tuple("0123456789"),
        detector=detector,
        calibration=Calibration.from_scores(scores, predicted, 10),
    )


def fuzz_bundles(count: int, seed: int) -> Counts:
    """Cut, changed and overwritten bytes of bundle files."""
    with tempfile.TemporaryDirectory() as folder:
        whole, path = Path(folder) / "whole.oax", Path(folder) / "x.oax"
        small_model().save(whole)
        data = whole.read_bytes()

        def change(chance: random.Random) -> tuple[Path, str]:
            path.write_bytes(damaged(data, chance) if chance.random() < 0.7 else flipped(data, chance))
            return path, "damaged bytes"

        return try_inputs(change, offaxis.load, count, seed, BundleError)


def fuzz_manifests(count: int, seed: int) -> Counts:
    """Manifests with right checksums that say something else: one value anywhere is another, or absent."""
    with tempfile.TemporaryDirectory() as folder:
        bundles = []
        for members in (1, 2):
            bundles.append(Path(folder) / f"{members}.oax")
            small_model(members=members).save(bundles[-1])
        manifests = [json.loads(zipfile.ZipFile(bundle).read(MANIFEST)) for bundle in bundles]

        def change(chance: random.Random) -> tuple[Path, str]:
            which = chance.randrange(2)
            manifest, where = copy.deepcopy(manifests[which]), []
            part: Any = manifest
            keys = [key for key in manifest if key not in ("format", "version", "sha256")]
            while True:
                key = chance.choice(keys)
                where.append(key)
                inner = part[key]
                if not isinstance(inner, (dict, list)) or not inner or chance.random() < 0.25:
                    break
                part, keys = inner, list(inner) if isinstance(inner, dict) else list(range(len(inner)))
            new = chance.choice(HUGE)
            if isinstance(part[key], list) and chance.random() < 0.5:
                part[key] = part[key] * chance.choice((0, 2, 3000))
            elif isinstance(part, dict) and chance.random() < 0.2:
                del part[key]
            else:
                part[key] = new
            return rewritten(bundles[which], Path(folder) / "x.oax", manifest, replace=True), f"{where} = {new!r:.60}"

        return try_inputs(change, offaxis.load, count, seed, BundleError)


def hostile_bundles() -> dict[str, float]:
    """Each is refused within seconds, without gigabytes; return the seconds of processor time of each."""
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small_model().save(folder / "one.oax")
        small_model().save(folder / "folder", folder=True)
        manifest = json.loads((folder / "folder" / MANIFEST).read_text())
        network = manifest["network"]
        description = network["description"]
        changes: dict[str, dict[str, Any]] = {
            "depth": {"network": {**network, "description": {**description, "depth": 6 * 10**8 + 4}}},
            "width": {"network": {**network, "description": {**description, "width": 10**9}}},
            "large width": {"network": {**network, "description": {**description, "width": 10**20}}},
            "classes": {"network": {**network, "description": {**description, "num_classes": 10**7}}},
            "members": {"network": {"kind": "ensemble", "members": [network] * 3000}},
            "pairs": {"network": nested(network, 200)},
            "manifest": {"provenance": {"x": "y" * 60_000_000}},
            "classes' names": {"classes": ["x"] * 10**6},
            "mean": {"preprocessing": {**manifest["preprocessing"], "mean": [float("nan")]}},
            "std": {"preprocessing": {**manifest["preprocessing"], "std": [float("inf")]}},
            "height": {"preprocessing": {**manifest["preprocessing"], "height": 10**9}},
            "possible sides": {"preprocessing": {**manifest["preprocessing"], "height": 16384, "width": 16384}},
        }
        paths = {
            label: rewritten(folder / "one.oax", folder / f"{number}.oax", change)
            for number, (label, change) in enumerate(changes.items())
        }
        paths["many files"] = folder / "many.oax"
        with zipfile.ZipFile(folder / "one.oax") as source, zipfile.ZipFile(paths["many files"], "w") as pack:
            for info in source.infolist():
                pack.writestr(info.filename, source.read(info))
            for number in range(20_000):
                pack.writestr(f"{number}", b"")
        (folder / "folder" / "used.safetensors").unlink()
        os.mkfifo(folder / "folder" / "used.safetensors")
        paths["pipe in a folder"] = folder / "folder"
        paths["pipe"] = folder / "pipe.oax"
        os.mkfifo(paths["pipe"])
        known = safetensors.torch._SIZE
        for dtype in ("int8", "complex64" if torch.complex64 in known else "int16", "float8_e4m3fn", "mixed"):
            paths[dtype] = retyped(folder / "one.oax", folder / f"{dtype}.oax", dtype)
        for label, path in paths.items():
            seconds[label] = refused(path, label)
    return seconds


def refused(path: Path, label: str, reason: str = "") -> float:
    """Try to load a bundle, which must be refused by its name; return the seconds of processor time that it took."""
    started = time.process_time()
    try:
        offaxis.load(path)
    except BundleError as error:
        assert str(path) in str(error), error  # noqa: PT017
        assert reason in str(error), error  # noqa: PT017
        return time.process_time() - started
    raise AssertionError(f"{label} was loaded")


def large_buffers() -> dict[str, float]:
    """Small weights of networks of timm whose buffers, attention or maps are huge; the last is as it should be and loads."""
    import_library("torchvision")
    swin = {"embed_dim": 4, "depths": [2], "num_heads": [1], "num_classes": 10}
    kinds: dict[str, tuple[dict[str, Any], int]] = {
        "window": ({**swin, "img_size": 512, "window_size": 128}, 512),
        "many windows": ({**swin, "img_size": 256, "window_size": 64, "depths": [8]}, 256),
        "maps": ({**swin, "img_size": 4096, "patch_size": 1, "window_size": 1}, 4096),
        "ordinary": ({**swin, "img_size": 64, "window_size": 4}, 64),
    }
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small_model().save(folder / "one.oax")
        head = {"name": "cosine", "scale": 16.0, "hidden": None, "start": "sizes"}
        for label, (arguments, side) in kinds.items():
            builder = {"library": "timm", "name": "swin_tiny_patch4_window7_224", "arguments": arguments}
            plan = {"kind": "attached", "builder": builder, "layer": "head.fc", "head": head, "num_classes": 10}
            plan |= {"layers": [], "channels_last": False}
            with torch.device("meta"):
                described = build_network(plan).state_dict()
            files = read_files(folder / "one.oax")[1]
            zeros = {key: torch.zeros_like(tensor, device="cpu") for key, tensor in described.items()}
            files["network.safetensors"] = safetensors.torch.save(zeros)
            manifest = read_files(folder / "one.oax")[0]
            manifest["network"], manifest["detector"] = plan, describe_detector(Energy())
            files["detector.safetensors"] = safetensors.torch.save({})
            normalise = {"mean": [0.5] * 3, "std": [0.5] * 3}
            manifest["preprocessing"] |= {"channels": 3, "height": side, "width": side, "colour": "RGB", **normalise}
            path = folder / f"{label}.oax"
            write_files(path, {k: v for k, v in manifest.items() if k not in ("files", "sha256")}, files)
            if label == "ordinary":
                offaxis.load(path)
            else:
                assert path.stat().st_size < 2**20
                seconds[label] = refused(path, label, "far larger than its weights")
    return seconds


def nested(network: dict[str, Any], depth: int) -> dict[str, Any]:
    for _ in range(depth):
        network = {"kind": "ensemble", "members": [network]}
    return network


def retyped(bundle: Path, path: Path, dtype: str) -> Path:
    """A bundle with right checksums whose weights are of another type."""
    from safetensors.torch import load, save

    with zipfile.ZipFile(bundle) as pack:
        files = {name: pack.read(name) for name in pack.namelist()}
    weights = load(files["network.safetensors"])
    for number, (name, tensor) in enumerate(weights.items()):
        if tensor.is_floating_point() and (dtype != "mixed" or number % 2):
            weights[name] = tensor.to(torch.float16 if dtype == "mixed" else getattr(torch, dtype))
    manifest = json.loads(files.pop(MANIFEST))
    files["network.safetensors"] = save(weights)
    write_files(path, {k: v for k, v in manifest.items() if k not in ("files", "sha256")}, files)
    return path


def fuzz_checkpoints(count: int, seed: int) -> Counts:
    """Damaged checkpoints never load as something else."""
    chance, refused = random.Random(seed), 0
    torch.manual_seed(0)
    state = {"w": torch.randn(40, 30), "b": torch.randn(30)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.safetensors"
        save_checkpoint(path, Checkpoint(step=3, progress={}, weights=state, momentum=dict(state)))
        whole = path.read_bytes()
        for number in range(count):
            data = flipped(whole, chance) if number % 2 else damaged(whole, chance)
            path.write_bytes(data)
            try:
                load_checkpoint(path)
            except CheckpointError as error:
                if str(path) not in str(error):
                    raise AssertionError(f"checkpoint {number} of seed {seed} is not named: {error}") from error
                refused += 1
            else:
                assert data == whole, f"checkpoint {number} of seed {seed} was loaded"
    return {"refused": refused, "read": count - refused}


def fuzz_runs(count: int, seed: int) -> Counts:
    """Damage any file of a run and of a store: it is told by its name, or it was the line that a kill may cut off."""
    chance, counts = random.Random(seed), {"read": 0, "refused": 0}
    with tempfile.TemporaryDirectory() as folder:
        run, store = Path(folder) / "run", Path(folder) / "store"
        digits = offaxis.load_images("small-digits").subset(torch.arange(40))
        noise = TensorSet("noise", torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8))
        classifier = wide_resnet(10, 1, in_channels=1)
        recipe = Recipe(epochs=1, batch_size=20, crop=0, flip=False)
        offaxis.train(classifier, digits, recipe, out=RunFolder(run, options=TrainOptions(log_every=1)), quiet=True)
        offaxis.evaluate(run, digits, noise, ["cosine"], store=store, validation=10)
        files = [file for place in (run, store) for file in sorted(place.rglob("*")) if file.is_file()]
        for number in range(count):
            file = chance.choice(files)
            whole = file.read_bytes()
            data = flipped(whole, chance) if chance.random() < 0.5 else damaged(whole, chance)
            file.write_bytes(data)
            try:
                _read_all(run if run in file.parents else store)
                assert data == whole or file.name == "log.jsonl", f"{file.name} {number} of seed {seed} was read"
                counts["read"] += 1
            except OffaxisError as error:
                if file.name not in str(error):
                    raise AssertionError(f"{file.name} {number} of seed {seed} is not named: {error}") from error
                counts["refused"] += 1
            except Exception as error:
                raise AssertionError(f"{file.name} {number} of seed {seed}, {data[:200]!r}: {error!r}") from error
            finally:
                file.write_bytes(whole)
    return counts


def _read_all(folder: Path) -> None:
    """Read everything of a run or of a store."""
    if (folder / "run.json").exists():
        load_run(folder)
        load_checkpoint(folder / "checkpoint.safetensors")
        return
    store_module._results.cache_clear()
    store_module._arrays.cache_clear()
    store = Store(folder)
    store.networks()
    for key in store.sets():
        store.indices(key)
    for result in store.results():
        for name in result.scores:
            store.scores(name)


def fuzz_weights(count: int, seed: int) -> Counts:
    """Damaged state dictionaries of PyTorch, as ``--weights`` takes them, zipped and of the format before."""
    state = {"weight": torch.randn(4, 3), "bias": torch.randn(4), "steps": torch.tensor(7)}
    with tempfile.TemporaryDirectory() as folder:
        path, wholes = Path(folder) / "weights.pt", []
        for zipped in (True, False):
            torch.save(state, path, _use_new_zipfile_serialization=zipped)
            wholes.append(path.read_bytes())

        def change(chance: random.Random) -> tuple[Path, str]:
            whole = chance.choice(wholes)
            data = flipped(whole, chance) if chance.random() < 0.3 else damaged(whole, chance)
            path.write_bytes(data)
            return path, data[:200].hex()

        return try_inputs(change, read_weights, count, seed, CheckpointError)  # these files have no checksum of offaxis


def fuzz_images(count: int, seed: int) -> Counts:
    """Damaged images have a prediction or a reason, the same from a file and from its bytes."""
    model, chance = small_model(), random.Random(seed)
    counts = {"read": 0, "refused": 0}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.png"
        for number in range(count):
            data = damaged(picture(chance), chance)
            path.write_bytes(data)
            results: list[tuple[int, float] | None] = []
            began = time.process_time()
            for source in (path, data):
                try:
                    [prediction] = model.predict(source)
                    results.append((prediction.class_index, prediction.score))
                except DataError:
                    results.append(None)
                except BaseException as error:
                    raise AssertionError(f"image {number} of seed {seed}, {data[:200].hex()}: {error!r}") from error
            assert results[0] == results[1], f"image {number} of seed {seed}"
            assert time.process_time() - began < 8, f"image {number} of seed {seed} took too long"
            counts["refused" if results[0] is None else "read"] += 1
    return counts
