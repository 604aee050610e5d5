"""Every option of every task, once: its type, its default and its help.

Commands are generated from these classes (``offaxis.cli``), in their order, and imported when they run; records hold the
fields; the commands that a record or a reproduction prints are made from them (``words``), and two trainings are compared by
them (``differences``). Importing this needs no torch.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeVar, get_args, get_type_hints

from offaxis.errors import ArgumentError
from offaxis.names import BENCHMARKS, HEADS, METRICS, POOLS, RECIPES, RESULT_METRICS

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
            ``running``, whether results do not depend on it; ``registers``, whether it names a file with an own detector;
            ``backbone``, whether it means nothing where a head is trained alone, on features in memory.
    """
    metadata = {"help": help, "group": group, **how}
    return field(metadata=metadata) if default is ... else field(default=default, metadata=metadata)


def _parse_numbers(text: str) -> tuple[float, ...]:
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


def _seconds(text: str) -> float:
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ArgumentError(f"Expected --every to be a time above 0 such as 1s or 0.5s but got {text!r}.")
    return value


def _fold(text: str) -> tuple[int, int]:
    member, _, count = text.partition("/")
    if not (member.isdecimal() and count.isdecimal() and int(member) < int(count)):
        raise ArgumentError(f"Expected --leave-out to be K/N with K from 0 to N - 1, as in 0/5, but got {text!r}.")
    return int(member), int(count)


def _between_commas(text: str) -> tuple[str, ...]:
    """Return the parts between commas that are not inside brackets."""
    return tuple(word.strip() for word in re.split(r",(?![^(\[]*[)\]])", text) if word.strip())


_NUMBERS: dict[str, Any] = {"parse": _parse_numbers, "text": lambda values: ",".join(map(str, values))}
_PARTS: dict[str, Any] = {"parse": _between_commas, "text": ",".join}
_SHORT: dict[str, Any] = {"text": lambda value: value if isinstance(value, str) else f"{value:g}"}
_RECIPES: dict[str, Any] = {"shown": "the recipe's"}


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
            name = flag_of(each)
            if isinstance(value, bool):
                yield name if value else f"--no-{name[2:]}"
            elif isinstance(value, tuple) and "parse" not in how:
                yield from (word for one in value for word in (name, str(one)))
            else:
                yield from (name, text(value))

    @classmethod
    def from_words(cls, words: Sequence[str]) -> Self:
        """Return the options that words of the shell give; those of other versions and running ones are left out."""
        own = {flag_of(each): each for each in fields(cls)}
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


def flag_of(each: "Field[Any]") -> str:
    """Return the name of an option in the shell, the one that sets it."""
    return str(each.metadata.get("flags") or f"--{each.name.replace('_', '-')}")


class ShellCommand(NamedTuple):
    """A command of the shell.

    Attributes:
        options: the class of its options, whose docstring is its help.
        function: ``module:function``, called with the options and the words of the command line.
        examples: command lines that can be pasted.
        extra: the extra of this package that has what the function imports, where it needs one.
    """

    options: type[Options]
    function: str
    examples: tuple[str, ...]
    extra: str | None


COMMANDS: dict[str, ShellCommand] = {}
"""The words of each command, without ``offaxis``, in the order in which a user meets them."""
Task = TypeVar("Task", bound=Options)


def command(words: str, function: str, *examples: str, extra: str | None = None) -> Callable[[type[Task]], type[Task]]:
    """Make a command of a class of options; see ``ShellCommand``."""

    def register(options: type[Task]) -> type[Task]:
        COMMANDS[words] = ShellCommand(options, function, examples, extra)
        return options

    return register


def _skip_bad() -> Any:
    return option(False, "Leave out files that cannot be read, and list them.", flags="--skip-bad")


def _overwrite() -> Any:
    return option(False, "Replace what is there.", flags="--overwrite", running=True)


def _drop_duplicates() -> Any:
    return option(
        False, "Leave out images that are among the training images, and list them.", flags="--drop-duplicates"
    )


def _engine() -> Any:
    return option("auto", "What runs the network: onnxruntime or PyTorch. auto: onnxruntime on a CPU if it can.")


