"""``offaxis serve``: a verdict for each image, over HTTP."""

import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from socket import socket

from offaxis.bundle import bundle_checksum, load, local_bundle
from offaxis.errors import ArgumentError, OffaxisError
from offaxis.model import Model
from offaxis.onnx import with_engine
from offaxis.options import ServeOptions
from offaxis.progress import print_note
from offaxis.serve.app import TokenFile, is_local
from offaxis.serve.server import (
    SharedStreams,
    bind,
    log_predictions,
    make_server,
    make_streams,
    serve,
    serve_in_workers,
    set_up_log,
)
from offaxis.serve.server import log as serve_log
from offaxis.serve.streams import Streams


def serve_bundle(options: ServeOptions, _: tuple[str, ...]) -> None:
    """Serve a bundle over HTTP: POST /v1/predict, GET /v1/model, /v1/drift, /metrics, /healthz, /readyz, and a page at /.

    SIGHUP reads the bundle again: a new one is served once it has been checked, without a pause.
    """
    set_up_log(options.log)
    if _token(options) is None and not is_local(options.host):
        text = f"Every client that reaches {options.host} can use this service: --token-file requires a token."
        serve_log.warning(text) if options.log == "json" else print_note(text, "yellow")
    bundles_by_name(options.bundle)
    streams = make_streams(options)
    with _waiting_hangup(), bind(options.host, options.port) as on, streams.saved():
        if options.workers == 1:
            serve_alone(options, on, streams)
        else:
            serve_in_workers(_work, options, streams, on)


def serve_alone(options: ServeOptions, on: socket, streams: Streams, up: Callable[[], object] = lambda: None) -> None:
    """Serve in this process."""
    paths = bundles_by_name(options.bundle)
    if options.log_predictions is not None:
        log_predictions(options.log_predictions)

    def load_model(name: str, served: Model | None = None) -> Model:
        before = served and served.source
        if served is not None and before and before.sha256 == bundle_checksum(local_bundle(paths[name])):
            return served
        return with_engine(load(paths[name], options.network).to(options.device), options.engine)

    models = {name: load_model(name) for name in paths}
    server = make_server(models, options, token=_token(options), reload=load_model, streams=streams)
    what = ", ".join(
        f"{each.title} in {'PyTorch' if each.model.engine is None else 'onnxruntime'}"
        for each in server.service.models.values()
    )

    def announce(port: int) -> None:
        up()
        text = f"offaxis serves {what} at http://{options.host}:{port}"
        serve_log.info(text) if options.log == "json" else print_note(f"{text}  (Ctrl-C stops it)")
        for name, model in models.items():
            if drift := (model.expectation or {}).get("drift"):
                said = f"{name}: {drift}" if len(models) > 1 else drift
                serve_log.info(said) if options.log == "json" else print_note(said)

    serve(server, announce, on)


def _work(options: ServeOptions, on: socket, address: str, key: bytes, up: Event) -> None:
    """Serve in a process of its own, with the drift monitors of the process that started it."""
    set_up_log(options.log)
    shared = SharedStreams(address, authkey=key)
    shared.connect()
    try:
        serve_alone(options, on, shared.streams(), up.set)  # type: ignore[attr-defined]
    except OffaxisError as error:
        print_note(str(error), "red")
        raise SystemExit(2) from None


def bundles_by_name(bundles: Sequence[str]) -> dict[str, Path]:
    """Return the paths of bundles by the names of their files, without the ending and what a URL would have to escape.

    Raises:
        ArgumentError: two have the same name.
    """
    found: dict[str, Path] = {}
    for bundle in map(Path, bundles):
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", bundle.name.removesuffix(".oax"))
        if name in found:
            raise ArgumentError(
                f"Expected bundles of different names but {found[name]} and {bundle} are both called {name!r}: rename one, or "
                "serve a link to it."
            )
        found[name] = bundle
    return found


@contextmanager
def _waiting_hangup() -> Iterator[None]:
    """Let SIGHUP wait until the server takes it: it would end a process that is still loading its bundle."""
    if not hasattr(signal, "SIGHUP"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _token(options: ServeOptions) -> str | TokenFile | None:
    if options.token_file is not None:
        return TokenFile(options.token_file)
    given = os.environ.get("OFFAXIS_TOKEN") if options.token is None else options.token
    if given is not None and not given.strip():
        raise ArgumentError("Expected a token in OFFAXIS_TOKEN but it is empty.")
    return given and given.strip()
