"""What a small request can cost, whose requests are answered, and what every response says."""

import io
import logging
import resource
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import Tensor

pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
import httpx
from typer.testing import CliRunner

from offaxis import Model, Prediction
from offaxis.cli import app
from offaxis.data.decode import decode
from offaxis.errors import ArgumentError
from offaxis.serve.app import TokenFile
from offaxis.serve.queue import Limits
from offaxis.serve.server import MAX_PIPELINED, within_file_limit
from tests.models import World
from tests.serve.serving import altered, png, running
from tests.waiting import eventually, free_port


def large_png(side: int) -> bytes:
    """A small file of a large image with 16 bits a pixel."""
    out = io.BytesIO()
    Image.fromarray(np.full((side, side), 40_000, np.uint16)).save(out, "PNG")
    return out.getvalue()


def connect(address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1])), timeout=10)


def several(data: bytes, count: int) -> list[tuple[str, tuple[str, bytes, str]]]:
    return [("f", (f"{number}.png", data, "image/png")) for number in range(count)]


def test_a_request_with_too_many_pixels_is_refused_before_they_are_decoded(model: Model) -> None:
    with running(model, Limits(pixels=4_000_000, request_pixels=10_000_000)) as (address, _):
        data = large_png(1999)
        began = time.monotonic()
        refused = httpx.post(f"{address}/v1/predict", files=several(data, 32), timeout=30)
        assert refused.status_code == 413
        assert "10,000,000 pixels together" in refused.json()["error"]
        assert time.monotonic() - began < 2  # 32 of them take more
        assert httpx.post(f"{address}/v1/predict", files=several(data, 2), timeout=30).status_code == 200


def test_jpegs_of_thousands_of_scans_keep_nobody_waiting(model: Model) -> None:
    out = io.BytesIO()
    Image.new("RGB", (4000, 4000)).save(out, "JPEG", progressive=True)
    whole = out.getvalue()
    slow = whole[:-2] + whole[whole.rindex(b"\xff\xda") : -2] * 20_000 + b"\xff\xd9"
    with running(model) as (address, _):
        began = time.monotonic()
        refused = httpx.post(f"{address}/v1/predict", files=several(slow, 8), timeout=30)
        assert refused.status_code == 422
        assert "more than 100 scans" in refused.text
        assert httpx.post(f"{address}/v1/predict", files=several(large_png(99), 1), timeout=30).status_code == 200
        assert time.monotonic() - began < 5  # each of them takes minutes


def test_requests_of_many_pixels_shut_no_photograph_out(model: Model) -> None:
    """Eight at once as large as allowed, in images and in pixels: photographs between them are answered, and soon."""
    photograph = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (600, 800, 3), np.uint8)).save(photograph, "JPEG")
    limits = Limits(pixels=1_000_000, request_pixels=8_000_000, queue=64)
    with running(model, limits) as (address, server), ThreadPoolExecutor(8) as pool:
        body = several(large_png(999), 8)
        large = [
            pool.submit(httpx.post, f"{address}/v1/predict", files=body * (1 + number % 2), timeout=60)
            for number in range(12)
        ]
        assert eventually(lambda: server.service.decoder.images >= 56, 20)
        while server.service.decoder.images >= 24:
            began = time.monotonic()
            answer = httpx.post(f"{address}/v1/predict", content=photograph.getvalue(), timeout=30)
            assert answer.status_code == 200
            assert time.monotonic() - began < 5
        assert {each.result().status_code for each in large} == {200, 413}


def test_a_small_request_does_not_wait_for_large_ones(model: Model, world: World) -> None:
    """Four requests of large images, then a small one: it is answered long before they are."""
    with running(model) as (address, _), ThreadPoolExecutor(4) as pool:
        body = several(large_png(1500), 8)
        ends: list[float] = []

        def send(_: int) -> int:
            status = httpx.post(f"{address}/v1/predict", files=body, timeout=60).status_code
            ends.append(time.monotonic())
            return status

        large = [pool.submit(send, number) for number in range(4)]
        assert eventually(lambda: gauge(address, "offaxis_decoding_images") == 32, 20)
        for number in range(3):
            assert httpx.post(f"{address}/v1/predict", content=png(world.test, number), timeout=30).status_code == 200
        answered = time.monotonic()
        assert [future.result() for future in large] == [200] * 4
        assert sum(end > answered for end in ends) >= 3


