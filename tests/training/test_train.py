"""The training loop: it learns, it repeats itself, and it does not fail in silence."""

import json
import math
import platform
import threading
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from offaxis import Classifier, CosineHead, Outputs, attach, train
from offaxis.data import Normalise, TensorSet
from offaxis.data.embedded import small_digits
from offaxis.detectors import Cosine
from offaxis.errors import (
    ArgumentError,
    DataError,
    NotFiniteError,
    ScaleCollapseError,
    TrainingStopped,
)
from offaxis.networks import wide_resnet
from offaxis.options import TrainOptions
from offaxis.training import Recipe, cross_entropy, laptop, paper_wide_resnet
from offaxis.training.record import RunFolder

from .small import SHORT, fabric, few, network, same, stop_after, weights

pytestmark = pytest.mark.filterwarnings("ignore:The network has learned next to nothing")


def test_it_learns_digits_with_either_head() -> None:
    test = small_digits("test")
    for head in ("cosine", "linear"):
        trained = train(network(head=head), small_digits("train"), SHORT.replace(epochs=5), validation=test, quiet=True)
        assert trained.history[-1]["validation_accuracy"] > 0.9
        assert not trained.classifier.training
        assert len(trained.history) == 5
        assert (trained.history[-1]["scale"] is None) == (head == "linear")


def test_the_same_seed_gives_the_same_weights_and_another_gives_others() -> None:
    first = train(network(dropout=0.2), few(), SHORT, seed=3, quiet=True)
    torch.rand(7)  # what the caller does with random numbers makes no difference
    second = train(network(dropout=0.2), few(), SHORT, seed=3, quiet=True)
    third = train(network(dropout=0.2), few(), SHORT, seed=4, quiet=True)
    assert same(weights(first.classifier), weights(second.classifier))
    assert not same(weights(first.classifier), weights(third.classifier))


def test_the_callers_random_numbers_are_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model = wide_resnet(depth=10, width=1, in_channels=1)
    torch.manual_seed(5)
    train(model, few(), SHORT.replace(epochs=1), quiet=True)
    assert torch.equal(torch.rand(3), expected)


def test_after_epoch_sees_every_epoch_in_eval_mode_and_changes_nothing(tmp_path: Path) -> None:
    seen: list[tuple[int, dict[str, Tensor]]] = []

    def look(epoch: int, classifier: Classifier) -> None:
        assert not any(module.training for module in classifier.modules())
        torch.rand(3)  # nor do random numbers of its own
        seen.append((epoch, weights(classifier)))

    plain = train(network(dropout=0.2), few(), SHORT, seed=1, quiet=True)
    looked = train(network(dropout=0.2), few(), SHORT, seed=1, after_epoch=look, quiet=True)
    assert [epoch for epoch, _ in seen] == [1, 2]
    assert same(seen[-1][1], weights(plain.classifier))
    assert same(weights(looked.classifier), weights(plain.classifier))

    seen.clear()
    run = tmp_path / "run"
    with pytest.raises(TrainingStopped):
        train(
            network(),
            few(),
            SHORT,
            out=RunFolder(run, options=TrainOptions(log_every=1)),
            loss=stop_after(6),
            after_epoch=look,
            quiet=True,
        )
    assert [epoch for epoch, _ in seen] == [1]
    resumed = train(network(), few(), SHORT, out=run, resume=True, after_epoch=look, quiet=True)
    assert [epoch for epoch, _ in seen] == [1, 2]
    assert same(seen[-1][1], weights(resumed.classifier))


def test_outside_the_main_thread_it_trains_too() -> None:
    results: list[Any] = []
    thread = threading.Thread(
        target=lambda: results.append(train(network(), few(), SHORT.replace(epochs=1), quiet=True))
    )
    thread.start()
    thread.join()
    assert len(results) == 1


def test_a_loss_that_is_no_number_stops_training_within_an_epoch() -> None:
    def loss(out: Outputs, labels: Tensor) -> Tensor:
        return cross_entropy(out, labels) * math.nan

    with pytest.raises(NotFiniteError, match="The loss became nan"):
        train(network(), few(), SHORT, loss=loss, quiet=True)


