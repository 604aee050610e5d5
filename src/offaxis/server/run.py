"""The service as a process: sockets, time limits for heads, and an end that finishes what was taken."""

import asyncio
import ipaddress
import logging

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from offaxis.deploy.model import Model
from offaxis.errors import StorageError
from offaxis.server.app import make_app
from offaxis.server.body import Limits
from offaxis.server.service import Service


def make_server(
    model: Model,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    limits: Limits | None = None,
    level: float = 0.01,
) -> uvicorn.Server:
    """A server for a model; ``run()`` serves until SIGTERM or SIGINT and then finishes what it has taken."""
    limits = limits or Limits()
    app = make_app(Service(model, limits, level), token)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=_patient(limits),
        ws="none",
        lifespan="on",
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=round(limits.seconds_to_send + limits.seconds_to_answer),
    )
    return uvicorn.Server(config)


def serve(server: uvicorn.Server) -> None:
    """Serve until told to stop.

    Raises:
        StorageError: the address is taken or not ours.
    """
    try:
        server.run()
    except SystemExit as stop:  # uvicorn's way of saying that it could not bind
        if stop.code:
            raise StorageError(
                f"Port {server.config.port} of {server.config.host} cannot be listened on: it is taken, or not ours. Choose "
                "another with --port."
            ) from stop


def is_local(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _patient(limits: Limits) -> type[H11Protocol]:
    """Uvicorn's protocol with two bounds that it lacks: on connections, and on the time that a client may keep one waiting.

    It waits for the rest of a head, for the rest of a body whose request is answered already, and for answers to be read.
    """

    class Patient(H11Protocol):
        _hurry: asyncio.TimerHandle | None = None
        _unread: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            transport.set_write_buffer_limits(high=0)  # writing pauses as soon as the client does not keep up
            if len(self.connections) > limits.connections:
                transport.abort()
                return
            self._await_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)  # which stops uvicorn's own clock for connections without a request
            if self._waits():
                self._await_head()
            elif self._hurry is not None:
                self._hurry.cancel()
                self._hurry = None

        def pause_writing(self) -> None:
            super().pause_writing()
            self._unread = self.loop.call_later(limits.seconds_to_send, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._unread is not None:
                self._unread.cancel()

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._hurry, self._unread):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def _waits(self) -> bool:
            """Whether no request is being worked on."""
            answered = self.cycle is not None and self.cycle.response_complete
            return answered or self.conn.their_state is h11.IDLE

        def _await_head(self) -> None:
            if self._hurry is None:
                self._hurry = self.loop.call_later(limits.seconds_to_send, self._give_up)

        def _give_up(self) -> None:
            self._hurry = None
            if self._waits() and not self.transport.is_closing():
                self.transport.close()

    return Patient
