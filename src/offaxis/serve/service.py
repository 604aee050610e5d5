"""The service without HTTP: decoding, prediction, metrics and the drift monitor of a model that can be replaced."""

import asyncio
import json
import logging
import os
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from hashlib import sha256
from io import BytesIO
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from torch import Tensor

from offaxis import __version__
from offaxis.calibration.drift import appearances
from offaxis.data.transforms import VectorInput
from offaxis.explain import Explanation, calibration_histogram, explain
from offaxis.model import Model
from offaxis.networks.classifier import Classifier
from offaxis.prediction import Prediction, Verdict
from offaxis.serve.queue import Batcher, FairDecoder, Limits, Pixels, PredictionOrError, Room, overloaded
from offaxis.serve.streams import Seen, Streams, StreamSource

P_VALUES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
log = logging.getLogger("offaxis.serve")


predictions_log = logging.getLogger("offaxis.predictions")  # a line an image; silent unless it is given a file


MODEL_LABELS = ("model", "version", "engine", "detector", "bundle", "sha256", "calibrated")
SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that names the folder in which prometheus_client adds up the counts of several workers."""


class Metrics:
    """Prometheus metrics: requests, latency, verdicts, p-values and queue; what it tells of models is read when asked for.

    Args:
        service: whose models are described.
    """

    def __init__(self, service: "Service") -> None:
        self.service, self.registry, self.live = service, CollectorRegistry(), CollectorRegistry()
        registry = self.registry

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"offaxis_{name}", about, labels, registry=registry)

        def gauge(name: str, about: str) -> Gauge:
            return Gauge(f"offaxis_{name}", about, registry=registry, multiprocess_mode="livesum")

        def histogram(name: str, about: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(f"offaxis_{name}", about, labels, buckets=buckets, registry=registry)

        self.requests = counter("requests", "Requests by route and status.", "route", "status")
        about = "From the head of the request to the end of the response."
        self.latency = histogram("request_seconds", about, SECONDS, "route")
        self.verdicts = counter("verdicts", "Images by verdict.", "verdict", "model")
        self.p_values = histogram("p_value", "P-values of the images.", P_VALUES, "model")
        self.bad = counter("bad_images", "Images that could not be read or predicted.", "model")
        self.queue = gauge("queue_images", "Images that wait for the network, or are in it.")
        self.decoding = gauge("decoding_images", "Images that are being decoded.")
        self.reloads = counter("reloads", "Reloads of the bundle by result.", "result", "model")
        for name in service.models:  # from 0 on: the first of a series that did not exist is no increase to Prometheus
            self.bad.labels(name)
            for verdict in Verdict:
                self.verdicts.labels(verdict.value, name)
            for result in ("served", "refused", "unchanged"):
                self.reloads.labels(result, name)
        self.live.register(self)
        if SHARED not in os.environ:
            ProcessCollector(registry=self.live)  # memory, processor time, open files, start; on Linux

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count a request by route and status, with its latency."""
        self.requests.labels(route, status).inc()
        self.latency.labels(route).observe(seconds)

    def count(self, model: str, prediction: PredictionOrError) -> None:
        """Count the verdict and the p-value of one image, or that it has none."""
        if isinstance(prediction, str):
            self.bad.labels(model).inc()
        else:
            self.verdicts.labels(prediction.verdict.value, model).inc()
            self.p_values.labels(model).observe(prediction.p_value)

    def collect(self) -> Iterator[Metric]:
        """Yield which models are served, and where their drift monitors stand."""
        about = "1 for the model that is served."
        info = GaugeMetricFamily("offaxis_model_info", about, labels=MODEL_LABELS)
        about = "When the model began to be served, in seconds since 1970."
        since = GaugeMetricFamily("offaxis_model_start_time_seconds", about, labels=["model"])
        gauges = {
            "log10_wealth": "log10 of the drift monitor's martingale.",
            "alarm": "1 once the stream has left the training distribution.",
            "images": "Images since the drift monitor began.",
        }
        drift = {
            key: GaugeMetricFamily(f"offaxis_drift_{key}", about, labels=["model"]) for key, about in gauges.items()
        }
        warnings = CounterMetricFamily("offaxis_drift_warnings", "Warnings of the drift monitor.", labels=["model"])
        for name, served in self.service.models.items():
            is_served, state = served.description, self.service.streams.drift(name)
            bundle = map(str, is_served["bundle"].values())
            info.add_metric([name, __version__, is_served["engine"], is_served["detector"], *bundle], 1)
            since.add_metric([name], served.since)
            for key, family in drift.items():
                family.add_metric([name], state[key])
            warnings.add_metric([name], state["warnings_ever"])
        yield from (info, since, warnings, *drift.values())

    def text(self) -> bytes:
        """Return all metrics, over all workers, in the text format of Prometheus."""
        counted = self.registry
        if SHARED in os.environ:
            counted = CollectorRegistry()
            MultiProcessCollector(counted)  # type: ignore[no-untyped-call]
        return generate_latest(counted) + generate_latest(self.live)


