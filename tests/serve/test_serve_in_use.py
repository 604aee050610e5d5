"""The service in use: another bundle without a pause, readiness, request ids, and explanations."""

import asyncio
import base64
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
import httpx
from typer.testing import CliRunner

from offaxis import Model, Prediction, attach, load
from offaxis.bundle import bundle_checksum
from offaxis.cli import app
from offaxis.errors import BundleError
from offaxis.explain import with_examples
from offaxis.serve.queue import FairDecoder, Limits
from tests.models import World
from tests.serve.serving import altered, png, running
from tests.waiting import eventually, free_port


def test_another_bundle_is_served_without_a_pause(model: Model, world: World) -> None:
    """Requests before, during and after the change are answered, and by one model each."""
    other = replace(model, classes=tuple(f"new-{name}" for name in model.classes))
    with running(model, reload=lambda *_: other) as (address, server):
        statuses: list[int] = []
        classes: set[str] = set()
        stop = threading.Event()

        def client() -> None:
            with httpx.Client() as session:
                while not stop.is_set():
                    answer = session.post(f"{address}/v1/predict", content=png(world.test, 0), timeout=30)
                    statuses.append(answer.status_code)
                    classes.add(answer.json()["predictions"][0]["class"][:4])

        thread = threading.Thread(target=client)
        thread.start()
        try:
            assert eventually(lambda: len(statuses) > 3, 20)
            server.service.served.batcher._task.get_loop().call_soon_threadsafe(server.reload_asked.set)
            assert eventually(lambda: "new-" in classes, 20)
        finally:
            stop.set()
            thread.join()
        assert set(statuses) == {200}
        assert len(classes) == 2
        assert httpx.get(f"{address}/v1/model").json()["classes"][0].startswith("new-")
        assert httpx.get(f"{address}/v1/drift").json()["images"] < len(statuses)  # the monitor begins anew
        assert 'offaxis_reloads_total{model="model",result="served"} 1.0' in httpx.get(f"{address}/metrics").text


def test_requests_wait_while_the_network_of_another_bundle_is_traced(model: Model, world: World) -> None:
    """Tracing changes nn.Module for the whole process: the old network would fail in it."""
    traced, go_on = threading.Event(), threading.Event()

    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            traced.set()
            go_on.wait(60)
            return cast(Tensor, self.fc(x))

    def load(_: str, served: Model) -> Model:
        attach(Slow(), layer="fc")
        return replace(served)

    with running(model, reload=load) as (address, server), ThreadPoolExecutor(2) as threads:
        image: dict[str, Any] = {"content": png(world.test, 0), "timeout": 60}
        assert httpx.post(f"{address}/v1/predict", **image).status_code == 200  # the next one is quick
        server.service.served.batcher._task.get_loop().call_soon_threadsafe(server.reload_asked.set)
        assert traced.wait(20)
        asked = [threads.submit(httpx.post, f"{address}/v1/predict{end}", **image) for end in ("", "?explain=1")]
        assert not wait(asked, timeout=0.3).done
        assert httpx.get(f"{address}/healthz").status_code == 200
        go_on.set()
        assert [each.result().status_code for each in asked] == [200, 200]
        assert eventually(lambda: 'result="served"} 1.0' in httpx.get(f"{address}/metrics").text)


