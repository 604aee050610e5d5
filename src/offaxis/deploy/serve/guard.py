"""Around every route: the token, and what is counted."""

import hmac
import time

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from offaxis.deploy.serve.metrics import Metrics


class Guard:
    """Asks for the token where there is one, and counts requests, statuses and latency.

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

        try:
            if path in self.free or self._knows(scope):
                await self.app(scope, receive, noting)
            else:
                answer = JSONResponse(
                    {"error": "Expected a bearer token."}, 401, headers={"WWW-Authenticate": "Bearer"}
                )
                await answer(scope, receive, noting)
        finally:
            route = path if path in self.routes else "other"
            self.metrics.requests.labels(route, str(status)).inc()
            self.metrics.latency.labels(route).observe(time.perf_counter() - began)

    def _knows(self, scope: Scope) -> bool:
        """Whether the request carries the token; compared in a time that does not tell how much of it is right."""
        if self.expected is None:
            return True
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return hmac.compare_digest(given, self.expected)
