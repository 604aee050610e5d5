"""open_network on every source, combine, labels, and weights from files."""

import importlib
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import offaxis
from offaxis import Classifier, Ensemble, Model, Paired, attach, open_network
from offaxis.data import Normalise, Preprocessing
from offaxis.data.embedded import small_digits
from offaxis.errors import ArgumentError, CheckpointError, RunError
from offaxis.networks import wide_resnet
from offaxis.networks.combine import LeaveOutEnsemble, folds
from offaxis.networks.open import combine
from offaxis.networks.opened import OpenedNetwork, make_label, normalised
from offaxis.networks.saved import checksum
from offaxis.training import Recipe, Trained, train
from offaxis.training.leave_out import MarginEntropyLoss
from tests.models import World


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three networks of a leave-out ensemble."""
    room = tmp_path_factory.mktemp("leave-out")
    recipe = Recipe(epochs=1, batch_size=128, crop=0, flip=False)
    for k, fold in enumerate(folds(10, 3)):
        torch.manual_seed(k)
        network = wide_resnet(10, 1, in_channels=1, head="linear", stem_stride=2)
        train(network, small_digits("train"), recipe, loss=MarginEntropyLoss(fold, 10), out=room / f"{k}", quiet=True)
    return [room / f"{k}" for k in range(3)]


def small_network(head: Any = "cosine") -> Classifier:
    torch.manual_seed(0)
    return wide_resnet(10, 1, 4, head, in_channels=1, stem_stride=2)


def bare_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 7))


# sources -------------------------------------------------------------------------------------------------------------


def test_a_name_gives_a_fresh_network() -> None:
    torch.manual_seed(0)
    opened = open_network("wrn-10-1-half", num_classes=4, in_channels=1)
    assert checksum(opened.network, None) == checksum(small_network(), None) == opened.weights
    assert opened.key == opened.weights[:16]
    assert not opened.network.training
    assert (opened.label, opened.architecture, opened.kind) == ("wrn-10-1-half cosine", "wrn-10-1-half", "single")
    assert (opened.normalise, opened.id, opened.recipe, opened.command) == (None, None, None, None)
    other = open_network("densenet-16-4", num_classes=3, head="linear", label="mine")
    assert (other.label, other.head) == ("mine", {"name": "linear", "scale": None})
    with pytest.raises(ArgumentError, match="number of classes of wrn-10-1"):
        open_network("wrn-10-1")


def test_a_run_and_what_train_returned_are_the_same(world: World) -> None:
    assert world.trained.folder is not None
    for source in (world.trained.folder, str(world.trained.folder), world.trained):
        opened = open_network(source)
        assert (opened.origin, opened.id, opened.seed) == ("digits", "small-digits", 0)
        assert opened.label == "wrn-10-1-half cosine"
        assert opened.recipe is not None
        assert opened.recipe["epochs"] == 4
        assert opened.data is not None
        assert opened.data["fingerprint"] == world.train.fingerprint
        assert opened.classes == world.trained.classes
        assert opened.normalise == world.trained.normalise
    with pytest.raises(ArgumentError, match="no num_classes, head beside the training run .*: leave them out"):
        open_network(world.trained.folder, num_classes=10, head="linear")


def test_a_bundle_and_its_model_keep_the_fields(world: World, model: Model, bundle: Path) -> None:
    run = open_network(world.trained)
    for opened, label in ((open_network(bundle), "digits"), (open_network(model), "wrn-10-1-half cosine")):
        assert opened.weights == run.weights
        assert (opened.label, opened.id, opened.seed) == (label, "small-digits", 0)
        assert (opened.architecture, opened.head, opened.recipe) == (run.architecture, run.head, run.recipe)
        assert opened.classes == model.classes
    with pytest.raises(ArgumentError, match="no weights beside the bundle"):
        open_network(bundle, weights="x.safetensors")


def test_objects_are_taken_as_they_are() -> None:
    network = small_network()
    opened = open_network(network)
    assert opened.network is network
    assert open_network(opened) is opened
    assert open_network(opened, label="mine").label == "mine"
    assert open_network(Paired(small_network("linear"), network)).kind == "paired"
    assert open_network(Paired(small_network("linear"), network)).label == "wrn-10-1-half cosine"
    assert open_network(Ensemble([network, small_network()])).kind == "ensemble"
    with pytest.raises(ArgumentError, match="no in_channels beside a network that is made already, .*: leave it out"):
        open_network(network, in_channels=1)
    with pytest.raises(ArgumentError, match="but got a int"):
        open_network(5)  # type: ignore[arg-type]


def test_another_module_needs_a_head() -> None:
    with pytest.raises(ArgumentError, match=r"Sequential has none: .* offaxis.attach\(model, head='cosine'"):
        open_network(bare_network())
    opened = open_network(bare_network(), head="cosine", num_classes=3)
    assert (opened.network.num_classes, opened.architecture, opened.label) == (3, None, "own network")


FILE = """
import beside
from offaxis import Classifier, attach
from offaxis.data import Normalise
from torch import nn

