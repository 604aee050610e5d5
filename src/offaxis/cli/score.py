"""``offaxis score`` and ``offaxis serve``: a verdict for each of many images, as rows of a file or over HTTP."""

import io
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from offaxis.cli.app import command, print_note
from offaxis.errors import ArgumentError, DataError, MissingPackageError
from offaxis.options import ScoreOptions, ServeOptions

if TYPE_CHECKING:
    from offaxis.model import Model
    from offaxis.serve.app import TokenFile

FEW = 16  # single images, which PyTorch has scored before a graph for onnxruntime is exported


@command(
    "score",
    ScoreOptions,
    "offaxis score digits.oax photo.jpg",
    "offaxis score digits.oax photos/ more.zip --out scores.csv",
    "offaxis score digits.oax photos/ --fdr 0.1 --out scores.csv",
)
def score_command(options: ScoreOptions, _: tuple[str, ...]) -> None:
    """Score images: one row each with class, probability, cosine, score, p-value and verdict, or the error.

    A summary (.summary.json) and a page of the images with the highest scores (.html) are written beside the rows.
    """
    from offaxis.bundle import load, local_bundle
    from offaxis.data.decode import SUFFIXES
    from offaxis.onnx import with_engine
    from offaxis.score import score_images, sentences

    on_ray = options.runner == "ray"
    if on_ray and (options.network is not None or options.detector is not None):
        raise ArgumentError(
            "Expected a bundle that needs no code of your own for --runner ray: --network and --detector are for threads."
        )
    if on_ray and options.device not in ("auto", "cpu"):
        raise ArgumentError(
            f"Expected no --device beside --runner ray, whose workers use the CPU, but got {options.device}."
        )
    assert options.bundle is not None
    options = replace(options, bundle=local_bundle(options.bundle))
    assert options.bundle is not None
    model = load(options.bundle, options.network).to(options.device)
    given = options.paths or ("-",)
    named = _paths(given)
    eager = on_ray or (options.engine == "auto" and _few(given))
    model = with_engine(model, "torch" if eager else options.engine)
    if options.format is None and options.out == "-" and sys.stdout.isatty():
        options = replace(options, format="text")
    summary = score_images(model, options, named)
    print_note(sentences(summary))
    if summary.get("page"):
        print_note(f"The images with the highest scores: {summary['page']}")
    if not summary["bad_files"] and not summary["images"] and summary["inputs"] == "images":
        print_note(f"No images were found; they are files that end in {', '.join(sorted(SUFFIXES))}.", "yellow")
    if summary["bad_files"] and not summary["images"]:
        raise DataError("Nothing could be scored: every row has its reason, and the first of them stand above.")


def _paths(given: tuple[str, ...]) -> Iterable[str]:
    """Return the paths, with a list from standard input in place of a dash."""
    absent = [path for path in given if path != "-" and not Path(path).exists()]
    if absent:
        raise DataError(
            f"There is no {absent[0]}: name images, folders or archives, or - for a list on standard input."
        )
    if "-" not in given:
        return given
    return (name for path in given for name in (_lines() if path == "-" else (path,)))


def _few(given: tuple[str, ...]) -> bool:
    """Return whether these are single images, and so few that exporting a graph would take longer than it saves."""
    from offaxis.data.decode import SUFFIXES

    return len(given) <= FEW and all(Path(path).suffix.lower() in SUFFIXES for path in given)


def _lines() -> Iterator[str]:
    if sys.stdin.isatty():
        raise ArgumentError(
            "Expected paths, or a list of them on standard input: find photos -name '*.jpg' | offaxis score x.oax -"
        )
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # names of files need not be UTF-8
    return (name for line in sys.stdin if (name := line.rstrip("\r\n")))


@command("serve", ServeOptions, "offaxis serve digits.oax --port 8000")
def serve_command(options: ServeOptions, _: tuple[str, ...]) -> None:
    """Serve a bundle over HTTP: POST /v1/predict, GET /v1/model, /v1/drift, /metrics, /healthz, /readyz, and a page at /.

    SIGHUP reads the bundle again: a new one is served once it has been checked, without a pause.
    """
    from offaxis.bundle import bundle_checksum, load, local_bundle
    from offaxis.onnx import with_engine

    try:
        from offaxis.serve.app import is_local
        from offaxis.serve.server import log as serve_log
        from offaxis.serve.server import make_server, serve, set_up_log
    except ImportError as error:
        raise MissingPackageError(
            f"The service needs more packages ({error}): pip install 'offaxis[serve]'."
        ) from error
    bundle = options.bundle
    assert bundle is not None
    secret, as_json = _token(options.token_file, options.token), options.log == "json"
    set_up_log(options.log)
    checksums: WeakKeyDictionary[Model, str] = WeakKeyDictionary()

    def load_model(served: "Model | None" = None) -> "Model":
        where = local_bundle(bundle)
        checksum = bundle_checksum(where)  # before loading: a bundle that is replaced in between is loaded once more
        if served is not None and checksums.get(served) == checksum:
            return served
        model = with_engine(load(where, options.network).to(options.device), options.engine)
        checksums[model] = checksum
        return model

    with _waiting_hangup():
        model = load_model()
        server = make_server(model, options, token=secret, reload=load_model)
        if secret is None and not is_local(options.host):
            text = f"Every client that reaches {options.host} can use this service: --token-file requires a token."
            serve_log.warning(text) if as_json else print_note(text, "yellow")
        runs = "PyTorch" if model.engine is None else "onnxruntime"
        where = f"offaxis serves {bundle} in {runs} at http://{options.host}"

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


def _token(file: Path | None, given: str | None) -> "str | TokenFile | None":
    from offaxis.serve.app import TokenFile

    if file is not None:
        return TokenFile(file)
    given = os.environ.get("OFFAXIS_TOKEN") if given is None else given
    if given is not None and not given.strip():
        raise ArgumentError("Expected a token in OFFAXIS_TOKEN but it is empty.")
    return given and given.strip()
