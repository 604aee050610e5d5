"""A request's body -> the bytes of its images, within the limits; what goes beyond is refused."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import Request
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from offaxis.errors import ArgumentError


@dataclass(frozen=True)
class Limits:
    """Every bound of the service; what goes beyond is refused at once, with a sentence.

    A request that is within the limits of one must fit where all of them wait, or it would be told to try again for ever.

    Attributes:
        body_bytes: of one request.
        bodies_bytes: of all requests that are being read or decoded, together; beyond it the answer is 503.
        images: in one request.
        pixels: width x height of one image, known before it is decoded.
        seconds_to_send: for a client to send its request, and to take what it is sent.
        seconds_to_answer: from then to the answer.
        queue: images that wait for the network; beyond it the answer is 503.
        batch: images that go through the network together.
        connections: open at a time; more are closed.
        retry_after: seconds that a client is asked to wait after a 503.
    """

    body_bytes: int = 16 * 2**20
    bodies_bytes: int = 256 * 2**20
    images: int = 32
    pixels: int = 16_000_000
    seconds_to_send: float = 10.0
    seconds_to_answer: float = 30.0
    queue: int = 256
    batch: int = 32
    connections: int = 1000
    retry_after: int = 1

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


class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    """A request that gets a status and a sentence instead of predictions.

    Attributes:
        status: the HTTP status.
        reason: the sentence; it names neither paths nor code.
        retry_after: seconds to wait, where trying again makes sense.
    """

    def __init__(self, status: int, reason: str, retry_after: int | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.retry_after = status, reason, retry_after


def busy(retry_after: int) -> Refusal:
    """Too much is waiting already."""
    return Refusal(503, "The service has as much to do as it can hold: try again in a moment.", retry_after)


RAW = ("image/", "application/octet-stream")


class Budget:
    """Bytes of bodies in memory, over all requests."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes]:
        """The whole body of a request; its bytes count until the block ends.

        Raises:
            Refusal: it is too long (413), comes too slowly (408), or too much is in memory (503).
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
                            raise busy(limits.retry_after)
                        parts.append(part)
                        held += len(part)
                        self.held += len(part)
            except TimeoutError:
                raise Refusal(
                    408, f"The request took longer than {limits.seconds_to_send:g} seconds to come."
                ) from None
            whole = b"".join(parts)
            parts.clear()
            yield whole
        finally:
            self.held -= held


async def images_in(body: bytes, headers: Headers, limits: Limits) -> list[tuple[str, bytes]]:
    """(name, bytes) of every image of a request, from multipart/form-data or raw.

    Raises:
        Refusal: there are none, too many, or the body is of another kind.
    """
    kind = headers.get("content-type", "application/octet-stream").lower()
    if kind.startswith("multipart/form-data"):
        found = await _parts(body, headers, limits)
    elif kind.startswith(RAW):
        found = [("image", body)] if body else []
    else:
        raise Refusal(415, "Expected image bytes (image/*, application/octet-stream) or multipart/form-data.")
    if not found:
        raise Refusal(400, "Expected at least one image but the request holds none.")
    return found


async def _parts(body: bytes, headers: Headers, limits: Limits) -> list[tuple[str, bytes]]:
    async def stream() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(body), 2**16):
            yield body[start : start + 2**16]
            await asyncio.sleep(0)  # others have their turn

    parser = MultiPartParser(headers, stream(), max_files=limits.images, max_fields=limits.images)
    parser.spool_max_size = limits.body_bytes + 1  # it is in memory already: nothing goes to disk
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        if "Too many files" in str(error):
            raise Refusal(413, f"A request may hold {limits.images} images at most.") from error
        raise Refusal(400, "The multipart body is damaged.") from error
    try:
        files = [part for _, part in form.multi_items() if isinstance(part, UploadFile)]
        return [(_name(file), await file.read()) for file in files]
    finally:
        await form.close()


def _name(file: UploadFile) -> str:
    """What the client calls a file, as text that an answer can hold: some encodings give halves of characters."""
    return (file.filename or "image")[:200].encode("utf-8", "replace").decode()


def _too_long(limits: Limits) -> Refusal:
    return Refusal(413, f"A request may have {limits.body_bytes:,} bytes at most.")
