"""Requests -> batches: images are decoded in turns, and go through the network together; what may wait is bounded."""

import asyncio
import heapq
import itertools
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from starlette.exceptions import HTTPException
from torch import Tensor

from offaxis.data.decode import decode_opened, open_image
from offaxis.data.transforms import Preprocessing, VectorInput, fit
from offaxis.errors import ArgumentError, DataError
from offaxis.options import ServeOptions
from offaxis.prediction import Prediction


@dataclass(frozen=True)
class Limits:
    """All limits of the service; a request beyond one is refused at once with a message.

    Attributes:
        body_bytes: bytes of one request.
        bodies_bytes: bytes of all requests that are being read or decoded; beyond it the answer is 503, beyond a quarter
            more for small requests.
        images: images in one request.
        pixels: width x height of one image, checked before it is decoded.
        request_pixels: the same, summed over the images of one request. A connection has one request at a time in work.
        seconds_to_send: time for a client to send its request, and to read the response.
        seconds_to_answer: time from the complete request to the response.
        queue: images in work, from decoding on; a request beyond it waits, a small one beyond a quarter more.
        batch: images that go through the network together.
        connections: open connections; further ones are closed.
    """

    body_bytes: int = 16 * 2**20
    bodies_bytes: int = 256 * 2**20
    images: int = 32
    pixels: int = 16_000_000
    request_pixels: int = 128_000_000
    seconds_to_send: float = 10.0
    seconds_to_answer: float = 30.0
    queue: int = 256
    batch: int = 32
    connections: int = 1000

    @classmethod
    def of(cls, options: ServeOptions) -> Self:
        """Return the limits that options ask for; those over all requests have room for a request of such a size.

        Raises:
            ArgumentError: more images may come in a request than may wait.
        """
        if options.max_images > options.queue:
            raise ArgumentError(
                f"Expected a queue that holds the images of one request but {options.max_images} images may come in a request "
                f"and only {options.queue} may wait. Let more wait (--queue), or take fewer in a request (--max-images)."
            )
        return cls(
            body_bytes=options.max_body * 2**20,
            bodies_bytes=max(options.max_body * 2**20, cls.bodies_bytes),
            images=options.max_images,
            pixels=options.max_pixels,
            request_pixels=max(options.max_pixels, options.max_request_pixels),
            queue=options.queue,
            batch=options.batch,
        )


class Refusal(HTTPException):
    """An error response to a request, whose connection is closed: the rest of its body is not read.

    Args:
        status: the HTTP status.
        reason: the message; it reveals neither paths nor code.
        headers: of the response.
    """

    def __init__(self, status: int, reason: str, **headers: str) -> None:
        super().__init__(status, reason, {"Connection": "close", **headers})


def overloaded() -> Refusal:
    """Return the 503 of a service at capacity, with the seconds after which a client should try again."""
    return Refusal(503, "The service is at capacity: try again in a moment.", **{"Retry-After": "1"})


SMALL_REQUEST, SMALL_BODY = 4, 2**20  # images and bytes of a request that has a share of its own


