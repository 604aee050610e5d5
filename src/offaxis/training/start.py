"""A training by its options, as ``offaxis train`` and reproductions start it: images and network by name -> a run."""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from offaxis.data import CATALOGUE, PUBLISHED, ImageSet, Normalise, load_images
from offaxis.data.adapt import as_batches, check_labels_in_range
from offaxis.data.catalogue import cache_folder, data_root, known
from offaxis.data.images import drop_copies, image_hashes, list_skipped
from offaxis.data.inspection import near_copies
from offaxis.data.load import own_classes, own_splits
from offaxis.errors import ArgumentError
from offaxis.heads import make_head
from offaxis.heads.base import find_head
from offaxis.heads.batch_norm import synchronise
from offaxis.networks import by_name
from offaxis.networks.classifier import Classifier
from offaxis.networks.library import INSTALLED
from offaxis.networks.open import open_network, open_runs
from offaxis.networks.opened import OpenedNetwork
from offaxis.networks.run import accuracy, check_takes
from offaxis.options import TrainOptions, flag_of
from offaxis.progress import counting, print_note
from offaxis.training.features import train_frozen, with_enough_epochs
from offaxis.training.labels import few_images, label_report
from offaxis.training.leave_out import MarginEntropyLoss
from offaxis.training.loop import cross_entropy, fabric_on, launch, train
from offaxis.training.recipe import recipe_of, usual_recipe
from offaxis.training.record import RunFolder, Trained, single

Note = Callable[[str], None]
"""Called with a sentence for the user."""
MOST_NEAR = 10
POOR = 0.6
"""The held-out accuracy below which a training says what usually helps."""
_AUGMENTS = ("crop", "flip", "min_area", "jitter")


def train_by_options(options: TrainOptions, command: Sequence[str] | None = None, note: Note = print_note) -> Trained:
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
    fabric = fabric_on(options.device, options.devices, options.nodes, options.precision)
    images, opened, held_out = _open(options, fabric)
    classifier = single(opened)
    check_takes(classifier, images.shape)
    if options.unfreeze is not None:
        classifier.freeze(options.unfreeze)
    recipe = recipe_of(options, images.shape, "frozen" if options.freeze else usual_recipe(classifier))
    run: dict[str, Any] = {
        "seed": options.seed,
        "out": RunFolder(options.out, command=command, options=options),
        "resume": options.resume,
        "normalise": _normalise(options, opened, images.shape[0]),
        "validation": held_out if options.validate or options.freeze else None,
        "device": fabric,
        "quiet": options.quiet,
    }
    kept = cache_folder() / "features"
    if options.freeze:
        recipe = with_enough_epochs(recipe, len(images) * options.views) if options.epochs is None else recipe
        trained = train_frozen(classifier, images, recipe, views=options.views, cache=kept, **run)
    else:
        if options.sync_bn:
            synchronise(classifier.backbone)
        fold = options.leave_out
        loss = cross_entropy if fold is None else MarginEntropyLoss.for_fold(*fold, len(images.classes))
        try:
            trained = train(classifier, images, recipe, loss=loss, **run)
        finally:
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()  # else its threads abort the process at exit
    if fabric.is_global_zero:
        left_out = {bad.path: bad for part in (images, held_out) if part is not None for bad in part.skipped}
        lines = [*list_skipped(list(left_out.values())), *(_near(images, held_out) if held_out is not None else ())]
        if options.freeze and images.classes:
            assert trained.normalise is not None  # as there is no DataLoader
            lines += label_report(classifier, images, held_out, trained.normalise, kept, options.out)
        elif images.path is not None:
            lines += few_images(images)
        note("\n".join([_outcome(options, trained, held_out), *lines]))
    return trained


