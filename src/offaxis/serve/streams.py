"""The drift of what each model is sent: one monitor a model for all workers, which outlives a restart."""

import json
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offaxis.calibration.drift import Appearance, DriftMonitor
from offaxis.errors import ServerError
from offaxis.files import read_arrays, write_arrays
from offaxis.serve.alarm import LATEST, call, drift_report

TRACE = 400  # points of the drift chart
UNUSUAL = 6  # images that are kept to be shown
SECONDS_BETWEEN_SAVES = 10.0
log = logging.getLogger("offaxis.serve")


@dataclass(frozen=True, kw_only=True)
class StreamSource:
    """What a monitor has to know of a model.

    Attributes:
        name: of the model in the paths of the service.
        key: the checksum of its bundle, or what else tells it from others.
        bundle: file name, checksum and day of calibration.
        classes: their names.
        scores, predicted: score and predicted class (n,) of the calibration images.
        alpha: the level of the verdicts.
        appearance: of the calibration images; None where it is not known.
    """

    name: str
    key: str
    bundle: dict[str, str]
    classes: tuple[str, ...]
    scores: NDArray[np.float64]
    predicted: NDArray[np.int64]
    alpha: float
    appearance: dict[str, list[float]] | None


@dataclass(frozen=True)
class Seen:
    """What a monitor is told of an image; ``image`` is a data URL of one that is flagged, where examples are kept."""

    score: float
    class_index: int
    p_value: float
    flagged: bool
    appearance: Appearance | None = None
    image: str | None = None


class Stream:
    """The images that a model has been sent, as far as they are kept.

    Args:
        source: the model.
        level: the probability that the monitor ever alarms on an ID stream.
        kept: what ``arrays`` returned, to go on from there.
    """

    def __init__(self, source: StreamSource, level: float, kept: dict[str, NDArray[Any]]) -> None:
        self.source, self.monitor = source, DriftMonitor(source.scores, level)
        self.trace, self.warned_before = deque[tuple[int, float]](maxlen=TRACE), 0
        self.clear()
        about = json.loads(str(kept["stream"])) if kept else {}
        if about.get("key") == source.key and about["level"] == level:
            self.monitor.restore(kept)
            self.trace.extend(map(tuple, about["trace"]))
            self.warned_before = about["warned_before"]
        elif about:
            log.warning("the drift monitor of %s starts anew: its state is of another bundle or level", source.name)

    def clear(self) -> None:
        """Forget all images."""
        self.warned_before += self.monitor.state().warnings
        self.monitor.reset()
        self.trace.clear()
        self.latest: deque[Seen] = deque(maxlen=LATEST)
        self.unusual: list[Seen] = []
        self.report: dict[str, Any] | None = None

    def watch(self, seen: Sequence[Seen]) -> tuple[list[float], dict[str, Any] | None]:
        """Add images; return their online p-values, and a report where they raise an alarm or a warning."""
        before = self.monitor.state()
        online = [self.monitor.add(each.score) for each in seen]
        self.latest.extend(seen)
        shown = {each.image: each for each in (*self.unusual, *seen) if each.image}  # one that is sent again once
        self.unusual = sorted(shown.values(), key=lambda each: each.score, reverse=True)[:UNUSUAL]
        state = self.monitor.state()
        self.trace.append((state.images, state.log10_wealth))
        alarm = state.alarm > before.alarm
        if not alarm and state.warnings == before.warnings:
            return online, None
        report = drift_report("alarm" if alarm else "warning", state, self.source, self.latest)
        if alarm or not state.alarm:  # later warnings say less than the alarm
            self.report = report
        return online, report

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what a restart has to keep, as arrays by name."""
        about = {"key": self.source.key, "level": self.monitor.level, "trace": list(self.trace)}
        about["warned_before"] = self.warned_before
        return {**self.monitor.to_arrays(), "stream": np.array(json.dumps(about))}


class Streams:
    """The streams of all models by name; workers share one such object.

    Args:
        level: the probability that a monitor ever alarms on an ID stream.
        on_alarm: an address or a command that is told of an alarm; None for none.
        file: where the state is kept over restarts; None for nowhere.

    Raises:
        ServerError: the file is damaged.
    """

    def __init__(self, level: float, on_alarm: str | None = None, file: Path | None = None) -> None:
        self.level, self.on_alarm, self.file = level, on_alarm, file
        self._streams: dict[str, Stream] = {}
        self._lock, self._ended, self._changed = Lock(), Event(), False
        self._kept: dict[str, NDArray[Any]] = {}
        if file is not None and file.exists():
            self._kept = read_arrays(file, ServerError, "put a copy back, or remove it to start the drift monitor anew")

    def open(self, source: StreamSource) -> None:
        """Begin a stream, or go on with that of the same bundle."""
        with self._lock:
            old, mine = self._streams.get(source.name), f"{source.name}/"
            if old is None or old.source.key != source.key:
                names = [name for name in self._kept if name.startswith(mine)]
                kept = {name.removeprefix(mine): self._kept.pop(name) for name in names}
                self._streams[source.name] = Stream(source, self.level, kept)

    def watch(self, name: str, key: str, seen: Sequence[Seen]) -> Sequence[float | None]:
        """Add the images of a request; return online p-values, None where another bundle has taken the place."""
        with self._lock:
            stream = self._streams[name]
            if stream.source.key != key:
                return [None] * len(seen)
            online, report = stream.watch(seen)
            self._changed = True
        if report is not None:
            alarm = report["event"] == "alarm"
            log.log(logging.ERROR if alarm else logging.WARNING, "%s", report["text"], extra={"drift": report})
            if alarm and self.on_alarm is not None:
                Thread(target=call, args=(self.on_alarm, report), daemon=True).start()
        return online

    def drift(self, name: str) -> dict[str, Any]:
        """Return the response of /v1/drift."""
        with self._lock:
            stream = self._streams[name]
            return {
                **asdict(stream.monitor.state()),
                "warnings_ever": stream.warned_before + stream.monitor.state().warnings,
                "trace": list(map(list, stream.trace)),
                "report": stream.report,
                "unusual": [
                    {"class": stream.source.classes[each.class_index], "p_value": each.p_value, "image": each.image}
                    for each in stream.unusual
                ],
            }

    def reset(self, name: str) -> None:
        """Forget the images of a model: its monitor starts again."""
        with self._lock:
            self._streams[name].clear()
            self._changed = True
        log.warning("the drift monitor was started again")

    def save(self) -> None:
        """Write the state, whole or not at all, where images came since it was written."""
        with self._lock:
            changed, self._changed = self._changed, False
            arrays = {
                f"{name}/{part}": array
                for name, stream in self._streams.items()
                for part, array in stream.arrays().items()
            }
        if changed and self.file is not None:
            write_arrays(self.file, arrays)

    @contextmanager
    def saved(self) -> Iterator[None]:
        """Save the state every few seconds, and at the end of the block."""

        def save_often() -> None:
            while not self._ended.wait(SECONDS_BETWEEN_SAVES):
                try:
                    self.save()
                except OSError as error:  # such as a full disk; the service goes on
                    log.error("the state of the drift monitor was not written (%s)", error)

        if self.file is None:
            yield
            return
        saver = Thread(target=save_often, daemon=True)
        saver.start()
        try:
            yield
        finally:
            self._ended.set()
            saver.join()
            self.save()