def gauge(address: str, name: str) -> float:
    text = httpx.get(f"{address}/metrics").text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(name))


def test_a_deadline_cancels_what_still_waits(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of a request that is too late are not decoded any more."""
    decoded: list[int] = []
    gate = threading.Event()

    def slowly(image: Image.Image) -> Image.Image:
        decoded.append(1)
        gate.wait(10)
        return image

    monkeypatch.setattr("offaxis.serve.queue.decode_opened", slowly)
    with running(model, Limits(seconds_to_answer=0.3)) as (address, _):
        late = httpx.post(f"{address}/v1/predict", files=several(large_png(600), 20), timeout=30)
        assert late.status_code == 503
        begun = len(decoded)
        gate.set()
        assert eventually(lambda: gauge(address, "offaxis_decoding_images") == 0)
        time.sleep(0.2)  # no condition to wait for: nothing more must happen
        assert len(decoded) == begun <= 4


def test_images_with_16_bits_are_not_copied_to_64() -> None:
    """The arrays on the way take fewer than 8 bytes a pixel together."""
    data = large_png(1000)
    decode(data)
    tracemalloc.start()
    try:
        decode(data)
        assert tracemalloc.get_traced_memory()[1] < 8 * 1000**2
    finally:
        tracemalloc.stop()


def test_only_names_of_this_machine_are_answered_without_a_token(model: Model, world: World) -> None:
    with running(model) as (address, _):
        port = address.rsplit(":", 1)[1]
        for host in (
            "rebound.example",
            f"rebound.example:{port}",
            "localhost.rebound.example",
            "10.0.0.1",
            "[::2]",
            "x",
        ):
            for path in ("/", "/v1/model", "/v1/drift", "/metrics", "/openapi.json", "/readyz"):
                refused = httpx.get(f"{address}{path}", headers={"Host": host})
                assert refused.status_code == 421
                assert "--allowed-host" in refused.json()["error"]
            assert httpx.post(f"{address}/v1/drift/reset", headers={"Host": host}).status_code == 421
            assert httpx.get(f"{address}/healthz", headers={"Host": host}).status_code == 200
        for host in ("localhost", f"LOCALHOST.:{port}", "127.0.0.1", "127.0.0.2:1", "[::1]", f"[::1]:{port}"):
            assert httpx.get(f"{address}/v1/model", headers={"Host": host}).status_code == 200


def test_names_that_the_operator_allows_are_answered(model: Model) -> None:
    with running(model, allowed_host=("Images.example",)) as (address, _):
        for host, status in (("images.example:8000", 200), ("localhost", 200), ("other.example", 421)):
            assert httpx.get(f"{address}/v1/model", headers={"Host": host}).status_code == status
    with running(model, allowed_host=("*",)) as (address, _):
        assert httpx.get(f"{address}/v1/model", headers={"Host": "other.example"}).status_code == 200
    with running(model, token="secret") as (address, _):  # which no page of another site knows
        headers = {"Host": "other.example", "Authorization": "Bearer secret"}
        assert httpx.get(f"{address}/v1/model", headers=headers).status_code == 200


def test_the_word_bearer_is_read_in_any_case(model: Model) -> None:
    with running(model, token="Secret") as (address, _):
        for header, status in (
            ("bearer Secret", 200),
            ("BEARER Secret", 200),
            ("Bearer  Secret", 200),
            ("Bearer secret", 401),
            ("Basic Secret", 401),
            ("Secret", 401),
            ("bearer", 401),
        ):
            assert httpx.get(f"{address}/v1/model", headers={"Authorization": header}).status_code == status


@pytest.mark.parametrize("token", ["", "  "])
def test_an_empty_token_is_refused(bundle: Path, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("OFFAXIS_TOKEN", token)
    monkeypatch.setattr("offaxis.cli.serve.serve", lambda _: None)
    result = CliRunner().invoke(app, ["serve", str(bundle)])
    assert isinstance(result.exception, ArgumentError)
    assert "Expected a token in OFFAXIS_TOKEN but it is empty" in str(result.exception)


def test_the_token_file_is_read_again_where_it_has_changed(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The old token beside the new one, then the new one alone; what is no token changes nothing."""
    monkeypatch.setattr(TokenFile, "SECONDS", 0.0)
    path = tmp_path / "token"

    def statuses(content: str | None) -> list[int]:
        if content is None:
            path.unlink()
        else:
            path.write_text(content)
        headers = [{"Authorization": f"Bearer {token}"} for token in ("old", "new", "old\tnew", "other")]
        return [httpx.get(f"{address}/v1/model", headers=header).status_code for header in headers]

    path.write_text("old\n")
    with running(model, token=TokenFile(path)) as (address, _):
        assert statuses("old\n") == [200, 401, 401, 401]
        assert statuses("old\n\n  new \n") == [200, 200, 401, 401]
        assert statuses("new\n") == [401, 200, 401, 401]
        with caplog.at_level(logging.ERROR, "offaxis.serve"):
            for nothing in ("\n", None):
                caplog.clear()
                assert statuses(nothing) == [401, 200, 401, 401]
                assert [record.getMessage().endswith("the old tokens stay") for record in caplog.records] == [True]
        assert statuses("old") == [200, 401, 401, 401]


def test_a_token_file_without_a_token_is_refused(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text(" \n")
    for name, reason in (("empty", "it is empty"), ("absent", "cannot be read")):
        result = CliRunner().invoke(app, ["serve", str(bundle), "--token-file", str(tmp_path / name)])
        assert isinstance(result.exception, ArgumentError)
        assert reason in str(result.exception)


def test_every_response_says_that_it_is_neither_guessed_nor_kept(model: Model, world: World) -> None:
    with running(model) as (address, _):
        answers = [httpx.get(f"{address}{path}") for path in ("/", "/v1/model", "/v1/drift", "/metrics", "/none")]
        answers.append(httpx.post(f"{address}/v1/predict", content=png(world.test, 0)))
        answers.append(httpx.post(f"{address}/v1/predict", content=b"nothing"))
        answers.append(httpx.get(f"{address}/healthz", headers={"Host": "x"}))
        for answer in answers:
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"
            assert len(answer.headers.get_list("cache-control")) == 1


def test_a_wrong_method_gets_a_sentence(model: Model) -> None:
    with running(model) as (address, _):
        answer = httpx.get(f"{address}/v1/predict")
        assert answer.status_code == 405
        assert answer.headers["allow"] == "POST"
        assert answer.json() == {"error": "Expected the method POST for this path."}


def test_the_model_is_described_without_a_pause(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The description, which imports scipy, is made before the first request, not by it."""
    with running(model) as (address, _):
        monkeypatch.setattr("offaxis.serve.service.describe_model", None)
        assert httpx.get(f"{address}/v1/model").json()["classes"] == list(model.classes)


def test_connections_fit_into_the_files_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (60, 60))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    assert within_file_limit(Limits()).connections == 30
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (60, 100_000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: raised.append(pair))
    assert within_file_limit(Limits()).connections == 1000
    assert raised == [(2100, 100_000)]


def test_more_connections_than_files_leave_a_short_log(bundle: Path, tmp_path: Path) -> None:
    """A real process that may open 40 files, and 80 idle connections, in the event loop of Python: uvloop logs nothing."""
    port = free_port()
    program = "import sys; sys.modules['uvloop'] = None; from offaxis.__main__ import start; start()"
    command = [sys.executable, "-c", program, "serve", str(bundle), "--engine", "torch", "--port", str(port)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stderr=log, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        )
    clients: list[socket.socket] = []
    try:
        assert eventually(lambda: is_up(port), 200)
        clients = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(80)]
        time.sleep(1.5)  # the server would try again every second
        for client in clients:
            client.close()
        assert eventually(lambda: is_up(port), 15)
    finally:
        process.terminate()
        process.wait(20)
    text = (tmp_path / "log").read_text()
    assert "Traceback" not in text
    assert len(text) < 2000


def is_up(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_answers_after_sigterm_close_the_connection(model: Model, world: World) -> None:
    data = png(world.test, 0)
    head = f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: {len(data)}\r\n\r\n"
    with running(model) as (address, server), connect(address) as client:
        client.sendall(head.encode() + data)
        first = b""
        while not first.endswith(b"}]}"):
            first += client.recv(65536)
        assert first.startswith(b"HTTP/1.1 200")
        assert b"connection: close" not in first.lower()
        client.sendall(head.encode() + data[:10])
        assert eventually(lambda: any(not c._idle() for c in server.server_state.connections))  # type: ignore[union-attr]
        server.should_exit = True  # what SIGTERM sets
        client.sendall(data[10:])
        answer = b""
        while part := client.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answer.lower()


def test_a_request_that_crosses_the_shutdown_is_answered(
    model: Model, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent on a connection without a request after the service has stopped listening."""
    monkeypatch.setattr("offaxis.serve.server.SECONDS_TO_DRAIN", 1.0)
    data = png(world.test, 0)
    head = f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: {len(data)}\r\n\r\n"
    with running(model) as (address, server), connect(address) as client:
        server.should_exit = True  # what SIGTERM sets

        def refused() -> bool:
            try:
                connect(address).close()
            except ConnectionRefusedError:
                return True
            return False

        assert eventually(refused)
        client.sendall(head.encode() + data)
        answer = b""
        while part := client.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answer.lower()


@pytest.fixture
def process(bundle: Path, tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes], Path]]:
    """(address, process, log) of a service as users start it, on uvloop where that is installed."""
    port, log = free_port(), tmp_path / "log"
    command = [sys.executable, "-m", "offaxis", "serve", str(bundle), "--engine", "torch", "--port", str(port)]
    with log.open("wb") as out:
        started = subprocess.Popen(command, stderr=out)
    try:
        assert eventually(lambda: is_up(port), 200)
        yield f"http://127.0.0.1:{port}", started, log
    finally:
        started.terminate()
        started.wait(30)


def test_no_request_is_reset_by_sigterm_and_none_fills_the_log(
    process: tuple[str, subprocess.Popen[bytes], Path], world: World
) -> None:
    """Clients that leave with 60 requests open; then clients that connect until they are refused, each whole or not at all."""
    address, service, log = process
    data = png(world.test, 0)
    head = f"POST /v1/predict?watch=0 HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n".encode()
    for _ in range(20):
        with connect(address) as client:
            client.sendall(60 * (head + b"\r\n" + data) + b"no HTTP\r\n\r\n")
    found: list[bytes] = []
    stopped = threading.Event()

    def ask() -> None:
        while not stopped.is_set():
            try:
                client = connect(address)
            except ConnectionRefusedError:
                return
            with client:
                try:
                    client.sendall(head + b"Connection: close\r\n\r\n" + data)
                    found.append(client.recv(65536)[:12])
                except OSError as error:
                    found.append(repr(error).encode())

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    assert eventually(lambda: len(found) > 50, 20)
    service.terminate()
    service.wait(30)
    stopped.set()
    for thread in threads:
        thread.join()
    others = [each for each in found if each != b"HTTP/1.1 200"]
    assert len(others) <= 1, others  # who connects in the microseconds between the last look and the end
    assert len(log.read_text().splitlines()) == 1


def test_a_long_head_is_refused_however_it_arrives(model: Model) -> None:
    """In one read the parser has it whole before anybody counts."""
    with running(model) as (address, _):
        for length, status in ((60_000, b"200"), (70_000, b"400"), (200_000, b"400")):
            with connect(address) as client:
                client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + length * b"a" + b"\r\n\r\n")
                assert client.recv(12) == b"HTTP/1.1 " + status


