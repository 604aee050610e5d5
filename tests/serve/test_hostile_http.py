"""Random HTTP against the service, in a child process with a memory limit; and every route as its schema describes it."""

import random
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
import httpx

import offaxis
from offaxis import Model
from offaxis.serve.queue import Limits
from tests.embeddings import draw
from tests.hostile.child import LONG, PATIENCE, SEEDS, in_child, seed_of, times
from tests.hostile.damage import damaged, picture
from tests.serve.serving import running
from tests.waiting import eventually

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(LONG * PATIENCE)]
FIRST = (
    b"POST /v1/predict HTTP/1.1",
    b"POST /v1/predict?explain=1 HTTP/1.1",
    b"GET /v1/predict HTTP/1.1",
    b"GET /v1/model HTTP/1.1",
    b"POST /v1/drift/reset HTTP/1.0",
    b"DELETE /%00 HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"GET http://localhost/metrics HTTP/1.1",
    b"PRI * HTTP/2.0",
    b"POST /v1/predict HTTP/9.9",
)
HEADERS = (
    b"Host: localhost",
    b"Host: localhost\r\nHost: elsewhere",
    b"Content-Length: 5",
    b"Content-Length: -1",
    b"Content-Length: 99999999999999999999",
    b"Content-Length: 5\r\nContent-Length: 6",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Expect: 100-continue",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    b"Content-Type: multipart/form-data; boundary=x",
    b'Content-Type: multipart/form-data; boundary="x',
    b"Content-Type: multipart/form-data",
    b"Content-Type: image/png",
    b"Content-Encoding: gzip",
    b"X-Request-ID: \xff\xfe",
    b"Authorization: Bearer \xff",
    b"Cookie: " + 3000 * b"a=b;",
    b"Range: bytes=0-",
)
LAST = b"Connection: close"


def request(chance: random.Random) -> bytes:
    """A request of odd parts, sometimes whole, sometimes damaged; a third have a right head, so that their bodies are read."""
    body = chance.choice((picture(chance), damaged(picture(chance), chance), b"", chance.randbytes(200)))
    head = [chance.choice(FIRST[:2]), b"Host: localhost"]
    if chance.random() < 0.4:
        part = b'--x\r\nContent-Disposition: form-data; name="f"; filename="a.png"\r\n\r\n'
        body = part + body + chance.choice((b"\r\n--x--\r\n", b"\r\n--x\r\n", b"--x", b""))
        head.append(b"Content-Type: multipart/form-data; boundary=x")
    if chance.random() < 0.33:
        return b"\r\n".join([*head, LAST, b"Content-Length: %d" % len(body), b"", b""]) + body
    headers = list(chance.sample(HEADERS, chance.randrange(1, 6)))
    if chance.random() < 0.6:
        headers.append(b"Content-Length: %d" % len(body))
    if b"Transfer-Encoding: chunked" in headers and chance.random() < 0.7:
        body = b"%x\r\n%s\r\n%s\r\n\r\n" % (len(body), body, chance.choice((b"0", b"-1", b"fffffffff", b"zz")))
    whole = b"\r\n".join([chance.choice(FIRST), *headers, b"", b""]) + body
    return damaged(whole, chance) if chance.random() < 0.4 else whole


def fuzz(count: int, seed: int, bundle: str) -> dict[str, int]:
    """Send so many requests; none may be answered with 500, and good ones in between must be answered as always."""
    chance, found = random.Random(seed), Counter[str]()
    model = offaxis.load(bundle)
    with running(model, Limits(seconds_to_send=5)) as (address, server):
        good = picture(random.Random(1))
        expected = model.predict(good)[0].class_name
        port = int(address.rsplit(":", 1)[1])
        for number in range(count):
            data = request(chance)
            with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
                answer = exchange(client, data)
            status = answer.split(b" ", 2)[1].decode() if answer.startswith(b"HTTP/1.1 ") else "closed"
            found[status] += 1
            assert status in ("closed", "100", "503") or status[0] in "24", (data, answer)
            if number % 25 == 0:
                answered = httpx.post(f"{address}/v1/predict", content=good, timeout=60)
                assert answered.status_code == 200, answered.text
                assert answered.json()["predictions"][0]["class"] == expected
        assert eventually(lambda: not server.server_state.connections, 30)
    return dict(found)


def exchange(client: socket.socket, data: bytes) -> bytes:
    """Send all and read to the end; what has no LAST ends by closing the sending side, as a client does that leaves."""
    answer = b""
    try:
        client.sendall(data)
        if LAST not in data:
            client.shutdown(socket.SHUT_WR)
        while part := client.recv(65536):
            answer += part
    except TimeoutError:
        raise
    except OSError:
        pass  # closed in the middle of what was sent
    return answer


PIECES = (b"[],", b"{},", b'"a",', b"1,", b"1e999,", b"[[", b'{"features":', b"[0.5],", b"null,", b"-", b" ")


def fuzz_vectors(count: int, seed: int) -> dict[str, int]:
    """Send JSON of the same piece, up to a million times, to a model of vectors; good requests wait for none of it."""
    chance, found = random.Random(seed), Counter[str]()
    rows, labels = draw(400, 0)
    model = offaxis.EmbeddingDetector().fit(rows, labels).calibrate(draw(200, 1)[0]).to_model()
    with running(model) as (address, _), httpx.Client(base_url=address, timeout=60) as client:
        for _ in range(count):
            text = chance.choice(PIECES) * 10 ** chance.randrange(7)
            body = chance.choice((b'{"features": [%s]}', b'{"features": [%s[]]}', b"%s", b"[%s]")) % text
            reply = client.post("/v1/predict", content=body, headers={"content-type": "application/json"})
            found[str(reply.status_code)] += 1
            assert reply.status_code in (200, 400, 413, 422), (body[:200], reply.text)
            began = time.monotonic()
            assert client.post("/v1/predict", json={"features": rows[:3].tolist()}).status_code == 200
            assert time.monotonic() - began < PATIENCE
    return dict(found)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_vectors(seed: str) -> None:
    found = in_child(fuzz_vectors, times(400), seed_of(seed), megabytes=300, seconds=LONG)
    print(found)
    assert found["413"] > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_random_requests(bundle: Path, seed: str) -> None:
    found = in_child(fuzz, times(400), seed_of(seed), str(bundle), megabytes=4096, seconds=LONG)
    print(found)
    assert sum(found.values()) == times(400)
    assert found.get("200", 0) > 0


def test_every_route_as_its_schema_describes_it(model: Model, tmp_path: Path) -> None:
    """schemathesis makes requests, valid and invalid ones, from /openapi.json: none is answered with a 5xx."""
    pytest.importorskip("schemathesis")
    with running(model) as (address, _):
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{address}/openapi.json", "--no-color"]
        command += ["--checks", "not_a_server_error,status_code_conformance,content_type_conformance"]
        command += ["--max-examples", str(times(40)), "--workers", "1", "--seed", "1"]
        words: dict[str, Any] = {"capture_output": True, "text": True, "timeout": LONG * PATIENCE, "check": False}
        done = subprocess.run(command, cwd=tmp_path, **words)  # it leaves a folder .schemathesis where it runs
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
        assert httpx.get(f"{address}/healthz").status_code == 200
