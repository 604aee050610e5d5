"""What the service knows and does, without HTTP: decoding, batching, counting, watching the stream for drift."""

import asyncio
import importlib
import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from offaxis import __version__
from offaxis.calibration.calibrate import Calibration
from offaxis.calibration.drift import DriftMonitor, DriftState
from offaxis.deploy.model import Model, Prediction
from offaxis.errors import BadOutputsError, CalibrationError, DataError, MissingPackageError
from offaxis.networks.classifier import Classifier
from offaxis.server.batcher import Batcher, Said
from offaxis.server.body import Budget, Limits, Refusal, busy

P_VALUES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Requests, latency, verdicts, p-values, queue and drift, in a registry of their own."""

    def __init__(self) -> None:
        client = _client()
        self.registry: Any = client.CollectorRegistry()
        self._client = client
        made = {"registry": self.registry}
        self.requests = client.Counter("offaxis_requests", "Requests by route and status.", ["route", "status"], **made)
        self.latency = client.Histogram(
            "offaxis_request_seconds",
            "From the request's head to the answer's end.",
            ["route"],
            buckets=SECONDS,
            **made,
        )
        self.verdicts = client.Counter("offaxis_verdicts", "Images by verdict.", ["verdict"], **made)
        self.p_values = client.Histogram("offaxis_p_value", "P-values of the images.", buckets=P_VALUES, **made)
        self.bad = client.Counter("offaxis_bad_images", "Images that could not be read or judged.", **made)
        self.queue = client.Gauge("offaxis_queue_images", "Images that wait for the network.", **made)
        self.wealth = client.Gauge("offaxis_drift_log10_wealth", "log10 of the stream watch's martingale.", **made)
        self.alarm = client.Gauge(
            "offaxis_drift_alarm", "1 once the stream has left the training distribution.", **made
        )

    def saw(self, prediction: Prediction) -> None:
        """Count one image."""
        self.verdicts.labels(prediction.verdict.value).inc()
        self.p_values.observe(prediction.p_value)

    def drifted(self, drift: DriftState) -> None:
        """Note where the stream watch stands."""
        self.wealth.set(drift.log10_wealth)
        self.alarm.set(int(drift.alarm))

    def text(self) -> bytes:
        """All of it, in Prometheus' format."""
        written: bytes = self._client.generate_latest(self.registry)
        return written


def _client() -> Any:
    try:
        return importlib.import_module("prometheus_client")
    except ImportError as error:
        raise MissingPackageError(
            "The service needs prometheus-client, which is not installed: pip install 'offaxis[serve]'."
        ) from error


TRACE = 400  # points of the drift line
BINS = 40
UNJUDGED = "Expected an image that the network can judge but for this one it gives no finite numbers."


