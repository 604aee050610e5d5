"""Every option of every task, once: its type, its default and its help.

Commands are generated from these fields (``offaxis.cli``); records hold them; the commands that a record or a reproduction
prints are made from them (``words``), and two trainings are compared by them (``differences``). Importing this needs no torch.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args, get_type_hints

from offaxis.errors import ArgumentError
from offaxis.names import BENCHMARKS, HEADS, METRICS, POOLS, RECIPES

Precision = Literal["32-true", "16-mixed", "bf16-mixed", "64-true"]
Start = Literal["sizes", "paper"]
"""Where a predicted scale starts (``offaxis.heads.base``)."""
Kind = Literal["single", "ensemble", "paired", "leave-out"]
"""How networks are combined."""
ProtocolName = Literal["one-vs-one", "less-biased", "both"]
EngineName = Literal["auto", "onnx", "torch"]

IMAGES, NETWORK, RECIPE, RUNNING = "Images", "Network and head", "Recipe", "Running"


def option(default: Any, help: str | None, group: str | None = None, **how: Any) -> Any:
    """Declare an option: a field of a dataclass below.

    Args:
        default: its value where it is not given; ``...`` where it must be.
        help: what ``--help`` says of it.
        group: the heading that it stands under there.
        how: ``flags``, its names in the shell, where they are not made from the field's; ``argument``, whether it is given by
            its place; ``shown``, what the help says in place of the default; ``least`` and ``most``; ``parse`` and ``text``,
            which turn what is typed into the value and back; ``required``, whether the shell must give it; ``environment``,
            ``metavar``, ``hidden`` as Typer has them; ``said``, whether ``words`` has it even where it is the default;
            ``running``, whether results do not depend on it; ``registers``, whether it names a file with an own detector.
    """
    metadata = {"help": help, "group": group, **how}
    return field(metadata=metadata) if default is ... else field(default=default, metadata=metadata)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise ArgumentError(
            "Expected --mean and --std to be numbers with commas, as in --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225, but "
            f"got {text!r}."
        ) from None


def _scale(text: str) -> str | float:
    if text in ("predicted", "learned"):
        return text
    try:
        return float(text)
    except ValueError:
        raise ArgumentError(f"Expected --scale to be predicted, learned or a number but got {text!r}.") from None


def _fold(text: str) -> tuple[int, int]:
    member, _, count = text.partition("/")
    if not (member.isdecimal() and count.isdecimal() and int(member) < int(count)):
        raise ArgumentError(f"Expected --leave-out to be K/N with K from 0 to N - 1, as in 0/5, but got {text!r}.")
    return int(member), int(count)


def _parts(text: str) -> tuple[str, ...]:
    """Return the parts between commas that are not inside brackets."""
    return tuple(word.strip() for word in re.split(r",(?![^(\[]*[)\]])", text) if word.strip())


_NUMBERS: dict[str, Any] = {"parse": _numbers, "text": lambda values: ",".join(map(str, values))}
_PARTS: dict[str, Any] = {"parse": _parts, "text": ",".join}
_SHORT: dict[str, Any] = {"text": lambda value: value if isinstance(value, str) else f"{value:g}"}
_RECIPES: dict[str, Any] = {"shown": "the recipe's"}


def _device() -> Any:
    return option(
        "auto", "Where networks run: auto (CUDA, else MPS, else the CPU), cpu, cuda, cuda:1, ... or mps.", running=True
    )


def _data() -> Any:
    return option(None, "Where image sets are kept.", environment="OFFAXIS_DATA", running=True)


def _quiet() -> Any:
    return option(False, "Show no progress.", running=True)


def _skip_bad() -> Any:
    return option(False, "Leave out files that cannot be read, and list them.", flags="--skip-bad")


def _own_network() -> Any:
    return option(
        None, "file.py:function that makes the network, where the run or bundle holds only its weights.", running=True
    )


def _own_detector() -> Any:
    return option(
        None,
        "file.py:Class, where the bundle's detector is one of your own: bundles never hold code.",
        flags="--detector",
        registers=True,
    )


def _engine() -> Any:
    return option("auto", "What runs the network: onnxruntime or PyTorch. auto: onnxruntime on a CPU if it can.")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a task."""

    @classmethod
    def from_record(cls, values: Mapping[str, Any]) -> Self:
        """Return the options that ``record`` returned; those of a newer version are left out."""
        names = {each.name for each in fields(cls)}
        return cls(**{n: tuple(v) if isinstance(v, list) else v for n, v in values.items() if n in names})

    def record(self) -> dict[str, Any]:
        """Return the options that results depend on, as JSON can hold them; those at their defaults are left out."""
        own = asdict(self)
        return {
            each.name: list(own[each.name]) if isinstance(own[each.name], tuple) else own[each.name]
            for each in fields(self)
            if not each.metadata.get("running") and own[each.name] != each.default
        }

    def differences(self, other: Self) -> dict[str, tuple[Any, Any]]:
        """Return the options that results depend on and that another one has otherwise: name -> (own, other's)."""
        names = [each.name for each in fields(self) if not each.metadata.get("running")]
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in names}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def words(self) -> Iterator[str]:
        """Yield the words of the shell that give these options, those that results depend on and are not their defaults."""
        for each in fields(self):
            value, how = getattr(self, each.name), each.metadata
            if how.get("running") or (value == each.default and not how.get("said")) or value is None:
                continue
            text: Callable[[Any], str] = how.get("text", str)
            if how.get("argument"):
                yield from value if isinstance(value, tuple) else (text(value),)
                continue
            flag = flags(each)[0]
            if isinstance(value, bool):
                yield flag if value else f"--no-{flag[2:]}"
            elif isinstance(value, tuple) and "parse" not in how:
                yield from (word for one in value for word in (flag, str(one)))
            else:
                yield from (flag, text(value))

    @classmethod
    def from_words(cls, words: Sequence[str]) -> Self:
        """Return the options that words of the shell give; those of other versions and running ones are left out."""
        own = {flags(each)[0]: each for each in fields(cls)}
        hints, given, rest = get_type_hints(cls), dict[str, Any](), iter(words)
        for word in rest:
            each = own.get(word) or own.get(f"--{word.removeprefix('--no-')}")
            if each is None or each.metadata.get("argument"):
                continue
            hint = hints[each.name]
            if hint is bool or (hint == bool | None):
                given[each.name] = word in own
                continue
            text = next(rest, "")
            kinds = [kind for kind in (*get_args(hint), hint) if kind in (int, float)]
            parse: Callable[[str], Any] = each.metadata.get("parse") or (kinds[0] if kinds else str)
            if not each.metadata.get("running"):
                given[each.name] = parse(text)
        return cls(**given)