class Room:
    """Room for so many images in work; a request waits until there is some.

    Large requests leave a share to small ones, so that these do not wait for them.

    Args:
        images: of all requests; small ones may take a quarter more.

    Attributes:
        taken: images in work.
    """

    def __init__(self, images: int) -> None:
        self.images, self.taken = images, 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def of(self, images: int) -> AsyncIterator[None]:
        """Take room for the images of one request until the block ends."""
        most = self.images + (self.images // 4 if images <= SMALL_REQUEST else 0)
        while self.taken + images > most:
            self._waiting.append(asyncio.get_running_loop().create_future())
            await self._waiting[-1]
        self.taken += images
        try:
            yield
        finally:
            self.taken -= images
            waiting, self._waiting = self._waiting, deque()
            for each in waiting:  # in the order of their coming; who finds no room yet waits again
                if not each.done():
                    each.set_result(None)


T = TypeVar("T")
PredictionOrError = Prediction | str
"""The prediction for an image, or why there is none."""
PredictBatch = Callable[[Tensor], list[PredictionOrError]]
Pixels = NDArray[Any]
QUICK_SECONDS = 0.004


class Batcher:
    """A queue in front of the network, which runs in a thread of its own.

    An idle network takes the images that are in the queue without waiting for a full batch. Batches of so few milliseconds
    that the way to the thread and back would take as long are run in the event loop.

    Args:
        predict_batch: pixels (N, c, h, w) -> N predictions or error messages.
        limits: size of a batch.
        any_size: whether batches may have any size, or powers of two alone: PyTorch keeps plans for every size that it meets.

    Attributes:
        in_thread: run every batch in the thread, while this network may have to wait for another one that is traced.
    """

    def __init__(self, predict_batch: PredictBatch, limits: Limits, *, any_size: bool = False) -> None:
        self.predict_batch, self.limits, self.any_size = predict_batch, limits, any_size
        self.queue: deque[tuple[Pixels, asyncio.Future[PredictionOrError]]] = deque()
        self.in_thread = False
        self._work = asyncio.Event()
        self._closing = False
        self._seconds = math.inf  # the shortest time that the network has taken for an image
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="network")

    def start(self) -> None:
        """Begin to take images out of the queue, in the event loop that is running."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Finish the queued images, then stop."""
        assert self._task is not None
        self._closing = True
        self._work.set()
        await self._task
        self._thread.shutdown()

    async def predict(self, images: Sequence[Pixels], *, first: bool = False) -> list[PredictionOrError]:
        """Return the predictions for the images (c, h, w) of one request, which come after all others or ``first``."""
        loop = asyncio.get_running_loop()
        results: list[asyncio.Future[PredictionOrError]] = [loop.create_future() for _ in images]
        (self.queue.extendleft if first else self.queue.extend)(zip(images, results, strict=True))
        self._work.set()
        return await asyncio.gather(*results)  # of a request that has ended they are cancelled, and its images skipped

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run other work with the network in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *arguments))

    async def _run(self) -> None:
        """Predict batch after batch, until the service closes."""
        loop = asyncio.get_running_loop()
        while self.queue or not self._closing:
            if not self.queue:
                self._work.clear()
                await self._work.wait()
                continue
            batch = self._take()
            if not batch:
                continue
            pixels = torch.from_numpy(np.stack([image for image, _ in batch]))
            try:
                if not self.in_thread and len(batch) * self._seconds < QUICK_SECONDS:
                    predictions = self._predict(pixels)
                else:
                    predictions = await loop.run_in_executor(self._thread, self._predict, pixels)
            except Exception as error:  # the requests get the error; the service continues
                for _, result in batch:
                    if not result.done():
                        result.set_exception(error)
            else:
                for (_, result), prediction in zip(batch, predictions, strict=True):
                    if not result.done():
                        result.set_result(prediction)
            await asyncio.sleep(0)  # let others run between two batches

    def _take(self) -> list[tuple[Pixels, asyncio.Future[PredictionOrError]]]:
        """Take a batch out of the queue, without the images of requests that have ended."""
        size = min(self.limits.batch, len(self.queue))
        if not self.any_size:
            size = 1 << (size.bit_length() - 1)
        taken = [self.queue.popleft() for _ in range(size)]
        return [entry for entry in taken if not entry[1].done()]

    def _predict(self, pixels: Tensor) -> list[PredictionOrError]:
        began = time.perf_counter()
        predictions = self.predict_batch(pixels)
        self._seconds = min(self._seconds, (time.perf_counter() - began) / len(pixels))
        return predictions


QUICK_PIXELS = 256 * 256  # images up to this size are decoded as soon as their header is read
SMALL_PIXELS, SMALL_BYTES = 128 * 128, 16_384  # up to these an image, and all of a request, need no thread
PIECE = 8  # images of a request that a thread takes at once
Source = bytes | Image.Image
"""The bytes of an image file, or the opened image where its header was read already."""
Result = Pixels | str | Image.Image
"""The pixels of an image, an error message, or the opened image."""


@dataclass(eq=False)
class _Share:
    """What one request takes of the decoder.

    Attributes:
        pixels: width x height of the images whose header was read.
        tag: the virtual time at which its latest piece of work ends.
    """

    pixels: int = 0
    tag: float = 0.0


