"""The service without HTTP: decoding, prediction, metrics and the drift monitor."""

import asyncio
import importlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from offaxis import __version__
from offaxis.calibration.calibration import Calibration
from offaxis.calibration.drift import DriftMonitor, DriftState
from offaxis.data.vectors import VectorInput
from offaxis.errors import MissingPackageError
from offaxis.explain import Explanation, explain
from offaxis.model import Model, Prediction, Verdict
from offaxis.networks.classifier import Classifier
from offaxis.serve.body import Budget, Limits, Refusal, overloaded
from offaxis.serve.queue import Batcher, FairDecoder

P_VALUES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Prometheus metrics: requests, latency, verdicts, p-values, queue and drift, in a registry of their own."""

    def __init__(self) -> None:
        client = _client()
        self.registry: Any = client.CollectorRegistry()
        self._client = client
        self._by_labels: dict[tuple[Any, ...], Any] = {}  # to look them up takes long
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
        self.reloads = client.Counter("offaxis_reloads", "Reloads of the bundle by result.", ["result"], **registry)
        self.decoding = client.Gauge("offaxis_decoding_images", "Images that are being decoded.", **registry)
        self.wealth = client.Gauge("offaxis_drift_log10_wealth", "log10 of the drift monitor's martingale.", **registry)
        self.alarm = client.Gauge(
            "offaxis_drift_alarm", "1 once the stream has left the training distribution.", **registry
        )
        self.watched = client.Gauge("offaxis_drift_images", "Images since the drift monitor began.", **registry)
        self.warnings = client.Counter("offaxis_drift_warnings", "Warnings of the drift monitor.", **registry)
        self._warned = 0
        self.model = client.Gauge(
            "offaxis_model_info",
            "1 for the model that is served.",
            ["version", "engine", "detector"],
            **registry,
        )
        self.since = client.Gauge(
            "offaxis_model_start_time_seconds", "When the model began to be served, in seconds since 1970.", **registry
        )
        client.ProcessCollector(registry=self.registry)  # memory, processor time, open files, start; on Linux
        for verdict in Verdict:  # from 0 on: the first of a series that did not exist is no increase to Prometheus
            self._labelled(self.verdicts, verdict.value)
        for result in ("served", "refused", "unchanged"):
            self.reloads.labels(result)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count a request by route and status, with its latency."""
        self._labelled(self.requests, route, str(status)).inc()
        self._labelled(self.latency, route).observe(seconds)

    def count(self, prediction: Prediction) -> None:
        """Count the verdict and the p-value of one image."""
        self._labelled(self.verdicts, prediction.verdict.value).inc()
        self.p_values.observe(prediction.p_value)

    def _labelled(self, metric: Any, *labels: str) -> Any:
        found = self._by_labels.get((metric, *labels))
        if found is None:
            found = self._by_labels[metric, *labels] = metric.labels(*labels)
        return found

    def set_drift(self, drift: DriftState) -> None:
        """Set the gauges to the state of the drift monitor."""
        self.wealth.set(drift.log10_wealth)
        self.alarm.set(int(drift.alarm))
        self.watched.set(drift.images)
        self.warnings.inc(max(0, drift.warnings - self._warned))
        self._warned = drift.warnings

    def set_model(self, engine: str, detector: str) -> None:
        """Note which model is served from now on."""
        self.model.clear()
        self.model.labels(__version__, engine, detector).set(1)
        self.since.set_to_current_time()

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