def flags(each: "Field[Any]") -> tuple[str, ...]:
    """Return the names of an option in the shell, beginning with the one that sets it."""
    given = each.metadata.get("flags")
    return (given,) if given else (f"--{each.name.replace('_', '-')}",)


@dataclass(frozen=True, kw_only=True)
class DemoOptions(Options):
    """What is trained and shown: ``offaxis demo``."""

    out: Path = option(Path("demo"), "Folder for the page.")
    quick: bool = option(
        False,
        "One network of each kind on scikit-learn's 8x8 digits, enlarged; needs no extra.",
        flags="--quick",
    )
    seeds: int | None = option(None, "Networks of each kind.", shown="3", least=1)
    epochs: int = option(5, "Epochs of each training.", least=1)
    quiet: bool = _quiet()

    def __post_init__(self) -> None:
        if self.quick and self.seeds is not None:
            raise ArgumentError(
                "Expected --quick, with one network of each kind, or --seeds but got both: leave out one."
            )


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Options):
    """What a trained network depends on, and how its training runs: ``offaxis train``."""

    id: str = option(
        "digits",
        "Images to train on: a name of [cyan]offaxis data list[/cyan] or a folder.",
        IMAGES,
        said=True,
    )
    network: str | None = option(
        None,
        "wrn-DEPTH-WIDTH or densenet-DEPTH-GROWTH (-half: stride 2 in the first convolution), resnet18-32, resnet20-cifar, "
        "convnet-256, efficientnet-lite0 (with ImageNet weights, of the extra photos), timm:NAME, torchvision:NAME, "
        "transformers:FOLDER or file.py:function.",
        NETWORK,
        shown="wrn-10-4-half; convnet-256 with --recipe fast",
        said=True,
    )
    head: str = option("cosine", f"Output layer: {', '.join(HEADS)}.", NETWORK, said=True)
    source: str | None = option(
        None,
        "Start from the backbone of a trained network (a run, a bundle or a name) with a new head.",
        NETWORK,
        flags="--from",
    )
    size: int | None = option(
        None, "Height and width of the images.", IMAGES, shown="the network's own, else the images'", least=1
    )
    resize: str | None = option(
        None,
        "How images come to that size: crop (short side to the size, centre crop) or stretch.",
        IMAGES,
        shown="crop above 64 pixels",
    )
    holdout: float | None = option(
        None, "Share of a folder without test/ that is kept for testing, such as 0.2.", IMAGES
    )
    weights: str | None = option(
        None, "File of weights to start from: safetensors, or a state dictionary of PyTorch.", NETWORK
    )
    unfreeze: str | None = option(None, "Train the backbone from this layer on, such as layer4.", NETWORK, shown="all")
    mean: tuple[float, ...] | None = option(
        None,
        "Mean of the pixels in 0 to 1, by channel with commas.",
        IMAGES,
        shown="the network's own, else the images'",
        **_NUMBERS,
    )
    std: tuple[float, ...] | None = option(None, "Standard deviation likewise.", IMAGES, **_NUMBERS)
    skip_bad: bool = option(False, "Leave out files that cannot be read.", IMAGES, flags="--skip-bad")
    pretrained: bool = option(
        False,
        "Start from the weights that timm or torchvision publish; they are downloaded.",
        NETWORK,
        flags="--pretrained",
    )
    freeze: bool = option(
        False,
        "Train the head alone: the backbone sees each image once, and further seeds and heads take seconds.",
        NETWORK,
        flags="--freeze",
    )
    views: int = option(
        1,
        "Versions of each image that a frozen backbone sees: itself, and others cropped and flipped at random.",
        NETWORK,
        least=1,
    )
    scale: str | float | None = option(
        None,
        "Scale of the head: predicted, learned or a number.",
        NETWORK,
        shown="the head's own",
        parse=_scale,
        **_SHORT,
    )
    hidden: int | None = option(None, "Size of an extra layer inside the cosine head.", NETWORK)
    tau: float | None = option(
        None,
        "Temperature of logitnorm and t2fnorm, a hyperparameter.",
        NETWORK,
        shown="the published 0.04 and 0.1",
        **_SHORT,
    )
    start: Start | None = option(
        None,
        "Where a predicted scale starts: by the sizes of the head, or as in the paper.",
        NETWORK,
        shown="sizes; paper in the paper's recipes and, from scratch, in short",
    )
    decay_head: bool = option(False, "Decay the cosine weight too.", RECIPE)
    leave_out: tuple[int, int] | None = option(
        None,
        "K/N: the K-th of N leave-out networks, for which a share of the classes is OOD.",
        RECIPE,
        parse=_fold,
        text=lambda fold: "{}/{}".format(*fold),
    )
    recipe: str | None = option(
        None,
        f"Recipe to start from: {', '.join(RECIPES)}.",
        RECIPE,
        shown="frozen with --freeze, finetune for a network that is trained already, else laptop",
        said=True,
    )
    precision: Precision = option("32-true", "Arithmetic.", RUNNING)
    epochs: int | None = option(None, "Passes over the images.", RECIPE, **_RECIPES)
    batch_size: int | None = option(None, "Images a step.", RECIPE, **_RECIPES)
    learning_rate: float | None = option(None, "Learning rate.", RECIPE, flags="--lr", **_RECIPES)
    weight_decay: float | None = option(None, "Weight decay.", RECIPE, **_RECIPES)
    clip: float | None = option(
        None, "Clip the norm of the gradient at this multiple of its running mean.", RECIPE, **_RECIPES
    )
    crop: int | None = option(
        None,
        "Padding of random crops; not beside --min-area.",
        RECIPE,
        shown="4, less for images below 32 pixels",
    )
    flip: bool | None = option(None, "Mirror images at random.", RECIPE, shown="not for digits and letters")
    min_area: float | None = option(
        None,
        "Least share of a photograph that random resized crops keep; 1 for none.",
        RECIPE,
        shown="0.25 above 64 pixels",
    )
    jitter: float | None = option(None, "Random changes of brightness, contrast and saturation, such as 0.4.", RECIPE)
    dropout: float = option(0.0, "Dropout inside the network.", NETWORK)
    seed: int = option(0, "Same seed, same machine: same weights.", RECIPE, least=0, most=2**63 - 1, said=True)
    out: Path | None = option(
        None, "Folder for the run: checkpoint, log and trained weights.", required=True, running=True
    )
    resume: bool = option(False, "Resume the run in --out.", RUNNING, running=True)
    validate: bool = option(False, "Measure accuracy on the test images after each epoch.", RUNNING, running=True)
    devices: int = option(1, "Devices, or processes on the CPU, of each node.", RUNNING, least=1, running=True)
    nodes: int = option(
        1,
        "Machines; start the same command on each, or use torchrun, with --out on a disk that all share.",
        RUNNING,
        least=1,
        running=True,
    )
    sync_bn: bool = option(False, "All batch normalisations span all processes.", RUNNING)
    log_every: int | None = option(None, "Steps between log lines.", RUNNING, shown="ten an epoch", running=True)
    device: str = _device()
    data: Path | None = _data()
    quiet: bool = _quiet()

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            raise ArgumentError("Expected both --mean and --std, or neither, but got one of them.")

    @property
    def architecture(self) -> str:
        """The network that is trained, or whose backbone is started from."""
        return self.network or self.source or ("convnet-256" if self.recipe == "fast" else "wrn-10-4-half")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(Options):
    """What an evaluation depends on, and how it runs: ``offaxis evaluate``."""

    networks: tuple[str, ...] = option(
        ...,
        "Folders of training runs, bundles, names such as resnet18-32 (with --weights), or file.py:function that returns a "
        "Classifier.",
        argument=True,
        metavar="RUN",
    )
    out: Path | None = option(
        None, "The results store; what is in it already is not computed again.", required=True, running=True
    )
    id: str | None = option(None, "The ID set: a name or a folder.", shown="what the run was trained on")
    benchmark: str | None = option(
        None,
        "OpenOOD's lists under --data instead of --id, --ood and the options that split or tune these: "
        f"{', '.join(BENCHMARKS)}.",
    )
    partial: bool = option(False, "Evaluate the benchmark on the part of its images that is there.", flags="--partial")
    ood: tuple[str, ...] = option(
        ("here",), f"OOD sets with commas: names, folders, or {', '.join(POOLS)}.", said=True, **_PARTS
    )
    detectors: tuple[str, ...] = option(
        ("native",),
        "Detectors with commas: names, arguments as in knn:k=10, file.py:Class, or native, pytorch-ood, all.",
        said=True,
        **_PARTS,
    )
    protocol: ProtocolName = option("one-vs-one", "How detectors are tuned: one-vs-one, less-biased, both.", said=True)
    near: tuple[str, ...] = option(
        (),
        "Folders among the OOD sets that are near-OOD, by name, with commas; others count as far.",
        **_PARTS,
    )
    skip_bad: bool = _skip_bad()
    tune: bool = option(True, "Report detectors that have a grid tuned too, beside their published values.")
    kind: Kind = option(
        "single",
        "The networks: each by itself (single), or as one: ensemble, paired, leave-out.",
        flags="--as",
    )
    weights: tuple[str, ...] = option(
        (),
        "A file of weights for a network that is named: safetensors, or a state dictionary of PyTorch. Given again for each "
        "further seed.",
    )
    images: int | None = option(None, "At most so many images of each OOD and ID test set.", shown="all", least=1)
    fit_images: int | None = option(
        None, "At most so many training images to fit detectors with.", shown="all", least=1
    )
    batch_size: int = option(64, "Images at a time.", least=1)
    label: str | None = option(None, "What tables call the networks.", shown="network and head")
    validation: int = option(1000, "Images of each set that tuning may see; never more than a fifth.", least=0)
    network: str | None = _own_network()
    device: str = _device()
    data: Path | None = _data()
    quiet: bool = _quiet()


