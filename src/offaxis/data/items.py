"""One item of a dataset, or one batch of a loader -> pixels and labels, checked: what cannot be used is refused."""

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset

from offaxis.data.decode import eight_bits
from offaxis.errors import DataError

IMAGE_KEYS = ("image", "img", "pixel_values")
LABEL_KEYS = ("label", "labels")
_MARGIN = 1e-4  # by which resizing in floating point may leave [0, 1]


def features_of(data: Any) -> Mapping[str, Any]:
    """Return the columns of a Hugging Face dataset with their types; nothing for other datasets."""
    features = getattr(data, "features", None)
    return features if isinstance(features, Mapping) and hasattr(data, "column_names") else {}


def _image_key(item: Mapping[str, Any], features: Mapping[str, Any], where: str) -> str:
    typed = [key for key, feature in features.items() if type(feature).__name__ == "Image"]
    for key in (*IMAGE_KEYS, *typed):
        if key in item:
            return key
    raise DataError(
        f"Expected an image under {' or '.join(IMAGE_KEYS)} but {where} has {', '.join(map(str, item)) or 'nothing'}: "
        'rename its column, as dataset.rename_column("photo", "image") does, or give (image, label) pairs.'
    )


def label_key(item: Mapping[str, Any], features: Mapping[str, Any], where: str) -> str | None:
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


def split_item(item: Any, features: Mapping[str, Any], where: str) -> tuple[Any, Any]:
    """Split an item of a dataset into (image, label or None)."""
    if isinstance(item, Mapping):
        key = label_key(item, features, where)
        return item[_image_key(item, features, where)], None if key is None else item[key]
    if not isinstance(item, tuple | list):
        return item, None
    if len(item) not in (1, 2):
        raise DataError(
            f"Expected an image or (image, label) but {where} has {len(item)} parts: let the dataset give two."
        )
    return (item[0], item[1]) if len(item) == 2 else (item[0], None)


def split_batch(batch: Any, where: str) -> tuple[Tensor, Any]:
    """Split a batch of a loader into (images, labels or None); the images must be one tensor."""
    try:
        images, labels = split_item(batch, {}, where)
    except DataError as error:
        raise DataError(f"{error} A collate_fn of the DataLoader can do so: return (images, labels).") from error
    if not isinstance(images, Tensor):
        raise DataError(
            f"Expected a tensor of images in {where} but got a {type(images).__name__}: let the collate_fn of the "
            "DataLoader stack the images of a batch to one tensor (N, c, h, w)."
        )
    return images, labels


def check_normalised(images: Tensor, where: str) -> None:
    """Refuse images that are not finite floats (N, c, h, w)."""
    if images.dim() != 4 or not images.is_floating_point():
        raise DataError(
            f"Expected normalised floats of shape (N, c, h, w) but {where} has {_describe(images)}: the batches of a "
            "DataLoader are used unchanged, so let its dataset or collate_fn normalise them, or give the dataset instead."
        )
    if not torch.isfinite(images).all():
        raise DataError(f"Expected finite pixels but {where} has NaN or infinity: look at its images.")


def image_tensor(image: Any, where: str) -> Tensor:
    """Convert a PIL image, a tensor or an array to uint8 (c, h, w), or float32 in [0, 1]."""
    if isinstance(image, Image.Image):
        return pixel_tensor(_decoded(image, where), 3, where)
    if not isinstance(image, Tensor | np.ndarray):
        raise DataError(
            f"Expected a PIL image, a tensor or an array but {where} is a {type(image).__name__}: let the dataset decode it."
        )
    return pixel_tensor(image, 3, where)


def _decoded(image: Image.Image, where: str) -> NDArray[np.uint8]:
    """Return the pixels of a PIL image, which may be decoded only now."""
    try:
        return np.asarray(eight_bits(image, where))
    except DataError:
        raise
    except Exception as error:  # decoders raise many kinds of errors
        raise DataError(
            f"{where} is damaged or truncated, or of a mode that is not read ({error}): replace it, leave it out, or let the "
            'dataset convert it, as image.convert("RGB") does.'
        ) from error


def pixel_tensor(pixels: Any, dimensions: int, where: str) -> Tensor:
    """Check a tensor or array and put the channels first: (c, h, w) for 3 dimensions, (N, c, h, w) for 4.

    A dimension of 1 or 3 is that of the channels; where both the first and the last may be, it is the first of a tensor
    and the last of an array. One dimension less is grey.
    """
    is_array = isinstance(pixels, np.ndarray)
    if is_array and pixels.dtype.kind not in "uif":
        raise DataError(f"Expected numbers but {where} is an array of {pixels.dtype}.")
    tensor = torch.from_numpy(np.array(pixels)) if is_array else pixels.detach().cpu()
    if tensor.dim() == dimensions - 1:
        tensor = tensor.unsqueeze(-3)
    elif tensor.dim() == dimensions:
        first, last = tensor.shape[-3] in (1, 3), tensor.shape[-1] in (1, 3)
        if (
            not first and not last and tensor.shape[-1] < min(tensor.shape[-3:-1])
        ):  # other numbers of channels come first
            raise DataError(
                f"Expected 1 or 3 channels, or others first, but {where} is {_describe(tensor)}: convert images with "
                'transparency to colour, as image.convert("RGB") does, or put the channels first.'
            )
        if last and (is_array or not first):
            tensor = tensor.movedim(-1, -3)
    else:
        shape = "(N, c, h, w)" if dimensions == 4 else "(c, h, w)"
        raise DataError(f"Expected pixels of shape {shape} but {where} is {_describe(tensor)}: reshape it.")
    return tensor if tensor.dtype == torch.uint8 else _unit_floats(tensor, where)


