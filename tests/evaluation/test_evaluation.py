"""Whole evaluations: nothing twice, nothing lost, and no test image reaches tuning."""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch
from torch import Tensor

from offaxis.data import TensorSet
from offaxis.data.images import limit_images, split_validation
from offaxis.data.transforms import Batches
from offaxis.detectors import DETECTORS, KNN, ODIN, Cosine, Detector, Energy, Mahalanobis, MaxSoftmax, make_detectors
from offaxis.detectors.base import compatible_detectors
from offaxis.errors import ArgumentError, DataError, DetectorError, EvaluationError
from offaxis.evaluation import Result, Results, Store, evaluate
from offaxis.evaluation.scores import DetectorRun, ScoreRequest, score_requests
from offaxis.files import digest
from offaxis.heads import Outputs
from offaxis.metrics import all_metrics
from offaxis.networks.opened import OpenedNetwork
from offaxis.reports.report import build_sections

from .conftest import NORMALISE, World, trained

Make = Callable[..., OpenedNetwork]


def small() -> list[Detector]:
    return [
        Cosine(),
        MaxSoftmax(),
        ODIN(temperatures=(1.0, 1000.0), epsilons=(0.0, 0.0014, 0.01)),
        Mahalanobis(epsilons=(0.0, 0.01)),
    ]


def run(subject: OpenedNetwork, world: World, store: Store | None, **options: Any) -> list[Result]:
    detectors = options.pop("detectors", None) or small()
    both = {"protocols": ("one-vs-one", "less-biased"), "tune": True, "fitted_on": "all training images"}
    ood = options.pop("ood", world["ood"])
    results = evaluate(
        subject, world["id"], ood, detectors, train=world["train"], store=store, batch_size=50, **{**both, **options}
    )
    return list(results)


def numbers(results: Iterable[Result]) -> dict[str, dict[str, float]]:
    return {r.key: dict(r.metrics) for r in results}


def test_results_are_complete_and_say_where_they_come_from(subject: Make, world: World, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    results = run(subject(), world, store)
    # 3 sets x (4 as given + 2 tuned on the set itself) + 6 pairs of sets x 2 tuned
    assert len(results) == 3 * (4 + 2) + 6 * 2
    assert len({r.key for r in results}) == len(results)
    for r in results:
        assert (r.assumed is None) == (r.state != "tuned")
        assert r.versions["torch"] == torch.__version__
        assert r.images == (len(store.indices(r.id_data)), len(store.indices(r.ood_data)))
        id_scores, ood_scores = (store.scores(reference) for reference in r.scores)
        assert all_metrics(id_scores, ood_scores).items() <= r.metrics.items()
    [record] = store.networks()
    assert record.weights.startswith(results[0].weights)
    assert record.accuracy > 0.8
    about = store.sets()[results[0].ood_data]
    assert about["fingerprint"] == world["ood"][0].fingerprint
    learned = [r.hyperparameters for r in results if r.detector == "mahalanobis" and r.assumed]
    assert all(len(h["weights"]) == 2 for h in learned)


def test_scores_are_those_of_the_detector_itself(subject: Make, world: World, tmp_path: Path) -> None:
    store, one = Store(tmp_path / "store"), subject()
    results = {(r.method, r.ood): r for r in run(one, world, store, protocols=("one-vs-one",))}
    bright = world["ood"][0]
    assert one.normalise is not None
    images = one.normalise(bright.images[split_validation(bright).test])
    for method, detector in (("cosine", Cosine()), ("odin (default)", ODIN(std=None))):
        expected = detector.score_images(one.network, images)
        found = store.scores(results[method, "bright"].scores[1])
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5)
    tuned = results["odin (tuned)", "bright"]
    expected = ODIN(**tuned.hyperparameters).score_images(one.network, images)
    np.testing.assert_allclose(store.scores(tuned.scores[1]), expected.numpy(), rtol=1e-5)


