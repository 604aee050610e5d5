"""attach() on networks that anybody might write; tests/test_attach_thirdparty.py has the published ones."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import offaxis
from offaxis import CosineHead, attach
from offaxis.errors import ArgumentError, AttachError, DataError


class Plain(nn.Module):
    """Names that say nothing, linear layers inside, and the output layer registered first."""

    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Linear(8, 5)
        self.a = nn.Linear(12, 8)
        self.c = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x.flatten(1)).relu()
        out: Tensor = self.b(self.c(h).relu())
        return out


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 8)
        self.second = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x.flatten(1)))
        return -out if float(out.sum()) > 1e9 else out


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 8)
        self.x = nn.Linear(8, 5)
        self.y = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.flatten(1))
        out: Tensor = self.x(h) + self.y(h)
        return out


IMAGES = torch.rand(4, 3, 2, 2)


def test_the_output_layer_is_found_by_what_feeds_the_output() -> None:
    torch.manual_seed(0)
    model = Plain()
    seen: list[Tensor] = []
    handle = model.b.register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0]))
    expected = model(IMAGES)
    handle.remove()
    old = model.b
    classifier = attach(model, "linear").eval()
    assert torch.equal(classifier.features(IMAGES), seen[0])
    classifier.head.load_state_dict(old.state_dict())
    assert torch.equal(classifier(IMAGES), expected)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_kept_layer_is_shared_and_the_network_stays_as_it_was(bias: bool, training: bool) -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Sequential(nn.ReLU(), nn.Linear(12, 5, bias=bias)))
    model.train(training)
    layer = model.get_submodule("2.1")
    assert isinstance(layer, nn.Linear)
    drawn = torch.get_rng_state()
    kept = attach(model, "keep")
    assert torch.equal(torch.get_rng_state(), drawn)
    assert kept.training is training
    assert kept.head.weight is layer.weight
    assert kept.head.bias is layer.bias
    assert torch.equal(kept(IMAGES), model(IMAGES))
    assert kept.outputs(IMAGES).features.shape == (4, 12)
    assert model.get_submodule("2.1") is layer  # the model itself was not changed
    assert {id(p) for p in kept.parameters()} == {id(p) for p in model.parameters()}
    with torch.no_grad():
        layer.weight.mul_(2)
    assert torch.equal(kept.eval()(IMAGES), model.eval()(IMAGES))


def test_a_kept_layer_takes_its_number_of_classes_and_must_be_plainly_linear() -> None:
    with pytest.raises(ArgumentError, match=r"the 5 classes of the output layer that is kept but got num_classes=3"):
        attach(Plain(), "keep", 3)
    normalised = Plain()
    nn.utils.parametrizations.weight_norm(normalised.b)
    with pytest.raises(AttachError, match="remove_parametrizations"):
        attach(normalised, "keep", layer="b")

    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    class Renamed(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.weight, self.bias)

    with pytest.raises(AttachError, match="a Doubled computes something else"):
        attach(nn.Sequential(nn.Flatten(), Doubled(12, 5)), "keep")
    model = nn.Sequential(nn.Flatten(), Renamed(12, 5))
    assert torch.equal(attach(model, "keep")(IMAGES), model(IMAGES))


def test_classes_and_head_can_be_chosen() -> None:
    classifier = attach(Plain(), lambda d, c: CosineHead(d, c, scale=16.0), num_classes=3).eval()
    out = classifier.outputs(IMAGES)
    assert out.logits.shape == (4, 3)
    assert out.scale is not None
    assert out.scale.tolist() == [16.0] * 4


def test_a_usual_name_is_enough() -> None:
    model = nn.Sequential()
    model.add_module("body", nn.Flatten())
    model.add_module("fc", nn.Linear(12, 5))
    assert attach(model).num_classes == 5


def test_where_it_cannot_tell_the_candidates_are_listed() -> None:
    with pytest.raises(AttachError, match=r"first \(12 -> 8\), second \(8 -> 5\).*layer='second'"):
        attach(Untraceable())
    assert attach(Untraceable(), layer="second").num_classes == 5
    with pytest.raises(AttachError, match="Cannot tell which layer"):
        attach(TwoOutputs())


def test_a_name_and_a_network_without_its_output_layer_are_refused() -> None:
    with pytest.raises(AttachError, match=r"a torch\.nn\.Module, but got a str: .*offaxis\.open_network"):
        attach("resnet18")  # type: ignore[arg-type]
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    attach(model)
    with pytest.raises(AttachError, match="use the Classifier that attach\\(\\) returned"):
        attach(model)


def test_a_wrongly_named_layer_is_refused_or_fails_at_the_first_forward() -> None:
    with pytest.raises(AttachError, match=r"a add follows it.*Its linear layers are first .*choose one with"):
        attach(TwoOutputs(), layer="first")
    classifier = attach(Untraceable(), layer="first")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        classifier(IMAGES)


@pytest.mark.parametrize("name", ["third", "first.weight"])
def test_a_layer_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(AttachError, match="Expected `layer` to name a module"):
        attach(Untraceable(), layer=name)


def test_a_layer_that_is_not_linear_is_refused() -> None:
    with pytest.raises(AttachError, match="is a Conv2d"):
        attach(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(16, 3)), layer="0")


@pytest.mark.parametrize(
    "model", [nn.Conv2d(3, 4, 1), nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten()), nn.Linear(12, 5)]
)
def test_a_network_without_a_linear_layer_inside_is_refused(model: nn.Module) -> None:
    with pytest.raises(AttachError, match="no nn.Linear layer inside it: wrap it"):
        attach(model)


def test_freeze_trains_the_head_alone() -> None:
    classifier = attach(Plain(), freeze=True)
    assert all(not p.requires_grad for p in classifier.backbone.parameters())
    assert all(p.requires_grad for p in classifier.head.parameters())


@pytest.mark.parametrize("training", [True, False])
def test_mode_and_type_are_kept(training: bool) -> None:
    classifier = attach(Plain().double().train(training))
    assert classifier.training is training
    assert classifier.head.training is training
    assert classifier(IMAGES.double()).dtype == torch.float64


def test_two_output_layers_of_a_distilled_network_are_refused_by_name() -> None:
    model = TwoOutputs()
    model.get_classifier = lambda: (model.x, model.y)  # type: ignore[assignment]
    with pytest.raises(AttachError, match=r"2 output layers \(x, y\)"):
        attach(model)


class Averaged(Untraceable):
    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names
        for name in names:
            self.add_module(name, nn.Linear(8, 5))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.flatten(1))
        out = torch.stack([self.get_submodule(name)(h) for name in self.names]).mean(0)
        return -out if float(out.sum()) > 1e9 else out


def test_output_layers_that_are_averaged_are_refused_by_name() -> None:
    with pytest.raises(AttachError, match=r"2 output layers \(head, head_dist\).*layer='head'"):
        attach(Averaged("head", "head_dist"))
    assert attach(Averaged("head", "head_dist"), layer="head").num_classes == 5  # on the user's word
    assert attach(Averaged("head")).num_classes == 5  # `second` is none by its name
    chained = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 5))
    model = Averaged("head")
    model.head = chained
    assert attach(model).head.in_features == 5


class Squashed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 8)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.softmax(self.first(x.flatten(1)), 1)  # inside it does no harm
        return nn.functional.log_softmax(self.fc(h), dim=1)


@pytest.mark.parametrize("layer", [None, "fc"])
def test_a_softmax_behind_the_output_layer_is_refused(layer: str | None) -> None:
    network = Squashed()
    with pytest.raises(AttachError, match="a log_softmax follows it"):
        attach(network, layer=layer)
    assert isinstance(network.fc, nn.Linear)
    inside = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Sequential(nn.Linear(8, 5), nn.Softmax(1)))
    with pytest.raises(AttachError, match="a softmax follows it"):
        attach(inside, layer="2.0")
    features = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Softmax(1), nn.Linear(8, 5))
    assert attach(features).head.in_features == 8


class NormFace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.fc = nn.Linear(12, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.flatten(1))
        normalize = nn.functional.normalize
        return nn.functional.linear(normalize(h), normalize(self.fc.weight))


@pytest.mark.parametrize("head", ["keep", "cosine"])
def test_a_layer_whose_weight_alone_is_read_is_refused(head: Any) -> None:
    network = NormFace().eval()
    children, expected = dict(network.named_children()), network(IMAGES)
    with pytest.raises(AttachError, match=r"to call its output layer 'fc' .* self\.fc\(x\)"):
        attach(network, head)
    assert dict(network.named_children()) == children
    assert torch.equal(network(IMAGES), expected)


def test_a_layer_of_two_names_and_one_inside_a_wrapper_are_called() -> None:
    network = Plain().eval()
    network.other = network.b
    expected = network(IMAGES)
    assert torch.equal(attach(network, "keep", layer="b")(IMAGES), expected)
    inside = nn.Sequential(nn.Flatten(), nn.DataParallel(nn.Sequential(nn.Linear(12, 8), nn.Linear(8, 5)))).eval()
    kept = attach(inside, "keep", layer="1.module.1")
    assert torch.equal(kept(IMAGES), inside(IMAGES))


class Last(nn.Module):
    """A network with a layer called ``head`` that is not its output layer, and an operation behind the one that is."""

    def __init__(self, operation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.head, self.last, self.operation = nn.Linear(12, 8), nn.Linear(8, 8), operation

    def forward(self, x: Tensor) -> Tensor:
        return self.operation(self.last(self.head(x.flatten(1)).relu()))


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (lambda x: x / 2, "truediv"),
        (lambda x: 2 * x, "mul"),
        (torch.relu, "relu"),
        (torch.tanh, "tanh"),
        (lambda x: x[:, :4], "getitem"),
    ],
)
@pytest.mark.parametrize("head", ["keep", "cosine"])
def test_whatever_changes_the_logits_behind_the_output_layer_is_refused(
    operation: Callable[[Tensor], Tensor], name: str, head: Any
) -> None:
    with pytest.raises(AttachError, match=f"a {name} follows it"):
        attach(Last(operation), head=head, layer="last")


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x,
        lambda x: x.flatten(1),
        lambda x: x.view(x.size(0), -1),
        lambda x: x.view(x.shape[0], -1).float(),
        lambda x: x.reshape(x.size()[0], -1).to(torch.float32).clone(),
    ],
)
def test_the_output_layer_is_the_last_one_whatever_others_are_called(operation: Callable[[Tensor], Tensor]) -> None:
    network = Last(operation).eval()
    assert torch.equal(attach(network, head="keep")(IMAGES), network(IMAGES))


class WithAuxiliary(Last):
    """A network with a second output while it is trained, as GoogLeNet has."""

    def forward(self, x: Tensor) -> Any:
        out = super().forward(x)
        return (out, out.relu()) if self.training else out


def test_an_auxiliary_output_while_training_does_not_count() -> None:
    network = WithAuxiliary(lambda x: x).train()
    kept = attach(network, head="keep")
    assert network.training
    assert torch.equal(kept.eval()(IMAGES), network.eval()(IMAGES))


@pytest.mark.parametrize("head", ["keep", "cosine"])
def test_a_classifier_has_a_head_already(head: Any) -> None:
    classifier = attach(nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 5)))
    with pytest.raises(AttachError, match=r"has a head already \(CosineHead\): use it as it is"):
        attach(classifier, head=head)


def compiled(module: nn.Module) -> Any:
    return torch.compile(module, backend="eager")


WRAPPED: list[Callable[[nn.Module], nn.Module]] = [
    compiled,
    nn.DataParallel,
    lambda module: compiled(nn.DataParallel(module)),
    lambda module: nn.DataParallel(compiled(module)),
]


@pytest.mark.parametrize("wrap", WRAPPED)
def test_the_network_inside_a_wrapper_is_kept_and_stays_as_it_was(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = Plain().eval()
    children, expected = dict(model.named_children()), model(IMAGES)
    kept = attach(wrap(model), head="keep")
    assert torch.equal(kept(IMAGES), expected)
    assert dict(model.named_children()) == children
    assert torch.equal(model(IMAGES), expected)
    assert not any("_orig_mod" in name or "module" in name for name in kept.state_dict())


@pytest.mark.parametrize("layer", ["b", "_orig_mod.b", "module._orig_mod.b"])
def test_a_layer_may_be_named_with_its_wrappers_or_without(layer: str) -> None:
    model = Plain().eval()
    old, expected = model.b, model(IMAGES)
    classifier = attach(nn.DataParallel(compiled(model)), "linear", layer=layer)
    assert classifier.backbone is model
    classifier.head.load_state_dict(old.state_dict())
    assert torch.equal(classifier(IMAGES), expected)


@pytest.mark.parametrize("layer", ["1.b", "1._orig_mod.b"])
def test_a_compiled_part_stays_as_it_was(layer: str) -> None:
    part = Plain().eval()
    children, model = dict(part.named_children()), nn.Sequential(nn.Identity(), compiled(part))
    kept = attach(model, head="keep", layer=layer)
    assert torch.equal(kept(IMAGES), part(IMAGES))
    assert dict(part.named_children()) == children


@pytest.mark.parametrize("head", ["keep", "linear"])
def test_an_output_layer_may_be_compiled_by_itself(head: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), compiled(nn.Linear(5, 5))).eval()
    features = model[1](IMAGES.flatten(1))
    assert torch.equal(attach(model, head, layer="2._orig_mod").features(IMAGES), features)


def test_a_classifier_inside_a_wrapper_has_a_head_already() -> None:
    with pytest.raises(AttachError, match=r"has a head already \(CosineHead\)"):
        attach(compiled(attach(Plain())))


def test_one_logit_behind_a_sigmoid_stands_for_two_classes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 1)).eval()
    images = torch.rand(40, 3, 8, 8)
    with torch.no_grad():
        logit = model(images)
        kept = attach(model, head="keep")
        assert kept.num_classes == 2
        assert torch.equal(kept(images)[:, 1:], logit)
        assert torch.allclose(kept(images).softmax(1)[:, 1:], logit.sigmoid())
    labels = (logit > 0).float()  # (N, 1), as nn.BCEWithLogitsLoss takes them
    loader = DataLoader(TensorDataset(images, labels), batch_size=16)
    found = offaxis.evaluate(
        kept, loader, {"brighter": DataLoader(TensorDataset(images + 1), batch_size=16)}, ["energy", "max-softmax"]
    )
    assert found.networks[0].accuracy == 1
    torch.save(model.state_dict(), tmp_path / "one.pt")
    (tmp_path / "one.py").write_text(
        "from torch import nn\ndef network():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 1))\n"
    )
    opened = offaxis.open_network(f"{tmp_path / 'one.py'}", head="keep", weights=tmp_path / "one.pt")
    with torch.no_grad():
        assert torch.equal(opened.network(images), kept(images))
    assert attach(copy.deepcopy(model), "cosine").num_classes == 2


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]]), "several labels at once"),
        (torch.tensor([0.3, 2.5]), "numbers .regression."),
        (torch.zeros(2, 8, 8), "masks"),
        (torch.tensor([[1, 0, 0], [0, 0, 1]]), r"each row has a single 1, whose place is labels.argmax\(1\)"),
    ],
)
def test_labels_of_other_tasks_are_refused_without_advice_that_destroys_them(labels: Tensor, said: str) -> None:
    network, images = attach(nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), "keep"), torch.rand(2, 3, 8, 8)
    with pytest.raises(DataError, match=said) as refused:
        offaxis.evaluate(
            network,
            DataLoader(TensorDataset(images, labels), batch_size=2),
            {"x": [images]},
            ["energy"],
        )
    assert ("argmax" in str(refused.value)) == ("single 1" in said)
