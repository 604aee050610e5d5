"""Classifier = backbone + head."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Self, overload

import torch
from torch import Tensor, nn

from offaxis.data.images import TOKENS, stack_tokens
from offaxis.errors import ArgumentError
from offaxis.heads import Head, Outputs

if TYPE_CHECKING:
    from offaxis.data import Normalise
    from offaxis.training.check import TrainingCheck


class Classifier(nn.Module):
    """An image classifier whose output layer is one of ``offaxis.heads``.

    ``forward`` computes logits, so any training loop with ``cross_entropy`` works; ``outputs`` computes all that a
    detector reads in the same single forward pass.

    Attributes:
        in_channels: the channels of the images that the backbone takes, by its first convolution; None where it has none.
        takes_tokens: whether the backbone takes texts, as those of transformers do.
        builder: how a bundle rebuilds the backbone, where it came from one; see offaxis.networks.library.
        replaced: the name of the output layer whose place the head takes; None where ``attach`` did not make this.

    Args:
        backbone: images -> features (N, d), or anything ``feature_tensor`` can read them from.
        head: features -> Outputs.
        layers: names of the backbone's submodules that multi-layer methods read by default.
        freeze: train the head alone. The backbone's parameters then get no gradient and its normalisations keep their
            statistics, in train mode too.
        origin: which function of offaxis.networks made the backbone and its arguments, as JSON can hold them.
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: Head,
        layers: Sequence[str] = (),
        freeze: bool = False,
        origin: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.origin = origin
        self.builder: dict[str, Any] | None = None
        self.replaced: str | None = None
        self.backbone = backbone
        self.head = head
        self.layers = tuple(layers)
        first = next((part for part in backbone.modules() if isinstance(part, nn.Conv2d)), None)
        self.in_channels = None if first is None else first.in_channels
        self.takes_tokens = TOKENS[0] in signature(backbone.forward).parameters
        self.frozen = False
        self.unfrozen_from: str | None = None
        if freeze:
            self.freeze()

    @property
    def num_classes(self) -> int:
        """Return C, the number of classes."""
        return self.head.num_classes

    def train(self, mode: bool = True) -> Self:
        """Set train or eval mode; a frozen backbone stays in eval mode."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
            for module in self._trained_modules():
                module.train(mode)
        return self

    def freeze(self, unfreeze: str | None = None) -> Self:
        """Train the head alone, or the head and the layers of the backbone from one on.

        The other parameters get no gradient, and their normalisations keep their statistics, in train mode too.

        Args:
            unfreeze: the name of the first layer of the backbone that is trained, such as ``layer4``; those after it, in the
                order of ``named_modules()``, are trained too. None for none.

        Raises:
            ArgumentError: the backbone has no such layer.
        """
        names = [name for name, _ in self.backbone.named_modules()]
        if unfreeze is not None and unfreeze not in names[1:]:  # the first is the backbone itself
            outer = [name for name, _ in self.backbone.named_children()]
            raise ArgumentError(
                f"Expected a layer of the network to train from on but got {unfreeze!r}. Its outermost layers are "
                f"{', '.join(outer)}; layers inside are named as in {names[-1]}."
            )
        self.frozen, self.unfrozen_from = True, unfreeze
        self.backbone.requires_grad_(False)
        for module in self._trained_modules():
            module.requires_grad_(True)
        return self.train(self.training)

    def _trained_modules(self) -> list[nn.Module]:
        """Return the layers of a frozen backbone that are trained all the same."""
        if self.unfrozen_from is None:
            return []
        named = dict(self.backbone.named_modules())
        return list(named.values())[list(named).index(self.unfrozen_from) :]

    def features(self, images: Tensor) -> Tensor:
        """Compute the features (N, d), the input of the head, of images (N, c, h, w).

        A text classifier takes tokens int64 (N, k, L): ``input_ids``, ``attention_mask`` and, for k = 3, ``token_type_ids``.

        Raises:
            ArgumentError: the images have another number of channels or another type than the network takes.
        """
        if self.takes_tokens and isinstance(images, Tensor):
            return feature_tensor(self.backbone(**dict(zip(TOKENS, images.unbind(1), strict=False))))
        if not isinstance(images, Tensor) or not images.is_floating_point():
            came = images.dtype if isinstance(images, Tensor) else f"a {type(images).__name__}"
            raise ArgumentError(
                f"Expected images as a tensor (N, c, h, w) in floating point, normalised as in training, but got {came}: "
                "Normalise(mean, std)(pixels) makes one; for image files and PIL images there is Model.predict."
            )
        expected = self.in_channels
        if expected is not None and images.dim() == 4 and images.shape[1] != expected:
            raise ArgumentError(
                f"Expected images (N, {expected}, h, w), as the network takes, but got {tuple(images.shape)}. Grey images "
                "become three channels by images.expand(-1, 3, -1, -1), colour images one by image.convert('L') of Pillow; "
                "images of (N, height, width, channels) need images.permute(0, 3, 1, 2)."
            )
        try:
            return feature_tensor(self.backbone(images))
        except RuntimeError as error:
            own = next((part.dtype for part in self.backbone.parameters()), images.dtype)
            if images.dtype == own:
                raise
            raise ArgumentError(f"Expected images in {own} but got {images.dtype}: images.to({own}).") from error

    def forward(
        self,
        images: Tensor | None = None,
        *,
        pixel_values: Tensor | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Any:
        """Compute logits (N, C) of images (N, c, h, w).

        Args:
            images: normalised as in training.
            pixel_values: the same, as transformers calls them.
            input_ids: the tokens (N, L) of texts, in place of images.
            attention_mask: int64 (N, L), 0 where a token is padding.
            token_type_ids: int64 (N, L), which of two texts a token is of.
            labels: (N,); with them the result is a dictionary of ``loss``, that of the head, and ``logits``, as the trainers
                of transformers read it.
        """
        tokens = None if input_ids is None else stack_tokens(input_ids, attention_mask, token_type_ids)
        given = [each for each in (images, pixel_values, tokens) if each is not None]
        if len(given) != 1:
            raise ArgumentError(
                "Expected images (N, c, h, w), pixel_values= of that shape or input_ids= (N, L), and one of them alone."
            )
        features = self.features(given[0])
        if labels is None:
            return self.head(features)
        out = self.head.outputs(features)
        return {"loss": self.head.loss(out, labels), "logits": out.logits}

    if TYPE_CHECKING:

        @overload
        def __call__(self, images: Tensor) -> Tensor: ...
        @overload
        def __call__(self, images: Tensor | None = None, **inputs: Tensor | None) -> Any: ...
        def __call__(self, *args: Any, **inputs: Any) -> Any:
            """Compute logits, as ``forward`` does."""

    def outputs(self, images: Tensor, layers: Iterable[str] = ()) -> Outputs:
        """Compute all outputs for a batch in one forward pass.

        Args:
            images: (N, c, h, w), normalised as in training.
            layers: names of submodules of the backbone whose outputs are needed too, each pooled to (N, d_l): the mean
                over positions of a map (N, c, h, w) or over tokens (N, t, d). ``""`` is the backbone itself: the features.
        """
        names = tuple(layers)
        if not names:
            return self.head.outputs(self.features(images))
        with _recording(self.backbone, names) as recorded:
            out = self.head.outputs(self.features(images))
        return out._replace(layers=recorded)

    def check_training(self, data: Any, *, normalise: "Normalise | None" = None) -> "TrainingCheck":
        """Check on labelled images that a training has taught the network something, and warn where it has not.

        For loops of one's own; ``offaxis.train`` checks by itself. A few hundred training images suffice: accuracy and
        loss are compared with guessing, the accuracy also with what the features allow, and a collapsed scale is named.

        Args:
            data: a DataLoader or a list of batches (images normalised as in training, labels); or, with ``normalise``,
                an ImageSet, a dataset or a pair of tensors (images, labels).
            normalise: mean and std of the training images; None where the images are normalised already.

        Returns:
            The numbers, and ``problems``: a sentence for each warning.

        Raises:
            DataError: there are no images or no labels.
            BadOutputsError: the network gives NaN or infinite numbers.
        """
        from offaxis.training.check import check_training  # it runs networks, which are defined here

        return check_training(self, data, normalise)

    def parameter_groups(
        self,
        weight_decay: float,
        decay_head: bool = False,
        backbone_rate: float | None = None,
        learning_rate: float | None = None,
    ) -> list[dict[str, Any]]:
        """Return parameter groups for an optimiser: weight decay for all trainable parameters but the cosine weight.

        Args:
            weight_decay: decay of the first group; the second has none.
            decay_head: decay the cosine weight (and its ``hidden`` layer) too, as rows 3-7 and 9 of the ablation do.
            backbone_rate: where it is given, the backbone is a group of its own, whose entry ``rate`` is this factor of the
                learning rate. ``offaxis.train`` reads it; other loops do not, and need ``learning_rate`` here as well.
            learning_rate: where it is given, each group has its ``lr``, which any optimiser takes: this rate, that of the
                backbone times ``backbone_rate``.
        """
        spared = set() if decay_head else {f"head.{name}" for name in self.head.undecayed}
        slow: dict[str, Any] = {"params": [], "weight_decay": weight_decay, "rate": backbone_rate}
        decayed: dict[str, Any] = {"params": [], "weight_decay": weight_decay}
        undecayed: dict[str, Any] = {"params": [], "weight_decay": 0.0}
        for name, parameter in self.named_parameters():
            inner = backbone_rate is not None and name.startswith("backbone.")
            if parameter.requires_grad:
                (slow if inner else undecayed if name in spared else decayed)["params"].append(parameter)
        groups = [group for group in (slow, decayed, undecayed) if group["params"]]
        if learning_rate is not None:
            for group in groups:
                group["lr"] = learning_rate * group.get("rate", 1.0)
        return groups


class FeatureInput(nn.Module):
    """The backbone of a classifier of feature vectors: it divides them by one number, so that units do not matter.

    Args:
        unit: the root mean square of the training features.
    """

    unit: Tensor

    def __init__(self, unit: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("unit", torch.tensor(unit, dtype=torch.float64))

    def forward(self, rows: Tensor) -> Tensor:
        """Compute features (N, d) of rows (N, d)."""
        return rows / self.unit.to(rows.dtype)


def feature_tensor(out: Any) -> Tensor:
    """Return the tensor in a backbone's output: the output itself, or the ``logits`` of a transformers output."""
    features = getattr(out, "logits", out)
    if not isinstance(features, Tensor):
        raise ArgumentError(
            f"Expected the network to return a tensor or an object with `logits` but got {type(out).__name__}. Networks "
            "with several outputs (auxiliary classifiers, distillation) must be made with a single one."
        )
    return features


