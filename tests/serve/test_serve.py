"""The service, over real sockets: answers, limits, batching, and clients that misbehave."""

import json
import logging
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
import httpx
from typer.testing import CliRunner

from offaxis import Model, Prediction, Verdict
from offaxis.calibration.conformal import flag_rate
from offaxis.cli import app
from offaxis.data import TensorSet, load_images, match
from offaxis.detectors import Energy
from offaxis.errors import ArgumentError, ServerError
from offaxis.networks.combine import AnyNetwork
from offaxis.options import ServeOptions
from offaxis.serve.queue import Limits
from offaxis.serve.server import Server, make_server, serve
from offaxis.serve.service import describe_model
from tests.models import World
from tests.serve.serving import altered, png, running
from tests.waiting import eventually, free_port


@pytest.fixture(scope="module")
def address(model: Model) -> Iterator[str]:
    with running(model) as (address, _):
        yield address


def post(address: str, data: bytes, kind: str = "image/png") -> httpx.Response:
    return httpx.post(f"{address}/v1/predict", content=data, headers={"content-type": kind}, timeout=30)


def test_one_image_as_the_body(address: str, model: Model, world: World) -> None:
    answer = post(address, png(world.test, 0))
    assert answer.status_code == 200
    (record,) = answer.json()["predictions"]
    expected = model.predict(png(world.test, 0))[0].to_json()
    assert {key: record[key] for key in ("class", "verdict", "p_value", "nearest")} == {
        key: expected[key] for key in ("class", "verdict", "p_value", "nearest")
    }
    assert 0 < record["online_p_value"] <= 1


def test_several_images_and_a_bad_one_among_them(address: str, model: Model, world: World) -> None:
    parts = [("files", (f"{i}.png", png(world.test, i), "image/png")) for i in range(3)]
    parts.append(("files", ("bad.png", b"nothing", "image/png")))
    answer = httpx.post(f"{address}/v1/predict", files=parts)
    records = answer.json()["predictions"]
    assert answer.status_code == 200
    assert [record["name"] for record in records] == ["0.png", "1.png", "2.png", "bad.png"]
    assert [record["class"] for record in records[:3]] == [
        p.class_name for p in model.predict([png(world.test, i) for i in range(3)])
    ]
    assert "Expected an image" in records[3]["error"]


@pytest.mark.parametrize(
    ("data", "kind", "status"),
    [
        (b"nothing", "image/png", 422),
        (b"", "image/png", 400),
        (b"{}", "application/json", 415),
        (b'{"images": [{"data": "%"}]}', "application/json", 400),
        (b'{"images": [' + 400 * b"[]," + b"[]]}", "application/json", 413),
        (b"--x\r\nbroken", "multipart/form-data; boundary=x", 400),
        (b"abc", "multipart/form-data", 400),
    ],
)
def test_what_is_no_image_gets_a_status_and_a_sentence(address: str, data: bytes, kind: str, status: int) -> None:
    answer = post(address, data, kind)
    assert answer.status_code == status
    assert "Traceback" not in answer.text
    kinds = ("image/*", "image/png", "multipart/form-data", "application/octet-stream", "application/json")
    told = answer.json().get("error", "")
    for known in kinds:
        told = told.replace(known, "")
    assert "/" not in told


def test_careless_clients_are_told_what_to_send(address: str, world: World) -> None:
    data, url = png(world.test, 0), f"{address}/v1/predict"
    answer = post(address, data, "application/x-www-form-urlencoded")  # what curl --data-binary says
    assert answer.status_code == 415
    assert "'application/x-www-form-urlencoded'" in answer.json()["error"]
    assert "-F f=@photo.png" in answer.json()["error"]
    field = b'--x\r\nContent-Disposition: form-data; name="f"\r\n\r\n/tmp/photo.png\r\n--x--\r\n'  # curl -F f=photo.png
    answer = post(address, field, "multipart/form-data; boundary=x")
    assert answer.status_code == 400
    assert "with the @" in answer.json()["error"]
    for name in ("explain", "watch"):
        answer = httpx.post(f"{url}?{name}=yes", content=data, headers={"content-type": "image/png"})
        assert answer.status_code == 400
        assert answer.json() == {"error": f"Expected ?{name}=0 or ?{name}=1 but got 'yes'."}
    assert httpx.post(f"{url}/", content=data, headers={"content-type": "image/png"}).status_code == 404


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz"])
def test_monitors_may_ask_without_a_body(address: str, path: str) -> None:
    answer, whole = httpx.head(f"{address}{path}"), httpx.get(f"{address}{path}")
    assert answer.status_code == 200
    assert answer.content == b""
    assert answer.headers["content-length"] == whole.headers["content-length"]


