"""Every head by its name, with what it must be given."""

from collections.abc import Callable
from functools import partial

from offaxis.heads import HEADS, Head

MUST_BE_GIVEN = {"l2-softmax": {"scale": 16.0}}
MAKERS: dict[str, Callable[[int, int], Head]] = {
    name: partial(HEADS[name], **MUST_BE_GIVEN.get(name, {})) for name in HEADS
}
