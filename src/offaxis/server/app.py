"""The routes."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from offaxis.server.body import images_in
from offaxis.server.guard import Guard
from offaxis.server.refusals import Refusal
from offaxis.server.service import Service
from offaxis.version import __version__

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
