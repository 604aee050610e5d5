"""The service as a process: sockets, time limits for clients, reloading, and a graceful shutdown."""

import asyncio
import json
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from logging.handlers import WatchedFileHandler
from multiprocessing.context import SpawnProcess
from multiprocessing.managers import BaseManager
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, cast

import uvicorn
from prometheus_client.multiprocess import mark_process_dead
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from offaxis.errors import ServerError
from offaxis.model import Model
from offaxis.options import ServeOptions
from offaxis.progress import visible
from offaxis.serve.alarm import check_call
from offaxis.serve.app import App, TokenFile
from offaxis.serve.queue import Limits
from offaxis.serve.service import SHARED, Service, predictions_log
from offaxis.serve.streams import Streams

MAX_HEAD_BYTES = 64 * 1024  # of what is not body: request line, headers, trailers, and the framing of chunks
SECONDS_TO_DRAIN = 0.5  # of a shutdown: while others still connect, and then for requests on open connections
MAX_PIPELINED = 64  # requests that a client sends without waiting for responses
log = logging.getLogger("offaxis.serve")


def make_server(
    model: Model | Mapping[str, Model],
    options: ServeOptions,
    *,
    token: str | TokenFile | None = None,
    limits: Limits | None = None,
    reload: Callable[[str, Model], Model] | None = None,
    streams: Streams | None = None,
) -> "Server":
    """Make a server for models; ``serve`` runs it until SIGTERM or SIGINT and then finishes the open requests.

    Args:
        model: a calibrated model, or several by name; they run on the devices they are on.
        options: those of ``offaxis serve``: address and port, limits, names of the host, the level of the drift monitor.
        token: the bearer token that requests must carry, or a file of them; None for no check.
        limits: sizes and times; None for those of the options.
        reload: loads a model again, for SIGHUP; it gets its name and the served model, and returns that one where nothing
            has changed. None to ignore the signal.
        streams: the drift monitors; None to make them, by the options.
    """
    limits = within_file_limit(limits or Limits.of(options))
    models = {"model": model} if isinstance(model, Model) else model
    service = Service(models, limits, streams or make_streams(options))
    config = uvicorn.Config(
        App(service, token, options.allowed_host, lambda: server.should_exit),
        host=options.host,
        port=options.port,
        http=limited_protocol(limits),
        ws="none",
        lifespan="on",
        log_level=logging.ERROR,  # it warns of each request that is no HTTP
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=round(limits.seconds_to_send + limits.seconds_to_answer),
    )
    server = Server(config, service, reload)
    return server


def make_streams(options: ServeOptions) -> Streams:
    """Return the drift monitors that options ask for."""
    return Streams(options.level, None if options.on_alarm is None else check_call(options.on_alarm), options.state)


