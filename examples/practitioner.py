"""All steps of a practitioner: attach, train, calibrate, save, score, serve. A few minutes on two cores.

    python examples/practitioner.py                   writes into ./practitioner
    offaxis serve practitioner/digits.oax --network examples/practitioner.py:make_network

Your own network gets a cosine head, is trained on bundled digits, calibrated on digits that it has not seen, and then
tells for every image whether it is one that it was trained for.
"""

import json
import sys
import threading
import time
import urllib.request
from pathlib import Path

import torch
from torch import nn

import offaxis
from offaxis.data import ImageSet, load_images
from offaxis.options import ScoreOptions, ServeOptions
from offaxis.score import score_images
from offaxis.serve.server import make_server
from offaxis.training import laptop

CLASSES = 10


def make_network() -> offaxis.Classifier:
    """Any network whose output is a linear layer's; attach() puts our head in that layer's place."""
    own = nn.Sequential(
        nn.Conv2d(1, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2, padding=1),
        nn.BatchNorm2d(128),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2048, CLASSES),
    )
    return offaxis.attach(own, head="cosine")


def write_pictures(images: ImageSet, folder: Path, count: int) -> None:
    """Some images of a set as files, as a camera or a scanner would leave them."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for number, pixels in enumerate(images.batch(torch.arange(count))):
        Image.fromarray(pixels[0].numpy()).save(folder / f"{images.name}-{number:03}.png")


def main(out: Path, epochs: int = 8, port: int = 8137) -> None:
    began = time.perf_counter()
    torch.manual_seed(0)
    training, unseen = load_images("digits", "train"), load_images("digits", "test")
    recipe = laptop().replace(epochs=epochs, crop=2, flip=False)

    trained = offaxis.train(make_network(), training, recipe, quiet=True)
    calibration, rest = unseen.subset(torch.arange(500)), unseen.subset(torch.arange(500, 1000))
    model = offaxis.Model.calibrated(trained, calibration, used=[training], alpha=0.05)
    model.save(out / "digits.oax")

    model = offaxis.load(out / "digits.oax", network=make_network())  # anywhere else, later
    for images in (rest, load_images("letters"), load_images("photographs")):
        flagged = [said.verdict is offaxis.Verdict.OUT for said in model.predict(images)]
        print(f"{images.name:12} {sum(flagged) / len(flagged):6.1%} out-of-distribution")

    write_pictures(rest, out / "pictures", 40)
    write_pictures(load_images("letters"), out / "pictures", 10)
    options = ScoreOptions(bundle=out / "digits.oax", out=str(out / "scores.csv"), overwrite=True, quiet=True)
    summary = score_images(model, options, [str(out / "pictures")])
    print(f"scored {summary['images']} files: {out / 'scores.csv'}, highest score {summary['top'][0]['path']}")

    server = make_server(model, ServeOptions(port=port))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    data = next((out / "pictures").glob("letters*")).read_bytes()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/predict", data, {"Content-Type": "image/png"})
    with urllib.request.urlopen(request) as answer:
        said = json.load(answer)["predictions"][0]
    print(f"served: a letter is {said['verdict']}, p = {said['p_value']:.3f}")
    server.should_exit = True
    thread.join()
    print(f"{time.perf_counter() - began:.0f} s from nothing to a service")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "practitioner"))
