"""A training by name: ``train_run`` makes the network of typed settings, trains it and says what came out."""

import ctypes
import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offaxis.errors import ArgumentError
from offaxis.jobs.training_settings import Precision, TrainingRun
from offaxis.progress import counting

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from offaxis.data import ImageSet, Normalise
    from offaxis.deploy.evaluated_network import EvaluatedNetwork
    from offaxis.heads import HeadLike
    from offaxis.networks.classifier import Classifier
    from offaxis.training import Loss, Trained

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of malloc.h
Note = Callable[[str], None]
"""Called with a sentence for the user."""


def train_run(
    run: TrainingRun,
    *,
    out: str | Path,
    resume: bool = False,
    validate: bool = False,
    device: str = "auto",
    devices: int = 1,
    nodes: int = 1,
    sync_bn: bool = False,
    log_every: int | None = None,
    data: Path | None = None,
    cache: bool = False,
    command: Sequence[str] | None = None,
    quiet: bool = False,
    note: Note = lambda _: None,
) -> "Trained":
    """Train a network and write it into a folder.

    Args:
        run: what is trained.
        out: the folder.
        resume: continue the run in ``out``, where there is one.
        validate: measure the accuracy on the set's test images after each epoch.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ... or ``mps``.
        devices: how many of them, or processes on the CPU, on each node.
        nodes: machines.
        sync_bn: batch normalisations take their statistics over all processes.
        log_every: steps between two lines of the log; about ten an epoch if None.
        data: where the catalogue's sets are kept.
        cache: keep the decoded pixels of a folder on disk, for further trainings.
        command: the words that started it, which are recorded.
        quiet: show no progress.
        note: called at the end, in one of the processes.

    Raises:
        OffaxisError: something does not fit together; nothing is written then.
    """
    import torch

    from offaxis.data import PUBLISHED, load_images
    from offaxis.data.catalogue import cache_folder
    from offaxis.data.image_set import list_skipped
    from offaxis.data.load import check_classes, own_classes
    from offaxis.networks.inference import check_takes
    from offaxis.training import train, train_frozen
    from offaxis.training.batches import labels_of
    from offaxis.training.frozen import with_enough_epochs
    from offaxis.training.loop import launch

    run.numbers()  # a wrong number is refused before images are read
    _keep_freed_memory()
    _check_normalise(run)
    _check_frozen(run, devices * nodes, {"--sync-bn": sync_bn, "--log-every": log_every is not None})
    _check_trained(run)
    read = partial(load_images, run.id, root=data, skip_bad=run.skip_bad, holdout=run.holdout, cache=cache)
    classes = own_classes(run.id, skip_bad=run.skip_bad, holdout=run.holdout)
    fabric = _fabric(device, devices, nodes, run.precision)
    if classes is not None:  # a folder: its images take the size of the network
        launch(fabric)
        torch.manual_seed(run.seed)
        opened = _make_network(run, len(classes), 3)
        rule: dict[str, Any] = {"size": run.size or opened.size, "resize": run.resize or opened.resize}
        with counting(quiet):
            images = read("train", **rule)
    else:
        rule = {"size": run.size, "resize": run.resize}
        images = read("train", **rule)
        labels_of(images, "train on")
        launch(fabric)
        torch.manual_seed(run.seed)
        opened = _make_network(run, len(images.classes), images.shape[0])
    recipe = run.numbers(images.shape)
    classifier = single(opened)
    normalise = _normalise(run, opened.normalise or PUBLISHED.get(run.id), images.shape[0])
    check_takes(classifier, images.shape)
    with counting(quiet):
        held_out = _held_out(run, partial(read, "test", **rule), data)
    if held_out is not None:
        check_classes(run.id, held_out, skip_bad=run.skip_bad, holdout=run.holdout)
    if validate and held_out is None:
        raise ArgumentError(
            f"Expected held-out images for --validate but {run.id} has no test images here: keep some of a folder apart, with "
            "--holdout 0.2 or in a folder test/, get those of a set of the catalogue (offaxis data get), or leave --validate "
            "out."
        )
    common: dict[str, Any] = {
        "seed": run.seed,
        "out": out,
        "resume": resume,
        "normalise": normalise,
        "fabric": fabric,
        "quiet": quiet,
        "command": command,
    }
    if run.freeze:
        enough = with_enough_epochs(recipe, len(images) * run.views) if run.overrides.epochs is None else recipe
        trained = train_frozen(
            classifier,
            images,
            enough,
            validation=held_out,
            views=run.views,
            cache=cache_folder() / "features",
            **common,
        )
    else:
        if run.unfreeze is not None:
            classifier.freeze(run.unfreeze)
        try:
            trained = train(
                classifier,
                images,
                recipe,
                validation=held_out if validate else None,
                sync_bn=sync_bn,
                log_every=log_every,
                loss=_loss(run.leave_out, len(images.classes)),
                **common,
            )
        finally:
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()  # else its threads abort the process at exit
    if fabric.is_global_zero:
        left_out = {bad.path: bad for part in (images, held_out) if part is not None for bad in part.skipped}
        note("\n".join([_outcome(run, trained, held_out, out), *list_skipped(list(left_out.values()))]))
    return trained


