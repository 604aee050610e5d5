"""What Prometheus reads at /metrics."""

import importlib
from typing import Any

from offaxis.calibration.drift import Drift
from offaxis.deploy.prediction import Prediction
from offaxis.errors import MissingPackageError

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

    def drifted(self, drift: Drift) -> None:
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