NUMBER_BYTES = 40  # of a number in JSON, with the comma, the new line and the indent after it


class ServedModel:
    """A model with its queue and its description: what a new bundle replaces as a whole.

    Args:
        name: in the paths of the service.
        model: a calibrated model; it runs on the device it is on.
        limits: sizes and times.

    Attributes:
        limits: the same; those of a model of feature vectors leave room for as many as a request may have, and no more.
        requests: how many are in work, from their decoding on.
        since: when it began to be served, in seconds since 1970.
    """

    def __init__(self, name: str, model: Model, limits: Limits) -> None:
        self.name, self.model = name, model
        self.takes_vectors = isinstance(model.preprocessing, VectorInput)
        if isinstance(model.preprocessing, VectorInput):  # JSON that is no rows takes many times its bytes
            room = 2**16 + limits.images * model.preprocessing.size * NUMBER_BYTES
            limits = replace(limits, body_bytes=min(limits.body_bytes, room))
        self.limits = limits
        self.batcher = Batcher(model.predict_each, limits, any_size=model.engine is not None)
        self.description = describe_model(model, limits)  # here, as it takes a second at its first time
        self.requests, self.since = 0, time.time()
        bundle, calibration = self.description["bundle"], model.calibration
        self.source = StreamSource(
            name=name,
            key=bundle["sha256"] or os.urandom(8).hex(),
            bundle=bundle,
            classes=model.classes,
            scores=calibration.scores,
            predicted=calibration.predicted,
            alpha=calibration.alpha,
            appearance=model.provenance.get("calibration_set", {}).get("appearance"),
        )

    @property
    def title(self) -> str:
        """The bundle, for people: name, start of its checksum, and day of its calibration."""
        name, checksum, day = self.description["bundle"].values()
        return f"{name} (sha256 {checksum[:12]}, calibrated {day})" if name else "a model that is no bundle"

    def seen(self, predictions: Sequence[Prediction], pixels: Sequence[Pixels]) -> list[Seen]:
        """Return what the drift monitor is told of images with these pixels (c, h, w)."""
        looks = appearances(np.stack(pixels)) if self.source.appearance and pixels else [None] * len(pixels)
        return [
            Seen(
                each.score,
                each.class_index,
                each.p_value,
                flagged := each.verdict is Verdict.OUT,
                look,
                as_data_url(image) if flagged and self.model.examples is not None else None,
            )
            for each, image, look in zip(predictions, pixels, looks, strict=True)
        ]


def as_data_url(pixels: Pixels) -> str:
    """Return an image (c, h, w) as a PNG file in a data URL."""
    out = BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(out, "PNG")
    return f"data:image/png;base64,{b64encode(out.getvalue()).decode()}"