def test_a_head_without_end_is_refused(model: Model) -> None:
    with running(model) as (address, _):
        for start in (
            b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ",
            b"GET /",
            b"GET / HTTP/1.1\r\n" + 9000 * b"A: b\r\n",
        ):
            with connect(address) as client:
                assert _sent_until_closed(client, start) < 2**20


def test_trailers_without_end_are_refused(model: Model) -> None:
    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: "
    with running(model) as (address, _), connect(address) as client:
        assert _sent_until_closed(client, head) < 2**20


def test_bytes_of_all_requests_in_memory_are_limited(model: Model) -> None:
    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 1000\r\n\r\n"
    with running(model, Limits(body_bytes=1000, bodies_bytes=1400)) as (address, server):
        http = server.config.app
        with connect(address) as waiting:
            waiting.sendall(head + bytes(900))
            assert eventually(lambda: http.held == 900)
            full = httpx.post(f"{address}/v1/predict", content=bytes(900))
            assert full.status_code == 503
            assert full.headers["retry-after"] == "1"
        assert eventually(lambda: http.held == 0)  # of clients that have gone nothing is kept
        assert httpx.post(f"{address}/v1/predict", content=bytes(900)).status_code == 422


def test_connections_beyond_the_limit_are_closed(model: Model) -> None:
    with running(model, Limits(connections=3)) as (address, server), ExitStack() as stack:
        held = [stack.enter_context(connect(address)) for _ in range(3)]
        assert eventually(lambda: len(server.server_state.connections) == 3)
        assert _is_closed(stack.enter_context(connect(address)))
        held[0].close()
        assert eventually(lambda: len(server.server_state.connections) == 2)
        assert httpx.get(f"{address}/healthz").status_code == 200


