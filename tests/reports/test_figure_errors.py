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
    "no panels": (lambda: figures.histograms([]), "at least one of the panels"),
    "no scores": (lambda: figures.histograms([figures.Panel("x", [], [1.0])]), "ID values of 'x'.*shape"),
    "NaN scores": (lambda: figures.histograms([figures.Panel("x", [1.0], [NAN, 1.0])]), "OOD values of 'x'.*1 of 2"),
    "no ROC": (lambda: figures.roc({}), "at least one of the OOD sets"),
    "no detectors": (lambda: figures.roc({"a": {}}), "at least one of the detectors"),
    "ROC of NaN": (lambda: figures.roc({"a": {"d": ([NAN], [1.0])}}), "ID scores"),
    "ROC of infinity": (lambda: figures.roc({"a": {"d": ([1.0], [np.inf])}}), "OOD scores"),
    "no ranking": (lambda: figures.ranking({}), "the detectors"),
    "ranking of NaN": (lambda: figures.ranking({"d": (NAN, 1.0, 2.0)}), "interval of 'd'"),
    "ranking upside down": (lambda: figures.ranking({"d": (5.0, 6.0, 7.0)}), "low <= mean <= high"),
    "no sheet": (lambda: figures.image_sheet({}), "the groups"),
    "empty group": (lambda: figures.image_sheet({"highest": []}), "images of 'highest'"),
    "no bars": (lambda: figures.less_biased_bars({}), "the panels"),
    "no methods": (lambda: figures.less_biased_bars({"p": {}}), "the methods"),
    "no sets": (lambda: figures.less_biased_bars({"p": {"m": {}}}), "sets of 'p'"),
    "bar of NaN": (lambda: figures.less_biased_bars({"p": {"m": {"s": (NAN, 1.0)}}}), "p / m / s"),
    "negative deviation": (lambda: figures.less_biased_bars({"p": {"m": {"s": (9.0, -1.0)}}}), "at least 0"),
    "no tested set": (lambda: figures.dependency({}, {}), "the tested sets"),
    "no assumed set": (lambda: figures.dependency({"a": {}}, {}), "the assumed sets"),
    "dependency on NaN": (lambda: figures.dependency({"a": {"b": NAN}}, {}), "mahalanobis, a over b"),
    "full, empty": (lambda: figures.dependency_full({}), "the detectors"),
    "full, no sets": (lambda: figures.dependency_full({"odin": {}}), "assumed sets of 'odin'"),
    "matrix of NaN": (lambda: figures.dependency_matrix({"odin": {"a": {"b": NAN}}}), "odin, a over b"),
    "no scales": (lambda: figures.fixed_scale({"c": {}}), "the scales"),
    "scale of 0": (lambda: figures.fixed_scale({"c": {0.0: 9.0}}), "above 0"),
    "scale NaN": (lambda: figures.fixed_scale({"c": {1.0: NAN}}), "c at scale 1"),
    "no spaces": (lambda: figures.feature_spaces([], "a", "b"), "the networks"),
    "limit": (lambda: figures.feature_spaces([SPACE], "a", "b", limit=1), "limit of at least 2"),
    "no frames": (lambda: figures.frames({}), "the sets"),
    "no networks": (lambda: figures.reliability({}), "the networks"),
    "confidence above 1": (lambda: figures.reliability({"n": ([1.5], [True])}), "probabilities"),
    "lengths": (lambda: figures.reliability({"n": ([0.5], [True, False])}), r"shape \(1,\) but got \(2,\)"),
    "correct is no flag": (lambda: figures.risk_coverage_curves({"n": ([0.5], [3])}), "true or false"),
    "risk of NaN": (lambda: figures.risk_coverage_curves({"n": ([NAN], [1])}), "scores to be finite"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_answered_with_a_sentence(name: str) -> None:
    draw, message = WRONG[name]
    with pytest.raises(ArgumentError, match=message):
        draw()
