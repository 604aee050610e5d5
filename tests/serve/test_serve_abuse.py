"""Hostile clients: connections that never end, names that are not valid text, pages of other sites."""

import select
import socket
import time

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
import httpx

from offaxis import Model
from offaxis.serve.queue import Limits
from tests.models import World
from tests.serve.serving import png, running
from tests.waiting import eventually


def connect(address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1])), timeout=5)


def answer(client: socket.socket) -> bytes:
    """One answer, whose body is JSON."""
    read = b""
    while not read.endswith(b"}"):
        part = client.recv(4096)
        assert part, "closed before the answer was whole"
        read += part
    return read


@pytest.mark.parametrize("request_line", ["POST /v1/predict", "GET /healthz"])
def test_a_body_that_drips_after_the_answer_ends_the_connection(model: Model, request_line: str) -> None:
    head = f"{request_line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n".encode()
    with running(model, Limits(seconds_to_send=0.5), token="secret") as (address, server), connect(address) as client:
        client.sendall(head)
        assert answer(client).startswith((b"HTTP/1.1 401", b"HTTP/1.1 200"))
        client.sendall(b"a")  # a byte of a body that is not read any more
        began = time.monotonic()
        client.settimeout(0.2)
        while time.monotonic() - began < 4:
            try:
                client.sendall(b"b")
                if client.recv(4096) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert time.monotonic() - began < 2
        assert eventually(lambda: not server.server_state.connections)


def test_a_body_that_is_sent_whole_after_the_answer_leaves_the_connection_open(model: Model) -> None:
    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"
    with running(model, Limits(seconds_to_send=1), token="secret") as (address, _), connect(address) as client:
        for _ in range(3):
            client.sendall(head)
            assert answer(client).startswith(b"HTTP/1.1 401")
            client.sendall(b"0123456789")
        assert not select.select([client], [], [], 0.3)[0]  # neither closed nor answered
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer(client).startswith(b"HTTP/1.1 200")


def test_responses_that_are_not_read_end_the_connection(model: Model) -> None:
    with running(model, Limits(seconds_to_send=0.5)) as (address, server), socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", int(address.rsplit(":", 1)[1])))
        client.settimeout(0.5)
        try:
            while True:
                client.sendall(50 * b"GET /page.js HTTP/1.1\r\nHost: localhost\r\n\r\n")
        except (TimeoutError, ConnectionError):
            pass  # all that fits on the way is there
        assert eventually(lambda: not server.server_state.connections)


@pytest.mark.parametrize(
    ("charset", "name", "shown"),
    [
        ("utf-7", b"+2AA-", "+2AA-"),
        ("unicode_escape", rb"\\ud800", r"\ud800"),
        ("utf-8", b"\xed\xa0\x80", 3 * "\ufffd"),
    ],
)
def test_a_name_with_half_a_character_is_answered(
    model: Model, world: World, charset: str, name: bytes, shown: str
) -> None:
    """Names are UTF-8, whatever charset is declared; what is not valid is replaced."""
    head = b'--x\r\nContent-Disposition: form-data; name="f"; filename="' + name + b'"\r\n\r\n'
    kind = f"multipart/form-data; boundary=x; charset={charset}"
    with running(model) as (address, _):
        response = httpx.post(
            f"{address}/v1/predict",
            content=head + png(world.test, 0) + b"\r\n--x--\r\n",
            headers={"content-type": kind},
        )
        assert response.status_code == 200
        assert response.json()["predictions"][0]["name"] == shown


def test_pages_of_other_sites_change_nothing(model: Model, world: World) -> None:
    with running(model) as (address, _):
        cross_site: list[dict[str, str]] = [
            {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"},
            {"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"},  # another service of this machine
            {"Origin": "https://elsewhere.example"},
            {"Origin": "null"},
        ]
        own: list[dict[str, str]] = [
            {"Origin": address, "Sec-Fetch-Site": "same-origin"},
            {"Origin": "https://proxy.example", "Sec-Fetch-Site": "same-origin"},  # a proxy that changes the Host
            {"Origin": address},
            {},
        ]
        assert httpx.post(f"{address}/v1/predict", content=png(world.test, 0)).status_code == 200
        for headers in cross_site:
            refused = httpx.post(f"{address}/v1/drift/reset", headers=headers)
            assert refused.status_code == 403
            assert "page of another site" in refused.json()["error"]
            assert httpx.post(f"{address}/v1/predict", content=png(world.test, 0), headers=headers).status_code == 403
            assert httpx.get(f"{address}/healthz", headers=headers).status_code == 200
        assert httpx.get(f"{address}/v1/drift").json()["images"] == 1
        for headers in own:
            assert httpx.post(f"{address}/v1/drift/reset", headers=headers).status_code == 200
