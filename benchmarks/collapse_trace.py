"""How a scale collapses, step by step: the same training without clipping and with it, as a figure and a table.

    python -m benchmarks.collapse_trace --out docs/images/scale-collapse

Tries seeds until one collapses without clipping, then trains it again with the default recipe's clipping.
"""

import argparse
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure

from offaxis import CosineHead, Outputs
from offaxis.data.embedded import small_digits
from offaxis.errors import ScaleCollapseError
from offaxis.networks import wide_resnet
from offaxis.reports.figures import save_figure
from offaxis.training import Recipe, cross_entropy, train


@dataclass
class Trace:
    """One number a step of each."""

    loss: list[float] = field(default_factory=list)
    scale: list[float] = field(default_factory=list)
    shift: list[float] = field(default_factory=list)
    gradient: list[float] = field(default_factory=list)
    collapsed: bool = False


def trace(seed: int, clip: float | None) -> Trace:
    torch.manual_seed(seed)
    network = wide_resnet(depth=10, width=1, in_channels=1, head=partial(CosineHead, start="paper"))
    norm: Any = network.head.get_submodule("scale.norm")
    values = Trace()

    def loss(out: Outputs, labels: torch.Tensor) -> torch.Tensor:
        value = cross_entropy(out, labels)
        assert out.scale is not None
        values.loss.append(value.item())
        values.scale.append(out.scale.mean().item())
        values.shift.append(norm.bias.item())
        gradient = torch.autograd.grad(value, list(network.parameters()), retain_graph=True)
        values.gradient.append(float(torch.linalg.vector_norm(torch.stack([g.norm() for g in gradient]))))
        return value

    recipe = Recipe(epochs=6, batch_size=64, learning_rate=0.3, crop=0, flip=False, clip=clip)
    try:
        train(network, small_digits("train"), recipe, seed=seed, loss=loss, quiet=True)
    except ScaleCollapseError:
        values.collapsed = True
    return values


def draw(without: Trace, clipped: Trace, steps: int) -> Figure:
    figure = Figure(figsize=(9, 5), layout="constrained")
    rows = (
        ("loss", "loss", "linear"),
        ("gradient", "norm of the gradient", "log"),
        ("scale", "mean scale", "log"),
        ("shift", "shift of the scale's BN", "linear"),
    )
    for axes, (name, label, kind) in zip(figure.subplots(2, 2, sharex=True).flat, rows, strict=True):
        axes.plot(getattr(without, name)[:steps], color="#b3400a", label="without clipping")
        axes.plot(getattr(clipped, name)[:steps], color="#0b5394", linestyle="--", label="with clipping")
        axes.set_yscale(kind)
        axes.set_ylabel(label)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in figure.axes[2:]:
        axes.set_xlabel("step")
    figure.axes[0].legend(frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="scale-collapse", help="name of the figure, without ending")
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seed = options.first_seed
    while not (without := trace(seed, None)).collapsed:
        seed += 1
    clipped = trace(seed, Recipe(1, 2).clip)
    steps = len(without.loss)
    print(
        f"seed {seed}: stopped after {steps} steps without clipping; loss {without.loss[-1]:.3f}, with: {clipped.loss[-1]:.3f}"
    )
    print("step  loss  gradient     scale  shift   | with clipping: loss  gradient  scale  shift")
    for i in range(steps):
        a, b = ([getattr(t, n)[i] for n in ("loss", "gradient", "scale", "shift")] for t in (without, clipped))
        print(
            f"{i:4d}  {a[0]:.2f}  {a[1]:8.3f}  {a[2]:8.3f}  {a[3]:5.2f}   |  {b[0]:.2f}  {b[1]:8.3f}  {b[2]:7.3f}  {b[3]:5.2f}"
        )
    save_figure(draw(without, clipped, steps), options.out)


if __name__ == "__main__":
    main()
