"""The service without HTTP: decoding, prediction, metrics and the drift monitor of a model that can be replaced."""

import asyncio
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from threading import Thread
from typing import Any, Self

import numpy as np
import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from torch import Tensor

from offaxis import __version__
from offaxis.calibration.drift import DriftMonitor, DriftState
from offaxis.data.transforms import VectorInput
from offaxis.explain import Explanation, calibration_histogram, explain
from offaxis.model import Model
from offaxis.networks.classifier import Classifier
from offaxis.prediction import Prediction, Verdict
from offaxis.serve.alarm import LATEST, call, drift_report
from offaxis.serve.queue import Batcher, FairDecoder, Limits, PredictionOrError, Room, overloaded

P_VALUES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
log = logging.getLogger("offaxis.serve")


MODEL_LABELS = ("version", "engine", "detector", "bundle", "sha256", "calibrated")


class Metrics:
    """Prometheus metrics: requests, latency, verdicts, p-values, queue and drift, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"offaxis_{name}", about, labels, registry=registry)

        def gauge(name: str, about: str, *labels: str) -> Gauge:
            return Gauge(f"offaxis_{name}", about, labels, registry=registry)

        def histogram(name: str, about: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(f"offaxis_{name}", about, labels, buckets=buckets, registry=registry)

        self.requests = counter("requests", "Requests by route and status.", "route", "status")
        about = "From the head of the request to the end of the response."
        self.latency = histogram("request_seconds", about, SECONDS, "route")
        self.verdicts = counter("verdicts", "Images by verdict.", "verdict")
        self.p_values = histogram("p_value", "P-values of the images.", P_VALUES)
        self.bad = counter("bad_images", "Images that could not be read or predicted.")
        self.queue = gauge("queue_images", "Images that wait for the network.")
        self.reloads = counter("reloads", "Reloads of the bundle by result.", "result")
        self.decoding = gauge("decoding_images", "Images that are being decoded.")
        self.wealth = gauge("drift_log10_wealth", "log10 of the drift monitor's martingale.")
        self.alarm = gauge("drift_alarm", "1 once the stream has left the training distribution.")
        self.watched = gauge("drift_images", "Images since the drift monitor began.")
        self.warnings = counter("drift_warnings", "Warnings of the drift monitor.")
        self.model = gauge("model_info", "1 for the model that is served.", *MODEL_LABELS)
        about = "When the model began to be served, in seconds since 1970."
        self.since = gauge("model_start_time_seconds", about)
        self._warned = 0
        ProcessCollector(registry=registry)  # memory, processor time, open files, start; on Linux
        for verdict in Verdict:  # from 0 on: the first of a series that did not exist is no increase to Prometheus
            self.verdicts.labels(verdict.value)
        for result in ("served", "refused", "unchanged"):
            self.reloads.labels(result)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count a request by route and status, with its latency."""
        self.requests.labels(route, status).inc()
        self.latency.labels(route).observe(seconds)

    def count(self, prediction: PredictionOrError) -> None:
        """Count the verdict and the p-value of one image, or that it has none."""
        if isinstance(prediction, str):
            self.bad.inc()
        else:
            self.verdicts.labels(prediction.verdict.value).inc()
            self.p_values.observe(prediction.p_value)

    def set_drift(self, drift: DriftState) -> None:
        """Set the gauges to the state of the drift monitor."""
        self.wealth.set(drift.log10_wealth)
        self.alarm.set(int(drift.alarm))
        self.watched.set(drift.images)
        self.warnings.inc(max(0, drift.warnings - self._warned))
        self._warned = drift.warnings

    def set_model(self, served: "ServedModel") -> None:
        """Note which model is served from now on, and where its drift monitor stands."""
        self.model.clear()
        about = served.description
        self.model.labels(__version__, about["engine"], about["detector"], *map(str, about["bundle"].values())).set(1)
        self.since.set_to_current_time()
        self.set_drift(served.drift_monitor.state())


TRACE = 400  # points of the drift chart
NUMBER_BYTES = 40  # of a number in JSON, with the comma, the new line and the indent after it


