"""The routes of the service, and the middleware around them: token, cross-site requests, request metrics."""

import asyncio
import hmac
import ipaddress
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from functools import lru_cache
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from offaxis import __version__
from offaxis.errors import ArgumentError
from offaxis.serve.body import Refusal, request_images, vector_rows
from offaxis.serve.service import Service

PAGE = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/charts.js": ("charts.js", "text/javascript"),
    "/page.js": ("page.js", "text/javascript"),
}
PREDICT = "/v1/predict"
HEALTH = frozenset({"/healthz", "/readyz"})
OPEN = frozenset({*PAGE, *HEALTH})
ROUTES = frozenset({*OPEN, PREDICT, "/v1/model", "/v1/drift", "/v1/drift/reset", "/metrics"})
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
log = logging.getLogger("offaxis.serve")


class TokenFile:
    """The tokens in a file, one a line, any of which is accepted; the file is read again where it has changed.

    A file that cannot be read any more, or is empty, leaves the tokens as they were, with a line in the log.

    Args:
        path: the file.

    Raises:
        ArgumentError: it cannot be read, or has no token.
    """

    SECONDS = 1.0  # between two looks at the file

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp, self._tokens = _stamp(path), self._read()
        self._looked = time.monotonic()

    def __call__(self) -> tuple[str, ...]:
        """Return the tokens that are accepted now."""
        now = time.monotonic()
        if now - self._looked >= self.SECONDS:
            self._looked, stamp = now, _stamp(self.path)
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._tokens = self._read()
                except ArgumentError as error:
                    log.error("the token file has changed and is not used (%s); the old tokens stay", error)
                else:
                    log.warning("the token file has changed: it has %d token(s)", len(self._tokens))
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


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Return what changes with the content of a file; None where there is none."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size, about.st_ino