@dataclass(frozen=True, kw_only=True)
class BundleOptions(Options):
    """What a calibrated model is made of: ``offaxis bundle``."""

    networks: tuple[str, ...] = option(
        ...,
        "Folders of training runs; or a trained network that is kept as it is: timm:NAME, torchvision:NAME or resnet20-cifar "
        "with --weights, transformers:FOLDER, file.py:function.",
        argument=True,
        metavar="NETWORK",
    )
    calibrate: str = option(..., "ID images that nothing was trained on: a set (its test images), folder or archive.")
    out: Path | None = option(None, "The bundle, by custom x.oax.", required=True, running=True)
    kind: Kind = option(
        "single",
        "Several networks as one: ensemble (averaged), paired (the first predicts the class, the second gives the detection "
        "score) or leave-out (in the order of their folds).",
        flags="--as",
    )
    detector_run: str | None = option(
        None, "The same as a second RUN and --as paired: its network gives the detection score."
    )
    detector: str | None = option(
        None,
        "The detector, with arguments as in knn:k=10, or file.py:Class.",
        shown="two-cosines on a backbone that was frozen or trained in part, else cosine; mahalanobis++ for other heads; "
        "cosine-ensemble or leave-out for several networks",
    )
    weights: str | None = option(
        None,
        "A file of weights for a network that is named: safetensors, or a state dictionary of PyTorch.",
    )
    pretrained: bool = option(
        False, "The weights that timm or torchvision publish; they are downloaded.", flags="--pretrained"
    )
    fit: str | None = option(
        None,
        "Training images to fit the detector on: a set (its training images), folder or archive.",
        shown="all training images",
    )
    calibrate_share: float = option(
        0.5,
        "Share of these images that calibrates; the rest reports accuracy and false alarms. 1 calibrates on all.",
    )
    alpha: float = option(0.05, "The share of new ID images that may be flagged.")
    per_class: bool = option(False, "Calibrate within each predicted class: at most alpha is flagged in each.")
    confidence: float | None = option(
        None,
        "At most alpha with this probability over calibration sets, such as 0.95, not only on average.",
    )
    trained_on: str | None = option(None, "The training images, where the run does not name a known set.")
    unchecked: bool = option(
        False, "Do not look for calibration images among the training images.", flags="--unchecked"
    )
    size: int | None = option(None, "Height and width of images, for a network by name; a run has its own.", least=1)
    mean: tuple[float, ...] | None = option(
        None,
        "Mean of each channel, with commas, in place of the network's own: 0.485,0.456,0.406.",
        **_NUMBERS,
    )
    std: tuple[float, ...] | None = option(None, "Standard deviation likewise: 0.229,0.224,0.225.", **_NUMBERS)
    skip_bad: bool = _skip_bad()
    folder: bool = option(False, "Write a folder instead of one file.", flags="--folder")
    keep_examples: int = option(
        0, "Keep so many calibration images in the bundle, to show those nearest to an image.", least=0
    )
    network: str | None = _own_network()
    device: str = _device()
    data: Path | None = _data()
    quiet: bool = _quiet()

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None) or (self.mean and len(self.mean) != len(self.std or ())):
            raise ArgumentError(
                "Expected --mean and --std with a number for each channel, as in --mean 0.485,0.456,0.406 --std "
                f"0.229,0.224,0.225, but got {self.mean} and {self.std}."
            )


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(Options):
    """How a bundle is calibrated again: ``offaxis calibrate``."""

    bundle: Path = option(
        ...,
        "A bundle; it is changed in place without --out, which one of the hub (hf:name/repo) needs.",
        argument=True,
    )
    images: str = option(
        ...,
        "ID images: a set (its test images), a folder or an archive; or a .npy file of feature vectors.",
        argument=True,
    )
    out: Path | None = option(None, "Write another bundle.", shown="BUNDLE itself")
    alpha: float | None = option(None, "Another level.", shown="unchanged")
    per_class: bool | None = option(None, "Verdicts per class.", shown="unchanged")
    confidence: float | None = option(
        None, "At most alpha with this probability over calibration sets; 0: on average.", shown="unchanged"
    )
    skip_bad: bool = _skip_bad()
    network: str | None = _own_network()
    detector: str | None = _own_detector()
    device: str = _device()
    data: Path | None = _data()
    quiet: bool = _quiet()


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Options):
    """What is exported: ``offaxis export``."""

    bundle: Path = option(..., "A bundle; with --published also the folder of a training run.", argument=True)
    onnx: Path | None = option(None, "The ONNX file to write, by custom x.onnx.")
    int8: bool = option(False, "Convolutions on 8-bit integers; needs --calibrate.", flags="--int8")
    calibrate: str | None = option(None, "ID images for --int8 that nothing was trained on: a set, folder or archive.")
    ood: tuple[str, ...] = option((), "OOD images on which --int8 must not lose. May be given again.")
    published: Path | None = option(
        None, "A file for the weights of resnet18-32 or resnetN-cifar by their published names (OpenOOD)."
    )
    network: str | None = _own_network()
    data: Path | None = _data()
    skip_bad: bool = _skip_bad()
    detector: str | None = _own_detector()


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(Options):
    """How images are scored into rows: ``offaxis score``."""

    bundle: Path | None = option(None, "A bundle.", argument=True, required=True)
    paths: tuple[str, ...] = option(
        (),
        "Images, folders, archives, .npy files of feature vectors; - (or nothing) reads a list from standard input.",
        argument=True,
    )
    out: str = option("-", "A file that ends in .csv, .jsonl or .parquet; - is standard output.")
    format: Literal["csv", "jsonl", "parquet", "text"] | None = option(
        None, "If the name does not say it; text is for reading.", shown="csv, text on a terminal"
    )
    batch: int = option(64, "Images a step.", least=1)
    runner: Literal["threads", "ray"] = option("threads", "ray spreads the work over a Ray cluster.")
    engine: EngineName = _engine()
    workers: int | None = option(None, "Threads that decode, or workers of Ray.", shown="by cores", least=1)
    resume: bool = option(False, "Resume an interrupted run.", flags="--resume")
    overwrite: bool = option(False, "Replace what is there.", flags="--overwrite")
    fdr: float | None = option(
        None,
        "Flag images together (column flagged) so that at most this share of the flagged ones, such as 0.1, is false alarms "
        "in expectation.",
    )
    top: int = option(100, "Images on the page of those with the highest scores.", least=0)
    network: str | None = _own_network()
    detector: str | None = _own_detector()
    device: str = _device()
    quiet: bool = _quiet()


