"""Which epoch the networks of the leave-out method keep, and that it is told which set decided."""

from typing import Any

import pytest
import torch
from torch import Tensor

from offaxis import train
from offaxis.data import Normalise, TensorSet
from offaxis.detectors import State, default_detector
from offaxis.detectors.leave_out import leave_out_score
from offaxis.errors import DetectorError
from offaxis.metrics import auroc
from offaxis.networks import wide_resnet
from offaxis.networks.classifier import Classifier
from offaxis.networks.combine import SelectedEpoch, kept_classes
from offaxis.training import AfterEpoch, Recipe
from offaxis.training.leave_out import BestEpoch, MarginEntropyLoss, SelectOn, train_leave_out

pytestmark = pytest.mark.filterwarnings("ignore:The network has learned next to nothing")
PLAIN = Normalise((0.5,), (0.25,))


def bright_rows(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Four classes of images (count, 1, 8, 8): the pair of rows that is bright."""
    labels = torch.arange(count) % 4
    images = 0.3 * torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    for i, label in enumerate(labels.tolist()):
        images[i, :, 2 * label : 2 * label + 2] += 0.6
    return images, labels


@pytest.fixture
def select() -> SelectOn:
    images, labels = bright_rows(40, 1)
    noise = torch.rand(48, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    return SelectOn(
        id_images=TensorSet("rows", images, labels),
        ood_images=TensorSet("grey-noise", noise),
        normalise=PLAIN,
        batch_size=16,
    )


def make(classes: int = 4) -> Classifier:
    return wide_resnet(10, 1, num_classes=classes, head="linear", in_channels=1)


def members_training(epochs: int, states: list[list[dict[str, Tensor]]]) -> Any:
    """A ``train`` that also writes down the weights of every member after every epoch."""
    data = TensorSet("rows", *bright_rows(80, 0))
    recipe = Recipe(epochs=epochs, batch_size=20, crop=0, flip=False)

    def fit(network: Classifier, loss: MarginEntropyLoss, seed: int, after_epoch: AfterEpoch | None = None) -> None:
        states.append([])

        def both(epoch: int, seen: Classifier) -> None:
            assert epoch == len(states[-1]) + 1
            assert not seen.training
            states[-1].append({name: tensor.clone() for name, tensor in seen.state_dict().items()})
            if after_epoch is not None:
                after_epoch(epoch, seen)

        train(network, data, recipe, normalise=PLAIN, loss=loss, seed=seed, after_epoch=both, quiet=True)

    return fit


def plain_auroc(weights: dict[str, Tensor], left_out: tuple[int, ...], select: SelectOn) -> float:
    network = make()
    network.load_state_dict(weights)
    network.eval()
    known = [c for c in range(4) if c not in left_out]
    scores = [
        leave_out_score(network((images.batch(torch.arange(len(images))) - 0.5) / 0.25)[:, known]).detach().numpy()
        for images in (select.id_images, select.ood_images)
    ]
    return auroc(*scores)


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def test_each_member_keeps_its_best_epoch_and_the_result_names_the_set(select: SelectOn) -> None:
    states: list[list[dict[str, Tensor]]] = []
    ensemble = train_leave_out(4, make, members_training(4, states), count=2, select=select)
    assert ensemble.selected_on == "grey-noise"
    assert len(ensemble.selected) == 2
    for member, fold, selected, epochs in zip(
        ensemble.networks, ensemble.left_out, ensemble.selected, states, strict=True
    ):
        found = [plain_auroc(weights, fold, select) for weights in epochs]
        assert selected.compared == len(found) == 4
        assert selected.auroc == pytest.approx(max(found), abs=1e-3)
        assert found[selected.epoch - 1] == pytest.approx(max(found), abs=1e-3)
        assert same(member.state_dict(), epochs[selected.epoch - 1])
        assert not member.training


def test_choosing_changes_no_step_and_without_it_the_last_epoch_is_kept(select: SelectOn) -> None:
    with_choice: list[list[dict[str, Tensor]]] = []
    without: list[list[dict[str, Tensor]]] = []
    train_leave_out(4, make, members_training(2, with_choice), count=2, select=select)
    ensemble = train_leave_out(4, make, members_training(2, without), count=2)
    for one, other in zip(with_choice, without, strict=True):
        assert all(same(a, b) for a, b in zip(one, other, strict=True))
    for member, epochs in zip(ensemble.networks, without, strict=True):
        assert same(member.state_dict(), epochs[-1])
    assert ensemble.selected_on is None
    assert ensemble.selected == ()
    assert default_detector(ensemble).tuned_on is None
    assert default_detector(ensemble).state is State.DEFAULT


def test_the_first_of_equal_epochs_is_kept_even_where_none_is_any_good(select: SelectOn) -> None:
    hopeless = SelectOn(
        id_images=select.id_images,
        ood_images=select.id_images.subset(torch.arange(40), "the same"),
        normalise=PLAIN,
    )
    best = BestEpoch(hopeless, kept_classes((0,), 4))
    torch.manual_seed(0)
    network, other = make(), make()
    best(1, network)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    best(2, other)
    assert best.restore(other) == SelectedEpoch("the same", 1, 0.5, 2)
    assert same(other.state_dict(), before)


def test_measuring_leaves_the_network_as_it_was(select: SelectOn) -> None:
    network = make().train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    BestEpoch(select, kept_classes((0,), 4))(1, network)
    assert network.training
    assert same(network.state_dict(), before)
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_training_that_never_asks_is_refused(select: SelectOn) -> None:
    def forgetful(*_: object) -> None:
        pass

    with pytest.raises(DetectorError, match="after every epoch"):
        train_leave_out(4, make, forgetful, count=2, select=select)
