"""Does the cosine head learn under any optimiser? Starts of the scale, compared with a linear head.

    python -m benchmarks.head_start run --rows rows.jsonl --data DATA --features FEATURES --weights resnet20.th
    python -m benchmarks.head_start report --rows rows.jsonl

A row is one training: a task, an optimiser, a head and a seed. Rows that are in the file already are skipped, so the same
command goes on where it stopped. FEATURES is what benchmarks/photo_features.py wrote. Seeds are paired: with one seed
all heads see the same batches. Nothing is clipped and the learning rate falls in a line to nothing.
"""

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from scipy.stats import t as student
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.head_start_tasks import TASKS, Task, load_task
from offaxis import Classifier, CosineHead, LinearHead
from offaxis.heads import Head
from offaxis.heads.cosine import PredictedScale, smallest_sufficient_scale, start_from_sizes
from offaxis.metrics import auroc

OPTIMISERS: dict[str, Callable[[list[dict[str, Any]]], torch.optim.Optimizer]] = {
    "sgd 0.1": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "adamw 1e-3": partial(torch.optim.AdamW, lr=1e-3),
    "adamw 3e-4": partial(torch.optim.AdamW, lr=3e-4),
    "adamw 1e-4": partial(torch.optim.AdamW, lr=1e-4),
    "adam 1e-3": partial(torch.optim.Adam, lr=1e-3),
    "rmsprop 1e-3": partial(torch.optim.RMSprop, lr=1e-3),
}
DECAY = {"sgd": 5e-4, "adamw": 1e-2, "adam": 0.0, "rmsprop": 0.0}
"""Weight decay by the first word of the optimiser: that of our recipes, PyTorch's defaults."""


class _Detached(PredictedScale):
    """The scale learns, but its gradient does not reach the features."""

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features.detach())


class _Formula(PredictedScale):
    """The scale by another formula of s0 and z than s0 exp(z / s0)."""

    formula: Callable[[Tensor, Tensor], Tensor]

    def forward(self, features: Tensor) -> Tensor:
        assert self.start is not None
        z: Tensor = self.norm(F.linear(features, self.linear.weight, self.linear.bias))
        return type(self).formula(self.start, z.squeeze(1))


class _Offset(_Formula):
    """An offset in the exponent alone."""

    formula = staticmethod(lambda start, z: start * z.exp())


class _Root(_Formula):
    """Between the default and an offset in the exponent."""

    formula = staticmethod(lambda start, z: start * (z / start.sqrt()).exp())


class _Added(_Formula):
    """The paper's with s0 - 1 added: grows as it does and cannot fall below s0 - 1."""

    formula = staticmethod(lambda start, z: start - 1 + z.exp())


class _Noise(nn.Module):
    """s = exp(N(0, 1)), drawn anew for every image and step: varied like the paper's at its start, but by chance."""

    def forward(self, features: Tensor) -> Tensor:
        return torch.randn(features.shape[0]).exp() if self.training else torch.ones(features.shape[0])


def _with_scale(make: Callable[[int, int], nn.Module], in_features: int, num_classes: int) -> Head:
    """Make a cosine head whose scale is another module."""
    head = CosineHead(in_features, num_classes)
    head.scale = make(in_features, num_classes)
    return head


def _frozen(in_features: int, num_classes: int) -> Head:
    """The paper's start with a scale branch that never learns."""
    head = _predicted("none", 1.0)(in_features, num_classes)
    head.scale.requires_grad_(False)
    return head


def _start(kind: str, in_features: int, num_classes: int) -> float | None:
    """Compute s0: from the classes (NormFace), the width or both, or a number; None for the paper's."""
    if kind == "none":
        return None
    if kind == "classes":
        return smallest_sufficient_scale(num_classes)
    if kind in ("width", "root"):
        return math.sqrt(in_features / (3 if kind == "root" else 1))
    return start_from_sizes(in_features, num_classes) if kind == "sizes" else float(kind)


def _predicted(kind: str, gain: float, branch: type[PredictedScale] = PredictedScale) -> Callable[[int, int], Head]:
    return partial(_with_scale, lambda d, c: branch(d, _start(kind, d, c), gain))


