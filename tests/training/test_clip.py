"""Clipping relative to the running mean of the gradient's norm."""

import torch

from offaxis.training.loop import RelativeClip


def test_an_ordinary_gradient_passes_and_an_outlier_counts_as_clipped() -> None:
    clip = RelativeClip(2.0, torch.device("cpu"))
    assert clip.limit() == torch.inf
    for _ in range(100):
        clip.add(torch.tensor(1.0))
    assert float(clip.limit()) == 2.0
    clip.add(torch.tensor(1000.0))
    assert abs(float(clip.mean) - (1 + 1 / 50)) < 1e-6


def test_it_follows_a_gradient_that_changes_for_good() -> None:
    clip = RelativeClip(2.0, torch.device("cpu"))
    clip.add(torch.tensor(1.0))
    for _ in range(400):
        clip.add(torch.tensor(30.0))
    assert abs(float(clip.mean) - 30) < 1


def test_the_state_goes_through_a_checkpoint_exactly() -> None:
    clip, other = RelativeClip(2.0, torch.device("cpu")), RelativeClip(2.0, torch.device("cpu"))
    for norm in (0.1, 0.7, 3.3):
        clip.add(torch.tensor(norm))
    other.restore(clip.state())
    for norm in (0.2, 9.0):
        clip.add(torch.tensor(norm))
        other.add(torch.tensor(norm))
    assert torch.equal(clip.mean, other.mean)


def test_a_gradient_that_overflows_is_not_remembered() -> None:
    clip, other = RelativeClip(2.0, torch.device("cpu")), RelativeClip(2.0, torch.device("cpu"))
    for norm in (torch.inf, torch.nan, 1.0, torch.nan, 3.0, torch.inf, 0.5):
        clip.add(torch.tensor(norm))
    for norm in (1.0, 3.0, torch.inf, 0.5):  # infinity counts as the limit, once there is one
        other.add(torch.tensor(norm))
    assert torch.equal(clip.mean, other.mean)
    assert clip.state() == other.state()


def test_a_first_gradient_of_nothing_sets_no_limit() -> None:
    clip = RelativeClip(2.0, torch.device("cpu"))
    clip.add(torch.tensor(0.0))
    assert clip.limit() == torch.inf
    clip.add(torch.tensor(4.0))
    assert float(clip.limit()) == 4.0
