"""Images from anywhere -> ImageSet or normalised batches.

Datasets of (image, label), Hugging Face datasets, tensors and arrays become an :class:`ImageSet`. The batches of a
DataLoader are used unchanged: they are already normalised. What cannot be used is refused with the remedy.
"""

import copy
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

from offaxis.data.decode import eight_bits
from offaxis.data.images import (
    STATISTICS_BATCH,
    TOKENS,
    ImageSet,
    StatisticsPass,
    TensorSet,
    check_unit,
    describe_tensor,
    stack_tokens,
)
from offaxis.data.transforms import NO_LABELS, Batches, Normalise
from offaxis.errors import ArgumentError, DataError

IMAGE_KEYS = ("image", "images", "img", "pixel_values", "inputs", "x")
LABEL_KEYS = ("label", "labels", "target", "targets", "y")
_ONE_CLASS = (
    "An image has one class here: several labels at once, numbers (regression), boxes, masks and labels of tokens are not "
    "supported; give the images without them to have them scored alone."
)


def as_image_set(data: Any, *, name: str | None = None, classes: Sequence[str] | None = None) -> ImageSet:
    """Return images from anywhere as an ImageSet; nothing but the first image is read now.

    Images are PIL images, uint8 tensors or arrays, or floats in [0, 1], before normalisation. Tensors are (c, h, w),
    arrays (h, w, c) or (c, h, w); all images of a set have one size. A dataset with random transforms gives other images
    each time: augmentation belongs into the training recipe. Labels that are all -1 count as none.

    Args:
        data: an ImageSet (returned as it is); a torch Dataset, or any sequence, of images, (image, label) or (image, label,
            index); a Hugging Face dataset with an image column (one of ``IMAGE_KEYS``) and perhaps a label column (one of
            ``LABEL_KEYS``); a TensorDataset or a tuple (images, labels); a tensor or array of images.
        name: what tables and files call it; by default the set's own name or the class of the dataset.
        classes: the names of the classes in the order of the labels; by default those that the dataset knows.

    Raises:
        DataError: these are no images that can be used; the message says what to do.
    """
    if isinstance(data, ImageSet):
        return data if name is None and classes is None else _relabelled(data, name, classes)
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, Tensor | np.ndarray):
        data = (data,)
    if isinstance(data, tuple) and data and all(isinstance(part, Tensor | np.ndarray) for part in data):
        if len(data) > 3:
            raise DataError(f"Expected (images, labels) but got {len(data)} tensors: leave out the others.")
        title, classes = name or "images", classes or ()
        images = _pixel_tensor(data[0], 4, title).contiguous()
        labels = None if len(data) == 1 else _labels_or_none(data[1], len(images), len(classes) or None, title)
        return TensorSet(title, images, labels, classes)
    _check_indexable(data)
    return DatasetImages(data, name, classes)


def is_loader(data: Any) -> bool:
    """Tell whether this gives batches, as a DataLoader, a generator or a list of batches does, and not single images."""
    if isinstance(data, DataLoader | LoaderBatches):
        return True
    if isinstance(data, list) and data:
        first = data[0].values() if isinstance(data[0], Mapping) else data[0]
        parts = [first] if isinstance(first, Tensor) else first if isinstance(first, Iterable) else ()
        return any(isinstance(part, Tensor) and part.dim() == 4 for part in parts)
    single = isinstance(data, IterableDataset | Mapping | str | Path) or hasattr(data, "__getitem__")
    return hasattr(data, "__iter__") and not single


def as_batches(
    data: Any,
    normalise: Normalise | None,
    batch_size: int,
    *,
    labels: bool = False,
    num_classes: int | None = None,
) -> "Batches | LoaderBatches":
    """Return normalised batches (images (N, c, h, w), labels (N,)) that can be iterated again and have a length.

    Args:
        data: what :func:`as_image_set` takes, or a DataLoader, whose batches are used unchanged.
        normalise: mean and std of the training images; None for a DataLoader, whose images are already normalised.
        batch_size: images a batch; a DataLoader has its own.
        labels: whether labels are needed. Without labels, their tensor is empty (0,).
        num_classes: labels must be below this number where it is given.

    Raises:
        ArgumentError: ``normalise`` is missing, or is given for a DataLoader.
        DataError: the data cannot be used, or labels are missing or out of range; the message says what to do.
    """
    if is_loader(data):
        if normalise is not None:
            raise ArgumentError(
                "Expected normalise=None with a DataLoader, whose batches are used unchanged, but got a mean and std: give "
                "its dataset without normalisation instead, or leave normalise out."
            )
        loader, name = (data.loader, data.name) if isinstance(data, LoaderBatches) else (data, None)
        return LoaderBatches(loader, name=name, labels=labels, num_classes=num_classes)
    images = as_image_set(data)
    if normalise is None:
        raise ArgumentError(
            f"Expected normalise, the mean and std of the training images, for {images.name} but got none: use the trained "
            "network's, or Normalise.from_images(training_images)."
        )
    if labels:
        check_labels_in_range(images.labels, num_classes, images.name)
    return Batches(images, normalise, batch_size)