HEADS: dict[str, Callable[[int, int], Head]] = {
    "linear": LinearHead,
    "paper": _predicted("none", 1.0),
    "gain 0": _predicted("none", 0.0),
    "gain 0.1": _predicted("none", 0.1),
    "sizes, gain 1": _predicted("sizes", 1.0),
    "sizes, gain 0": _predicted("sizes", 0.0),
    "root, gain 0": _predicted("root", 0.0),
    "sizes, z over root, gain 0": _predicted("sizes", 0.0, _Root),
    "sizes, added, gain 0": _predicted("sizes", 0.0, _Added),
    **{
        f"{kind}, {form}gain {gain:g}": _predicted(kind, gain, branch)
        for kind in ("classes", "width", "4", "8", "10", "12", "16")
        for form, branch in (("tangent, ", PredictedScale), ("", _Offset))
        for gain in (1.0, 0.0)
    },
    "constant 1": partial(CosineHead, scale=1.0),
    "constant 6.1": partial(CosineHead, scale=6.1),
    "constant 16": partial(CosineHead, scale=16.0),
    "learned": partial(CosineHead, scale="learned"),
    "paper, detached": _predicted("none", 1.0, _Detached),
    "paper, frozen": _frozen,
    "noise": partial(_with_scale, lambda _d, _c: _Noise()),
}
"""By what they start from: "tangent" is s0 exp(z / s0), else s0 exp(z); the gain is that of z's batch normalisation."""


def fit(task: Task, network: Classifier, optimiser: str, seed: int, epochs: int, constant: bool) -> list[float]:
    """Train as an ordinary loop does and return the losses of all steps."""
    x, y = task.train
    order = torch.Generator().manual_seed(seed)
    steps = epochs * (len(x) // task.batch)
    made = OPTIMISERS[optimiser](network.parameter_groups(DECAY[optimiser.split()[0]]))
    rate = torch.optim.lr_scheduler.LambdaLR(made, lambda step: 1.0 if constant else 1 - step / steps)
    losses = []
    network.train()
    for _ in range(epochs):
        for indices in torch.randperm(len(x), generator=order).split(task.batch):
            if len(indices) < task.batch:
                continue
            images = x[indices]
            if task.flip:
                mirrored = torch.rand(len(indices), generator=order) < 0.5
                images = torch.where(mirrored.view(-1, 1, 1, 1), images.flip(3), images)
            loss = F.cross_entropy(network(images), y[indices])
            made.zero_grad()
            loss.backward()
            made.step()
            rate.step()
            losses.append(loss.item())
    return losses


@torch.no_grad()
def judge(task: Task, network: Classifier) -> dict[str, Any]:
    """Measure test accuracy and, where the head has a cosine, the AUROC of two scores on the development OOD sets."""
    network.eval()

    def outputs(inputs: Tensor) -> tuple[Tensor, ...]:
        parts = [network.outputs(part) for part in inputs.split(500)]
        none = torch.zeros(0)
        fields = ("features", "logits", "cosine", "scale")
        return tuple(torch.cat([none if (v := getattr(p, f)) is None else v for p in parts]) for f in fields)

    features, logits, cosine, scale = outputs(task.test[0])
    found: dict[str, Any] = {"accuracy": 100 * float((logits.argmax(1) == task.test[1]).float().mean())}
    if not bool(logits.isfinite().all()) or not len(cosine):
        return found | {"finite": bool(logits.isfinite().all())}
    logs = scale.log()
    found |= {"finite": True, "log_s": float(logs.mean()), "log_s_std": float(logs.std())}
    known, labels = outputs(task.train[0])[0], task.train[1]
    means = torch.stack([known[labels == c].mean(0) for c in range(task.num_classes)])
    axes = F.normalize(means, dim=1)

    def two(f: Tensor, c: Tensor) -> Tensor:
        return -(c.amax(1) + F.linear(F.normalize(f, dim=1), axes).amax(1)) / 2

    for name, images in task.ood.items():
        f, _, c, _ = outputs(images)
        found[f"cosine/{name}"] = 100 * auroc((-cosine.amax(1)).numpy(), (-c.amax(1)).numpy())
        found[f"two/{name}"] = 100 * auroc(two(features, cosine).numpy(), two(f, c).numpy())
    return found


def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    done = {_key(row) for row in _read(options.rows)}
    for name in options.task or TASKS:
        task = load_task(name, options.data, options.features, options.weights)
        epochs = options.epochs or task.epochs
        for seed, optimiser, head in itertools.product(
            options.seeds, options.optimiser or OPTIMISERS, options.head or HEADS
        ):
            row: dict[str, Any] = {"task": name, "optimiser": optimiser, "head": head, "seed": seed, "epochs": epochs}
            row["rate"] = "constant" if options.constant else "falling"
            if _key(row) in done:
                continue
            begun = time.monotonic()
            torch.manual_seed(seed)
            backbone = task.backbone()
            torch.manual_seed(seed)
            network = Classifier(backbone, HEADS[head](task.width, task.num_classes))
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster, nothing else
            losses = fit(task, network, optimiser, seed, epochs, options.constant)
            row |= judge(task, network)
            row["loss"] = statistics.fmean(losses[-20:])
            row["seconds"] = round(time.monotonic() - begun, 2)
            with options.rows.open("a") as file:
                file.write(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}) + "\n")


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[k] for k in ("task", "optimiser", "head", "seed", "epochs", "rate"))


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _difference(mine: dict[int, float], other: dict[int, float]) -> str:
    """Format the mean paired difference with its 95 % interval (Student's t over seeds)."""
    gaps = [mine[seed] - other[seed] for seed in mine if seed in other]
    if len(gaps) < 2:
        return f"{gaps[0]:+.1f}" if gaps else ""
    mean = statistics.fmean(gaps)
    half = student.ppf(0.975, len(gaps) - 1) * statistics.stdev(gaps) / math.sqrt(len(gaps))
    return f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"


