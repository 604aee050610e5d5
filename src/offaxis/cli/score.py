"""``offaxis score``: a prediction and a verdict for each of many images."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from offaxis.cli.app import Device, Network, Quiet, app, example, print_note
from offaxis.errors import ArgumentError, DataError


@app.command("score", epilog=example("offaxis score digits.oax photos/ more.zip --out scores.csv"))
def score_command(
    bundle: Annotated[Path, typer.Argument(help="A bundle.")],
    paths: Annotated[
        list[str] | None,
        typer.Argument(help="Images, folders, archives; - (or nothing) reads a list from standard input."),
    ] = None,
    out: Annotated[str, typer.Option(help="A file that ends in .csv, .jsonl or .parquet; - is standard output.")] = "-",
    format: Annotated[
        Literal["csv", "jsonl", "parquet"] | None, typer.Option(help="If the name does not say it.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images a step.")] = 64,
    engine: Annotated[
        Literal["threads", "ray"], typer.Option(help="ray spreads the work over a Ray cluster.")
    ] = "threads",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads that decode, or workers of Ray.", show_default="by cores")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    top: Annotated[int, typer.Option(min=0, help="Images on the sheet of those with the highest scores.")] = 49,
    network: Network = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Score images: one row each with class, probability, cosine, score, p-value and verdict, or the error.

    A summary (.summary.json) and a sheet of the images with the highest scores (.top.png) are written beside the rows.
    """
    from offaxis.deploy.bundle import load
    from offaxis.deploy.scoring import ScoringOptions, score_images
    from offaxis.deploy.scoring.run import sentences

    if engine == "ray" and network is not None:
        raise ArgumentError("Expected a bundle that can build its network for --engine ray: --network is for threads.")
    model = load(bundle, network).to(device)
    options = ScoringOptions(
        out=out,
        format=format,
        batch=batch,
        engine=engine,
        workers=workers,
        resume=resume,
        overwrite=overwrite,
        top=top,
        quiet=quiet,
    )
    summary = score_images(bundle, model, _paths(paths or ["-"]), options)
    print_note(sentences(summary))


def _paths(given: list[str]) -> Iterator[str]:
    """Return the paths, with a list from standard input in place of a dash."""
    absent = [path for path in given if path != "-" and not Path(path).exists()]
    if absent:
        raise DataError(
            f"There is no {absent[0]}: name images, folders or archives, or - for a list on standard input."
        )
    return (name for path in given for name in (_lines() if path == "-" else (path,)))


def _lines() -> Iterator[str]:
    if sys.stdin.isatty():
        raise ArgumentError(
            "Expected paths, or a list of them on standard input: find photos -name '*.jpg' | offaxis score x.oax -"
        )
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # names of files need not be UTF-8
    return (name for line in sys.stdin if (name := line.rstrip("\r\n")))
