"""Requests -> batches: images are decoded in turns, and go through the network together.

Images that arrive while the network is busy go through it as one batch afterwards.
"""

import asyncio
import heapq
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from offaxis.data.decode import decode_opened, open_image
from offaxis.data.transforms import Preprocessing, fit
from offaxis.data.vectors import VectorInput
from offaxis.errors import DataError
from offaxis.model import Prediction
from offaxis.serve.body import Limits, overloaded, too_many_pixels

T = TypeVar("T")
PredictionOrError = Prediction | str
"""The prediction for an image, or why there is none."""
PredictBatch = Callable[[Tensor], list[PredictionOrError]]
Pixels = NDArray[Any]
QUICK_SECONDS = 0.004


@dataclass(eq=False, slots=True)
class _Asked:
    """The images of one request that wait for the network.

    Attributes:
        done: is set when all have a result, or with the error of the network.
        results: of each image, None until it has one.
        missing: how many have none yet.
    """

    done: asyncio.Future[None]
    results: list[PredictionOrError | None]
    missing: int


class Batcher:
    """A bounded queue in front of the network, which runs in a thread of its own.

    An idle network takes the images that are in the queue without waiting for a full batch. Batches of so few milliseconds
    that the way to the thread and back would take as long are run where they are.

    Args:
        predict_batch: pixels (N, c, h, w) -> N predictions or error messages; called in the thread.
        limits: size of the queue and of a batch.
        any_size: whether batches may have any size, or powers of two alone: PyTorch keeps plans for every size that it meets.
    """

    def __init__(self, predict_batch: PredictBatch, limits: Limits, *, any_size: bool = False) -> None:
        self.predict_batch, self.limits, self.any_size = predict_batch, limits, any_size
        self.queue: deque[tuple[Pixels, _Asked, int]] = deque()
        self.batches = 0
        self.in_thread = (
            False  # no batch in the event loop: another network is traced meanwhile, which this one waits for
        )
        self._work = asyncio.Event()
        self._closing = False
        self._leading = self._running = False  # a request is about to run a batch; the thread does
        self._seconds = math.inf  # the shortest time that the network has taken for an image
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="network")

    async def __aenter__(self) -> "Batcher":
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Finish the queued images, then stop."""
        self._closing = True
        self._work.set()
        if self._task is not None:
            await self._task
        self._thread.shutdown()

    async def predict(self, images: Sequence[Pixels]) -> list[PredictionOrError]:
        """Return the predictions for the images (c, h, w) of one request.

        Raises:
            Refusal: the queue has no room for all of them (503).
        """
        if len(self.queue) + len(images) > self.limits.queue:
            raise overloaded(self.limits.retry_after)
        asked = _Asked(asyncio.get_running_loop().create_future(), [None] * len(images), len(images))
        self.queue.extend((pixels, asked, number) for number, pixels in enumerate(images))
        try:
            if not self._leading and not self._running and self._is_quick(len(self.queue)):
                await self._lead()
            elif not self._leading:
                self._work.set()
            await asked.done
        finally:
            asked.done.cancel()  # skip cancelled requests
        return [result for result in asked.results if result is not None]

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run other work with the network in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *arguments))

    def _is_quick(self, images: int) -> bool:
        return not self.in_thread and images * self._seconds < QUICK_SECONDS

    async def _lead(self) -> None:
        """Run a batch here, with the images of all requests that came at the same time."""
        self._leading = True
        try:
            await asyncio.sleep(0)
            if self.queue and not self._running and self._is_quick(len(self.queue)):
                taken, pixels = self._take()
                if taken:
                    self._answer(taken, pixels)
        finally:
            self._leading = False
            if self.queue:
                self._work.set()

    def _take(self) -> tuple[list[tuple[_Asked, int]], Tensor]:
        """Take a batch out of the queue; none where all of it was cancelled."""
        size = min(self.limits.batch, len(self.queue))
        if not self.any_size:
            size = 1 << (size.bit_length() - 1)
        taken = [entry for entry in (self.queue.popleft() for _ in range(size)) if not entry[1].done.done()]
        pixels = np.stack([image for image, _, _ in taken]) if taken else np.empty(0)
        return [(asked, number) for _, asked, number in taken], torch.from_numpy(pixels)

    def _answer(self, taken: list[tuple[_Asked, int]], pixels: Tensor) -> None:
        """Run a batch and give the requests their results, or the error."""
        try:
            predictions = self._predict(pixels)
        except Exception as error:  # the requests get the error; the service continues
            self._fail(taken, error)
        else:
            self._deliver(taken, predictions)

    def _predict(self, pixels: Tensor) -> list[PredictionOrError]:
        began = time.perf_counter()
        predictions = self.predict_batch(pixels)
        self._seconds = min(self._seconds, (time.perf_counter() - began) / len(pixels))
        self.batches += 1
        return predictions

    def _deliver(self, taken: list[tuple[_Asked, int]], predictions: list[PredictionOrError]) -> None:
        for (asked, number), prediction in zip(taken, predictions, strict=True):
            asked.results[number] = prediction
            asked.missing -= 1
            if not asked.missing and not asked.done.done():
                asked.done.set_result(None)

    def _fail(self, taken: list[tuple[_Asked, int]], error: Exception) -> None:
        for asked, _ in taken:
            if not asked.done.done():
                asked.done.set_exception(error)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while not (self._closing and not self.queue):
            if not self.queue:
                self._work.clear()
                await self._work.wait()
                continue
            quick = self._is_quick(len(self.queue))
            taken, pixels = self._take()
            if not taken:
                continue
            if quick:
                self._answer(taken, pixels)
                await asyncio.sleep(0)
                continue
            self._running = True
            try:
                predictions = await loop.run_in_executor(self._thread, self._predict, pixels)
            except Exception as error:  # the requests get the error; the service continues
                self._fail(taken, error)
            else:
                self._deliver(taken, predictions)
            finally:
                self._running = False


QUICK_PIXELS = 256 * 256  # images up to this size are decoded as soon as their header is read
SMALL_PIXELS, SMALL_BYTES = 128 * 128, 16_384  # up to these an image, and all of a request, need no thread
PIECE = 8  # images of a request that a thread takes at once


@dataclass(eq=False)
class _Request:
    """The images of one request that are being decoded.

    Attributes:
        preprocessing: size and colour that the network takes.
        results: pixels (c, h, w) or an error message for each image, None until it is decoded.
        done: is set when all are decoded, or with the reason why the request is refused.
        missing: how many are not decoded yet.
        pixels: width x height of the images whose header was read.
        tag: the virtual time at which its latest piece of work ends.
    """

    preprocessing: Preprocessing | VectorInput
    results: list[Pixels | str | None]
    done: asyncio.Future[None]
    missing: int
    pixels: int = 0
    tag: float = 0.0


Source = bytes | tuple[Image.Image, bytes]
"""The bytes of an image file; beside the opened image where its header was read already."""


@dataclass(order=True)
class _Piece:
    """Some images of a request, by their numbers, for one thread: bytes, or opened images that are large."""

    tag: float
    number: int
    request: _Request = field(compare=False)
    images: list[tuple[int, Source]] = field(compare=False)


Result = Pixels | str | tuple[Image.Image, bytes]
"""The pixels of an image, an error message, or the opened image."""
Opened = tuple[int, Result, int]
"""The number of an image in its request; its result; width x height."""


class FairDecoder:
    """Decode the images of all requests in a few threads, in turns.

    Self-clocked fair queueing: a piece of work gets a tag, the virtual time at which it would end if all requests were
    decoded at once at the same pace, and the lowest tag goes first. A small request overtakes large ones that came before
    it, and none waits for ever. Costs are pixels, or bytes before the header is read.

    Args:
        limits: how many images and pixels may wait.
        threads: how many images are decoded at once.
    """

    def __init__(self, limits: Limits, threads: int) -> None:
        self.limits = limits
        self.images = self.pixels = 0  # of all requests that are being decoded
        self._idle = threads
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="decoder")
        self._queue: list[_Piece] = []
        self._clock = 0.0
        self._numbers = itertools.count()

    async def decode(self, images: Sequence[bytes], preprocessing: Preprocessing | VectorInput) -> list[Pixels | str]:
        """Decode the images of one request to pixels (c, h, w), or to error messages.

        Raises:
            Refusal: too many images or pixels wait (503), or those of this request are too large together (413).
        """
        if self.images + len(images) > self.limits.queue:
            raise overloaded(self.limits.retry_after)
        if sum(map(len, images)) <= SMALL_BYTES:
            results = [self._decode_image(data, preprocessing, SMALL_PIXELS)[0] for data in images]
            decoded = [result for result in results if not isinstance(result, tuple)]
            if len(decoded) == len(images):
                return decoded
        done = asyncio.get_running_loop().create_future()
        request = _Request(preprocessing, [None] * len(images), done, len(images))
        self.images += len(images)
        try:
            numbered = list(enumerate(images))
            for start in range(0, len(numbered), PIECE):
                part = numbered[start : start + PIECE]
                self._add(request, list(part), sum(len(data) for _, data in part))
            self._start()
            await done
        finally:
            self.images -= len(images)
            self.pixels -= request.pixels
            if request.missing:  # refused, cancelled or late
                done.cancel()
                self._queue = [piece for piece in self._queue if piece.request is not request]
                heapq.heapify(self._queue)
        return [result for result in request.results if result is not None]

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _add(self, request: _Request, images: list[tuple[int, Source]], cost: int) -> None:
        request.tag = max(self._clock, request.tag) + cost
        heapq.heappush(self._queue, _Piece(request.tag, next(self._numbers), request, images))

    def _start(self) -> None:
        """Give the pieces with the lowest tags to idle threads."""
        loop = asyncio.get_running_loop()
        while self._idle and self._queue:
            piece = heapq.heappop(self._queue)
            self._clock, self._idle = piece.tag, self._idle - 1
            work = loop.run_in_executor(self._threads, self._decode, piece)
            work.add_done_callback(partial(self._finish, piece.request))

    def _decode(self, piece: _Piece) -> list[Opened]:
        """Decode small images, and large ones whose header was read before; of the other large ones read the header."""
        results: list[Opened] = []
        for number, source in piece.images:
            if piece.request.done.done():
                break
            results.append((number, *self._decode_image(source, piece.request.preprocessing, QUICK_PIXELS)))
        return results

    def _decode_image(self, source: Source, wanted: Preprocessing | VectorInput, most: int) -> tuple[Result, int]:
        """Decode one image; open it alone where it has more than ``most`` pixels and was not opened before."""
        size = 0
        try:
            if isinstance(wanted, VectorInput):
                return wanted.pixels(source, "the vector"), 0
            if isinstance(source, bytes):
                source = open_image(source, "the image", self.limits.pixels)
                size = source[0].width * source[0].height
                if size > most:
                    return source, size
            return fit(decode_opened(*source), wanted.shape, wanted.resize), size
        except DataError as error:
            return str(error), size

    def _finish(self, request: _Request, ended: asyncio.Future[list[Opened]]) -> None:
        self._idle += 1
        if not ended.cancelled() and not request.done.done():
            error = ended.exception()
            if error is not None:
                request.done.set_exception(error)
            else:
                self._keep(request, ended.result())
        self._start()

    def _keep(self, request: _Request, opened: list[Opened]) -> None:
        for number, result, size in opened:
            request.pixels += size
            self.pixels += size
            if isinstance(result, tuple):
                self._add(request, [(number, result)], size)
            else:
                request.results[number] = result
                request.missing -= 1
        if request.pixels > self.limits.request_pixels:
            request.done.set_exception(too_many_pixels(self.limits))
        elif self.pixels > self.limits.all_pixels:
            request.done.set_exception(overloaded(self.limits.retry_after))
        elif not request.missing:
            request.done.set_result(None)
