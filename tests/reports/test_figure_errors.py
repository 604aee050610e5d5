"""Nothing to draw, and numbers that are none: every figure says so."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from offaxis.errors import ArgumentError
from offaxis.reports import figures

NAN = float("nan")
SPACE = figures.Space("n", np.ones((3, 2)), [0, 1, 2], np.ones((3, 2)), [0, 1, 2], np.ones((3, 2)), np.ones((3, 2)))

WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no panels": (lambda: figures.histograms([]), "draw in panels but there are none"),
    "no scores": (
        lambda: figures.histograms([figures.Panel("x", [], [1.0])]),
        r"panels\[0\]\['id_scores'\] but there are",
    ),
    "NaN scores": (lambda: figures.histograms([figures.Panel("x", [1.0], [NAN, 1.0])]), r"\['ood_scores'\] but 1 of 2"),
    "no ROC": (lambda: figures.roc({}), "panels but there are none"),
    "no detectors": (lambda: figures.roc({"a": {}}), r"panels\['a'\] but there are none"),
    "ROC of NaN": (lambda: figures.roc({"a": {"d": ([NAN], [1.0])}}), r"panels\['a'\]\['d'\]\[0\] but 1 of 1"),
    "ROC of infinity": (lambda: figures.roc({"a": {"d": ([1.0], [np.inf])}}), r"panels\['a'\]\['d'\]\[1\]"),
    "no ranking": (lambda: figures.ranking({}), "means but there are none"),
    "ranking of NaN": (lambda: figures.ranking({"d": (NAN, 1.0, 2.0)}), r"means\['d'\] but 1 of 3"),
    "no sheet": (lambda: figures.image_sheet({}), "groups but"),
    "empty group": (lambda: figures.image_sheet({"highest": []}), r"groups\['highest'\] but there are none"),
    "no bars": (lambda: figures.less_biased_bars({}), "panels but"),
    "no methods": (lambda: figures.less_biased_bars({"p": {}}), r"panels\['p'\] but"),
    "no sets": (lambda: figures.less_biased_bars({"p": {"m": {}}}), r"panels\['p'\]\['m'\] but"),
    "bar of NaN": (
        lambda: figures.less_biased_bars({"p": {"m": {"s": (NAN, 1.0)}}}),
        r"\['p'\]\['m'\]\['s'\] but 1 of 2",
    ),
    "no tested set": (lambda: figures.dependency({}, {}), "tuned but"),
    "no assumed set": (lambda: figures.dependency({"a": {}}, {}), r"tuned\['a'\] but"),
    "dependency on NaN": (lambda: figures.dependency({"a": {"b": NAN}}, {}), r"tuned\['a'\]\['b'\] but"),
    "free NaN": (lambda: figures.dependency({"a": {"b": 1.0}}, {"a": NAN}), r"free\['a'\] but"),
    "full, empty": (lambda: figures.dependency_full({}), "panels but"),
    "full, no sets": (lambda: figures.dependency_full({"odin": {}}), r"panels\['odin'\] but"),
    "matrix of NaN": (lambda: figures.dependency_matrix({"odin": {"a": {"b": NAN}}}), r"\['odin'\]\['a'\]\['b'\] but"),
    "no scales": (lambda: figures.fixed_scale({"c": {}}), r"curves\['c'\] but"),
    "scale of 0": (lambda: figures.fixed_scale({"c": {0.0: 9.0}}), "above 0"),
    "scale NaN": (lambda: figures.fixed_scale({"c": {1.0: NAN}}), r"curves\['c'\]\[1.0\] but"),
    "predicted NaN": (lambda: figures.fixed_scale({"c": {1.0: 9.0}}, {"c": NAN}), r"predicted\['c'\] but"),
    "no spaces": (lambda: figures.feature_spaces([], "a", "b"), "spaces but"),
    "too few": (lambda: figures.feature_spaces([SPACE], "a", "b", limit=0), "at least 4 images"),
    "no frames": (lambda: figures.frames({}), "sets but"),
    "no networks": (lambda: figures.reliability({}), "networks but"),
    "confidence above 1": (lambda: figures.reliability({"n": ([1.5], [True])}), r"in \[0, 1\]"),
    "lengths": (lambda: figures.reliability({"n": ([0.5], [True, False])}), r"shapes \(1,\) and \(2,\)"),
    "risk of NaN": (lambda: figures.risk_coverage_curves({"n": ([NAN], [1])}), r"networks\['n'\]\[0\] but 1 of 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_answered_with_a_sentence(name: str) -> None:
    draw, message = WRONG[name]
    with pytest.raises(ArgumentError, match=message):
        draw()