@dataclass(frozen=True, kw_only=True)
class ServeOptions(Options):
    """How a bundle is served: ``offaxis serve``."""

    bundle: Path | None = option(None, "A bundle.", argument=True, required=True)
    host: str = option("127.0.0.1", "Address to listen on; by default this machine alone is served.")
    port: int = option(8000, "Port to listen on.", least=0, most=65535)
    token_file: Path | None = option(
        None, "A file with the bearer tokens that are accepted, one a line (else OFFAXIS_TOKEN)."
    )
    token: str | None = option(None, None, hidden=True)
    allowed_host: tuple[str, ...] = option(
        (), "A name that the service is reached by, beside localhost; * for all. May be given again."
    )
    level: float = option(0.01, "Probability that the drift monitor ever raises a false alarm.")
    max_body: int = option(16, "Megabytes of one request.", least=1)
    max_images: int = option(32, "Images of one request.", least=1)
    max_pixels: int = option(16_000_000, "Pixels of one image.", least=1)
    max_request_pixels: int = option(128_000_000, "Pixels of all images of one request.", least=1)
    queue: int = option(256, "Images that may wait; more are answered with 503.", least=1)
    batch: int = option(32, "Images that go through the network together.", least=1)
    log: Literal["plain", "json"] = option("plain", "json: every request as a line of JSON, with its id.")
    engine: EngineName = _engine()
    network: str | None = _own_network()
    detector: str | None = _own_detector()
    device: str = _device()


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Options):
    """What a report of stored results shows: ``offaxis report``."""

    store: Path = option(..., "The folder that [cyan]offaxis evaluate --out[/cyan] was given.", argument=True)
    out: Path = option(..., "Folder for report.md, tables/ and index.html.")
    metrics: tuple[str, ...] = option(
        ("auroc", "accuracy_at_tpr95", "aupr_in"),
        f"Metrics with commas; the first one ranks: {', '.join(METRICS)}.",
        **_PARTS,
    )
    thumbnails: int = option(6, "Images with the highest and the lowest scores of each detector; 0 for none.", least=0)
    paper: bool = option(False, "Put the paper's numbers beside ours, where it has the same sets.")
    oracle: bool = option(False, "Rank detectors tuned on the tested set itself among the others, not apart from them.")
    title: str = option("Out-of-distribution detection", "Title of the page.")
    openood: Path | None = option(
        None,
        "Also write the results of --benchmark as OpenOOD's table, and as lines of its leaderboard beside it (x.csv and "
        "x-leaderboard.csv).",
    )
    data: Path | None = _data()

    def __post_init__(self) -> None:
        if not self.metrics or not set(self.metrics) <= set(METRICS):
            raise ArgumentError(f"Expected metrics out of {', '.join(METRICS)} but got {', '.join(self.metrics)!r}.")


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(Options):
    """What of the paper is computed again, and how large: ``offaxis reproduce``."""

    item: str | None = option(None, "The table or figure; without one, all are listed.", argument=True, shown=False)
    scale: str = option("laptop", "paper or laptop.")
    out: Path | None = option(None, "Folder for everything.", shown="reproduce/SCALE")
    runs: Path | None = option(None, "Folder with trained networks; what is there is used.", shown="OUT/runs")
    dry_run: bool = option(False, "Show what would be done, and how long it would take here.")
    list_steps: bool = option(
        False,
        "Print the commands, one a line; each can run on any machine, trainings first.",
        flags="--list",
    )
    id: tuple[str, ...] | None = option(None, "ID sets with commas.", shown="the scale's", **_PARTS)
    seeds: int | None = option(None, "How many.", shown="the scale's", least=1)
    network: str | None = option(None, "Network in place of the scale's.", shown="the scale's")
    recipe: str | None = option(None, "Recipe for it.", shown="laptop")
    epochs: int | None = option(None, "Epochs of each training.", shown="the recipe's", least=1)
    device: str = _device()
    data: Path | None = _data()
    quiet: bool = _quiet()
