"""Go the whole way once with an installed offaxis, without extras: ``python smoke.py`` in an empty folder.

It stands outside of the tests because it needs nothing but the wheel: train, calibrate, save, load, predict, evaluate, report,
and the commands that do the same.
"""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import offaxis
from offaxis.networks import by_name


def command(*words: str) -> str:
    """Run a command of offaxis and return what it prints."""
    done = subprocess.run([sys.executable, "-m", "offaxis", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def main() -> None:
    """Try what a first user does."""
    where = Path(offaxis.__file__)
    assert "site-packages" in where.parts, f"{where} is not an installed package"
    torch.manual_seed(0)
    train, test = offaxis.load_images("small-digits", "train"), offaxis.load_images("small-digits", "test")
    network = by_name("wrn-10-1-half")(num_classes=10, in_channels=1)
    trained = offaxis.train(network, train, offaxis.Recipe(epochs=3, batch_size=32, crop=0, flip=False), quiet=True)
    model = offaxis.Model.calibrated(trained, test, used=[train])
    model.save("digits.oax")
    assert model.predict(test)[0].p_value == offaxis.load("digits.oax").predict(test)[0].p_value
    letters = offaxis.load_images("letters", like=test)
    results = offaxis.evaluate(
        trained, test, {"letters": letters}, detectors=["cosine", "two-cosines", "energy", "knn"], train=train
    )
    results.save("results")
    Path("new").mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (20, 30), dtype=np.uint8)
        Image.fromarray(pixels).save(f"new/{number}.png")
    assert command("score", "digits.oax", "new").count("distribution") == 3
    command("report", "results", "--out", "report")
    assert Path("report/index.html").stat().st_size > 10_000
    command("train", "--id", "small-digits", "--network", "wrn-10-1-half", "--epochs", "1", "--out", "run", "--quiet")
    command("bundle", "run", "--calibrate", "small-digits", "--out", "run.oax")
    command("paper", "one-vs-one")
    assert "pip install 'offaxis[serve]'" in command("doctor")
    sys.stdout.write(results.table() + "\n")
    versions = ", ".join(
        f"{name} {metadata.version(name)}" for name in ("offaxis", "torch", "numpy", "scikit-learn", "typer")
    )
    sys.stdout.write(f"Everything works with {versions}.\n")


if __name__ == "__main__":
    main()