def pooled(out: Any, channels_last: bool = False) -> Tensor:
    """Pool a layer's output to (N, d): the mean over positions of a map, over tokens of a sequence.

    Args:
        out: (N, c, h, w), (N, t, d), (N, d), or a tuple whose first element is one of these.
        channels_last: maps are (N, h, w, c), as in Swin transformers.
    """
    whole = getattr(out, "logits", out)  # of a whole network of transformers, whose output layer is an identity
    tensor = out[0] if isinstance(out, (tuple, list)) else getattr(out, "last_hidden_state", whole)
    if not isinstance(tensor, Tensor) or tensor.dim() < 2:
        raise ArgumentError(f"Expected a layer that gives maps, tokens or vectors but got {type(out).__name__}.")
    if tensor.dim() > 3 and not channels_last:
        return tensor.flatten(2).mean(2)
    return tensor.flatten(1, -2).mean(1) if tensor.dim() > 2 else tensor


def has_channels_last(backbone: nn.Module) -> bool:
    """Return whether a network's maps are (N, h, w, c), as Swin's are: timm declares it, torchvision does not."""
    return getattr(backbone, "output_fmt", "") == "NHWC" or type(backbone).__name__ == "SwinTransformer"


@contextmanager
def _recording(backbone: nn.Module, names: tuple[str, ...]) -> Iterator[dict[str, Tensor]]:
    """Pool the outputs of named submodules inside the block."""
    modules, channels_last = dict(backbone.named_modules()), has_channels_last(backbone)
    unknown = [name for name in names if name not in modules]
    if unknown:
        raise ArgumentError(
            f"Expected names of layers of the network but got {', '.join(map(repr, unknown))}. Its outermost layers "
            f"are {', '.join(name for name, _ in backbone.named_children())}; named_modules() of the backbone lists all."
        )
    recorded: dict[str, Tensor] = {}

    def keep(name: str, _module: nn.Module, _inputs: Any, out: Any) -> None:
        recorded[name] = pooled(out, channels_last)

    hooks = [modules[name].register_forward_hook(partial(keep, name)) for name in names]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()
