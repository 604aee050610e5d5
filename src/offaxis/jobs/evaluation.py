"""An evaluation by name: what it depends on as typed settings, and the function that runs it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from offaxis.errors import ArgumentError
from offaxis.jobs.training import Note, single

if TYPE_CHECKING:
    from offaxis.data import ImageSet
    from offaxis.deploy.evaluated_network import EvaluatedNetwork
    from offaxis.deploy.model import Model
    from offaxis.deploy.open import NetworkSource
    from offaxis.evaluation import Result
    from offaxis.training import Trained

ProtocolName = Literal["one-vs-one", "less-biased", "both"]
Kind = Literal["single", "ensemble", "paired", "leave-out"]


@dataclass(frozen=True, kw_only=True)
class EvaluationRun:
    """What the results of an evaluation depend on.

    Attributes:
        networks: each anything that ``open_network`` takes.
        network: ``file.py:function`` that makes the network of training runs, where they cannot be opened without.
        weights: a file of weights for the network, where it is one by name; None for its own.
        id: the ID set; None for the one that the network was trained on.
        ood: names of sets, folders, or pools out of ``offaxis.evaluation.POOLS``.
        detectors: names, perhaps with arguments as in ``knn:k=10``, or families such as ``native``.
        protocol: how detectors are tuned on OOD images.
        tune: report detectors that have a grid tuned too, beside their published values.
        kind: the networks each by itself (``"single"``), or combined into one.
        label: what tables call the networks; None for architecture and head.
        images: at most so many images of each OOD and ID test set; None for all.
        fit_images: at most so many training images to fit detectors on; None for all.
        validation: images of each set that tuning may see; None for the default.
        batch_size: images at a time; None for the default.
    """

    networks: tuple[str, ...]
    network: str | None = None
    weights: str | None = None
    id: str | None = None
    ood: tuple[str, ...] = ("here",)
    detectors: tuple[str, ...] = ("native",)
    protocol: ProtocolName = "one-vs-one"
    tune: bool = True
    kind: Kind = "single"
    label: str | None = None
    images: int | None = None
    fit_images: int | None = None
    validation: int | None = None
    batch_size: int | None = None


def evaluate_run(
    run: EvaluationRun,
    *,
    out: Path,
    device: str = "auto",
    data: Path | None = None,
    command: Sequence[str] | None = None,
    quiet: bool = False,
    note: Note = lambda _: None,
) -> "list[Result]":
    """Evaluate networks and write the results into a store; what is in it already is not computed again.

    Args:
        run: what is evaluated.
        out: the results store.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ... or ``mps``.
        data: where the catalogue's sets are kept.
        command: the words that started it, which are recorded.
        quiet: show no progress.
        note: called with what is left out, and why.

    Returns:
        The results of these networks, sets and detectors, old and new.

    Raises:
        OffaxisError: something does not fit together.
    """
    from offaxis.data import limit_images, load_images
    from offaxis.data.splits import VALIDATION_IMAGES
    from offaxis.evaluation import Store, evaluate, sets_for

    @cache  # networks share the sets, and their checksums
    def id_images(name: str, split: Literal["train", "test"], options: Options) -> "ImageSet":
        most = run.images if split == "test" else run.fit_images
        return limit_images(load_images(name, split, root=data, **dict(options)), most)

    @cache
    def ood_images(name: str, like: "ImageSet", resize: str | None) -> "ImageSet":
        return limit_images(load_images(name, "test", root=data, like=like, resize=resize), run.images)

    networks = _open_networks(run)
    store = Store(out)
    results: list[Result] = []
    for opened in networks:
        id_name = run.id or (opened.data or {}).get("path") or opened.id
        if id_name is None:
            raise ArgumentError(f"Name the ID set of {opened.origin}: --id NAME.")
        options = _options(opened, id_name)
        id_test = id_images(id_name, "test", options)
        names, left_out = sets_for(id_name, run.ood, data)
        for name, reason in left_out.items():
            note(f"{name} is left out: {reason}.")
        results += evaluate(
            opened,
            id_test,
            [ood_images(name, id_test, opened.resize) for name in names],
            run.detectors,
            train=partial(id_images, id_name, "train", options),
            fitted_on=f"{run.fit_images or 'all'} training images of {id_name}",
            protocols=("one-vs-one", "less-biased") if run.protocol == "both" else (run.protocol,),
            tune=run.tune,
            store=store,
            validation=VALIDATION_IMAGES if run.validation is None else run.validation,
            batch_size=run.batch_size or 256,
            device=device,
            command=command or (),
            quiet=quiet,
            note=note,
        )
    return results


Options = tuple[tuple[str, Any], ...]
"""Arguments of ``load_images`` that can be the key of a cache."""


def _options(opened: "EvaluatedNetwork", id_name: str) -> Options:
    """Return how the ID images of a network are read: as those that it was trained on were, or at its size."""
    known = opened.data or {}
    same = id_name == known.get("name") or str(Path(id_name).expanduser().resolve()) == known.get("path")
    options: dict[str, Any] = known.get("options", {}) if same else {"size": opened.size, "resize": opened.resize}
    return tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in options.items() if v is not None)


def _open_networks(run: EvaluationRun) -> "list[EvaluatedNetwork]":
    """Open the networks, each by itself or combined into one."""
    from offaxis.deploy.open import combine, open_network

    if run.weights is not None:
        if len(run.networks) > 1 or run.network is not None:
            raise ArgumentError("Expected --weights beside one network by name, such as resnet18-32, and no --network.")
        return [open_network(run.networks[0], label=run.label, weights=run.weights)]
    sources = open_runs(run.networks, run.network)
    if run.kind == "single":
        return [open_network(source, label=run.label) for source in sources]
    return [combine(sources, run.kind, run.label)]


def open_runs(paths: Sequence[str], network: str | None) -> "list[NetworkSource | Model]":
    """Return networks as ``open_network`` takes them; runs and bundles of an own network with their weights.

    Args:
        paths: folders of training runs, bundles and so on.
        network: ``file.py:function`` that makes the network of the runs; None where they can be opened without.

    Raises:
        ArgumentError: the function does not make a Classifier.
    """
    if network is None:
        return list(paths)
    from offaxis.deploy.bundle import load

    return [_load_run(path, network) if (Path(path) / "run.json").exists() else load(path, network) for path in paths]


def _load_run(path: str, network: str) -> "Trained":
    """Load a run into the network that a function makes, which is told the run's classes and head."""
    from offaxis.deploy.open import open_for_weights
    from offaxis.training.run import load_run, read_run

    settings = read_run(Path(path))["settings"]
    opened = open_for_weights(network, len(settings["data"]["classes"]), settings.get("head"))
    return load_run(path, into=single(opened))


def evaluation_words(evaluation: EvaluationRun, ood: str) -> Iterator[str]:
    """Yield the arguments and options of ``offaxis evaluate`` that describe an evaluation on some OOD sets."""
    yield from evaluation.networks
    if evaluation.id is not None:
        yield from ("--id", evaluation.id)
    yield from ("--ood", ood, "--detectors", ",".join(evaluation.detectors), "--protocol", evaluation.protocol)
    if not evaluation.tune:
        yield "--no-tune"
    if evaluation.kind != "single":
        yield from ("--as", evaluation.kind)
    for name in ("weights", "images", "fit_images", "batch_size", "label"):
        value = getattr(evaluation, name)
        if value is not None:
            yield from (f"--{name.replace('_', '-')}", str(value))
