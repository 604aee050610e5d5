"""The service as a process: sockets, time limits for clients, and a graceful shutdown."""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from offaxis.deploy.model import Model
from offaxis.errors import ServerError
from offaxis.server.app import make_app
from offaxis.server.body import Limits
from offaxis.server.service import Service


def make_server(
    model: Model,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    limits: Limits | None = None,
    level: float = 0.01,
) -> uvicorn.Server:
    """Make a server for a model; ``serve`` runs it until SIGTERM or SIGINT and then finishes the open requests.

    Args:
        model: a calibrated model; it runs on the device it is on.
        host: address to listen on.
        port: port to listen on.
        token: the bearer token that requests must carry; None for no check.
        limits: sizes and times; None for the defaults.
        level: the probability that the drift monitor ever alarms on an ID stream.
    """
    limits = limits or Limits()
    app = make_app(Service(model, limits, level), token)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=_protocol(limits),
        ws="none",
        lifespan="on",
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=round(limits.seconds_to_send + limits.seconds_to_answer),
    )
    return uvicorn.Server(config)


def serve(server: uvicorn.Server, announce: Callable[[int], None] = lambda _: None) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        server: what ``make_server`` returned.
        announce: called with the port once it is bound and requests are answered.

    Raises:
        ServerError: the port cannot be bound.
    """
    start = server.startup

    async def started(sockets: list[socket.socket] | None = None) -> None:
        await start(sockets)
        if server.started and server.servers:
            announce(server.servers[0].sockets[0].getsockname()[1])

    server.startup = started  # type: ignore[method-assign]
    try:
        server.run()
    except SystemExit as stop:  # uvicorn exits where it cannot bind
        if stop.code:
            raise ServerError(
                f"The service cannot listen on port {server.config.port} of {server.config.host}: the port is in use or not "
                "permitted, or the address is not one of this machine. Choose another with --port or --host."
            ) from stop


def is_local(host: str) -> bool:
    """Return whether an address can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _protocol(limits: Limits) -> type[H11Protocol]:
    """Return uvicorn's protocol with two limits that it lacks: on connections, and on the time a client may take.

    The time limit holds for the rest of a request's head, for the rest of a body whose request is answered already, and for
    reading the response.
    """

    class LimitedProtocol(H11Protocol):
        _head_timer: asyncio.TimerHandle | None = None
        _read_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            transport.set_write_buffer_limits(high=0)  # writing pauses as soon as the client does not keep up
            if len(self.connections) > limits.connections:
                transport.abort()
                return
            self._start_head_timer()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)  # which stops uvicorn's own timer for connections without a request
            if self._idle():
                self._start_head_timer()
            elif self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def pause_writing(self) -> None:
            super().pause_writing()
            self._read_timer = self.loop.call_later(limits.seconds_to_send, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._read_timer is not None:
                self._read_timer.cancel()

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._head_timer, self._read_timer):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def _idle(self) -> bool:
            """Return whether no request is in progress."""
            answered = self.cycle is not None and self.cycle.response_complete
            return answered or self.conn.their_state is h11.IDLE

        def _start_head_timer(self) -> None:
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(limits.seconds_to_send, self._close_idle)

        def _close_idle(self) -> None:
            self._head_timer = None
            if self._idle() and not self.transport.is_closing():
                self.transport.close()

    return LimitedProtocol