def network():
    return beside.made()

def with_normalise():
    return beside.made(), Normalise((0.5,), (0.25,))

def sized(num_classes=5):
    return beside.made(num_classes)

def bare():
    return nn.Linear(3, 3)

def _private():
    return 1
"""
BESIDE = """
from offaxis import attach
from torch import nn

def made(num_classes=7):
    return attach(nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, num_classes)))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "beside.py").write_text(BESIDE)
    return tmp_path / "mine.py"


def test_a_python_file_makes_the_network(file: Path) -> None:
    opened = open_network(file)
    assert (opened.label, opened.origin, opened.network.num_classes) == ("mine", "mine.py", 7)
    assert open_network(f"{file}:with_normalise").normalise == Normalise((0.5,), (0.25,))
    assert open_network(f"{file}:sized", num_classes=3).network.num_classes == 3
    with pytest.raises(ArgumentError, match=r"for 3 classes but that of .*mine\.py has 7"):
        open_network(file, num_classes=3)
    with pytest.raises(ArgumentError, match=r"mine\.py to return .* returned a Linear"):
        open_network(f"{file}:bare")
    with pytest.raises(ArgumentError, match="it has bare, network, sized, with_normalise: name one"):
        open_network(f"{file}:_private")


def test_weights_of_a_file_s_network_come_from_another_file(file: Path, tmp_path: Path) -> None:
    trained = open_network(file)
    torch.save(trained.network.state_dict(), tmp_path / "weights.pt")
    assert open_network(file).weights != trained.weights
    assert open_network(file, weights=tmp_path / "weights.pt").weights == trained.weights


def test_a_folder_is_no_python_file_whatever_its_name(tmp_path: Path) -> None:
    for name in ("my.python.exps/run", "notes.py.old/run", "run.py"):
        (tmp_path / name).mkdir(parents=True)
        with pytest.raises(RunError, match="run"):  # it is read as a training run, and is none
            open_network(tmp_path / name)
    with pytest.raises(ArgumentError, match=r"mine\.py is not there"):
        open_network(tmp_path / "my.python.exps" / "mine.py:network")
    with pytest.raises(ArgumentError, match="which is not there"):
        open_network(tmp_path / "mine.pyc")


# weights -------------------------------------------------------------------------------------------------------------


def test_weights_of_every_kind_of_file_are_read(world: World, tmp_path: Path) -> None:
    expected = open_network(world.trained).network.state_dict()
    assert world.trained.folder is not None
    torch.save(expected, tmp_path / "plain.pt")
    torch.save({"state_dict": {f"module.{n}": t for n, t in expected.items()}, "epoch": 3}, tmp_path / "wrapped.th")
    for prefix in ("_orig_mod.", "module._orig_mod.", "_orig_mod.module."):
        torch.save({f"{prefix}{n}": t for n, t in expected.items()}, tmp_path / f"{prefix}pt")
    save_file({f"_orig_mod.{n}": t.contiguous() for n, t in expected.items()}, tmp_path / "compiled.safetensors")
    compiled = (*tmp_path.glob("*_orig_mod*"), tmp_path / "compiled.safetensors")
    assert len(compiled) == 4
    for path in (world.trained.folder / "model.safetensors", tmp_path / "plain.pt", tmp_path / "wrapped.th", *compiled):
        opened = open_network("wrn-10-1-half", num_classes=10, in_channels=1, weights=path)
        assert all(torch.equal(t, expected[n]) for n, t in opened.network.state_dict().items())
    with pytest.raises(CheckpointError, match="do not fit this network"):
        open_network("wrn-10-2-half", num_classes=10, in_channels=1, weights=tmp_path / "plain.pt")