def test_requests_that_do_not_wait_for_responses_are_limited(model: Model, world: World) -> None:
    gate = threading.Event()

    def slowly(pixels: Tensor) -> list[Prediction]:
        assert gate.wait(20)
        return model.predict_batch(pixels)

    image = png(world.test, 0)
    head = f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(image)}\r\n\r\n".encode()
    check = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with running(altered(model, slowly)) as (address, _):
        with connect(address) as client:
            client.sendall(head + image + (MAX_PIPELINED + 1) * check)
            assert _is_closed(client)
        with connect(address) as client:
            client.sendall(head + image + MAX_PIPELINED * check)
            gate.set()
            read = b""
            while read.count(b'{"status":"ok"}') < MAX_PIPELINED:
                part = client.recv(65536)
                assert part, "closed before all responses were there"
                read += part
        assert read.count(b"HTTP/1.1 200") == MAX_PIPELINED + 1


def _is_closed(client: socket.socket) -> bool:
    """Whether the service closes a connection without a response."""
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def _sent_until_closed(client: socket.socket, start: bytes) -> int:
    """Send a start and then one letter for ever; how many bytes the service took before it closed the connection."""
    sent = 0
    client.settimeout(5)
    try:
        client.sendall(start)
        while sent < 2**24:
            client.sendall(16384 * b"a")
            sent += 16384
            time.sleep(0.002)
    except (ConnectionError, TimeoutError):
        return sent
    return sent


@pytest.mark.parametrize("allowed", ["images.example:8443", "[fd00::1]:8443", "[fd00::1]", "fd00::1"])
def test_a_name_may_be_allowed_with_its_port_or_brackets(model: Model, allowed: str) -> None:
    host = "images.example" if "example" in allowed else "[fd00::1]"
    with running(model, allowed_host=(allowed,)) as (address, _):
        for header, status in ((host, 200), (f"{host}:8443", 200), ("other.example", 421)):
            assert httpx.get(f"{address}/v1/model", headers={"Host": header}).status_code == status
