"""Stop a training in time: when its loss or its scale has failed, and when a signal requests it."""

import math
import signal
import threading
import warnings
from collections import deque
from types import FrameType, TracebackType
from typing import Self

from offaxis.errors import NotFiniteError, ScaleCollapseError
from offaxis.networks.learned import LEAST_SCALE, learned_nothing


class CollapseGuard:
    """Stops a training whose loss is not finite or whose scale has collapsed.

    Args:
        num_classes: C; guessing gives the loss ln C.
        window: how many steps in a row a collapsed scale is given to recover.
        clip: the recipe's gradient clipping, for the advice.
        learning_rate: the recipe's, for the advice.
    """

    def __init__(self, *, num_classes: int, window: int, clip: float | None, learning_rate: float) -> None:
        self.chance = math.log(num_classes)
        self.window = window
        self.clip = clip
        self.learning_rate = learning_rate
        self.collapsed: deque[int] = deque()

    def check(self, step: int, steps: int, loss: float, scale: float | None) -> None:
        """Check the mean loss and the mean scale of the last ``steps`` steps, which ended with ``step``.

        Raises:
            NotFiniteError: the loss is NaN or infinite.
            ScaleCollapseError: the scale has been near zero for a whole window, with the loss at chance.
        """
        if not math.isfinite(loss):
            raise NotFiniteError(
                f"The loss became {loss} within the {steps} steps before step {step}. Common causes: a learning rate that "
                f"is too high (it was {self.learning_rate:g}), NaN or infinite pixels, or 16-bit precision. Try a tenth of "
                f"the learning rate{'' if self.clip else ', gradient clipping (clip=1.5)'}, or precision 32-true."
            )
        if scale is None or abs(scale) >= LEAST_SCALE or loss < 0.9 * self.chance:
            self.collapsed.clear()
            return
        self.collapsed.append(steps)
        if sum(self.collapsed) >= self.window:
            cure = f"Lower the learning rate (it was {self.learning_rate:g})"
            if self.clip is None:
                cure = (
                    "Clip the gradient (clip=1.5 in the recipe, --clip 1.5 in the shell), which prevents this, or l"
                    + cure[1:]
                )
            raise ScaleCollapseError(
                f"The scale collapsed: its mean was {scale:.2g} over the last {sum(self.collapsed)} steps before step {step} "
                f"and the loss is {loss:.3f}, at chance (ln C = {self.chance:.3f}). Every gradient is proportional to the "
                f"scale, so training would stay there. {cure}. docs/scale-collapse.md explains how it comes about."
            )

    def check_end(self, loss: float, accuracy: float) -> None:
        """Warn where loss or accuracy of the last epoch are next to no better than guessing."""
        guessing = math.exp(-self.chance)
        if learned_nothing(accuracy=accuracy, loss=loss, guessing=guessing, guessing_loss=self.chance):
            warnings.warn(
                f"The network has learned next to nothing: its training ended with the loss {loss:.3f} and the accuracy "
                f"{accuracy:.1%}, and guessing gives ln C = {self.chance:.3f} and {guessing:.1%}. More epochs, another "
                "learning rate, or a look at the labels may help.",
                UserWarning,
                stacklevel=3,
            )


class StopRequest:
    """Records the first SIGINT or SIGTERM inside its block instead of acting on it; a second one acts as before.

    Attributes:
        number: the signal, or None where none has come.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, signal.Handlers | object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python forbids handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._record)
        return self

    def _record(self, number: int, _frame: FrameType | None) -> None:
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