class Surprise:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return (print, ("code of the file was run",))


def test_weights_never_run_code_and_are_never_fetched(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    torch.save({"state_dict": Surprise()}, tmp_path / "hostile.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "noise.pt").write_bytes(b"no weights")
    for name, message in (("hostile", "without running code"), ("list", "something else"), ("noise", "cannot be read")):
        with pytest.raises(CheckpointError, match=message) as refused:
            open_network("wrn-10-1-half", num_classes=4, weights=tmp_path / f"{name}.pt")
        assert not re.search(r"can still be loaded|\x1b", str(refused.value))  # torch's advice to run it all the same
    assert "code of the file was run" not in capfd.readouterr().out
    with pytest.raises(ArgumentError, match="never downloaded"):
        open_network("wrn-10-1-half", num_classes=4, weights=tmp_path / "absent.pt")


def test_weights_of_the_original_network_leave_the_head_fresh(tmp_path: Path) -> None:
    original = bare_network()
    save_file(original.state_dict(), tmp_path / "original.safetensors")
    torch.manual_seed(1)
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 7))
    opened = open_network(other, head="cosine", num_classes=3, weights=tmp_path / "original.safetensors")
    assert isinstance(opened.network, Classifier)
    assert torch.equal(opened.network.backbone.get_parameter("1.weight"), original.get_parameter("1.weight"))
    assert opened.network.num_classes == 3
    whole = attach(bare_network(), "cosine", 3)
    save_file(whole.state_dict(), tmp_path / "whole.safetensors")
    again = open_network(bare_network(), head="cosine", num_classes=3, weights=tmp_path / "whole.safetensors")
    assert checksum(again.network, None) == checksum(whole, None)
    save_file({"somewhere.weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="somewhere"):
        open_network(bare_network(), head="cosine", weights=tmp_path / "other.safetensors")


# libraries -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, "\xff"])
def test_a_damaged_configuration_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(ArgumentError, match="config.json is damaged"):
        open_network(f"transformers:{tmp_path}")


def test_libraries_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def refuse(name: str, package: str | None = None) -> Any:
        if name == "timm":
            raise ModuleNotFoundError(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(offaxis.OffaxisError, match="pip install timm"):
        open_network("timm:resnet10t")
    with pytest.raises(ArgumentError, match="local folder with config.json.*Nothing is downloaded"):
        open_network("transformers:google/vit-base-patch16-224")
    with pytest.raises(ArgumentError, match="colour images for torchvision:resnet18 but got in_channels=1"):
        open_network("torchvision:resnet18", in_channels=1)


@pytest.mark.thirdparty
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("torchvision_operators")
def test_networks_of_timm_and_torchvision(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    opened = open_network("timm:resnet10t", num_classes=4, in_channels=1)
    assert (opened.label, opened.architecture) == ("timm:resnet10t cosine", "timm:resnet10t")
    assert isinstance(opened.network, Classifier)
    assert opened.network.builder == {"library": "timm", "name": "resnet10t", "arguments": {"in_chans": 1}}
    assert opened.network(torch.zeros(2, 1, 32, 32)).shape == (2, 4)
    original = timm.create_model("resnet10t")
    torch.save(original.state_dict(), tmp_path / "x.pt")
    loaded = open_network("timm:resnet10t", head="linear", weights=tmp_path / "x.pt")
    assert loaded.network.num_classes == 1000
    assert isinstance(loaded.network, Classifier)
    assert torch.equal(loaded.network.backbone.conv1[0].weight, original.conv1[0].weight)  # type: ignore[index, union-attr]
    with pytest.raises(ArgumentError, match=r"timm .* has but got 'resnett18'\. Did you mean resnet18 or .*\?"):
        open_network("timm:resnett18", num_classes=3)
    with pytest.raises(ArgumentError, match="timm .* has but got 'no-such-net'"):
        open_network("timm:no-such-net")
    pytest.importorskip("torchvision")
    opened = open_network("torchvision:mobilenet_v3_small", num_classes=5)
    assert opened.network.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 5)
    with pytest.raises(ArgumentError, match="torchvision .* has but got 'no-such-net'"):
        open_network("torchvision:no-such-net")


@pytest.mark.thirdparty
@pytest.mark.usefixtures("torchvision_operators")
@pytest.mark.filterwarnings("default")
def test_a_folder_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8
    )
    config.id2label, config.label2id = {0: "cat", 1: "dog"}, {"cat": 0, "dog": 1}
    original = transformers.ViTForImageClassification(config)
    original.save_pretrained(tmp_path / "vit")
    (tmp_path / "vit" / "preprocessor_config.json").write_text(
        '{"do_normalize": true, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.25, 0.25]}'
    )
    opened = open_network(f"transformers:{tmp_path / 'vit'}")
    assert opened.classes == ("cat", "dog")
    assert opened.normalise == Normalise((0.5,) * 3, (0.25,) * 3)
    own = original.vit.state_dict()
    assert isinstance(opened.network, Classifier)
    found = {n.removeprefix("vit."): t for n, t in opened.network.backbone.state_dict().items()}
    assert all(torch.equal(own[name], found[name]) for name in own)
    fresh = open_network(f"transformers:{tmp_path / 'vit'}", num_classes=6, head="linear")
    assert (fresh.network.num_classes, fresh.classes) == (6, ())
    images = Preprocessing((3, 32, 32), Normalise((0.5,) * 3, (0.25,) * 3))
    pixels = torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8)
    made = Model.calibrated(opened, offaxis.data.TensorSet("some", pixels), preprocessing=images)
    made.save(tmp_path / "x.oax")
    assert offaxis.load(tmp_path / "x.oax").predict(pixels[:5]) == made.predict(pixels[:5])
    weights = load_file(tmp_path / "vit" / "model.safetensors")
    for missing in ("classifier.weight", "vit.layernorm.weight"):
        rest = {name: tensor for name, tensor in weights.items() if name != missing}
        save_file(rest, tmp_path / "vit" / "model.safetensors", {"format": "pt"})
        if missing == "classifier.weight":
            open_network(f"transformers:{tmp_path / 'vit'}")  # the output layer is replaced
        with pytest.raises(CheckpointError, match=f"not whole: {missing} is missing, one of 1"):
            open_network(f"transformers:{tmp_path / 'vit'}", head="keep")
    with pytest.raises(CheckpointError, match="layernorm.weight is missing"):
        open_network(f"transformers:{tmp_path / 'vit'}")
    (tmp_path / "vit" / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="vit cannot be read"):
        open_network(f"transformers:{tmp_path / 'vit'}")
    (tmp_path / "vit" / "config.json").write_text('{"architectures": ["ViTForImageClassification"], "backbone": "x/y"}')
    with pytest.raises(ArgumentError, match="has backbone"):
        open_network(f"transformers:{tmp_path / 'vit'}")


@pytest.mark.thirdparty
@pytest.mark.usefixtures("torchvision_operators")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("processor", "options", "size", "mean"),
    [
        ("ViTImageProcessor", {}, (224, 224), (0.5, 0.5, 0.5)),
        (
            "ViTImageProcessor",
            {"size": {"height": 96, "width": 128}, "image_mean": [0.1, 0.2, 0.3]},
            (96, 128),
            (0.1, 0.2, 0.3),
        ),
        ("ViTImageProcessor", {"do_normalize": False}, (224, 224), (0.0, 0.0, 0.0)),
        ("CLIPImageProcessor", {}, (224, 224), (0.48145466, 0.4578275, 0.40821073)),
        ("ConvNextImageProcessor", {}, (384, 384), (0.5, 0.5, 0.5)),
        ("MobileNetV2ImageProcessor", {}, (224, 224), (0.5, 0.5, 0.5)),
    ],
)
def test_size_mean_and_std_of_image_processors_as_transformers_saves_them(
    tmp_path: Path, processor: str, options: dict[str, object], size: tuple[int, int], mean: tuple[float, ...]
) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic")
    transformers.ResNetForImageClassification(config).save_pretrained(tmp_path / "net")
    getattr(transformers, processor)(**options).save_pretrained(tmp_path / "net")
    opened = open_network(f"transformers:{tmp_path / 'net'}", num_classes=3)
    assert opened.size == size
    assert opened.normalise is not None
    assert opened.normalise.mean == mean