def test_a_large_loss_of_ones_own_says_nothing_about_guessing() -> None:
    def summed(out: Outputs, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(out.logits, labels, reduction="sum")

    recipe = SHORT.replace(epochs=4, learning_rate=0.1 / SHORT.batch_size)
    trained = train(network(), few(), recipe, loss=summed, quiet=True)
    assert trained.history[-1]["accuracy"] > 0.3
    assert trained.history[-1]["loss"] > math.log(10)
    with pytest.warns(UserWarning, match="learned next to nothing"):
        train(network(), few(), recipe.replace(epochs=1, learning_rate=1e-9), loss=summed, quiet=True)


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(label_smoothing=0.1),
        partial(nn.functional.cross_entropy, label_smoothing=0.1),
        partial(nn.CrossEntropyLoss(label_smoothing=0.1)),
    ],
)
def test_a_loss_of_pytorch_takes_the_logits(loss: Any) -> None:
    def expected(out: Outputs, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(out.logits, labels, label_smoothing=0.1)

    one, other = (train(network(), few(), SHORT, loss=each, quiet=True) for each in (loss, expected))
    assert same(weights(one.classifier), weights(other.classifier))


def test_a_loss_that_is_not_one_number_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"one number.*shape \(64,\): reduction='mean'"):
        train(network(), few(), SHORT, loss=nn.CrossEntropyLoss(reduction="none"), quiet=True)


def test_a_collapsed_scale_stops_training_within_an_epoch() -> None:
    """The paper's recipe with a scale branch that has just been thrown off, as a few bad batches can do."""
    model = network(head=partial(CosineHead, start="paper"))
    with torch.no_grad():
        model.head.scale.norm.bias.fill_(-12.0)  # type: ignore[union-attr]
    seen: list[int] = []

    def loss(out: Outputs, labels: Tensor) -> Tensor:
        seen.append(1)
        return cross_entropy(out, labels)

    recipe = paper_wide_resnet().replace(batch_size=32, crop=1, flip=False)
    with pytest.raises(ScaleCollapseError, match="(?s)The scale collapsed.*clip=1.5"):
        train(model, small_digits("train"), recipe, loss=loss, quiet=True)
    assert len(seen) <= 45  # steps of one epoch


def test_a_scaled_linear_network_may_have_a_small_scale() -> None:
    from offaxis import LinearHead

    model = network(head=partial(LinearHead, scale=0.01))
    with torch.no_grad():
        model.head.weight.mul_(300)
    train(model, few(), SHORT.replace(epochs=4), quiet=True)


def test_a_training_that_teaches_nothing_says_so() -> None:
    images = few()
    with pytest.warns(UserWarning, match="learned next to nothing"):
        train(network(), images, SHORT.replace(epochs=1, learning_rate=1e-9), quiet=True)


def test_labels_that_do_not_fit_are_refused() -> None:
    images = few()
    with pytest.raises(DataError, match="plain has none"):
        train(network(), TensorSet("plain", images.images), SHORT)
    with pytest.raises(DataError, match="labels from 0 to 4 but few-digits has 9"):
        train(network(num_classes=5), images, SHORT)
    with pytest.raises(DataError, match="at least as many training images"):
        train(network(), few(20), SHORT)
    with pytest.raises(DataError, match="as a batch has .* but got 0"):
        train(network(), few(0), SHORT)


def test_validation_images_that_do_not_fit_are_refused_before_the_first_step(tmp_path: Path) -> None:
    images = few()
    others = TensorSet("others", images.images, images.labels, tuple("abcdefghij"))
    for validation, said in (
        (TensorSet("plain", images.images), "plain has none"),
        (others, "a, b, c"),
    ):
        with pytest.raises(DataError, match=said):
            train(network(), images, SHORT, out=tmp_path / "run", validation=validation)
    assert not (tmp_path / "run").exists()


def test_the_log_has_what_the_bar_shows(tmp_path: Path) -> None:
    train(network(), few(), SHORT, out=tmp_path / "run", validation=few(50), quiet=True)
    records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    for record in records:
        assert {
            "kind",
            "step",
            "epoch",
            "loss",
            "accuracy",
            "learning_rate",
            "scale",
            "images_per_second",
        } <= record.keys()
    epochs = [r for r in records if r["kind"] == "epoch"]
    assert [r["epoch"] for r in epochs] == [1, 2]
    assert all(0 <= r["validation_accuracy"] <= 1 for r in epochs)
    assert [round(r["learning_rate"], 6) for r in records if r["kind"] == "step"][-1] == 0.001


