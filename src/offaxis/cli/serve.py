"""``offaxis serve``: a verdict for each image, over HTTP."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from offaxis.bundle import bundle_checksum, load, local_bundle
from offaxis.errors import ArgumentError
from offaxis.model import Model
from offaxis.onnx import with_engine
from offaxis.options import ServeOptions
from offaxis.progress import print_note
from offaxis.serve.app import TokenFile, is_local
from offaxis.serve.server import log as serve_log
from offaxis.serve.server import make_server, serve, set_up_log


def serve_bundle(options: ServeOptions, _: tuple[str, ...]) -> None:
    """Serve a bundle over HTTP: POST /v1/predict, GET /v1/model, /v1/drift, /metrics, /healthz, /readyz, and a page at /.

    SIGHUP reads the bundle again: a new one is served once it has been checked, without a pause.
    """
    bundle = options.bundle
    assert bundle is not None
    secret, as_json = _token(options.token_file, options.token), options.log == "json"
    set_up_log(options.log)

    def load_model(served: Model | None = None) -> Model:
        before = served and served.source
        if served is not None and before and before.sha256 == bundle_checksum(local_bundle(bundle)):
            return served
        return with_engine(load(bundle, options.network).to(options.device), options.engine)

    with _waiting_hangup():
        model = load_model()
        server = make_server(model, options, token=secret, reload=load_model)
        if secret is None and not is_local(options.host):
            text = f"Every client that reaches {options.host} can use this service: --token-file requires a token."
            serve_log.warning(text) if as_json else print_note(text, "yellow")
        runs = "PyTorch" if model.engine is None else "onnxruntime"
        where = f"offaxis serves {server.service.served.title} in {runs} at http://{options.host}"

        def announce(bound: int) -> None:
            serve_log.info(f"{where}:{bound}") if as_json else print_note(f"{where}:{bound}  (Ctrl-C stops it)")

        serve(server, announce)


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


def _token(file: Path | None, given: str | None) -> str | TokenFile | None:
    if file is not None:
        return TokenFile(file)
    given = os.environ.get("OFFAXIS_TOKEN") if given is None else given
    if given is not None and not given.strip():
        raise ArgumentError("Expected a token in OFFAXIS_TOKEN but it is empty.")
    return given and given.strip()
