"""Files -> rows: threads decode the next images while the network predicts, on this machine or on Ray Data."""

import json
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offaxis.bundle import load
from offaxis.data.decode import OTHER_SUFFIXES
from offaxis.data.images import hash_batch, unpack_hashes
from offaxis.data.transforms import Preprocessing
from offaxis.errors import DataError, MissingPackageError
from offaxis.model import Model
from offaxis.onnx import cores, with_engine
from offaxis.options import EngineName
from offaxis.score.rows import Row, bad_row, row_of
from offaxis.score.sources import ImageSource, WorkUnit, batches, is_image_name, parts, why_unreadable

AHEAD = 3  # batches that are decoded in advance
PIECE = 8  # images that a thread decodes at once
Decoded = NDArray[Any] | str
"""Pixels (c, h, w) or a feature vector (d,), or the reason why the file could not be decoded."""


def score_units(
    model: Model,
    work: Iterable[WorkUnit],
    batch: int = 64,
    workers: int | None = None,
    known: Callable[[str], bool] | None = None,
) -> Iterator[list[Row]]:
    """Yield the rows of every file in order, batch by batch; at most ``AHEAD`` batches are decoded in advance.

    Files in archives whose name is ``known`` are not decoded. The network has a thread of its own, so that it computes while
    the caller writes rows.
    """
    seen = dict.fromkeys(unpack_hashes(model.used), "training")
    seen |= dict.fromkeys(unpack_hashes(model.calibrated_on), "calibration")
    with ThreadPoolExecutor(workers or min(8, cores())) as pool, ThreadPoolExecutor(1) as network:
        waiting: deque[Future[list[Row]]] = deque()
        try:
            for unit in work:
                for items in batches(unit, batch, known):
                    decoding = [pool.submit(_decode_piece, model, piece) for piece in parts(items, PIECE)]
                    waiting.append(network.submit(_scored, model, seen, items, decoding))
                    if len(waiting) > AHEAD:
                        yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for threads in (pool, network):
                threads.shutdown(wait=True, cancel_futures=True)


def _decode_piece(model: Model, items: tuple[ImageSource, ...]) -> list[Decoded]:
    return [_decode(model, item) for item in items]


def _scored(
    model: Model, seen: Mapping[bytes, str], items: tuple[ImageSource, ...], decoding: list[Future[list[Decoded]]]
) -> list[Row]:
    """Return the rows of a batch, which say of images that the model was trained or calibrated on that it was."""
    decoded = [result for future in decoding for result in future.result()]
    good = [pixels for pixels in decoded if not isinstance(pixels, str)]
    pixels = torch.from_numpy(np.stack(good)) if good else torch.empty(0)
    predictions = iter(model.predict_each(pixels) if good else [])
    known = iter([seen.get(key) for key in hash_batch(pixels)] if seen and pixels.dim() == 4 else [None] * len(good))
    rows: list[Row] = []
    for item, result in zip(items, decoded, strict=True):
        if isinstance(result, str):
            rows.append(bad_row(item.name, result))
            continue
        prediction, when = next(predictions), next(known)
        if isinstance(prediction, str):
            rows.append(bad_row(item.name, prediction))
        else:
            rows.append(row_of(item.name, prediction, when))
    return rows


def _decode(model: Model, item: ImageSource) -> Decoded:
    if item.source is None:
        return item.reason or "this cannot be read"
    try:
        return model.preprocessing.pixels(item.source, "the row" if isinstance(item.source, np.ndarray) else "the file")
    except DataError as error:
        if isinstance(item.source, str) and (reason := why_unreadable(item.source)) is not None:
            return reason
        if isinstance(item.source, str | bytes) and _takes_images(model) and not is_image_name(item.name):
            if Path(item.name).suffix.lower() in OTHER_SUFFIXES:
                return "images of this format are not read: convert it to JPEG"
            return "this is not an image file"
        return str(error)


def _takes_images(model: Model) -> bool:
    return isinstance(model.preprocessing, Preprocessing)


class Scorer:
    """The state of a Ray worker: the model, read once."""

    def __init__(self, bundle: str, batch: int, engine: EngineName) -> None:
        import torch

        torch.set_num_threads(1)  # a worker has one core
        self.model = with_engine(load(bundle), engine, threads=1)
        self.batch = batch

    def __call__(self, record: dict[str, Any]) -> list[dict[str, str]]:
        """Score a work unit; both are JSON, as Arrow cannot merge a column that is empty in one block with numbers."""
        fields = json.loads(record["unit"])
        unit = WorkUnit(tuple(fields["paths"]), fields["archive"])
        parts = score_units(self.model, [unit], self.batch, workers=1)
        return [{"row": json.dumps(row)} for rows in parts for row in rows]


def score_with_ray(
    bundle: Path, work: Iterable[WorkUnit], batch: int, workers: int | None = None, engine: EngineName = "torch"
) -> Iterator[list[Row]]:
    """Yield rows as ``score_units`` does, on the Ray cluster of ``RAY_ADDRESS`` or else on this machine.

    Every worker must be able to read the bundle and the images.

    Raises:
        MissingPackageError: Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage reports
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise MissingPackageError(
            "--runner ray needs Ray, which is not installed: pip install 'offaxis[scale]'."
        ) from error
    started = not ray.is_initialized()
    if started:
        ray.init(include_dashboard=False, configure_logging=True, logging_level=logging.ERROR, log_to_driver=False)
    try:
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        units = [{"unit": json.dumps(asdict(unit))} for unit in work]
        if not units:
            return
        resources: dict[str, float] = ray.cluster_resources()
        size = workers or max(1, int(resources.get("CPU", 1)) - 1)
        records = ray.data.from_items(units, override_num_blocks=min(len(units), 4 * size)).flat_map(
            Scorer,
            fn_constructor_args=(str(bundle.resolve()), batch, engine),
            compute=ray.data.ActorPoolStrategy(size=size),
        )
        for record in records.iter_rows():
            yield [json.loads(record["row"])]
    finally:
        if started:
            ray.shutdown()
