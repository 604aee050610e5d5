"""Frozen backbones: a head trained on features in memory."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from offaxis import Classifier, evaluate
from offaxis.data import Normalise, TensorSet
from offaxis.errors import ArgumentError, DataError, RunError
from offaxis.heads import CosineHead, HeadLike
from offaxis.networks.saved import read_tensors
from offaxis.training import Recipe, finetune, frozen, load_run, train, train_frozen
from offaxis.training.features import extract_features, share_of_rate, train_head, with_enough_epochs
from tests.heads.makers import MAKERS

from .small import few, network, same, weights


@pytest.fixture(scope="module")
def rows() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 4
    return torch.randn(120, 16, generator=generator).abs() + 3 * torch.eye(16)[labels], labels


@pytest.mark.parametrize("head", [partial(CosineHead, start="sizes"), "linear"])
def test_a_head_learns(rows: tuple[Tensor, Tensor], head: HeadLike) -> None:
    features, labels = rows
    trained = train_head(features, labels, head=head, epochs=60)
    assert not trained.training
    assert (trained(features).argmax(1) == labels).float().mean() > 0.75  # chance is 0.25


@pytest.mark.parametrize("head", MAKERS)
def test_every_head_can_be_trained(rows: tuple[Tensor, Tensor], head: str) -> None:
    features, labels = rows
    assert train_head(features, labels, head=MAKERS[head], epochs=2)(features).isfinite().all()


def test_same_seed_same_weights(rows: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    first, again, other = (train_head(*rows, seed=seed, epochs=3).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert not torch.equal(first["weight"], other["weight"])


def test_more_classes_than_labels(rows: tuple[Tensor, Tensor]) -> None:
    assert train_head(*rows, num_classes=6, epochs=1).num_classes == 6


def test_a_last_batch_of_one_is_left_out(rows: tuple[Tensor, Tensor]) -> None:
    features, labels = rows
    train_head(features[:5], labels[:5], batch_size=4, epochs=2)


def test_wrong_input_is_named(rows: tuple[Tensor, Tensor]) -> None:
    features, labels = rows
    with pytest.raises(DataError, match=r"\(N, d\)"):
        train_head(features[:1], labels[:1])
    with pytest.raises(DataError, match="120 labels|N labels"):
        train_head(features, labels[:5])
    with pytest.raises(DataError, match="finite"):
        train_head(features / 0, labels)
    with pytest.raises(DataError, match="from 0 to 2"):
        train_head(features, labels, num_classes=3)
    with pytest.raises(ArgumentError, match="learning_rate"):
        train_head(features, labels, learning_rate=0)
    with pytest.raises(ArgumentError, match="head"):
        train_head(features, labels, head="nothing")  # type: ignore[arg-type]


def test_the_rate_rises_and_falls() -> None:
    shares = [share_of_rate(step, 100) for step in range(100)]
    assert shares.index(max(shares)) in (9, 10)
    assert shares[0] < 0.1
    assert shares[-1] < 0.01
    assert all(0 < share <= 1 for share in shares)


QUICK = Recipe(epochs=3, batch_size=64, crop=1, flip=False, clip=None)


def _counting(classifier: Classifier) -> list[int]:
    """Count the images that the backbone sees."""
    seen: list[int] = []
    classifier.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    return seen


def test_the_backbone_sees_each_image_once_and_another_head_costs_none(tmp_path: Path) -> None:
    first = network()
    seen, backbone = _counting(first), weights(first)
    trained = train_frozen(first, few(), QUICK, cache=tmp_path / "cache", out=tmp_path / "run", quiet=True)
    assert sum(seen) == 200
    assert all(torch.equal(tensor, backbone[name]) for name, tensor in weights(first).items() if "backbone" in name)
    assert not torch.equal(weights(first)["head.weight"], backbone["head.weight"])
    again = network()
    seen = _counting(again)
    train_frozen(again, few(), QUICK, cache=tmp_path / "cache", quiet=True)
    assert seen == []
    assert same(weights(first), weights(again))  # bit for bit, from the same cached features
    other = network(head="linear")
    other.backbone.load_state_dict(first.backbone.state_dict())
    seen = _counting(other)
    train_frozen(other, few(), QUICK, seed=1, cache=tmp_path / "cache", quiet=True)
    assert seen == []
    assert trained.record["settings"]["frozen"]
    loaded = load_run(tmp_path / "run")
    assert same(weights(loaded.classifier), weights(first))
    assert loaded.classifier.frozen
    with pytest.raises(RunError, match="already"):
        train_frozen(network(), few(), QUICK, out=tmp_path / "run", quiet=True)


def test_cached_features_are_those_of_the_backbone(tmp_path: Path) -> None:
    net, images, normalise = network(), few(70), Normalise((0.3,), (0.4,))
    kept = extract_features(net, images, normalise, cache=tmp_path)
    assert torch.equal(kept, extract_features(net, images, normalise, cache=tmp_path))
    with torch.no_grad():
        rerun = net.eval().features(normalise(images.images))
    assert torch.allclose(kept, rerun, atol=1e-5)
    (file,) = tmp_path.glob("*.safetensors")
    whole = file.read_bytes()
    for damaged in (whole[:-20], whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:]):  # cut off; one bit of a feature
        file.write_bytes(damaged)
        assert torch.equal(kept, extract_features(net, images, normalise, cache=tmp_path))
        assert torch.equal(read_tensors(file, required=True)[0]["features"], kept)  # the order of its header may vary
    other = network(seed=1)
    assert not torch.equal(kept, extract_features(other, images, normalise, cache=tmp_path))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_pass_that_was_stopped_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offaxis.training.features.PART", 32)
    net, images, normalise = network(), few(70), Normalise((0.3,), (0.4,))
    whole = extract_features(net, images, normalise)
    seen = _counting(net)

    def stop(*_: object) -> None:
        if sum(seen) > 32:
            raise KeyboardInterrupt

    hook = net.backbone.register_forward_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        extract_features(net, images, normalise, cache=tmp_path)
    hook.remove()
    seen.clear()
    assert torch.allclose(extract_features(net, images, normalise, cache=tmp_path), whole, atol=1e-5)
    assert sum(seen) == 38


def test_views_are_cached_too_and_depend_on_the_seed(tmp_path: Path) -> None:
    for seed, files in ((0, 3), (0, 3), (1, 5)):
        trained = train_frozen(network(), few(70), QUICK, views=3, seed=seed, cache=tmp_path, quiet=True)
        assert len(list(tmp_path.iterdir())) == files
    assert trained.record["settings"]["views"] == 3


def test_held_out_accuracy_and_the_usual_number_of_steps() -> None:
    trained = train_frozen(network(), few(100), QUICK, validation=few(60), quiet=True)
    assert 0 <= trained.history[-1]["validation_accuracy"] <= 1
    recipe = with_enough_epochs(frozen(), 300)
    assert recipe.epochs * 2 >= 1000
    assert with_enough_epochs(frozen(), 50_000) == frozen()


def test_views_do_not_depend_on_the_numbers_of_the_head(tmp_path: Path) -> None:
    same = {"views": 2, "cache": tmp_path, "quiet": True}
    train_frozen(network(), few(), frozen().replace(epochs=1), **same)  # type: ignore[arg-type]
    kept = sorted(tmp_path.iterdir())
    train_frozen(network(), few(), frozen().replace(epochs=2, learning_rate=0.003), **same)  # type: ignore[arg-type]
    assert sorted(tmp_path.iterdir()) == kept
    train_frozen(network(), few(), frozen().replace(epochs=1, crop=2), **same)  # type: ignore[arg-type]
    assert len(list(tmp_path.iterdir())) == len(kept) + 1


def test_a_loader_and_no_view_are_refused() -> None:
    with pytest.raises(DataError, match="DataLoader"):
        train_frozen(network(), DataLoader(few(), batch_size=8), quiet=True)
    with pytest.raises(DataError, match="to validate on features but got a DataLoader"):
        train_frozen(network(), few(), validation=DataLoader(few(), batch_size=8), quiet=True)
    with pytest.raises(ArgumentError, match="view"):
        train_frozen(network(), few(), views=0, quiet=True)


@pytest.mark.filterwarnings("ignore:The network has learned next to nothing")
def test_layers_are_trained_from_a_name_on() -> None:
    net = network()
    names = [name for name, _ in net.backbone.named_children()]
    before = weights(net.freeze(names[-2]))
    train(net, few(), finetune().replace(epochs=1, crop=1, flip=False), quiet=True)
    changed = {name for name, tensor in weights(net).items() if not torch.equal(tensor, before[name])}
    inner = {name.split(".")[1] for name in changed if name.startswith("backbone.")}
    assert inner == {name for name in names[-2:] if any(key.startswith(f"backbone.{name}.") for key in before)}
    assert "head.weight" in changed
    with pytest.raises(ArgumentError, match="outermost"):
        net.freeze("nothing")


@pytest.mark.filterwarnings("ignore:The network has learned next to nothing")
def test_the_backbone_learns_more_slowly_than_the_head() -> None:
    groups = network().parameter_groups(1e-4, backbone_rate=0.1)
    assert [group.get("rate") for group in groups] == [0.1, None, None]
    assert sum(len(group["params"]) for group in groups) == len(list(network().parameters()))
    sizes = {}
    for rate in (None, 0.01):
        net = network()
        start = [p.detach().clone() for p in net.backbone.parameters()]
        train(net, few(), finetune().replace(epochs=1, crop=1, flip=False, backbone_rate=rate or 1.0), quiet=True)
        moved = zip(start, net.backbone.parameters(), strict=True)
        sizes[rate] = sum(float((a - b).detach().square().sum()) for a, b in moved)
    assert sizes[0.01] < 0.05 * sizes[None]


@pytest.mark.filterwarnings("ignore:120 of the 120 ID test images")
def test_an_evaluation_of_another_head_takes_kept_features(tmp_path: Path) -> None:
    first, images = network(), few(120)
    normalise = Normalise((0.3,), (0.4,))
    train_frozen(first, images, QUICK, normalise=normalise, cache=tmp_path, quiet=True)
    others = {"other": TensorSet("other", 255 - images.images[:40])}
    names = ["two-cosines", "cosine", "knn:k=5"]
    same_sets: dict[str, Any] = {"train": images, "normalise": normalise, "quiet": True}
    whole = evaluate(first, images, others, names, **same_sets)
    kept = evaluate(first, images, others, names, features=tmp_path, **same_sets)
    for one, two in zip(whole.results, kept.results, strict=True):
        assert one.detector == two.detector
        assert two.metrics["auroc"] == pytest.approx(one.metrics["auroc"], abs=1e-3)
    assert kept.networks[0].accuracy == whole.networks[0].accuracy
    second = network(head="linear")
    second.backbone.load_state_dict(first.backbone.state_dict())
    second.freeze()
    seen = _counting(second)
    evaluate(second, images, others, ["energy", "knn:k=5"], features=tmp_path, **same_sets)
    assert sum(seen) <= 2  # those that are looked at to see which detectors can be used
    evaluate(second, images, others, ["odin"], features=tmp_path, **same_sets)
    assert sum(seen) > 100