class ServedModel:
    """A model with its queue, its description and its drift monitor: what a new bundle replaces as a whole.

    Args:
        model: a calibrated model; it runs on the device it is on.
        limits: sizes and times.
        level: the probability that the drift monitor ever alarms on an ID stream.
    """

    def __init__(self, model: Model, limits: Limits, level: float) -> None:
        self.model, self.limits = model, limits
        self.takes_vectors = isinstance(model.preprocessing, VectorInput)
        self.batcher = Batcher(model.predict_each, limits, any_size=model.engine is not None)
        self.drift_monitor = DriftMonitor(model.calibration.scores, level)
        self.drift_trace: deque[tuple[int, float]] = deque(maxlen=TRACE)
        self.description = self.describe()  # here, as it takes a second at its first time
        self._requests, self._idle = 0, asyncio.Event()
        self._idle.set()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Count a request from its decoding on, before its images are in the queue: ``retire`` waits for it."""
        self._requests += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self._idle.set()

    async def retire(self) -> None:
        """Finish the requests that are in work, then stop; none may begin any more."""
        await self._idle.wait()
        await self.batcher.__aexit__()

    def describe(self) -> dict[str, Any]:
        """Return the response of /v1/model."""
        model, calibration = self.model, self.model.calibration
        by_cosine = calibration.by_cosine  # of what the verdict depends on
        counts, edges = np.histogram(-calibration.scores if by_cosine else calibration.scores, bins=BINS)
        return {
            "offaxis": __version__,
            "classes": list(model.classes),
            "preprocessing": model.preprocessing.to_json(),
            "networks": sum(isinstance(part, Classifier) for part in model.network.modules()),
            "engine": "torch" if model.engine is None else "onnx",
            "detector": model.detector.name,
            "alpha": calibration.alpha,
            "confidence": calibration.confidence,
            "per_class": calibration.per_class,
            **_thresholds(model),
            "calibration": {
                "images": len(calibration.scores),
                **_flag_rates(calibration),
                "histogram": {
                    "of": "cosine" if by_cosine else "score",
                    "counts": counts.tolist(),
                    "edges": edges.tolist(),
                },
            },
            "examples": 0 if model.examples is None else len(model.examples.pixels),
            "provenance": _as_text(model.provenance),
            "limits": {
                "body_bytes": self.limits.body_bytes,
                "images": self.limits.images,
                "pixels": self.limits.pixels,
                "request_pixels": self.limits.request_pixels,
            },
        }

    def watch(self, predictions: Sequence[Prediction]) -> list[float]:
        """Give the scores of a request to the drift monitor; return their online p-values."""
        online = [self.drift_monitor.add(prediction.score) for prediction in predictions]
        if online:
            state = self.drift_monitor.state()
            self.drift_trace.append((state.images, state.log10_wealth))
        return online


class Service:
    """A model behind a bounded queue, with a drift monitor over all images; the model can be replaced while it serves.

    Args:
        model: a calibrated model; it runs on the device it is on.
        limits: sizes and times; None for the defaults.
        level: the probability that the drift monitor ever alarms on an ID stream.
    """

    def __init__(self, model: Model, limits: Limits | None = None, level: float = 0.01) -> None:
        self.limits, self.level = limits or Limits(), level
        self.metrics = Metrics()
        self.budget = Budget(self.limits)
        self.decoder = FairDecoder(self.limits, min(4, os.cpu_count() or 1))
        self.served = ServedModel(model, self.limits, level)
        self._note_model()

    async def __aenter__(self) -> Self:
        await self.served.batcher.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Finish what is queued, then stop."""
        await self.served.batcher.__aexit__()
        self.decoder.close()

    async def replace_model(self, load: Callable[[Model], Model]) -> bool:
        """Load another model and serve it from now on; requests that are in work are finished by the old one.

        Args:
            load: loads a model, given the served one; where it returns that one, nothing changes.

        Returns:
            Whether there is another model.

        Raises:
            OffaxisError: it cannot be loaded or does not predict; the old one then goes on.
        """
        loop = asyncio.get_running_loop()
        self.served.batcher.in_thread = True
        try:
            new = await loop.run_in_executor(None, lambda: self._checked(load(self.served.model)))
        finally:
            self.served.batcher.in_thread = False
        if new is None:
            return False
        await new.batcher.__aenter__()
        old, self.served = self.served, new
        self._note_model()
        await old.retire()
        return True

    def _note_model(self) -> None:
        """Tell the metrics which model is served and where its drift monitor stands."""
        about = self.served.description
        self.metrics.set_model(about["engine"], about["detector"])
        self.metrics.set_drift(self.served.drift_monitor.state())

    def _checked(self, model: Model) -> ServedModel | None:
        """Return a model that is ready to serve: it has predicted a test image. None for the one that is served already."""
        if model is self.served.model:
            return None
        model.predict(_example(model))
        return ServedModel(model, self.limits, self.level)

    async def ready(self) -> bool:
        """Return whether the network answers a test image within a few seconds, in its turn."""
        example = _example(self.served.model)
        try:
            async with asyncio.timeout(min(5.0, self.limits.seconds_to_answer)):
                await self.served.batcher.predict([example[0].numpy()])
        except Refusal:
            return True  # it is busy with others, which it answers
        except Exception:  # late, or broken
            return False
        return True

    async def predict(
        self, images: Sequence[tuple[str, bytes]], *, explained: bool = False, watched: bool = True
    ) -> list[dict[str, Any]]:
        """Return a record for each (name, bytes) of a request: the prediction for the image, or the error.

        Args:
            images: names and files.
            explained: whether records get an ``explanation``, see :mod:`offaxis.explain`.
            watched: whether the drift monitor and the metrics count these images.

        Raises:
            Refusal: the queue is full or the prediction takes too long (503 in both cases: it asks to try again).
        """
        served, explanations = self.served, list[Explanation]()
        try:
            with served.in_use():
                async with asyncio.timeout(self.limits.seconds_to_answer):
                    decoded = await self.decoder.decode([data for _, data in images], served.model.preprocessing)
                    good = [pixels for pixels in decoded if not isinstance(pixels, str)]
                    predicted = await served.batcher.predict(good) if good else []
                    if explained and good and not served.takes_vectors:
                        explanations = await served.batcher.run(explain, served.model, torch.from_numpy(np.stack(good)))
        except TimeoutError:
            raise overloaded(self.limits.retry_after) from None
        whole = [each for each in predicted if not isinstance(each, str)]
        online = iter(served.watch(whole) if watched else [None] * len(whole))
        predictions, reasons = iter(predicted), iter(explanations)
        records: list[dict[str, Any]] = []
        for (name, _), pixels in zip(images, decoded, strict=True):
            prediction = pixels if isinstance(pixels, str) else next(predictions)
            explanation = next(reasons) if explanations and not isinstance(pixels, str) else None
            if isinstance(prediction, str):
                self.metrics.bad.inc(watched)
                records.append({"name": name, "error": prediction})
                continue
            if watched:
                self.metrics.count(prediction)
            record = {"name": name, **prediction.to_json(), "online_p_value": next(online)}
            records.append(record if explanation is None else {**record, "explanation": explanation.to_json()})
        if served is self.served:
            self.metrics.set_drift(served.drift_monitor.state())
        return records

    def drift(self) -> dict[str, Any]:
        """Return the response of /v1/drift."""
        served = self.served
        return {**asdict(served.drift_monitor.state()), "trace": [list(point) for point in served.drift_trace]}

    def reset_drift(self) -> None:
        """Restart the drift monitor."""
        self.served.drift_monitor.reset()
        self.served.drift_trace.clear()
        self.metrics.set_drift(self.served.drift_monitor.state())


def _example(model: Model) -> Tensor:
    """Return one random image, or one random feature vector, to try a model with."""
    return model.preprocessing.example(1, torch.Generator().manual_seed(0))


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


def _as_text(record: Mapping[str, Any]) -> Any:
    """Return a record that can be sent: of names that are not UTF-8 the bytes that are not are question marks."""
    return json.loads(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace"))
