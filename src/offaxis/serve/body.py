"""Request body -> the bytes of its images, within the limits of the service."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self

from fastapi import Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers

from offaxis.errors import ArgumentError
from offaxis.options import ServeOptions


@dataclass(frozen=True)
class Limits:
    """All limits of the service; a request beyond one is refused at once with a message.

    The limits over all requests must hold a request that is within the limits of one, or that request could never succeed.

    Attributes:
        body_bytes: bytes of one request.
        bodies_bytes: bytes of all requests that are being read or decoded; beyond it the answer is 503.
        images: images in one request.
        pixels: width x height of one image, checked before it is decoded.
        request_pixels: the same, summed over the images of one request. A connection has one request at a time in work.
        all_pixels: the same, over all requests that are being decoded; beyond it the answer is 503.
        seconds_to_send: time for a client to send its request, and to read the response.
        seconds_to_answer: time from the complete request to the response.
        queue: images that wait for the network; beyond it the answer is 503.
        batch: images that go through the network together.
        connections: open connections; further ones are closed.
        retry_after: seconds after which a client should try again after a 503.
    """

    body_bytes: int = 16 * 2**20
    bodies_bytes: int = 256 * 2**20
    images: int = 32
    pixels: int = 16_000_000
    request_pixels: int = 128_000_000
    all_pixels: int = 512_000_000
    seconds_to_send: float = 10.0
    seconds_to_answer: float = 30.0
    queue: int = 256
    batch: int = 32
    connections: int = 1000
    retry_after: int = 1

    @classmethod
    def of(cls, options: ServeOptions) -> Self:
        """Return the limits that options ask for; those over all requests have room for a request of such a size."""
        request_pixels = max(options.max_pixels, options.max_request_pixels)
        return cls(
            body_bytes=options.max_body * 2**20,
            bodies_bytes=max(options.max_body * 2**20, cls.bodies_bytes),
            images=options.max_images,
            pixels=options.max_pixels,
            request_pixels=request_pixels,
            all_pixels=4 * request_pixels,
            queue=options.queue,
            batch=options.batch,
        )

    def __post_init__(self) -> None:
        if self.images > self.queue:
            raise ArgumentError(
                f"Expected a queue that holds the images of one request but {self.images} images may come in a request and "
                f"only {self.queue} may wait. Let more wait (--queue), or take fewer in a request (--max-images)."
            )
        if self.body_bytes > self.bodies_bytes:
            raise ArgumentError(
                f"Expected `bodies_bytes` to hold the body of one request but a request may have {self.body_bytes:,} bytes and "
                f"all together {self.bodies_bytes:,}. Raise `bodies_bytes`, or lower `body_bytes`."
            )
        if not self.pixels <= self.request_pixels <= self.all_pixels:
            raise ArgumentError(
                f"Expected room for the pixels of an image in a request, and for those of a request among all, but got "
                f"{self.pixels:,} for an image, {self.request_pixels:,} for a request and {self.all_pixels:,} for all."
            )


class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    """An error response to a request.

    Attributes:
        status: the HTTP status.
        reason: the message; it reveals neither paths nor code.
        retry_after: seconds to wait before trying again; None where that does not help.
    """

    def __init__(self, status: int, reason: str, retry_after: int | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.retry_after = status, reason, retry_after


def overloaded(retry_after: int) -> Refusal:
    """Return the 503 of a service at capacity."""
    return Refusal(503, "The service is at capacity: try again in a moment.", retry_after)


def too_many_pixels(limits: Limits) -> Refusal:
    """Return the 413 of a request whose images are too large together."""
    return Refusal(
        413, f"The images of a request may have {limits.request_pixels:,} pixels together: send fewer, or smaller ones."
    )


RAW = ("image/", "application/octet-stream")


class Budget:
    """Limit the bytes of request bodies in memory, over all requests."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes]:
        """Read the whole body of a request; its bytes count against the budget until the block ends.

        Raises:
            Refusal: the body is too long (413) or arrives too slowly (408), or the budget is used up (503).
        """
        limits, parts, held = self.limits, [], 0
        declared = request.headers.get("content-length", "0")
        if not declared.isdecimal() or int(declared) > limits.body_bytes:
            raise _too_long(limits)
        try:
            try:
                async with asyncio.timeout(limits.seconds_to_send):
                    async for part in request.stream():
                        if held + len(part) > limits.body_bytes:
                            raise _too_long(limits)
                        if self.held + len(part) > limits.bodies_bytes:
                            raise overloaded(limits.retry_after)
                        parts.append(part)
                        held += len(part)
                        self.held += len(part)
            except TimeoutError:
                raise Refusal(
                    408, f"The request took longer than {limits.seconds_to_send:g} seconds to arrive."
                ) from None
            whole = b"".join(parts)
            parts.clear()
            yield whole
        finally:
            self.held -= held


