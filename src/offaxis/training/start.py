"""A training by its options, as ``offaxis train`` and reproductions start it: images and network by name -> a run."""

import re
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from offaxis.data import CATALOGUE, PUBLISHED, ImageSet, Normalise, load_images
from offaxis.data.adapt import as_batches
from offaxis.data.catalogue import cache_folder, data_root, known
from offaxis.data.images import list_skipped
from offaxis.data.load import check_classes, own_classes, own_splits
from offaxis.errors import ArgumentError
from offaxis.heads import HEADS, Head, HeadLike, make_head
from offaxis.heads.batch_norm import synchronise
from offaxis.networks import by_name
from offaxis.networks.classifier import Classifier
from offaxis.networks.library import INSTALLED
from offaxis.networks.open import open_network, open_runs
from offaxis.networks.opened import OpenedNetwork
from offaxis.networks.run import accuracy, check_takes, resolve_device
from offaxis.options import TrainOptions
from offaxis.progress import counting
from offaxis.training.batches import labels_of
from offaxis.training.frozen import train_frozen, with_enough_epochs
from offaxis.training.leave_out import MarginEntropyLoss
from offaxis.training.loop import device_numbers, launch, train
from offaxis.training.recipe import recipe_of, usual_recipe
from offaxis.training.record import RunFolder, Trained
from offaxis.training.step import Loss, cross_entropy

Note = Callable[[str], None]
"""Called with a sentence for the user."""
POOR = 0.6
"""The held-out accuracy below which a training says what usually helps."""


def train_by_options(
    options: TrainOptions, command: Sequence[str] | None = None, note: Note = lambda _: None
) -> Trained:
    """Train the network that options describe and write it into their folder.

    Args:
        options: what is trained, on what, and where it is written.
        command: the words that started it, which are recorded.
        note: called at the end, in one of the processes, with what came out.

    Raises:
        OffaxisError: something does not fit together; nothing is written then.
    """
    if options.out is None:
        raise ArgumentError("Expected a folder for the trained network (--out).")
    recipe_of(options)  # a wrong number is refused before images are read
    _check_frozen(options)
    _check_trained(options)
    fabric = _fabric(options)
    images, opened = _open(options, fabric)
    classifier = single(opened)
    check_takes(classifier, images.shape)
    rule = {"size": options.size or opened.size, "resize": options.resize or opened.resize}
    with counting(options.quiet):
        held_out = _held_out(options, rule)
    if options.validate and held_out is None:
        raise ArgumentError(
            f"Expected held-out images for --validate but {options.id} has no test images here: keep some of a folder apart, "
            "with --holdout 0.2 or in a folder test/, get those of a set of the catalogue (offaxis data get), or leave "
            "--validate out."
        )
    if options.unfreeze is not None:
        classifier.freeze(options.unfreeze)
    recipe = recipe_of(options, images.shape, "frozen" if options.freeze else usual_recipe(classifier))
    common: dict[str, Any] = {
        "seed": options.seed,
        "out": RunFolder(options.out, command=command, options=options),
        "resume": options.resume,
        "normalise": _normalise(options, opened, images.shape[0]),
        "device": fabric,
        "quiet": options.quiet,
    }
    if options.freeze:
        enough = with_enough_epochs(recipe, len(images) * options.views) if options.epochs is None else recipe
        cache = cache_folder() / "features"
        trained = train_frozen(
            classifier, images, enough, validation=held_out, views=options.views, cache=cache, **common
        )
    else:
        if options.sync_bn:
            synchronise(classifier.backbone)
        loss = _loss(options.leave_out, len(images.classes))
        validation = held_out if options.validate else None
        try:
            trained = train(classifier, images, recipe, validation=validation, loss=loss, **common)
        finally:
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()  # else its threads abort the process at exit
    if fabric.is_global_zero:
        left_out = {bad.path: bad for part in (images, held_out) if part is not None for bad in part.skipped}
        note("\n".join([_outcome(options, trained, held_out), *list_skipped(list(left_out.values()))]))
    return trained


