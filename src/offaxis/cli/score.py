"""``offaxis score``: a verdict for each of many images."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from offaxis.cli.app import app, example
from offaxis.errors import ArgumentError, DataError

Network = Annotated[
    str | None, typer.Option(help="file.py:function that makes the network, where the bundle holds only its weights.")
]


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
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a run stopped.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    top: Annotated[int, typer.Option(min=0, help="Images with the highest scores on the sheet.")] = 49,
    network: Network = None,
    quiet: Annotated[bool, typer.Option(help="Show no progress.")] = False,
) -> None:
    """Judge images: one row each with class, probability, cosine, score, p-value and verdict, or why there is none.

    Beside the rows a summary (.summary.json) and a sheet of the images with the highest scores (.top.png) are written.
    """
    from offaxis.deploy.bundle import load
    from offaxis.deploy.scoring import ScoringOptions, score_images
    from offaxis.deploy.scoring.run import sentences

    if engine == "ray" and network is not None:
        raise ArgumentError("Expected a bundle that can build its network for --engine ray: --network is for threads.")
    model = load(bundle, network)
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
    Console(stderr=True).print(sentences(summary), markup=False, highlight=False, soft_wrap=True)


def _paths(given: list[str]) -> Iterator[str]:
    """The paths as they were typed, with a list from standard input in place of a dash."""
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
