"""All steps for a folder of photographs, on photographs that install by package name: pip install 'offaxis[photos,serve]'.

    python examples/demo_photographs.py runs/photos-demo

scikit-image and scikit-learn bring some 15 photographs, not a set of images. So a class is one photograph here: parts of its
left side are trained on, parts of its right side are held out, and the other photographs are out-of-distribution. That is
easier than real classes, and enough to see every step: train, bundle, score, serve, evaluate, report. The report at the end is
the page to look at; scores.html has the photographs that are most unlike the classes.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.request import Request, urlopen

import matplotlib.pyplot as plt
import numpy as np
import skimage
from PIL import Image
from sklearn.datasets import load_sample_images

from offaxis import load

CLASSES = {
    **{name: name for name in ("astronaut", "brick", "coffee", "grass", "gravel")},
    "chelsea": "cat",
    "hubble_deep_field": "galaxies",
    "motorcycle_left": "motorcycle",
}
OTHERS = ("ihc", "page", "retina", "rocket")
SCENES = ("temple", "flower")
DETECTORS = "two-cosines,cosine,knn:k=10,max-softmax"
SERVE = "--port", "0", "--engine", "torch"


def read(name: str) -> Image.Image:
    """Read a photograph of scikit-image."""
    (file,) = (Path(skimage.__file__).parent / "data").glob(f"{name}.*")
    return Image.open(file).convert("RGB")


def write_parts(image: Image.Image, folder: Path, count: int, seed: int) -> None:
    """Write square parts of an image, each from 0.4 to 0.8 of its shorter side, at random places."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    for number in range(count):
        side = int(min(image.size) * random.uniform(0.4, 0.8))
        left, top = (int(random.integers(0, length - side + 1)) for length in image.size)
        image.crop((left, top, left + side, top + side)).save(folder / f"{number:02}.jpg", quality=90)


def write_photographs(folder: Path) -> None:
    """Write train/CLASS, test/CLASS and other/NAME."""
    for seed, (file, name) in enumerate(CLASSES.items()):
        image = read(file)
        middle = int(0.6 * image.width)
        write_parts(image.crop((0, 0, middle, image.height)), folder / "id" / "train" / name, 20, seed)
        write_parts(image.crop((middle, 0, *image.size)), folder / "id" / "test" / name, 12, seed)
    scenes = dict(zip(SCENES, map(Image.fromarray, load_sample_images().images), strict=True))
    for seed, (name, image) in enumerate({**{name: read(name) for name in OTHERS}, **scenes}.items()):
        write_parts(image, folder / "other" / name, 6, seed)


def offaxis(*words: str | Path) -> None:
    """Show a command of the shell and run it."""
    print("\n$ offaxis", *words, flush=True)
    subprocess.run([sys.executable, "-m", "offaxis", *map(str, words)], check=True)


def ask_service(bundle: Path, photograph: Path) -> None:
    """Serve a bundle, send it a photograph, show the answer and end the service."""
    print("\n$ offaxis serve", bundle, flush=True)
    command = [sys.executable, "-m", "offaxis", "serve", str(bundle), *SERVE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as service:
        assert service.stdout is not None
        try:
            printed = ""
            while "http://" not in printed:  # the address, once requests are answered
                line = service.stdout.readline()
                if not line:
                    raise SystemExit(printed)  # why there is no service
                printed += line
            print(printed.strip())
            address = printed.split("http://")[1].split()[0]
            request = Request(f"http://{address}/v1/predict", photograph.read_bytes(), {"Content-Type": "image/jpeg"})
            with urlopen(request) as answer:
                print(photograph, json.dumps(json.load(answer)["predictions"][0]))
        finally:
            service.terminate()


def draw_verdicts(bundle: Path, photographs: Sequence[Path], file: Path) -> None:
    """Draw photographs with the line that a model says of each."""
    model = load(bundle)
    figure, axes = plt.subplots(1, len(photographs), figsize=(4 * len(photographs), 4.4), layout="constrained")
    for place, photograph in zip(axes, photographs, strict=True):
        (said,) = model.predict(photograph)
        place.imshow(Image.open(photograph))
        place.set_title(str(said).replace(", ", "\n", 1), fontsize=11)
        place.set_axis_off()
    figure.savefig(file, dpi=110, bbox_inches="tight")


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/photos-demo")
    if out.exists():
        raise SystemExit(f"{out} is there already: name another folder.")
    write_photographs(out)
    photos, other, run, bundle = out / "id", out / "other", out / "run", out / "photos.oax"
    offaxis("train", "--id", photos, "--network", "efficientnet-lite0", "--freeze", "--out", run, "--quiet")
    offaxis("bundle", run, "--calibrate", photos, "--out", bundle)
    offaxis("score", bundle, photos / "test", other, "--out", out / "scores.csv", "--quiet")
    draw_verdicts(bundle, [photos / "test" / "cat" / "02.jpg", other / "flower" / "02.jpg"], out / "verdicts.png")
    ask_service(bundle, other / "rocket" / "00.jpg")
    folders = ",".join(str(other / name) for name in (*OTHERS, *SCENES))
    offaxis(
        "evaluate", run, "--ood", folders, "--detectors", DETECTORS, "--no-tune", "--out", out / "results", "--quiet"
    )
    offaxis("report", out / "results", "--out", out / "report", "--title", "Photographs")
    pages = {
        "run/classes.html": "Training: what is taken for what, and images whose folder is doubtful",
        "scores.html": "Scores: the photographs that are most unlike the classes",
        "report/index.html": "Report: how well detectors find them",
    }
    links = "".join(f'<li><a href="{page}">{title}</a>' for page, title in pages.items())
    page = '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
    page += f"<title>Photographs</title><h1>Photographs that come with scikit-image</h1><ul>{links}</ul></html>\n"
    (out / "index.html").write_text(page, encoding="utf-8")
    print(f"\nThe pages: {out / 'index.html'}")


if __name__ == "__main__":
    main()