class ServedModel:
    """A model with its queue, its description and its drift monitor: what a new bundle replaces as a whole.

    Args:
        model: a calibrated model; it runs on the device it is on.
        limits: sizes and times.
        level: the probability that the drift monitor ever alarms on an ID stream.

    Attributes:
        limits: the same; those of a model of feature vectors leave room for as many as a request may have, and no more.
        requests: how many are in work, from their decoding on.
    """

    def __init__(self, model: Model, limits: Limits, level: float) -> None:
        self.model = model
        self.takes_vectors = isinstance(model.preprocessing, VectorInput)
        if isinstance(model.preprocessing, VectorInput):  # JSON that is no rows takes many times its bytes
            room = 2**16 + limits.images * model.preprocessing.size * NUMBER_BYTES
            limits = replace(limits, body_bytes=min(limits.body_bytes, room))
        self.limits = limits
        self.batcher = Batcher(model.predict_each, limits, any_size=model.engine is not None)
        self.drift_monitor = DriftMonitor(model.calibration.scores, level)
        self.drift_trace: deque[tuple[int, float]] = deque(maxlen=TRACE)
        self.latest: deque[Prediction] = deque(maxlen=LATEST)
        self.description = describe_model(model, limits)  # here, as it takes a second at its first time
        self.requests = 0

    @property
    def title(self) -> str:
        """The bundle, for people: name, start of its checksum, and day of its calibration."""
        name, sha256, day = self.description["bundle"].values()
        return f"{name} (sha256 {sha256[:12]}, calibrated {day})" if name else "a model that is no bundle"

    def watch(self, predictions: Sequence[Prediction]) -> list[float]:
        """Give the scores of a request to the drift monitor; return their online p-values."""
        online = [self.drift_monitor.add(prediction.score) for prediction in predictions]
        self.latest.extend(predictions)
        if online:
            state = self.drift_monitor.state()
            self.drift_trace.append((state.images, state.log10_wealth))
        return online


class Service:
    """A model behind a bounded queue, with a drift monitor over all images; the model can be replaced while it serves.

    Args:
        model: a calibrated model; it runs on the device it is on.
        limits: sizes and times.
        level: the probability that the drift monitor ever alarms on an ID stream.
        on_alarm: an address or a command that is told of an alarm; None for none.
    """

    def __init__(self, model: Model, limits: Limits, level: float, on_alarm: str | None = None) -> None:
        self.limits, self.level, self.on_alarm = limits, level, on_alarm
        self.metrics = Metrics()
        self.room = Room(limits.queue)
        self.decoder = FairDecoder(self.limits, min(4, os.cpu_count() or 1))
        self.served = ServedModel(model, self.limits, level)
        self.metrics.set_model(self.served)
        self._trial: asyncio.Task[bool] | None = None  # the latest answer to /readyz, and when it was asked for
        self._tried_at = 0.0

    async def __aenter__(self) -> Self:
        self.served.batcher.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Finish what is queued, then stop."""
        await self.served.batcher.stop()
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
        old = self.served

        def load_and_try() -> ServedModel:
            model = load(old.model)
            if model is old.model:
                return old
            model.predict(trial_input(model))
            return ServedModel(model, self.limits, self.level)

        old.batcher.in_thread = True
        try:
            new = await asyncio.to_thread(load_and_try)
        finally:
            old.batcher.in_thread = False
        if new is old:
            return False
        new.batcher.start()
        self.served = new
        self.metrics.set_model(self.served)
        while old.requests:
            await asyncio.sleep(0.01)
        await old.batcher.stop()
        return True

    async def ready(self) -> bool:
        """Return whether the network answers a test image, as was found at most a second ago; all who ask wait for one."""
        if self._trial is None or (self._trial.done() and time.monotonic() - self._tried_at >= 1):
            self._tried_at, self._trial = time.monotonic(), asyncio.create_task(self._answers())
        return await asyncio.shield(self._trial)

    async def _answers(self) -> bool:
        """Return whether the network answers a test image within a few seconds, whoever else waits."""
        try:
            async with asyncio.timeout(min(5.0, self.limits.seconds_to_answer)):
                await self.served.batcher.predict([trial_input(self.served.model)[0].numpy()], first=True)
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
            Refusal: the images are too large together (413), or waiting and prediction take too long (503).
        """
        served = self.served
        served.requests += 1
        try:
            async with asyncio.timeout(self.limits.seconds_to_answer), self.room.of(len(images)):
                results, explanations = await self._results(served, [data for _, data in images], explained)
        except TimeoutError:
            raise overloaded() from None
        finally:
            served.requests -= 1
        whole = [result for result in results if not isinstance(result, str)]
        before = served.drift_monitor.state()
        online = iter(served.watch(whole) if watched else [None] * len(whole))
        records: list[dict[str, Any]] = []
        for number, ((name, _), result) in enumerate(zip(images, results, strict=True)):
            if watched:
                self.metrics.count(result)
            if isinstance(result, str):
                records.append({"name": name, "error": result})
                continue
            records.append({"name": name, **result.to_json(), "online_p_value": next(online)})
            if number in explanations:
                records[-1]["explanation"] = explanations[number].to_json()
        self._tell_drift(served, before)
        return records

    def _tell_drift(self, served: ServedModel, before: DriftState) -> None:
        """Put the state of the drift monitor into the metrics, and an alarm or a warning into the log."""
        state = served.drift_monitor.state()
        if served is self.served:
            self.metrics.set_drift(state)
        alarm = state.alarm > before.alarm
        if alarm or state.warnings > before.warnings:
            report = drift_report("alarm" if alarm else "warning", state, served.model, served.latest)
            report["bundle"] = served.description["bundle"]
            log.log(logging.ERROR if alarm else logging.WARNING, "%s", report["text"], extra={"drift": report})
            if alarm and self.on_alarm is not None:
                Thread(target=call, args=(self.on_alarm, report), daemon=True).start()

    async def _results(
        self, served: ServedModel, images: Sequence[bytes], explained: bool
    ) -> tuple[list[PredictionOrError], dict[int, Explanation]]:
        """Return the prediction or the error of each image, and explanations by the number of the image."""
        decoded = await self.decoder.decode(images, served.model.preprocessing)
        good = {number: pixels for number, pixels in enumerate(decoded) if not isinstance(pixels, str)}
        predicted = dict(zip(good, await served.batcher.predict(list(good.values())), strict=True)) if good else {}
        results = [why if isinstance(why, str) else predicted[number] for number, why in enumerate(decoded)]
        if not (good and explained) or served.takes_vectors:
            return results, {}
        pixels = torch.from_numpy(np.stack(list(good.values())))
        return results, dict(zip(good, await served.batcher.run(explain, served.model, pixels), strict=True))

    def drift(self) -> dict[str, Any]:
        """Return the response of /v1/drift."""
        served = self.served
        return {**asdict(served.drift_monitor.state()), "trace": [list(point) for point in served.drift_trace]}

    def reset_drift(self) -> None:
        """Restart the drift monitor."""
        self.served.drift_monitor.reset()
        self.served.drift_trace.clear()
        self.served.latest.clear()
        log.warning("the drift monitor was started again")
        self.metrics.set_drift(self.served.drift_monitor.state())


