"""The service without HTTP: decoding, prediction, metrics and the drift monitor."""

import asyncio
import importlib
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from offaxis import __version__
from offaxis.calibration.calibrate import Calibration
from offaxis.calibration.drift import DriftMonitor, DriftState
from offaxis.deploy.model import Model, Prediction
from offaxis.errors import MissingPackageError
from offaxis.networks.classifier import Classifier
from offaxis.server.batcher import Batcher, FairDecoder
from offaxis.server.body import Budget, Limits, overloaded

P_VALUES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Prometheus metrics: requests, latency, verdicts, p-values, queue and drift, in a registry of their own."""

    def __init__(self) -> None:
        client = _client()
        self.registry: Any = client.CollectorRegistry()
        self._client = client
        registry = {"registry": self.registry}
        self.requests = client.Counter(
            "offaxis_requests", "Requests by route and status.", ["route", "status"], **registry
        )
        self.latency = client.Histogram(
            "offaxis_request_seconds",
            "From the head of the request to the end of the response.",
            ["route"],
            buckets=SECONDS,
            **registry,
        )
        self.verdicts = client.Counter("offaxis_verdicts", "Images by verdict.", ["verdict"], **registry)
        self.p_values = client.Histogram("offaxis_p_value", "P-values of the images.", buckets=P_VALUES, **registry)
        self.bad = client.Counter("offaxis_bad_images", "Images that could not be read or predicted.", **registry)
        self.queue = client.Gauge("offaxis_queue_images", "Images that wait for the network.", **registry)
        self.decoding = client.Gauge("offaxis_decoding_images", "Images that are being decoded.", **registry)
        self.wealth = client.Gauge("offaxis_drift_log10_wealth", "log10 of the drift monitor's martingale.", **registry)
        self.alarm = client.Gauge(
            "offaxis_drift_alarm", "1 once the stream has left the training distribution.", **registry
        )

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count a request by route and status, with its latency."""
        self.requests.labels(route, str(status)).inc()
        self.latency.labels(route).observe(seconds)

    def count(self, prediction: Prediction) -> None:
        """Count the verdict and the p-value of one image."""
        self.verdicts.labels(prediction.verdict.value).inc()
        self.p_values.observe(prediction.p_value)

    def set_drift(self, drift: DriftState) -> None:
        """Set the gauges to the state of the drift monitor."""
        self.wealth.set(drift.log10_wealth)
        self.alarm.set(int(drift.alarm))

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        text: bytes = self._client.generate_latest(self.registry)
        return text


def _client() -> Any:
    try:
        return importlib.import_module("prometheus_client")
    except ImportError as error:
        raise MissingPackageError(
            "The service needs prometheus-client, which is not installed: pip install 'offaxis[serve]'."
        ) from error


TRACE = 400  # points of the drift chart
BINS = 40


class Service:
    """A model behind a bounded queue, with a drift monitor over all images.

    Args:
        model: a calibrated model; it runs on the device it is on.
        limits: sizes and times; None for the defaults.
        level: the probability that the drift monitor ever alarms on an ID stream.
    """

    def __init__(self, model: Model, limits: Limits | None = None, level: float = 0.01) -> None:
        self.model, self.limits = model, limits or Limits()
        self.metrics = Metrics()
        self.budget = Budget(self.limits)
        self.batcher = Batcher(model.predict_each, self.limits)
        self.drift_monitor = DriftMonitor(model.calibration.scores, level)
        self.drift_trace: deque[tuple[int, float]] = deque(maxlen=TRACE)
        self.decoder = FairDecoder(self.limits, min(4, os.cpu_count() or 1))
        self._requests = 0  # in work
        self.batcher.measure(model.preprocessing.shape)
        self.description = self.describe()  # here, as it takes a second at its first time

    async def predict(self, images: Sequence[tuple[str, bytes]]) -> list[dict[str, Any]]:
        """Return a record for each (name, bytes) of a request: the prediction for the image, or the error.

        Raises:
            Refusal: the queue is full or the prediction takes too long (503 in both cases: it asks to try again).
        """
        self._requests += 1
        try:
            async with asyncio.timeout(self.limits.seconds_to_answer):
                decoded = await self.decoder.decode([data for _, data in images], self.model.preprocessing)
                good = [pixels for pixels in decoded if not isinstance(pixels, str)]
                predictions = iter(await self.batcher.predict(good, self._requests == 1) if good else [])
        except TimeoutError:
            raise overloaded(self.limits.retry_after) from None
        finally:
            self._requests -= 1
        records: list[dict[str, Any]] = []
        for (name, _), pixels in zip(images, decoded, strict=True):
            prediction = pixels if isinstance(pixels, str) else next(predictions)
            if isinstance(prediction, str):
                self.metrics.bad.inc()
                records.append({"name": name, "error": prediction})
                continue
            self.metrics.count(prediction)
            online = self.drift_monitor.add(prediction.score)
            records.append({"name": name, **prediction.to_json(), "online_p_value": online})
        drift = self.drift_monitor.state()
        self.drift_trace.append((drift.images, drift.log10_wealth))
        self.metrics.set_drift(drift)
        return records

    def close(self) -> None:
        """Stop the threads that decode."""
        self.decoder.close()

    def describe(self) -> dict[str, Any]:
        """Return the response of /v1/model."""
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
        """Return the response of /v1/drift."""
        return {**asdict(self.drift_monitor.state()), "trace": [list(point) for point in self.drift_trace]}

    def reset_drift(self) -> None:
        """Restart the drift monitor."""
        self.drift_monitor.reset()
        self.drift_trace.clear()
        self.metrics.set_drift(self.drift_monitor.state())


def _thresholds(model: Model) -> dict[str, Any]:
    """Return the threshold of the verdicts: one for all, or one per class (None where its images are too few)."""
    calibration = model.calibration
    if not calibration.per_class:
        return {"threshold": calibration.threshold(), "class_thresholds": None, "classes_without_verdict": []}
    thresholds = calibration.class_thresholds()
    without = [name for name, limit in zip(model.classes, thresholds, strict=True) if limit is None]
    return {"threshold": None, "class_thresholds": thresholds, "classes_without_verdict": without}


def _flag_rates(calibration: Calibration) -> dict[str, Any]:
    """Return the expected share of new ID images that is flagged: over all, or within each class that has verdicts."""
    if not calibration.per_class:
        return {"flag_rate": asdict(calibration.flag_rate()), "class_flag_rates": None}
    rates = [None if rate is None else asdict(rate) for rate in calibration.class_flag_rates()]
    return {"flag_rate": None, "class_flag_rates": rates}
