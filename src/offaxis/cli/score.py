"""``offaxis score`` and ``compare``: a verdict for each of many images, as rows of a file; what two bundles say of folders."""

import io
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import typer

from offaxis.bundle import load, local_bundle
from offaxis.data.containers import holds_several
from offaxis.data.decode import SUFFIXES, is_remote
from offaxis.errors import ArgumentError, DataError
from offaxis.files import replacing
from offaxis.model import Model
from offaxis.onnx import has_graph, with_engine
from offaxis.options import CompareOptions, EngineName, ScoreOptions
from offaxis.prediction import Verdict
from offaxis.progress import CountProgress, print_note
from offaxis.score import score_images, sentences
from offaxis.score.images import files, score_sources, sources
from offaxis.score.rows import Row, RowWriter

SHOWN = 10  # images on which two bundles differ
FEW = 500  # single images, which PyTorch has scored before a graph for onnxruntime is exported


def score_paths(options: ScoreOptions, _: tuple[str, ...]) -> None:
    """Score images: one row each with class, probability, cosine, score, p-value and verdict, or the error.

    A summary (.summary.json) and a page of the images with the highest scores (.html) are written beside the rows.
    """
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
    model = with_engine(model, "torch") if on_ray else on_engine(model, options.engine, given)
    if options.format is None and options.out == "-" and sys.stdout.isatty():
        options = replace(options, format="text")
    try:
        summary = score_images(model, options, named)
    except KeyboardInterrupt:
        print_note("Stopped." if options.out == "-" else f"{options.out}: stopped; continue with --resume.", "yellow")
        raise
    print_note(sentences(summary))
    if summary.get("selected"):
        print_note(f"The images to label next, which teach most: {summary['selected']}")
    if summary.get("page"):
        print_note(f"The images with the highest scores: {summary['page']}")
    if not summary["bad_files"] and not summary["images"] and summary["inputs"] == "images":
        print_note(f"No images were found; they are files that end in {', '.join(sorted(SUFFIXES))}.", "yellow")
    if summary["bad_files"] and not summary["images"]:
        raise DataError("Nothing could be scored: every row has its reason, and the first of them stand above.")


def _paths(given: tuple[str, ...]) -> Iterable[str]:
    """Return the paths, with a list from standard input in place of a dash."""
    absent = [path for path in given if path != "-" and not is_remote(path) and not Path(path).exists()]
    if absent:
        raise DataError(
            f"There is no {absent[0]}: name images, folders or archives, or - for a list on standard input."
        )
    if "-" not in given:
        return given
    return (name for path in given for name in (_standard_input() if path == "-" else (path,)))


def on_engine(model: Model, engine: EngineName, given: tuple[str, ...]) -> Model:
    """Return the model with the engine that is asked for; few images do not wait for a graph to be exported for them."""
    countable = "-" not in given and not any(map(is_remote, given))
    if engine == "auto" and countable and not has_graph(model):
        first = list(islice(files(given), FEW + 1))
        engine = "torch" if len(first) <= FEW and not any(map(holds_several, first)) else engine
    return with_engine(model, engine)


def _standard_input() -> Iterator[str]:
    if sys.stdin.isatty():
        raise ArgumentError(
            "Expected paths, or a list of them on standard input: find photos -name '*.jpg' | offaxis score x.oax -"
        )
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # names of files need not be UTF-8
    return (name for line in sys.stdin if (name := line.rstrip("\r\n")))


DIFFER = ("path", "flagged_by", "class_a", "class_b", "p_value_a", "p_value_b")
"""The columns of the file of images on which two bundles differ."""


def compare_bundles(options: CompareOptions, _: tuple[str, ...]) -> None:
    """Say for each folder what each of two bundles flags, and where they differ."""
    bundles, given = (options.first, options.second), tuple(options.paths)
    list(_paths(given))  # refuses what is not there before a network is opened
    models = [on_engine(load(each, options.network).to(options.device), options.engine, given) for each in bundles]
    differ: list[Row] = []
    for path in given:
        with CountProgress(options.quiet) as progress:
            runs = [_rows(model, path, f"images by {b}", progress) for b, model in zip(bundles, models, strict=True)]
        pairs = [(a, b) for a, b in zip(*runs, strict=True) if a["error"] is None and b["error"] is None]
        flags = [tuple(row["verdict"] == Verdict.OUT for row in pair) for pair in pairs]
        bad = len(runs[0]) - len(pairs)
        typer.echo(f"{path}: {len(pairs):,} images" + f", {bad:,} more that could not be read" * (bad > 0))
        for place, bundle in enumerate(bundles):
            flagged, alone = sum(f[place] for f in flags), sum(f[place] and not f[1 - place] for f in flags)
            typer.echo(f"  {bundle} flags {flagged:,} ({flagged / max(len(pairs), 1):.1%}), {alone:,} of them alone")
        typer.echo(f"  {sum(a['class'] != b['class'] for a, b in pairs):,} get another class")
        for (a, b), (by_a, by_b) in zip(pairs, flags, strict=True):
            if by_a != by_b:
                values = (a["path"], str(bundles[by_b]), a["class"], b["class"], a["p_value"], b["p_value"])
                differ.append(dict(zip(DIFFER, values, strict=True)))
    for row in differ[:SHOWN]:
        said = f"p = {row['p_value_a']:.2g} and {row['p_value_b']:.2g}"
        print_note(f"{row['path']}: flagged by {row['flagged_by']} alone, {said}")
    if options.out is not None:
        with replacing(options.out) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            RowWriter(file, "csv", DIFFER).add(differ)
    if len(differ) > SHOWN:
        more = f"are in {options.out}" if options.out else "are listed by --out FILE.csv"
        print_note(f"All {len(differ):,} images that one of them flags {more}.")


def _rows(model: Model, path: str, what: str, progress: CountProgress) -> list[Row]:
    """Score what is behind a path, and show how far it is."""
    rows = list[Row]()
    for part in score_sources(model, sources(files((path,)))):
        rows += [row for row, _ in part]
        progress.to(len(rows), what)
    return rows