def test_a_second_call_computes_nothing(
    subject: Make, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, one = Store(tmp_path / "store"), subject()
    first = run(one, world, store)
    calls = [0]
    original = one.network.outputs

    def outputs(images: Tensor, *rest: Any) -> Outputs:
        calls[0] += len(images)
        return original(images, *rest)

    monkeypatch.setattr(one.network, "outputs", outputs)
    monkeypatch.setitem(world, "train", lambda: pytest.fail("the training images are not needed"))
    files = sorted(store.path.rglob("*"))
    assert numbers(run(one, world, store)) == numbers(first)
    assert calls[0] == 2  # the two images with which it is found out what the network gives
    assert sorted(store.path.rglob("*")) == files


def test_each_set_goes_through_the_network_once(
    subject: Make, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, seen = subject(), [0]
    original = one.network.outputs

    def outputs(images: Tensor, *rest: Any) -> Outputs:
        seen[0] += len(images)
        return original(images, *rest)

    monkeypatch.setattr(one.network, "outputs", outputs)
    run(one, world, Store(tmp_path / "store"), detectors=[Cosine(), MaxSoftmax(), Energy()])
    assert seen[0] == 2 + 150 + 100 + 120 + 80


def test_what_a_network_gives_is_found_out_where_it_is(subject: Make) -> None:
    network = copy.deepcopy(subject("linear").network).to("meta")  # a device that every machine has
    able, unable = compatible_detectors([MaxSoftmax(), Energy()], network, torch.zeros(2, 1, 8, 8))
    assert [detector.name for detector in able] == ["max-softmax", "energy"]
    assert unable == {}


def test_no_images_at_a_time_and_no_images_at_all_are_refused(subject: Make, world: World) -> None:
    one = subject()
    assert one.normalise is not None
    with pytest.raises(ArgumentError, match="`batch_size` to be a whole number of at least 1 but got 0"):
        Batches(world["id"], one.normalise, 0)
    for count in (0, -5):
        with pytest.raises(ArgumentError, match=f"at least 1 but got {count}"):
            limit_images(world["id"], count)


class StopError(Exception):
    pass


@pytest.mark.parametrize("after", [1, 4, 7, 11])
def test_interrupted_and_resumed_gives_the_same_numbers(
    subject: Make, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    whole = numbers(run(subject(), world, Store(tmp_path / "whole")))
    store, kept = Store(tmp_path / "parts"), Store._add_arrays
    count = [0]

    def failing(self: Store, *arguments: Any) -> None:
        count[0] += 1
        if count[0] > after:
            raise StopError
        kept(self, *arguments)

    monkeypatch.setattr(Store, "_add_arrays", failing)
    with pytest.raises(StopError):
        run(subject(), world, store)
    monkeypatch.undo()
    assert numbers(run(subject(), world, Store(tmp_path / "parts"))) == whole


def test_sets_and_detectors_can_be_added_later(subject: Make, world: World, tmp_path: Path) -> None:
    whole = numbers(run(subject(), world, Store(tmp_path / "whole")))
    store = Store(tmp_path / "parts")
    run(subject(), world, store, ood=world["ood"][:1], detectors=[Cosine()], protocols=("one-vs-one",))
    run(subject(), world, store, ood=world["ood"][1:])
    run(subject(), world, store)
    assert numbers(store.results()) == whole


def test_deleted_grid_scores_are_computed_again(subject: Make, world: World, tmp_path: Path) -> None:
    import shutil

    store = Store(tmp_path / "store")
    run(subject(), world, store, ood=world["ood"][:2])
    shutil.rmtree(store.path / "grid_scores")
    assert len(run(subject(), world, store)) == 30


class Spy(Detector):
    """Its grid scores identify the image, so that what tuning sees can be looked at."""

    name, paper, tunable = "spy", "", ("shift",)
    uses = ("features",)

    def __init__(self, shift: float = 0.0) -> None:
        super().__init__()
        self.shift = shift
        self.shown: list[Tensor] = []

    @property
    def grid(self) -> dict[str, tuple[float, ...]]:
        return {"shift": (0.0, 1.0)}

    def forward(self, outputs: Outputs) -> Tensor:
        return outputs.features.sum(1) + self.shift

    def choose(self, id_grid: Tensor, ood_grid: Tensor, on: str = "OOD samples") -> Self:
        self.shown += [id_grid[:, 0], ood_grid[:, 0]]
        return super().choose(id_grid, ood_grid, on)


def test_no_test_image_ever_reaches_tuning(subject: Make, world: World, tmp_path: Path) -> None:
    store, one, spy = Store(tmp_path / "store"), subject(), Spy()
    results = run(one, world, store, detectors=[spy, Cosine()])
    assert one.normalise is not None
    scores = {}
    for images in (world["id"], *world["ood"]):
        with torch.no_grad():
            scores[images.name] = one.network.outputs(one.normalise(images.images)).features.sum(1)
    allowed, forbidden = set(), set()
    for images in (world["id"], *world["ood"]):
        parts = split_validation(images)
        assert not set(parts.validation.tolist()) & set(parts.test.tolist())
        assert len(parts.validation) + len(parts.test) == len(images)
        allowed |= set(scores[images.name][parts.validation].tolist())
        forbidden |= set(scores[images.name][parts.test].tolist())
    assert not allowed & forbidden  # every image has a score of its own
    shown = {value for part in spy.shown for value in part.tolist()}
    assert shown == allowed
    # and every detector was tested on the same images, in the same order
    for r in results:
        if r.detector == "spy" and r.hyperparameters["shift"] == 0:
            expected = scores[r.ood][split_validation(next(s for s in world["ood"] if s.name == r.ood)).test]
            np.testing.assert_array_equal(store.scores(r.scores[1]), expected.numpy())
    assert len({(r.id_data, r.ood_data) for r in results}) == 3


def test_other_test_images_change_no_choice(subject: Make, world: World, tmp_path: Path) -> None:
    first = run(subject(), world, Store(tmp_path / "first"), protocols=("one-vs-one",))
    changed = []
    for images in world["ood"]:
        pixels = images.images.clone()
        pixels[split_validation(images).test] = 255 - pixels[split_validation(images).test]
        changed.append(TensorSet(images.name, pixels))
    second = run(subject(), world, Store(tmp_path / "second"), protocols=("one-vs-one",), ood=changed)
    choices = [{(r.detector, r.ood): r.hyperparameters for r in results if r.assumed} for results in (first, second)]
    assert choices[0] == choices[1]
    assert numbers(first) != numbers(second)


def test_detectors_that_the_network_cannot_feed_are_left_out(subject: Make, world: World, tmp_path: Path) -> None:
    said: list[str] = []
    results = run(subject("linear"), world, Store(tmp_path / "store"), tune=False, note=said.append)
    assert {r.detector for r in results} == {"max-softmax", "odin", "mahalanobis"}
    assert {r.state for r in results} == {"none", "published default"}
    assert said == ["toy linear: cosine is left out: the network gives no cosine."]
    with pytest.raises(EvaluationError, match="No detector fits"):
        run(subject("linear"), world, Store(tmp_path / "other"), detectors=[Cosine()])


class Broken(Spy):
    """Gives no number for dark images."""

    name = "broken"

    def forward(self, outputs: Outputs) -> Tensor:
        return (outputs.features.sum(1) - 1e9).sqrt()


def test_scores_that_are_no_numbers_stop_nothing(subject: Make, world: World, tmp_path: Path) -> None:
    said: list[str] = []
    results = run(subject(), world, Store(tmp_path / "s"), detectors=[Broken(), Cosine()], note=said.append, tune=False)
    assert {r.detector for r in results} == {"cosine"}
    assert len(said) == 3
    assert "broken has no result on bright: Expected a non-empty row of finite ID scores" in said[0]


def test_too_few_training_images_leave_a_detector_out(subject: Make, world: World, tmp_path: Path) -> None:
    said: list[str] = []
    results = run(subject(), world, Store(tmp_path / "s"), detectors=[KNN(k=5000), Cosine()], note=said.append)
    assert {r.detector for r in results} == {"cosine"}
    assert "at least k = 5000 training images" in said[0]


def test_training_images_that_lack_a_class_leave_out_what_cannot_be_fitted(subject: Make, world: World) -> None:
    whole = world["train"]()
    assert whole.labels is not None
    lacking = whole.subset(torch.nonzero(whole.labels < 2).flatten())
    known: dict[str, Any] = {"normalise": NORMALISE, "train": lacking}
    results = evaluate(subject(), world["id"], world["ood"], "native", **known)
    found = {result.detector for result in results}
    assert {"cosine", "knn", "energy"} <= found
    assert "mahalanobis++" not in found
    [text] = [note for note in results.notes if " mahalanobis++ " in note]
    assert "mahalanobis++ is left out: Expected training images of all 3 classes but there are none of class 2" in text
    with pytest.raises(DetectorError, match=r"mahalanobis\+\+ cannot be fitted: .*none of class 2"):
        evaluate(subject(), world["id"], world["ood"], ["native", "mahalanobis++"], **known)


def test_other_training_images_are_another_result(subject: Make, world: World, tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    first = run(subject(), world, store, detectors=[KNN(k=2), Cosine()], tune=False)
    few: World = {**world, "train": lambda: world["train"]().subset(torch.arange(30))}
    second = run(subject(), few, store, detectors=[KNN(k=2), Cosine()], tune=False, fitted_on="30 images")
    assert {r.detector for r in second if r.key not in {r.key for r in first}} == {"knn"}
    assert {r.fitted_on for r in second} == {"30 images", ""}


def test_what_cannot_be_evaluated_is_refused(subject: Make, world: World, tmp_path: Path) -> None:
    from dataclasses import replace

    store = Store(tmp_path / "store")
    run(subject(), world, store, detectors=[Cosine()])
    with pytest.raises(EvaluationError, match="--label"):
        run(replace(subject("cosine", 1), seed=0), world, store, detectors=[Cosine()])
    with pytest.raises(EvaluationError, match="name of its own"):
        run(subject(), world, store, ood=[world["ood"][0], world["ood"][0]])
    with pytest.raises(ArgumentError, match="normalised"):
        evaluate(replace(subject(), normalise=None), world["id"], world["ood"], [Cosine()], store=store)
    with pytest.raises(DataError, match="labels"):
        evaluate(subject(), world["ood"][0], world["ood"], [Cosine()], store=store)


def test_a_grid_that_lacks_the_given_setting_is_asked_twice() -> None:
    held, lacking = DetectorRun(ODIN(), True), DetectorRun(ODIN(eps=0.3), True)
    assert score_requests(held, True) == [ScoreRequest(held, True)]
    assert score_requests(lacking, True) == [ScoreRequest(lacking, True), ScoreRequest(lacking, False)]
    assert score_requests(held, False) == [ScoreRequest(held, False)]
    still = DetectorRun(ODIN(epsilons=(0.0,)), True)  # its grid moves no image, the given setting does
    assert score_requests(still, True) == [ScoreRequest(still, True), ScoreRequest(still, False)]


def test_a_grid_that_moves_no_image_beside_a_setting_that_does(subject: Make, world: World, tmp_path: Path) -> None:
    results = run(
        subject(), world, Store(tmp_path / "store"), detectors=[ODIN(temperatures=(1.0, 10.0), epsilons=(0.0,))]
    )
    assert {r.passes for r in results if r.state == "tuned"} == {(1, 0.0)}
    assert {r.passes for r in results if r.state != "tuned"} == {(2, 1)}


def test_networks_of_one_label_and_seed_may_differ_by_their_recipe(subject: Make, world: World, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    both = [
        replace(subject(seed=seed), seed=0, recipe={"name": "short", "epochs": epochs})
        for seed, epochs in ((0, 6), (1, 30))
    ]
    for one in both:
        run(one, world, store, detectors=["cosine", "knn:k=3"], protocols=("one-vs-one",))
    with pytest.raises(EvaluationError, match="Another network in .* is called 'toy cosine' with seed 0"):
        run(replace(subject(seed=2), seed=0, recipe=both[0].recipe), world, store)
    labels = {"toy cosine (6 epochs)", "toy cosine (30 epochs)"}
    [section] = build_sections(store.results(), store.networks())
    assert {row[0] for row in section.networks.rows} == labels
    ranking = section.protocols[0].ranking
    assert ranking is not None
    assert {(row[1], row[2]) for row in ranking.rows} == {(d, n) for d in ("cosine", "knn, k=3") for n in labels}
    together = evaluate(both, world["id"], world["ood"], ["cosine"])
    assert all(label in together.table() for label in labels)


OWN = """
from offaxis.detectors import Detector

class Own(Detector):
    name = "own"
    sign = -1

    def forward(self, outputs):
        return self.sign * outputs.logits.amax(1)
"""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Callable[[str], Detector]]:
    """What makes a detector of the text of a file; what is registered is gone afterwards."""
    before = dict(DETECTORS)

    def make(text: str) -> Detector:
        (tmp_path / "mine.py").write_text(text)
        [made] = make_detectors([f"{tmp_path / 'mine.py'}:Own"], trained("cosine", 0))
        return made

    yield make
    DETECTORS.clear()
    DETECTORS.update(before)


def test_an_edited_detector_and_a_store(
    subject: Make, world: World, own: Callable[[str], Detector], tmp_path: Path
) -> None:
    """One's own detector is computed again once its file is edited."""

    def evaluated(text: str) -> Results:
        return evaluate(subject(), world["id"], world["ood"], own(text), store=tmp_path / "store", note=lambda _: None)

    def auroc(results: Results) -> list[float]:
        return [result.metrics["auroc"] for result in results]

    first = evaluated(OWN)
    assert not evaluated(OWN).arrays
    edited = evaluated(OWN.replace("sign = -1", "sign = 1"))
    assert auroc(edited) == pytest.approx([1 - value for value in auroc(first)])
    assert {r.setup for r in first}.isdisjoint(r.setup for r in edited)


def test_setups_of_our_own_detectors_are_as_they_were() -> None:
    assert DetectorRun(ODIN()).setup == digest(["odin", ODIN().arguments, ""])
