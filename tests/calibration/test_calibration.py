"""Conformal p-values and thresholds: exactness, ties, the law over many calibration sets, and refusals."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy import stats
from torch.utils.data import DataLoader, Dataset, TensorDataset

from offaxis import Calibration, Classifier, Detector, OffaxisError, calibrate, networks
from offaxis.calibration.conformal import allowed, check_count, flag_rate, p_values, smallest_count, threshold
from offaxis.data import Normalise, TensorSet, image_hashes
from offaxis.detectors import ODIN, Energy
from offaxis.errors import ArgumentError, CalibrationError, DataError, OverlapError, TooFewImagesError

LEVELS = (0.01, 0.05, 0.1)


def zeros(count: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.zeros(count, np.int64)


@pytest.mark.parametrize(("alpha", "least"), [(0.01, 99), (0.05, 19), (0.1, 9), (0.29, 3), (0.5, 1), (1 / 3, 3)])
def test_the_smallest_count_is_the_first_that_can_flag(alpha: float, least: int) -> None:
    assert smallest_count(alpha) == least
    assert allowed(least, alpha) == 1
    assert allowed(least - 1, alpha) == 0


def test_too_few_images_are_refused_with_the_number_needed() -> None:
    with pytest.raises(TooFewImagesError, match=r"at least 19 calibration images for alpha = 0.05 but got 18.*1/19"):
        Calibration.from_scores(np.arange(18.0), zeros(18), 10, 0.05)
    Calibration.from_scores(np.arange(19.0), zeros(19), 10, 0.05)


@pytest.mark.parametrize("count", [1, 2, 6, 18, 19, 98, 1233])
def test_the_level_that_is_advised_is_taken(count: int) -> None:
    with pytest.raises(TooFewImagesError) as refused:
        check_count(count, 0.0001)
    check_count(count, float(str(refused.value).split()[-1].removesuffix(".")))


def test_no_level_is_advised_without_images() -> None:
    with pytest.raises(TooFewImagesError, match=r"at least 19 calibration images for alpha = 0.05 but got none\.$"):
        check_count(0, 0.05)


@given(
    st.lists(st.integers(-5, 5), min_size=19, max_size=60),
    st.lists(st.integers(-6, 6), min_size=1, max_size=20),
    st.sampled_from([0.05, 0.07, 0.1, 0.29, 0.3, 0.5]),
)
def test_threshold_and_p_value_agree_under_ties(known: list[int], new: list[int], alpha: float) -> None:
    calibration, scores = np.sort(np.array(known, np.float64)), np.array(new, np.float64)
    by_p = p_values(calibration_scores=calibration, scores=scores) <= alpha
    by_threshold = scores > threshold(calibration, alpha)
    exact = [Fraction(1 + sum(k >= s for k in known), len(known) + 1) <= Fraction(repr(alpha)) for s in new]
    assert by_p.tolist() == by_threshold.tolist() == exact


@given(st.lists(st.integers(0, 3), min_size=20, max_size=40))
def test_ties_are_conservative_for_every_order(scores: list[int]) -> None:
    """Each image as the new one in turn: at most floor(alpha (n + 1)) of n + 1 are flagged, whatever the ties."""
    values = np.array(scores, np.float64)
    flagged = sum(
        p_values(calibration_scores=np.sort(np.delete(values, i)), scores=values[i : i + 1])[0] <= 0.1
        for i in range(len(values))
    )
    assert flagged <= allowed(len(values) - 1, 0.1)


@pytest.mark.parametrize("alpha", LEVELS)
def test_flags_follow_the_beta_binomial_law(alpha: float) -> None:
    """2,000 calibration sets of 199 images, 500 new ID images each: the law of flags, not only its mean."""
    random, n, m, sets = np.random.default_rng(0), 199, 500, 2000
    flags = np.empty(sets, np.int64)
    for i in range(sets):
        calibration = np.sort(random.standard_normal(n))
        flags[i] = (random.standard_normal(m) > threshold(calibration, alpha)).sum()
    k = allowed(n, alpha)
    law = stats.betabinom(m, k, n + 1 - k)
    assert law.mean() / m <= alpha + 1e-12
    assert abs(flags.mean() - law.mean()) < 4 * law.std() / np.sqrt(sets)
    edges = np.unique(law.ppf([0.1, 0.3, 0.5, 0.7, 0.9]))
    expected = np.diff(np.concatenate(([0], law.cdf(edges), [1])))
    observed = np.histogram(flags, np.concatenate(([-1], edges, [m])) + 0.5)[0]
    assert stats.chisquare(observed, expected * sets).pvalue > 1e-3
    binomial = stats.binom(m, alpha)  # the law of a threshold that is known exactly: much too narrow
    assert flags.std() > 1.2 * binomial.std()


def test_the_benchmark_of_validity_tells_honest_calibration_sets_from_others() -> None:
    validity = pytest.importorskip("benchmarks.calibration_validity", reason="run from the project's folder")
    for line in validity.simulated(sets=400):
        assert abs(line.mean - line.expected) < 4 * line.error
        assert line.expected <= line.alpha
        assert line.p_value > 1e-3
    random = np.random.default_rng(0)
    for line in validity.split(random.standard_normal(1000), sets=400):  # given the images, the law is the same
        assert line.p_value > 1e-3
    new = random.standard_normal((400, 500))
    seen = random.standard_normal((400, 500)) - 0.2  # images that were trained on have lower scores
    assert all(validity.compare(seen, new, alpha).p_value < 1e-6 for alpha in LEVELS)
    assert all(validity.compare(seen, new, alpha).mean > 1.2 * alpha for alpha in LEVELS)


def test_the_flag_rate_is_the_law_of_the_long_run() -> None:
    random = np.random.default_rng(1)
    rates = [stats.norm.sf(threshold(np.sort(random.standard_normal(199)), 0.05)) for _ in range(4000)]
    rate = flag_rate(199, 0.05)
    assert np.mean(rates) == pytest.approx(rate.mean, abs=0.001)
    assert np.quantile(rates, [0.05, 0.95]).tolist() == pytest.approx([rate.low, rate.high], abs=0.002)


def test_per_class_holds_in_each_class_where_marginal_does_not() -> None:
    """A hard class and an easy one: the marginal threshold flags the hard one far too often."""
    random = np.random.default_rng(2)
    hits = {True: np.zeros(2), False: np.zeros(2)}
    for _ in range(300):
        classes = random.integers(2, size=400)
        calibration = Calibration.from_scores(
            random.standard_normal(400) + 2 * classes, classes, 2, 0.1, per_class=True
        )
        new = random.integers(2, size=400)
        scores = random.standard_normal(400) + 2 * new
        flagged = {True: calibration.class_p_values(scores, new) <= 0.1, False: calibration.p_values(scores) <= 0.1}
        for within, flags in flagged.items():
            hits[within] += [flags[new == c].mean() / 300 for c in (0, 1)]
    assert hits[True] == pytest.approx([0.1, 0.1], abs=0.01)
    assert hits[False][1] > 0.15


def test_classes_with_too_few_images_have_no_p_value_of_their_own() -> None:
    classes = np.array([0] * 30 + [1] * 5)
    calibration = Calibration.from_scores(np.arange(35.0), classes, 3, 0.05, per_class=True)
    assert calibration.enough() == [True, False, False]
    assert np.isnan(calibration.class_p_values(np.array([1.0, 2.0, 3.0]), np.array([0, 1, 2]))).tolist() == [
        False,
        True,
        True,
    ]
    assert calibration.class_thresholds()[1:] == [None, None]
    with pytest.raises(TooFewImagesError, match="of one class"):
        Calibration.from_scores(np.arange(35.0), np.arange(35) % 3, 3, 0.05, per_class=True)


def test_another_level_needs_no_images_but_enough_of_them() -> None:
    calibration = Calibration.from_scores(np.arange(50.0), zeros(50), 2, 0.1)
    assert calibration.with_alpha(0.05).threshold() > calibration.threshold()
    with pytest.raises(TooFewImagesError, match="at least 99"):
        calibration.with_alpha(0.01)
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        calibration.with_alpha(5)


def test_scores_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(CalibrationError, match="1 that are NaN"):
        Calibration.from_scores(np.array([np.nan] + [0.0] * 30), zeros(31), 2)


HALF = Normalise((0.5,), (0.5,))


class Photographs(Dataset[tuple[Image.Image, int]]):
    """A torch Dataset of (PIL image, label)."""

    def __init__(self, images: TensorSet) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.images.images[index, 0].numpy()), 0


@pytest.fixture
def network() -> Classifier:
    torch.manual_seed(0)
    return networks.wide_resnet(10, 1, 4, in_channels=1).eval()


@pytest.mark.parametrize("detector", [None, Energy(), ODIN(std=(0.5,))], ids=["cosine", "energy", "odin"])
def test_images_may_come_from_anywhere(network: Classifier, detector: Detector | None) -> None:
    images = _images(60, 0)
    expected = calibrate(network, images, HALF, detector)
    loader = DataLoader(TensorDataset(HALF(images.images), torch.zeros(60).long()), batch_size=25)
    unlabelled: DataLoader[Any] = DataLoader(HALF(images.images), batch_size=25)  # type: ignore[arg-type]
    given: list[tuple[Any, Normalise | None]] = [
        (Photographs(images), HALF),
        (images.images, HALF),
        (TensorDataset(images.images), HALF),
        (loader, None),
        (unlabelled, None),
    ]
    for data, normalise in given:
        calibration = calibrate(network, data, normalise, detector)
        np.testing.assert_allclose(calibration.scores, expected.scores, rtol=1e-4, atol=1e-6)
        assert calibration.cosine is not None
        assert calibration.class_counts() == expected.class_counts()


def test_what_calibrate_refuses(network: Classifier) -> None:
    images = _images(60, 0)
    loader = DataLoader(TensorDataset(HALF(images.images), torch.zeros(60).long()), batch_size=25)
    with pytest.raises(ArgumentError, match="normalise"):
        calibrate(network, images)
    with pytest.raises(ArgumentError, match="normalise=None"):
        calibrate(network, loader, HALF)
    with pytest.raises(ArgumentError, match="give its dataset with `normalise`"):
        calibrate(network, loader, used=[images])
    with pytest.raises(TooFewImagesError, match="at least 99"):
        calibrate(network, loader, alpha=0.01)
    with pytest.raises(TooFewImagesError, match="but got none"):
        calibrate(network, DataLoader(TensorDataset(torch.zeros(0, 1, 8, 8), torch.zeros(0)), batch_size=5))
    broken = HALF(images.images)
    broken[3, 0, 2, 2] = float("nan")
    with pytest.raises(OffaxisError, match="NaN"):
        calibrate(network, DataLoader(TensorDataset(broken, torch.zeros(60)), batch_size=25))
    with pytest.raises(DataError, match="Expected labels from 0 to 3 but batch 0 of TensorDataset has 7"):
        calibrate(network, DataLoader(TensorDataset(HALF(images.images), torch.full((60,), 7)), batch_size=25))


def test_a_calibration_is_constructed_by_keyword() -> None:
    with pytest.raises(TypeError):
        Calibration(np.arange(50.0), zeros(50), 2)  # type: ignore[misc]


def _images(count: int, seed: int) -> TensorSet:
    generator = torch.Generator().manual_seed(seed)
    return TensorSet("some", torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8, generator=generator))


def test_images_that_were_used_are_refused(network: Classifier) -> None:
    seen, fresh = _images(40, 0), _images(40, 1)
    mixed = TensorSet("mixed", torch.cat([fresh.images, seen.images[7:8]]))
    dataset = [(image, 0) for image in seen.images]
    hashes = image_hashes(seen)
    for used in (
        [seen],
        [hashes],
        [set(hashes)],
        [seen.images],
        [seen.images.numpy()],
        [TensorDataset(seen.images)],
        [dataset],
    ):
        with pytest.raises(OverlapError, match=r"1 of the 41 calibration images.*numbers 40"):
            calibrate(network, mixed, HALF, used=used)
    with pytest.raises(OverlapError):  # known again at the size that the network takes
        calibrate(network, seen, HALF, used=[TensorSet("colour", seen.images.expand(-1, 3, -1, -1))])
    assert len(calibrate(network, fresh, HALF, used=[seen]).scores) == 40
    assert len(calibrate(network, fresh, HALF, used=[[], seen.images]).scores) == 40
    for wrong in ("small-digits", DataLoader(TensorDataset(seen.images))):
        with pytest.raises(DataError, match="Expected"):
            calibrate(network, fresh, HALF, used=[wrong])


@pytest.mark.parametrize("detector", [None, Energy(), ODIN()])
def test_every_kind_of_detector_can_be_calibrated(network: Classifier, detector: Energy | ODIN | None) -> None:
    calibration = calibrate(network, _images(60, 0), HALF, detector)
    assert len(calibration.scores) == 60
    assert (np.diff(calibration.scores) >= 0).all()
    assert calibration.cosine is not None


def test_a_threshold_of_unsorted_scores_is_refused() -> None:
    with pytest.raises(ArgumentError, match="rising order"):
        threshold(np.array([3.0, 1.0, 2.0] * 10), 0.1)


def test_scores_that_are_all_alike_are_refused() -> None:
    with pytest.raises(CalibrationError, match="all 40 calibration images have the score 0.5"):
        Calibration.from_scores(np.full(40, 0.5), zeros(40), 10)
    dead = networks.wide_resnet(10, 1, in_channels=1).eval()
    for parameter in dead.backbone.parameters():
        torch.nn.init.zeros_(parameter)
    images = TensorSet("noise", torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8))
    with pytest.raises(CalibrationError, match="gives the same for every image"):
        calibrate(dead, images, Normalise((0.5,), (0.5,)))


def test_copies_among_the_calibration_images_are_told_with_the_number_of_distinct_ones() -> None:
    network = networks.wide_resnet(10, 1).eval()
    some = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match="Only 5 of the 40 calibration images are distinct"):
        calibrate(network, TensorSet("copies", some.repeat(8, 1, 1, 1)), Normalise((0.5,) * 3, (0.5,) * 3))
    loader = DataLoader(TensorDataset(some.repeat(8, 1, 1, 1).float(), torch.zeros(40).long()), batch_size=16)
    with pytest.warns(UserWarning, match="Only 5 of the 40"):
        calibrate(network, loader)
