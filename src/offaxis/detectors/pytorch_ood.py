"""Every detector of pytorch-ood 0.4.0 as a Detector (https://github.com/kkirchheim/pytorch-ood).

Those that score logits or features read the outputs that all detectors share, so they cost no pass of their own; the rest
are called with images. How each is constructed follows from the names of its constructor's arguments. pytorch-ood's scores
have the same sign: larger = more out-of-distribution.
"""

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from enum import StrEnum
from itertools import product
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from offaxis.detectors.base import Detector, Passes, Reads, State
from offaxis.detectors.odin import backbone_of, watching
from offaxis.detectors.statistics import HeadCopy
from offaxis.errors import ArgumentError, MissingPackageError, NotFittedError
from offaxis.heads import Outputs
from offaxis.networks.classifier import feature_tensor
from offaxis.networks.run import Batches, Network, eval_mode, prepared_batches, to_network


class Feed(StrEnum):
    """What a detector of pytorch-ood is given, as in the names of its methods: ``fit_logits``, ``predict_features``, ..."""

    LOGITS = "logits"
    FEATURES = "features"
    MAPS = "feature_maps"  # pooled features as maps of one pixel
    LAYERS = "structured"
    MODEL = "model"  # the network itself, called with images, and fitted on features if at all


_KINDS: dict[Feed, tuple[str, ...]] = {
    Feed.LOGITS: (
        "EnergyBased",
        "Entropy",
        "GEN",
        "KLMatching",
        "MaxLogit",
        "MaxSoftmax",
        "OpenMax",
        "TemperatureScaling",
        "WeightedEBO",
    ),
    Feed.FEATURES: (
        "DICE",
        "GMM",
        "KNN",
        "LTS",
        "MCM",
        "Mahalanobis",
        "NCI",
        "NNGuide",
        "PNML",
        "RMD",
        "SHE",
        "ViM",
        "fDBD",
    ),
    Feed.MAPS: ("ASH", "ReAct", "SCALE", "VRA"),
    Feed.LAYERS: ("MultiMahalanobis",),
    Feed.MODEL: ("GradNorm", "GradUncertainty", "Gram", "MCD", "MahalanobisODIN", "NACUE", "ODIN", "RankFeat"),
}
FED_WITH = {kind: feed for feed, kinds in _KINDS.items() for kind in kinds}
"""Class -> what it is given; the package itself is imported only where one is constructed."""

PASSES = {
    "GradNorm": Passes(1, 1),
    "GradUncertainty": Passes(1, 1),
    "MCD": Passes(30),
    "MahalanobisODIN": Passes(2, 1),
    "NACUE": Passes(1, 1),
    "ODIN": Passes(2, 1),
}
"""Passes per image, where they are not one forward."""

WITHOUT_DEFAULT = ("d", "p")
"""Hyperparameters to which pytorch-ood gives no value: ViM's dimension and DICE's share of zeroed weights."""

TECHNICAL = ("detector", "criterion", "param_filter", "feature_reduce", "device", "norm_std", "micro_batch_size")
"""Arguments with a default that are no hyperparameters."""


def pytorch_ood() -> Any:
    """Import the module ``pytorch_ood.detector``, or raise MissingPackageError with the way to install it."""
    try:
        return importlib.import_module("pytorch_ood.detector")
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"Expected the package pytorch-ood for the detectors pytorch-ood-... but {error.name} is not installed: "
            "pip install 'offaxis[pytorch-ood]'."
        ) from error
    except (ImportError, RuntimeError) as error:
        raise MissingPackageError(
            f"pytorch-ood imports torchvision, and that failed ({error}). torchvision must be built for the very torch "
            f"that is installed, {torch.__version__}: install a matching pair at once, as in 'pip install --force-reinstall "
            "torch torchvision' (see pytorch.org/get-started for the command of your platform)."
        ) from error


