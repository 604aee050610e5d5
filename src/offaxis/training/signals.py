"""Ctrl-C and SIGTERM as a request: the step under way is finished, the state is saved, then training stops."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class StopRequest:
    """Inside its block the first SIGINT or SIGTERM is only noted; a second one acts as it always did.

    Attributes:
        number: the signal that came, or None.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, signal.Handlers | object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python forbids handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.number = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