def make_app(
    service: Service,
    token: str | TokenFile | None = None,
    *,
    allowed_hosts: Collection[str] = (),
    closing: Callable[[], bool] = lambda: False,
) -> FastAPI:
    """Make the ASGI application of a service.

    Args:
        service: model, queue and drift monitor.
        token: the expected ``Authorization: Bearer`` token, or a file of them; None for no check. The page, /healthz and
            /readyz need none.
        allowed_hosts: names in the Host header that are answered beside those of this machine; ``*`` for all. Without any,
            names are checked only where no token is.
        closing: tells whether the server is shutting down, so that connections are not kept open.
    """
    check_hosts = "*" not in allowed_hosts and (token is None or bool(allowed_hosts))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service:
            yield

    app = FastAPI(
        title="offaxis",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,  # behind a proxy it would redirect from https to http
    )
    _add_errors(app)
    app.add_middleware(
        Guard,
        service=service,
        token=token,
        hosts=frozenset(map(host_name, allowed_hosts)) if check_hosts else None,
        closing=closing,
    )
    _add_api(app, service, closing)
    _add_page(app)
    return app


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the descriptions of error responses for the schema; 401 and 421 can come from every route."""
    body = {"application/json": {"schema": {"type": "object", "properties": {"error": {"type": "string"}}}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": body} for status in (*statuses, 401, 421)}


FILE = {"type": "string", "format": "binary"}
FLAG = {"type": "string", "enum": ["0", "1"]}
PREDICT_SCHEMA: dict[str, Any] = {
    "parameters": [
        {"name": "explain", "in": "query", "schema": FLAG, "description": "1: records have an explanation."},
        {
            "name": "watch",
            "in": "query",
            "schema": FLAG,
            "description": "0: neither the monitor nor metrics count them.",
        },
    ],
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {"type": "object", "required": ["f"], "properties": {"f": {"type": "array", "items": FILE}}}
            },
            "image/*": {"schema": FILE},
        },
    },
}


async def answer_predict(service: Service, request: Request) -> Response:
    """Answer POST /v1/predict."""
    explained, watched = _flag(request, "explain", False), _flag(request, "watch", True)
    async with service.budget.body(request) as body:
        if service.served.takes_vectors:
            images = await asyncio.to_thread(vector_rows, body, request.headers, service.limits)
        else:
            images = await request_images(body, request.headers, service.limits)
        records = await service.predict(images, explained=explained, watched=watched)
    any_prediction = any("error" not in record for record in records)
    return JSONResponse({"predictions": records}, 200 if any_prediction else 422)


def _flag(request: Request, name: str, default: bool) -> bool:
    """Return whether a parameter of the query is 1, and the default where it is absent."""
    given = request.query_params.get(name) if request.scope["query_string"] else None
    if given is None:
        return default
    if given not in ("0", "1"):
        raise Refusal(400, f"Expected ?{name}=0 or ?{name}=1 but got {given[:40]!r}.")
    return given == "1"


def _add_api(app: FastAPI, service: Service, closing: Callable[[], bool]) -> None:
    @app.post(PREDICT, openapi_extra=PREDICT_SCHEMA, responses=_refusals(400, 403, 408, 413, 415, 422, 503))
    async def predict(request: Request) -> Response:
        """Predict one image (the body) or several (multipart/form-data): class, p-value and verdict of each.

        A model of feature vectors takes JSON instead: `{"features": [[0.1, ...], ...]}`. With `?explain=1` each record has an
        `explanation`: the cosine as a map over the image, and kept examples; with `?watch=0` the drift monitor and the metrics
        do not count it.
        """
        return await answer_predict(service, request)

    @app.get("/v1/model", responses=_refusals())
    async def model() -> dict[str, Any]:
        """Describe the model: classes, preprocessing, detector, level, calibration and provenance.

        Where verdicts are per class (`per_class`), `threshold` and `calibration.flag_rate` are null; `class_thresholds` and
        `calibration.class_flag_rates` have an entry for each class, null where its calibration images are too few. Where
        they are not, it is the other way round.
        """
        return service.served.description

    @app.get("/v1/drift", responses=_refusals())
    async def drift() -> dict[str, Any]:
        """Report whether the stream has left the training distribution, with the trace of the drift monitor."""
        return service.drift()

    @app.post("/v1/drift/reset", responses=_refusals(403))
    async def reset() -> dict[str, Any]:
        """Restart the drift monitor, after an alarm was investigated."""
        service.reset_drift()
        return service.drift()

    @app.get("/healthz")
    async def health() -> dict[str, str]:
        """Report that the service is up."""
        return {"status": "ok"}

    @app.get("/readyz", responses=_refusals(503))
    async def readiness() -> Response:
        """Report whether the network answers a test image; 503 where it does not, or while the service shuts down."""
        ready = not closing() and await service.ready()
        return JSONResponse({"status": "ready" if ready else "not ready"}, 200 if ready else 503)

    @app.get("/metrics", responses=_refusals(), response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Report metrics in the text format of Prometheus."""
        service.metrics.queue.set(len(service.served.batcher.queue))
        service.metrics.decoding.set(service.decoder.images)
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_page(app: FastAPI) -> None:
    for route, (name, kind) in PAGE.items():
        content = files("offaxis.serve").joinpath("page", name).read_bytes()
        app.add_api_route(route, _Page(content, kind), methods=["GET"], include_in_schema=False)


class _Page:
    """Send one file."""

    def __init__(self, content: bytes, kind: str) -> None:
        self.content, self.kind = content, kind

    async def __call__(self) -> Response:
        return Response(self.content, media_type=self.kind, headers=HEADERS)


def _add_errors(app: FastAPI) -> None:
    """Answer every error with a message; details of internal errors are logged, not sent."""

    @app.exception_handler(HTTPException)
    async def unknown(_: Request, error: HTTPException) -> Response:
        reasons = {
            404: "Not found: see /v1/model, POST /v1/predict and /v1/drift.",
            405: f"Expected the method {(error.headers or {}).get('Allow', '')} for this path.",
        }
        reason = reasons.get(error.status_code, error.detail)
        return JSONResponse({"error": reason}, error.status_code, headers=error.headers)

    for kind in (Refusal, ClientDisconnect, Exception):
        app.add_exception_handler(kind, lambda request, error: error_response(error, request.scope["request_id"]))


