"""What a notebook shows of predictions, calibrations, models and results."""

from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import offaxis
from offaxis.networks import wide_resnet


def well_formed(html: str) -> str:
    """The text of HTML whose elements are closed and nested as they should be."""
    return " ".join("".join(ElementTree.fromstring(html).itertext()).split())


def prediction(**changes: object) -> offaxis.Prediction:
    fields = {
        "class_name": "<b>apple</b>", "class_index": 0, "probability": 0.97, "cosine": 0.8, "score": -0.8, "p_value": 0.62,
        "class_p_value": None, "verdict": offaxis.Verdict.IN, "nearest": (("<b>apple</b>", 0.8), ("pear", 0.1)),
    }  # fmt: skip
    return offaxis.Prediction(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_prediction_is_one_line_and_a_card() -> None:
    assert str(prediction(class_name="apple")) == "apple (97 %), like the training images (p = 0.62)"
    shown = well_formed(prediction()._repr_html_())
    assert "<b>apple</b> in-distribution" in shown  # a name is text, not HTML
    assert "97.0%" in shown
    assert "out-of-distribution" in well_formed(prediction(verdict=offaxis.Verdict.OUT, cosine=None)._repr_html_())


def test_a_calibration_shows_its_level_and_its_scores() -> None:
    scores = np.random.default_rng(0).normal(size=200)
    html = offaxis.Calibration.from_scores(scores, np.zeros(200, np.int64), 2)._repr_html_()
    shown = well_formed(html)
    assert "Calibration on 200 ID images" in shown
    assert "at most 0.05" in shown
    assert html.count("<rect") == 40
    assert "#c62828" in html  # scores above the threshold


@pytest.fixture(scope="module")
def network() -> offaxis.Classifier:
    torch.manual_seed(0)
    return wide_resnet(10, 1, num_classes=10, in_channels=1, stem_stride=2).eval()


@pytest.fixture(scope="module")
def digits() -> offaxis.ImageSet:
    return offaxis.load_images("small-digits", "test").subset(torch.arange(60))


def test_a_model_shows_classes_detector_and_calibration(network: offaxis.Classifier, digits: offaxis.ImageSet) -> None:
    from offaxis.data import Normalise, Preprocessing

    preprocessing = Preprocessing((1, 8, 8), Normalise((0.3,), (0.4,)))
    model = offaxis.Model.calibrated(network, digits, detector="cosine", preprocessing=preprocessing)
    shown = well_formed(model._repr_html_())
    assert repr(model) == "Model(wrn-10-1-half, 10 classes, detector cosine, alpha 0.05, calibrated on 60)"
    for part in ("10: 0, 1, 2", "images of 8x8, grey", "cosine", "60 ID images"):
        assert part in shown


def test_results_are_a_table_with_the_best_first(network: offaxis.Classifier, digits: offaxis.ImageSet) -> None:
    from offaxis.data import Normalise

    letters = offaxis.load_images("letters", like=digits).subset(torch.arange(40))
    results = offaxis.evaluate(
        network, digits, {"letters": letters}, detectors=["cosine", "energy"], normalise=Normalise((0.3,), (0.4,))
    )
    shown = well_formed(results._repr_html_())
    assert "AUROC in percent" in shown
    assert all(name in shown for name in ("cosine", "energy", "letters", "mean"))
    assert repr(results).startswith("2 results, AUROC in percent\n| ")  # what a terminal shows
    assert len(repr(results)) < 1000
