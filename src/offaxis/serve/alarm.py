"""What the drift monitor notices is told to the operator: in the log, and by a call of the operator's choice."""

import json
import logging
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import numpy as np

from offaxis.calibration.drift import DriftState
from offaxis.errors import ArgumentError

if TYPE_CHECKING:
    from offaxis.serve.streams import Seen, StreamSource  # which imports this module

LATEST = 100  # images that a report describes
PAUSES = (0, 5, 60)  # seconds before the first, second and third attempt to call
SECONDS = 30  # for each
URLS = ("http://", "https://")
log = logging.getLogger("offaxis.serve")


def check_call(target: str) -> str:
    """Return what an alarm calls, a URL or a command, as it is.

    Raises:
        ArgumentError: it is neither the one nor the other.
    """
    try:
        words = shlex.split(target)
    except ValueError:
        words = []
    if not target.startswith(URLS) and (not words or shutil.which(words[0]) is None):
        raise ArgumentError(
            f"Expected --on-alarm with an http(s) address or a command that is installed but got {target!r}: name the "
            "program first, such as --on-alarm 'python notify.py'."
        )
    return target


def call(target: str, report: dict[str, Any]) -> None:
    """POST a report as JSON to an address, or run a command with it on standard input; try three times."""
    content, failed = json.dumps(report).encode(), ""
    for pause in PAUSES:
        time.sleep(pause)
        try:
            if target.startswith(URLS):
                urlopen(Request(target, content, {"Content-Type": "application/json"}), timeout=SECONDS).close()
            else:
                subprocess.run(shlex.split(target), input=content, capture_output=True, check=True, timeout=SECONDS)
        except subprocess.CalledProcessError as error:
            failed = f"exit code {error.returncode} {error.stderr[-200:].decode(errors='replace')}".strip()
        except subprocess.TimeoutExpired:
            failed = f"it took longer than {SECONDS} seconds"
        except (URLError, OSError, ValueError) as error:
            failed = str(error)
        else:
            return
    log.error("what --on-alarm names was not told of the drift alarm (%s)", failed)


def drift_report(event: str, state: DriftState, source: "StreamSource", latest: Sequence["Seen"]) -> dict[str, Any]:
    """Return what is said of an alarm or a warning, in types that JSON has.

    Args:
        event: ``"alarm"`` or ``"warning"``.
        state: of the drift monitor.
        source: the model, with whose calibration images the stream is compared.
        latest: the latest images.

    Returns:
        ``text``, a sentence for people, and its parts. ``classes`` are those that are predicted more often than among
        the calibration images, at most three, with both shares; ``appearance`` how the latest images look beside them.
    """
    count, names = len(latest), source.classes
    flagged = sum(each.flagged for each in latest)
    usual = np.bincount(source.predicted, minlength=len(names)) / len(source.predicted)
    now = np.bincount([each.class_index for each in latest], minlength=len(names)) / count
    risen = [index for index in np.argsort(usual - now)[:3].tolist() if now[index] > usual[index]]
    if event == "alarm":
        text = f"drift alarm at image {state.alarmed_at:,}: the stream is unlike the calibration images"
        text += f" (without drift one is ever raised with a probability of {state.level:g})"
    else:
        text = f"drift warning at image {state.warned_at:,}: the latest images are unlike the calibration images"
        text += f", not yet beyond doubt (without drift one comes in {state.run_length:,} images at most)"
    text += f". Of the latest {count} images {flagged} are flagged, at a level of {source.alpha:.2%}."
    if risen:
        shares = (f"{names[index]} {now[index]:.0%} (usually {usual[index]:.0%})" for index in risen)
        text += f" More often predicted than among the calibration images: {', '.join(shares)}."
    looks = compare_appearance(latest, source.appearance)
    if changed := [f"{name} is {each['change']}" for name, each in looks.items() if each["change"] != "as usual"]:
        text += f" Of the images themselves {', '.join(changed)} than usual."
    elif looks:
        text += " In brightness, sharpness and colour they are as usual."
    return {
        "event": event,
        "text": text,
        "model": source.name,
        "bundle": source.bundle,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "image": state.alarmed_at if event == "alarm" else state.warned_at,
        "log10_wealth": state.log10_wealth,
        "latest": {"images": count, "flagged": flagged},
        "classes": {names[index]: {"now": now[index], "calibration": usual[index]} for index in risen},
        "appearance": looks,
    }


def compare_appearance(
    latest: Sequence["Seen"], usual: dict[str, list[float]] | None
) -> dict[str, dict[str, float | str]]:
    """Return how the latest images look: their medians, those of the calibration images, and what has changed.

    A median beyond the tenth or the ninetieth percentile of the calibration images is ``"lower"`` or ``"higher"``.
    """
    looks = [each.appearance for each in latest if each.appearance is not None]
    if not looks or usual is None:
        return {}
    found = {}
    for name, now in zip(looks[0]._fields, np.median(looks, axis=0).tolist(), strict=True):
        low, middle, high = usual[name]
        change = "higher" if now > high else "lower" if now < low else "as usual"
        found[name] = {"now": round(now, 4), "calibration": middle, "change": change}
    return found