def _keep_freed_memory() -> None:
    """Let glibc reuse blocks above 32 MB instead of asking the system for each anew.

    The maps of a batch of photographs are as large; a step of EfficientNet-lite0 on the CPU takes a quarter less time so.
    """
    with suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def _check_frozen(run: TrainingRun, processes: int, of_steps: dict[str, bool]) -> None:
    """Refuse what does not go with a frozen backbone; ``of_steps`` are options of a training step by step."""
    if not run.freeze:
        if run.views != 1:
            raise ArgumentError(
                "Expected --views beside --freeze: a network that is trained sees new views each epoch."
            )
        return
    others = {
        "--unfreeze": run.unfreeze is not None,
        "--leave-out": run.leave_out is not None,
        "--precision": run.precision != "32-true",
        "--devices": processes > 1,
        f"--recipe {run.recipe}": run.recipe != "frozen",
        "--decay-head": run.decay_head,
        "--clip": run.overrides.clip is not None,
        **of_steps,
    }
    if run.views == 1:
        augmentation = ("crop", "flip", "min_area", "jitter")
        unused = [f"--{each.replace('_', '-')}" for each in augmentation if getattr(run.overrides, each) is not None]
        if unused:
            raise ArgumentError(
                f"Expected --views of at least 2 beside {', '.join(unused)}: with --freeze the network sees each image once, "
                "as it is, and more views are cropped and flipped."
            )
    if any(others.values()):
        raise ArgumentError(
            f"Expected no {', '.join(name for name, given in others.items() if given)} beside --freeze, which trains the head "
            "alone on features in memory: leave one of them out."
        )


def _check_trained(run: TrainingRun) -> None:
    """Refuse to freeze a backbone whose weights are random."""
    from offaxis.deploy.build import INSTALLED

    if not (run.freeze or run.unfreeze is not None):
        return
    known = (
        run.architecture in INSTALLED or run.architecture.startswith("transformers:") or _is_python(run.architecture)
    )
    if not (known or run.pretrained or run.weights is not None or run.source is not None):
        can = run.architecture.startswith(("timm:", "torchvision:"))
        raise ArgumentError(
            f"Expected a trained network beside --{'freeze' if run.freeze else 'unfreeze'} but {run.architecture} starts with "
            f"random weights, which would stay as they are: add {'--pretrained or ' * can}--weights FILE, or name another one "
            "(--network efficientnet-lite0, --from RUN)."
        )


def _held_out(run: TrainingRun, read: "Callable[[], ImageSet]", root: Path | None) -> "ImageSet | None":
    """Return the images that accuracy is measured on at the end; None where there are none."""
    from offaxis.data import CATALOGUE
    from offaxis.data.catalogue import data_root, known
    from offaxis.data.load import own_splits

    path = Path(run.id).expanduser()
    if run.id in CATALOGUE or not path.exists():
        return read() if "test" in known(run.id).available(data_root(root)) else None
    return read() if run.holdout is not None or {"train", "test"} <= set(own_splits(path)) else None


POOR = 0.6
"""The held-out accuracy below which ``train`` says what usually helps."""