def report(options: argparse.Namespace) -> None:
    """Print tables: accuracy less the linear head's for each task, then the AUROC on development OOD sets."""
    rate = "constant" if options.constant else "falling"
    rows = [r for r in _read(options.rows) if r["rate"] == rate and r["seed"] in options.seeds]
    tasks = [t for t in options.task or TASKS if any(r["task"] == t for r in rows)]
    heads = [h for h in options.head or HEADS if any(r["head"] == h for r in rows)]
    optimisers = [o for o in options.optimiser or OPTIMISERS if any(r["optimiser"] == o for r in rows)]

    def some(task: str, optimiser: str, head: str) -> list[dict[str, Any]]:
        return [r for r in rows if (r["task"], r["optimiser"], r["head"]) == (task, optimiser, head)]

    for task in tasks:
        print(f"\n| {task} | {' | '.join(optimisers)} |\n|{'---|' * (len(optimisers) + 1)}")
        for head in heads:
            cells = []
            for optimiser in optimisers:
                linear, mine = ({r["seed"]: r["accuracy"] for r in some(task, optimiser, h)} for h in ("linear", head))
                plain = f"{statistics.fmean(mine.values()):.1f}" if mine else ""
                cells.append(plain if head == "linear" else _difference(mine, linear))
            if any(cells):
                print(f"| {head} | {' | '.join(cells)} |")
    for score in ("cosine", "two"):
        print(
            f"\n| {score} | {' | '.join(f'{t}: SGD | {t}: others' for t in tasks)} |\n|{'---|' * (2 * len(tasks) + 1)}"
        )
        for head in heads:
            cells = []
            for task, sgd in itertools.product(tasks, (True, False)):
                of = [r for o in optimisers if o.startswith("sgd") == sgd for r in some(task, o, head)]
                values = [v for r in of for k, v in r.items() if k.startswith(f"{score}/")]
                cells.append(f"{statistics.fmean(values):.1f}" if values else "")
            if any(cells):
                print(f"| {head} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "report"))
    parser.add_argument("--rows", type=Path, required=True, help="one JSON object a line")
    parser.add_argument("--task", action="append", choices=TASKS)
    parser.add_argument("--optimiser", action="append", choices=OPTIMISERS)
    parser.add_argument("--head", action="append", choices=HEADS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--epochs", type=int, help="another budget than the task's")
    parser.add_argument("--constant", action="store_true", help="a constant learning rate")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--features", type=Path, default=Path("features"))
    parser.add_argument("--weights", type=Path, default=Path("resnet20-12fca82f.th"))
    options = parser.parse_args()
    (run if options.command == "run" else report)(options)


if __name__ == "__main__":
    main()
