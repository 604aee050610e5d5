"""attach() on published networks as they are: what reached their output layer reaches our head, bit for bit."""

import operator
import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import offaxis
from offaxis import attach
from offaxis.detectors.odin import features_until
from offaxis.errors import AttachError
from offaxis.heads import CosineHead

pytestmark = [
    pytest.mark.thirdparty,
    pytest.mark.usefixtures("torchvision_operators"),
    pytest.mark.filterwarnings("ignore"),  # theirs, not ours
]
os.environ["HF_HUB_OFFLINE"] = "1"

TORCHVISION = [
    "resnet18",
    "densenet121",
    "mobilenet_v3_small",
    "efficientnet_b0",
    "convnext_tiny",
    "vgg11_bn",
    "alexnet",
    "shufflenet_v2_x0_5",
    "regnet_y_400mf",
    "vit_b_32",
    "swin_t",
]
TIMM = [
    "resnet18",
    "vit_tiny_patch16_224",
    "convnext_atto",
    "efficientnet_b0",
    "mobilenetv3_small_050",
    "regnetx_002",
    "swin_tiny_patch4_window7_224",
    "deit3_small_patch16_224",
    "mixer_s32_224",
    "densenet121",
]
OUTPUT_LAYER = {"resnet18": "fc", "vgg11_bn": "classifier.6", "vit_b_32": "heads.head", "swin_t": "head"}


def make_torchvision(name: str) -> nn.Module:
    import torchvision

    model: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=13)
    return model


def make_timm(name: str) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model(name, pretrained=False, num_classes=13)
    return model


def make_transformers(name: str) -> nn.Module:
    import transformers as t

    small = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96}
    makers: dict[str, Any] = {
        "vit": lambda: t.ViTForImageClassification(t.ViTConfig(**small, image_size=224, patch_size=32, num_labels=13)),
        "resnet": lambda: t.ResNetForImageClassification(
            t.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=13)
        ),
        "swin": lambda: t.SwinForImageClassification(
            t.SwinConfig(embed_dim=24, depths=[1, 1], num_heads=[2, 4], num_labels=13)
        ),
        "convnext": lambda: t.ConvNextForImageClassification(
            t.ConvNextConfig(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], num_labels=13)
        ),
    }
    model: nn.Module = makers[name]()
    return model


CASES = [pytest.param(make_torchvision, n, id=f"torchvision-{n}") for n in TORCHVISION]
CASES += [pytest.param(make_timm, n, id=f"timm-{n}") for n in TIMM]
CASES += [pytest.param(make_transformers, n, id=f"transformers-{n}") for n in ("vit", "resnet", "swin", "convnext")]


@pytest.mark.parametrize(("make", "name"), CASES)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_features_arrive_bit_for_bit(make: Callable[[str], nn.Module], name: str, training: bool) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make(name).train(training)
    images = torch.rand(2, 3, 224, 224)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    seen: list[Tensor] = []
    linear = [m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features == 13]
    assert len(linear) == 1
    handle = linear[0].register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0].detach()))
    torch.manual_seed(1)  # for dropout and stochastic depth
    old = model(images)
    expected = getattr(old, "logits", old)
    handle.remove()
    model.load_state_dict(before)  # running statistics moved in train mode
    kept = linear[0].state_dict()

    classifier = attach(model, "linear")
    classifier.head.load_state_dict(kept)
    torch.manual_seed(1)
    out = classifier.outputs(images)
    assert torch.equal(out.features, seen[0].reshape(out.features.shape))
    assert torch.equal(out.logits, expected)


