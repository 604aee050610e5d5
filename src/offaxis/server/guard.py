"""Around every route: the token, who may change something, and what is counted."""

import hmac
import time

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from offaxis.server.metrics import Metrics

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
