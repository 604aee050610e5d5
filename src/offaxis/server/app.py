"""The routes, and around every route: the token, who may change something, and what is counted."""

import hmac
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from offaxis import __version__
from offaxis.server.body import Refusal, images_in
from offaxis.server.service import Metrics, Service

PAGE = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
OPEN = frozenset({*PAGE, "/healthz"})
ROUTES = frozenset({*OPEN, "/v1/predict", "/v1/model", "/v1/drift", "/v1/drift/reset", "/metrics"})
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
log = logging.getLogger("offaxis.serve")


def make_app(service: Service, token: str | None = None) -> FastAPI:
    """The service as an ASGI application.

    Args:
        service: model, queue and watch.
        token: what ``Authorization: Bearer`` must hold; None for no such check. The page and /healthz are open.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service.batcher:
            yield
        service.close()

    app = FastAPI(
        title="offaxis",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    _add_errors(app)
    app.add_middleware(Guard, metrics=service.metrics, routes=ROUTES, free=OPEN, token=token)
    _add_api(app, service)
    _add_page(app)
    return app


def _add_api(app: FastAPI, service: Service) -> None:
    @app.post("/v1/predict")
    async def predict(request: Request) -> Response:
        """One image as the body, or several as multipart/form-data -> class, p-value and verdict of each."""
        async with service.budget.body(request) as body:
            images = await images_in(body, request.headers, service.limits)
            records = await service.predict(images)
        judged = any("error" not in record for record in records)
        return JSONResponse({"predictions": records}, 200 if judged else 422)

    @app.get("/v1/model")
    async def model() -> dict[str, Any]:
        """Classes, preprocessing, detector, level, calibration and provenance.

        Where verdicts are per class (`per_class`), `threshold` and `calibration.flag_rate` are null; `class_thresholds` and
        `calibration.class_flag_rates` have an entry for each class, null where its calibration images are too few. Where
        they are not, it is the other way round.
        """
        return service.about()

    @app.get("/v1/drift")
    async def drift() -> dict[str, Any]:
        """Whether the stream has left the training distribution, and the line that led there."""
        return service.drift()

    @app.post("/v1/drift/reset")
    async def reset() -> dict[str, Any]:
        """Begin the watch anew, after an alarm was looked into."""
        service.forget()
        return service.drift()

    @app.get("/healthz")
    async def health() -> dict[str, str]:
        """Whether the service is up."""
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counts for Prometheus."""
        service.metrics.queue.set(len(service.batcher.queue))
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_page(app: FastAPI) -> None:
    for route, (name, kind) in PAGE.items():
        content = files("offaxis.server").joinpath("page", name).read_bytes()
        app.add_api_route(route, _Page(content, kind), methods=["GET"], include_in_schema=False)


class _Page:
    """A route that sends one file."""

    def __init__(self, content: bytes, kind: str) -> None:
        self.content, self.kind = content, kind

    async def __call__(self) -> Response:
        return Response(self.content, media_type=self.kind, headers=HEADERS)


def _add_errors(app: FastAPI) -> None:
    """Every error becomes a sentence; what is wrong inside is logged here and told to nobody."""

    @app.exception_handler(Refusal)
    async def refused(_: Request, error: Refusal) -> Response:
        # The rest of a body that was refused is not read: the connection ends here.
        headers = {"Connection": "close"}
        if error.retry_after is not None:
            headers["Retry-After"] = str(error.retry_after)
        return JSONResponse({"error": error.reason}, error.status, headers=headers)

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, error: ClientDisconnect) -> Response:  # noqa: ARG001 - the handler's shape
        return Response(status_code=400)

    @app.exception_handler(404)
    async def unknown(_: Request, error: Exception) -> Response:  # noqa: ARG001 - the handler's shape
        return JSONResponse({"error": "There is nothing here: see /v1/model, POST /v1/predict and /v1/drift."}, 404)

    @app.exception_handler(Exception)
    async def broken(_: Request, error: Exception) -> Response:
        log.error("a request failed", exc_info=error)
        return JSONResponse({"error": "Something went wrong inside the service."}, 500)


LOOKING = frozenset({"GET", "HEAD", "OPTIONS"})  # methods that change nothing


class Guard:
    """Asks for the token where there is one, refuses pages of other sites, and counts requests, statuses and latency.

    Args:
        app: what is inside.
        metrics: where it counts.
        routes: paths that are counted under their own name; all others are "other".
        free: paths that need no token.
        token: what ``Authorization: Bearer`` must hold; None for no such check.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, routes: frozenset[str], free: frozenset[str], token: str | None
    ) -> None:
        self.app, self.metrics, self.routes, self.free = app, metrics, routes, free
        self.expected = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, path, status = time.perf_counter(), scope["path"], 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        headers = Headers(scope=scope)
        answer: ASGIApp = self.app
        if path not in self.free and not self._knows(headers):
            answer = JSONResponse({"error": "Expected a bearer token."}, 401, headers={"WWW-Authenticate": "Bearer"})
        elif scope["method"] not in LOOKING and is_foreign(headers):
            answer = JSONResponse(
                {
                    "error": "Expected a request of the service's own page, or of a program, but this one was made by a page "
                    "of another site. A proxy in between must pass the Host header on."
                },
                403,
            )
        try:
            await answer(scope, receive, noting)
        finally:
            route = path if path in self.routes else "other"
            self.metrics.requests.labels(route, str(status)).inc()
            self.metrics.latency.labels(route).observe(time.perf_counter() - began)

    def _knows(self, headers: Headers) -> bool:
        """Whether the request carries the token; compared in a time that does not tell how much of it is right."""
        if self.expected is None:
            return True
        return hmac.compare_digest(headers.get("authorization", "").encode("latin-1"), self.expected)


def is_foreign(headers: Headers) -> bool:
    """Whether a browser made the request for a page that is not the service's own.

    Browsers let any page send a POST anywhere, without showing it the answer. New ones say for whom they ask
    (Sec-Fetch-Site, "none" where the user did), older ones name the page's origin; other programs do neither.
    """
    asked_for = headers.get("sec-fetch-site")
    if asked_for is not None:
        return asked_for not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower()