class LoaderBatches:
    """The batches of a DataLoader, or of anything that can be iterated again, checked and otherwise unchanged.

    A batch is (images, labels), (images, labels, indices), the images alone, or a dict with an image and a label entry. Images
    are normalised floats (N, c, h, w); without labels, their tensor is empty (0,).

    Args:
        loader: a DataLoader, a list of batches, or a generator, whose batches are kept in memory.
        name: what messages and tables call it.
        labels: whether labels are needed.
        num_classes: labels must be below this number where it is given.

    Raises:
        DataError: this gives no batches, or a batch cannot be used.
    """

    def __init__(
        self, loader: Any, *, name: str | None = None, labels: bool = False, num_classes: int | None = None
    ) -> None:
        if not hasattr(loader, "__iter__"):
            raise DataError(f"Expected a DataLoader or a list of batches but got a {type(loader).__name__}.")
        if isinstance(loader, Iterator) and not (loader := list(loader)):
            raise DataError("Expected batches but the generator gives none, or was used already: give a list of them.")
        self.loader = loader
        self.name = name or _name_of(getattr(loader, "dataset", loader))
        self.labels = labels
        self.num_classes = num_classes

    def __len__(self) -> int:
        try:
            return len(self.loader)
        except TypeError as error:
            raise DataError(
                f"Expected a loader with a length but that of {self.name} has none: use a dataset that knows its length."
            ) from error

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number, batch in enumerate(self.loader):
            where = f"batch {number} of {self.name}"
            images, labels = _split_batch(batch, where)
            if self.labels and labels is None and isinstance(batch, Mapping):
                where += f" (keys: {', '.join(map(str, batch))})"
            numbers = None if labels is None else _label_tensor(labels, len(images), where)
            if not self.labels and (numbers is None or bool((numbers < 0).any())):
                yield images, NO_LABELS
            else:
                yield images, check_labels_in_range(numbers, self.num_classes, where)