# combining -----------------------------------------------------------------------------------------------------------


def test_networks_of_a_leave_out_ensemble_are_called_so(members: list[Path]) -> None:
    found = [open_network(path) for path in members]
    assert {subject.label for subject in found} == {"wrn-10-1-half linear leave-out"}
    team = combine(found, "leave-out")
    assert team.label == "wrn-10-1-half linear leave-out x3"
    assert isinstance(team.network, LeaveOutEnsemble)
    assert (team.kind, team.members, team.origin) == ("leave-out", ("0", "1", "2"), "0, 1, 2")


def test_they_must_come_in_the_order_of_what_they_leave_out(members: list[Path]) -> None:
    found = [open_network(path) for path in members]
    with pytest.raises(ArgumentError, match=r"--leave-out 1/3 in place 1, which leaves out classes .* in their order"):
        combine([found[0], found[2], found[1]], "leave-out")
    with pytest.raises(ArgumentError, match="--leave-out 0/2"):
        combine(found[:2], "leave-out")


def test_combined_networks_keep_the_fields(cosine_runs: list[Trained]) -> None:
    first, second, third = (open_network(run) for run in cosine_runs)
    ensemble = combine(cosine_runs)
    assert isinstance(ensemble.network, Ensemble)
    assert (ensemble.kind, ensemble.label, ensemble.seed) == ("ensemble", "wrn-10-1-half cosine x3", 0)
    assert ensemble.members == ("cosine-0", "cosine-1", "cosine-2")
    assert (ensemble.id, ensemble.recipe, ensemble.head) == (first.id, first.recipe, first.head)
    pair = combine([first, second], "paired", label="mine")
    assert isinstance(pair.network, Paired)
    assert (pair.kind, pair.label, pair.seed, pair.normalise) == ("paired", "mine", 1, second.normalise)
    assert combine([first], "single") is first
    with pytest.raises(ArgumentError, match="a Paired each but got Ensemble"):
        combine([ensemble, third])
    with pytest.raises(ArgumentError, match="pair of single networks, .* got Paired"):
        combine([pair, third], "paired")
    with pytest.raises(ArgumentError, match="trained on one set .* are small-digits and letters"):
        combine([first, replace(second, id="letters")])