def _as_json(help: str) -> Any:
    return option(False, help, flags="--json")


@dataclass(frozen=True, kw_only=True)
class DataOption(Options):
    """The option of tasks that read image sets by name."""

    data: Path | None = option(None, "Where image sets are kept.", environment="OFFAXIS_DATA", running=True)


@dataclass(frozen=True, kw_only=True)
class DeviceOption(Options):
    """The option of tasks that run networks."""

    device: str = option(
        "auto", "Where networks run: auto (CUDA, else MPS, else the CPU), cpu, cuda, cuda:1, ... or mps.", running=True
    )


@dataclass(frozen=True, kw_only=True)
class QuietOption(Options):
    """The option of tasks that take long."""

    quiet: bool = option(False, "Show no progress.", running=True)


@dataclass(frozen=True, kw_only=True)
class NetworkOption(Options):
    """The option of tasks that open runs or bundles, which may hold the weights of an own network alone."""

    network: str | None = option(
        None, "file.py:function that makes the network, where the run or bundle holds only its weights.", running=True
    )


@dataclass(frozen=True, kw_only=True)
class CodeOptions(NetworkOption):
    """The options of tasks that open bundles, which never hold code."""

    detector: str | None = option(
        None,
        "file.py:Class, where the bundle's detector is one of your own: bundles never hold code.",
        flags="--detector",
        registers=True,
    )


@dataclass(frozen=True, kw_only=True)
class RunningOptions(QuietOption, DataOption, DeviceOption):
    """The options of tasks that run networks on image sets by name."""


@command("demo", "offaxis.demo:show_demo", "offaxis demo --out demo", "offaxis demo --quick")
@dataclass(frozen=True, kw_only=True)
class DemoOptions(QuietOption):
    """Train a standard and a cosine network on digits and compare them on OOD images; about a minute on two cores."""

    out: Path = option(Path("demo"), "Folder for the page.")
    quick: bool = option(
        False, "One network of each kind on scikit-learn's 8x8 digits, enlarged; needs no extra.", flags="--quick"
    )
    seeds: int | None = option(None, "Networks of each kind.", shown="3", least=1)
    epochs: int = option(5, "Epochs of each training.", least=1)

    def __post_init__(self) -> None:
        if self.quick and self.seeds is not None:
            raise ArgumentError(
                "Expected --quick, with one network of each kind, or --seeds but got both: leave out one."
            )


@command("data list", "offaxis.cli.catalogue:list_sets", "offaxis data list --id cifar10")
@dataclass(frozen=True, kw_only=True)
class ListOptions(DataOption):
    """List the catalogue: every set with its size, its terms and whether it is on this machine."""

    names: tuple[str, ...] = option((), "Show these sets in full.", argument=True)
    id: str | None = option(None, "The ID set: name in the catalogue, or a folder.")
    as_json: bool = _as_json("Everything, as JSON.")


@command("data get", "offaxis.cli.data:get_sets", "offaxis data get cifar10 svhn --data ~/images")
@dataclass(frozen=True, kw_only=True)
class GetOptions(DataOption):
    """Download sets, check them and unpack them; an interrupted download is resumed."""

    names: tuple[str, ...] = option(..., "Sets of the catalogue.", argument=True)
    source: Literal["any", "publisher", "npm"] = option(
        "any", "The publisher and its mirrors, npm, or one after the other.", flags="--from"
    )


@command("data inspect", "offaxis.cli.data:inspect_set", "offaxis data inspect tin-crop --id cifar10")
@dataclass(frozen=True, kw_only=True)
class InspectOptions(DataOption):
    """Find black frames, sizes, duplicates and near-duplicates in a set, and write a contact sheet of its images.

    A folder with train and test inside is compared with its other split too.
    """

    name: str = option(..., "A set of the catalogue, or a folder or archive.", argument=True, metavar="SET")
    id: str | None = option(None, "The ID set: name in the catalogue, or a folder.")
    split: str = option("test", "train or test")
    size: int | None = option(None, "Resize to this height and width.", least=1)
    skip_bad: bool = _skip_bad()
    sheet: Path | None = option(None, "Where the contact sheet goes [SET-sheet.png].")