class DatasetImages(ImageSet):
    """A dataset of images, or of images with labels, read item by item when it is needed.

    Labels are read from the items, in the same pass as the statistics, unless the dataset is known to keep them apart
    (Hugging Face, torchvision).
    """

    def __init__(self, data: Any, name: str | None = None, classes: Sequence[str] | None = None) -> None:
        title = name or _name_of(data)
        if len(data) == 0:
            raise DataError(f"Expected images but {title} is empty.")
        self.data, self.name = data, title
        self._features = features_of(_innermost(data))
        self._column = _label_key(self._features, self._features, title)
        [image], [label] = self._read([0])
        channels, height, width = image.shape
        super().__init__(title, (channels, height, width), classes=self._own_classes() if classes is None else classes)
        self._dtype, self._labelled = image.dtype, label is not None

    def _own_classes(self) -> tuple[str, ...]:
        names = getattr(self._features.get(self._column or ""), "names", None)
        names = names or getattr(_innermost(self.data), "classes", None)
        return tuple(map(str, names)) if isinstance(names, list | tuple) else ()

    def __len__(self) -> int:
        return len(self.data)

    @property
    def labels(self) -> Tensor | None:
        """Labels, int64 (N,), or None; they are read at the first use."""
        if self._labelled and self._labels is None:
            kept = _kept_labels(self.data, self._column)
            sums, kept = self._scan() if kept is None else (None, kept)
            self._labels = _labels_or_none(kept, len(self), len(self.classes) or None, self.name)
            self._statistics = self._statistics if sums is None else sums.finish(self._labels)
            self._labelled = self._labels is not None
        return self._labels

    def batch(self, indices: Tensor) -> Tensor:
        """Read the images at these indices: (B, c, h, w), uint8 or float32 in [0, 1]."""
        numbers = torch.arange(len(self))[indices].tolist()
        return self._read(numbers)[0] if numbers else torch.empty(0, *self.shape, dtype=self._dtype)

    def _scan(self) -> tuple[StatisticsPass, list[Any]]:
        """Read all labels, and sum the statistics in the same pass."""
        sums, labels = StatisticsPass(len(self), self.shape), list[Any]()
        for chosen in torch.arange(len(self)).split(STATISTICS_BATCH):
            images, more = self._read(chosen.tolist())
            sums.add(images)
            labels += more
        return sums, labels

    def _read(self, numbers: list[int]) -> tuple[Tensor, list[Any]]:
        several = getattr(self.data, "__getitems__", None)
        items = several(numbers) if several else [self.data[number] for number in numbers]
        images, labels = [], []
        for number, item in zip(numbers, items, strict=True):
            where = f"image {number} of {self.name}"
            image, label = _split_item(item, self._features, where)
            images.append(self._agreeing(_image_tensor(image, where), where))
            labels.append(label)
        return torch.stack(images), labels

    def _agreeing(self, image: Tensor, where: str) -> Tensor:
        """Return the image with the channels of the first one, or refuse it."""
        channels, height, width = getattr(self, "shape", image.shape)
        if len(image) == 1 and channels == 3:  # a grey image among colour images
            image = image.expand(3, -1, -1)
        if tuple(image.shape) != (channels, height, width):
            raise DataError(
                f"Expected images of one size, {width}x{height} with {channels} channels as the first, but {where} is "
                f"{image.shape[2]}x{image.shape[1]} with {image.shape[0]}: let the dataset convert all, as "
                'image.convert("RGB").resize((224, 224)) does.'
            )
        if image.dtype != getattr(self, "_dtype", image.dtype):
            raise DataError(f"Expected images of one type, {self._dtype} as the first, but {where} has {image.dtype}.")
        return image


def _relabelled(images: ImageSet, name: str | None, classes: Sequence[str] | None) -> ImageSet:
    result = copy.copy(images)
    result.name = name or images.name
    result.classes = images.classes if classes is None else tuple(classes)
    return result


def _check_indexable(data: Any) -> None:
    wanted = "a dataset with a length, whose images can be read by number"
    if isinstance(data, str | Path):
        raise DataError(f"Expected {wanted}, but got the name {str(data)!r}: read it with offaxis.load_images first.")
    if is_loader(data):
        raise DataError(
            f"Expected {wanted}, but got a {type(data).__name__}, which gives batches: give its dataset (loader.dataset), "
            "whose images are not normalised."
        )
    if isinstance(data, Mapping):
        raise DataError(f"Expected {wanted}, but got several ({', '.join(map(str, data))}): choose one of them.")
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise DataError(
            f"Expected {wanted}, but got a {type(data).__name__}: load a streamed dataset as a whole, or give a DataLoader of "
            "normalised batches."
        )


def _name_of(data: Any) -> str:
    innermost = _innermost(data)
    if isinstance(innermost, list | tuple):
        return "images"
    own = getattr(innermost, "name", None) or getattr(innermost, "builder_name", None)
    return own if isinstance(own, str) else type(innermost).__name__


def _innermost(data: Any) -> Any:
    while isinstance(data, Subset):
        data = data.dataset
    return data


def features_of(data: Any) -> Mapping[str, Any]:
    """Return the columns of a Hugging Face dataset with their types; nothing for other datasets."""
    features = getattr(data, "features", None)
    return features if isinstance(features, Mapping) and hasattr(data, "column_names") else {}


def _image_key(item: Mapping[str, Any], features: Mapping[str, Any], where: str) -> str:
    typed = [key for key, feature in features.items() if type(feature).__name__ == "Image" and key in item]
    for key in (*IMAGE_KEYS, *typed):
        if key in (typed or item):
            return key
    raise DataError(
        f"Expected an image under {' or '.join(IMAGE_KEYS)} but {where} has {', '.join(map(str, item)) or 'nothing'}: "
        'rename its column, as dataset.rename_column("photo", "image") does, or let the dataset or '
        "a collate_fn give (image, label) pairs."
    )