class Service:
    """A model behind a bounded queue, with the watch over what it sees."""

    def __init__(self, model: Model, limits: Limits | None = None, level: float = 0.01) -> None:
        self.model, self.limits = model, limits or Limits()
        self.metrics = Metrics()
        self.budget = Budget(self.limits)
        self.batcher = Batcher(self._judge, self.limits)
        self.watch = DriftMonitor(model.calibration.scores, level)
        self.trace: deque[tuple[int, float]] = deque(maxlen=TRACE)
        self._decoders = ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="decoder")
        self._decoding = 0

    async def predict(self, images: Sequence[tuple[str, bytes]]) -> list[dict[str, Any]]:
        """A record for each (name, bytes) of a request: what is said of the image, or why nothing is.

        Raises:
            Refusal: too much is waiting (503), or it takes too long (504 is not used: 503 asks to try again).
        """
        try:
            async with asyncio.timeout(self.limits.seconds_to_answer):
                decoded = await self._decode(images)
                good = [pixels for pixels in decoded if not isinstance(pixels, str)]
                judged = await self.batcher.predict(good) if good else []
        except TimeoutError:
            raise busy(self.limits.retry_after) from None
        left = iter(judged)
        records: list[dict[str, Any]] = []
        for (name, _), pixels in zip(images, decoded, strict=True):
            said = pixels if isinstance(pixels, str) else next(left)
            if isinstance(said, str):
                self.metrics.bad.inc()
                records.append({"name": name, "error": said})
                continue
            self.metrics.saw(said)
            online = self.watch.add(said.score)
            records.append({"name": name, **said.to_json(), "online_p_value": online})
        drift = self.watch.state()
        self.trace.append((drift.images, drift.log10_wealth))
        self.metrics.drifted(drift)
        return records

    async def _decode(self, images: Sequence[tuple[str, bytes]]) -> list[NDArray[np.uint8] | str]:
        """Pixels (c, h, w), or the reason why there are none, for each image; in threads, so many at a time."""
        if self._decoding + len(images) > self.limits.queue:
            raise busy(self.limits.retry_after)
        self._decoding += len(images)
        loop = asyncio.get_running_loop()
        try:
            return list(
                await asyncio.gather(*(loop.run_in_executor(self._decoders, self._pixels, d) for _, d in images))
            )
        finally:
            self._decoding -= len(images)

    def _pixels(self, data: bytes) -> NDArray[np.uint8] | str:
        try:
            return self.model.preprocessing.pixels(data, "the image", self.limits.pixels)
        except DataError as error:
            return str(error)

    def _judge(self, pixels: Tensor) -> list[Said]:
        """What is said of each image (N, c, h, w); one that the network cannot judge costs the others nothing."""
        try:
            return list(self.model.predict_batch(pixels))
        except (BadOutputsError, CalibrationError):
            if len(pixels) == 1:
                return [UNJUDGED]
            return [said for half in pixels.chunk(2) for said in self._judge(half)]

    def close(self) -> None:
        """Let the threads go."""
        self._decoders.shutdown(wait=False, cancel_futures=True)

    def about(self) -> dict[str, Any]:
        """What /v1/model says."""
        model, calibration = self.model, self.model.calibration
        shown = calibration.scores if calibration.cosine is None else calibration.cosine
        counts, edges = np.histogram(shown, bins=BINS)
        return {
            "offaxis": __version__,
            "classes": list(model.classes),
            "preprocessing": model.preprocessing.to_json(),
            "networks": sum(isinstance(part, Classifier) for part in model.network.modules()),
            "detector": model.detector.name,
            "alpha": calibration.alpha,
            "per_class": calibration.per_class,
            **_thresholds(model),
            "calibration": {
                "images": len(calibration.scores),
                **_flag_rates(calibration),
                "histogram": {
                    "of": "score" if calibration.cosine is None else "cosine",
                    "counts": counts.tolist(),
                    "edges": edges.tolist(),
                },
            },
            "provenance": model.provenance,
            "limits": {
                "body_bytes": self.limits.body_bytes,
                "images": self.limits.images,
                "pixels": self.limits.pixels,
            },
        }

    def drift(self) -> dict[str, Any]:
        """What /v1/drift says."""
        return {**asdict(self.watch.state()), "trace": [list(point) for point in self.trace]}

    def forget(self) -> None:
        """Begin the watch anew."""
        self.watch.reset()
        self.trace.clear()
        self.metrics.drifted(self.watch.state())


def _thresholds(model: Model) -> dict[str, Any]:
    """The threshold that verdicts go by: one for all, or one for each class (None where its images are too few)."""
    calibration = model.calibration
    if not calibration.per_class:
        return {"threshold": calibration.threshold(), "class_thresholds": None, "classes_without_verdict": []}
    thresholds = calibration.class_thresholds()
    without = [name for name, found in zip(model.classes, thresholds, strict=True) if found is None]
    return {"threshold": None, "class_thresholds": thresholds, "classes_without_verdict": without}


def _flag_rates(calibration: Calibration) -> dict[str, Any]:
    """What share of new ID images is flagged in the long run: over all, or within each class that has verdicts."""
    if not calibration.per_class:
        return {"flag_rate": asdict(calibration.flag_rate()), "class_flag_rates": None}
    rates = [None if rate is None else asdict(rate) for rate in calibration.class_flag_rates()]
    return {"flag_rate": None, "class_flag_rates": rates}


__all__ = ["Refusal", "Service"]
