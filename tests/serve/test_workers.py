"""Several models and several processes behind one address, what outlives a restart, and the log of predictions."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
import httpx

from offaxis import Model, load
from offaxis.bundle import bundle_checksum
from offaxis.calibration.drift import DriftMonitor
from offaxis.cli.serve import bundles_by_name
from offaxis.errors import ArgumentError, ServerError
from offaxis.serve.server import log_predictions
from offaxis.serve.service import predictions_log
from offaxis.serve.streams import Streams
from tests.models import World
from tests.serve.serving import png, running
from tests.waiting import eventually, free_port


@contextmanager
def started(folder: Path, *words: str) -> Iterator[tuple[httpx.Client, subprocess.Popen[bytes], Callable[[], str]]]:
    """(client, process, log) of ``offaxis serve`` with these words, until it is asked to end."""
    port, log = free_port(), folder / f"log-{len(list(folder.glob('log-*')))}"
    command = [sys.executable, "-m", "offaxis", "serve", *words, "--engine", "torch", "--port", str(port)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stderr=out, cwd=folder)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:

        def is_up() -> bool:
            try:
                return client.get("/readyz").status_code == 200
            except httpx.TransportError:
                return False

        try:
            assert eventually(is_up, 200), log.read_text()
            yield client, process, log.read_text
        finally:
            process.terminate()
            process.wait(60)
            assert "Traceback" not in log.read_text()


def test_two_workers_share_one_monitor_that_outlives_them(model: Model, world: World, tmp_path: Path) -> None:
    model.save(tmp_path / "digits.oax")
    replace(model, calibration=model.calibration.with_alpha(0.2)).save(tmp_path / "other.oax")
    words = ("digits.oax", "other.oax", "--workers", "2", "--state", "state", "--log-predictions", "log")

    def ask(client: httpx.Client, count: int, path: str = "/v1/predict") -> None:
        for number in range(count):  # each on a connection of its own, so that both workers get some
            headers = {"Connection": "close"}
            assert client.post(path, content=png(world.test, number), headers=headers).status_code == 200

    with started(tmp_path, *words) as (client, process, log):
        assert eventually(lambda: log().count("offaxis serves") == 2, 100)  # by both
        ask(client, 12)
        ask(client, 3, "/v1/models/other/predict")
        assert client.get("/v1/models/none/drift").status_code == 404
        seen = [client.get(path).json() for path in ("/v1/drift", "/v1/models/digits/drift", "/v1/models/other/drift")]
        assert [each["images"] for each in seen] == [12, 12, 3]
        assert [each["name"] for each in client.get("/v1/models").json()["models"]] == ["digits", "other"]
        assert client.get("/v1/models/other").json()["alpha"] == 0.2
        metrics = client.get("/metrics").text
        counts = [line for line in metrics.splitlines() if line.startswith('offaxis_verdicts_total{model="digits"')]
        assert sum(float(line.split()[-1]) for line in counts) == 12
        assert 'offaxis_requests_total{route="/v1/predict",status="200"} 15.0' in metrics

        (tmp_path / "log").rename(tmp_path / "log.1")  # as logrotate does
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        if workers.exists():
            victim = next(int(pid) for pid in workers.read_text().split() if b"spawn_main" in _command(pid))
            os.kill(victim, signal.SIGKILL)
            assert eventually(lambda: log().count("offaxis serves") == 3, 100)
            assert "a worker ended (exit code -9) and is started again" in log()
        ask(client, 2)
        assert client.get("/v1/drift").json()["images"] == 14
        wealth = client.get("/v1/drift").json()["log10_wealth"]
    old, new = ((tmp_path / name).read_text().splitlines() for name in ("log.1", "log"))
    assert (len(old), len(new)) == (15, 2)
    prediction, line = model.predict(png(world.test, 0))[0], json.loads(old[0])
    assert line["image_sha256"] == hashlib.sha256(png(world.test, 0)).hexdigest()
    assert line["bundle_sha256"] == bundle_checksum(tmp_path / "digits.oax")
    assert (line["model"], line["class"], line["verdict"]) == ("digits", prediction.class_name, prediction.verdict)
    assert (line["p_value"], line["probability"]) == pytest.approx((prediction.p_value, prediction.probability))

    with started(tmp_path, "digits.oax", "--state", "state") as (client, process, _):
        state = client.get("/v1/drift").json()
        assert (state["images"], state["log10_wealth"]) == (14, wealth)
        model.save(tmp_path / "digits.oax")  # rollback: the same, another, and back
        other = (tmp_path / "other.oax").read_bytes()
        for content, alpha in ((other, 0.2), ((tmp_path / "digits.oax").read_bytes(), 0.05)):
            (tmp_path / "new").write_bytes(content)
            (tmp_path / "new").replace(tmp_path / "digits.oax")
            process.send_signal(signal.SIGHUP)
            assert eventually(lambda: client.get("/v1/model").json()["alpha"] == alpha, 60)  # noqa: B023


def _command(pid: str) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_damaged_state_is_refused_and_that_of_another_bundle_is_not_used(
    model: Model, world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def images(served: Model) -> int:
        with running(served, streams=Streams(0.01, file=tmp_path / "state")) as (address, server):
            seen: int = httpx.get(f"{address}/v1/drift").json()["images"]
            httpx.post(f"{address}/v1/predict", content=png(world.test, 0))
            server.service.streams.save()
        return seen

    saved, another = tmp_path / "x.oax", tmp_path / "y.oax"
    model.save(saved)
    replace(model, calibration=model.calibration.with_alpha(0.1)).save(another)
    assert [images(load(saved)), images(load(saved)), images(load(another)), images(load(saved))] == [0, 1, 0, 0]
    assert "its state is of another bundle" in caplog.text
    whole = (tmp_path / "state").read_bytes()
    for damaged in (whole[:-1], whole[:100], b"", whole[:500] + b"x" + whole[501:]):
        (tmp_path / "state").write_bytes(damaged)
        with pytest.raises(ServerError, match="damaged|checksum"):
            Streams(0.01, file=tmp_path / "state")


def test_a_monitor_goes_on_where_it_was_kept() -> None:
    """Another one that is given the arrays of the first is in its state, and counts as it does."""
    random = np.random.default_rng(0)
    first, second = (DriftMonitor(random.normal(size=100)) for _ in range(2))
    for score in random.normal(0.2, 1, 3000).tolist():
        first.add(score)
    second.restore(first.to_arrays())
    assert second.state() == first.state()
    assert second._counts.tree == first._counts.tree
    for score in random.normal(3, 1, 50).tolist():
        assert second.add(score) == pytest.approx(first.add(score), abs=1e-3)  # ties are broken by other numbers


def test_names_of_bundles_can_be_part_of_a_path() -> None:
    assert list(bundles_by_name(("a/my photos.oax", "hf:me/photos"))) == ["my-photos", "photos"]
    with pytest.raises(ArgumentError, match="are both called 'x'"):
        bundles_by_name(("a/x.oax", "b/x.oax"))


def test_the_log_of_predictions_and_the_monitor_leave_test_images_out(
    model: Model, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictions_log, "handlers", [])
    monkeypatch.setattr(predictions_log, "propagate", True)
    log_predictions(tmp_path / "log")
    with running(model) as (address, _):
        answers: list[Any] = [
            httpx.post(f"{address}/v1/predict{end}", content=png(world.test, 0)).json() for end in ("", "?watch=0")
        ]
        assert httpx.get(f"{address}/v1/drift").json()["images"] == 1
    predictions_log.handlers[0].close()
    assert len((tmp_path / "log").read_text().splitlines()) == 1
    assert answers[0]["predictions"][0]["online_p_value"] is not None
    assert answers[1]["predictions"][0]["online_p_value"] is None
    with pytest.raises(ServerError, match="The log of predictions cannot be written"):
        log_predictions(tmp_path / "none" / "log")
