"""The page on detectors says of each what it is; the table of all of them is made from the code (scripts/site_hooks.py)."""

import re
from pathlib import Path
from types import ModuleType

from offaxis.detectors import DETECTORS, NATIVE, Reads

PAGE = Path(__file__).parents[2] / "docs" / "detectors.md"


def test_every_row_names_a_detector_with_its_paper_and_hyperparameters(ood: ModuleType) -> None:
    rows: dict[str, str] = {}
    for found in re.finditer(r"^\| `([\w+-]+)` \|.*$", PAGE.read_text(encoding="utf-8"), re.M):
        rows.setdefault(found[1], found[0])  # tables of details come later
    assert len(rows) >= 58
    for name in rows:
        detector = DETECTORS[name]()
        assert detector.paper in rows[name], name
        ours = name.removeprefix("pytorch-ood-")
        assert name == ours or ours not in NATIVE or f"`{ours}`" in rows[name].split("|")[-2], name
        if name in NATIVE:
            assert all(hyperparameter in rows[name] for hyperparameter in detector.tunable), name
            assert ("images" in rows[name]) == (detector.reads is Reads.IMAGES or name == "mahalanobis"), name
