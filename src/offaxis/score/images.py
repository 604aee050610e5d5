"""Paths -> images -> rows: threads decode the next images while the network predicts, on this machine or on Ray Data."""

import json
import logging
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offaxis.bundle import load
from offaxis.data.containers import INSIDE, ImageSource, holds_several, images_in, walk
from offaxis.data.decode import SUFFIXES, is_remote, other_format
from offaxis.data.images import hash_batch, unpack_hashes
from offaxis.data.transforms import Preprocessing
from offaxis.errors import DataError, MissingPackageError
from offaxis.files import is_regular
from offaxis.model import Model
from offaxis.onnx import cores, with_engine
from offaxis.options import EngineName, ScoreOptions
from offaxis.score.rows import Row, bad_row, parts, row_of

AHEAD = 3  # batches that are decoded in advance
PIECE = 8  # images that a thread decodes at once
Decoded = NDArray[Any] | str
"""Pixels (c, h, w) or a feature vector (d,), or the reason why the file could not be decoded."""
Scored = tuple[Row, NDArray[Any] | None]
"""A row, and the pixels that it was made of where they are in this process."""


def files(paths: Iterable[str]) -> Iterator[str]:
    """Yield the files behind paths in order, those of folders by name."""
    for path in paths:
        yield from walk(path) if is_remote(path) or os.path.isdir(path) else (path,)  # noqa: PTH112 - False for a name that no file can have


def sources(files: Iterable[str], every: float = 1.0) -> Iterator[ImageSource]:
    """Yield the images of files: each by itself, or all that are in an archive, a film, a table or an array."""
    return chain.from_iterable(images_in(file, every) for file in files)


def file_of(name: str) -> str:
    """Return the file that holds the image of a row."""
    pieces = name.split(INSIDE)
    for count in range(1, 1 if is_regular(Path(_on_disk(name))) else len(pieces)):
        file = _on_disk(INSIDE.join(pieces[:count]))  # folders may be called a::b too
        if holds_several(file) and is_regular(Path(file)):
            return file
    return _on_disk(name)


def _on_disk(name: str) -> str:
    """Return the path whose ``readable`` form this is."""
    if is_regular(Path(name)):
        return name
    return re.sub(r"\\x([89a-f][0-9a-f])", lambda found: chr(0xDC00 + int(found[1], 16)), name)


def score_sources(
    model: Model, items: Iterable[ImageSource], batch: int = 64, workers: int | None = None
) -> Iterator[list[Scored]]:
    """Yield the rows of images with their pixels in order, batch by batch; at most ``AHEAD`` batches are decoded in advance.

    The network has a thread of its own, so that it computes while the caller writes rows.
    """
    seen = dict.fromkeys(unpack_hashes(model.used), "training")
    seen |= dict.fromkeys(unpack_hashes(model.calibrated_on), "calibration")
    with ThreadPoolExecutor(workers or min(8, cores())) as pool, ThreadPoolExecutor(1) as network:
        waiting: deque[Future[list[Scored]]] = deque()
        try:
            for part in parts(items, batch):
                decoding = [pool.submit(_decode_piece, model, piece) for piece in parts(part, PIECE)]
                waiting.append(network.submit(_rows_of_batch, model, seen, part, decoding))
                if len(waiting) > AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for threads in (pool, network):
                threads.shutdown(wait=True, cancel_futures=True)


def _decode_piece(model: Model, items: tuple[ImageSource, ...]) -> list[Decoded]:
    return [_decode(model, item) for item in items]


def _rows_of_batch(
    model: Model, seen: Mapping[bytes, str], items: tuple[ImageSource, ...], decoding: list[Future[list[Decoded]]]
) -> list[Scored]:
    """Return the rows of a batch, which say of images that the model was trained or calibrated on that it was."""
    decoded = [result for future in decoding for result in future.result()]
    good = [pixels for pixels in decoded if not isinstance(pixels, str)]
    pixels = torch.from_numpy(np.stack(good)) if good else torch.empty(0)
    predictions = iter(model.predict_each(pixels) if good else [])
    known = iter([seen.get(key) for key in hash_batch(pixels)] if seen and pixels.dim() == 4 else [None] * len(good))
    rows: list[Scored] = []
    for item, result in zip(items, decoded, strict=True):
        when = None if isinstance(result, str) else next(known)
        prediction = result if isinstance(result, str) else next(predictions)
        if isinstance(result, str) or isinstance(prediction, str):
            rows.append((bad_row(item.name, str(prediction)), None))
        else:
            rows.append((row_of(item.name, prediction, when), result))
    return rows


def _decode(model: Model, item: ImageSource) -> Decoded:
    if item.source is None:
        return item.reason or "this cannot be read"
    try:
        return model.preprocessing.pixels(item.source, "the row" if isinstance(item.source, np.ndarray) else "the file")
    except DataError as error:
        suffix, unread = Path(item.name).suffix.lower(), getattr(error.__cause__, "errno", None) is not None
        is_file = isinstance(model.preprocessing, Preprocessing) and not isinstance(item.source, np.ndarray)
        if not is_file or unread or suffix in SUFFIXES:
            return str(error)
        advice = other_format(suffix)
        return "this is not an image file" if advice is None else f"images of this format are not read: {advice}"


class Scorer:
    """The state of a Ray worker: the model, read once."""

    def __init__(self, bundle: str, batch: int, engine: EngineName, alpha: float | None, every: float) -> None:
        torch.set_num_threads(1)  # a worker has one core
        model = load(bundle)
        model = model if alpha is None else model.recalibrated(alpha=alpha)
        self.model = with_engine(model, engine, threads=1)
        self.batch, self.every = batch, every

    def __call__(self, record: dict[str, Any]) -> list[dict[str, str]]:
        """Score files; both are JSON, as Arrow cannot merge a column that is empty in one block with numbers."""
        batches = score_sources(self.model, sources(json.loads(record["files"]), self.every), self.batch, workers=1)
        return [{"row": json.dumps(row)} for rows in batches for row, _ in rows]


def score_with_ray(files: Iterable[str], options: ScoreOptions) -> Iterator[list[Row]]:
    """Yield rows as ``score_sources`` does, on the Ray cluster of ``RAY_ADDRESS`` or else on this machine.

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
    assert options.bundle is not None
    started = not ray.is_initialized()
    if started:
        ray.init(include_dashboard=False, configure_logging=True, logging_level=logging.ERROR, log_to_driver=False)
    try:
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        work = [
            {"files": json.dumps(unit)}
            for several, group in groupby(files, holds_several)
            for unit in parts(group, 1 if several else options.batch)
        ]
        if not work:
            return
        resources: dict[str, float] = ray.cluster_resources()
        size = options.workers or max(1, int(resources.get("CPU", 1)) - 1)
        records = ray.data.from_items(work, override_num_blocks=min(len(work), 4 * size)).flat_map(
            Scorer,
            fn_constructor_args=(
                str(options.bundle.resolve()),
                options.batch,
                options.engine,
                options.alpha,
                options.every,
            ),
            compute=ray.data.ActorPoolStrategy(size=size),
        )
        for record in records.iter_rows():
            yield [json.loads(record["row"])]
    finally:
        if started:
            ray.shutdown()
