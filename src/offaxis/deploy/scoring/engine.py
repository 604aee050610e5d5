"""Work -> rows: files are decoded by threads while the network judges those before."""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from offaxis.deploy.model import Model
from offaxis.deploy.scoring.rows import Row, bad_row, row_of
from offaxis.deploy.scoring.sources import Item, Unit, batches, is_image_name
from offaxis.errors import DataError, OffaxisError

AHEAD = 3  # batches that are decoded before they are needed
Decoded = NDArray[np.uint8] | str
"""Pixels (c, h, w), or the reason why there are none."""


def score_units(model: Model, work: Iterable[Unit], batch: int = 64, workers: int | None = None) -> Iterator[list[Row]]:
    """Rows for every file of the work, in order, batch by batch; at most ``AHEAD`` batches are in memory."""
    with ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1)) as pool:
        waiting: deque[tuple[tuple[Item, ...], list[Future[Decoded]]]] = deque()
        try:
            for unit in work:
                for items in batches(unit, batch):
                    waiting.append((items, [pool.submit(_decode, model, item) for item in items]))
                    if len(waiting) > AHEAD:
                        yield _judge(model, *waiting.popleft())
            while waiting:
                yield _judge(model, *waiting.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _decode(model: Model, item: Item) -> Decoded:
    if item.source is None:
        return item.reason or "it cannot be read"
    try:
        return model.preprocessing.pixels(item.source, "the file")
    except DataError as error:
        if not is_image_name(item.name):
            return "this is not an image file"
        return str(error)


def _judge(model: Model, items: tuple[Item, ...], decoding: list[Future[Decoded]]) -> list[Row]:
    decoded = [future.result() for future in decoding]
    good = [pixels for pixels in decoded if not isinstance(pixels, str)]
    try:
        predictions = iter(model.judge(torch.from_numpy(np.stack(good))) if good else [])
    except OffaxisError as error:  # a network that gives NaN for one image of the batch
        return [
            bad_row(item.name, d if isinstance(d, str) else str(error)) for item, d in zip(items, decoded, strict=True)
        ]
    return [
        bad_row(item.name, result) if isinstance(result, str) else row_of(item.name, next(predictions))
        for item, result in zip(items, decoded, strict=True)
    ]