@command("data clean", "offaxis.cli.data:clean_up", "offaxis data clean")
@dataclass(frozen=True, kw_only=True)
class CleanOptions(Options):
    """Remove what can be made again: decoded pixels, features, ONNX graphs and unpacked archives; sets stay."""


@command(
    "train",
    "offaxis.training.start:train_by_options",
    "offaxis train --id digits --network wrn-10-2-half --epochs 12 --out runs/digits",
    "offaxis train --id photos/ --network efficientnet-lite0 --freeze --out runs/photos",
    "offaxis train --id photos/ --network timm:resnet18 --pretrained --unfreeze layer4 --out runs/finetuned",
)
@dataclass(frozen=True, kw_only=True)
class TrainOptions(RunningOptions):
    """Train a network with a cosine head (or another) and write it into a folder."""

    id: str = option(
        "digits", "Images to train on: a name of [cyan]offaxis data list[/cyan] or a folder.", IMAGES, said=True
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
    head: str = option("cosine", f"Output layer: {', '.join(HEADS)}; or file.py:Class.", NETWORK, said=True)
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
    unfreeze: str | None = option(
        None, "Train the backbone from this layer on, such as layer4.", NETWORK, shown="all", backbone=True
    )
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
    margin: float | None = option(
        None,
        "Margin of sphereface, cosface and arcface.",
        NETWORK,
        shown="the published 4, 0.35 and 0.5",
        **_SHORT,
    )
    start: Start | None = option(
        None,
        "Where a predicted scale starts: by the sizes of the head, or as in the paper.",
        NETWORK,
        shown="sizes; paper in the paper's recipes and, from scratch, in short",
    )
    decay_head: bool = option(False, "Decay the cosine weight too.", RECIPE, backbone=True)
    leave_out: tuple[int, int] | None = option(
        None,
        "K/N: the K-th of N leave-out networks, for which a share of the classes is OOD.",
        RECIPE,
        parse=_fold,
        text=lambda fold: "{}/{}".format(*fold),
        backbone=True,
    )
    recipe: str | None = option(
        None,
        f"Recipe to start from: {', '.join(RECIPES)}.",
        RECIPE,
        shown="frozen with --freeze, finetune for a network that is trained already, else laptop",
        said=True,
    )
    precision: Precision = option("32-true", "Arithmetic.", RUNNING, backbone=True)
    epochs: int | None = option(None, "Passes over the images.", RECIPE, **_RECIPES)
    batch_size: int | None = option(None, "Images a step.", RECIPE, **_RECIPES)
    learning_rate: float | None = option(None, "Learning rate.", RECIPE, flags="--lr", **_RECIPES)
    weight_decay: float | None = option(None, "Weight decay.", RECIPE, **_RECIPES)
    clip: float | None = option(
        None, "Clip the norm of the gradient at this multiple of its running mean.", RECIPE, **_RECIPES, backbone=True
    )
    crop: int | None = option(
        None, "Padding of random crops; not beside --min-area.", RECIPE, shown="4, less for images below 32 pixels"
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
    devices: int = option(
        1, "Devices, or processes on the CPU, of each node.", RUNNING, least=1, running=True, backbone=True
    )
    nodes: int = option(
        1,
        "Machines; start the same command on each, or use torchrun, with --out on a disk that all share.",
        RUNNING,
        least=1,
        running=True,
        backbone=True,
    )
    sync_bn: bool = option(False, "All batch normalisations span all processes.", RUNNING, backbone=True)
    log_every: int | None = option(
        None, "Steps between log lines.", RUNNING, shown="ten an epoch", running=True, backbone=True
    )

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            raise ArgumentError("Expected both --mean and --std, or neither, but got one of them.")

    @property
    def architecture(self) -> str:
        """The network that is trained, or whose backbone is started from."""
        return self.network or self.source or ("convnet-256" if self.recipe == "fast" else "wrn-10-4-half")


@command(
    "bundle",
    "offaxis.cli.bundle:write_bundle",
    "offaxis bundle runs/digits --calibrate digits --out digits.oax",
    "offaxis bundle runs/d0 runs/d1 runs/d2 --as ensemble --calibrate digits --out three.oax",
    "offaxis bundle timm:resnet18 --weights mine.pt --fit photos/train --calibrate photos/new --out mine.oax",
)
@dataclass(frozen=True, kw_only=True)
class BundleOptions(RunningOptions, NetworkOption):
    """Put a trained network or several, their preprocessing, a detector and a calibration into one file."""

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
        None, "A file of weights for a network that is named: safetensors, or a state dictionary of PyTorch."
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
        0.5, "Share of these images that calibrates; the rest reports accuracy and false alarms. 1 calibrates on all."
    )
    alpha: float = option(0.05, "The share of new ID images that may be flagged.")
    per_class: bool = option(False, "Calibrate within each predicted class: at most alpha is flagged in each.")
    confidence: float | None = option(
        None, "At most alpha with this probability over calibration sets, such as 0.95, not only on average."
    )
    max_error: float | None = option(
        None,
        "Call images unsure, so that of the others at most this share, such as 0.01, has a wrong class, with a confidence of "
        "95 %; needs labels.",
    )
    trained_on: str | None = option(None, "The training images, where the run does not name a known set.")
    unchecked: bool = option(
        False, "Do not look for calibration images among the training images.", flags="--unchecked"
    )
    size: int | None = option(None, "Height and width of images, for a network by name; a run has its own.", least=1)
    mean: tuple[float, ...] | None = option(
        None, "Mean of each channel, with commas, in place of the network's own: 0.485,0.456,0.406.", **_NUMBERS
    )
    std: tuple[float, ...] | None = option(None, "Standard deviation likewise: 0.229,0.224,0.225.", **_NUMBERS)
    skip_bad: bool = _skip_bad()
    drop_duplicates: bool = _drop_duplicates()
    folder: bool = option(False, "Write a folder instead of one file.", flags="--folder")
    overwrite: bool = _overwrite()
    keep_examples: int = option(
        0, "Keep so many calibration images in the bundle, to show those nearest to an image.", least=0
    )

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None) or (self.mean and len(self.mean) != len(self.std or ())):
            raise ArgumentError(
                "Expected --mean and --std with a number for each channel, as in --mean 0.485,0.456,0.406 --std "
                f"0.229,0.224,0.225, but got {self.mean} and {self.std}."
            )