def _outcome(run: TrainingRun, trained: "Trained", held_out: "ImageSet | None", out: str | Path) -> str:
    """Return the sentences that a training ends with; the accuracy on held-out images is logged."""
    last, epochs = trained.history[-1], trained.history[-1]["epoch"]
    lines = [
        f"Trained for {epochs} epoch{'s' * (epochs != 1)}: loss {last['loss']:.3f}, "
        f"training accuracy {last['accuracy']:.2%}. The network is in {out}."
    ]
    if held_out is None:
        lines.append(
            "There are no held-out images: the training accuracy says little about new ones. Keep some of a folder apart, in a "
            "folder test/ or with --holdout 0.2."
        )
        return "\n".join(lines)
    accuracy = last.get("validation_accuracy")
    if accuracy is None:
        accuracy = _accuracy(trained, held_out)
    if trained.folder is not None:
        from offaxis.training.run import RunFolder

        test = {"kind": "test", "step": last["step"], "accuracy": accuracy, "images": len(held_out)}
        RunFolder(trained.folder).log(test)
    lines.append(f"Held-out accuracy: {accuracy:.2%} on {len(held_out):,} images that it was not trained on.")
    if held_out.labels is not None and held_out.classes:
        tested = set(held_out.labels.unique().tolist())
        untested = [name for label, name in enumerate(held_out.classes) if label not in tested]
        if untested:
            lines.append(f"Among them is none of {', '.join(untested[:8])}{', ...' if len(untested) > 8 else ''}.")
    if accuracy < POOR:
        pretrained = run.freeze or run.pretrained or run.weights is not None or run.source is not None
        first = "" if pretrained else "a pretrained network (--network efficientnet-lite0 --freeze), "
        lines.append(
            f"That is poor: its classes, and what it flags, are of little use yet. What usually helps: {first}more images of "
            "each class, classes that can be told apart by eye, and a look at the labels (offaxis data inspect)."
        )
    if run.leave_out is None:
        words = ["offaxis", "bundle", str(out), "--calibrate", run.id, "--out", f"{Path(out).name}.oax"]
        given = trained.record["settings"]["network"] is None and run.architecture != run.source
        words += ["--network", run.architecture] if given else []
        lines.append(f"To calibrate it: {shlex.join(words)}")
    return "\n".join(lines)


def _accuracy(trained: "Trained", images: "ImageSet") -> float:
    """Compute the share of images whose class is predicted."""
    from offaxis.data.sources import as_batches
    from offaxis.networks.inference import stream

    batches = as_batches(images, trained.normalise, 64, labels=True, num_classes=trained.classifier.num_classes)
    hits = sum(int((out.logits.argmax(1) == labels).sum()) for out, labels in stream(trained.classifier, batches))
    return hits / len(images)


def _check_normalise(run: TrainingRun) -> None:
    if (run.mean is None) != (run.std is None):
        raise ArgumentError("Expected both --mean and --std, or neither, but got one of them.")


def _normalise(run: TrainingRun, known: "Normalise | None", channels: int) -> "Normalise | None":
    """Return the mean and std of a run: those that are given, else those that are known."""
    from offaxis.data import Normalise

    if run.mean is None or run.std is None:
        return known
    if len(run.mean) != channels:
        raise ArgumentError(f"Expected --mean and --std for {channels} channels but got {len(run.mean)} numbers.")
    return Normalise(run.mean, run.std)


def _make_network(run: TrainingRun, num_classes: int, in_channels: int) -> "EvaluatedNetwork":
    """Make the network of a run; fresh weights are drawn from torch's global generator.

    A function of a Python file is given the number of classes where it takes it.

    Raises:
        ArgumentError: there is no such network or head, or it does not take what the run describes.
    """
    from offaxis.deploy.open import EvaluatedNetwork, open_network
    from offaxis.networks import by_name

    head = _head(run)
    if run.source is not None:
        if run.dropout:
            raise ArgumentError(f"Expected no --dropout beside --from {run.source}, whose network has its own.")
        return _start_from(run, head, num_classes)
    if not _is_elsewhere(run.architecture):
        if run.pretrained:
            raise ArgumentError(
                f"Expected no --pretrained beside {run.architecture}, which has no published weights: name a file, "
                "--weights FILE, or a network of timm or torchvision."
            )
        if run.weights is None:
            make = by_name(run.architecture)
            made = make(num_classes=num_classes, in_channels=in_channels, dropout=run.dropout, head=head)
            return EvaluatedNetwork(network=made)
    if run.dropout:
        what = (
            f"--network {run.architecture}, which" if run.weights is None else f"--weights {run.weights}, whose network"
        )
        raise ArgumentError(f"Expected no --dropout beside {what} has its own.")
    options: dict[str, Any] = {"num_classes": num_classes, "in_channels": in_channels, "weights": run.weights}
    unspecified = run.head == "cosine" and not any(x is not None for x in (run.scale, run.hidden, run.tau, run.start))
    if not (_is_python(run.architecture) and unspecified):  # a function may have a head of its own
        options["head"] = head
    return open_network(run.architecture, pretrained=run.pretrained, **options)


