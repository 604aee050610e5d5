"""The service over HTTP: who may ask, what a request may hold, and the answer of every route."""

import asyncio
import hmac
import ipaddress
import json
import logging
import os
import re
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from functools import lru_cache, reduce
from importlib.resources import files
from operator import getitem
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from offaxis import __version__
from offaxis.errors import ArgumentError
from offaxis.serve.queue import SMALL_BODY, Limits, Refusal, overloaded
from offaxis.serve.service import ServedModel, Service

PAGE = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/charts.js": ("charts.js", "text/javascript"),
    "/page.js": ("page.js", "text/javascript"),
    "/docs": ("docs.html", "text/html"),
    "/docs.js": ("docs.js", "text/javascript"),
}
HEALTH = "/healthz"  # of any Host: it costs nothing and tells nothing
OPEN = frozenset({*PAGE, "/openapi.json", HEALTH, "/readyz", "/v2/health/live", "/v2/health/ready"})
COUNTED = frozenset({*OPEN, "/v1/predict", "/v1/model", "/v1/models", "/v1/drift", "/v1/drift/reset", "/metrics"})
NAMED = re.compile(r"/v1/models/[^/]+(?=/|$)")  # counted as the same path without a name
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})  # they change nothing
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
EVERY_RESPONSE = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
CLOSE = (b"connection", b"close")
JSON = "application/json"
V2_OUTPUTS = {"class": "BYTES", "probability": "FP64", "p_value": "FP64", "score": "FP64", "verdict": "BYTES"}
PLAIN_WORD = re.compile(r"[A-Za-z0-9._-]{1,64}")
log = logging.getLogger("offaxis.serve")


class TokenFile:
    """The tokens in a file, one a line, any of which is accepted; the file is read again every second.

    A file that cannot be read any more, or is empty, leaves the tokens as they were, with a line in the log.

    Args:
        path: the file.

    Raises:
        ArgumentError: it cannot be read, or has no token.
    """

    SECONDS = 1.0

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tokens, self._read_at, self._trouble = self._read(), time.monotonic(), ""

    def __call__(self) -> tuple[str, ...]:
        """Return the tokens that are accepted now."""
        if time.monotonic() - self._read_at >= self.SECONDS:
            self._read_at = time.monotonic()
            try:
                self._tokens, self._trouble = self._read(), ""
            except ArgumentError as error:
                if str(error) != self._trouble:
                    self._trouble = str(error)
                    log.error("the token file has changed and is not used (%s); the old tokens stay", error)
        return self._tokens

    def _read(self) -> tuple[str, ...]:
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentError(f"Expected a token in {self.path} but it cannot be read ({error}).") from error
        tokens = tuple(token for line in lines if (token := line.strip()))
        if not tokens:
            raise ArgumentError(f"Expected a token in {self.path} but it is empty.")
        return tokens


