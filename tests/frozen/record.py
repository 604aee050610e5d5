"""Record what users hold of version 0.2.0: ``python -m tests.frozen.record``, with that version installed.

Runs, bundles and a store, small ones, and what they answered; requests to a service and its answers; every option of every
command. Nothing here is recorded anew when the code changes: it is what must be read and understood by all later versions.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
import typer

import offaxis
from offaxis.cli import app
from offaxis.data import TensorSet, load_images
from offaxis.evaluation import Store
from tests.serve.serving import png, running

KEPT = Path(__file__).parent / "kept"
TRAIN = ["train", "--id", "digits", "--network", "densenet-10-4-half", "--epochs", "2", "--batch-size", "64", "--quiet"]
EVALUATE = ["--ood", "gaussian,letters", "--images", "60", "--fit-images", "200", "--quiet"]
BUNDLES = ("cosine.oax", "linear.oax", "two.oax", "paired.oax", "classes.oax", "vectors.oax")


def offaxis_command(*words: str) -> None:
    """Run a command in the folder of what is kept."""
    subprocess.run([sys.executable, "-m", "offaxis", *words], cwd=KEPT, check=True)


def options() -> dict[str, Any]:
    """Return what ``--help`` knows of every command: its options, their names, defaults, groups and helps."""
    found: dict[str, Any] = {}

    def look(command: Any, name: str) -> None:
        for sub, inner in getattr(command, "commands", {}).items():
            look(inner, f"{name} {sub}".strip())
        found[name] = {
            "help": command.help,
            "epilog": command.epilog,
            "options": {
                parameter.name: {
                    "names": [*parameter.opts, *parameter.secondary_opts],
                    "help": getattr(parameter, "help", None),
                    "group": getattr(parameter, "rich_help_panel", None),
                    "default": parameter.default if callable(parameter.default) is False else "...",
                    "shown": getattr(parameter, "show_default", None),
                    "required": parameter.required,
                    "several": parameter.multiple,
                    "environment": getattr(parameter, "envvar", None),
                    "least": parameter.min,
                    "most": parameter.max,
                }
                for parameter in command.params
                if parameter.name != "help"
            },
        }

    look(typer.main.get_command(app), "")
    plain: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return plain


def rows() -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return feature vectors (600, 12) of three classes that are easy to tell apart."""
    random = np.random.default_rng(0)
    return random.normal(size=(600, 12)) + 3 * np.eye(3, 12)[np.arange(600) % 3]


def pictures() -> TensorSet:
    """Return the first sixteen test digits, a pixel further to the right, so that none calibrated a bundle.

    A calibration image has the score of itself: on another processor rounding decides whether it counts as larger.
    """
    images = load_images("digits", "test").batch(torch.arange(16))
    return TensorSet("shifted digits", images.roll(1, -1))


def answers(names: Sequence[str] = BUNDLES) -> dict[str, list[dict[str, Any]]]:
    """Return what each bundle says of the first sixteen test digits, or of rows."""
    images = pictures()
    found = {}
    for name in names:
        model = offaxis.load(KEPT / name)
        inputs: Any = rows()[:16] if name == "vectors.oax" else images
        predictions = model.predict(inputs)
        found[name] = [
            {
                "class": each.class_name,
                "probability": each.probability,
                "score": each.score,
                "p_value": each.p_value,
                "class_p_value": each.class_p_value,
                "verdict": str(each.verdict.value),
            }
            for each in predictions
        ]
    return found


def service() -> list[dict[str, Any]]:
    """Return requests to a service and its answers."""
    images = pictures()
    picture = png(images, 3)
    files = [("files", (f"{number}.png", png(images, number), "image/png")) for number in range(3)]
    page = {"accept": "text/html"}
    asked: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", "/healthz", {}),
        ("GET", "/readyz", {}),
        ("GET", "/", {"headers": page}),
        ("GET", "/v1/model", {}),
        ("GET", "/v1/drift", {}),
        ("GET", "/nothing", {}),
        ("GET", "/v1/predict", {}),
        ("POST", "/v1/predict", {"content": picture, "headers": {"content-type": "image/png"}}),
        ("POST", "/v1/predict", {"files": files}),
        ("POST", "/v1/predict", {"content": b"", "headers": {"content-type": "image/png"}}),
        ("POST", "/v1/predict", {"content": b"no image", "headers": {"content-type": "image/png"}}),
        ("POST", "/v1/predict", {"content": b"{}", "headers": {"content-type": "application/json"}}),
        ("POST", "/v1/predict", {"content": picture[:50], "headers": {"content-type": "image/png"}}),
        ("POST", "/v1/predict", {"files": [*files[:1], ("files", ("bad.png", b"bad", "image/png"))]}),
        ("POST", "/v1/predict", {"files": files * 20}),
        ("POST", "/v1/predict", {"files": [], "headers": {"content-type": "multipart/form-data; boundary=x"}}),
        ("GET", "/v1/drift", {}),
        ("GET", "/openapi.json", {}),
    ]
    found = []
    with running(offaxis.load(KEPT / "cosine.oax")) as (address, _), httpx.Client(base_url=address) as client:
        for method, path, given in asked:
            answer = client.request(method, path, **given)
            kind = answer.headers.get("content-type", "")
            body = answer.json() if "json" in kind else None
            found.append({"request": f"{method} {path}", "status": answer.status_code, "type": kind, "body": body})
    return found


def results() -> list[dict[str, Any]]:
    """Return the fields of every result of the store."""
    return [result.to_json() for result in Store.existing(KEPT / "store").results()]


def main() -> None:
    """Record everything."""
    KEPT.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    offaxis_command(*TRAIN, "--out", "runs/cosine0")
    offaxis_command(*TRAIN, "--seed", "1", "--out", "runs/cosine1")
    offaxis_command(*TRAIN, "--head", "linear", "--out", "runs/linear")
    for run in ("cosine1", "linear"):
        (KEPT / "runs" / run / "checkpoint.safetensors").unlink()
    bundle = ("--calibrate", "digits", "--quiet")
    offaxis_command("bundle", "runs/cosine0", *bundle, "--keep-examples", "4", "--out", "cosine.oax")
    offaxis_command("bundle", "runs/linear", *bundle, "--detector", "mahalanobis++", "--out", "linear.oax")
    offaxis_command("bundle", "runs/cosine0", "runs/cosine1", "--as", "ensemble", *bundle, "--out", "two.oax")
    offaxis_command("bundle", "runs/linear", "runs/cosine0", "--as", "paired", *bundle, "--out", "paired.oax")
    offaxis_command(
        "bundle",
        "runs/cosine0",
        *bundle,
        "--per-class",
        "--alpha",
        "0.1",
        "--confidence",
        "0.8",
        "--out",
        "classes.oax",
    )
    detector = offaxis.EmbeddingDetector("knn").fit(rows()[:300], np.arange(300) % 3)
    detector.calibrate(rows()[300:]).save(KEPT / "vectors.oax")
    offaxis_command(
        "evaluate",
        "runs/cosine0",
        "runs/linear",
        "--detectors",
        "cosine,max-softmax,knn,mahalanobis++,odin",
        *EVALUATE,
        "--out",
        "store",
    )
    for name, value in {"options": options(), "answers": answers(), "results": results(), "service": service()}.items():
        (KEPT / f"{name}.json").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