class FairDecoder:
    """Decode the images of all requests in a few threads, in turns.

    Self-clocked fair queueing: a piece of work gets a tag, the virtual time at which it would end if all requests were
    decoded at once at the same pace, and the lowest tag goes first. A small request overtakes large ones that came before
    it, and none waits for ever. Costs are pixels, or bytes before the header is read.

    Args:
        limits: pixels of an image and of a request.
        threads: how many images are decoded at once.

    Attributes:
        images: how many are being decoded, over all requests.
    """

    def __init__(self, limits: Limits, threads: int) -> None:
        self.limits = limits
        self.images = 0
        self._idle = threads
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="decoder")
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []  # a heap
        self._clock = 0.0
        self._numbers = itertools.count()

    async def decode(self, images: Sequence[bytes], wanted: Preprocessing | VectorInput) -> list[Pixels | str]:
        """Decode the images of one request to pixels (c, h, w), or to error messages.

        Raises:
            Refusal: the images of this request are too large together (413).
        """
        if sum(map(len, images)) <= SMALL_BYTES:
            results = [self._open(data, wanted, SMALL_PIXELS)[0] for data in images]
            decoded = [result for result in results if not isinstance(result, Image.Image)]
            if len(decoded) == len(images):
                return decoded
        share, pieces = _Share(), [images[start : start + PIECE] for start in range(0, len(images), PIECE)]
        self.images += len(images)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._decode_piece(share, piece, wanted)) for piece in pieces]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            self.images -= len(images)
        return [result for task in tasks for result in task.result()]

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _decode_piece(
        self, share: _Share, images: Sequence[bytes], wanted: Preprocessing | VectorInput
    ) -> list[Pixels | str]:
        """Decode some images of a request, the small ones together in one thread and each large one in its turn."""
        cost = sum(map(len, images))
        opened = await self._in_turn(share, cost, lambda: [self._open(data, wanted, QUICK_PIXELS) for data in images])
        share.pixels += sum(size for _, size in opened)
        if share.pixels > self.limits.request_pixels:
            most = f"{self.limits.request_pixels:,} pixels together"
            raise Refusal(413, f"The images of a request may have {most}: send fewer, or smaller ones.")
        results: list[Any] = [result for result, _ in opened]
        large = [number for number, result in enumerate(results) if isinstance(result, Image.Image)]
        turns = [
            self._in_turn(share, opened[number][1], partial(self._open, results[number], wanted)) for number in large
        ]
        for number, (pixels, _) in zip(large, await asyncio.gather(*turns), strict=True):
            results[number] = pixels
        return results

    async def _in_turn(self, share: _Share, cost: int, work: Callable[[], T]) -> T:
        """Return the result of work that a thread does when it is the turn of its request."""
        loop = asyncio.get_running_loop()
        share.tag = max(self._clock, share.tag) + cost
        turn: asyncio.Future[None] = loop.create_future()
        heapq.heappush(self._waiting, (share.tag, next(self._numbers), turn))
        self._begin()
        try:
            await turn
            return await loop.run_in_executor(self._threads, work)
        finally:
            if not turn.cancelled():
                self._idle += 1
                self._begin()

    def _begin(self) -> None:
        """Give the idle threads to those with the lowest tags; requests that have ended wait no more."""
        while self._idle and self._waiting:
            self._clock, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                self._idle -= 1
                turn.set_result(None)

    def _open(self, source: Source, wanted: Preprocessing | VectorInput, most: float = math.inf) -> tuple[Result, int]:
        """Decode one image, and return its width x height too; one of more than ``most`` pixels is opened alone."""
        size = 0
        try:
            if isinstance(wanted, VectorInput):
                return wanted.pixels(source, "the vector"), 0
            if isinstance(source, bytes):
                source = open_image(source, "the image", self.limits.pixels)
                size = source.width * source.height
                if size > most:
                    return source, size
            return fit(decode_opened(source), wanted.shape, wanted.resize), size
        except DataError as error:
            return str(error), size