def _start_from(run: TrainingRun, head: "HeadLike", num_classes: int) -> "EvaluatedNetwork":
    """Open the trained network of a run and give its backbone a new head."""
    from dataclasses import replace

    from offaxis.deploy.open import open_network
    from offaxis.heads import make_head
    from offaxis.jobs.evaluation import open_runs
    from offaxis.networks.classifier import Classifier

    assert run.source is not None
    function = None if run.architecture == run.source else run.architecture
    (source,) = open_runs([run.source], function)
    opened = open_network(source, weights=run.weights, pretrained=run.pretrained)
    old = single(opened)
    made = Classifier(old.backbone, make_head(head, old.head.in_features, num_classes), old.layers, origin=old.origin)
    made.builder = old.builder
    return replace(opened, network=made.train(), classes=(), label="", head={})


def _is_python(architecture: str) -> bool:
    return re.fullmatch(r".+\.py(:\w+)?", architecture) is not None


def _is_elsewhere(architecture: str) -> bool:
    """Return whether a network is not one of offaxis.networks, by its name's form."""
    from offaxis.deploy.build import INSTALLED

    return ":" in architecture or architecture in INSTALLED or _is_python(architecture)


def single(opened: "EvaluatedNetwork") -> "Classifier":
    """Return the network that must be a single Classifier."""
    from offaxis.networks.classifier import Classifier

    if not isinstance(opened.network, Classifier):
        raise ArgumentError(f"Expected one Classifier but {opened.origin} is a {type(opened.network).__name__}.")
    return opened.network


def _head(run: TrainingRun) -> "HeadLike":
    """Return the head that a run describes."""
    from offaxis.heads import HEADS, Head

    name, options = run.head, run.head_arguments
    if not options or name not in HEADS:
        return name  # an unknown name is refused where the head is made
    make = partial(HEADS[name], **options)

    def head(in_features: int, num_classes: int) -> Head:
        try:
            return make(in_features, num_classes)
        except TypeError:
            unknown = [f"--{option}" for option in options if option not in signature(HEADS[name]).parameters]
            raise ArgumentError(f"The head {name!r} takes no {' and no '.join(unknown)}.") from None

    return head


def _loss(leave_out: tuple[int, int] | None, num_classes: int) -> "Loss":
    """Return cross-entropy, or the loss of one network of a leave-out ensemble, whose folds are always the same."""
    from offaxis.training import cross_entropy

    if leave_out is None:
        return cross_entropy
    from offaxis.training.leave_out import MarginEntropyLoss

    return MarginEntropyLoss.for_fold(*leave_out, num_classes)


def _fabric(device: str, devices: int, nodes: int, precision: Precision) -> "Fabric":
    """Return the device, processes and arithmetic of a training, where this machine has them."""
    from lightning_fabric import Fabric

    from offaxis.networks.inference import check_bfloat16, resolve_device
    from offaxis.training.loop import device_numbers

    chosen = resolve_device(device)
    if precision.startswith("bf16"):
        check_bfloat16(chosen)
    several = devices * nodes > 1
    try:
        return Fabric(
            accelerator=chosen.type,
            devices=devices if several else device_numbers(chosen),
            num_nodes=nodes,
            precision=precision,
            strategy="ddp" if several else "auto",
        )
    except (RuntimeError, ValueError, TypeError, ImportError) as error:
        raise ArgumentError(
            f"Expected --device, --devices and --precision to be what this machine has but got {device}, {devices} and "
            f"{precision}: {' '.join(str(error).split())} Try --device auto --devices 1."
        ) from error
