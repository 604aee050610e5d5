"""``offaxis score`` and ``offaxis serve``: a verdict for each of many images, as rows of a file or over HTTP."""

import io
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from weakref import WeakKeyDictionary

import typer

from offaxis.cli.app import Device, Network, OwnDetector, Quiet, app, example, print_note
from offaxis.errors import ArgumentError, DataError, MissingPackageError

if TYPE_CHECKING:
    from offaxis.deploy.model import Model
    from offaxis.server.app import TokenFile

EngineOption = Annotated[
    Literal["auto", "onnx", "torch"],
    typer.Option(help="What runs the network: onnxruntime or PyTorch. auto: onnxruntime on a CPU if it can."),
]
FEW = 16  # single images, which PyTorch has scored before a graph for onnxruntime is exported


@app.command(
    "score",
    epilog=example(
        "offaxis score digits.oax photo.jpg",
        "offaxis score digits.oax photos/ more.zip --out scores.csv",
        "offaxis score digits.oax photos/ --fdr 0.1 --out scores.csv",
    ),
)
def score_command(
    bundle: Annotated[Path, typer.Argument(help="A bundle.")],
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            help="Images, folders, archives, .npy files of feature vectors; - (or nothing) reads a list from standard input."
        ),
    ] = None,
    out: Annotated[str, typer.Option(help="A file that ends in .csv, .jsonl or .parquet; - is standard output.")] = "-",
    format: Annotated[
        Literal["csv", "jsonl", "parquet", "text"] | None,
        typer.Option(help="If the name does not say it; text is for reading.", show_default="csv, text on a terminal"),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images a step.")] = 64,
    runner: Annotated[
        Literal["threads", "ray"], typer.Option(help="ray spreads the work over a Ray cluster.")
    ] = "threads",
    engine: EngineOption = "auto",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads that decode, or workers of Ray.", show_default="by cores")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    fdr: Annotated[
        float | None,
        typer.Option(
            help="Flag images together (column flagged) so that at most this share of the flagged ones, such as 0.1, is false "
            "alarms in expectation."
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="Images on the page of those with the highest scores.")] = 100,
    network: Network = None,
    detector: OwnDetector = None,  # its callback registers the class
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Score images: one row each with class, probability, cosine, score, p-value and verdict, or the error.

    A summary (.summary.json) and a page of the images with the highest scores (.html) are written beside the rows.
    """
    from offaxis.data.decode import SUFFIXES
    from offaxis.deploy.bundle import load, local_bundle
    from offaxis.deploy.engine import with_engine
    from offaxis.deploy.scoring import ScoringOptions, score_images
    from offaxis.deploy.scoring.rows import sentences

    if runner == "ray" and (network is not None or detector is not None):
        raise ArgumentError(
            "Expected a bundle that needs no code of your own for --runner ray: --network and --detector are for threads."
        )
    if runner == "ray" and device not in ("auto", "cpu"):
        raise ArgumentError(f"Expected no --device beside --runner ray, whose workers use the CPU, but got {device}.")
    bundle = local_bundle(bundle)
    model = load(bundle, network).to(device)
    named = _paths(paths or ["-"])
    eager = runner == "ray" or (engine == "auto" and _few(paths or ["-"]))
    model = with_engine(model, "torch" if eager else engine)
    on_terminal: Literal["text"] | None = "text" if out == "-" and sys.stdout.isatty() else None
    options = ScoringOptions(
        out=out,
        format=format or on_terminal,
        batch=batch,
        runner=runner,
        engine=engine,
        workers=workers,
        resume=resume,
        overwrite=overwrite,
        top=top,
        fdr=fdr,
        quiet=quiet,
    )
    summary = score_images(bundle, model, named, options)
    print_note(sentences(summary))
    if summary.get("page"):
        print_note(f"The images with the highest scores: {summary['page']}")
    if not summary["bad_files"] and not summary["images"] and summary["inputs"] == "images":
        print_note(f"No images were found; they are files that end in {', '.join(sorted(SUFFIXES))}.", "yellow")
    if summary["bad_files"] and not summary["images"]:
        raise DataError("Nothing could be scored: every row has its reason, and the first of them stand above.")


def _paths(given: list[str]) -> Iterable[str]:
    """Return the paths, with a list from standard input in place of a dash."""
    absent = [path for path in given if path != "-" and not Path(path).exists()]
    if absent:
        raise DataError(
            f"There is no {absent[0]}: name images, folders or archives, or - for a list on standard input."
        )
    if "-" not in given:
        return given
    return (name for path in given for name in (_lines() if path == "-" else (path,)))


def _few(given: list[str]) -> bool:
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


@app.command("serve", epilog=example("offaxis serve digits.oax --port 8000"))
def serve_command(
    bundle: Annotated[Path, typer.Argument(help="A bundle.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; by default this machine alone is served.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(help="A file with the bearer tokens that are accepted, one a line (else OFFAXIS_TOKEN)."),
    ] = None,
    token: Annotated[str | None, typer.Option(hidden=True)] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(help="A name that the service is reached by, beside localhost; * for all. May be given again."),
    ] = None,
    level: Annotated[float, typer.Option(help="Probability that the drift monitor ever raises a false alarm.")] = 0.01,
    max_body: Annotated[int, typer.Option(min=1, help="Megabytes of one request.")] = 16,
    max_images: Annotated[int, typer.Option(min=1, help="Images of one request.")] = 32,
    max_pixels: Annotated[int, typer.Option(min=1, help="Pixels of one image.")] = 16_000_000,
    max_request_pixels: Annotated[int, typer.Option(min=1, help="Pixels of all images of one request.")] = 128_000_000,
    queue: Annotated[int, typer.Option(min=1, help="Images that may wait; more are answered with 503.")] = 256,
    batch: Annotated[int, typer.Option(min=1, help="Images that go through the network together.")] = 32,
    log: Annotated[
        Literal["plain", "json"], typer.Option(help="json: every request as a line of JSON, with its id.")
    ] = "plain",
    engine: EngineOption = "auto",
    network: Network = None,
    detector: OwnDetector = None,  # noqa: ARG001 - its callback registers the class
    device: Device = "auto",
) -> None:
    """Serve a bundle over HTTP: POST /v1/predict, GET /v1/model, /v1/drift, /metrics, /healthz, /readyz, and a page at /.

    SIGHUP reads the bundle again: a new one is served once it has been checked, without a pause.
    """
    from offaxis.deploy.bundle import load, local_bundle
    from offaxis.deploy.container import bundle_checksum
    from offaxis.deploy.engine import with_engine

    try:
        from offaxis.server.app import is_local
        from offaxis.server.body import Limits
        from offaxis.server.run import log as serve_log
        from offaxis.server.run import make_server, serve, set_up_log
    except ImportError as error:
        raise MissingPackageError(
            f"The service needs more packages ({error}): pip install 'offaxis[serve]'."
        ) from error
    limits = Limits(
        body_bytes=max_body * 2**20,
        bodies_bytes=max(max_body * 2**20, Limits.bodies_bytes),
        images=max_images,
        pixels=max_pixels,
        request_pixels=max(max_pixels, max_request_pixels),
        all_pixels=max(max_pixels, 4 * max_request_pixels),
        queue=queue,
        batch=batch,
    )
    secret = _token(token_file, token)
    set_up_log(log)

    checksums: WeakKeyDictionary[Model, str] = WeakKeyDictionary()

    def load_model(served: "Model | None" = None) -> "Model":
        where = local_bundle(bundle)
        checksum = bundle_checksum(where)  # before loading: a bundle that is replaced in between is loaded once more
        if served is not None and checksums.get(served) == checksum:
            return served
        model = with_engine(load(where, network).to(device), engine)
        checksums[model] = checksum
        return model

    with _waiting_hangup():
        model = load_model()
        server = make_server(
            model,
            host=host,
            port=port,
            token=secret,
            limits=limits,
            level=level,
            allowed_hosts=allowed_host or (),
            reload=load_model,
        )
        if secret is None and not is_local(host):
            text = f"Every client that reaches {host} can use this service: --token-file requires a token."
            serve_log.warning(text) if log == "json" else print_note(text, "yellow")
        runs = "PyTorch" if model.engine is None else "onnxruntime"
        where = f"offaxis serves {bundle} in {runs} at http://{host}"

        def announce(bound: int) -> None:
            serve_log.info(f"{where}:{bound}") if log == "json" else print_note(f"{where}:{bound}  (Ctrl-C stops it)")

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
    from offaxis.server.app import TokenFile

    if file is not None:
        return TokenFile(file)
    given = os.environ.get("OFFAXIS_TOKEN") if given is None else given
    if given is not None and not given.strip():
        raise ArgumentError("Expected a token in OFFAXIS_TOKEN but it is empty.")
    return given and given.strip()
