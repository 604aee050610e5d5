"""Multipart bodies: what browsers and clients send is read, what is damaged is refused."""

from contextlib import suppress

import pytest

pytest.importorskip("uvicorn")
from hypothesis import given, settings
from hypothesis import strategies as st

from offaxis.serve.app import request_images
from offaxis.serve.queue import Limits, Refusal


def read(body: bytes, kind: str = "multipart/form-data; boundary=x") -> list[tuple[str, bytes]]:
    return request_images(body, kind, Limits(images=4))


def part(data: bytes, disposition: bytes = b'form-data; name="f"; filename="a.png"') -> bytes:
    return b"Content-Disposition: " + disposition + b"\r\nContent-Type: image/png\r\n\r\n" + data


@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        (b'form-data; name="f"; filename="a.png"', "a.png"),
        (b"form-data; name=f; filename=a.png", "a.png"),
        (b'form-data; filename="a b.png"; name="f"', "a b.png"),
        (b'form-data; name="f"; filename="quo\\"te.png"', 'quo"te.png'),
        ('form-data; name="f"; filename="caf\u00e9.png"'.encode(), "caf\u00e9.png"),
        (b'form-data; name="f"; filename=""', "image"),
        (b'FORM-DATA; NAME="f"; FILENAME="a.png"', "a.png"),
    ],
)
def test_names_as_clients_write_them(disposition: bytes, name: str) -> None:
    assert read(b"--x\r\n" + part(b"12", disposition) + b"\r\n--x--\r\n") == [(name, b"12")]


def test_preambles_blanks_empty_files_and_fields() -> None:
    body = b"hello\r\n--x \t\r\n" + part(b"1") + b"\r\n--x\r\n" + part(b"", b'form-data; name="f"; filename="b"')
    body += b"\r\n--x\r\n" + part(b"text", b'form-data; name="note"') + b"\r\n--x--\r\nepilogue"
    assert read(body) == [("a.png", b"1"), ("b", b"")]
    assert read(b"--a b\r\n" + part(b"1") + b"\r\n--a b--", 'multipart/form-data; boundary="a b"') == [("a.png", b"1")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--x",
        b"--x\r\n",
        b"--x--",
        b"--x\r\nbroken",
        b"--x\r\n" + part(b"1"),
        b"--x\r\n" + part(b"1") + b"\r\n--y--",
        b"--xy\r\n" + part(b"1") + b"\r\n--x--",
        b"--x\r\nA: " + 9000 * b"b" + b"\r\n\r\n1\r\n--x--",
        b"--x\r\n\r\n\r\n--x--",
        b"begin --x\r\n" + part(b"1") + b"\r\n--x--",
    ],
)
def test_damaged_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(Refusal) as refusal:
        read(body)
    assert refusal.value.status_code == 400


def test_too_many_files_and_fields_are_refused() -> None:
    for disposition, status in ((b'form-data; name="f"; filename="a"', 413), (b'form-data; name="f"', 400)):
        with pytest.raises(Refusal) as refusal:
            read(b"--x\r\n" + b"\r\n--x\r\n".join([part(b"1", disposition)] * 5) + b"\r\n--x--")
        assert refusal.value.status_code == status


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=50).filter(lambda data: b"\r\n--x" not in data), min_size=1, max_size=4))
def test_any_bytes_come_out_as_they_went_in(files: list[bytes]) -> None:
    body = b"--x\r\n" + b"\r\n--x\r\n".join(part(data) for data in files) + b"\r\n--x--\r\n"
    assert [data for _, data in read(body)] == files


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=40))
def test_any_body_is_read_or_refused(noise: bytes, head: bytes) -> None:
    for body in (noise, b"--x\r\n" + noise, b"--x\r\n" + head + b"\r\n\r\n" + noise + b"\r\n--x--"):
        with suppress(Refusal):
            read(body)