class Server(uvicorn.Server):
    """A server that loads its model again at SIGHUP, and reports once, in one line, that no more files can be opened.

    Args:
        config: of uvicorn.
        service: whose model is replaced.
        reload: loads a model again, given its name and the served one; None to ignore SIGHUP.

    Attributes:
        reload_asked: set by SIGHUP.
        announce: called with the port once it is bound and requests are answered.
    """

    def __init__(self, config: uvicorn.Config, service: Service, reload: Callable[[str, Model], Model] | None) -> None:
        super().__init__(config)
        self.service, self.reload = service, reload
        self.announce: Callable[[int], None] = lambda _: None
        self.reload_asked = asyncio.Event()
        self._reported = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, take the reports of the event loop, and wait for SIGHUP."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._report)
        self._reloading = loop.create_task(self._reload_when_asked())
        if self.reload is not None and hasattr(signal, "SIGHUP"):
            with suppress(ValueError, RuntimeError):  # signals are for the main thread
                loop.add_signal_handler(signal.SIGHUP, self.reload_asked.set)
        await super().startup(sockets)
        if hasattr(signal, "SIGHUP"):  # one that came while the model was loaded comes now
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        if self.started and self.servers:
            self.announce(self.servers[0].sockets[0].getsockname()[1])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what was sent before clients could know, stop listening, close connections, and finish the rest.

        A request may lie unread in a connection that looks idle, or that is not accepted yet; closed at once, its client
        would get a reset. So connections are accepted until there is none, or for a while, as are requests on them.
        """
        await self._drained()
        connected: list[socket.socket] = []
        for each in sockets or ():
            each.listen(0)
            with suppress(BlockingIOError):  # nobody waits, now that it closes
                while True:
                    connected.append(each.accept()[0])
        for server in self.servers:
            server.close()
        loop, make_protocol = asyncio.get_running_loop(), cast(Any, self.config.http_protocol_class)
        protocol = partial(make_protocol, self.config, self.server_state, self.lifespan.state, loop)
        for each in connected:
            with suppress(OSError):
                await loop.connect_accepted_socket(protocol, each)
        await self._drained()
        await super().shutdown(sockets)

    async def _drained(self) -> None:
        """Wait until no connection is open, for a while at most."""
        until = time.monotonic() + SECONDS_TO_DRAIN
        await asyncio.sleep(0)
        while self.server_state.connections and time.monotonic() < until:
            await asyncio.sleep(SECONDS_TO_DRAIN / 10)

    async def _reload_when_asked(self) -> None:
        """Load the models again each time it is asked for; each serves until the new one has answered a test image."""
        while await self.reload_asked.wait():
            self.reload_asked.clear()  # asked for from here on, it is loaded once more
            assert self.reload is not None
            for name in self.service.models:
                try:
                    replaced = await self.service.replace_model(name, self.reload)
                except Exception as error:  # whatever is wrong with the new bundle, the old one goes on
                    log.error("the new bundle is not served (%s); the old one goes on", error)
                    result = "refused"
                else:
                    new = f"the new bundle is served: {self.service.models[name].title}"
                    log.warning("%s", new if replaced else "the bundle is unchanged: nothing was reloaded")
                    result = "served" if replaced else "unchanged"
                self.service.metrics.reloads.labels(result, name).inc()

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        about = str(context.get("message"))  # asyncio tries again in a second, when the socket may be closed
        if "socket.accept" not in about and "_start_serving" not in about:
            loop.default_exception_handler(context)
        elif not self._reported:
            self._reported = True
            log.error("a connection could not be accepted (%s); this is reported once", context["exception"])


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and what belongs to a request or to the drift monitor."""

    FIELDS = ("request_id", "method", "path", "status", "ms", "client", "drift")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record; a traceback is part of it."""
        line = {"time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")}
        line |= {"level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        line |= {name: getattr(record, name) for name in self.FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)  # in ASCII: names may hold what a terminal obeys


class PlainFormatter(logging.Formatter):
    """Level, message and logger; what a terminal would obey is escaped."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s: %(message)s (%(name)s)")

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        return visible(super().format(record))