def test_the_model_is_described(address: str, model: Model) -> None:
    about = httpx.get(f"{address}/v1/model").json()
    assert about["classes"] == list(model.classes)
    assert about["threshold"] == model.calibration.threshold()
    assert sum(about["calibration"]["histogram"]["counts"]) == len(model.calibration.scores)
    assert httpx.get(f"{address}/healthz").json() == {"status": "ok"}
    assert httpx.get(f"{address}/nothing").status_code == 404
    assert httpx.get(f"{address}/v1/predict").status_code == 405


def test_the_histogram_is_of_what_the_verdict_depends_on(model: Model, world: World) -> None:
    """Of cosines where the score is that; else of scores, among which the p-value is computed."""
    two = Model.calibrated(world.trained, world.calibration, used=[world.train], detector="two-cosines")
    assert two.calibration.cosine is not None
    for each, of, values in ((model, "cosine", -model.calibration.scores), (two, "score", two.calibration.scores)):
        shown = describe_model(each, Limits())["calibration"]["histogram"]
        assert shown["of"] == of
        assert (shown["edges"][0], shown["edges"][-1]) == pytest.approx((values.min(), values.max()))


def test_each_class_is_described_where_verdicts_are_per_class(address: str, model: Model) -> None:
    about = httpx.get(f"{address}/v1/model").json()
    assert about["class_thresholds"] is about["calibration"]["class_flag_rates"] is None
    assert about["calibration"]["flag_rate"] == asdict(model.calibration.flag_rate())

    calibration = replace(model.calibration, per_class=True, alpha=0.04)  # for some classes there are too few images
    about = describe_model(replace(model, calibration=calibration), Limits())
    assert about["threshold"] is about["calibration"]["flag_rate"] is None
    assert about["class_thresholds"] == calibration.class_thresholds()
    rates = about["calibration"]["class_flag_rates"]
    for enough, count, rate in zip(calibration.enough(), calibration.class_counts(), rates, strict=True):
        assert rate == (asdict(flag_rate(count, 0.04)) if enough else None)
    assert 0 < rates.count(None) == len(about["classes_without_verdict"]) < 10


def test_metrics_count(address: str, world: World) -> None:
    def value(name: str) -> float:
        text = httpx.get(f"{address}/metrics").text
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))

    before = value("offaxis_verdicts_total"), value("offaxis_p_value_count"), value("offaxis_bad_images_total")
    post(address, png(world.test, 1))
    post(address, b"bad")
    after = value("offaxis_verdicts_total"), value("offaxis_p_value_count"), value("offaxis_bad_images_total")
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1, 1]
    text = httpx.get(f"{address}/metrics").text
    assert 'offaxis_requests_total{route="/v1/predict",status="200"}' in text
    assert "offaxis_request_seconds_bucket" in text
    assert 'offaxis_drift_alarm{model="model"} 0.0' in text
    assert 'offaxis_model_info{bundle="",calibrated="' in text
    assert abs(value("offaxis_model_start_time_seconds") - time.time()) < 3600
    for series in (
        *(f'verdicts_total{{model="model",verdict="{verdict.value}"}}' for verdict in Verdict),
        'reloads_total{model="model",result="refused"}',
        'reloads_total{model="model",result="unchanged"}',
    ):
        assert f"offaxis_{series} " in text  # before the first, so that Prometheus sees it as an increase
    if sys.platform == "linux":
        assert value("process_resident_memory_bytes") > 2**20


def test_the_metrics_that_the_docs_name_exist(address: str) -> None:
    docs = Path(__file__).parents[2] / "docs" / "serve.md"
    part = docs.read_text().partition("## Metrics and alerts")[2].partition("\n## ")[0]
    named = set(re.findall(r"\b(?:offaxis|process)_[a-z0-9_]+", part))
    text = httpx.get(f"{address}/metrics").text
    served = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    assert {"offaxis_drift_warnings_total", "offaxis_request_seconds_bucket"} <= named
    unknown = {name for name in named if name not in served and name.removesuffix("_bucket") not in served}
    assert not {name for name in unknown if sys.platform == "linux" or not name.startswith("process_")}


