"""Requests -> batches: images that arrive while the network is busy go through it together afterwards."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offaxis.deploy.model import Prediction
from offaxis.server.body import Limits, overloaded

PredictionOrError = Prediction | str
"""The prediction for an image, or why there is none."""
PredictBatch = Callable[[Tensor], list[PredictionOrError]]
Waiting = tuple[NDArray[np.uint8], asyncio.Future[PredictionOrError]]


class Batcher:
    """A bounded queue in front of the network, which runs in a thread of its own.

    An idle network takes the images that are in the queue without waiting for a full batch.

    Args:
        predict_batch: pixels (N, c, h, w) -> N predictions or error messages; called in the thread.
        limits: size of the queue and of a batch.
    """

    def __init__(self, predict_batch: PredictBatch, limits: Limits) -> None:
        self.predict_batch, self.limits = predict_batch, limits
        self.queue: deque[Waiting] = deque()
        self.batches = 0
        self._work = asyncio.Event()
        self._closing = False
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

    async def predict(self, images: Sequence[NDArray[np.uint8]]) -> list[PredictionOrError]:
        """Return the predictions for the images (c, h, w) of one request.

        Raises:
            Refusal: the queue has no room for all of them (503).
        """
        if len(self.queue) + len(images) > self.limits.queue:
            raise overloaded(self.limits.retry_after)
        loop = asyncio.get_running_loop()
        waiting: list[Waiting] = [(pixels, loop.create_future()) for pixels in images]
        self.queue.extend(waiting)
        self._work.set()
        try:
            return list(await asyncio.gather(*(future for _, future in waiting)))
        finally:
            for _, future in waiting:  # skip cancelled requests
                future.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while not (self._closing and not self.queue):
            if not self.queue:
                self._work.clear()
                await self._work.wait()
                continue
            # A power of two: PyTorch keeps plans for every batch size that it meets, so there should be few sizes.
            size = 1 << (min(self.limits.batch, len(self.queue)).bit_length() - 1)
            taken = [self.queue.popleft() for _ in range(size)]
            taken = [entry for entry in taken if not entry[1].done()]
            if not taken:
                continue
            pixels = torch.from_numpy(np.stack([image for image, _ in taken]))
            try:
                predictions = await loop.run_in_executor(self._thread, self.predict_batch, pixels)
            except Exception as error:  # the requests get the error; the service continues
                for _, future in taken:
                    if not future.done():
                        future.set_exception(error)
                continue
            self.batches += 1
            for (_, future), prediction in zip(taken, predictions, strict=True):
                if not future.done():
                    future.set_result(prediction)