def _label_key(item: Mapping[str, Any], features: Mapping[str, Any], where: str) -> str | None:
    """Return the key of the label in an item: ``label``, ``labels`` or the only column of classes; None without one.

    Raises:
        DataError: there are several columns of classes.
    """
    for key in LABEL_KEYS:
        if key in item:
            return key
    typed = [key for key, feature in features.items() if hasattr(feature, "names") and key in item]
    if len(typed) > 1:
        raise DataError(
            f"Expected one column of labels but {where} has {' and '.join(typed)}: name the one to use, as "
            f'dataset.rename_column("{typed[0]}", "label") does.'
        )
    return typed[0] if typed else None


def _split_item(item: Any, features: Mapping[str, Any], where: str) -> tuple[Any, Any]:
    """Split an item of a dataset into (image, label or None)."""
    if isinstance(item, Mapping):
        key = _label_key(item, features, where)
        return item[_image_key(item, features, where)], None if key is None else item[key]
    if not isinstance(item, tuple | list):
        return item, None
    if len(item) not in (1, 2, 3):
        raise DataError(
            f"Expected an image, (image, label) or (image, label, index) but {where} has {len(item)} parts: let the dataset or "
            "the collate_fn of its DataLoader, give two."
        )
    return item[0], item[1] if len(item) > 1 else None


def _split_batch(batch: Any, where: str) -> tuple[Tensor, Any]:
    """Split a batch of a loader into (images, labels or None); the images must be finite floats (N, c, h, w)."""
    if isinstance(batch, Mapping) and TOKENS[0] in batch:
        key = _label_key(batch, {}, where)
        return stack_tokens(*map(batch.get, TOKENS)), None if key is None else batch[key]
    images, labels = _split_item(batch, {}, where)
    if not isinstance(images, Tensor) or images.dim() != 4 or not images.is_floating_point():
        got = describe_tensor(images) if isinstance(images, Tensor) else f"a {type(images).__name__}"
        raise DataError(
            f"Expected normalised floats of shape (N, c, h, w) but {where} has {got}: batches are used unchanged, so let its "
            "dataset or collate_fn normalise and stack them, or give the dataset instead."
        )
    if not torch.isfinite(images).all():
        raise DataError(f"Expected finite pixels but {where} has NaN or infinity: look at its images.")
    return images, labels


def _image_tensor(image: Any, where: str) -> Tensor:
    """Convert a PIL image, which may be decoded only now, a tensor or an array to uint8 (c, h, w), or float32 in [0, 1]."""
    if isinstance(image, Image.Image):
        try:
            image = np.asarray(eight_bits(image, where))
        except DataError:
            raise
        except Exception as error:  # decoders raise many kinds of errors
            raise DataError(
                f"{where} is damaged or truncated, or of a mode that is not read ({error}): replace it, leave it out, or let "
                'the dataset convert it, as image.convert("RGB") does.'
            ) from error
    if not isinstance(image, Tensor | np.ndarray):
        raise DataError(
            f"Expected a PIL image, a tensor or an array but {where} is a {type(image).__name__}: let the dataset decode it."
        )
    return _pixel_tensor(image, 3, where)


def _pixel_tensor(pixels: Any, dimensions: int, where: str) -> Tensor:
    """Check a tensor or array and put the channels first: (c, h, w) for 3 dimensions, (N, c, h, w) for 4.

    A dimension of 1 or 3 is that of the channels; where both the first and the last may be, it is the first of a tensor
    and the last of an array. One dimension less is grey.
    """
    is_array = isinstance(pixels, np.ndarray)
    if is_array and pixels.dtype.kind not in "uif":
        raise DataError(f"Expected numbers but {where} is an array of {pixels.dtype}.")
    tensor = torch.from_numpy(np.array(pixels)) if is_array else pixels.detach().cpu()
    tensor = tensor.unsqueeze(-3) if tensor.dim() == dimensions - 1 else tensor
    if tensor.dim() != dimensions:
        shape = "(N, c, h, w)" if dimensions == 4 else "(c, h, w)"
        raise DataError(f"Expected pixels of shape {shape} but {where} is {describe_tensor(tensor)}: reshape it.")
    first, last = tensor.shape[-3] in (1, 3), tensor.shape[-1] in (1, 3)
    if not first and not last and tensor.shape[-1] < min(tensor.shape[-3:-1]):  # other numbers of channels come first
        raise DataError(
            f"Expected 1 or 3 channels, or others first, but {where} is {describe_tensor(tensor)}: convert images with "
            'transparency to colour, as image.convert("RGB") does, or put the channels first.'
        )
    if last and (is_array or not first):
        tensor = tensor.movedim(-1, -3)
    if tensor.dtype == torch.uint8:
        return tensor
    if not tensor.is_floating_point():
        raise DataError(
            f"Expected uint8, or floats in [0, 1], but {where} is {describe_tensor(tensor)}: convert it with .to(torch.uint8)."
        )
    check_unit(tensor, where)
    return tensor.float().clamp(0, 1)