def test_drift_is_detected_and_reset(model: Model, world: World) -> None:
    ood_images = match(load_images("letters", count=200), world.test.shape)
    with running(model) as (address, _):
        for start in range(0, 60, 20):
            httpx.post(
                f"{address}/v1/predict",
                files=[("f", (f"{i}.png", png(world.test, i))) for i in range(start, start + 20)],
            )
        quiet = httpx.get(f"{address}/v1/drift").json()
        assert quiet["images"] == 60
        assert not quiet["alarm"]
        for start in range(0, 200, 20):
            httpx.post(
                f"{address}/v1/predict",
                files=[("f", (f"{i}.png", png(ood_images, i))) for i in range(start, start + 20)],
            )
        loud = httpx.get(f"{address}/v1/drift").json()
        assert loud["alarm"]
        assert loud["warnings"] > 0
        counted = httpx.get(f"{address}/metrics").text
        assert 'offaxis_drift_alarm{model="model"} 1.0' in counted
        assert 'offaxis_drift_images{model="model"} 260.0' in counted
        assert f'offaxis_drift_warnings_total{{model="model"}} {loud["warnings"]:.1f}' in counted
        assert 60 < loud["alarmed_at"] <= 260
        assert loud["trace"][-1][0] == 260
        assert httpx.post(f"{address}/v1/drift/reset").json()["images"] == 0
        counted = httpx.get(f"{address}/metrics").text
        assert 'offaxis_drift_alarm{model="model"} 0.0' in counted
        assert 'offaxis_drift_images{model="model"} 0.0' in counted
        assert (
            f'offaxis_drift_warnings_total{{model="model"}} {loud["warnings"]:.1f}' in counted
        )  # a counter never falls