def _open(options: TrainOptions, fabric: Fabric) -> tuple[ImageSet, OpenedNetwork]:
    """Return the training images and the network; images of a folder take the size of the network."""
    read = partial(_read, options, "train")
    classes = own_classes(options.id, skip_bad=options.skip_bad, holdout=options.holdout)
    if classes is None:
        images = read({"size": options.size, "resize": options.resize})
        labels_of(images, "train on")
    launch(fabric)
    torch.manual_seed(options.seed)
    if classes is None:
        return images, _make_network(options, len(images.classes), images.shape[0])
    opened = _make_network(options, len(classes), 3)
    with counting(options.quiet):
        rule = {"size": options.size or opened.size, "resize": options.resize or opened.resize}
        return read(rule), opened


def _read(options: TrainOptions, split: Any, rule: dict[str, Any]) -> ImageSet:
    where: dict[str, Any] = {
        "root": options.data,
        "skip_bad": options.skip_bad,
        "holdout": options.holdout,
        "cache": options.cache,
    }
    return load_images(options.id, split, **where, **rule)


def _check_frozen(options: TrainOptions) -> None:
    """Refuse what does not go with a frozen backbone."""
    if not options.freeze:
        if options.views != 1:
            raise ArgumentError(
                "Expected --views beside --freeze: a network that is trained sees new views each epoch."
            )
        return
    if options.views == 1:
        unused = [
            f"--{name.replace('_', '-')}"
            for name in ("crop", "flip", "min_area", "jitter")
            if getattr(options, name) is not None
        ]
        if unused:
            raise ArgumentError(
                f"Expected --views of at least 2 beside {', '.join(unused)}: with --freeze the network sees each image once, "
                "as it is, and more views are cropped and flipped."
            )
    others = {
        "--unfreeze": options.unfreeze is not None,
        "--leave-out": options.leave_out is not None,
        "--precision": options.precision != "32-true",
        "--devices": options.devices * options.nodes > 1,
        f"--recipe {options.recipe}": options.recipe not in (None, "frozen"),
        "--decay-head": options.decay_head,
        "--clip": options.clip is not None,
        "--sync-bn": options.sync_bn,
        "--log-every": options.log_every is not None,
    }
    if any(others.values()):
        raise ArgumentError(
            f"Expected no {', '.join(name for name, given in others.items() if given)} beside --freeze, which trains the head "
            "alone on features in memory: leave one of them out."
        )


def _check_trained(options: TrainOptions) -> None:
    """Refuse to freeze a backbone whose weights are random."""
    if not (options.freeze or options.unfreeze is not None):
        return
    name = options.architecture
    trained = name in INSTALLED or name.startswith("transformers:") or _is_python(name)
    if not (trained or options.pretrained or options.weights is not None or options.source is not None):
        can = name.startswith(("timm:", "torchvision:"))
        raise ArgumentError(
            f"Expected a trained network beside --{'freeze' if options.freeze else 'unfreeze'} but {name} starts with "
            f"random weights, which would stay as they are: add {'--pretrained or ' * can}--weights FILE, or name another one "
            "(--network efficientnet-lite0, --from RUN)."
        )


def _held_out(options: TrainOptions, rule: dict[str, Any]) -> ImageSet | None:
    """Return the images that accuracy is measured on at the end; None where there are none."""
    path = Path(options.id).expanduser()
    if options.id in CATALOGUE or not path.exists():
        there = "test" in known(options.id).available(data_root(options.data))
    else:
        there = options.holdout is not None or {"train", "test"} <= set(own_splits(path))
    if not there:
        return None
    images = _read(options, "test", rule)
    check_classes(options.id, images, skip_bad=options.skip_bad, holdout=options.holdout)
    return images


