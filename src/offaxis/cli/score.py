"""``offaxis score``: a verdict for each of many images, as rows of a file."""

import io
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from offaxis.bundle import load, local_bundle
from offaxis.data.decode import SUFFIXES
from offaxis.errors import ArgumentError, DataError
from offaxis.onnx import with_engine
from offaxis.options import ScoreOptions
from offaxis.progress import print_note
from offaxis.score import score_images, sentences

FEW = 16  # single images, which PyTorch has scored before a graph for onnxruntime is exported


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
    return (name for path in given for name in (_standard_input() if path == "-" else (path,)))


def _few(given: tuple[str, ...]) -> bool:
    """Return whether these are single images, and so few that exporting a graph would take longer than it saves."""
    return len(given) <= FEW and all(Path(path).suffix.lower() in SUFFIXES for path in given)


def _standard_input() -> Iterator[str]:
    if sys.stdin.isatty():
        raise ArgumentError(
            "Expected paths, or a list of them on standard input: find photos -name '*.jpg' | offaxis score x.oax -"
        )
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # names of files need not be UTF-8
    return (name for line in sys.stdin if (name := line.rstrip("\r\n")))