def test_a_token_is_asked_for(model: Model, world: World) -> None:
    with running(model, token="secret") as (address, _):
        for path in ("/v1/model", "/v1/drift", "/metrics"):
            assert httpx.get(f"{address}{path}").status_code == 401
            assert httpx.get(f"{address}{path}", headers={"Authorization": "Bearer secret"}).status_code == 200
        assert post(address, png(world.test, 0)).status_code == 401
        answer = httpx.get(f"{address}/v1/model", headers={"Authorization": "wrong"})
        assert answer.status_code == 401
        assert "Authorization: Bearer TOKEN" in answer.json()["error"]
        assert httpx.get(f"{address}/v1/model", headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert httpx.get(f"{address}/healthz").status_code == 200
        assert httpx.get(f"{address}/").status_code == 200


def huge_png(side: int) -> bytes:
    """A small file that says it is a very large image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def test_limits_on_bytes_pixels_and_count(model: Model, world: World) -> None:
    limits = Limits(body_bytes=20_000, images=4, pixels=1_000_000)
    with running(model, limits) as (address, _):
        assert post(address, bytes(20_001)).status_code == 413
        answer = post(address, huge_png(5000))
        assert answer.status_code == 422
        assert "pixels" in answer.json()["predictions"][0]["error"]
        many = [("f", (f"{i}.png", png(world.test, i))) for i in range(5)]
        assert httpx.post(f"{address}/v1/predict", files=many).status_code == 413

        def endless() -> Iterator[bytes]:
            for _ in range(30):
                yield bytes(1000)

        # no content-length: the limit holds as the body comes; the connection may close while the rest is being sent
        with suppress(httpx.TransportError):
            assert httpx.post(f"{address}/v1/predict", content=endless()).status_code == 413
        assert post(address, png(world.test, 0)).status_code == 200


def test_limits_that_contradict_each_other_are_refused(bundle: Path) -> None:
    result = CliRunner().invoke(app, ["serve", str(bundle), "--queue", "16", "--engine", "torch"])
    assert isinstance(result.exception, ArgumentError)
    assert "32 images may come in a request and only 16 may wait" in str(result.exception)


def test_bodies_of_every_size_that_is_allowed_have_room(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[Limits] = []

    def made(model: Model, options: ServeOptions, **given: Any) -> Server:
        limits.append(Limits.of(options))
        return make_server(model, options, **given)

    monkeypatch.setattr("offaxis.cli.serve.make_server", made)
    monkeypatch.setattr("offaxis.cli.serve.serve", lambda *_: None)
    for megabytes in ("16", "300"):
        assert (
            CliRunner().invoke(app, ["serve", str(bundle), "--engine", "torch", "--max-body", megabytes]).exit_code == 0
        )
    assert [each.bodies_bytes // 2**20 for each in limits] == [256, 300]


def test_requests_are_batched_and_what_has_no_room_waits(model: Model, world: World) -> None:
    """A slow network: images that arrive meanwhile go through it together; a large request waits, a small one need not."""
    sizes: list[int] = []
    entered, gate = threading.Event(), threading.Event()

    def slowly(pixels: Tensor) -> list[Prediction]:
        sizes.append(len(pixels))
        entered.set()
        gate.wait(10)
        return model.predict(pixels)

    def several(count: int) -> httpx.Response:
        files = [("f", (f"{number}.png", png(world.test, number))) for number in range(count)]
        return httpx.post(f"{address}/v1/predict", files=files, timeout=30)

    limits = Limits(images=8, queue=8, batch=8)
    with running(altered(model, slowly), limits) as (address, server), ThreadPoolExecutor(12) as pool:
        room = server.service.room
        first = pool.submit(post, address, png(world.test, 0))
        assert entered.wait(10)
        waiting = [pool.submit(post, address, png(world.test, number)) for number in range(6)]
        assert eventually(lambda: "offaxis_queue_images 7.0" in httpx.get(f"{address}/metrics").text)
        waiting += [pool.submit(several, 8), pool.submit(several, 5)]
        assert eventually(lambda: len(room._waiting) == 2)
        waiting.append(pool.submit(several, 3))  # of the share of small requests
        assert eventually(lambda: room.taken == 10)
        gate.set()
        assert [future.result().status_code for future in (first, *waiting)] == [200] * 10
        assert sizes[:3] == [1, 8, 1]
        assert room.taken == 0


def test_a_request_that_finds_no_room_in_time_gets_a_503(model: Model, world: World) -> None:
    gate = threading.Event()

    def slowly(pixels: Tensor) -> list[Prediction]:
        gate.wait(10)
        return model.predict(pixels)

    limits = Limits(images=1, queue=1, seconds_to_answer=0.5)
    with running(altered(model, slowly), limits) as (address, server), ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(post, address, png(world.test, number)) for number in range(2)]
        answers = [each.result() for each in asked]
        assert [(each.status_code, each.headers["retry-after"]) for each in answers] == [(503, "1")] * 2
        gate.set()
        assert eventually(lambda: server.service.room.taken == 0)
        assert post(address, png(world.test, 0)).status_code == 200


def test_a_network_that_fails_tells_no_details(model: Model, world: World, caplog: pytest.LogCaptureFixture) -> None:
    def fail(pixels: Tensor) -> list[Prediction]:
        raise RuntimeError("secret at /home/user")

    assert logging.getLogger("offaxis").propagate  # no test before has left the log of a service behind
    with running(altered(model, fail)) as (address, _):
        answer = post(address, png(world.test, 0))
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert "user" not in answer.text
        assert "secret at /home/user" in caplog.text  # the log has it


def overflowing(network: AnyNetwork) -> AnyNetwork:
    """The network with a scale that no float can hold."""
    changed = deepcopy(network)
    changed.head.scale.norm.bias.data.fill_(1000.0)
    return changed


def test_a_scale_that_overflows_leaves_the_class_to_the_cosine(model: Model, world: World) -> None:
    broken = replace(model, network=overflowing(model.network))
    expected = model.predict(world.test.batch(torch.arange(8)))
    for prediction, before in zip(broken.predict(world.test.batch(torch.arange(8))), expected, strict=True):
        assert prediction == replace(before, probability=1.0)
    with running(broken) as (address, _):
        answer = post(address, png(world.test, 0))
        assert answer.status_code == 200
        assert answer.json()["predictions"][0]["class"] == expected[0].class_name


def test_an_image_without_finite_outputs_does_not_affect_the_others(model: Model, world: World) -> None:
    """A detector that reads the logits, and one image among others for which they are not finite."""
    white = torch.full((1, *world.test.shape), 255, dtype=torch.uint8)
    by_energy = Model.calibrated(
        model.network, world.calibration, detector=Energy(), preprocessing=model.preprocessing, classes=model.classes
    )

    broken = deepcopy(by_energy.network)
    next(broken.parameters()).data.fill_(torch.nan)
    not_finite = replace(by_energy, network=broken)

    def sometimes(pixels: Tensor) -> list[Prediction]:
        has_white = bool((pixels == white).flatten(1).all(1).any())
        return (not_finite if has_white else by_energy).predict(pixels)

    files = [("f", (f"{i}.png", png(world.test, i))) for i in range(4)]
    files.insert(2, ("f", ("white.png", png(TensorSet("white", white), 0))))
    with running(altered(by_energy, sometimes)) as (address, _):
        answer = httpx.post(f"{address}/v1/predict", files=files)
        assert answer.status_code == 200
        records = answer.json()["predictions"]
        assert "no finite numbers" in records.pop(2)["error"]
        expected = by_energy.predict(world.test.batch(torch.arange(4)))
        assert [record["class"] for record in records] == [p.class_name for p in expected]
        assert httpx.get(f"{address}/v1/drift").json()["images"] == 4


def test_slow_and_vanishing_clients_do_not_delay_others(model: Model, world: World) -> None:
    limits = replace(Limits(), seconds_to_send=1.0, connections=60)
    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 5000\r\n\r\n"
    with running(model, limits) as (address, _):
        port = int(address.rsplit(":", 1)[1])
        slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
        for number, connection in enumerate(slow):
            connection.sendall(head + b"abc" if number % 2 else head[:20])  # a body, or a head, that does not come
            if number % 8 == 7:
                connection.close()  # gone in the middle
        with httpx.Client(timeout=30) as client:  # one: to make it takes longer than a request
            began = time.monotonic()
            for number in range(10):
                assert client.post(f"{address}/v1/predict", content=png(world.test, number)).status_code == 200
            assert time.monotonic() - began < 5
        answers = []
        for connection in slow:
            if connection.fileno() >= 0:
                connection.settimeout(5)
                answers.append(connection.recv(1000))  # refused or closed after a second: none is left hanging
                connection.close()
        assert {answer[:12] for answer in answers} <= {b"", b"HTTP/1.1 408"}
        assert b"HTTP/1.1 408" in {answer[:12] for answer in answers}


def is_up(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_a_port_in_use_is_a_server_error(model: Model, bundle: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ServerError, match=f"cannot listen on port {port} .* Choose another with --port") as error:
            serve(make_server(model, ServeOptions(port=port)))
        assert isinstance(error.value, OSError)
        command = [sys.executable, "-m", "offaxis", "serve", str(bundle), "--engine", "torch", "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"cannot listen on port {port}" in " ".join(done.stderr.split())


def test_sigterm_finishes_open_requests(bundle: Path, world: World) -> None:
    """A real process: a request whose body is half sent when the signal comes is answered, then the process ends."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "offaxis", "serve", str(bundle), "--engine", "torch", "--port", str(port)],
        stderr=subprocess.PIPE,
    )
    try:
        assert eventually(lambda: is_up(port), 200)
        data = png(world.test, 0)
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            head = (
                "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
                f"Content-Length: {len(data)}\r\nExpect: 100-continue\r\n\r\n"
            )
            connection.sendall(head.encode())
            assert connection.recv(1000).startswith(b"HTTP/1.1 100")  # the service reads the body now
            connection.sendall(data[:10])
            os.kill(process.pid, signal.SIGTERM)
            assert eventually(lambda: not is_up(port), 10)  # no new connection is accepted, after a while
            assert process.poll() is None
            connection.sendall(data[10:])
            answer = b""
            while part := connection.recv(65536):
                answer += part
        assert answer.startswith(b"HTTP/1.1 200")
        assert json.loads(re.split(rb"\r\n\r\n", answer, maxsplit=1)[1])["predictions"][0]["verdict"]
        process.wait(10)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode in (0, -signal.SIGTERM)