def error_response(error: Exception, request_id: str) -> Response:
    """Return the response to a request that was refused or that failed."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=400)
    if not isinstance(error, Refusal):
        log.error("a request failed", exc_info=error, extra={"request_id": request_id})
        return JSONResponse({"error": "The service had an internal error."}, 500)
    headers = {"Connection": "close"}  # the rest of a refused body is not read
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    return JSONResponse({"error": error.reason}, error.status, headers=headers)


SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})  # they change nothing


class Guard:
    """Check host and token, refuse requests made by pages of other sites, and count requests, statuses and latency.

    Args:
        app: the application behind the guard.
        service: counts requests, and answers POST /v1/predict without the detour through FastAPI's layers.
        token: the expected ``Authorization: Bearer`` token, or a file of them; None for no check.
        hosts: names in the Host header that are answered beside those of this machine; None for all.
        closing: tells whether the server is shutting down.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        service: Service,
        token: str | TokenFile | None,
        hosts: frozenset[str] | None,
        closing: Callable[[], bool],
    ) -> None:
        self.app, self.service, self.hosts, self.closing = app, service, hosts, closing
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, path, status, headers = time.perf_counter(), scope["path"], 500, Headers(scope=scope)
        scope["request_id"] = request_id = _request_id(headers.get("x-request-id", ""))

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = (*EVERY_RESPONSE, CLOSE) if self.closing() else EVERY_RESPONSE
                message["headers"] = [*message.get("headers", ()), *extra, (b"x-request-id", request_id.encode())]
            await send(message)

        answer = self._refusal(scope, path, headers)
        if answer is None:
            answer = self._predict if path == PREDICT and scope["method"] == "POST" else self.app
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server leaves the body out
        try:
            await answer(scope, receive, send_and_note)
        finally:
            seconds = time.perf_counter() - began
            self.service.metrics.count_request(path if path in ROUTES else "other", status, seconds)
            if log.isEnabledFor(logging.INFO):
                about = {"request_id": request_id, "method": scope["method"], "path": path, "status": status}
                client = (scope.get("client") or ("",))[0]
                log.info("request", extra={**about, "ms": round(1e3 * seconds, 2), "client": client})

    async def _predict(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer POST /v1/predict as its route does, in less time."""
        try:
            response = await answer_predict(self.service, Request(scope, receive))
        except Exception as error:
            response = error_response(error, scope["request_id"])
        await response(scope, receive, send)

    def _refusal(self, scope: Scope, path: str, headers: Headers) -> ASGIApp | None:
        """Return the response to a request that must not be answered, or None."""
        if self.hosts is not None and path not in HEALTH and not self._expects(scope, headers.get("host", "")):
            error = (
                f"Expected the Host header to name this machine but got {headers.get('host', '')[:100]!r}. A page of another "
                "site may have sent this. Start the service with --allowed-host NAME to be reached by that name."
            )
            return JSONResponse({"error": error}, 421)
        if path not in OPEN and not self._authorised(headers):
            error = (
                "Expected the header 'Authorization: Bearer TOKEN' with the token that the service was started with."
            )
            return JSONResponse({"error": error}, 401, headers={"WWW-Authenticate": "Bearer"})
        if scope["method"] not in SAFE_METHODS and is_cross_site(headers):
            error = (
                "Expected a request of the service's own page, or of a program, but this one was made by a page of another "
                "site. A proxy must forward the Host header."
            )
            return JSONResponse({"error": error}, 403)
        return None

    def _expects(self, scope: Scope, host: str) -> bool:
        """Return whether a Host header names this machine, the address that was connected to, or an allowed name."""
        name = host_name(host)
        assert self.hosts is not None
        return is_local(name) or name in self.hosts or name == (scope.get("server") or ("",))[0]

    def _authorised(self, headers: Headers) -> bool:
        """Return whether the request carries a token; the comparison takes constant time."""
        if self.token is None:
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        accepted = (self.token,) if isinstance(self.token, str) else self.token()
        sent = given.strip().encode("latin-1")
        return scheme.lower() == "bearer" and any(hmac.compare_digest(sent, each.encode()) for each in accepted)


def _request_id(given: str) -> str:
    """Return the client's own id of a request where it is a short plain word, else a new one."""
    return given if PLAIN_WORD.fullmatch(given) else os.urandom(8).hex()


PLAIN_WORD = re.compile(r"[A-Za-z0-9._-]{1,64}")


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
