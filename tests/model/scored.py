"""Rows of offaxis score, for tests."""

import json
from pathlib import Path
from typing import Any

import offaxis
from offaxis.options import ScoreOptions
from offaxis.score import score_images


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def scored(bundle: Path, paths: list[str], out: Path, **options: Any) -> list[dict[str, Any]]:
    score_images(
        offaxis.load(bundle), ScoreOptions(bundle=bundle, paths=tuple(paths), out=str(out), quiet=True, **options)
    )
    return rows_of(out)
