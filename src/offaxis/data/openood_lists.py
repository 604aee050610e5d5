"""OpenOOD v1.5: its image lists and folders, as its download leaves them, with its preprocessing and its splits.

::

    ROOT/
      benchmark_imglist/cifar10/train_cifar10.txt, val_cifar10.txt, test_cifar10.txt, val_tin.txt, test_tin.txt, ...
      images_classic/cifar10/test/airplane/0298.png, ...       a line of a list is "cifar10/test/airplane/0298.png 0"
      images_largescale/...

The validation lists tune, the test lists test. https://arxiv.org/abs/2306.09301
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from offaxis.data.decode import MAX_PIXELS, open_image
from offaxis.data.folder import Files, Reading, images_of_files
from offaxis.data.images import ImageSet
from offaxis.data.transforms import Normalise
from offaxis.errors import ArgumentError, DataError

CLASSIC, LARGE = "images_classic", "images_largescale"


@dataclass(frozen=True, kw_only=True)
class Definition:
    """What a benchmark consists of.

    Attributes:
        folder: where the images of the ID set are.
        resize: the size of the short side, before the centre is cropped.
        size: height and width of what is cropped.
        normalise: mean and std.
        ood_validation: the OOD set of the validation list.
        near: names of the near-OOD sets.
        far: names of the far-OOD sets.
        counts: images of each list of the published version, as far as known; the key is the list's name.
        elsewhere: names of sets whose images are in another folder than the ID set's.
        shifted: names of the sets of the ID classes under other conditions, of full-spectrum evaluation.
    """

    folder: str
    resize: int
    size: int
    normalise: Normalise
    ood_validation: str
    near: tuple[str, ...]
    far: tuple[str, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    shifted: tuple[str, ...] = ()


_FAR = ("mnist", "svhn", "texture", "places365")
_IMAGENET = Definition(
    folder=LARGE,
    resize=256,
    size=224,
    normalise=Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ood_validation="openimage_o",
    near=("ssb_hard", "ninco"),
    far=("inaturalist", "textures", "openimage_o"),
    elsewhere={"textures": CLASSIC},
    shifted=("imagenet_v2", "imagenet_c", "imagenet_r"),
)


def _cifar_benchmark(id: str, near: str, normalise: Normalise, counts: Sequence[int]) -> Definition:
    """Make the definition of a CIFAR benchmark; counts are in the order of ``_list_names``."""
    lists = [f"train_{id}", f"val_{id}", f"test_{id}", "val_tin", f"test_{near}", "test_tin"]
    lists += [f"test_{name}" for name in _FAR]
    return Definition(
        folder=CLASSIC,
        resize=32,
        size=32,
        normalise=normalise,
        ood_validation="tin",
        near=(near, "tin"),
        far=_FAR,
        counts=dict(zip(lists, counts, strict=True)),
        shifted=("cifar10c",) if id == "cifar10" else (),
    )


OPENOOD: dict[str, Definition] = {
    "cifar10": _cifar_benchmark(
        "cifar10",
        "cifar100",
        Normalise((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        (50_000, 1_000, 9_000, 1_000, 9_000, 7_793, 70_000, 26_032, 5_640, 35_195),
    ),
    "cifar100": _cifar_benchmark(
        "cifar100",
        "cifar10",
        Normalise((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
        (50_000, 1_000, 9_000, 972, 10_000, 6_526, 70_000, 26_032, 5_640, 33_773),
    ),
    "imagenet200": _IMAGENET,
    "imagenet": _IMAGENET,
}
"""The ID set's name -> its benchmark."""


@dataclass(frozen=True, kw_only=True)
class OpenOODReading(Reading):
    """How OpenOOD makes an image of a file: RGB, short side to a size (bilinear), centre crop; nothing else.

    Attributes:
        short_side: what the short side is resized to.
    """

    short_side: int

    def image(self, path: Path) -> NDArray[np.uint8]:
        """Decode a file: uint8 (3, h, w).

        Raises:
            DataError: the file is damaged or is no image; it is named.
        """
        try:
            image = open_image(path, "it").convert("RGB")
        except Exception as error:  # decoders raise many kinds of errors
            raise DataError(f"{path} cannot be read as an image ({error}): unpack OpenOOD's archive again.") from error
        width, height = image.size
        short = min(width, height)
        if short != self.short_side:
            size = (int(self.short_side * width / short), int(self.short_side * height / short))
            if size[0] * size[1] > MAX_PIXELS:
                raise DataError(
                    f"{path} is {width}x{height}, too long for its height or width: leave it out of the list."
                )
            image = image.resize(size, Image.Resampling.BILINEAR)
        _, tall, wide = self.shape
        left, top = round((image.width - wide) / 2), round((image.height - tall) / 2)
        pixels = np.asarray(image.crop((left, top, left + wide, top + tall)))
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))