@pytest.mark.parametrize(("make", "name"), CASES)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_kept_logits_are_equal_bit_for_bit(make: Callable[[str], nn.Module], name: str, training: bool) -> None:
    torch.manual_seed(0)
    model = make(name).train(training)
    images = torch.rand(2, 3, 224, 224)
    (layer,) = [m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features == 13]
    before = {k: v.clone() for k, v in model.state_dict().items()}
    torch.manual_seed(1)  # for dropout and stochastic depth
    old = model(images)
    model.load_state_dict(before)  # running statistics moved in train mode
    kept = attach(model, "keep")
    torch.manual_seed(1)
    out = kept.outputs(images)
    assert torch.equal(out.logits, getattr(old, "logits", old))
    assert kept.head.weight is layer.weight
    assert out.features.shape == (2, layer.in_features)
    assert {id(p) for p in kept.parameters()} == {id(p) for p in model.parameters()}
    model.load_state_dict(before)
    torch.manual_seed(1)
    again = model(images)  # it works as before
    assert torch.equal(getattr(again, "logits", again), out.logits)


@pytest.mark.parametrize(("make", "name"), CASES)
def test_a_cosine_head_with_other_classes_trains(make: Callable[[str], nn.Module], name: str) -> None:
    torch.manual_seed(0)
    classifier = attach(make(name), "cosine", num_classes=4)
    assert isinstance(classifier.head, CosineHead)
    images = torch.rand(2, 3, 224, 224)
    loss = nn.functional.cross_entropy(classifier(images), torch.tensor([0, 3]))
    loss.backward()
    grads = [p.grad for n, p in classifier.named_parameters() if n.startswith("backbone") and p.grad is not None]
    assert any(float(g.abs().max()) > 0 for g in grads)


@pytest.mark.parametrize("name", OUTPUT_LAYER)
def test_the_layer_that_goes_is_the_published_one(name: str) -> None:
    classifier = attach(make_torchvision(name))
    assert isinstance(classifier.backbone.get_submodule(OUTPUT_LAYER[name]), nn.Identity)


@pytest.mark.parametrize(
    ("make", "name", "layers"),
    [
        (make_torchvision, "resnet18", {"layer1": 64, "layer4": 512}),
        (make_timm, "vit_tiny_patch16_224", {"blocks.0": 192, "norm": 192}),
        (make_timm, "swin_tiny_patch4_window7_224", {"layers.0": 96, "layers.3": 768}),
        (make_transformers, "vit", {"vit.layernorm": 48}),
    ],
)
def test_inner_layers_are_pooled_to_their_width(
    make: Callable[[str], nn.Module], name: str, layers: dict[str, int]
) -> None:
    classifier = attach(make(name)).eval()
    with torch.no_grad():
        out = classifier.outputs(torch.rand(2, 3, 224, 224), layers)
    assert out.layers is not None
    assert {n: tuple(t.shape) for n, t in out.layers.items()} == {n: (2, width) for n, width in layers.items()}


def test_networks_without_a_linear_output_layer_say_so() -> None:
    with pytest.raises(AttachError, match="no nn.Linear layer"):
        attach(make_torchvision("squeezenet1_1"))


def test_distilled_networks_with_two_output_layers_say_so() -> None:
    with pytest.raises(AttachError, match=r"2 output layers \(head, head_dist\)"):
        attach(make_timm("deit_tiny_distilled_patch16_224"))


@pytest.mark.parametrize(
    ("library", "name", "layers"),
    [
        ("timm", "crossvit_tiny_240", r"head\.1, head\.0"),
        ("transformers", "Levit", r"classifier\.linear, classifier_distill\.linear"),
        ("transformers", "SwiftFormer", "head, dist_head"),
    ],
)
def test_networks_that_average_output_layers_say_so(library: str, name: str, layers: str) -> None:
    with torch.device("meta"):
        if library == "timm":
            model = make_timm(name)
        else:
            import transformers as t

            ending = "WithTeacher" if name == "Levit" else ""
            config = getattr(t, f"{name}Config")(num_labels=13)
            model = getattr(t, f"{name}ForImageClassification{ending}")(config)
    with pytest.raises(AttachError, match=rf"2 output layers \({layers}\)"):
        attach(model, head="keep")