class Service:
    """Models behind a bounded queue, with a drift monitor each; a model can be replaced while it serves.

    Args:
        models: calibrated models by name; the first is that of the paths without a name.
        limits: sizes and times.
        streams: the drift monitors, which other workers may share.
    """

    def __init__(self, models: Mapping[str, Model], limits: Limits, streams: Streams) -> None:
        self.limits, self.streams = limits, streams
        self.room = Room(limits.queue)
        self.decoder = FairDecoder(self.limits, min(4, os.cpu_count() or 1))
        self.models = {name: ServedModel(name, model, limits) for name, model in models.items()}
        for served in self.models.values():
            streams.open(served.source)
        self.metrics = Metrics(self)
        self._trial: asyncio.Task[bool] | None = None  # the latest answer to /readyz, and when it was asked for
        self._tried_at = 0.0

    @property
    def served(self) -> ServedModel:
        """The first model."""
        return next(iter(self.models.values()))

    async def __aenter__(self) -> Self:
        for served in self.models.values():
            served.batcher.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Finish what is queued, then stop."""
        for served in self.models.values():
            await served.batcher.stop()
        self.decoder.close()

    async def replace_model(self, name: str, load: Callable[[str, Model], Model]) -> bool:
        """Load another model and serve it from now on; requests that are in work are finished by the old one.

        Args:
            name: of the model.
            load: loads a model, given its name and the served one; where it returns that one, nothing changes.

        Returns:
            Whether there is another model.

        Raises:
            OffaxisError: it cannot be loaded or does not predict; the old one then goes on.
        """
        old = self.models[name]

        def load_and_try() -> ServedModel:
            model = load(name, old.model)
            if model is old.model:
                return old
            model.predict(trial_input(model))
            return ServedModel(name, model, self.limits)

        for each in self.models.values():
            each.batcher.in_thread = True
        try:
            new = await asyncio.to_thread(load_and_try)
        finally:
            for each in self.models.values():
                each.batcher.in_thread = False
        if new is old:
            return False
        new.batcher.start()
        self.streams.open(new.source)
        self.models[name] = new
        while old.requests:
            await asyncio.sleep(0.01)
        await old.batcher.stop()
        return True

    async def ready(self) -> bool:
        """Return whether every network answers a test image, as was found at most a second ago; all who ask wait for one."""
        if self._trial is None or (self._trial.done() and time.monotonic() - self._tried_at >= 1):
            self._tried_at, self._trial = time.monotonic(), asyncio.create_task(self._answers())
        return await asyncio.shield(self._trial)

    async def _answers(self) -> bool:
        """Return whether every network answers a test image within a few seconds, whoever else waits."""
        try:
            async with asyncio.timeout(min(5.0, self.limits.seconds_to_answer)):
                for served in self.models.values():
                    await served.batcher.predict([trial_input(served.model)[0].numpy()], first=True)
        except Exception:  # late, or broken
            return False
        return True

    async def predict(
        self, model: str, images: Sequence[tuple[str, bytes]], *, explained: bool = False, watched: bool = True
    ) -> list[dict[str, Any]]:
        """Return a record for each (name, bytes) of a request: the prediction for the image, or the error.

        Args:
            model: its name.
            images: names and files.
            explained: whether records get an ``explanation``, see :mod:`offaxis.explain`.
            watched: whether the drift monitor, the metrics and the log of predictions count these images.

        Raises:
            Refusal: the images are too large together (413), or waiting and prediction take too long (503).
        """
        served = self.models[model]
        served.requests += 1
        try:
            async with asyncio.timeout(self.limits.seconds_to_answer), self.room.of(len(images)):
                results, pixels, explanations = await self._results(served, [data for _, data in images], explained)
        except TimeoutError:
            raise overloaded() from None
        finally:
            served.requests -= 1
        whole = [(each, pixels[number]) for number, each in enumerate(results) if not isinstance(each, str)]
        online: Iterator[float | None] = iter([None] * len(whole))
        if watched and whole:
            seen = served.seen(*zip(*whole, strict=True))
            online = iter(self.streams.watch(model, served.source.key, seen))
        records: list[dict[str, Any]] = []
        for number, ((name, data), result) in enumerate(zip(images, results, strict=True)):
            if watched:
                self.metrics.count(model, result)
            if isinstance(result, str):
                records.append({"name": name, "error": result})
                continue
            records.append({"name": name, **result.to_json(), "online_p_value": next(online)})
            if watched and predictions_log.handlers:
                log_prediction(served, data, records[-1])
            if number in explanations:
                records[-1]["explanation"] = explanations[number].to_json()
        return records

    async def _results(
        self, served: ServedModel, images: Sequence[bytes], explained: bool
    ) -> tuple[list[PredictionOrError], dict[int, Pixels], dict[int, Explanation]]:
        """Return the prediction or the error of each image; pixels and explanations by the number of the image."""
        self.metrics.decoding.inc(len(images))
        try:
            decoded = await self.decoder.decode(images, served.model.preprocessing)
        finally:
            self.metrics.decoding.dec(len(images))
        good = {number: pixels for number, pixels in enumerate(decoded) if not isinstance(pixels, str)}
        self.metrics.queue.inc(len(good))
        try:
            predicted = dict(zip(good, await served.batcher.predict(list(good.values())), strict=True)) if good else {}
        finally:
            self.metrics.queue.dec(len(good))
        results = [why if isinstance(why, str) else predicted[number] for number, why in enumerate(decoded)]
        if not (good and explained) or served.takes_vectors:
            return results, good, {}
        pixels = torch.from_numpy(np.stack(list(good.values())))
        return results, good, dict(zip(good, await served.batcher.run(explain, served.model, pixels), strict=True))


def log_prediction(served: ServedModel, data: bytes, record: Mapping[str, Any]) -> None:
    """Write a line of the log of predictions: enough to find the image and the model again, without the image."""
    line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "model": served.name}
    line |= {"image_sha256": sha256(data).hexdigest(), "bundle_sha256": served.description["bundle"]["sha256"]}
    line |= {key: record[key] for key in ("class", "probability", "p_value", "verdict")}
    predictions_log.info(json.dumps(line))


def trial_input(model: Model) -> Tensor:
    """Return one random image, or one random feature vector, to try a model with."""
    return model.preprocessing.example(1, torch.Generator().manual_seed(0))


def describe_model(model: Model, limits: Limits) -> dict[str, Any]:
    """Return the response of /v1/model."""
    calibration = model.calibration
    thresholds = calibration.class_thresholds() if calibration.per_class else None
    rates = calibration.class_flag_rates() if calibration.per_class else ()
    text = json.dumps(model.public_provenance(), ensure_ascii=False)
    record = text.encode("utf-8", "replace")  # names may be no UTF-8
    name, checksum = model.source or ("", "")
    day = str(model.provenance.get("calibration_date", ""))[:10]  # of older bundles it is not known
    return {
        "offaxis": __version__,
        "bundle": {"name": name, "sha256": checksum, "calibrated": day or "unknown"},
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
