"""Detectors by name: own ones registered, entry points, texts with arguments, and what a file says of its class."""

import inspect
import os
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import offaxis
from offaxis.detectors import (
    DETECTORS,
    KNN,
    NATIVE,
    ODIN,
    Cosine,
    CosineEnsemble,
    Detector,
    LeaveOut,
    MaxLogit,
    PyTorchOOD,
    compatible_detectors,
    default_detector,
    fit_all,
    load_detector,
    make_detector,
    make_detectors,
    register_detector,
    save_detector,
    score_all,
)
from offaxis.detectors import registry as module
from offaxis.detectors.base import State
from offaxis.detectors.registry import describe_detector, given_arguments, rebuild_detector
from offaxis.errors import ArgumentError, DetectorError, DetectorFileError, MissingOutputError
from offaxis.evaluation.records import with_arguments
from offaxis.heads import Outputs
from tests.detectors.toy import NetworkOf, Toy


class Margin(Detector):
    name = "margin"

    def forward(self, outputs: Outputs) -> Tensor:
        best = outputs.logits.topk(2, 1).values
        return best[:, 1] - best[:, 0]


def other_value(name: str, default: object) -> object:
    """A value of an argument that is not its default."""
    known = {"search": "blocks", "variant": "b", "layers": ("0",), "dim": 3, "top": 2, "epsilons": (0.0, 0.01)}
    if name in known:
        return known[name]
    if isinstance(default, bool):
        return not default
    return tuple(default)[:1] if isinstance(default, tuple) else type(default)(default * 0.9) if default else 0.5  # type: ignore[operator, call-arg]


@pytest.mark.parametrize("kind", NATIVE.values(), ids=NATIVE)
def test_every_argument_that_is_given_stands_in_tables(kind: type[Detector], network_of: NetworkOf) -> None:
    """Of every detector that takes arguments, and of none where they have their defaults or follow from the network."""
    network = network_of("linear")
    parameters = {p.name: p.default for p in inspect.signature(kind).parameters.values()}
    follow = {"std": (0.5,), "networks": 3, "selected_on": None}
    plain = kind(**{name: value for name, value in follow.items() if name in parameters})
    assert given_arguments(plain, network) == {}
    assert plain.state is (State.DEFAULT if kind.tunable else State.NONE)
    if "layers" in parameters:
        assert given_arguments(kind(layers=network.layers), network) == {}  # type: ignore[call-arg]  # as fitting fills them in
    for name in parameters.keys() - follow:
        value = other_value(name, parameters[name])
        made = kind(**{name: value})
        given = given_arguments(made, network)
        assert given.keys() == {name}
        assert with_arguments(kind.name, given).startswith(f"{kind.name}, {name}=")
        assert made.state is (State.GIVEN if name in kind.tunable else plain.state)


@pytest.mark.parametrize("name", ["odin", "mahalanobis", "generalized-odin"])
@pytest.mark.parametrize("values", ["[]", "0.01", "abc", "(0.0,-0.01)", "(0.0,'x')", "(1e999,)"])
def test_magnitudes_that_cannot_be_tried_are_refused(name: str, values: str, network_of: NetworkOf) -> None:
    with pytest.raises(ArgumentError, match="`epsilons` to list zero or positive numbers, at least one"):
        make_detector(f"{name}:epsilons={values}", network_of("linear"))


@pytest.mark.parametrize("uses", ["cosine", ("cosines",)])
def test_fields_that_no_outputs_have_are_refused_at_once(uses: Any) -> None:
    with pytest.raises(ArgumentError, match=r"`uses` of Wrong to be a tuple out of features, logits, cosine"):
        type("Wrong", (Detector,), {"uses": uses})


def test_logits_to_score_with_that_a_head_does_not_have_are_told() -> None:
    class Apart(Margin):
        uses = ("score_logits",)

    with pytest.raises(MissingOutputError, match=r"score_logits .* Read outputs\.detection_logits"):
        Apart().score(Outputs(torch.ones(2, 3), torch.ones(2, 4)))