class PyTorchOOD(Detector):
    """A detector of pytorch-ood by its class name.

    With a cosine head the methods that need a linear one get unit features and unit axes (see ``HeadCopy``). The buffers
    hold the features or logits that it was fitted with, and a loaded detector is fitted with them again; Gram and NACUE
    keep theirs inside pytorch-ood and cannot be saved. Features and logits are passed in float32.

    Args:
        kind: the class, such as ``"DICE"``; ``FED_WITH`` lists them.
        keywords: arguments for its constructor, such as ``{"p": 0.9}``; None takes pytorch-ood's defaults.
        inner: the layers that Gram, NACUE, MultiMahalanobis and RankFeat (the last of them) read; None takes the
            network's own.
    """

    tunable = ("keywords",)
    options = ("kind", "inner")

    bank: Tensor
    labels: Tensor
    widths: Tensor

    def __init__(
        self, kind: str, keywords: Mapping[str, Any] | None = None, inner: Sequence[str] | None = None
    ) -> None:
        super().__init__()
        if kind not in FED_WITH:
            raise ArgumentError(f"Expected argument `kind` to be one of {', '.join(FED_WITH)} but got {kind!r}.")
        self.theirs = theirs = getattr(pytorch_ood(), kind)
        self.kind, self.keywords, self.inner = kind, dict(keywords or {}), tuple(inner or ())
        self.feed = FED_WITH[kind]
        self.parameters_of_theirs = parameters = inspect.signature(theirs).parameters
        tuned = [n for n, p in parameters.items() if p.default is not p.empty or n in WITHOUT_DEFAULT]
        self.has_hyperparameters = not set(tuned) <= set(TECHNICAL)
        unknown = self.keywords.keys() - parameters
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            raise ArgumentError(
                f"Expected arguments of pytorch-ood's {kind} ({', '.join(tuned) or 'it takes none'}) but got "
                f"{', '.join(sorted(unknown))}."
            )
        self._takes_layers = not inner  # those of the network that it is fitted with
        self.name = f"pytorch-ood-{kind.lower()}"
        self.paper = theirs.info.paper.url if theirs.info and theirs.info.paper else "https://arxiv.org/abs/2111.11374"
        self.uses = {Feed.LOGITS: ("logits",), Feed.LAYERS: ("layers",)}.get(self.feed, ("features",))
        of_model = self.feed is Feed.MODEL
        self.takes_head = not of_model and bool(parameters.keys() & {"head", "w", "text_embeddings"})
        self.fits_on_images = of_model and theirs.requires_fit and not hasattr(theirs, "fit_features")
        self.savable = not self.fits_on_images
        self.keeps_bank = theirs.requires_fit and not self.fits_on_images
        self.needs_fit = theirs.requires_fit or self.takes_head
        if self.keeps_bank:
            self.expect("bank", "labels", "widths")
        if self.takes_head:
            self.head = HeadCopy()
        # pytorch-ood's object, built at its first use, with its network; in a tuple, or the network would be a submodule
        self._built: tuple[Any, object] | None = None

    # what it is ------------------------------------------------------------------------------------------------------

    @property
    def reads(self) -> Reads:
        """Return images where the network itself is called, else layers or outputs."""
        return Reads.IMAGES if self.feed is Feed.MODEL else super().reads

    @property
    def passes(self) -> Passes:
        """Return the number of passes through the network that scoring one image takes."""
        return PASSES.get(self.kind, Passes(1))

    @property
    def layers(self) -> tuple[str, ...]:
        """Return the layers whose pooled features it reads."""
        return self.inner if self.feed is Feed.LAYERS else ()

    @property
    def grid(self) -> dict[str, tuple[dict[str, Any], ...]]:
        """Return pytorch-ood's search space, as constructor arguments; neighbours and dimensions up to those that there are.

        Arguments that were given and are not searched for stay.
        """
        space = self.theirs.hyperparameter_space
        bank = self._buffers.get("bank")
        most = {} if bank is None else {"k": len(bank), "d": bank.shape[1] - 1}
        values = [[v for v in own if name not in most or v <= most[name]] for name, own in space.items()]
        chosen = [dict(zip(space, each, strict=True)) for each in product(*values)]
        return {"keywords": tuple({**self.keywords, **each} for each in chosen)} if space else {}

    @property
    def state(self) -> State:
        """Return where the hyperparameters' values come from; none where pytorch-ood's class has none."""
        return super().state if self.has_hyperparameters else State.NONE

    @property
    def fitted(self) -> bool:
        """Return whether its buffers are filled; for Gram and NACUE, whether pytorch-ood's object is built."""
        return super().fitted and (not self.fits_on_images or self._built is not None)

    # fitting ---------------------------------------------------------------------------------------------------------

    def check_fitted(self) -> None:
        """Raise NotFittedError unless pytorch-ood's object takes the training images, where it keeps them."""
        super().check_fitted()
        if self.keeps_bank and self.feed is not Feed.MODEL:
            self._object()

    def clear(self) -> None:
        """Discard what fitting has filled, and pytorch-ood's object."""
        super().clear()
        self._built = None

    def begin(self, network: Network) -> None:
        """Copy the head where it is needed and start to collect."""
        self._built = None
        if self.feed is Feed.LAYERS and self._takes_layers:
            self.inner = tuple(network.layers)
        if self.takes_head:
            self.head.set(network.head)
        self._parts: list[tuple[list[Tensor], Tensor]] = []

    def update(self, outputs: Outputs, labels: Tensor) -> None:
        """Keep the inputs and the labels of a batch."""
        if self.keeps_bank:
            self._parts.append((self._inputs(outputs), labels))

    def finish(self) -> None:
        """Concatenate the collected features or logits into one buffer."""
        if self.keeps_bank:
            self.bank = torch.cat([torch.cat(inputs, 1) for inputs, _ in self._parts])
            self.labels = torch.cat([labels for _, labels in self._parts])
            self.widths = torch.tensor([part.shape[1] for part in self._parts[0][0]])
        del self._parts

    def fit_batches(self, network: Network, batches: Batches) -> None:
        """Let Gram and NACUE fit, which run the network themselves (NACUE twice over the batches)."""
        with unchanged(network), torch.random.fork_rng(devices=()):
            torch.manual_seed(0)  # Gram holds out a random part
            theirs = self.theirs(**self._arguments(self._of_network(network)))
            theirs.fit(PreparedLoader(network, batches))
        self._built = theirs, network

    # scoring ---------------------------------------------------------------------------------------------------------

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        inputs, theirs = self._inputs(outputs), self._object(outputs.logits.shape[1])
        if self.kind == "OpenMax":
            # Its distances are to the classes that some image of the batch is predicted as; the rest count as 0. One
            # more row per class makes every image's score its own.
            logits = torch.cat([inputs[0], torch.eye(inputs[0].shape[1], device=inputs[0].device)])
            scores = theirs.predict_logits(logits)[: len(inputs[0])]
        else:
            scores = self._call("predict", theirs, inputs)
        return torch.as_tensor(scores).to(outputs.logits.device)

    def score_images(self, network: Network, images: Tensor) -> Tensor:
        """Compute scores (N,) of images (N, c, h, w)."""
        if self.feed is not Feed.MODEL:
            return super().score_images(network, images)
        self.check_fitted()
        on_device = to_network(network, images)
        with unchanged(network), torch.random.fork_rng(devices=()):
            torch.manual_seed(0)  # MCD draws its dropout masks
            scores: Tensor = self._object(network=network).predict(on_device)
        return scores.detach()

    def _inputs(self, outputs: Outputs) -> list[Tensor]:
        """Return what pytorch-ood's object takes, in float32."""
        if self.feed is Feed.LOGITS:
            return [outputs.detection_logits.detach().float()]
        if self.feed is Feed.LAYERS:
            assert outputs.layers is not None
            return [outputs.layers[name].detach().float() for name in self.inner]
        features = self.head.inputs(outputs.features) if self.takes_head else outputs.features
        return [features.detach().float()]

    # pytorch-ood's object --------------------------------------------------------------------------------------------

    def _object(self, num_classes: int = 0, network: Network | None = None) -> Any:
        """Return pytorch-ood's object, built and fitted at its first use."""
        if self._built is None or self._built[1] is not network:
            parts = self._of_outputs(num_classes) if network is None else self._of_network(network)
            theirs = self.theirs(**self._arguments(parts))
            if self.keeps_bank:
                theirs.to(self.bank.device)
                inputs = [part.contiguous() for part in self.bank.split(self.widths.tolist(), 1)]
                try:
                    with torch.enable_grad():  # temperature scaling optimises
                        self._call("fit", theirs, inputs, self.labels)
                except (ValueError, RuntimeError) as error:
                    raise NotFittedError(
                        f"Expected training images that pytorch-ood's {self.kind} can be fitted on but it refuses them "
                        f"({error}): give it more, or other arguments."
                    ) from error
            self._built = theirs, network
        return self._built[0]

    def _arguments(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of pytorch-ood's constructor: those without a default, of parts, and what was given."""
        wanted = [name for name, p in self.parameters_of_theirs.items() if p.default is p.empty and name in parts]
        given = {k: torch.tensor(v) if k == "weights" else v for k, v in self.keywords.items()}
        return {**{name: parts[name] for name in wanted}, **given}

    def _of_outputs(self, num_classes: int) -> dict[str, Any]:
        """Return, by the names of arguments, what there is without a network: the copied head and defaults of ours."""
        parts: dict[str, Any] = {"encoder": None, "backbone": None, "p": 0.7, "weights": torch.ones(num_classes)}
        parts["model"] = [nn.Identity()] * max(len(self.inner), 1) if self.feed is Feed.LAYERS else None
        if self.takes_head:
            weight, bias = self.head.weight.float(), self.head.bias.float()
            linear = nn.Linear(weight.shape[1], weight.shape[0], device=weight.device).requires_grad_(False)
            linear.load_state_dict({"weight": weight, "bias": bias})
            head = nn.Sequential(nn.Flatten(), linear) if self.feed is Feed.MAPS else linear
            parts |= {"head": head, "w": weight, "b": bias, "text_embeddings": weight, "d": weight.shape[1] // 2}
        return parts

    def _of_network(self, network: Network) -> dict[str, Any]:
        """Return, by the names of arguments, the parts of a network."""
        names, backbone = self.inner or tuple(network.layers), backbone_of(network)
        passed: dict[str, Any] = {}  # Gram calls layer after layer, and then the head: one pass gives them all

        def first(images: Tensor) -> Any:
            with watching(backbone, names, passed.__setitem__):
                passed[""] = network.head(feature_tensor(backbone(images)))
            return passed[names[0]]

        def last(images: Tensor) -> Any:
            with watching(backbone, names[-1:], passed.__setitem__):
                backbone(images)
            return passed[names[-1]]

        takes_maps = "backbone" in self.parameters_of_theirs
        return {
            "model": FixedBatchNorm(network),
            "encoder": lambda images: network.outputs(images).features,
            "layers": [backbone.get_submodule(name) for name in names],
            "feature_layers": [first, *[lambda _, name=name: passed[name] for name in names[1:]]],
            "num_classes": network.num_classes,
            "backbone": last,
            "head": lambda maps: network.head(maps.mean((2, 3))) if takes_maps else passed[""],
        }

    def _call(self, verb: str, theirs: Any, inputs: list[Tensor], *labels: Tensor) -> Any:
        """Call pytorch-ood's method, ``fit_...`` or ``predict_...``, for what it is given."""
        arguments: list[Any] = [inputs] if self.feed is Feed.LAYERS else inputs
        if self.feed is Feed.MAPS:
            arguments = [inputs[0][:, :, None, None]]
        what = Feed.FEATURES if self.feed is Feed.MODEL else self.feed
        return getattr(theirs, f"{verb}_{what}")(*arguments, *labels)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self._built = None  # it holds tensors of its own where the buffers were
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # PyTorch's
        return self

    def _load_from_state_dict(self, *arguments: Any) -> None:
        self._built = None
        super()._load_from_state_dict(*arguments)


@contextmanager
def unchanged(network: Network) -> Iterator[None]:
    """Set eval mode inside the block; afterwards restore modes and gradients, whatever was called."""
    modes = [(module, module.training) for module in network.modules()]
    gradients = [(parameter, parameter.grad) for parameter in network.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        with eval_mode(network), torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter, gradient in gradients:
            parameter.grad = gradient


class FixedBatchNorm(nn.Module):
    """A network whose batch normalisations keep their statistics when dropout is switched on for sampling."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.eval()

    def forward(self, images: Tensor) -> Any:
        """Compute logits (N, C) of images (N, c, h, w)."""
        return self.network(images)

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all but the batch normalisations."""
        for module in self.modules():
            module.training = mode and not isinstance(module, _BatchNorm)
        return self


class PreparedLoader:
    """Batches as pytorch-ood's ``fit`` takes them: on the network's device, with a length; re-iterable if they were."""

    def __init__(self, network: Network, batches: Batches) -> None:
        self.network, self.batches = network, batches

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        return prepared_batches(self.network, self.batches, labels=True)

    def __len__(self) -> int:
        return len(self.batches) if isinstance(self.batches, Sized) else 0