@pytest.mark.parametrize("explained", ["", "?explain=1"])
def test_a_request_that_is_being_decoded_is_answered_by_the_old_bundle(
    explained: str, model: Model, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its images are not in the queue yet when the model is replaced: the old network has to wait for them."""
    decoding, go_on = threading.Event(), threading.Event()
    decode = FairDecoder.decode

    async def slow(self: FairDecoder, *arguments: Any) -> Any:
        decoding.set()
        await asyncio.to_thread(go_on.wait, 60)
        return await decode(self, *arguments)

    other = replace(model, classes=tuple(f"new-{name}" for name in model.classes))
    with running(model, Limits(seconds_to_answer=20), reload=lambda *_: other) as (address, server):
        image: dict[str, Any] = {"content": png(world.test, 0), "timeout": 60}
        assert httpx.post(f"{address}/v1/predict", **image).status_code == 200
        monkeypatch.setattr(FairDecoder, "decode", slow)
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(httpx.post, f"{address}/v1/predict{explained}", **image)
            try:
                assert decoding.wait(20)
                server.service.served.batcher._task.get_loop().call_soon_threadsafe(server.reload_asked.set)
                assert eventually(lambda: httpx.get(f"{address}/v1/model").json()["classes"][0].startswith("new-"), 20)
                assert not wait([asked], timeout=0.3).done
            finally:
                go_on.set()
            answer = asked.result()
        assert answer.status_code == 200
        assert answer.json()["predictions"][0]["class"] in model.classes
        assert eventually(lambda: 'result="served"} 1.0' in httpx.get(f"{address}/metrics").text)
        assert httpx.post(f"{address}/v1/predict", **image).json()["predictions"][0]["class"].startswith("new-")


def test_a_signal_during_a_reload_is_not_lost(model: Model) -> None:
    """The bundle may have been replaced after it was read: it is read once more, however many signals came."""
    reading, go_on, reads = threading.Event(), threading.Event(), list[str]()

    def load(*_: object) -> Model:
        name = f"{len(reads)}-"
        reads.append(name)
        reading.set()
        assert go_on.wait(20)
        return replace(model, classes=tuple(f"{name}{each}" for each in model.classes))

    with running(model, reload=load) as (address, server):
        loop = server.service.served.batcher._task.get_loop()
        loop.call_soon_threadsafe(server.reload_asked.set)
        assert reading.wait(20)
        for _ in range(3):
            loop.call_soon_threadsafe(server.reload_asked.set)
        assert httpx.get(f"{address}/healthz").status_code == 200  # so that the signals have arrived
        go_on.set()
        served = 'offaxis_reloads_total{model="model",result="served"} 2.0'
        assert eventually(lambda: served in httpx.get(f"{address}/metrics").text, 20)
        assert httpx.get(f"{address}/v1/model").json()["classes"][0].startswith("1-")
        assert reads == ["0-", "1-"]


def test_a_bundle_that_cannot_be_loaded_leaves_the_old_one(model: Model, world: World) -> None:
    def load(*_: object) -> Model:
        raise BundleError("x.oax is damaged")

    def broken(pixels: Tensor) -> list[Prediction]:
        raise RuntimeError("no such layer")

    for bad in (load, lambda *_: altered(model, broken)):
        with running(model, reload=bad) as (address, server):
            loop = server.service.served.batcher._task.get_loop()
            loop.call_soon_threadsafe(server.reload_asked.set)
            refused = 'offaxis_reloads_total{model="model",result="refused"} 1.0'
            assert eventually(lambda: refused in httpx.get(f"{address}/metrics").text)  # noqa: B023
            assert httpx.post(f"{address}/v1/predict", content=png(world.test, 0)).status_code == 200


def test_an_unchanged_bundle_changes_nothing(model: Model, world: World) -> None:
    """What the drift monitor has seen is kept, and the metrics tell that nothing was loaded."""
    with running(model, reload=lambda _, served: served) as (address, server):
        for number in range(3):
            httpx.post(f"{address}/v1/predict", content=png(world.test, number))
        before, since = httpx.get(f"{address}/v1/drift").json(), server.service.served.since
        server.service.served.batcher._task.get_loop().call_soon_threadsafe(server.reload_asked.set)
        unchanged = 'offaxis_reloads_total{model="model",result="unchanged"} 1.0'
        assert eventually(lambda: unchanged in httpx.get(f"{address}/metrics").text, 20)
        assert before["images"] == 3
        assert httpx.get(f"{address}/v1/drift").json() == before
        assert server.service.served.since == since
        assert httpx.post(f"{address}/v1/predict", content=png(world.test, 3)).status_code == 200


def test_sighup_and_json_log_of_a_real_process(model: Model, world: World, tmp_path: Path) -> None:
    path, port = tmp_path / "x.oax", free_port()
    model.save(path)
    command = [sys.executable, "-m", "offaxis", "serve", str(path), "--engine", "torch", "--log", "json"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--port", str(port)], stderr=log, stdout=log)
    address = f"http://127.0.0.1:{port}"

    def described() -> Any:
        try:
            return httpx.get(f"{address}/v1/model", headers={"X-Request-ID": "mine-1"}).json()["alpha"]
        except httpx.TransportError:
            return None

    def logged(text: str) -> int:
        return (tmp_path / "log").read_text().count(text)

    try:
        assert eventually(lambda: described() == 0.05, 200)
        httpx.post(f"{address}/v1/predict", content=png(world.test, 0))
        whole = path.read_bytes()
        for content, told in ((whole, "is unchanged"), (whole[:1000], "the old one goes on"), (whole, "is unchanged")):
            (tmp_path / "new").write_bytes(content)
            (tmp_path / "new").replace(path)  # another file, at times with the old content
            seen = logged(told)
            os.kill(process.pid, signal.SIGHUP)
            assert eventually(lambda: logged(told) == seen + 1, 60)  # noqa: B023
            assert httpx.get(f"{address}/v1/drift").json()["images"] == 1
        assert described() == 0.05
        replace(model, calibration=model.calibration.with_alpha(0.1)).save(path)
        os.kill(process.pid, signal.SIGHUP)
        assert eventually(lambda: described() == 0.1, 60)
    finally:
        process.terminate()
        process.wait(30)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]  # nothing but JSON
    assert "offaxis serves x.oax (sha256 " in lines[0]["message"]
    requests = [line for line in lines if line["message"] == "request"]
    assert requests[-1].keys() >= {"time", "level", "request_id", "method", "path", "status", "ms", "client"}
    assert requests[-1]["request_id"] == "mine-1"
    assert any("the new bundle is served: x.oax (sha256 " in line["message"] for line in lines)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="signals that wait are told by Linux")
def test_sighup_before_the_service_is_up_does_not_end_it(model: Model, tmp_path: Path) -> None:
    path, port = tmp_path / "x.oax", free_port()
    model.save(path)
    command = [sys.executable, "-m", "offaxis", "serve", str(path), "--engine", "torch", "--port", str(port)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, stdout=log)

    def waits() -> bool:
        status = Path(f"/proc/{process.pid}/status").read_text()
        blocked = next(line for line in status.splitlines() if line.startswith("SigBlk"))
        return bool(int(blocked.split()[1], 16) >> (signal.SIGHUP - 1) & 1)

    try:
        assert eventually(waits, 200)
        os.kill(process.pid, signal.SIGHUP)
        assert eventually(lambda: "is unchanged" in (tmp_path / "log").read_text(), 200)
        assert httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
    finally:
        process.terminate()
        process.wait(30)


def test_names_that_are_not_utf8_in_the_record_are_described(model: Model) -> None:
    named = replace(model, provenance={**model.provenance, "members": ["caf\udce9"]})
    with running(named) as (address, _):
        answer = httpx.get(f"{address}/v1/model")
    assert answer.status_code == 200
    assert answer.json()["provenance"]["members"] == ["caf?"]


def test_clients_see_which_bundle_is_served_but_no_paths(model: Model, tmp_path: Path) -> None:
    secret = {
        "command": ["offaxis", "bundle", "/home/ann/run", "--out", "x.oax"],
        "training_command": ["offaxis", "train", "--id", "/home/ann/photos"],
        "id_sets": [{"name": "photos", "path": "/home/ann/photos", "options": {"like": "~ann/photos"}}],
        "architecture": "/home/ann/nets.py:make",
        "members": ["C:\\ann\\run0", "../ann/run1", "timm:hf-hub/ann"],
    }
    replace(model, provenance={**model.provenance, **secret}).save(tmp_path / "v2.oax")
    (tmp_path / "photos.oax").symlink_to("v2.oax")
    read = load(tmp_path / "photos.oax")
    with running(read) as (address, _):
        about, metrics = httpx.get(f"{address}/v1/model").json(), httpx.get(f"{address}/metrics").text
    sha256, day = bundle_checksum(tmp_path / "v2.oax"), model.provenance["calibration_date"]
    assert about["bundle"] == {"name": "v2.oax", "sha256": sha256, "calibrated": day}
    assert f'bundle="v2.oax",calibrated="{day}"' in metrics
    assert f'sha256="{sha256}"' in metrics
    assert "command" not in json.dumps(about["provenance"])
    assert about["provenance"]["architecture"] == "nets.py:make"
    assert about["provenance"]["members"] == ["run0", "run1", "timm:hf-hub/ann"]
    assert about["provenance"]["id_sets"] == [{"name": "photos", "options": {"like": "photos"}}]
    assert "/home" not in json.dumps(about)
    assert read.recalibrated(read.preprocessing.example(40, torch.Generator().manual_seed(1))).source is None


def test_every_response_has_a_request_id(model: Model) -> None:
    with running(model) as (address, _):
        first, second = (httpx.get(f"{address}/healthz").headers["x-request-id"] for _ in range(2))
        assert first != second
        for given, kept in (("order-17", True), ("a b", False), ("x" * 65, False), ("<script>", False)):
            answer = httpx.get(f"{address}/healthz", headers={"X-Request-ID": given})
            assert (answer.headers["x-request-id"] == given) == kept


def test_readiness_is_that_the_network_answers(model: Model) -> None:
    with running(model) as (address, _):
        assert httpx.get(f"{address}/readyz").json() == {"status": "ready"}

    def fail(pixels: Tensor) -> list[Prediction]:
        raise RuntimeError("broken")

    with running(altered(model, fail)) as (address, _):
        answer = httpx.get(f"{address}/readyz")
        assert answer.status_code == 503
        assert answer.json() == {"status": "not ready"}
        assert httpx.get(f"{address}/healthz").status_code == 200


def test_many_who_ask_for_readiness_share_one_test_image(model: Model, world: World) -> None:
    """Asked by 40 at once and again, the network sees at most one test image a second, and predictions go on."""
    batches: list[int] = []

    def slowly(pixels: Tensor) -> list[Prediction]:
        batches.append(len(pixels))
        time.sleep(0.1)
        return model.predict_batch(pixels)

    with running(altered(model, slowly), Limits(queue=32)) as (address, _), ThreadPoolExecutor(40) as pool:
        began = time.monotonic()
        asked = [pool.submit(httpx.get, f"{address}/readyz", timeout=30) for _ in range(200)]
        assert httpx.post(f"{address}/v1/predict", content=png(world.test, 0), timeout=30).status_code == 200
        assert {each.result().status_code for each in asked} == {200}
        assert sum(batches) <= 2 + (time.monotonic() - began)
        time.sleep(1)  # the answer is no longer kept
        seen = sum(batches)
        assert httpx.get(f"{address}/readyz").status_code == 200
        assert sum(batches) == seen + 1


def test_predictions_are_explained_on_request(model: Model, world: World) -> None:
    with running(with_examples(model, world.calibration, 20)) as (address, _):
        files = [("f", ("0.png", png(world.test, 0))), ("f", ("bad.png", b"x")), ("f", ("1.png", png(world.test, 1)))]
        records = httpx.post(f"{address}/v1/predict?explain=1", files=files).json()["predictions"]
        assert "explanation" not in records[1]
        for record in (records[0], records[2]):
            explanation = record["explanation"]
            assert explanation["class"] == record["class"]
            assert np.mean(explanation["map"]) == pytest.approx(record["cosine"], abs=1e-4)
            assert len(explanation["examples"]) == 3
            image = explanation["examples"][0]["image"].removeprefix("data:image/png;base64,")
            assert Image.open(io.BytesIO(base64.b64decode(image))).size == (8, 8)
        plain = httpx.post(f"{address}/v1/predict", files=files).json()["predictions"]
        assert "explanation" not in plain[0]
        assert httpx.get(f"{address}/v1/model").json()["examples"] == 20


def test_the_start_says_what_the_drift_monitor_can_notice(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "With 50 calibration images it notices half a stream after about 27 images."
    expecting = replace(model, provenance={**model.provenance, "expectation": {"drift": said, "sentences": [said]}})
    expecting.save(tmp_path / "expecting.oax")
    monkeypatch.setattr("offaxis.cli.serve.serve", lambda _, announce, on: announce(1))
    done = CliRunner().invoke(app, ["serve", str(tmp_path / "expecting.oax"), "--engine", "torch", "--port", "0"])
    assert done.exit_code == 0, (done.output, done.exception)
    assert said in " ".join(done.output.split())
