"""A request's body -> the bytes of its images, within the limits."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from offaxis.server.limits import Limits
from offaxis.server.refusals import Refusal, busy

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