def trial_input(model: Model) -> Tensor:
    """Return one random image, or one random feature vector, to try a model with."""
    return model.preprocessing.example(1, torch.Generator().manual_seed(0))


def describe_model(model: Model, limits: Limits) -> dict[str, Any]:
    """Return the response of /v1/model."""
    calibration = model.calibration
    thresholds = calibration.class_thresholds() if calibration.per_class else None
    rates = calibration.class_flag_rates() if calibration.per_class else ()
    record = json.dumps(model.public_provenance(), ensure_ascii=False).encode(
        "utf-8", "replace"
    )  # names may be no UTF-8
    name, sha256 = model.source or ("", "")
    day = str(model.provenance.get("calibration_date", ""))[:10]  # of older bundles it is not known
    return {
        "offaxis": __version__,
        "bundle": {"name": name, "sha256": sha256, "calibrated": day or "unknown"},
        "classes": list(model.classes),
        "preprocessing": model.preprocessing.to_json(),
        "networks": sum(isinstance(part, Classifier) for part in model.network.modules()),
        "engine": "torch" if model.engine is None else "onnx",
        "detector": model.detector.name,
        "alpha": calibration.alpha,
        "confidence": calibration.confidence,
        "per_class": calibration.per_class,
        "threshold": calibration.threshold() if thresholds is None else None,
        "class_thresholds": thresholds,
        "classes_without_verdict": [
            name for name, limit in zip(model.classes, thresholds or (), strict=False) if limit is None
        ],
        "calibration": {
            "images": len(calibration.scores),
            "flag_rate": None if calibration.per_class else asdict(calibration.flag_rate()),
            "class_flag_rates": [rate and asdict(rate) for rate in rates] if calibration.per_class else None,
            "histogram": calibration_histogram(calibration),
        },
        "examples": 0 if model.examples is None else len(model.examples.pixels),
        "provenance": json.loads(record),
        "limits": {name: getattr(limits, name) for name in ("body_bytes", "images", "pixels", "request_pixels")},
    }
