"""What every detector promises, whichever paper it comes from."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import offaxis
from offaxis.data import Normalise, TensorSet
from offaxis.detectors import (
    ASH,
    CORE,
    FDBD,
    GEN,
    KNN,
    NATIVE,
    NCI,
    NECO,
    ODIN,
    ORA,
    SCALE,
    Combined,
    Cosine,
    CosineEnsemble,
    Detector,
    Energy,
    GeneralizedODIN,
    IsoMaxPlus,
    LeaveOut,
    Mahalanobis,
    MahalanobisPlusPlus,
    MaxLogit,
    MaxSoftmax,
    MeanCosine,
    NNGuide,
    ReAct,
    Reads,
    RelativeMahalanobis,
    RelativeMahalanobisPlusPlus,
    State,
    TwoCosines,
    ViM,
    WeiPerKLD,
    fit_all,
    load_detector,
    save_detector,
    score_all,
)
from offaxis.detectors.base import best_setting
from offaxis.detectors.odin import backbone_of
from offaxis.errors import ArgumentError, BadOutputsError, DataError, DetectorError, NotFittedError
from offaxis.networks.classifier import Classifier
from offaxis.networks.combine import Ensemble
from offaxis.networks.run import run_batch
from tests.detectors.toy import NetworkOf, Toy

STD = (0.5,)
CASES: dict[str, tuple[Callable[[], Detector], str]] = {
    "cosine": (Cosine, "cosine"),
    "cosine of a pair": (Cosine, "paired"),
    "cosine ensemble": (CosineEnsemble, "ensemble"),
    "two cosines": (TwoCosines, "cosine"),
    "two cosines of a pair": (TwoCosines, "paired"),
    "mean cosine": (MeanCosine, "linear"),
    "mean cosine, cosine head": (MeanCosine, "cosine"),
    "combined": (Combined, "linear"),
    "combined, cosine head": (Combined, "cosine"),
    "combined of a pair": (Combined, "paired"),
    "max-softmax": (MaxSoftmax, "linear"),
    "max-softmax, cosine head": (MaxSoftmax, "cosine"),
    "odin": (lambda: ODIN(std=STD), "linear"),
    "odin, T = 1": (lambda: ODIN(1, 0.001, std=STD), "linear"),
    "odin without eps": (lambda: ODIN(eps=0), "linear"),
    "mahalanobis": (Mahalanobis, "linear"),
    "mahalanobis with eps": (lambda: Mahalanobis(eps=0.001, std=STD), "linear"),
    "mahalanobis of a pair": (lambda: Mahalanobis(("second",), eps=0.001), "paired"),
    "leave-out": (lambda: LeaveOut(std=STD), "leave-out"),
    "max-logit": (MaxLogit, "linear"),
    "energy": (Energy, "linear"),
    "gen": (GEN, "linear"),
    "gen, top": (lambda: GEN(top=2), "linear"),
    "knn": (lambda: KNN(10), "linear"),
    "knn, cosine head": (lambda: KNN(10), "cosine"),
    "vim": (ViM, "linear"),
    "vim, cosine head": (lambda: ViM(8), "cosine"),
    "relative mahalanobis": (RelativeMahalanobis, "linear"),
    "mahalanobis++": (MahalanobisPlusPlus, "linear"),
    "mahalanobis++, shrunk": (lambda: MahalanobisPlusPlus(shrinkage=True), "cosine"),
    "relative mahalanobis++": (RelativeMahalanobisPlusPlus, "linear"),
    "fdbd": (FDBD, "linear"),
    "fdbd, cosine head": (FDBD, "cosine"),
    "nci": (NCI, "linear"),
    "nci, cosine head": (NCI, "cosine"),
    "nnguide": (NNGuide, "linear"),
    "nnguide, cosine head": (lambda: NNGuide(3), "cosine"),
    "neco": (NECO, "linear"),
    "neco, cosine head": (lambda: NECO(5), "cosine"),
    "weiper-kld": (lambda: WeiPerKLD(repeats=10), "linear"),
    "weiper-kld, cosine head": (lambda: WeiPerKLD(logits_weight=0.1, confidence_weight=1, repeats=10), "cosine"),
    "core": (CORE, "linear"),
    "core, cosine head": (CORE, "cosine"),
    "ora": (ORA, "cosine"),
    "react": (ReAct, "linear"),
    "react, cosine head": (lambda: ReAct(0.95), "cosine"),
    "ash-s": (lambda: ASH(0.65), "linear"),
    "ash-b": (lambda: ASH(0.65, "b"), "linear"),
    "ash-p": (lambda: ASH(0.65, "p"), "linear"),
    "scale": (SCALE, "linear"),
    "scale of a pair": (SCALE, "paired"),
    "generalized odin, deconf-c": (lambda: GeneralizedODIN(std=STD), "deconf-c"),
    "generalized odin, deconf-i": (GeneralizedODIN, "deconf-i"),
    "generalized odin, deconf-e": (GeneralizedODIN, "deconf-e"),
    "generalized odin without eps": (lambda: GeneralizedODIN(perturb=False), "deconf-c"),
    "isomax": (IsoMaxPlus, "isomax"),
}
NEED_FIT = [case for case, (make, _) in CASES.items() if make().needs_fit]
READ_IMAGES = [case for case, (make, _) in CASES.items() if make().reads is Reads.IMAGES]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, toy: Toy, network_of: NetworkOf) -> tuple[Detector, Any]:
    """A fitted detector with its network."""
    make, kind = CASES[request.param]
    network = network_of(kind)
    return make().fit(network, toy.train), network


def test_every_detector_has_a_case() -> None:
    assert {make().name for make, _ in CASES.values()} == set(NATIVE)


def test_scores_are_finite_and_one_per_image(case: tuple[Detector, Any], toy: Toy) -> None:
    detector, network = case
    scores = detector.score_images(network, toy.images)
    assert scores.shape == (len(toy.images),)
    assert scores.is_floating_point()
    assert torch.isfinite(scores).all()
    assert not scores.requires_grad
    assert detector.score_images(network, toy.images[:0]).shape == (0,)


def test_features_that_are_all_zero_have_a_finite_score(case: tuple[Detector, Any], toy: Toy) -> None:
    """As a dead network gives them: the cosine is 0, and no score divides by the length."""
    detector, network = case
    for part in network.modules():
        if isinstance(part, Classifier):
            part.backbone.register_forward_hook(lambda _module, _images, features: features * 0)
    outputs = run_batch(network, toy.images)
    assert outputs.cosine is None or (outputs.cosine == 0).all()
    assert torch.isfinite(detector.score_images(network, toy.images)).all()


def test_larger_is_more_out_of_distribution(case: tuple[Detector, Any], toy: Toy) -> None:
    detector, network = case
    id_scores = detector.score_images(network, toy.images)
    ood_scores = detector.score_images(network, toy.ood_images)
    assert (ood_scores.unsqueeze(1) > id_scores).double().mean() > 0.8


def test_the_score_of_an_image_does_not_depend_on_its_batch(case: tuple[Detector, Any], toy: Toy) -> None:
    detector, network = case
    exact = copy.deepcopy(network).double()  # in float32 a network's own rounding differs by batch size, and processor
    whole = detector.score_images(exact, toy.images)
    alone = torch.cat([detector.score_images(exact, image) for image in toy.images[:7].split(1)])
    torch.testing.assert_close(alone, whole[:7], rtol=1e-7, atol=1e-7)


def test_scoring_leaves_no_trace_in_the_network(case: tuple[Detector, Any], toy: Toy) -> None:
    detector, network = case
    network.train()
    list(network.modules())[-1].eval()
    modes = [module.training for module in network.modules()]
    before = copy.deepcopy(network.state_dict())
    detector.fit(network, toy.train[:1])
    detector.score_images(network, toy.images)
    detector.grid_scores_images(network, toy.images[:2])
    assert [module.training for module in network.modules()] == modes
    assert all(parameter.grad is None for parameter in network.parameters())
    assert all(parameter.requires_grad for parameter in network.parameters())
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert not any(module._forward_hooks for module in network.modules())


def test_the_mode_of_the_network_does_not_matter(case: tuple[Detector, Any], toy: Toy) -> None:
    detector, network = case
    expected = detector.score_images(network.eval(), toy.images)
    assert torch.equal(detector.score_images(network.train(), toy.images), expected)


def test_saved_and_loaded_it_scores_the_same_to_the_bit(case: tuple[Detector, Any], toy: Toy, tmp_path: Path) -> None:
    detector, network = case
    detector.tuned_on = "something" if detector.tunable else None
    save_detector(detector, tmp_path / "detector.safetensors")
    again = load_detector(tmp_path / "detector.safetensors")
    assert type(again) is type(detector)
    assert again.arguments == detector.arguments
    assert again.tuned_on == detector.tuned_on
    assert torch.equal(again.score_images(network, toy.images), detector.score_images(network, toy.images))


def test_state_dict_turns_a_new_one_into_the_fitted_one(case: tuple[Detector, Any], toy: Toy) -> None:
    detector, network = case
    fresh = type(detector)(**{k: v for k, v in detector.arguments.items() if k != "layers"})
    fresh.load_state_dict(detector.state_dict())
    assert torch.equal(fresh.score_images(network, toy.images), detector.score_images(network, toy.images))
    assert all(a.data_ptr() != b.data_ptr() for a, b in zip(fresh.buffers(), detector.buffers(), strict=True))


def test_all_that_was_fitted_is_buffers_and_moves(case: tuple[Detector, Any]) -> None:
    detector, _ = case
    moved = detector.to("meta")
    assert all(buffer.is_meta for buffer in moved.buffers())
    assert not [name for name, value in vars(moved).items() if isinstance(value, torch.Tensor)]
    assert not list(detector.parameters())


def test_in_float64_the_scores_are_nearly_the_same(case: tuple[Detector, Any], toy: Toy) -> None:
    detector, network = case
    single = detector.score_images(network, toy.images)
    network.double()
    twice = type(detector)(**detector.arguments).fit(network, [(x.double(), y) for x, y in toy.train])
    double = twice.score_images(network, toy.images.double())
    assert double.dtype == torch.float64
    # A gradient near zero may change its sign, so perturbed scores agree for most images only.
    close = torch.isclose(double, single.double(), rtol=2e-3, atol=2e-3)
    assert close.double().mean() > 0.8
    also = detector.double().score_images(network, toy.images.double())
    assert torch.isclose(also, double, rtol=2e-3, atol=2e-3).double().mean() > 0.8


def test_under_inference_mode_it_scores_the_same(case: tuple[Detector, Any], toy: Toy) -> None:
    detector, network = case
    expected = detector.score_images(network, toy.images)
    with torch.inference_mode():
        scores = detector.score_images(network, toy.images)
    assert torch.equal(scores, expected)


def test_outputs_and_images_give_the_same_score(case: tuple[Detector, Any], toy: Toy) -> None:
    detector, network = case
    outputs = network.eval().outputs(toy.images, detector.layers)
    if detector.reads is Reads.IMAGES:
        with pytest.raises(DetectorError, match="score_images"):
            detector.score(outputs)
    else:
        assert torch.equal(detector.score(outputs), detector.score_images(network, toy.images))


def test_grid_scores_hold_the_scores_of_every_setting(case: tuple[Detector, Any], toy: Toy) -> None:
    detector, network = case
    grid_scores = detector.grid_scores_images(network, toy.images)
    assert grid_scores.shape[:2] == (len(toy.images), len(detector.settings))
    for setting in detector.settings[:: max(len(detector.settings) // 5, 1)]:
        other = detector.with_hyperparameters(**setting)
        torch.testing.assert_close(other.score_from_grid(grid_scores), other.score_images(network, toy.images))


def test_nan_images_are_refused(case: tuple[Detector, Any], toy: Toy) -> None:
    detector, network = case
    broken = toy.images.clone()
    broken[3, 0, 2, 2] = float("nan")
    with pytest.raises(BadOutputsError, match="NaN"):
        detector.score_images(network, broken)
    with pytest.raises(BadOutputsError, match="shape"):
        detector.score_images(network, toy.images[0])
    with pytest.raises(BadOutputsError, match="uint8"):
        detector.score_images(network, toy.images.to(torch.uint8))


def test_nan_and_wrong_shapes_of_outputs_are_refused(case: tuple[Detector, Any], toy: Toy) -> None:
    detector, network = case
    if detector.reads is Reads.IMAGES:
        return  # it takes no outputs, which is tested above
    good = network.outputs(toy.images, detector.layers)
    for field in detector.uses:
        if field == "layers":
            name = detector.layers[0]
            broken = [good._replace(layers={**good.layers, name: f(good.layers[name])}) for f in (spoil, narrow)]
        else:
            broken = [good._replace(**{field: f(getattr(good, field))}) for f in (spoil, flatten)]
        for outputs in broken:
            with pytest.raises(BadOutputsError, match=detector.name):
                detector.score(outputs)


def spoil(tensor: torch.Tensor) -> torch.Tensor:
    spoilt = tensor.clone()
    spoilt.view(-1)[5] = float("nan")
    return spoilt


def narrow(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:, 1:]


def flatten(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(1, -1, 1)


@pytest.mark.parametrize("name", NEED_FIT)
def test_unfitted_use_says_so(name: str, toy: Toy, network_of: NetworkOf, tmp_path: Path) -> None:
    make, kind = CASES[name]
    network = network_of(kind)
    with pytest.raises(NotFittedError, match=r"fit\("):
        make().score_images(network, toy.images)
    with pytest.raises(NotFittedError, match=r"fit\("):
        save_detector(make(), tmp_path / "x")


@pytest.mark.parametrize("name", NEED_FIT)
def test_where_a_second_fit_fails_it_is_not_fitted_any_more(name: str, toy: Toy, network_of: NetworkOf) -> None:
    make, kind = CASES[name]
    network = network_of(kind)
    broken = [(toy.images * float("nan"), toy.labels)]
    for fit in (lambda d: d.fit(network, broken), lambda d: fit_all(network, broken, [d])):
        detector = make().fit(network, toy.train[:1])
        with pytest.raises(BadOutputsError, match="NaN"):
            fit(detector)
        assert not detector.fitted or isinstance(detector, (ASH, SCALE))  # these copy the head alone, and have


@pytest.mark.parametrize("name", CASES)
def test_it_declares_what_it_is(name: str) -> None:
    detector = CASES[name][0]()
    assert detector.paper.startswith("https://")
    assert set(detector.grid) <= set(detector.tunable)
    given = detector.changed.keys() & set(detector.tunable)
    assert detector.state is (State.GIVEN if given else State.DEFAULT if detector.tunable else State.NONE)
    assert detector.passes.forward >= 1
    assert (detector.passes.backward > 0) == (detector.reads is Reads.IMAGES)


def test_scoring_takes_the_passes_that_it_declares(
    case: tuple[Detector, Any], toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector, network = case
    members = network.networks if isinstance(network, Ensemble) else [network]
    forward = backward = 0
    gradient = torch.autograd.grad

    def count_forward(*_: object) -> None:
        nonlocal forward
        forward += 1

    def count_backward(*arguments: Any, **keywords: Any) -> Any:
        nonlocal backward
        backward += 1
        return gradient(*arguments, **keywords)

    monkeypatch.setattr(torch.autograd, "grad", count_backward)
    handles = [backbone_of(member).register_forward_pre_hook(count_forward) for member in members]
    detector.score_images(network, toy.images)
    for handle in handles:
        handle.remove()
    declared = replace_networks(detector, len(members)).passes
    assert (forward, backward) == declared


def replace_networks(detector: Detector, count: int) -> Detector:
    """The detector, told how many networks there are where it takes that number."""
    if "networks" not in detector.options:
        return detector
    return type(detector)(**{**detector.arguments, "networks": count})


def test_one_pass_fits_and_scores_as_many_passes_do(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("linear")
    apart = [make().fit(network, toy.train) for make, kind in CASES.values() if kind == "linear"]
    together = [make() for make, kind in CASES.values() if kind == "linear"]
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    handle = network.register_forward_hook(count)
    body = network.backbone.register_forward_hook(count)
    fit_all(network, toy.train, together)
    assert calls == len(toy.train)
    shared = [detector for detector in together if detector.reads is not Reads.IMAGES]
    calls = 0
    score_all(network, [toy.images, toy.ood_images], shared)
    assert calls == 2
    handle.remove()
    body.remove()
    for one, two, scores in zip(apart, together, score_all(network, toy.images.split(20), together), strict=True):
        torch.testing.assert_close(scores, one.score_images(network, toy.images), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(two.state_dict(), one.state_dict())


def test_fitting_takes_images_from_anywhere(toy: Toy, network_of: NetworkOf) -> None:
    network, normalise = network_of("linear"), Normalise((0.5,), (0.5,))
    images, labels = (torch.cat(parts) for parts in zip(*toy.train, strict=True))
    pixels = (255 * (images - images.min()) / (images.max() - images.min())).to(torch.uint8)
    normalised = normalise(pixels)
    [expected] = [KNN(10).fit(network, [(normalised, labels)])]
    given: list[tuple[Any, Normalise | None]] = [
        (TensorSet("stripes", pixels, labels), normalise),
        (TensorDataset(pixels, labels), normalise),
        (DataLoader(TensorDataset(normalised, labels), batch_size=30), None),
        (zip(normalised.split(50), labels.split(50), strict=True), None),
    ]
    for data, how in given:
        one, other = KNN(10), MeanCosine()
        fit_all(network, data, [one, other, Cosine()], how)
        torch.testing.assert_close(one.bank, expected.bank)
        assert other.fitted
    for data, how in given[:3]:
        torch.testing.assert_close(KNN(10).fit(network, data, how, batch_size=64).bank, expected.bank)
    for detector in (GeneralizedODIN(), MaxLogit()):
        assert detector.fit(network_of("deconf-c"), *given[0]).fitted
    with pytest.raises(ArgumentError, match="normalise"):
        KNN(10).fit(network, given[0][0])
    with pytest.raises(DataError, match="labels"):
        KNN(10).fit(network, TensorDataset(pixels), normalise)
    with pytest.raises(DataError, match="from 0 to 3"):
        KNN(10).fit(network, DataLoader(TensorDataset(normalised, labels + 1), batch_size=30))


def test_grid_scores_serve_every_tuned_detector(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("linear")
    detectors = [make() for make, kind in CASES.values() if kind == "linear"]
    fit_all(network, toy.train, detectors)
    for detector in detectors:
        id_grid = detector.grid_scores_images(network, toy.images)
        ood_grid = detector.grid_scores_images(network, toy.ood_images)
        tuned = detector.choose(id_grid, ood_grid)
        assert tuned.state is (State.TUNED if detector.grid else detector.state)
        scores = tuned.score_from_grid(ood_grid)
        torch.testing.assert_close(scores, tuned.score_images(network, toy.ood_images), rtol=1e-4, atol=1e-5)
        assert (scores.unsqueeze(1) > tuned.score_from_grid(id_grid)).double().mean() > 0.8
        again = detector.tune(network, [toy.images], [(toy.ood_images, toy.labels)])
        assert again.arguments == tuned.arguments


def test_no_images_are_told(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("linear")
    fitted = Mahalanobis().fit(network, toy.train)
    with pytest.raises(ArgumentError, match="images to score but there were none"):
        score_all(network, [], [Energy(), fitted])
    with pytest.raises(ArgumentError, match="ID images to tune on but there were none"):
        ODIN().tune(network, [], [toy.ood_images])
    with pytest.raises(ArgumentError, match="OOD images to tune on but there were none"):
        ODIN().tune(network, [toy.images], [])
    with pytest.raises(ArgumentError, match="ID images to tune on but there were none"):
        fitted.tune_without_ood(network, [])


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_scores_in_half_precision_can_be_measured_and_tuned(
    kind: torch.dtype, toy: Toy, network_of: NetworkOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, detector = network_of("linear"), MaxLogit()
    score = detector.forward
    monkeypatch.setattr(detector, "forward", lambda outputs: score(outputs).to(kind))  # on any CPU
    [id_scores], [ood_scores] = (score_all(network, [x], [detector]) for x in (toy.images, toy.ood_images))
    assert id_scores.dtype == torch.float32
    assert offaxis.metrics.auroc(id_scores.numpy(), ood_scores.numpy()) > 0.8
    assert best_setting(id_scores.to(kind).unsqueeze(1), ood_scores.to(kind).unsqueeze(1)) == 0


class Refusing(Detector):
    """A detector that cannot be fitted."""

    name = "refusing"
    needs_fit = True

    def __init__(self) -> None:
        super().__init__()
        self.expect("nothing")

    def begin(self, network: object) -> None:
        raise ArgumentError("Expected something else.")

    def forward(self, outputs: offaxis.Outputs) -> torch.Tensor:
        return outputs.logits[:, 0]


def test_one_that_cannot_be_fitted_does_not_stop_the_others(network_of: NetworkOf, toy: Toy) -> None:
    network, nearest = network_of("linear"), KNN(k=3)
    with pytest.raises(DetectorError, match=r"refusing cannot be fitted: .* All others are fitted \(knn, energy\)"):
        fit_all(network, toy.train, [Refusing(), nearest, Energy()])
    assert nearest.fitted
    with pytest.raises(ArgumentError, match="^Expected something else"):
        fit_all(network, toy.train, [Refusing()])