class MeanDistance(Detector):
    """The distance to the mean of the training features, to a power."""

    name = "mean-distance"
    uses = ("features",)
    needs_fit = True
    tunable = ("power",)
    centre: Tensor

    def __init__(self, power: float = 1.0) -> None:
        super().__init__()
        self.power = power
        self.expect("centre")

    @property
    def grid(self) -> dict[str, tuple[float, ...]]:
        return {"power": (1.0, 2.0)}

    def begin(self, network: Any) -> None:
        self._features: list[Tensor] = []

    def update(self, outputs: Outputs, labels: Tensor) -> None:
        self._features.append(outputs.features)

    def finish(self) -> None:
        self.centre = torch.cat(self._features).mean(0)

    def forward(self, outputs: Outputs) -> Tensor:
        distances: Tensor = torch.linalg.vector_norm(outputs.features - self.centre, dim=1)
        return distances.pow(self.power)


@pytest.fixture(autouse=True)
def detectors() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = dict(DETECTORS)
    yield
    DETECTORS.clear()
    DETECTORS.update(before)


def test_a_detector_of_ones_own_works_by_its_name(toy: Toy, network_of: NetworkOf, tmp_path: Path) -> None:
    assert offaxis.register_detector(Margin) is Margin
    network = network_of("linear")
    detector = make_detector("margin", network)
    assert isinstance(detector, Margin)
    id_scores, ood_scores = (score_all(network, [x], [detector])[0] for x in (toy.images, toy.ood_images))
    assert (ood_scores.unsqueeze(1) > id_scores).double().mean() > 0.8
    save_detector(detector, tmp_path / "margin")
    assert torch.equal(load_detector(tmp_path / "margin").score_images(network, toy.images), id_scores)
    assert "margin" not in [one.name for one in make_detectors(["native"], network)]
    assert "margin" not in NATIVE


def test_a_fitted_and_tuned_one_is_saved_whole(toy: Toy, network_of: NetworkOf, tmp_path: Path) -> None:
    register_detector(MeanDistance)
    network = network_of("linear")
    [detector] = make_detectors(["mean-distance:power=0.5"], network)
    fit_all(network, toy.train, [detector])
    tuned = detector.tune(network, [toy.images], [toy.ood_images])
    for one in (detector, tuned):
        save_detector(one, tmp_path / "detector")
        again = load_detector(tmp_path / "detector")
        assert again.arguments == one.arguments
        assert again.tuned_on == one.tuned_on
        assert torch.equal(again.score_images(network, toy.images), one.score_images(network, toy.images))


def test_a_file_names_the_class_and_what_to_do_without_it(network_of: NetworkOf, tmp_path: Path) -> None:
    register_detector(Margin)
    save_detector(Margin(), tmp_path / "margin")
    description = describe_detector(Margin())
    assert description == {
        "detector": "margin",
        "class": f"{Margin.__module__}:Margin",
        "arguments": {},
        "tuned_on": None,
    }
    del DETECTORS["margin"]
    with pytest.raises(
        DetectorFileError, match=rf"import {Margin.__module__} and call offaxis.register_detector\(Margin\)"
    ):
        load_detector(tmp_path / "margin")
    with pytest.raises(DetectorFileError, match=r"define it again.* and call offaxis.register_detector\(Margin\)"):
        rebuild_detector({**description, "class": "__main__:Margin"}, {})

    @register_detector
    class Other(Margin):
        pass

    with pytest.raises(DetectorFileError, match=r"Margin but .*Other is registered"):
        load_detector(tmp_path / "margin")
    assert describe_detector(KNN())["class"] is None


def test_what_could_not_be_loaded_again_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(DetectorError, match=r"offaxis.register_detector\(Margin\)"):
        save_detector(Margin(), tmp_path / "margin")

    class Knn(KNN):  # has the name of another
        pass

    with pytest.raises(DetectorError, match="not registered"):
        describe_detector(Knn())


def test_what_cannot_be_registered() -> None:
    class Nameless(Detector):
        def forward(self, outputs: Outputs) -> Tensor:
            return outputs.logits[:, 0]

    class Abstract(Detector):
        name = "abstract"

    class Forgetful(Margin):
        name = "forgetful"

        def __init__(self, power: float = 1.0) -> None:
            super().__init__()

    with pytest.raises(ArgumentError, match=r"class attribute `name`.*nameless"):
        register_detector(Nameless)
    for name in ("", "a:b", "two words", "native", "all", 3):
        with pytest.raises(ArgumentError, match="class attribute `name`"):
            register_detector(type("Named", (Margin,), {"name": name}))
    with pytest.raises(ArgumentError, match="forward"):
        register_detector(Abstract)
    with pytest.raises(ArgumentError, match=r"`tunable` and `options` \(none\) but they are power"):
        register_detector(Forgetful)
    for thing in (Margin(), torch.nn.Linear, len):
        with pytest.raises(ArgumentError, match="subclass of offaxis.Detector"):
            register_detector(thing)  # type: ignore[type-var]


