"""Training loops of one's own: any optimiser, mixed precision, gradient accumulation, torch.compile, a check at the end."""

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from offaxis import Classifier, CosineHead, train
from offaxis.data import Normalise
from offaxis.data.embedded import small_digits
from offaxis.errors import DataError, HeadError
from offaxis.heads import make_head
from offaxis.training.check import learned_nothing

from .small import SHORT


def cnn(head: Any = "cosine", seed: int = 0) -> Classifier:
    """A CNN as a user would write it, for 8x8 digits; its last maps have one position."""
    torch.manual_seed(seed)
    blocks: list[nn.Module] = []
    for before, after in ((1, 16), (16, 32), (32, 64)):
        blocks += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    blocks += [nn.Conv2d(64, 64, 1), nn.BatchNorm2d(64), nn.ReLU()]
    return Classifier(nn.Sequential(*blocks, nn.Flatten()), make_head(head, 64, 10))


def normalised(split: Literal["train", "test"]) -> TensorDataset:
    images = small_digits(split)
    assert images.labels is not None
    return TensorDataset((images.images / 255 - 0.3) / 0.37, images.labels)


@pytest.fixture(scope="module")
def train_set() -> TensorDataset:
    return normalised("train")


@pytest.fixture(scope="module")
def test_set() -> TensorDataset:
    return normalised("test")


def batches(data: TensorDataset, epochs: int, size: int = 64) -> Iterator[tuple[Tensor, Tensor]]:
    loader = DataLoader(data, batch_size=size, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(0))
    for _ in range(epochs):
        yield from loader


def accuracy(network: Classifier, data: TensorDataset) -> float:
    network.eval()
    with torch.no_grad():
        return float((network(data.tensors[0]).argmax(1) == data.tensors[1]).double().mean())


OPTIMISERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adamw": partial(torch.optim.AdamW, lr=1e-3),
    "adamw, small": partial(torch.optim.AdamW, lr=3e-4),
    "adam": partial(torch.optim.Adam, lr=1e-3),
    "rmsprop": partial(torch.optim.RMSprop, lr=1e-3),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_default_head_learns_under_any_optimiser(
    name: str, train_set: TensorDataset, test_set: TensorDataset
) -> None:
    """One seed of what docs/head-start.md compares over five: the cosine head is no worse than a linear one."""
    reached = {}
    for head in ("linear", "cosine"):
        network = cnn(head).train()
        optimiser = OPTIMISERS[name](network.parameter_groups(1e-4))
        for images, labels in batches(train_set, 3):
            optimiser.zero_grad()
            F.cross_entropy(network(images), labels).backward()
            optimiser.step()
        reached[head] = accuracy(network, test_set)
        assert not network.check_training([train_set[:500]]).problems
    assert reached["cosine"] > reached["linear"] - 0.02
    assert reached["cosine"] > 0.8


