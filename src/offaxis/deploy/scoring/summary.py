"""What a scoring came to: counts, and the strangest images."""

import heapq
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offaxis.data import TensorSet
from offaxis.data.archive import read_each
from offaxis.data.contact_sheet import write_contact_sheet
from offaxis.data.decode import MAX_BYTES
from offaxis.deploy.model import Model
from offaxis.deploy.prediction import Verdict
from offaxis.deploy.scoring.rows import Row
from offaxis.deploy.scoring.sources import INSIDE, place_of, readable
from offaxis.errors import DataError

Found = dict[str, NDArray[np.uint8]]


def summarise(rows: Iterable[Row], model: Model, strangest: int) -> dict[str, Any]:
    """Counts by verdict and class, bad files by reason, and the images with the largest scores, strangest first."""
    verdicts: Counter[str] = Counter()
    classes: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    worst: list[tuple[float, int, str]] = []
    for number, row in enumerate(rows):
        if row["error"] is not None:
            reasons[row["error"]] += 1
            continue
        verdicts[row["verdict"]] += 1
        classes[row["class"]] += 1
        entry = (row["score"], -number, row["path"])
        if len(worst) < strangest:
            heapq.heappush(worst, entry)
        elif worst:
            heapq.heappushpop(worst, entry)
    judged = sum(verdicts.values())
    return {
        "images": judged,
        "bad_files": sum(reasons.values()),
        "alpha": model.calibration.alpha,
        "detector": model.detector.name,
        "verdicts": {verdict.value: verdicts[verdict.value] for verdict in Verdict},
        "classes": dict(sorted(classes.items(), key=lambda pair: -pair[1])),
        "reasons": dict(reasons.most_common(20)),
        "strangest": [{"path": path, "score": score} for score, _, path in sorted(worst, reverse=True)],
    }


def sentences(summary: dict[str, Any]) -> str:
    """The summary for people."""
    images, out = summary["images"], summary["verdicts"][Verdict.OUT.value]
    lines = [f"{images:,} images judged, {summary['bad_files']:,} files that could not be."]
    if images:
        lines.append(
            f"{out:,} ({out / images:.1%}) are out-of-distribution at alpha {summary['alpha']:g}; of images like those that "
            f"the network was trained on, about {summary['alpha']:.1%} would be."
        )
        shown = list(summary["classes"].items())[:6]
        lines.append(
            "Classes: " + ", ".join(f"{name} {count:,}" for name, count in shown) + ("." if len(shown) < 6 else ", ...")
        )
    if summary["verdicts"][Verdict.TOO_FEW.value]:
        lines.append(f"{summary['verdicts'][Verdict.TOO_FEW.value]:,} have no verdict: {Verdict.TOO_FEW.value}.")
    lines += [f"  {count:,} x {reason}" for reason, count in list(summary["reasons"].items())[:3]]
    return "\n".join(lines)


def write_strangest(summary: dict[str, Any], model: Model, path: Path) -> bool:
    """Write the strangest images as one page, the strangest first, as the network sees them; False where there are none."""
    names = [entry["path"] for entry in summary["strangest"]]
    found: Found = {}
    wanted: dict[str, set[str]] = {}
    for name in names:
        place, inside = place_of(name)
        if inside:
            wanted.setdefault(place, set()).add(name)
        else:
            _keep(found, model, name, Path(place))
    for archive, members in wanted.items():
        _keep_members(found, model, archive, members)
    pixels = [found[name] for name in names if name in found]
    if not pixels:
        return False
    write_contact_sheet(TensorSet("strangest", torch.from_numpy(np.stack(pixels))), path, count=len(pixels))
    return True


def _keep_members(found: Found, model: Model, archive: str, members: set[str]) -> None:
    """Read the archive as far as it takes to find the members."""
    missing = set(members)
    try:
        for member, data in read_each(Path(archive), MAX_BYTES):
            name = readable(f"{archive}{INSIDE}{member}")
            if name in missing and data is not None:
                missing.remove(name)  # a second file of this name has no row
                _keep(found, model, name, data)
            if not missing:
                return
    except (DataError, OSError):
        return  # the rows say what is wrong with it


def _keep(found: Found, model: Model, name: str, source: Path | bytes) -> None:
    try:
        found[name] = model.preprocessing.pixels(source)
    except DataError:
        return  # it has gone since