def test_images_that_are_decoded_as_it_goes_train_like_those_in_memory(tmp_path: Path) -> None:
    from PIL import Image

    from offaxis.data import load_images

    images = few(120)
    assert images.labels is not None
    for i, (image, label) in enumerate(zip(images.images, images.labels.tolist(), strict=True)):
        folder = tmp_path / "mine" / "train" / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(folder / f"{i:03d}.png")
    kept, lazy = (load_images(tmp_path / "mine", "train", in_memory=memory) for memory in (True, False))
    assert type(kept) is not type(lazy)
    recipe = SHORT.replace(epochs=1, batch_size=32)
    channels = kept.shape[0]
    results = []
    for data in (kept, lazy):
        torch.manual_seed(0)
        trained = train(wide_resnet(depth=10, width=1, in_channels=channels), data, recipe, quiet=True)
        results.append(weights(trained.classifier))
    assert same(*results)


@pytest.mark.filterwarnings("ignore:This CPU has no instructions for bfloat16")
def test_mixed_precision_trains() -> None:
    trained = train(network(), small_digits("train"), SHORT.replace(epochs=3), device=fabric("bf16-mixed"), quiet=True)
    assert trained.history[-1]["accuracy"] > 0.6
    assert trained.classifier.head.weight.dtype == torch.float32


@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
def test_bfloat16_on_a_cpu_without_it_is_told(monkeypatch: pytest.MonkeyPatch, capability: str) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(network(), few(64), SHORT.replace(epochs=1), device=fabric("bf16-mixed"), quiet=True)
    assert any("--precision 32-true" in str(each.message) for each in caught) == (capability == "AVX2")


def test_in_64_bits_it_trains_validates_and_is_scored() -> None:
    images = few()
    trained = train(network(), images, SHORT, device=fabric("64-true"), validation=images, quiet=True)
    assert trained.history[-1]["validation_accuracy"] > 0
    assert trained.normalise is not None
    scores = Cosine().score_images(trained.classifier, trained.normalise(images.images[:5]))
    assert scores.dtype == torch.float64


def test_gradients_that_overflow_in_16_bits_do_not_stop_it() -> None:
    from lightning_fabric import Fabric
    from lightning_fabric.plugins import MixedPrecision

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)  # so large that the first steps overflow and are skipped
    mixed = Fabric(accelerator="cpu", devices=1, plugins=MixedPrecision("16-mixed", "cpu", scaler=scaler))
    trained = train(network(), few(), SHORT.replace(epochs=4), device=mixed, quiet=True)
    assert trained.history[-1]["loss"] < trained.history[0]["loss"]
    assert scaler.get_scale() < 2.0**24


def test_weight_decay_and_learning_rate_reach_the_optimiser() -> None:
    """One step of ours against one step of a bare PyTorch loop, from the same weights on the same images."""
    images = few(64)
    recipe = Recipe(epochs=1, batch_size=64, weight_decay=0.1, learning_rate=0.05, crop=0, flip=False, clip=None)
    ours = train(network(), images, recipe, normalise=Normalise((0.5,), (0.25,)), quiet=True).classifier
    bare = network().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    spared = [bare.head.weight]
    others = [p for p in bare.parameters() if p is not bare.head.weight]
    optimizer = torch.optim.SGD(
        [{"params": others, "weight_decay": 0.1}, {"params": spared, "weight_decay": 0.0}],
        lr=0.05,
        momentum=0.9,
        nesterov=True,
    )
    pixels = (images.images.float() / 255 - 0.5) / 0.25
    assert images.labels is not None
    torch.nn.functional.cross_entropy(bare(pixels), images.labels).backward()
    optimizer.step()
    for (name, mine), (_, theirs) in zip(ours.named_parameters(), bare.named_parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=name)


def test_features_as_images_of_one_pixel_are_not_cropped_away() -> None:
    """(N, d, 1, 1): under the default recipe a crop of one pixel out of a border of four would nearly always be black."""
    torch.manual_seed(0)
    features = torch.rand(256, 16, 1, 1)
    labels = features[:, :4, 0, 0].argmax(1)
    network = attach(nn.Sequential(nn.Flatten(), nn.Linear(16, 4)), "linear")
    done = train(network, TensorDataset(features, labels), laptop().replace(epochs=10, flip=True), quiet=True)
    assert done.history[-1]["accuracy"] > 0.6