class App:
    """The ASGI application of a service: checks, counts and logs every request, and answers it.

    Args:
        service: models, queue and drift monitors.
        token: the expected ``Authorization: Bearer`` token, or a file of them; None for no check. The page, /healthz and
            /readyz need none.
        allowed_hosts: names in the Host header that are answered beside those of this machine; ``*`` for all. Without any,
            names are checked only where no token is.
        closing: tells whether the server is shutting down, so that connections are not kept open.

    Attributes:
        held: bytes of request bodies in memory, over all requests.
    """

    def __init__(
        self,
        service: Service,
        token: str | TokenFile | None,
        allowed_hosts: Collection[str],
        closing: Callable[[], bool],
    ) -> None:
        self.service, self.token, self.closing = service, token, closing
        self.check_hosts = "*" not in allowed_hosts and (token is None or bool(allowed_hosts))
        self.hosts = frozenset(map(host_name, allowed_hosts))
        self.held = 0
        page = files("offaxis.serve") / "page"
        schema = json.loads((page / "openapi.json").read_bytes())
        schema["info"]["version"] = __version__

        @asynccontextmanager
        async def lifespan(_: object) -> AsyncIterator[None]:
            async with service:
                yield

        self.router = Router(
            [
                Route("/v1/models", self.list_models),
                Route("/v1/model", self.model),
                Route("/v1/models/{model}", self.model),
                *(
                    Route(start + path, answer, methods=[method])
                    for start in ("/v1", "/v1/models/{model}")
                    for path, answer, method in (
                        ("/predict", self.predict, "POST"),
                        ("/drift", self.drift, "GET"),
                        ("/drift/reset", self.reset_drift, "POST"),
                    )
                ),
                *(Route(path, self.health) for path in (HEALTH, "/v2/health/live")),
                *(Route(path, self.readiness) for path in ("/readyz", "/v2/health/ready", "/v2/models/{model}/ready")),
                Route("/v2", self.v2_server),
                Route("/v2/models/{model}", self.v2_model),
                Route("/v2/models/{model}/infer", self.v2_infer, methods=["POST"]),
                Route("/metrics", self.metrics),
                Route("/openapi.json", JSONResponse(schema), methods=["GET"]),
                *(
                    Route(path, Response((page / name).read_bytes(), 200, HEADERS, kind), methods=["GET"])
                    for path, (name, kind) in PAGE.items()
                ),
            ],
            redirect_slashes=False,  # behind a proxy it would redirect from https to http
            lifespan=lifespan,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        scope["app"] = self
        if scope["type"] != "http":
            await self.router(scope, receive, send)
            return
        began, path, status, headers = time.perf_counter(), scope["path"], 500, Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if PLAIN_WORD.fullmatch(given) else os.urandom(8).hex()

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = (*EVERY_RESPONSE, CLOSE) if self.closing() else EVERY_RESPONSE
                message["headers"] = [*message.get("headers", ()), *extra, (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            self.check(scope, headers)
            await self.router(scope, receive, send_and_note)
        except Exception as error:
            await error_response(error, request_id)(scope, receive, send_and_note)
        finally:
            seconds = time.perf_counter() - began
            route = NAMED.sub("/v1/model" if NAMED.fullmatch(path) else "/v1", path)
            self.service.metrics.count_request(route if route in COUNTED else "other", status, seconds)
            if log.isEnabledFor(logging.INFO):
                about = {"request_id": request_id, "method": scope["method"], "path": path, "status": status}
                client = (scope.get("client") or ("",))[0]
                log.info("request", extra={**about, "ms": round(1e3 * seconds, 2), "client": client})

    def check(self, scope: Scope, headers: Headers) -> None:
        """Refuse a request that must not be answered: by its Host, its token, or the page that made it."""
        path, host = scope["path"], headers.get("host", "")
        if self.check_hosts and path != HEALTH:
            name = host_name(host)  # this machine, the address that was connected to, or an allowed name
            if not is_local(name) and name not in self.hosts and name != (scope.get("server") or ("",))[0]:
                raise HTTPException(
                    421,
                    f"Expected the Host header to name this machine but got {host[:100]!r}. A page of another site may have "
                    "sent this. Start the service with --allowed-host NAME to be reached by that name.",
                )
        if path not in OPEN and not self._authorised(headers):
            raise HTTPException(
                401,
                "Expected the header 'Authorization: Bearer TOKEN' with the token that the service was started with.",
                {"WWW-Authenticate": "Bearer"},
            )
        if scope["method"] not in SAFE_METHODS and is_cross_site(headers):
            raise HTTPException(
                403,
                "Expected a request of the service's own page, or of a program, but this one was made by a page of another "
                "site. A proxy must forward the Host header.",
            )

    def _authorised(self, headers: Headers) -> bool:
        """Return whether the request carries a token; the comparison takes constant time."""
        if self.token is None:
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        accepted = (self.token,) if isinstance(self.token, str) else self.token()
        sent = given.strip().encode("latin-1")
        return scheme.lower() == "bearer" and any(hmac.compare_digest(sent, each.encode()) for each in accepted)

    def served(self, request: Request) -> ServedModel:
        """Return the model that the path names, or the first one."""
        models = self.service.models
        name = request.path_params.get("model", self.service.served.name)
        if name not in models:
            raise Refusal(404, "There is no such model: see /v1/models.")
        return models[name]

    async def predict(self, request: Request) -> Response:
        """Answer POST /v1/predict: class, p-value and verdict of each image, or of each feature vector."""
        explained, watched = query_flag(request, "explain", False), query_flag(request, "watch", True)
        served = self.served(request)
        async with self._body(request, served.limits) as body:
            kind = request.headers.get("content-type", "")
            read = vector_rows if served.takes_vectors else request_images
            if kind.lower().startswith(JSON):  # which takes a while
                images = await asyncio.to_thread(read, body, kind, served.limits)
            else:
                images = read(body, kind, served.limits)
            records = await self.service.predict(served.name, images, explained=explained, watched=watched)
        any_prediction = any("error" not in record for record in records)
        return JSONResponse({"predictions": records}, 200 if any_prediction else 422)

    async def v2_server(self, _: Request) -> Response:
        """Say that the protocol of KServe is spoken, version 2."""
        return JSONResponse({"name": "offaxis", "version": __version__, "extensions": []})

    async def v2_model(self, request: Request) -> Response:
        """Describe the inputs and outputs of a model."""
        shape = {"shape": [-1]}
        inputs = [{"name": "images", "datatype": "BYTES", **shape}]
        outputs = [{"name": name, "datatype": kind, **shape} for name, kind in V2_OUTPUTS.items()]
        about = {"name": self.served(request).name, "platform": "offaxis", "inputs": inputs, "outputs": outputs}
        return JSONResponse(about)

    async def v2_infer(self, request: Request) -> Response:
        """Answer images in base64, one tensor of BYTES, by a tensor for each part of the predictions."""
        served = self.served(request)
        async with self._body(request, served.limits) as body:
            if served.takes_vectors:
                raise Refusal(400, "This model takes feature vectors: POST them to /v1/predict.")
            given, images = await asyncio.to_thread(json_images, body, ("inputs", 0, "data"), served.limits)
            records = await self.service.predict(served.name, images)
        for record in records:
            if "error" in record:
                raise Refusal(422, f"Image {record['name']}: {record['error']}")
        outputs = [
            {"name": name, "datatype": kind, "shape": [len(records)], "data": [record[name] for record in records]}
            for name, kind in V2_OUTPUTS.items()
        ]
        return JSONResponse({"model_name": served.name, "id": str(given.get("id", "")), "outputs": outputs})

    async def list_models(self, _: Request) -> Response:
        """List the models by name, with the bundle of each; the first is that of the paths without a name."""
        models = self.service.models.values()
        return JSONResponse({"models": [{"name": each.name, "bundle": each.description["bundle"]} for each in models]})

    async def model(self, request: Request) -> Response:
        """Describe the model: classes, preprocessing, detector, level, calibration and provenance."""
        return JSONResponse(self.served(request).description)

    async def drift(self, request: Request) -> Response:
        """Report whether the stream has left the training distribution, with the trace of the drift monitor."""
        return JSONResponse(self.service.streams.drift(self.served(request).name))

    async def reset_drift(self, request: Request) -> Response:
        """Restart the drift monitor, after an alarm was investigated."""
        self.service.streams.reset(self.served(request).name)
        return await self.drift(request)

    async def health(self, _: Request) -> Response:
        """Report that the service is up."""
        return JSONResponse({"status": "ok"})

    async def readiness(self, _: Request) -> Response:
        """Report whether every network answered a test image within the last second; 503 where not, or during a shutdown."""
        ready = not self.closing() and await self.service.ready()
        return JSONResponse({"status": "ready" if ready else "not ready"}, 200 if ready else 503)

    async def metrics(self, _: Request) -> Response:
        """Report metrics in the text format of Prometheus."""
        return Response(self.service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @asynccontextmanager
    async def _body(self, request: Request, limits: Limits) -> AsyncIterator[bytes]:
        """Read the whole body of a request; its bytes count against those of all requests until the block ends.

        Raises:
            Refusal: the body is too long (413) or arrives too slowly (408), or all requests have too many bytes (503).
        """
        parts, held = list[bytes](), 0
        too_long = Refusal(413, f"A request may have {limits.body_bytes:,} bytes at most.")
        share = limits.bodies_bytes // 4  # of small requests alone
        declared = request.headers.get("content-length", "0")
        if not declared.isdecimal() or int(declared) > limits.body_bytes:
            raise too_long
        try:
            try:
                async with asyncio.timeout(limits.seconds_to_send):
                    async for part in request.stream():
                        if held + len(part) > limits.body_bytes:
                            raise too_long
                        small = held + len(part) <= SMALL_BODY
                        if self.held + len(part) > limits.bodies_bytes + share * small:
                            raise overloaded()
                        parts.append(part)
                        held += len(part)
                        self.held += len(part)
            except TimeoutError:
                late = f"The request took longer than {limits.seconds_to_send:g} seconds to arrive."
                raise Refusal(408, late) from None
            whole = b"".join(parts)
            parts.clear()
            yield whole
        finally:
            self.held -= held


def error_response(error: Exception, request_id: str) -> Response:
    """Return the response to a request that was refused or that failed; details of a failure are logged, not sent."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=400)
    if isinstance(error, HTTPException):
        allowed = ", ".join(sorted({*(error.headers or {}).get("Allow", "").split(", ")} - {"HEAD"}))
        reasons = {
            404: "Not found: see /v1/model, POST /v1/predict and /v1/drift."
            if error.detail == "Not Found"
            else error.detail,
            405: f"Expected the method {allowed} for this path.",
        }
        reason = reasons.get(error.status_code, error.detail)
        return JSONResponse({"error": reason}, error.status_code, error.headers)
    log.error("a request failed", exc_info=error, extra={"request_id": request_id})
    return JSONResponse({"error": "The service had an internal error."}, 500)


def query_flag(request: Request, name: str, default: bool) -> bool:
    """Return whether a parameter of the query is 1, and the default where it is absent."""
    given = request.query_params.get(name) if request.scope["query_string"] else None
    if given is None:
        return default
    if given not in ("0", "1"):
        raise Refusal(400, f"Expected ?{name}=0 or ?{name}=1 but got {given[:40]!r}.")
    return given == "1"


def request_images(body: bytes, kind: str, limits: Limits) -> list[tuple[str, bytes]]:
    """Return (name, bytes) of every image of a request, from multipart/form-data, JSON or a raw body.

    Raises:
        Refusal: there is no image (400), there are too many (413), or the content type is another (415).
    """
    plain = kind.lower()
    if plain.startswith("multipart/form-data"):
        images = form_files(body, kind, limits)
    elif plain.startswith(JSON) and b'"images"' in body:
        images = json_images(body, ("images",), limits)[1]
    elif plain.startswith(("image/", "application/octet-stream")) or not kind:
        images = [("image", body)] if body else []
    else:
        raise Refusal(
            415,
            "Expected image bytes (Content-Type: image/* or application/octet-stream) or multipart/form-data but the "
            f"Content-Type is {plain[:100]!r}: with curl, -F f=@photo.png, or --data-binary @photo.png with "
            "-H 'Content-Type: image/png'.",
        )
    if not images:
        raise Refusal(400, "Expected at least one image but the request has none.")
    return images


def json_images(
    body: bytes, place: tuple[str | int, ...], limits: Limits
) -> tuple[dict[str, Any], list[tuple[str, bytes]]]:
    """Return a JSON object and (name, bytes) of every image in the list at this place in it, which has them in base64.

    An image is ``{"name": "a.png", "data": "iVBO..."}``, or its data alone.

    Raises:
        Refusal: it is not of this form (400), or there are too many images (413).
    """
    if sum(map(body.count, (b"[", b"{", b","))) > 8 * limits.images + 64:  # parsed, they take many times their bytes
        raise Refusal(413, f"A request may have {limits.images} images at most.")
    try:
        given = json.loads(body)
        listed = [each if isinstance(each, dict) else {"data": each} for each in reduce(getitem, place, given)]
        images = [(each.get("name", str(i)), b64decode(each["data"], validate=True)) for i, each in enumerate(listed)]
    except (ValueError, TypeError, LookupError, RecursionError):
        raise Refusal(
            400, f'Expected JSON with a list "{".".join(map(str, place))}" of {{"data": "the file in base64"}}.'
        ) from None
    if len(images) > limits.images:
        raise Refusal(413, f"A request may have {limits.images} images at most.")
    return given, [(str(name)[:200], data) for name, data in images]


def vector_rows(body: bytes, kind: str, limits: Limits) -> list[tuple[str, bytes]]:
    """Return (number, JSON) of every feature vector of a request, ``{"features": [[...], ...]}`` in JSON.

    Raises:
        Refusal: there is none (400), there are too many (413), or the content type is another (415).
    """
    form = 'JSON (application/json) of the form {"features": [[0.1, ...], ...]}, a row for each vector'
    if not kind.lower().startswith("application/json"):
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


BOUNDARY = re.compile(r'; *boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_PARAMETER = rb';[ \t]*+(?!filename)[^=;\r\n]*=(?:"(?:[^"\\\r\n]|\\.)*+"|[^";\r\n]*+)'
FILE_NAME = re.compile(
    rb"^content-disposition[ \t]*:[^;\r\n]*(?:" + _PARAMETER + rb")*+"
    rb';[ \t]*filename(\*?)=(?:"((?:[^"\\\r\n]|\\.)*+)"|([^";\r\n]*))',
    re.IGNORECASE | re.MULTILINE,
)
MAX_PART_HEAD = 4096


def form_files(body: bytes, kind: str, limits: Limits) -> list[tuple[str, bytes]]:
    """Return (name, bytes) of every file of a multipart body (RFC 7578), read in memory: no image is written to disk.

    Raises:
        Refusal: the body is damaged or has no file (400), or there are too many files (413).
    """
    damaged = Refusal(400, "The multipart body is damaged.")
    found = BOUNDARY.search(kind)
    if found is None:
        raise damaged
    between = b"\r\n--" + (found[1] or found[2]).encode("latin-1")
    _, *parts = (b"\r\n" + body).split(between, 2 * limits.images + 2)
    images, fields = list[tuple[str, bytes]](), 0
    for part in parts:
        if part.startswith(b"--"):
            break
        head, blank, data = part.partition(b"\r\n\r\n")
        if not blank or len(head) > MAX_PART_HEAD or head.partition(b"\r\n")[0].strip(b" \t"):
            raise damaged
        if (named := FILE_NAME.search(head)) is None:
            fields += 1
        else:
            images.append((_readable_name(named), data))
        if len(images) > limits.images:
            raise Refusal(413, f"A request may have {limits.images} images at most.")
        if fields > limits.images:
            raise damaged
    else:
        raise damaged  # it has no end
    if fields and not images:
        raise Refusal(400, "Expected at least one file but the form has none: with curl, -F f=@photo.png (with the @).")
    return images


def _readable_name(found: re.Match[bytes]) -> str:
    """Return the client's name of a file as valid UTF-8."""
    starred, quoted, plain = found.groups()
    name = re.sub(rb'\\(["\\])', rb"\1", quoted) if quoted is not None else plain.strip()
    if starred:
        name = unquote_to_bytes(name.rpartition(b"'")[2])
    return name.decode("utf-8", "replace")[:200] or "image"


def host_name(host: str) -> str:
    """Return the name in a Host header, without its port and without the brackets of an IPv6 address, which it may lack."""
    bare = host.count(":") > 1 and not host.startswith("[")
    name = host if bare else host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower().rstrip(".")


@lru_cache(64)
def is_local(host: str) -> bool:
    """Return whether an address can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_cross_site(headers: Headers) -> bool:
    """Return whether a browser made the request for a page that is not the service's own.

    Browsers let any page send a POST anywhere, without showing it the response. New ones send the relation of the two
    sites (Sec-Fetch-Site, "none" for a request of the user), older ones the page's origin; other programs send neither.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower()