async def request_images(body: bytes, headers: Headers, limits: Limits) -> list[tuple[str, bytes]]:
    """Return (name, bytes) of every image of a request, from multipart/form-data or a raw body.

    Raises:
        Refusal: there is no image (400), there are too many (413), or the content type is another (415).
    """
    kind = headers.get("content-type", "application/octet-stream").lower()
    if kind.startswith("multipart/form-data"):
        images, fields = await _parts(body, headers, limits)
        if fields and not images:
            raise Refusal(
                400, "Expected at least one file but the form has none: with curl, -F f=@photo.png (with the @)."
            )
    elif kind.startswith(RAW):
        images = [("image", body)] if body else []
    else:
        raise Refusal(
            415,
            "Expected image bytes (Content-Type: image/* or application/octet-stream) or multipart/form-data but the "
            f"Content-Type is {kind[:100]!r}: with curl, -F f=@photo.png, or --data-binary @photo.png with "
            "-H 'Content-Type: image/png'.",
        )
    if not images:
        raise Refusal(400, "Expected at least one image but the request has none.")
    return images


def vector_rows(body: bytes, headers: Headers, limits: Limits) -> list[tuple[str, bytes]]:
    """Return (number, JSON) of every feature vector of a request, ``{"features": [[...], ...]}`` in JSON.

    Raises:
        Refusal: there is none (400), there are too many (413), or the content type is another (415).
    """
    form = 'JSON (application/json) of the form {"features": [[0.1, ...], ...]}, a row for each vector'
    if not headers.get("content-type", "").lower().startswith("application/json"):
        raise Refusal(415, f"Expected {form}.")
    try:
        rows = json.loads(body)["features"]
    except (ValueError, TypeError, KeyError, RecursionError):
        rows = None
    if not isinstance(rows, list) or not rows:
        raise Refusal(400, f"Expected {form}.")
    rows = rows if isinstance(rows[0], list) else [rows]
    if len(rows) > limits.images:
        raise Refusal(413, f"A request may have {limits.images} feature vectors at most.")
    return [(str(number), json.dumps(row).encode()) for number, row in enumerate(rows)]


async def _parts(body: bytes, headers: Headers, limits: Limits) -> tuple[list[tuple[str, bytes]], int]:
    """Return (name, bytes) of every file of a multipart body in memory (RFC 7578), and the number of other fields."""
    kind = headers["content-type"]
    plain = PLAIN_BOUNDARY.fullmatch(kind)
    boundary = plain[1].encode() if plain else parse_options_header(kind)[1].get(b"boundary", b"")
    damaged = Refusal(400, "The multipart body is damaged.")
    images: list[tuple[str, bytes]] = []
    if not boundary or len(boundary) > 200:
        raise damaged
    between, place, fields = b"\r\n--" + boundary, body.find(b"--" + boundary), 0
    if place > 0:  # after a preamble
        place = body.find(between)
        place += 2 * (place > 0)
    if place < 0:
        raise damaged
    place += len(boundary) + 2
    while not body.startswith(b"--", place):
        start = body.find(b"\r\n", place, place + 80)  # blanks may follow the boundary
        head_end = body.find(b"\r\n\r\n", start, start + MAX_PART_HEAD)
        end = body.find(between, head_end + 2)
        if start < 0 or body[place:start].strip(b" \t") or head_end < 0 or end < 0:
            raise damaged
        name = _file_name(body[start + 2 : head_end])
        if name is None:
            fields += 1
        else:
            images.append((name, body[head_end + 4 : end]))
        if len(images) > limits.images:
            raise Refusal(413, f"A request may have {limits.images} images at most.")
        if fields > limits.images:
            raise damaged
        place = end + len(between)
        if len(images) % 8 == 7:
            await asyncio.sleep(0)  # let other requests run
    return images, fields


PLAIN_BOUNDARY = re.compile(r"multipart/form-data; *boundary=([A-Za-z0-9'()+_,./:?-]{1,70})")
MAX_PART_HEAD = 4096
DISPOSITION = re.compile(rb"^content-disposition[ \t]*:[ \t]*(.*)$", re.IGNORECASE | re.MULTILINE)
PLAIN_NAME = re.compile(rb'form-data;(?: name="[^"\\]*";)? filename="([^"\\]*)"\r?$')


def _file_name(head: bytes) -> str | None:
    """Return the client's name of a file as valid UTF-8, or None where the part is no file."""
    found = DISPOSITION.search(head)
    value = found[1] if found is not None else b""
    plain = PLAIN_NAME.match(value)
    name = plain[1] if plain is not None else parse_options_header(value.strip())[1].get(b"filename")
    return None if name is None else name.decode("utf-8", "replace")[:200] or "image"


def _too_long(limits: Limits) -> Refusal:
    return Refusal(413, f"A request may have {limits.body_bytes:,} bytes at most.")
