"""Compare what is computed with what was recorded: to the bit, or by tolerance."""

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import subjects

RTOL = ATOL = 1e-4
P_VALUES = 0.02
"""How far a p-value may be off by tolerance: a score that moves a little can pass some calibration scores."""


@dataclass
class Comparison:
    """What differs, leaf by leaf.

    Attributes:
        exact: whether bits are compared.
        leaves: how many numbers and words were compared.
        differences: a sentence for each that differs.
    """

    exact: bool
    leaves: int = 0
    differences: list[str] = field(default_factory=list)

    def look(self, found: Any, expected: Any, where: str = "") -> "Comparison":
        """Compare two values as JSON can hold them, or arrays."""
        if isinstance(expected, np.ndarray):
            self._array(np.asarray(found), expected, where)
        elif isinstance(expected, dict) and isinstance(found, dict):
            if list(map(str, found)) != list(expected):
                self._differ(where, list(found), list(expected))
            for key in expected.keys() & found.keys():
                self.look(found[key], expected[key], f"{where}/{key}")
        elif isinstance(expected, list) and isinstance(found, list):
            if len(found) != len(expected):
                self._differ(where, f"{len(found)} values", f"{len(expected)} values")
            for place, (one, other) in enumerate(zip(found, expected, strict=False)):
                self.look(one, other, f"{where}/{place}")
        else:
            self.leaves += 1
            if not self._same(found, expected, where):
                self._differ(where, found, expected)
        return self

    def require(self, share: float = 1.0) -> None:
        """Fail where anything differs; by tolerance, where less than this share agrees."""
        allowed = 0 if self.exact else math.floor((1 - share) * self.leaves)
        shown = "\n".join(self.differences[:10])
        how = "to the bit" if self.exact else "by tolerance"
        assert self.leaves, "nothing was compared"
        assert len(self.differences) <= allowed, f"{len(self.differences)} of {self.leaves} differ {how}:\n{shown}"

    def _array(self, found: Any, expected: Any, where: str) -> None:
        if found.shape != expected.shape or found.dtype != expected.dtype:
            self.leaves += 1
            self._differ(where, f"{found.dtype} {found.shape}", f"{expected.dtype} {expected.shape}")
            return
        self.leaves += expected.size
        same = found == expected if self.exact else np.isclose(found, expected, RTOL, ATOL)
        for place in np.flatnonzero(~same).tolist():
            self._differ(f"{where}[{place}]", found.flat[place], expected.flat[place])

    def _same(self, found: Any, expected: Any, where: str) -> bool:
        if self.exact or not isinstance(expected, float) or not isinstance(found, float):
            return type(found) is type(expected) and bool(found == expected)
        slack = P_VALUES if re.search(r"p_values?\b", where) else ATOL
        return math.isclose(found, expected, rel_tol=RTOL, abs_tol=slack)

    def _differ(self, where: str, found: Any, expected: Any) -> None:
        self.differences.append(f"{where}: {found!r} where {expected!r} was recorded")


def recorded_here(group: str, changed: frozenset[str]) -> bool:
    """Return whether bits of this group can be compared: same versions, same CPU capability, same arithmetic."""
    recorded = json.loads((subjects.VALUES / "recorded.json").read_text(encoding="utf-8"))
    return group not in changed and subjects.surroundings().items() <= recorded.items()


def expected_json(group: str) -> Any:
    """Return the values of a group that are numbers and words."""
    return json.loads((subjects.VALUES / f"{group}.json").read_text(encoding="utf-8"))


def expected_arrays(group: str) -> subjects.Arrays:
    """Return the values of a group of arrays."""
    with np.load(subjects.VALUES / f"{group}.npz") as file:
        return dict(file)


def expected_texts(group: str) -> dict[str, str]:
    """Return the texts of a group."""
    text = (subjects.VALUES / f"{group}.txt").read_text(encoding="utf-8")
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in re.split(r"^@@ ", text, flags=re.M)[1:]}