def _unit_floats(tensor: Tensor, where: str) -> Tensor:
    if not tensor.is_floating_point():
        raise DataError(
            f"Expected uint8, or floats in [0, 1], but {where} is {_describe(tensor)}: convert it with .to(torch.uint8)."
        )
    if not torch.isfinite(tensor).all():
        raise DataError(f"Expected finite pixels but {where} has NaN or infinity: repair the image or leave it out.")
    if tensor.numel() and not -_MARGIN <= float(tensor.min()) <= float(tensor.max()) <= 1 + _MARGIN:
        raise DataError(
            f"Expected floats in [0, 1] but {where} has values from {float(tensor.min()):.3g} to "
            f"{float(tensor.max()):.3g}: divide by 255, or leave out the normalisation. Images that are already normalised "
            "come in a DataLoader."
        )
    return tensor.float().clamp(0, 1)


def _describe(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} in {str(tensor.dtype).removeprefix('torch.')}"


def kept_labels(data: Any, column: str | None) -> list[Any] | None:
    """Return the labels that a dataset keeps apart from its images; None where the items must be read.

    Hugging Face datasets have a column, the classes of torchvision an attribute. An attribute of any other class may
    differ from what its items say, so that it is not trusted.
    """
    if isinstance(data, Subset):
        labels = kept_labels(data.dataset, column)
        return None if labels is None else [labels[index] for index in data.indices]
    if isinstance(data, ConcatDataset):
        parts = [kept_labels(part, column) for part in data.datasets]
        return [label for part in parts for label in part or ()] if all(part is not None for part in parts) else None
    if column is not None and hasattr(data, "with_format"):
        return list(data.with_format(None)[column])
    plain = type(getattr(data, "transforms", None)).__name__ in ("NoneType", "StandardTransform")
    changed = getattr(data, "target_transform", None) is not None or not plain
    if changed or not type(data).__module__.startswith("torchvision."):
        return None
    targets = getattr(data, "targets", getattr(data, "labels", None))
    return None if targets is None or len(targets) != len(data) else list(targets)


def label_tensor(labels: Any, count: int, where: str) -> Tensor:
    """Convert labels to int64 (N,).

    Raises:
        DataError: they are no whole numbers, or not as many as images.
    """
    try:
        if isinstance(labels, Tensor | np.ndarray):
            numbers = torch.as_tensor(labels)
            if numbers.is_floating_point() or numbers.dim() != 1:
                raise TypeError(_describe(numbers))
            numbers = numbers.long()
        else:
            numbers = torch.tensor([operator.index(label) for label in labels], dtype=torch.long)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"Expected a whole number from 0 as the label of each image but {where} has something else ({error}): number "
            "the classes from 0, as integers (labels.long(), or one_hot.argmax(1))."
        ) from error
    if len(numbers) != count:
        raise DataError(f"Expected {count} labels for the {count} images of {where} but got {len(numbers)}.")
    return numbers


def labels_or_none(labels: Any, count: int, num_classes: int | None, where: str) -> Tensor | None:
    """Convert labels to int64 (N,); None where all are negative, which marks images without a label.

    Raises:
        DataError: they are no whole numbers, or out of range.
    """
    numbers = label_tensor(labels, count, where)
    return None if bool((numbers < 0).all()) else check_labels_in_range(numbers, num_classes, where)


def check_labels_in_range(labels: Tensor | None, num_classes: int | None, where: str) -> Tensor:
    """Return labels (N,) that are there and from 0 to ``num_classes`` - 1.

    Raises:
        DataError: they are missing or out of range.
    """
    if labels is None:
        raise DataError(
            f"Expected labels but {where} has none (-1 counts as none): give (image, label) pairs, or a set with labels."
        )
    least, most = (int(labels.min()), int(labels.max())) if len(labels) else (0, 0)
    if least < 0:
        raise DataError(f"Expected labels from 0 but {where} has {least}: number the classes from 0.")
    if num_classes is not None and most >= num_classes:
        raise DataError(
            f"Expected labels from 0 to {num_classes - 1} but {where} has {most}: give all {most + 1} classes, or number "
            "them from 0 without gaps."
        )
    return labels