@dataclass(frozen=True, kw_only=True)
class ImageList:
    """A list of images, those of it that are there.

    Attributes:
        name: the list's name, such as ``test_tin``.
        paths: the files that are there, in the list's order.
        labels: their labels.
        expected: how many images the published list has, or, where that is not known, this one.
    """

    name: str
    paths: tuple[Path, ...]
    labels: tuple[int, ...]
    expected: int

    @property
    def is_partial(self) -> bool:
        """Whether images of the published list are missing."""
        return len(self.paths) != self.expected


@dataclass(frozen=True)
class OpenOOD:
    """A benchmark of OpenOOD v1.5 on this machine.

    Attributes:
        id: the ID set: ``cifar10``, ``cifar100``, ``imagenet200`` or ``imagenet``.
        lists: by name: ``train_cifar10``, ``val_cifar10``, ``test_cifar10``, ``val_tin``, ``test_tin``, ...
    """

    id: str
    lists: Mapping[str, ImageList]

    @property
    def definition(self) -> Definition:
        """What the benchmark consists of."""
        return OPENOOD[self.id]

    @property
    def normalise(self) -> Normalise:
        """Mean and std of OpenOOD's preprocessing, for networks that do not bring their own."""
        return self.definition.normalise

    @property
    def partial(self) -> dict[str, tuple[int, int]]:
        """The lists that are not whole: name -> images that are there, images of the published list."""
        whole = _list_names(self.id)
        missing = {name: (0, self.definition.counts.get(name, 0)) for name in whole if name not in self.lists}
        return missing | {n: (len(found.paths), found.expected) for n, found in self.lists.items() if found.is_partial}

    @property
    def name(self) -> str:
        """What tables call it: ``openood-cifar10``, and that it is partial where it is."""
        return f"openood-{self.id}" + (" (partial)" if self.partial else "")

    @cached_property
    def train(self) -> ImageSet:
        """The ID training images, for detectors that must be fitted."""
        return self._images(f"train_{self.id}", classes=self.classes)

    @cached_property
    def id_images(self) -> ImageSet:
        """The images of the ID validation list, followed by those of the ID test list."""
        return self._images(f"val_{self.id}", f"test_{self.id}", classes=self.classes)

    @property
    def id_validation(self) -> int:
        """How many of ``id_images`` are of the validation list."""
        return len(self.lists[f"val_{self.id}"].paths)

    @property
    def near(self) -> tuple[str, ...]:
        """Names of the near-OOD sets that are there."""
        return tuple(name for name in self.definition.near if f"test_{name}" in self.lists)

    @property
    def far(self) -> tuple[str, ...]:
        """Names of the far-OOD sets that are there."""
        return tuple(name for name in self.definition.far if f"test_{name}" in self.lists)

    @property
    def shifted(self) -> tuple[str, ...]:
        """Names of the sets of the ID classes under other conditions, where full-spectrum evaluation was asked for."""
        return tuple(name for name in self.definition.shifted if f"test_{name}" in self.lists)

    def shifted_images(self, name: str) -> ImageSet:
        """Return the test images of one of ``shifted``, with labels."""
        return self._images(f"test_{name}", classes=self.classes)

    def ood(self, name: str) -> ImageSet:
        """Return the test images of an OOD set, one of ``near`` or ``far``."""
        return self._images(f"test_{name}")

    @property
    def ood_validation(self) -> ImageSet | None:
        """The OOD images of the validation list, which tuning may see; None where a partial root has none."""
        name = f"val_{self.definition.ood_validation}"
        return self._images(name) if name in self.lists else None

    def title(self, name: str) -> str:
        """Return what tables call an OOD set, and that it is partial where it is."""
        return f"{name} (partial)" if self.lists[f"test_{name}"].is_partial else name

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Names of the ID classes in the order of the labels: the folders of the training images, or numbers."""
        chosen = self.lists[f"train_{self.id}"]
        names = {label: path.parent.name for label, path in zip(chosen.labels, chosen.paths, strict=True)}
        count = max(max(found.labels) for name, found in self.lists.items() if name.endswith(f"_{self.id}")) + 1
        return tuple(names.get(label, str(label)) for label in range(count))

    def _images(self, *names: str, classes: Sequence[str] = ()) -> ImageSet:
        found = [self.lists[name] for name in names]
        files = Files(
            paths=tuple(path for one in found for path in one.paths),
            labels=tuple(label for one in found for label in one.labels) if classes else None,
            classes=tuple(classes),
        )
        size = self.definition.size
        short_side = size if names == ("test_imagenet_c",) else self.definition.resize  # these are cropped already
        reading = OpenOODReading(shape=(3, size, size), short_side=short_side)
        return images_of_files(" and ".join(names), files, reading)


def openood(root: str | Path, id: str, *, partial: bool = False, full_spectrum: bool = False) -> OpenOOD:
    """Open a benchmark of OpenOOD v1.5 on this machine; nothing is downloaded, and no image is decoded yet.

    Args:
        root: the folder with ``benchmark_imglist``, ``images_classic`` and ``images_largescale``, or the one around it
            (``data``).
        id: the ID set: ``cifar10``, ``cifar100``, ``imagenet200`` or ``imagenet``.
        partial: take what is there, where images, lists or sets are missing; every table then says so.
        full_spectrum: take the lists of the ID classes under other conditions too.

    Raises:
        ArgumentError: there is no such benchmark, or it has no such lists.
        DataError: something is missing, with what to download and where it goes; or a list is damaged.
    """
    if id not in OPENOOD:
        raise ArgumentError(f"Expected a benchmark out of {', '.join(OPENOOD)} but got {id!r}.")
    folder = Path(root).expanduser()
    if not (folder / "benchmark_imglist").is_dir() and (folder / "data" / "benchmark_imglist").is_dir():
        folder = folder / "data"
    lists, listed = dict[str, ImageList](), folder / "benchmark_imglist" / id
    missing = [] if listed.is_dir() else [f"there is no folder {listed} with its image lists"]
    shifted = [f"test_{name}" for name in OPENOOD[id].shifted] if full_spectrum else []
    if full_spectrum and not shifted:
        raise ArgumentError(f"Expected a benchmark with lists for full-spectrum evaluation but {id} has none.")
    for name in (*_list_names(id), *shifted) if listed.is_dir() else ():
        found, reason = _read_list(folder, id, name)
        lists |= {name: found} if found is not None else {}
        missing += [reason] if reason else []
    benchmark = OpenOOD(id, lists)
    needed = [f"{part}_{id}" for part in ("train", "val", "test")]
    if missing and not (partial and all(name in lists for name in needed) and (benchmark.near or benchmark.far)):
        shown = "; ".join(missing[:4]) + (f"; and {len(missing) - 4} more" if len(missing) > 4 else "")
        itself = f" (the images of ImageNet-1K itself go to {folder}/{LARGE}/imagenet_1k)" if "imagenet" in id else ""
        way_out = ", or evaluate what is there with --partial" if lists else ""
        if partial:
            way_out = "; --partial needs at least the lists of the ID set and one OOD set"
        raise DataError(
            f"Expected OpenOOD's data for {id} in {folder} but it is not whole: {shown}. Download it with OpenOOD's "
            "scripts/download/download.py --contents datasets --datasets ood_v1.5 --dataset_mode benchmark --save_dir "
            f"{folder}, so that {folder}/benchmark_imglist/{id} and {folder}/{OPENOOD[id].folder} are there{itself}{way_out}."
        )
    return benchmark


def _list_names(id: str) -> list[str]:
    definition = OPENOOD[id]
    ood = [f"test_{name}" for name in (*definition.near, *definition.far)]
    return [f"train_{id}", f"val_{id}", f"test_{id}", f"val_{definition.ood_validation}", *ood]


def _read_list(root: Path, id: str, name: str) -> tuple[ImageList | None, str]:
    """Return a list, with those of its images that are there, and what is wrong with it; None where nothing is there."""
    definition = OPENOOD[id]
    file = root / "benchmark_imglist" / id / f"{name}.txt"
    if not file.is_file():
        return None, f"the list {file} is not there"
    set_name = name.partition("_")[2]
    folder = root / definition.elsewhere.get(set_name, definition.folder)
    listed = _lines(file, labelled=set_name == id or set_name in definition.shifted)
    present = _files_in(folder, {PurePosixPath(path).parent for path, _ in listed})
    kept = [(path, label) for path, label in listed if path in present]
    expected = definition.counts.get(name, len(listed))
    if not kept:
        return None, f"none of the {len(listed)} images of {name} is in {folder}"
    paths, labels = (tuple(column) for column in zip(*kept, strict=True))
    found = ImageList(name=name, paths=tuple(folder / path for path in paths), labels=labels, expected=expected)
    if len(kept) < len(listed):
        return found, f"{len(listed) - len(kept)} of the {len(listed)} images of {name} are not in {folder}"
    if len(kept) != expected:
        return found, f"{name} lists {len(kept)} images where OpenOOD's list has {expected}"
    return found, ""


_LABEL = re.compile(r"[0-9]{1,4}")


def _lines(file: Path, labelled: bool) -> list[tuple[str, int]]:
    """Return (path, label) of every line; the label of OOD images is -1, whatever the list says."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read ({error}): download OpenOOD's image lists again.") from error
    found = []
    for number, line in enumerate(lines, 1):
        path, _, rest = line.partition(" ")
        parts, label = PurePosixPath(path).parts, rest.strip()
        if line and (".." in parts or parts[0] == "/" or (labelled and not _LABEL.fullmatch(label))):
            raise DataError(
                f"Expected lines such as cifar10/test/airplane/0298.png 0 in {file} but line {number} is {line[:80]!r}: "
                "download OpenOOD's image lists again."
            )
        found += [(path, int(label) if labelled else -1)] if line else []
    if not found:
        raise DataError(f"Expected images in {file} but it lists none: download OpenOOD's image lists again.")
    return found


def _files_in(folder: Path, inside: set[PurePosixPath]) -> set[str]:
    """Return the files in some folders inside ``folder``, by their paths from it: far faster than asking for each."""
    found: set[str] = set()
    for one in inside:
        with suppress(OSError), os.scandir(folder / one) as entries:
            found.update(str(one / entry.name) for entry in entries if entry.is_file())
    return found