def _open(options: TrainOptions, fabric: Fabric) -> tuple[ImageSet, OpenedNetwork, ImageSet | None]:
    """Return the training images, the network and the test images; images of a folder take the size of the network."""
    own: dict[str, Any] = {"skip_bad": options.skip_bad, "holdout": options.holdout}
    read: Callable[..., ImageSet] = partial(load_images, options.id, root=options.data, **own)
    classes = own_classes(options.id, **own)
    if classes is None:
        images = read("train", size=options.size, resize=options.resize)
        check_labels_in_range(images.labels, None, images.name)
    launch(fabric)
    torch.manual_seed(options.seed)
    opened = _new_network(options, *((len(images.classes), images.shape[0]) if classes is None else (len(classes), 3)))
    rule: dict[str, Any] = {"size": options.size or opened.size, "resize": options.resize or opened.resize}
    with counting(options.quiet):
        images = images if classes is None else read("train", **rule)
        held_out = read("test", **rule) if _has_test_images(options) else None
        if held_out is not None and images.path is not None:
            held_out = _without_copies(images, held_out)
    if held_out is not None and held_out.labels is None:
        own_classes(options.id, "test", **own)
    elif held_out is None and options.validate:
        raise ArgumentError(
            f"Expected held-out images for --validate but {options.id} has no test images here: keep some of a folder apart, "
            "with --holdout 0.2 or in a folder test/, get those of a set of the catalogue (offaxis data get), or leave "
            "--validate out."
        )
    return images, opened, held_out


def _without_copies(images: ImageSet, held_out: ImageSet) -> ImageSet:
    """Return the test images of a folder that are not among its training images; the record of these says that it was done."""
    rest = drop_copies(held_out, image_hashes(images))
    if rest is not held_out:
        images.options = {**images.options, "drop_duplicates": True}
    return rest


def _near(images: ImageSet, held_out: ImageSet) -> list[str]:
    """Return a line for the first test photographs of a folder that are nearly the same as training photographs."""
    pairs = near_copies(held_out, images) if images.path is not None else ()
    shown = [f"  {held_out.called(pair.first)} and {images.called(pair.second)}" for pair in pairs[:MOST_NEAR]]
    more = [f"  and {len(pairs) - MOST_NEAR:,} more"] if len(pairs) > MOST_NEAR else []
    head = (
        f"Test images that are nearly the same as a training image, and make the accuracy look better: {len(pairs):,}."
    )
    return [head, *shown, *more] if pairs else []


def _has_test_images(options: TrainOptions) -> bool:
    path = Path(options.id).expanduser()
    if options.id in CATALOGUE or not path.exists():
        return "test" in known(options.id).available(data_root(options.data))
    return options.holdout is not None or {"train", "test"} <= set(own_splits(path))


def _check_frozen(options: TrainOptions) -> None:
    """Refuse what does not go with a frozen backbone, and a frozen backbone whose weights are random."""
    given = {each.name: flag_of(each) for each in fields(options) if getattr(options, each.name) != each.default}
    if options.freeze:
        others = [flag_of(each) for each in fields(options) if each.metadata.get("backbone") and each.name in given]
        others += [f"--recipe {options.recipe}"] if options.recipe not in (None, "frozen") else []
        if others:
            raise ArgumentError(
                f"Expected no {', '.join(others)} beside --freeze, which trains the head alone on features in memory: leave "
                "one of them out."
            )
        unused = [given[name] for name in _AUGMENTS if name in given]
        if unused and options.views == 1:
            raise ArgumentError(
                f"Expected --views of at least 2 beside {', '.join(unused)}: with --freeze the network sees each image once, "
                "as it is, and more views are cropped and flipped."
            )
    elif options.views != 1:
        raise ArgumentError("Expected --views beside --freeze: a network that is trained sees new views each epoch.")
    name, frozen = options.architecture, [word for word in ("freeze", "unfreeze") if word in given]
    trained = name in INSTALLED or name.startswith("transformers:") or _is_python(name)
    if frozen and not (trained or given.keys() & {"pretrained", "weights", "source"}):
        can = name.startswith(("timm:", "torchvision:"))
        raise ArgumentError(
            f"Expected a trained network beside --{frozen[0]} but {name} starts with random weights, which would stay as they "
            f"are: add {'--pretrained or ' * can}--weights FILE, or name another one (--network efficientnet-lite0, --from "
            "RUN)."
        )