def test_freeze_keeps_a_pretrained_backbone_as_it_is() -> None:
    classifier = attach(make_torchvision("resnet18"), num_classes=3, freeze=True).train()
    before = {k: v.clone() for k, v in classifier.backbone.state_dict().items()}
    optimizer = torch.optim.SGD(classifier.parameter_groups(5e-4), lr=0.1)
    nn.functional.cross_entropy(classifier(torch.rand(4, 3, 64, 64)), torch.tensor([0, 1, 2, 0])).backward()
    optimizer.step()
    assert all(torch.equal(before[k], v) for k, v in classifier.backbone.state_dict().items())


def test_a_layer_is_pooled_alike_where_the_pass_stops_early() -> None:
    """Mahalanobis with a perturbation reads layers one by one; torchvision's Swin does not say that channels come last."""
    swin = make_torchvision("swin_t")
    classifier = attach(swin).eval()
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        whole = classifier.outputs(images, ["features.1", "features.7"]).layers
        assert whole is not None
        for name, expected in whole.items():
            assert torch.equal(features_until(classifier.backbone, images, name), expected)


def test_auxiliary_classifiers_of_googlenet_do_not_hide_its_output_layer() -> None:
    network = make_torchvision("googlenet").train()  # as torchvision makes it
    kept = attach(network, head="keep").eval()
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(kept(images), network.eval()(images))


def make_bert(task: str, **config: Any) -> Any:
    import transformers

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    kind = transformers.BertConfig(vocab_size=50, **sizes, **config)
    return getattr(transformers, f"BertFor{task}")(kind).eval()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: make_bert("TokenClassification"), "TokenClassification"),
        (lambda: make_bert("SequenceClassification", problem_type="regression"), "regression"),
        (
            lambda: make_bert("SequenceClassification", problem_type="multi_label_classification"),
            "multi_label_classification",
        ),
        (lambda: _torchvision("detection.ssdlite320_mobilenet_v3_large"), "detection"),
        (lambda: _torchvision("segmentation.lraspp_mobilenet_v3_large"), "segmentation"),
    ],
)
def test_networks_for_other_tasks_are_refused_with_what_is_supported(make: Callable[[], nn.Module], said: str) -> None:
    with pytest.raises(AttachError, match=f"is for another task .{said}.*Supported are classifiers"):
        attach(make(), "keep")


def _torchvision(name: str) -> Any:
    import torchvision

    return operator.attrgetter(name)(torchvision.models)(weights=None, weights_backbone=None)


def test_a_text_classifier_is_trained_and_evaluated_on_dict_batches() -> None:
    torch.manual_seed(0)
    ids = torch.randint(2, 50, (96, 7))
    mask = (torch.arange(7) < torch.randint(3, 8, (96, 1))).long()
    labels = (ids[:, 1] > 25).long()
    rows = [{"input_ids": i, "attention_mask": m, "labels": y} for i, m, y in zip(ids, mask, labels, strict=True)]
    loader: Any = DataLoader(rows, batch_size=32)  # type: ignore[arg-type]
    ood: Any = DataLoader([{"input_ids": torch.full((7,), 1)} for _ in range(32)], batch_size=16)  # type: ignore[arg-type]
    bert = make_bert("SequenceClassification", num_labels=2)
    with torch.no_grad():
        expected = bert(input_ids=ids, attention_mask=mask).logits
        kept = attach(bert, "keep")
        assert torch.equal(kept(input_ids=ids, attention_mask=mask), expected)
    network = attach(bert, "cosine").train()
    optimizer = torch.optim.Adam(network.parameters(), 5e-3)
    for _ in range(30):
        for batch in loader:
            loss = network(**batch)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    found = offaxis.evaluate(network.eval(), loader, {"ones": ood}, ["cosine", "energy"])
    with torch.no_grad():
        own = float((network(input_ids=ids, attention_mask=mask).argmax(1) == labels).double().mean())
        scores = network.outputs(torch.stack([ids, mask], 1)).cosine
    assert scores is not None
    assert found.networks[0].accuracy == pytest.approx(own)
    assert own > 0.8
    model = offaxis.calibrate(network, loader, detector=offaxis.detectors.make_detector("cosine", network))
    assert sorted(model.scores) == pytest.approx(sorted((-scores.max(1).values).tolist()), abs=1e-5)