def set_up_log(kind: str) -> None:
    """Log to standard error: ``"plain"`` warnings and errors as text, ``"json"`` these and every request as JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if kind == "json" else PlainFormatter())
    for name in ("offaxis", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if kind == "json" and name == "offaxis" else logging.WARNING)


def within_file_limit(limits: Limits) -> Limits:
    """Return limits whose connections take at most half of the files that this process may open.

    The soft limit of the process is raised as far as the hard one allows.
    """
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return limits
    files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * limits.connections + 100
    if resource.RLIM_INFINITY != files < wanted:
        files = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
        if files < wanted:
            limits = replace(limits, connections=max(1, min(limits.connections, files // 2)))
            log.warning("the file limit (ulimit -n %d) leaves room for %d connections", files, limits.connections)
    return limits


def log_predictions(file: Path) -> None:
    """Write a line of JSON for every image that is counted; a file that logrotate moves is opened anew.

    Raises:
        ServerError: the file cannot be written.
    """
    try:
        handler = WatchedFileHandler(file, encoding="utf-8")
    except OSError as error:
        raise ServerError(f"The log of predictions cannot be written ({error}): give another file.") from error
    predictions_log.handlers, predictions_log.propagate = [handler], False
    predictions_log.setLevel(logging.INFO)


def serve(server: Server, announce: Callable[[int], None] = lambda _: None, on: socket.socket | None = None) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        server: what ``make_server`` returned.
        announce: called with the port once requests are answered.
        on: what ``bind`` returned; None for the address of the server.

    Raises:
        ServerError: the port cannot be bound.
    """
    server.announce = announce
    server.run([on or bind(server.config.host, server.config.port)])


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address, and does not listen yet.

    Raises:
        ServerError: the address cannot be bound.
    """
    try:
        with ExitStack() as on_error:
            family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            bound = on_error.enter_context(socket.socket(family, kind, number))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            on_error.pop_all()
    except OSError as error:
        raise ServerError(
            f"The service cannot listen on port {port} of {host}: the port is in use or not permitted, or the address is not "
            "one of this machine. Choose another with --port or --host."
        ) from error
    return bound


class SharedStreams(BaseManager):
    """Gives workers the drift monitors of the process that started them."""


SharedStreams.register("streams", exposed=("open", "watch", "drift", "reset"))


def serve_in_workers(work: Callable[..., None], options: ServeOptions, streams: Streams, on: socket.socket) -> None:
    """Serve in several processes, which accept connections of one socket and share the drift monitors of this one.

    A worker that ends is started again, and signals are passed on to all.

    Args:
        work: run by each worker with options, socket, the address and key of ``SharedStreams``, and an event to set once it
            serves; at the top of a module.
        options: those of ``offaxis serve``.
        streams: the drift monitors.
        on: what ``bind`` returned.

    Raises:
        ServerError: a worker ended before it served.
    """
    count, spawn, key = options.workers, multiprocessing.get_context("spawn"), os.urandom(32)
    SharedStreams.register("streams", lambda: streams, exposed=("open", "watch", "drift", "reset"))
    shared = SharedStreams(authkey=key).get_server()
    Thread(target=shared.serve_forever, daemon=True).start()
    running: dict[int, tuple[SpawnProcess, Event]] = {}
    stopping = failed = False

    def start() -> None:
        up = spawn.Event()
        worker = spawn.Process(target=work, args=(options, on, shared.address, key, up))
        worker.start()
        running[worker.sentinel] = worker, up

    def pass_on(number: int, _: object = None) -> None:
        nonlocal stopping
        stopping = stopping or number != signal.SIGHUP
        if stopping:
            on.close()  # the last worker that closes it ends it
        for worker, _ in running.values():
            os.kill(worker.pid or 0, signal.SIGTERM if stopping else number)  # a second SIGINT would cut requests off

    with TemporaryDirectory() as folder:
        os.environ[SHARED] = folder
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
        for _ in range(count):
            start()
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(each, pass_on)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        while running:
            for sentinel in multiprocessing.connection.wait(list(running)):
                worker, up = running.pop(cast(int, sentinel))
                worker.join()
                mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
                if not stopping and up.is_set():
                    log.error("a worker ended (exit code %s) and is started again", worker.exitcode)
                    start()
                elif not stopping:
                    failed = True
                    pass_on(signal.SIGTERM)
    if failed:
        raise ServerError("A worker ended before it served: see what it said above, or start with --workers 1.")


def limited_protocol(limits: Limits) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with limits that it lacks: on connections, on the time a client may take, and on heads.

    The time limit holds for the rest of a request's head, for the rest of a body whose request is answered already, and for
    reading the response. httptools itself takes heads and trailers of any length and any number of requests.
    """

    class LimitedProtocol(HttpToolsProtocol):
        _head_timer: asyncio.TimerHandle | None = None
        _read_timer: asyncio.TimerHandle | None = None
        _head_bytes = _body_bytes = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._open: list[RequestResponseCycle] = []  # uvicorn tells the latest alone that the client has gone
            transport.set_write_buffer_limits(high=0)  # writing pauses as soon as the client does not keep up
            if len(self.connections) > limits.connections:
                transport.abort()
                return
            self._start_head_timer()

        def data_received(self, data: bytes) -> None:
            self._head_bytes += len(data)
            super().data_received(data)  # which stops uvicorn's own timer for connections without a request
            if self._idle():
                self._start_head_timer()
            elif self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
            if self._head_bytes > MAX_HEAD_BYTES + self._body_bytes // 4:
                self.send_400_response("The head of the request is too long.")

        def on_headers_complete(self) -> None:
            if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
                raise ValueError("the head is too long")  # the parser stops here, as it does below
            super().on_headers_complete()
            self._open = [*(cycle for cycle in self._open if not cycle.response_complete), self.cycle]
            if len(self.pipeline) > MAX_PIPELINED:
                self.transport.abort()
                raise ConnectionError("too many requests on one connection")

        def on_body(self, body: bytes) -> None:
            self._head_bytes -= len(body)
            self._body_bytes += len(body)
            super().on_body(body)

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._head_bytes = self._body_bytes = 0

        def send_400_response(self, msg: str) -> None:
            if not self.transport.is_closing():
                super().send_400_response(msg)

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
            for cycle in self._open:
                cycle.disconnected = True
                cycle.message_event.set()
            super().connection_lost(exc)

        def _idle(self) -> bool:
            """Return whether no request is in progress."""
            return self.cycle is None or self.cycle.response_complete

        def _start_head_timer(self) -> None:
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(limits.seconds_to_send, self._close_idle)

        def _close_idle(self) -> None:
            self._head_timer = None
            if self._idle() and not self.transport.is_closing():
                self.transport.close()

    return LimitedProtocol