def test_mixed_precision(train_set: TensorDataset, test_set: TensorDataset) -> None:
    network = cnn().train()
    optimiser = torch.optim.AdamW(network.parameter_groups(1e-4), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")
    for images, labels in batches(train_set, 2):
        with torch.autocast("cpu", torch.bfloat16):
            logits = network(images)
            loss = F.cross_entropy(logits, labels)
        assert logits.dtype == torch.float32  # the head works in float32 whatever the backbone does
        optimiser.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
    assert accuracy(network, test_set) > 0.8


def test_gradient_accumulation(train_set: TensorDataset, test_set: TensorDataset) -> None:
    network = cnn().train()
    optimiser = torch.optim.AdamW(network.parameter_groups(1e-4), lr=2e-3)
    for step, (images, labels) in enumerate(batches(train_set, 4, size=16), 1):
        (F.cross_entropy(network(images), labels) / 4).backward()
        if step % 4 == 0:
            optimiser.step()
            optimiser.zero_grad()
    assert accuracy(network, test_set) > 0.8


def test_accumulated_gradients_are_the_sum_of_those_of_the_parts(train_set: TensorDataset) -> None:
    together, apart = cnn().train(), cnn().train()
    parts = [train_set[:20], train_set[20:40]]
    for images, labels in parts:
        F.cross_entropy(together(images), labels).backward()
    sums = [torch.zeros_like(p) for p in apart.parameters()]
    for images, labels in parts:
        apart.zero_grad()
        F.cross_entropy(apart(images), labels).backward()
        for total, parameter in zip(sums, apart.parameters(), strict=True):
            assert parameter.grad is not None
            total += parameter.grad
    for parameter, total in zip(together.parameters(), sums, strict=True):
        torch.testing.assert_close(parameter.grad, total)


SLOW = pytest.mark.slow  # compiling takes its time


@pytest.mark.parametrize(
    "head", ["cosine", pytest.param(partial(CosineHead, start="paper"), marks=SLOW), pytest.param("linear", marks=SLOW)]
)
def test_torch_compile_gives_the_same_training_without_a_graph_break(head: Any, train_set: TensorDataset) -> None:
    """With the compiler's own tracing and gradients; generating machine code takes minutes and is PyTorch's own affair."""
    plain, compiled = cnn(head).train(), cnn(head).train()
    fast = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    optimisers = [torch.optim.AdamW(n.parameter_groups(1e-4), lr=1e-3) for n in (plain, compiled)]
    for images, labels in list(batches(train_set, 1))[:6]:
        for network, optimiser in zip((plain, fast), optimisers, strict=True):
            optimiser.zero_grad()
            F.cross_entropy(network(images), labels).backward()
            optimiser.step()
    for expected, found in zip(plain.state_dict().values(), compiled.state_dict().values(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    images = train_set.tensors[0][:8]
    plain.eval()
    compiled.eval()
    torch.testing.assert_close(fast(images), plain(images), rtol=1e-3, atol=1e-3)


# the check --------------------------------------------------------------------------------------------------------


def test_an_untrained_network_has_learned_nothing(train_set: TensorDataset) -> None:
    network = cnn().train()
    with pytest.warns(UserWarning, match="learned next to nothing.*guessing gives 1"):
        found = network.check_training(DataLoader(train_set, batch_size=128))
    assert network.training  # left as it was
    assert found.problems
    assert found.images == len(train_set)
    assert 0 <= found.accuracy < 0.2
    assert found.guessing == pytest.approx(0.1, abs=0.02)
    assert found.guessing_loss == pytest.approx(2.302, abs=0.01)


def test_a_head_that_is_behind_its_features_is_named() -> None:
    """The features tell all classes apart, the head has learned the axes of seven of ten."""
    random = torch.Generator().manual_seed(0)
    centres, labels = torch.randn(10, 16, generator=random), torch.arange(400) % 10
    features = centres[labels] + 0.3 * torch.randn(400, 16, generator=random)
    head = CosineHead(16, 10, scale=8.0)
    with torch.no_grad():
        head.weight.copy_(torch.cat([centres[:7], centres[:3] + torch.randn(3, 16, generator=random)]))
    network = Classifier(nn.Flatten(), head)
    with pytest.warns(UserWarning, match="head is behind its features.*start="):
        found = network.check_training([(features[:, :, None, None], labels)])
    assert found.class_means > 0.95
    assert 0.5 < found.accuracy < 0.85


def test_a_collapsed_scale_is_named(train_set: TensorDataset) -> None:
    network = cnn(partial(CosineHead, start="paper"))
    with torch.no_grad():
        network.head.scale.norm.bias.fill_(-12.0)  # type: ignore[union-attr]
    with pytest.warns(UserWarning, match="scale has collapsed"):
        found = network.check_training([train_set[:300]])
    assert found.scale is not None
    assert found.scale < 0.05


def test_most_images_of_one_class_are_no_success(train_set: TensorDataset) -> None:
    images, labels = train_set.tensors
    chosen = torch.cat([torch.where(labels == 3)[0], torch.where(labels != 3)[0][:20]])
    network = cnn("linear")
    with torch.no_grad():
        network.head.weight.zero_()  # type: ignore[operator]
        network.head.bias.copy_(F.one_hot(torch.tensor(3), 10) * 4.0)  # type: ignore[operator]
    with pytest.warns(UserWarning, match="next to nothing"):
        found = network.check_training([(images[chosen], labels[chosen])])
    assert found.accuracy == found.guessing > 0.85


def test_images_of_one_class_tell_nothing(train_set: TensorDataset) -> None:
    images, labels = train_set.tensors
    with pytest.warns(UserWarning, match="Nothing can be told from .* images of one class"):
        found = cnn().check_training([(images[labels == 3], labels[labels == 3])])
    assert len(found.problems) == 1


def test_images_that_are_not_normalised_yet() -> None:
    network = cnn()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = network.check_training(small_digits("test"), normalise=Normalise((0.3,), (0.37,)))
        again = network.check_training([normalised("test")[:]])
    assert first.accuracy == pytest.approx(again.accuracy, abs=0.01)


def test_no_images_and_no_labels_are_refused(train_set: TensorDataset) -> None:
    with pytest.raises(DataError, match="got none"):
        cnn().check_training([])
    with pytest.raises(DataError, match="label"):
        cnn().check_training(DataLoader(train_set.tensors[0], batch_size=50))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("classes", "accuracy", "nothing"),
    [(2, 0.54, True), (2, 0.56, False), (10, 0.18, True), (10, 0.2, False), (100, 0.019, True), (100, 0.021, False)],
)
def test_what_next_to_nothing_means(classes: int, accuracy: float, nothing: bool) -> None:
    guess = 1 / classes
    assert learned_nothing(accuracy=accuracy, loss=0.1, guessing=guess, guessing_loss=1.0) == nothing
    assert learned_nothing(accuracy=0.9, loss=0.95, guessing=guess, guessing_loss=1.0)


# a last batch of one ----------------------------------------------------------------------------------------------


def test_a_batch_of_one_image_names_the_remedy(train_set: TensorDataset) -> None:
    with pytest.raises(HeadError, match=r"at least 2 images.*drop_last=True"):
        CosineHead(4, 3).train()(torch.randn(1, 4))
    with pytest.raises(ValueError, match="more than 1 value per channel when training"):  # a backbone's own, as it is
        cnn().train()(train_set.tensors[0][:1])
    assert cnn().eval()(train_set.tensors[0][:1]).shape == (1, 10)


def test_other_errors_of_a_backbone_stay_as_they_are() -> None:
    class Broken(nn.Module):
        def forward(self, _: Tensor) -> Tensor:
            raise ValueError("of the user's own")

    with pytest.raises(ValueError, match="of the user's own"):
        Classifier(Broken(), make_head("linear", 4, 3)).train()(torch.zeros(1, 1, 8, 8))


def test_train_refuses_a_loader_with_a_last_batch_of_one_before_the_first_step(train_set: TensorDataset) -> None:
    odd = TensorDataset(*(t[:129] for t in train_set.tensors))
    with pytest.raises(DataError, match=r"129 images in batches of 64 has 1.*drop_last=True"):
        train(cnn(), DataLoader(odd, batch_size=64), SHORT, quiet=True)