def _outcome(options: TrainOptions, trained: Trained, held_out: ImageSet | None) -> str:
    """Return the sentences that a training ends with; the accuracy on held-out images is logged."""
    last, epochs = trained.history[-1], trained.history[-1]["epoch"]
    done = f"The network is in {options.out}, trained for {epochs} epoch{'s' * (epochs != 1)}: loss {last['loss']:.3f}"
    done += f", training accuracy {last['accuracy']:.2%}."
    if held_out is None:
        return (
            "There are no held-out images: the training accuracy says little about new ones. Keep some of a folder apart, in a "
            f"folder test/ or with --holdout 0.2.\n{done}"
        )
    share = last.get("validation_accuracy")
    if share is None:
        network, normalise = trained.classifier, trained.normalise
        share = accuracy(network, as_batches(held_out, normalise, 64, labels=True, num_classes=network.num_classes))
    if trained.folder is not None:
        test = {"kind": "test", "step": last["step"], "accuracy": share, "images": len(held_out)}
        RunFolder(trained.folder).log(test)
    lines = [f"Held-out accuracy: {share:.2%} on {len(held_out):,} images that it was not trained on."]
    if held_out.labels is not None and held_out.classes:
        tested = set(held_out.labels.unique().tolist())
        untested = [name for label, name in enumerate(held_out.classes) if label not in tested]
        if untested:
            lines.append(f"Among them is none of {', '.join(untested[:8])}{', ...' if len(untested) > 8 else ''}.")
    lines.append(done)
    if share < POOR:
        pretrained = options.freeze or options.pretrained or options.weights or options.source
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


def _new_network(options: TrainOptions, num_classes: int, in_channels: int) -> OpenedNetwork:
    """Make the network of a training; fresh weights are drawn from torch's global generator.

    A function of a Python file is given the number of classes where it takes it.

    Raises:
        ArgumentError: there is no such network or head, or it does not take what the options describe.
    """
    head, name = _head_maker(options), options.architecture
    ours = not (":" in name or name in INSTALLED or _is_python(name))
    fresh = ours and options.source is None and options.weights is None
    if options.dropout and not fresh:
        raise ArgumentError(f"Expected no --dropout beside --from, --weights or --network {name}, which has its own.")
    if options.source is not None:
        (source,) = open_runs([options.source], options.network)
        opened = open_network(source, weights=options.weights, pretrained=options.pretrained)
        old = single(opened)
        made = Classifier(
            old.backbone, make_head(head, old.head.in_features, num_classes), old.layers, origin=old.origin
        )
        made.builder, made.replaced = old.builder, old.replaced
        return replace(opened, network=made.train(), classes=(), label="", head={})
    if ours and options.pretrained:
        raise ArgumentError(
            f"Expected no --pretrained beside {name}, which has no published weights: name a file, --weights FILE, or a "
            "network of timm or torchvision."
        )
    if fresh:
        sizes = {"num_classes": num_classes, "in_channels": in_channels, "dropout": options.dropout}
        return OpenedNetwork(network=by_name(name)(head=head, **sizes))
    own_head = _is_python(name) and head == "cosine"  # a function may have a head of its own
    return open_network(
        name,
        pretrained=options.pretrained,
        num_classes=num_classes,
        in_channels=in_channels,
        weights=options.weights,
        head=None if own_head else head,
    )


def _is_python(architecture: str) -> bool:
    return re.fullmatch(r".+\.py(:\w+)?", architecture) is not None


def head_arguments(options: TrainOptions) -> dict[str, str | float]:
    """Return the head's arguments that are not its defaults; some recipes start a cosine head as the paper does."""
    trained = options.pretrained or options.freeze or any((options.weights, options.source, options.unfreeze))
    as_in_paper = (options.recipe or "").startswith("paper-") or (options.recipe == "short" and not trained)
    start = "paper" if options.head == "cosine" and as_in_paper else None
    given = {name: getattr(options, name) for name in ("scale", "hidden", "tau", "margin")}
    given["start"] = options.start or start
    return {name: value for name, value in given.items() if value is not None}


def _head_maker(options: TrainOptions) -> Any:
    """Return the head that options describe."""
    name, arguments = options.head, head_arguments(options)
    if name == "keep":
        return name
    make = find_head(name)
    unknown = [f"--{option}" for option in arguments if option not in signature(make).parameters]
    if unknown:
        raise ArgumentError(f"The head {name!r} takes no {' and no '.join(unknown)}.")
    return partial(make, **arguments) if arguments else name