def test_names_are_taken_once() -> None:
    register_detector(Margin)
    register_detector(Margin)  # as a notebook does when a cell is run again
    with pytest.raises(ArgumentError, match=r"'margin' is the name of .*:Margin"):
        register_detector(type("Another", (Margin,), {}))
    with pytest.raises(ArgumentError, match=r"'knn' is the name of offaxis.detectors.knn:KNN"):
        register_detector(type("Mine", (KNN,), {}))
    with pytest.raises(ArgumentError, match="pytorch_ood:PyTorchOOD"):
        register_detector(type("Mine", (Margin,), {"name": "pytorch-ood-knn"}))
    assert DETECTORS["knn"] is KNN


def offer(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> list[str]:
    """Let installed packages offer detectors; the names that are looked for."""
    asked: list[str] = []
    points = [EntryPoint(name=name, value=value, group="offaxis.detectors") for name, value in entries]

    def entry_points(group: str, name: str | None = None) -> EntryPoints:
        asked.append(name or "*")
        return EntryPoints(point for point in points if point.group == group and name in (None, point.name))

    monkeypatch.setattr(module, "entry_points", entry_points)
    return asked


def test_installed_packages_offer_detectors(
    network_of: NetworkOf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = Margin.__module__
    asked = offer(
        monkeypatch,
        ("margin", f"{here}:Margin"),
        ("gone", f"{here}:Gone"),
        ("lost", "no_such_module:Lost"),
        ("misnamed", f"{here}:Margin"),
    )
    network = network_of("linear")
    make_detector("cosine", network)
    assert not asked  # read only where a name is unknown
    detector = make_detector("margin", network)
    assert type(detector) is Margin
    save_detector(detector, tmp_path / "margin")
    del DETECTORS["margin"]
    assert type(load_detector(tmp_path / "margin")) is Margin
    for name in ("gone", "lost"):
        with pytest.raises(ArgumentError, match=f"{name} is offered by an installed package.*uninstall"):
            make_detector(name, network)
    with pytest.raises(ArgumentError, match="but got 'misnamed'"):
        make_detector("misnamed", network)
    with pytest.raises(ArgumentError, match=r"margin, .*gone.*, pytorch-ood-\.\.\. or native.* but got 'nothing'"):
        make_detector("nothing", network)


def test_texts_with_arguments(network_of: NetworkOf, ood: ModuleType) -> None:
    network = network_of("linear")
    assert make_detector("knn:k=10:search=blocks", network).arguments == {"k": 10, "search": "blocks", "average": False}
    odin = make_detector("odin:temperatures=(1.0, 10.0)", network, (0.5,))
    assert isinstance(odin, ODIN)
    assert (odin.temperatures, odin.std) == ((1.0, 10.0), (0.5,))
    assert make_detector("odin:std=None", network, (0.5,)).arguments["std"] is None
    theirs = make_detector("pytorch-ood-knn:k=7", network)
    assert isinstance(theirs, PyTorchOOD)
    assert theirs.keywords == {"k": 7}
    assert make_detector("pytorch-ood-rankfeat:inner=second", network).arguments["inner"] == ("second",)
    with pytest.raises(ArgumentError, match=r"as in knn:k=10"):
        make_detector("knn:10", network)
    with pytest.raises(ArgumentError, match=r"does not take these arguments: 'knn:size=3'"):
        make_detector("knn:size=3", network)
    with pytest.raises(ArgumentError, match="`k`"):
        make_detector("knn:k=-1", network)
    with pytest.raises(ArgumentError, match="each once, but got 'knn:k=10:k=20'"):
        make_detector("knn:k=10:k=20", network)
    for values in ("abc", "(0.0,1.0)"):
        with pytest.raises(ArgumentError, match="`temperatures` to list positive numbers, at least one"):
            make_detector(f"odin:temperatures={values}", network)
    for text in ("mahalanobis++:shrinkage=maybe", "generalized-odin:perturb=no", "knn:average=1"):
        with pytest.raises(ArgumentError, match="to be True or False but got"):  # a word would count as True
            make_detector(text, network)
    assert make_detector("mahalanobis:layers=second", network).arguments["layers"] == ("second",)
    with pytest.raises(ArgumentError, match=r"pytorch-ood's GEN \(.*gamma.*\) but got size"):
        make_detector("pytorch-ood-gen:size=7", network)


def test_families(network_of: NetworkOf, ood: ModuleType) -> None:
    register_detector(Margin)
    linear, ensemble = network_of("linear"), network_of("ensemble")
    native = [one.name for one in make_detectors(["native"], linear)]
    assert set(NATIVE) - set(native) == {"cosine-ensemble", "leave-out", "isomax", "generalized-odin"}
    theirs = [one.name for one in make_detectors(["pytorch-ood"], linear)]
    assert len(theirs) == 35
    assert [one.name for one in make_detectors(["all"], linear)] == [*native, "margin", *theirs]
    assert "isomax" in [one.name for one in make_detectors(["native"], network_of("isomax"))]
    assert [one.name for one in make_detectors(["native"], ensemble)] == ["cosine-ensemble", "max-softmax"]
    cosine = Cosine()
    assert make_detectors([cosine, "max-logit", cosine, "max-logit"], linear)[0] is cosine
    assert [type(one) for one in make_detectors([cosine, "max-logit", cosine, "max-logit"], linear)] == [
        Cosine,
        MaxLogit,
    ]


def test_the_default_detector_follows_the_kind_of_network(network_of: NetworkOf) -> None:
    assert type(default_detector(network_of("cosine"))) is Cosine
    ensemble = default_detector(network_of("ensemble"))
    assert isinstance(ensemble, CosineEnsemble)
    assert ensemble.networks == 2
    leave_out = default_detector(network_of("leave-out"), (0.5,))
    assert isinstance(leave_out, LeaveOut)
    assert leave_out.std == (0.5,)


def test_detectors_that_a_network_cannot_feed_are_left_out_with_a_reason(toy: Toy, network_of: NetworkOf) -> None:
    register_detector(Margin)
    detectors = make_detectors(["cosine", "margin", "knn:k=3"], network_of("linear"))
    able, unable = compatible_detectors(detectors, network_of("linear"), toy.images[:2])
    assert [one.name for one in able] == ["margin", "knn"]
    assert unable == {"cosine": "the network gives no cosine"}
    able, unable = compatible_detectors(detectors, network_of("ensemble"), toy.images[:2])
    assert [one.name for one in able] == ["cosine"]
    assert set(unable) == {"margin", "knn"}


# classes of Python files ----------------------------------------------------------------------------------------------

OWN = """
from offaxis import Detector

class Gap(Detector):
    name = "gap"
    tunable = ("power",)

    def __init__(self, power=1.0):
        super().__init__()
        self.power = power

    def forward(self, outputs):
        best = outputs.logits.topk(2, 1).values
        return (best[:, 1] - best[:, 0]) * self.power
"""


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    return file


@pytest.mark.parametrize("ending", ["", ":Gap", ":power=2", ":Gap:power=2"])
def test_a_class_of_a_file_is_a_detector_by_name(own_file: Path, network_of: NetworkOf, ending: str) -> None:
    made = make_detector(f"{own_file}{ending}", network_of("linear"))
    assert made.name == "gap"
    assert made.arguments == {"power": 2 if "power" in ending else 1.0}
    again = make_detector(f"{own_file}:Gap", network_of("linear"))
    assert type(again) is type(made)  # the file runs once
    assert describe_detector(made)["class"] == "offaxis_detector_own:Gap"
    assert make_detector("gap:power=3", network_of("linear")).arguments == {"power": 3}


def test_a_file_that_was_changed_is_read_again(own_file: Path, network_of: NetworkOf) -> None:
    first = make_detector(f"{own_file}:Gap", network_of("linear"))
    own_file.write_text(OWN.replace("* self.power", "- self.power"))
    os.utime(own_file, ns=(1, 1))
    assert type(make_detector(f"{own_file}:Gap", network_of("linear"))) is not type(first)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("absent.py:Gap", "is not there"),
        ("own.py:Other", "it has Gap"),
        ("own.py:Gap:colour=3", "does not take"),
        ("empty.py", "it has none"),
        ("broken.py:Gap", "ZeroDivisionError"),
    ],
)
def test_a_file_without_such_a_detector_is_refused(own_file: Path, network_of: NetworkOf, text: str, said: str) -> None:
    (own_file.parent / "empty.py").write_text("")
    (own_file.parent / "broken.py").write_text("1 / 0")
    with pytest.raises(ArgumentError, match=said):
        make_detector(str(own_file.parent / text), network_of("linear"))
