"""Images from anywhere: torch Datasets, tensors, arrays, DataLoaders, Hugging Face and torchvision datasets."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset, random_split

from offaxis import Model, attach
from offaxis.data import ImageSet, Normalise, Preprocessing, TensorSet, as_batches, as_image_set, is_loader, load_images
from offaxis.data.adapt import LoaderBatches
from offaxis.errors import ArgumentError, DataError
from tests.data.support import Save

COUNT = 12
PIXELS = torch.randint(0, 256, (COUNT, 3, 6, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(COUNT) % 3
NORMALISE = Normalise((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
EXPECTED = TensorSet("expected", PIXELS, LABELS, ["a", "b", "c"])


def picture(index: int) -> Image.Image:
    return Image.fromarray(PIXELS[index].permute(1, 2, 0).numpy())


class Items(Dataset[Any]):
    """A dataset of given items, which counts how often each is read."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self.reads = [0] * len(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        self.reads[index] += 1
        return self.items[index]


def pairs(images: list[Any]) -> Items:
    return Items(list(zip(images, LABELS.tolist(), strict=True)))


SOURCES = {
    "PIL images": pairs([picture(i) for i in range(COUNT)]),
    "uint8 tensors": pairs(list(PIXELS)),
    "uint8 arrays (h, w, c)": pairs([image.permute(1, 2, 0).numpy() for image in PIXELS]),
    "uint8 arrays (c, h, w)": pairs([image.numpy() for image in PIXELS]),
    "labels as tensors": Items([[image, label] for image, label in zip(PIXELS, LABELS, strict=True)]),
    "labels as numpy integers": Items([(image, np.int32(i % 3)) for i, image in enumerate(PIXELS)]),
    "dicts": Items([{"img": picture(i), "label": i % 3, "id": "x"} for i in range(COUNT)]),
    "a list of pairs": [(picture(i), i % 3) for i in range(COUNT)],
    "TensorDataset": TensorDataset(PIXELS, LABELS),
    "tensors": (PIXELS, LABELS),
    "arrays": (PIXELS.numpy(), LABELS.numpy()),
    "arrays (N, h, w, c)": (PIXELS.permute(0, 2, 3, 1).numpy(), LABELS.numpy()),
    "Subset": Subset(pairs([*PIXELS]), range(COUNT)),
    "ConcatDataset": ConcatDataset([Items([(p, i % 3)]) for i, p in enumerate(PIXELS)]),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_every_source_gives_the_same_set(source: Any) -> None:
    images = as_image_set(source, name="mine", classes=["a", "b", "c"])
    assert isinstance(images, ImageSet)
    assert (images.name, images.classes, images.shape, len(images)) == ("mine", ("a", "b", "c"), (3, 6, 8), COUNT)
    assert images.labels is not None
    assert images.labels.dtype == torch.int64
    assert torch.equal(images.labels, LABELS)
    order = torch.tensor([5, -1, 0, 5])
    assert torch.equal(images.batch(order), PIXELS[order])
    assert images.batch(torch.arange(0)).shape == (0, 3, 6, 8)
    assert images.fingerprint == EXPECTED.fingerprint
    assert images.statistics() == EXPECTED.statistics()
    for (got, labels), (pixels, numbers) in zip(
        as_batches(images, NORMALISE, 5), as_batches(EXPECTED, NORMALISE, 5), strict=True
    ):
        assert torch.equal(got, pixels)
        assert torch.equal(labels, numbers)


def test_floats_of_bytes_give_the_batches_of_the_bytes() -> None:
    images = as_image_set(pairs([image.float() / 255 for image in PIXELS]))
    assert images.batch(torch.arange(2)).dtype == torch.float32
    got, expected = next(iter(as_batches(images, NORMALISE, 4))), next(iter(as_batches(EXPECTED, NORMALISE, 4)))
    assert torch.equal(got[0], expected[0])
    doubles = as_image_set((PIXELS.double() / 255, LABELS))
    assert doubles.batch(torch.arange(2)).dtype == torch.float32


def test_an_image_set_is_returned_itself_or_renamed() -> None:
    assert as_image_set(EXPECTED) is EXPECTED
    renamed = as_image_set(EXPECTED, name="other")
    assert (renamed.name, EXPECTED.name, renamed.classes) == ("other", "expected", ("a", "b", "c"))
    assert renamed.fingerprint == EXPECTED.fingerprint


def test_sets_without_labels() -> None:
    for source in (PIXELS, PIXELS.numpy(), Items(list(PIXELS)), TensorDataset(PIXELS), (PIXELS, torch.full((12,), -1))):
        images = as_image_set(source)
        assert images.labels is None
        assert torch.equal(torch.cat(list(images.batches(5))), PIXELS)
        assert [len(labels) for _, labels in as_batches(images, NORMALISE, 12)] == [0]
        with pytest.raises(DataError, match="Expected labels but .* has none"):
            as_batches(images, NORMALISE, 12, labels=True)
    marked = as_image_set(Items([(image, -1) for image in PIXELS]))
    assert marked.labels is None
    assert marked.fingerprint == as_image_set(PIXELS).fingerprint


def test_a_dataset_is_read_lazily_and_once_for_labels_and_statistics() -> None:
    data = pairs(list(PIXELS))
    images = as_image_set(data)
    assert sum(data.reads) == 1
    images.batch(torch.tensor([3, 4]))
    assert sum(data.reads) == 3
    assert images.labels is not None
    Normalise.from_images(images)
    assert images.fingerprint == EXPECTED.fingerprint
    assert sum(data.reads) == 3 + COUNT


def test_grey_images_among_colour_are_repeated() -> None:
    grey = Image.fromarray(PIXELS[1, 0].numpy())
    images = as_image_set(Items([picture(0), grey, picture(2)]))
    assert torch.equal(images.batch(torch.tensor([1]))[0], PIXELS[1, :1].expand(3, -1, -1))
    with pytest.raises(DataError, match=r"image 1 of Items is 8x6 with 3.*convert\(\"RGB\"\)"):
        as_image_set(Items([grey, picture(0)])).batch(torch.tensor([1]))


def test_more_channels_may_come_first() -> None:
    for shape in ((4, 6, 8), (200, 9, 9), (13, 8, 8)):
        assert as_image_set(torch.zeros(5, *shape, dtype=torch.uint8)).shape == shape


def truncated() -> Image.Image:
    """A picture whose file ends early; Pillow decodes it when its pixels are needed."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(file, "JPEG")
    return Image.open(io.BytesIO(file.getvalue()[:-800]))


def float_with(value: float) -> Tensor:
    image = torch.rand(3, 6, 8)
    image[0, 0, 0] = value
    return image


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("cifar10", "offaxis.load_images"),
        (Path("x"), "offaxis.load_images"),
        (DataLoader(TensorDataset(PIXELS, LABELS)), r"gives batches: give its dataset \(loader\.dataset\)"),
        ({"train": [picture(0)], "test": []}, r"several \(train, test\): choose one"),
        (Items([]), "empty"),
        (7, "a dataset with a length"),
        (TensorDataset(PIXELS, LABELS, LABELS, LABELS), "4 tensors"),
        (Items([(picture(0), 1, 2, 3)]), "4 parts"),
        (Items([{"photo": picture(0)}]), r"has photo: rename its column"),
        (Items(["a.png"]), "is a str: let the dataset decode it"),
        (Items([PIXELS[:2]]), r"shape \(c, h, w\) but image 0 of Items is \(2, 3, 6, 8\)"),
        (Items([PIXELS[0].long()]), r"int64: convert it with \.to\(torch\.uint8\)"),
        (Items([np.array([["a"]])]), "array of <U1"),
        (Items([Image.new("F", (4, 4))]), "floating-point values"),
        (Items([np.zeros((6, 8, 4), np.uint8)]), r"1 or 3 channels, .* is \(6, 8, 4\) in uint8: .*convert\(\"RGB\"\)"),
        (np.zeros((5, 6, 8, 4), np.uint8), r"1 or 3 channels, .* images is \(5, 6, 8, 4\) in uint8"),
        (Items([truncated()]), "image 0 of Items is damaged or truncated"),
        (Items([float_with(float("nan"))]), "image 0 of Items has values from nan"),
        (Items([float_with(2.5)]), r"to 2\.5: divide by 255, or leave out the normalisation"),
        ((PIXELS, LABELS[:5]), "Expected 12 labels"),
        ((PIXELS, LABELS.float()), "whole number"),
        ((PIXELS, LABELS - 1), "from 0 but images has -1"),
        ((PIXELS.float() - 300, LABELS), "divide by 255"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_remedy(source: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_image_set(source)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 5], "from 0 to 2 but mine has 5"),
        ([0, -1, 2], "from 0 but mine has -1"),
        ([0, 1, "cat"], "whole number"),
        ([0, 1, None], "whole number"),
        ([0, 1, 0.5], "whole number"),
    ],
)
def test_bad_labels_are_refused(labels: list[Any], message: str) -> None:
    data = Items(list(zip(PIXELS, labels, strict=False)))
    with pytest.raises(DataError, match=message):
        _ = as_image_set(data, name="mine", classes=["a", "b", "c"]).labels


def test_images_of_several_sizes_are_refused_by_number() -> None:
    sizes = [Image.new("RGB", (8, 6)), Image.new("RGB", (9, 6))]
    with pytest.raises(DataError, match=r"8x6 .* but image 1 of Items is 9x6 .*resize"):
        list(as_image_set(Items(sizes)).batches(2))
    with pytest.raises(DataError, match="one type"):
        list(as_image_set(Items([PIXELS[0], PIXELS[1].float() / 255])).batches(2))


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(zip(PIXELS.float(), LABELS, strict=True))


def test_streamed_datasets_need_a_loader() -> None:
    with pytest.raises(DataError, match="streamed dataset"):
        as_image_set(Streamed())
    loader = as_batches(DataLoader(Streamed(), batch_size=4), None, 4)
    assert [len(images) for images, _ in loader] == [4, 4, 4]
    with pytest.raises(DataError, match="no length|has none"):
        len(loader)


FLOATS = PIXELS.float() / 100 - 1


def dict_of(keys: tuple[str, str]) -> Any:
    return lambda items: {keys[0]: torch.stack([x for x, _ in items]), keys[1]: torch.stack([y for _, y in items])}


@pytest.mark.parametrize(
    "collate", [None, dict_of(("pixel_values", "labels")), dict_of(("image", "label"))], ids=["pairs", "hf", "dict"]
)
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on a machine with one core
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_loader_are_used_unchanged(collate: Any, workers: int) -> None:
    loader = DataLoader(TensorDataset(FLOATS, LABELS), batch_size=5, collate_fn=collate, num_workers=workers)
    batches = as_batches(loader, None, 1, labels=True, num_classes=3)
    assert len(batches) == 3
    for _ in range(2):  # as often as needed
        images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        assert torch.equal(images, FLOATS)
        assert torch.equal(labels, LABELS)
    assert is_loader(loader)
    assert not is_loader(EXPECTED)
    again = as_batches(batches, None, 1)  # wrapped once more, it is the same
    assert torch.equal(next(iter(again))[0], FLOATS[:5])


def test_loaders_without_labels() -> None:
    loader = DataLoader(Items(list(FLOATS)), batch_size=5)
    assert [len(labels) for _, labels in as_batches(loader, None, 1)] == [0, 0, 0]
    with pytest.raises(DataError, match="Expected labels but batch 0"):
        list(as_batches(loader, None, 1, labels=True))
    unlabelled = DataLoader(TensorDataset(FLOATS, torch.full((COUNT,), -1)), batch_size=12)
    assert [len(labels) for _, labels in as_batches(unlabelled, None, 1)] == [0]
    assert [len(labels) for _, labels in LoaderBatches([FLOATS, (FLOATS, LABELS)])] == [0, COUNT]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((PIXELS, LABELS), "used unchanged, so let its dataset or collate_fn normalise"),
        ((FLOATS[0], LABELS), r"\(3, 6, 8\)"),
        ((FLOATS, LABELS, LABELS, LABELS), "collate_fn"),
        ({"x": FLOATS, "kind": LABELS}, r"batch 0 of mine \(keys: x, kind\) has none .* called label, labels, target"),
        ({"photo": FLOATS, "y": LABELS}, r"image or images or .* but batch 0 of mine has photo, y"),
        (([FLOATS[0]], LABELS), "collate_fn .* stack"),
        ((FLOATS, LABELS[:3]), "Expected 12 labels"),
        ((FLOATS, LABELS.float()), "whole number.*An image has one class here"),
        ((FLOATS, LABELS + 1), "from 0 to 2 but batch 0 of mine has 3"),
        ((FLOATS, LABELS - 1), "from 0 but batch 0 of mine has -1"),
        ((FLOATS / 0, LABELS), "NaN or infinity"),
    ],
)
def test_bad_batches_are_refused_with_the_remedy(batch: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(LoaderBatches([batch], name="mine", labels=True, num_classes=3))


def test_generators_and_lists_of_batches_are_as_good_as_a_loader() -> None:
    parts = [(FLOATS[:7], LABELS[:7], torch.arange(7)), {"x": FLOATS[7:], "target": LABELS[7:], "path": ["a"] * 5}]
    assert is_loader(parts)
    assert is_loader([FLOATS])
    assert not is_loader(list(PIXELS))
    assert not is_loader([(PIXELS[0], 1)])
    generator = (part for part in parts)
    for given in (parts, generator):
        batches = as_batches(given, None, 1, labels=True, num_classes=3)
        assert len(batches) == 2
        for _ in range(2):
            images, labels = (torch.cat(each) for each in zip(*batches, strict=True))
            assert torch.equal(images, FLOATS)
            assert torch.equal(labels, LABELS)
    with pytest.raises(DataError, match="gives none, or was used already"):
        as_batches(generator, None, 1)


@pytest.mark.filterwarnings("ignore")  # the network has learned nothing
def test_a_model_is_calibrated_on_generators_and_predicts_one() -> None:
    backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network = nn.Sequential(backbone, nn.Linear(4, 3))
    parts = [(torch.rand(60, 3, 8, 8) * 4 - 2, torch.randint(0, 3, (60,))) for _ in range(2)]
    expects = Preprocessing((3, 8, 8), NORMALISE)
    classifier, unseen = attach(network), torch.rand(60, 3, 8, 8) * 4 - 2
    models = [
        Model.calibrated(classifier, given, used=[seen], preprocessing=expects, classes=["a", "b", "c"])
        for given, seen in ((iter(parts), (part for part in [unseen])), (parts, [unseen]))
    ]
    assert models[0].calibration.threshold() == models[1].calibration.threshold()
    assert len(models[0].predict(part for part in parts)) == 120


def test_items_with_an_index_are_images_with_labels() -> None:
    for data in (
        Items([(image, int(label), 9) for image, label in zip(PIXELS, LABELS, strict=True)]),
        (PIXELS, LABELS, LABELS),
    ):
        images = as_image_set(data)
        assert torch.equal(images.batch(torch.arange(COUNT)), PIXELS)
        assert images.labels is not None
        assert images.labels.tolist() == LABELS.tolist()


def test_normalise_belongs_to_sets_and_not_to_loaders() -> None:
    with pytest.raises(ArgumentError, match="normalise=None with a DataLoader"):
        as_batches(DataLoader(TensorDataset(FLOATS, LABELS)), NORMALISE, 1)
    with pytest.raises(ArgumentError, match="Expected normalise"):
        as_batches(EXPECTED, None, 1)
    with pytest.raises(ArgumentError, match="`batch_size` to be a whole number of at least 1"):
        as_batches(EXPECTED, NORMALISE, 0)
    with pytest.raises(DataError, match="from 0 to 1 but expected has 2"):
        as_batches(EXPECTED, NORMALISE, 4, labels=True, num_classes=2)


def test_datasets_of_torchvision(torchvision_operators: None, tmp_path: Path, save: Save) -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    for index, image in enumerate(PIXELS):
        save(tmp_path / "abc"[index % 3] / f"{index:02d}.png", image.numpy())
    folder = datasets.ImageFolder(str(tmp_path))
    images, ours = as_image_set(folder), load_images(tmp_path)
    assert images.classes == ours.classes == ("a", "b", "c")
    assert images.name == "ImageFolder"
    assert images.fingerprint == ours.fingerprint
    part, _ = random_split(folder, [5, 7], torch.Generator().manual_seed(0))
    some = as_image_set(part)
    assert some.classes == ("a", "b", "c")
    assert some.labels is not None
    assert ours.labels is not None
    assert torch.equal(some.labels, ours.labels[torch.tensor(part.indices)])
    turned = datasets.ImageFolder(str(tmp_path), target_transform=lambda label: 2 - label)
    labels = as_image_set(turned).labels  # not what ``targets`` says
    assert labels is not None
    assert torch.equal(labels, 2 - ours.labels)
    fake = as_image_set(datasets.FakeData(6, (3, 9, 9), 4))
    assert (len(fake), fake.shape) == (6, (3, 9, 9))
    assert fake.labels is not None


def test_a_dataset_of_ones_own_is_believed_by_its_items_alone() -> None:
    class Remapped(Items):
        targets = [9] * COUNT
        classes = ("a", "b", "c")

    images = as_image_set(Remapped(pairs(list(PIXELS)).items))
    assert images.classes == ("a", "b", "c")
    assert images.labels is not None
    assert torch.equal(images.labels, LABELS)


class ClassLabel:
    names = ("a", "b", "c")


class HuggingFaceLike:
    """What a Hugging Face dataset has, without the package."""

    builder_name = "pets"

    def __init__(self, columns: dict[str, list[Any]], features: dict[str, Any]) -> None:
        self.columns, self.features, self.column_names = columns, features, list(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key: int | str) -> Any:
        return self.columns[key] if isinstance(key, str) else {name: c[key] for name, c in self.columns.items()}

    def with_format(self, kind: str | None) -> "HuggingFaceLike":
        return self


def test_columns_of_a_hugging_face_like_dataset() -> None:
    pictures = [picture(i) for i in range(COUNT)]
    images = as_image_set(
        HuggingFaceLike({"image": pictures, "breed": LABELS.tolist()}, {"image": object(), "breed": ClassLabel()})
    )
    assert (images.name, images.classes) == ("pets", ("a", "b", "c"))
    assert images.fingerprint == EXPECTED.fingerprint
    two = {"fine": ClassLabel(), "coarse": ClassLabel()}
    with pytest.raises(DataError, match=r"fine and coarse: .*rename_column\(\"fine\", \"label\"\)"):
        as_image_set(HuggingFaceLike({"image": pictures, "fine": [0] * 12, "coarse": [0] * 12}, two))


@pytest.mark.thirdparty
def test_real_hugging_face_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])})
    columns = {"image": [picture(i) for i in range(COUNT)], "label": LABELS.tolist()}
    data = datasets.Dataset.from_dict(columns, features=features)
    renamed = data.rename_column("image", "photo").rename_column("label", "kind")
    for source in (data, data.with_format("torch"), data.with_format("numpy"), renamed, Subset(data, range(COUNT))):
        images = as_image_set(source)
        assert images.classes == ("a", "b", "c")
        assert images.fingerprint == EXPECTED.fingerprint
        assert images.statistics() == EXPECTED.statistics()
    assert as_image_set(data.remove_columns("label")).labels is None
    changed = as_image_set(data.with_transform(lambda rows: {"pixel_values": rows["image"], "label": rows["label"]}))
    assert changed.fingerprint == EXPECTED.fingerprint
    with pytest.raises(DataError, match=r"several \(train\)"):
        as_image_set(datasets.DatasetDict(train=data))
    with pytest.raises(DataError, match="streamed"):
        as_image_set(data.to_iterable_dataset())
    loader = DataLoader(data.with_format("torch"), batch_size=5)
    with pytest.raises(DataError, match=re.escape("(5, 3, 6, 8) in uint8")):
        list(as_batches(loader, None, 5))