def _kept_labels(data: Any, column: str | None) -> list[Any] | None:
    """Return the labels that a dataset keeps apart from its images; None where the items must be read.

    Hugging Face datasets have a column, the classes of torchvision an attribute. An attribute of any other class may
    differ from what its items say, so that it is not trusted.
    """
    if isinstance(data, Subset):
        labels = _kept_labels(data.dataset, column)
        return None if labels is None else [labels[index] for index in data.indices]
    if isinstance(data, ConcatDataset):
        parts = [_kept_labels(part, column) for part in data.datasets]
        return [label for part in parts for label in part or ()] if all(part is not None for part in parts) else None
    if column is not None and hasattr(data, "with_format"):
        return list(data.with_format(None)[column])
    plain = type(getattr(data, "transforms", None)).__name__ in ("NoneType", "StandardTransform")
    changed = getattr(data, "target_transform", None) is not None or not plain
    if changed or not type(data).__module__.startswith("torchvision."):
        return None
    targets = getattr(data, "targets", getattr(data, "labels", None))
    return None if targets is None or len(targets) != len(data) else list(targets)


def _label_tensor(labels: Any, count: int, where: str) -> Tensor:
    """Convert labels to int64 (N,), one for each image.

    Raises:
        DataError: they are no whole numbers, or not as many as images.
    """
    wrong = f"Expected a whole number from 0 as the label of each image but {where} has something else"
    try:
        whole = isinstance(labels, Tensor | np.ndarray)
        numbers = torch.as_tensor(labels if whole else [operator.index(label) for label in labels])
    except (TypeError, ValueError) as error:
        raise DataError(f"{wrong} ({error}): number the classes from 0, as integers. {_ONE_CLASS}") from error
    if numbers.dim() == 2 and numbers.shape[1] == 1:  # as networks with one logit are given them
        numbers = numbers.squeeze(1)
    if numbers.dim() == 2 and bool(((numbers == 1).sum(1) == 1).all()) and int(numbers.count_nonzero()) == len(numbers):
        raise DataError(
            f"{wrong} ({describe_tensor(numbers)}): each row has a single 1, whose place is labels.argmax(1)."
        )
    if numbers.dim() != 1 or (numbers.is_floating_point() and not bool(((numbers == 0) | (numbers == 1)).all())):
        whole = numbers.dim() == 1 and torch.equal(numbers.round(), numbers)
        remedy = " Numbers of classes are made integers by labels.long()." if whole else ""
        raise DataError(f"{wrong} ({describe_tensor(numbers)}). {_ONE_CLASS}{remedy}")
    if len(numbers) != count:
        raise DataError(f"Expected {count} labels for the {count} images of {where} but got {len(numbers)}.")
    return numbers.long()


def _labels_or_none(labels: Any, count: int, num_classes: int | None, where: str) -> Tensor | None:
    """Convert labels to int64 (N,); None where all are negative, which marks images without a label."""
    numbers = _label_tensor(labels, count, where)
    return None if bool((numbers < 0).all()) else check_labels_in_range(numbers, num_classes, where)


def check_labels_in_range(labels: Tensor | None, num_classes: int | None, where: str) -> Tensor:
    """Return labels (N,) that are there and from 0 to ``num_classes`` - 1.

    Raises:
        DataError: they are missing or out of range.
    """
    if labels is None:
        raise DataError(
            f"Expected labels but {where} has none (-1 counts as none): give (image, label) pairs, or a dict whose labels "
            f"are called {', '.join(LABEL_KEYS)}."
        )
    least, most = (int(labels.min()), int(labels.max())) if len(labels) else (0, 0)
    if least < 0 or (num_classes is not None and most >= num_classes):
        allowed = "from 0" if least < 0 or num_classes is None else f"from 0 to {num_classes - 1}"
        raise DataError(
            f"Expected labels {allowed} but {where} has {least if least < 0 else most}: number the classes from 0 without "
            "gaps, and give all of them."
        )
    return labels
