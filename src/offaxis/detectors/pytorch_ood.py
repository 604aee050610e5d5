"""Every detector of pytorch-ood 0.4.0 as a Detector (https://github.com/kkirchheim/pytorch-ood).

Those that score logits or features read the outputs that all detectors share, so they cost no pass of their own; the rest
are called with images. pytorch-ood's scores have the same sign: larger = more out-of-distribution.
"""

import importlib
import inspect
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Self

import torch
from torch import Tensor, nn

from offaxis.detectors.base import Detector, Passes, Reads, State
from offaxis.detectors.pytorch_ood_table import (
    PASSES,
    TABLE,
    Feed,
    NetworkParts,
    PreparedLoader,
    network_parts,
    unchanged,
)
from offaxis.detectors.statistics import HeadCopy
from offaxis.errors import ArgumentError, MissingPackageError, NotFittedError
from offaxis.heads import Outputs
from offaxis.networks.run import Batches, Network, to_network

FITTED_BY_IMAGES = ("Gram", "NACUE")
NOT_HYPERPARAMETERS = (
    "self model encoder backbone head w b feature_layers layers num_classes weights text_embeddings "
    "detector criterion norm_std feature_reduce device knn_kwargs micro_batch_size param_filter args kwargs"
)


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
        kind: the class, such as ``"DICE"``; ``TABLE`` lists them.
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
        if kind not in TABLE:
            raise ArgumentError(f"Expected argument `kind` to be one of {', '.join(TABLE)} but got {kind!r}.")
        theirs = getattr(pytorch_ood(), kind)
        parameters = inspect.signature(theirs).parameters
        unknown = set(keywords or ()) - set(parameters)
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            known = [name for name in parameters if name not in NOT_HYPERPARAMETERS.split()]
            raise ArgumentError(
                f"Expected arguments of pytorch-ood's {kind} ({', '.join(known) or 'it takes none'}) but got "
                f"{', '.join(sorted(unknown))}."
            )
        self.kind, self.keywords, self.inner = kind, dict(keywords or {}), tuple(inner or ())
        self.feed, self.takes_head, self.build = TABLE[kind]
        self._takes_layers = not inner  # those of the network that it is fitted with
        self.name = f"pytorch-ood-{kind.lower()}"
        self.paper = theirs.info.paper.url if theirs.info and theirs.info.paper else "https://arxiv.org/abs/2111.11374"
        self.space: dict[str, list[Any]] = theirs.hyperparameter_space
        self.has_hyperparameters = bool(set(parameters) - set(NOT_HYPERPARAMETERS.split()))
        self.uses = {Feed.LOGITS: ("logits",), Feed.LAYERS: ("layers",)}.get(self.feed, ("features",))
        self.fits_on_images = kind in FITTED_BY_IMAGES
        self.savable = not self.fits_on_images
        self.keeps_bank = bool(theirs.requires_fit) and not self.fits_on_images
        self.needs_fit = bool(theirs.requires_fit) or self.takes_head
        if self.keeps_bank:
            self.expect("bank", "labels", "widths")
        if self.takes_head:
            self.head = HeadCopy()
        # pytorch-ood's object, built at its first use, with its network; in a tuple, or the network would be a submodule
        self._built: tuple[Any, object] | None = None
        self._num_classes: int | None = None  # of the network that it was fitted with

    # what it is ------------------------------------------------------------------------------------------------------

    @property
    def reads(self) -> Reads:
        """Return images where the network itself is called, else layers or outputs."""
        return Reads.IMAGES if self.feed is Feed.MODEL else super().reads

    @property
    def passes(self) -> Passes:
        """Return the number of passes through the network that scoring one image takes."""
        return Passes(*PASSES.get(self.kind, (1, 0)))

    @property
    def layers(self) -> tuple[str, ...]:
        """Return the layers whose pooled features it reads."""
        return self.inner if self.feed is Feed.LAYERS else ()

    @property
    def grid(self) -> dict[str, tuple[dict[str, Any], ...]]:
        """Return pytorch-ood's search space, as constructor arguments; neighbours and dimensions up to those that there are.

        Arguments that were given and are not searched for stay.
        """
        if not self.space:
            return {}
        bank = self._buffers.get("bank")
        most = {} if bank is None else {"k": len(bank), "d": bank.shape[1] - 1}
        values = [[v for v in own if name not in most or v <= most[name]] for name, own in self.space.items()]
        chosen = [dict(zip(self.space, each, strict=True)) for each in product(*values)]
        return {"keywords": tuple({**self.keywords, **each} for each in chosen)}

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
        if self._num_classes is not None and self.keeps_bank and self.feed is not Feed.MODEL:
            linear = self._linear() if self.takes_head else None
            self._object(NetworkParts(num_classes=self._num_classes, linear=linear), None)

    def clear(self) -> None:
        """Discard what fitting has filled, and pytorch-ood's object."""
        super().clear()
        self._discard()

    def begin(self, network: Network) -> None:
        """Copy the head where it is needed and start to collect."""
        self._discard()
        self._num_classes = network.num_classes
        if self.feed is Feed.LAYERS and self._takes_layers:
            self.inner = tuple(network.layers)
        if self.takes_head:
            self.head.set(network.head)
        self._parts: list[tuple[Tensor, Tensor]] = []

    def update(self, outputs: Outputs, labels: Tensor) -> None:
        """Keep the inputs and the labels of a batch."""
        if self.keeps_bank:
            inputs = self._inputs(outputs)
            self._widths = [part.shape[1] for part in inputs]
            self._parts.append((torch.cat(inputs, 1), labels))

    def finish(self) -> None:
        """Concatenate the collected features or logits into one buffer."""
        if self.keeps_bank:
            if not self._parts:
                raise NotFittedError("Expected training images to fit on but there were none.")
            self.bank = torch.cat([part for part, _ in self._parts])
            self.labels = torch.cat([labels for _, labels in self._parts])
            self.widths = torch.tensor(self._widths)
        del self._parts

    def fit_batches(self, network: Network, batches: Batches) -> None:
        """Fit on training images; Gram and NACUE run the network themselves (NACUE twice over the batches)."""
        if not self.fits_on_images:
            super().fit_batches(network, batches)
            return
        self._discard()
        with unchanged(network), torch.random.fork_rng(devices=()):
            torch.manual_seed(0)  # Gram holds out a random part
            theirs = self._object(network_parts(network, self.inner), network)
            self._discard()  # it is fitted once their fit has ended well
            theirs.fit(PreparedLoader(network, batches))
        self._built = theirs, network

    # scoring ---------------------------------------------------------------------------------------------------------

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        inputs = self._inputs(outputs)
        linear = self._linear() if self.takes_head else None
        theirs = self._object(NetworkParts(num_classes=outputs.logits.shape[1], linear=linear), None)
        if self.kind == "OpenMax":
            # Its distances are to the classes that some image of the batch is predicted as; the rest count as 0. One
            # more row per class makes every image's score its own.
            logits = torch.cat([inputs[0], torch.eye(inputs[0].shape[1], device=inputs[0].device)])
            scores = theirs.predict_logits(logits)[: len(inputs[0])]
        elif self.feed is Feed.LOGITS:
            scores = theirs.predict_logits(*inputs)
        elif self.feed is Feed.FEATURES:
            scores = theirs.predict_features(*inputs)
        elif self.feed is Feed.MAPS:
            scores = theirs.predict_feature_maps(inputs[0][:, :, None, None])
        else:
            scores = theirs.predict_structured(inputs)
        return torch.as_tensor(scores).to(outputs.logits.device)

    def score_images(self, network: Network, images: Tensor) -> Tensor:
        """Compute scores (N,) of images (N, c, h, w)."""
        if self.feed is not Feed.MODEL:
            return super().score_images(network, images)
        self.check_fitted()
        on_device = to_network(network, images)
        with unchanged(network), torch.random.fork_rng(devices=()):
            torch.manual_seed(0)  # MCD draws its dropout masks
            scores: Tensor = self._object(network_parts(network, self.inner), network).predict(on_device)
        return scores.detach()

    def grid_scores_images(self, network: Network, images: Tensor) -> Tensor:
        """Compute scores (N, S) over the grid."""
        if self.feed is not Feed.MODEL:
            return super().grid_scores_images(network, images)
        return torch.stack(
            [self.with_hyperparameters(**setting).score_images(network, images) for setting in self.settings], 1
        )

    def _inputs(self, outputs: Outputs) -> list[Tensor]:
        """Return what pytorch-ood's object takes, in float32."""
        if self.feed is Feed.LOGITS:
            return [outputs.detection_logits.detach().float()]
        if self.feed is Feed.LAYERS:
            assert outputs.layers is not None
            return [outputs.layers[name].detach().float() for name in self.inner]
        features = self.head.inputs(outputs.features) if self.takes_head else outputs.features
        return [features.detach().float()]

    def _linear(self) -> nn.Linear:
        """Return the copied head as an ``nn.Linear``."""
        weight, bias = self.head.weight.float(), self.head.bias.float()
        linear = nn.Linear(weight.shape[1], weight.shape[0], device=weight.device)
        linear.load_state_dict({"weight": weight, "bias": bias})
        return linear.requires_grad_(False)

    def _object(self, parts: NetworkParts, network: object) -> Any:
        """Return pytorch-ood's object, built and fitted at its first use."""
        if self._built is None or self._built[1] is not network:
            layers = parts.layers or [nn.Identity()] * len(self.inner)
            theirs = self.build(pytorch_ood(), parts._replace(layers=layers), self.keywords)
            if self.keeps_bank:
                theirs.to(self.bank.device)
                try:
                    with torch.enable_grad():  # temperature scaling optimises
                        self._fit_with_bank(theirs)
                except (ValueError, RuntimeError) as error:
                    raise NotFittedError(
                        f"Expected training images that pytorch-ood's {self.kind} can be fitted on but it refuses them "
                        f"({error}): give it more, or other arguments."
                    ) from error
            self._built = theirs, network
        return self._built[0]

    def _fit_with_bank(self, theirs: Any) -> None:
        inputs = [part.contiguous() for part in self.bank.split(self.widths.tolist(), 1)]
        if self.feed is Feed.LOGITS:
            theirs.fit_logits(*inputs, self.labels)
        elif self.feed is Feed.LAYERS:
            theirs.fit_structured(inputs, self.labels)
        elif self.feed is Feed.MAPS:
            theirs.fit_feature_maps(inputs[0][:, :, None, None], self.labels)
        else:
            theirs.fit_features(*inputs, self.labels)

    def _discard(self) -> None:
        self._built = None

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self._discard()  # it holds tensors of its own where the buffers were
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # PyTorch's
        return self

    def _load_from_state_dict(self, *arguments: Any) -> None:
        self._discard()
        super()._load_from_state_dict(*arguments)