@command(
    "score",
    "offaxis.cli.score:score_paths",
    "offaxis score digits.oax photo.jpg",
    "offaxis score digits.oax photos/ more.zip --out scores.csv",
    "offaxis score digits.oax photos/ --out scores.csv --resume",
    "offaxis score digits.oax photos/ film.mp4 s3://bucket/shard-000.tar --every 2s --select 50 --out scores.csv",
)
@dataclass(frozen=True, kw_only=True)
class ScoreOptions(QuietOption, DeviceOption, CodeOptions):
    """Score images: one row each with class, probability, cosine, score, p-value and verdict, or the error.

    A summary (.summary.json) and a page of the images with the highest scores (.html) are written beside the rows.
    """

    bundle: Path | None = option(None, "A bundle.", argument=True, required=True)
    paths: tuple[str, ...] = option(
        (),
        "Images, folders, archives, films, Parquet tables, .npy files, addresses such as s3://bucket/shard-000.tar; - (or "
        "nothing) reads a list from standard input.",
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
    resume: bool = option(
        False, "Go on with a run that was interrupted, or finished before new images came.", flags="--resume"
    )
    overwrite: bool = _overwrite()
    every: float = option(
        1.0, "Time between two frames of a film.", parse=_seconds, text=lambda value: f"{value:g}s", metavar="SECONDS"
    )
    select: int = option(
        0, "Also list so many images that teach most (.select.txt): flagged first, unlike each other.", least=0
    )
    fdr: float | None = option(
        None,
        "Flag images together (column flagged) so that at most this share of the flagged ones, such as 0.1, is false alarms "
        "in expectation.",
    )
    alpha: float | None = option(
        None, "Flag at another level than the bundle's; the calibration stays.", shown="the bundle's"
    )
    top: int = option(500, "Images on the page of those with the highest scores.", least=0)


@command("compare", "offaxis.cli.score:compare_bundles", "offaxis compare old.oax new.oax photos/test others/")
@dataclass(frozen=True, kw_only=True)
class CompareOptions(QuietOption, DeviceOption, CodeOptions):
    """Say for each folder what each of two bundles flags, and where they differ."""

    first: Path = option(..., "A bundle.", argument=True, metavar="A")
    second: Path = option(..., "Another bundle.", argument=True, metavar="B")
    paths: tuple[str, ...] = option(..., "Folders, images or archives, each counted by itself.", argument=True)
    out: Path | None = option(None, "A CSV file for the images on which they differ.")
    engine: EngineName = _engine()


@command("serve", "offaxis.cli.serve:serve_bundle", "offaxis serve digits.oax --port 8000", extra="serve")
@dataclass(frozen=True, kw_only=True)
class ServeOptions(DeviceOption, CodeOptions):
    """Serve a bundle over HTTP: POST /v1/predict, GET /v1/model, /v1/drift, /metrics, /healthz, /readyz, and a page at /.

    SIGHUP reads the bundle again: a new one is served once it has been checked, without a pause.
    """

    bundle: tuple[str, ...] = option(
        (), "A bundle, or several: each at /v1/models/NAME, by the name of its file.", argument=True, required=True
    )
    host: str = option("127.0.0.1", "Address to listen on; by default this machine alone is served.")
    port: int = option(8000, "Port to listen on.", least=0, most=65535)
    token_file: Path | None = option(
        None, "A file with the bearer tokens that are accepted, one a line (else OFFAXIS_TOKEN)."
    )
    token: str | None = option(None, None, hidden=True)
    allowed_host: tuple[str, ...] = option(
        (),
        "A name that the service is reached by, beside localhost; * for all. May be given again.",
        environment="OFFAXIS_ALLOWED_HOST",
    )
    workers: int = option(1, "Processes that share the port and the drift monitor.", least=1)
    state: Path | None = option(None, "Keep what the drift monitor has seen in this file, over restarts.")
    log_predictions: Path | None = option(None, "Append a line of JSON to this file for every image.")
    level: float = option(0.01, "Probability that the drift monitor ever raises a false alarm.")
    on_alarm: str | None = option(
        None, "At a drift alarm: an http(s) address that gets it as JSON, or a command that reads it.", metavar="CALL"
    )
    max_body: int = option(16, "Megabytes of one request.", least=1)
    max_images: int = option(32, "Images of one request.", least=1)
    max_pixels: int = option(16_000_000, "Pixels of one image.", least=1)
    max_request_pixels: int = option(128_000_000, "Pixels of all images of one request.", least=1)
    queue: int = option(256, "Images in work at a time; requests beyond it wait.", least=1)
    batch: int = option(32, "Images that go through the network together.", least=1)
    log: Literal["plain", "json"] = option("plain", "json: every request as a line of JSON, with its id.")
    engine: EngineName = _engine()


@command(
    "calibrate",
    "offaxis.cli.bundle:calibrate_bundle",
    "offaxis calibrate digits.oax photos/ --out digits-new.oax",
    "offaxis calibrate digits.oax --alpha 0.01 --overwrite",
)
@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(RunningOptions, CodeOptions):
    """Calibrate a bundle again, on other ID images or for another level; nothing is trained."""

    bundle: Path = option(
        ...,
        "A bundle; --overwrite without --out changes it in place, unless it is of the hub (hf:name/repo).",
        argument=True,
    )
    images: str | None = option(
        None,
        "ID images: a set (its test images), a folder or an archive; or a .npy file of feature vectors. Without any the "
        "calibration keeps its images.",
        argument=True,
    )
    out: Path | None = option(None, "Write another bundle.", shown="BUNDLE itself, with --overwrite")
    overwrite: bool = _overwrite()
    alpha: float | None = option(None, "Another level.", shown="unchanged")
    per_class: bool | None = option(None, "Verdicts per class.", shown="unchanged")
    confidence: float | None = option(
        None, "At most alpha with this probability over calibration sets; 0: on average.", shown="unchanged"
    )
    max_error: float | None = option(
        None,
        "Call images unsure, so that at most this share of the others has a wrong class; 0: none.",
        shown="unchanged",
    )
    skip_bad: bool = _skip_bad()
    drop_duplicates: bool = _drop_duplicates()


@command(
    "export",
    "offaxis.cli.bundle:export_bundle",
    "offaxis export digits.oax --onnx digits.onnx",
    "offaxis export digits.oax --onnx small.onnx --int8 --calibrate digits --ood letters",
    "offaxis export runs/cifar10 --published best.ckpt",
)
@dataclass(frozen=True, kw_only=True)
class ExportOptions(DataOption, CodeOptions):
    """Write a bundle as one ONNX graph (uint8 pixels in; logits, cosine, score and p-value out), or a network's weights."""

    bundle: Path = option(..., "A bundle; with --published also the folder of a training run.", argument=True)
    onnx: Path | None = option(None, "The ONNX file to write, by custom x.onnx.")
    int8: bool = option(False, "Convolutions on 8-bit integers; needs --calibrate.", flags="--int8")
    calibrate: str | None = option(None, "ID images for --int8 that nothing was trained on: a set, folder or archive.")
    ood: tuple[str, ...] = option((), "OOD images on which --int8 must not lose. May be given again.")
    published: Path | None = option(
        None, "A file for the weights of resnet18-32 or resnetN-cifar by their published names (OpenOOD)."
    )
    skip_bad: bool = _skip_bad()


@command(
    "evaluate",
    "offaxis.cli.evaluate:evaluate_networks",
    "offaxis evaluate runs/digits --ood letters,photographs,gaussian --out results/digits",
    "offaxis evaluate resnet18-32 --weights best.ckpt --benchmark openood-cifar10 --data data --out results/openood",
)
@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(RunningOptions, NetworkOption):
    """Compare detectors on trained networks; it can be stopped at any time and resumes where it stopped."""

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
    shifted: tuple[str, ...] = option(
        (),
        "Folders of the ID classes under other conditions, with commas: full-spectrum metrics count them as ID.",
        **_PARTS,
    )
    full_spectrum: bool = option(False, "The same with the benchmark's own lists.", flags="--full-spectrum")
    near: tuple[str, ...] = option(
        (), "Folders among the OOD sets that are near-OOD, by name, with commas; others count as far.", **_PARTS
    )
    skip_bad: bool = _skip_bad()
    tune: bool = option(True, "Report detectors that have a grid tuned too, beside their published values.")
    kind: Kind = option(
        "single", "The networks: each by itself (single), or as one: ensemble, paired, leave-out.", flags="--as"
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


@command("report", "offaxis.cli.evaluate:write_report", "offaxis report results/digits --out report")
@dataclass(frozen=True, kw_only=True)
class ReportOptions(DataOption):
    """Write tables (Markdown, CSV, LaTeX) and one self-contained page from stored results; no network is needed."""

    store: Path = option(..., "The folder that [cyan]offaxis evaluate --out[/cyan] was given.", argument=True)
    out: Path = option(..., "Folder for report.md, tables/ and index.html.")
    metrics: tuple[str, ...] = option(
        ("auroc", "accuracy_at_tpr95", "aupr_in"),
        f"Metrics with commas; the first one ranks: {', '.join(METRICS)}, oscr, ccr_at_fpr1, ccr_at_fpr10; each with "
        "full_spectrum_ before it where --shifted was given.",
        **_PARTS,
    )
    thumbnails: int = option(6, "Images with the highest and the lowest scores of each detector; 0 for none.", least=0)
    paper: bool = option(False, "Put the paper's numbers beside ours, where it has the same sets.")
    figures: bool = option(False, "Write figures for a paper too, as PDF and SVG, into OUT/figures.", flags="--figures")
    oracle: bool = option(False, "Rank detectors tuned on the tested set itself among the others, not apart from them.")
    title: str = option("Out-of-distribution detection", "Title of the page.")
    openood: Path | None = option(
        None,
        "Also write the results of --benchmark as OpenOOD's table, and as lines of its leaderboard beside it (x.csv and "
        "x-leaderboard.csv).",
    )

    def __post_init__(self) -> None:
        if not self.metrics or not set(self.metrics) <= set(RESULT_METRICS):
            raise ArgumentError(
                f"Expected metrics out of {', '.join(RESULT_METRICS)} but got {', '.join(self.metrics)!r}."
            )


@command("reproduce", "offaxis.cli.reproduce:reproduce_item", "offaxis reproduce one-vs-one --scale laptop --dry-run")
@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(RunningOptions):
    """Compute a table or a figure of the paper again; what is there already is not computed again."""

    item: str | None = option(
        None, "The table or figure, or all; without one, they are listed.", argument=True, shown=False
    )
    scale: str = option("laptop", "paper or laptop.")
    out: Path | None = option(None, "Folder for everything.", shown="reproduce/SCALE")
    runs: Path | None = option(None, "Folder with trained networks; what is there is used.", shown="OUT/runs")
    dry_run: bool = option(False, "Show what would be done, and how long it would take here.")
    list_steps: bool = option(
        False, "Print the commands, one a line; each can run on any machine, trainings first.", flags="--list"
    )
    devices: tuple[str, ...] = option(
        (),
        "Run a command at a time on each of these, with commas: cuda:0,cuda:1.",
        shown="one by one",
        **_PARTS,
    )
    launcher: Literal["here", "ray", "slurm"] = option(
        "here", "Who runs the commands: this machine, a Ray cluster, or a SLURM array, whose scripts go to OUT/slurm."
    )
    id: tuple[str, ...] | None = option(None, "ID sets with commas.", shown="the scale's", **_PARTS)
    seeds: int | None = option(None, "How many.", shown="the scale's", least=1)
    network: str | None = option(None, "Network in place of the scale's.", shown="the scale's")
    recipe: str | None = option(None, "Another recipe, in folders of its own.", shown="the scale's")
    epochs: int | None = option(None, "Epochs of each training.", shown="the recipe's", least=1)


@command(
    "paper", "offaxis.cli.paper:show_table", "offaxis paper one-vs-one --network wrn-28-10 --id cifar100 --metric auroc"
)
@dataclass(frozen=True, kw_only=True)
class PaperOptions(Options):
    """Print the paper's own numbers, as printed there."""

    name: str | None = option(None, "Which table; without it they are listed.", argument=True, metavar="[TABLE]")
    network: str | None = option(None, "This network only: densenet-100-12 or wrn-28-10.")
    id: str | None = option(None, "This ID set only: cifar10 or cifar100.")
    metric: str | None = option(None, "This metric only: auroc, aupr_in, accuracy_at_tpr.")
    csv: bool = option(False, "One line per number, with every name as printed.", flags="--csv")


@command("bench cost", "offaxis.cli.reproduce:print_cost", "offaxis bench cost --network wrn-16-4 --rounds 3")
@dataclass(frozen=True, kw_only=True)
class CostOptions(DeviceOption):
    """Measure the paper's table of computing times: seconds per batch for Mahalanobis, ODIN and the cosine score."""

    network: tuple[str, ...] = option(
        (), "wrn-DEPTH-WIDTH or densenet-DEPTH-GROWTH; repeatable.", shown="densenet-100-12 and wrn-28-10"
    )
    batch: int = option(128, "Images in a batch.", least=1)
    rounds: int = option(5, "Batches that the median is taken over.", least=1)
    as_json: bool = _as_json("One object a network, as JSON lines.")


@command("doctor", "offaxis.cli.doctor:report_installation", "offaxis doctor", "offaxis doctor --json")
@dataclass(frozen=True, kw_only=True)
class DoctorOptions(DataOption):
    """Show what is installed, which extras are missing, devices, threads and image sets: paste it into a bug report."""

    as_json: bool = _as_json("The same, as JSON.")