def test_members_without_known_facts_are_combined() -> None:
    ensemble = combine([small_network(), small_network()])
    assert (ensemble.normalise, ensemble.classes, ensemble.members) == (None, (), ("", ""))


# labels --------------------------------------------------------------------------------------------------------------


def test_labels_say_what_differs() -> None:
    head = {"name": "cosine", "scale": 16.0, "hidden": 512}
    label = make_label(architecture="wrn-28-10", head=head, recipe={"decay_head": True}, dropout=0.3)
    assert label == "wrn-28-10 cosine scale=16 hidden=512 decayed dropout=0.3"
    assert make_label(architecture=None, head=head) == "own network"
    for name, tau, shown in (("logitnorm", 0.04, ""), ("t2fnorm", 0.1, ""), ("logitnorm", 0.1, " tau=0.1")):
        assert make_label(architecture="wrn-28-10", head={"name": name, "tau": tau}) == f"wrn-28-10 {name}{shown}"
    assert make_label(architecture="wrn-28-10", head={"name": "linear", "scale": None}, recipe={}) == "wrn-28-10 linear"
    network = wide_resnet(10, 1, dropout=0.3)
    assert OpenedNetwork(network=network, recipe={"decay_head": True}).label == "wrn-10-1 cosine decayed dropout=0.3"


def test_a_missing_normalisation_is_that_of_the_training_images(world: World) -> None:
    opened = open_network(small_network())
    assert normalised(opened, "small-digits", lambda: world.train).normalise == Normalise.from_images(world.train)
    assert normalised(replace(opened, id="x"), "cifar10", lambda: world.train).normalise != Normalise.from_images(
        world.train
    )
    known = open_network(world.trained)
    assert normalised(known, "cifar10", lambda: world.train) is known


@pytest.mark.parametrize(
    "wrap",
    [torch.nn.DataParallel, partial(torch.compile, backend="eager"), lambda inner: torch.nn.ModuleDict({"net": inner})],
)
def test_a_network_inside_a_wrapper_is_found(wrap: Any) -> None:
    classifier = wide_resnet(depth=10, width=1)
    assert open_network(wrap(classifier)).network is classifier
    assert open_network(wrap(classifier), head="keep").network is classifier
    with pytest.raises(ArgumentError, match="a network that is made already"):
        open_network(wrap(classifier), head="cosine")