def _outcome(options: TrainOptions, trained: Trained, held_out: ImageSet | None) -> str:
    """Return the sentences that a training ends with; the accuracy on held-out images is logged."""
    last, epochs = trained.history[-1], trained.history[-1]["epoch"]
    lines = [
        f"Trained for {epochs} epoch{'s' * (epochs != 1)}: loss {last['loss']:.3f}, "
        f"training accuracy {last['accuracy']:.2%}. The network is in {options.out}."
    ]
    if held_out is None:
        lines.append(
            "There are no held-out images: the training accuracy says little about new ones. Keep some of a folder apart, in a "
            "folder test/ or with --holdout 0.2."
        )
        return "\n".join(lines)
    share = last.get("validation_accuracy")
    if share is None:
        network, normalise = trained.classifier, trained.normalise
        share = accuracy(network, as_batches(held_out, normalise, 64, labels=True, num_classes=network.num_classes))
    if trained.folder is not None:
        test = {"kind": "test", "step": last["step"], "accuracy": share, "images": len(held_out)}
        RunFolder(trained.folder).log(test)
    lines.append(f"Held-out accuracy: {share:.2%} on {len(held_out):,} images that it was not trained on.")
    if held_out.labels is not None and held_out.classes:
        tested = set(held_out.labels.unique().tolist())
        untested = [name for label, name in enumerate(held_out.classes) if label not in tested]
        if untested:
            lines.append(f"Among them is none of {', '.join(untested[:8])}{', ...' if len(untested) > 8 else ''}.")
    if share < POOR:
        pretrained = options.freeze or options.pretrained or options.weights is not None or options.source is not None
        first = "" if pretrained else "a pretrained network (--network efficientnet-lite0 --freeze), "
        lines.append(
            f"That is poor: its classes, and what it flags, are of little use yet. What usually helps: {first}more images of "
            "each class, classes that can be told apart by eye, and a look at the labels (offaxis data inspect)."
        )
    if options.leave_out is None:
        out = str(options.out)
        words = ["offaxis", "bundle", out, "--calibrate", options.id, "--out", f"{Path(out).name}.oax"]
        given = trained.record["settings"]["network"] is None and options.architecture != options.source
        words += ["--network", options.architecture] if given else []
        lines.append(f"To calibrate it: {shlex.join(words)}")
    return "\n".join(lines)


def _normalise(options: TrainOptions, opened: OpenedNetwork, channels: int) -> Normalise | None:
    """Return the mean and std of a training: those that are given, else those that are known."""
    if options.mean is None or options.std is None:
        return opened.normalise or PUBLISHED.get(options.id)
    if len(options.mean) != channels:
        raise ArgumentError(f"Expected --mean and --std for {channels} channels but got {len(options.mean)} numbers.")
    return Normalise(options.mean, options.std)


# the network ----------------------------------------------------------------------------------------------------------


def _make_network(options: TrainOptions, num_classes: int, in_channels: int) -> OpenedNetwork:
    """Make the network of a training; fresh weights are drawn from torch's global generator.

    A function of a Python file is given the number of classes where it takes it.

    Raises:
        ArgumentError: there is no such network or head, or it does not take what the options describe.
    """
    head, name = _head(options), options.architecture
    if options.source is not None:
        if options.dropout:
            raise ArgumentError(f"Expected no --dropout beside --from {options.source}, whose network has its own.")
        return _start_from(options, head, num_classes)
    elsewhere = ":" in name or name in INSTALLED or _is_python(name)
    if not elsewhere:
        if options.pretrained:
            raise ArgumentError(
                f"Expected no --pretrained beside {name}, which has no published weights: name a file, --weights FILE, or a "
                "network of timm or torchvision."
            )
        if options.weights is None:
            sizes = {"num_classes": num_classes, "in_channels": in_channels, "dropout": options.dropout}
            return OpenedNetwork(network=by_name(name)(head=head, **sizes))
    if options.dropout:
        what = f"--network {name}, which" if elsewhere else f"--weights {options.weights}, whose network"
        raise ArgumentError(f"Expected no --dropout beside {what} has its own.")
    given: dict[str, Any] = {"num_classes": num_classes, "in_channels": in_channels, "weights": options.weights}
    own = (options.scale, options.hidden, options.tau, options.start)
    if not (
        _is_python(name) and options.head == "cosine" and own == (None,) * 4
    ):  # a function may have a head of its own
        given["head"] = head
    return open_network(name, pretrained=options.pretrained, **given)


def _start_from(options: TrainOptions, head: HeadLike, num_classes: int) -> OpenedNetwork:
    """Open the trained network of a run and give its backbone a new head."""
    from dataclasses import replace

    assert options.source is not None
    (source,) = open_runs([options.source], options.network)
    opened = open_network(source, weights=options.weights, pretrained=options.pretrained)
    old = single(opened)
    made = Classifier(old.backbone, make_head(head, old.head.in_features, num_classes), old.layers, origin=old.origin)
    made.builder = old.builder
    return replace(opened, network=made.train(), classes=(), label="", head={})


def _is_python(architecture: str) -> bool:
    return re.fullmatch(r".+\.py(:\w+)?", architecture) is not None


def single(opened: OpenedNetwork) -> Classifier:
    """Return the network that must be a single Classifier."""
    if not isinstance(opened.network, Classifier):
        raise ArgumentError(f"Expected one Classifier but {opened.origin} is a {type(opened.network).__name__}.")
    return opened.network


def head_arguments(options: TrainOptions) -> dict[str, str | float]:
    """Return the head's arguments that are not its defaults; some recipes start a cosine head as the paper does."""
    trained = options.pretrained or options.freeze or any((options.weights, options.source, options.unfreeze))
    as_in_paper = (options.recipe or "").startswith("paper-") or (options.recipe == "short" and not trained)
    start = "paper" if options.head == "cosine" and as_in_paper else None
    given = {
        "scale": options.scale,
        "hidden": options.hidden,
        "tau": options.tau,
        "start": options.start or start,
    }
    return {name: value for name, value in given.items() if value is not None}


def _head(options: TrainOptions) -> HeadLike:
    """Return the head that options describe."""
    name, arguments = options.head, head_arguments(options)
    if not arguments or name not in HEADS:
        return name  # an unknown name is refused where the head is made
    make = partial(HEADS[name], **arguments)

    def head(in_features: int, num_classes: int) -> Head:
        try:
            return make(in_features, num_classes)
        except TypeError:
            unknown = [f"--{option}" for option in arguments if option not in signature(HEADS[name]).parameters]
            raise ArgumentError(f"The head {name!r} takes no {' and no '.join(unknown)}.") from None

    return head


def _loss(leave_out: tuple[int, int] | None, num_classes: int) -> Loss:
    """Return cross-entropy, or the loss of one network of a leave-out ensemble, whose folds are always the same."""
    return cross_entropy if leave_out is None else MarginEntropyLoss.for_fold(*leave_out, num_classes)


def _fabric(options: TrainOptions) -> Fabric:
    """Return the device, processes and arithmetic of a training, where this machine has them."""
    chosen = resolve_device(options.device)
    several = options.devices * options.nodes > 1
    try:
        return Fabric(
            accelerator=chosen.type,
            devices=options.devices if several else device_numbers(chosen),
            num_nodes=options.nodes,
            precision=options.precision,
            strategy="ddp" if several else "auto",
        )
    except (RuntimeError, ValueError, TypeError, ImportError) as error:
        raise ArgumentError(
            f"Expected --device, --devices and --precision to be what this machine has but got {options.device}, "
            f"{options.devices} and {options.precision}: {' '.join(str(error).split())} Try --device auto --devices 1."
        ) from error
