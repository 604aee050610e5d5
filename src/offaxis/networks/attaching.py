"""attach(): replace the output layer of any network by one of ``offaxis.heads``, or keep it as it was trained."""

import copy
import re
from typing import Any

import torch
from torch import nn

from offaxis.errors import ArgumentError, AttachError
from offaxis.heads import HeadLike, LinearHead, make_head
from offaxis.networks.classifier import Classifier
from offaxis.networks.run import eval_mode, tracing

COMMON_NAMES = ("fc", "classifier", "head", "heads", "output", "out", "logits", "score")


def attach(
    model: nn.Module,
    head: HeadLike = "cosine",
    num_classes: int | None = None,
    *,
    layer: str | None = None,
    freeze: bool = False,
) -> Classifier:
    """Make a Classifier of a network: replace its last linear layer by one of our heads, or keep it.

    The network itself becomes the backbone (it is changed in place: an identity replaces its output layer), so pretrained
    weights are kept and the head gets the same input as the old layer, bit for bit.

    With ``head="keep"`` the trained output layer becomes the head: the logits are equal bit for bit, nothing must be trained,
    and every detector that reads logits or features can score the network. The model itself stays usable; its weights are
    shared with the Classifier.

    Args:
        model: a timm, torchvision or transformers image classifier, a text classifier of transformers, or any module whose
            output is a linear layer's; one logit, behind a sigmoid, stands for two classes. Of one that torch.compile,
            DataParallel or DistributedDataParallel has wrapped, the network inside is taken.
        head: ``"cosine"``, ``"linear"``, ``"keep"``, or a callable (in_features, num_classes) -> Head.
        num_classes: the number of classes of the new head; None keeps the old layer's, two where it has a single logit.
        layer: dotted name of the output layer, where it cannot be found automatically.
        freeze: train the head alone on a frozen backbone.

    Raises:
        AttachError: there is no linear output layer, or more than one candidate; the message lists them. Or a softmax, a
            division by a temperature or the like follows it, or the network does not call it, as far as the network can be
            traced. Or the layer to keep is not plainly linear.
        ArgumentError: ``num_classes`` differs from that of the layer that is kept.

    Examples:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 5)).eval()
        >>> images = torch.rand(2, 3, 2, 2)
        >>> bool((attach(model, head="keep")(images) == model(images)).all())
        True
    """
    if not isinstance(model, nn.Module):
        raise AttachError(
            f"Expected a network, a torch.nn.Module, but got a {type(model).__name__}: timm.create_model(name), or "
            'offaxis.open_network("timm:resnet18", pretrained=True), which opens networks by their names.'
        )
    while (inside := _wrapped(model)) is not None:
        model = model.get_submodule(inside)
        layer = None if layer is None else layer.removeprefix(f"{inside}.")
    if isinstance(model, Classifier):
        raise AttachError(
            f"Expected a network of your own but got a Classifier, which has a head already ({type(model.head).__name__}): use "
            "it as it is, or give it another, Classifier(classifier.backbone, offaxis.CosineHead(d, C))."
        )
    _check_task(model)
    graph = _traced(model)
    name = layer if layer is not None else _find(model, graph)
    try:
        old: nn.Module | None = model.get_submodule(name)
    except AttributeError:
        old = None
    if not isinstance(old, nn.Linear) or name == "":
        found = "is not there" if old is None else f"is a {type(old).__name__}"
        raise AttachError(
            f"Expected `layer` to name a module of the network, its output layer, an nn.Linear, but {name or 'the network'!r} "
            f"{found}. {_linear_candidates(model)}"
        )
    if graph is not None:
        _check_last(model, name, graph)
    classes = max(2, old.out_features)  # one logit tells two classes apart
    if head == "keep":
        if num_classes not in (None, classes):
            raise ArgumentError(
                f"Expected the {classes} classes of the output layer that is kept but got num_classes={num_classes}: "
                "leave it out, or train another head, attach(model, head='cosine', num_classes=...)."
            )
        backbone = _copy_until(model, name)
        kept = Classifier(backbone, LinearHead.from_layer(old).train(old.training), freeze=freeze)
        kept.replaced = name
        if freeze:
            return kept.train(model.training)
        kept.training = model.training  # of it alone: the modules that are shared stay in their modes
        return kept
    new = make_head(head, old.in_features, num_classes or classes)
    new.to(old.weight.device, old.weight.dtype)
    parent, _, child = name.rpartition(".")
    while child == _wrapped(model.get_submodule(parent)):  # a compiled layer would still run
        parent, _, child = parent.rpartition(".")
    setattr(model.get_submodule(parent), child, nn.Identity())
    made = Classifier(model, new, freeze=freeze).train(model.training)
    made.replaced = name
    return made


_TASKS = ("ImageClassification", "ImageClassificationWithTeacher", "SequenceClassification")
UNSUPPORTED = (
    "Supported are classifiers that give an image, or a text, one class: by a softmax, or by a sigmoid for two classes. "
    "Several labels at once, numbers (regression), boxes, masks and labels of tokens are not: score the features of whole "
    "images of such a network with offaxis.EmbeddingDetector."
)


def _check_task(model: nn.Module) -> None:
    """Raise AttachError where a network of transformers or torchvision says that it does something else than classify."""
    name, library = type(model).__name__, type(model).__module__
    task = re.search("For([A-Z].*)", name) if library.startswith("transformers.") else None  # but not SwiftFormer's
    kind: Any = getattr(getattr(model, "config", None), "problem_type", None)
    kind = kind if kind in ("regression", "multi_label_classification") else None
    dense = next((each for each in ("detection", "segmentation") if f"torchvision.models.{each}" in library), None)
    if found := kind or dense or (task[1] if task and task[1] not in _TASKS else None):
        raise AttachError(f"Expected a classifier but {name} is for another task ({found}). {UNSUPPORTED}")


def _wrapped(model: nn.Module) -> str | None:
    """Return the name of the network inside a wrapper that compiles or distributes it; None where it is no wrapper."""
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return "module"
    # that of torch.compile, whose class is slow to import
    return "_orig_mod" if isinstance(getattr(model, "_orig_mod", None), nn.Module) else None


def _copy_until(model: nn.Module, name: str) -> nn.Module:
    """Return the network with an identity in place of a layer; all but the modules around that layer are shared.

    Wrappers around the layer are left out: torch.compile's passes on to the network itself what is written to its copy.
    """
    inside = _wrapped(model)
    if inside is not None and name != inside:
        return _copy_until(model.get_submodule(inside), name.removeprefix(f"{inside}."))
    first, _, rest = name.partition(".")
    inner = model.get_submodule(first)
    new = _copy_until(inner, rest) if rest else nn.Identity().train(inner.training)
    if inside is not None:
        return new
    own = copy.copy(model)
    own._modules = dict(model._modules)
    own._modules[first] = new
    return own


def find_output_layer(model: nn.Module) -> str:
    """Return the name of the linear layer whose output is the network's output.

    Raises:
        AttachError: it cannot be told.
    """
    return _find(model, _traced(model))


def _find(model: nn.Module, graph: torch.fx.Graph | None) -> str:
    last = None if graph is None else _last_operation(model, graph)
    linear = last is not None and isinstance(_called(model, last), nn.Linear)
    name = _declared(model) or (str(last.target) if last is not None and linear else None) or _by_name(model)
    if name is None:
        raise AttachError(
            f"Cannot tell which layer of {type(model).__name__} is its output layer. {_linear_candidates(model)}"
        )
    others = _beside(model, name) if graph is None else []
    if others:
        raise AttachError(
            f"{type(model).__name__} has {len(others) + 1} output layers ({', '.join([name, *others])}), as their names say: "
            f"make it with a single one. Where its output is that of one alone, name it, attach(..., layer={name!r})."
        )
    return name


def _declared(model: nn.Module) -> str | None:
    """Return the name of the layer that timm's ``get_classifier()`` gives, or of the last linear one inside it."""
    get = getattr(model, "get_classifier", None)
    own: Any = get() if callable(get) else None
    if isinstance(own, (tuple, list)):
        names = [name for name, part in model.named_modules() if any(part is each for each in own)]
        raise AttachError(
            f"{type(model).__name__} has {len(own)} output layers ({', '.join(names)}), one of them for distillation: "
            "make it with a single one (in timm: the variant without 'distilled' in its name)."
        )
    return _last_linear(model, own) if isinstance(own, nn.Module) else None


def _by_name(model: nn.Module) -> str | None:
    """Return the last linear layer of the only child with a common name for output layers, or the only linear layer."""
    children = [child for name, child in model.named_children() if name in COMMON_NAMES]
    names = [name for child in children if (name := _last_linear(model, child)) is not None]
    alone = _linear_layers(model)
    return names[0] if len(names) == 1 else alone[0] if len(alone) == 1 else None


def _beside(model: nn.Module, layer: str) -> list[str]:
    """Return other output layers beside one, by their names and sizes: their outputs may be averaged, as CrossViT's are."""
    parent, found = model.get_submodule(layer.rpartition(".")[0]), model.get_submodule(layer)
    chained = [*parent.children()] if isinstance(parent, nn.Sequential) else []
    return [
        name
        for name in _linear_layers(model)
        if name != layer
        and name.count(".") == layer.count(".")
        and ("head" in name or "classif" in name)
        and (other := model.get_submodule(name)).out_features == found.out_features
        and not any(other is part for part in chained)
    ]


HARMLESS = (
    *("identity", "dropout", "flatten", "view", "reshape", "squeeze"),
    *("contiguous", "clone", "detach", "float", "to", "type"),
)
"""Operations that leave the numbers of (N, C) and of (N, d) as they are when the network is not trained."""


def _check_last(model: nn.Module, layer: str, graph: torch.fx.Graph) -> None:
    """Raise AttachError where an operation follows the output layer: it would change the head's features instead.

    Likewise where the layer is not called, as by a network that reads its weight alone.
    """
    old, last = model.get_submodule(layer), _last_operation(model, graph)
    calls = [node for node in graph.nodes if any(part is old for part in _called(model, node).modules())]
    if last is None or last in calls:
        return
    if not calls:
        raise AttachError(
            f"Expected the network to call its output layer {layer!r} on the way to its output but it does not: it may read "
            "the layer's weight alone, which an identity in its place does not have. Call the layer in `forward`, as in "
            f"x = self.{layer}(x); the head 'cosine' normalises features and weight by itself."
        )
    operation = _operation(model, last)
    remedy = "Remove it from the network: a softmax belongs to the loss, a temperature to the score."
    raise AttachError(
        f"Expected the output layer {layer!r} to be the last operation of the network but a {operation} follows it, "
        "which the head's features would go through in place of the logits. "
        f"{_linear_candidates(model) if operation in ('linear', 'add') else remedy}"
    )


def _last_operation(model: nn.Module, graph: torch.fx.Graph) -> torch.fx.Node | None:
    """Return the last operation that changes numbers; None where the output is not that of a single one."""
    nodes = next(node for node in graph.nodes if node.op == "output").all_input_nodes
    while len(nodes) == 1 and _operation(model, nodes[0]) in HARMLESS:
        nodes = nodes[0].all_input_nodes[:1]  # what follows are sizes
    return nodes[0] if len(nodes) == 1 else None


def _called(model: nn.Module, node: torch.fx.Node) -> nn.Module:
    """Return the module that a traced operation calls; an empty one for a function or a method."""
    return model.get_submodule(str(node.target)) if node.op == "call_module" else nn.Module()


def _operation(model: nn.Module, node: torch.fx.Node) -> str:
    """Return the name of a traced operation in lower case, such as ``softmax`` of a module, a function or a method."""
    what = type(_called(model, node)) if node.op == "call_module" else node.target
    return str(getattr(what, "__name__", what)).lower()


def _traced(model: nn.Module) -> torch.fx.Graph | None:
    """Return the graph of a network in eval mode; None where it cannot be traced."""
    try:
        with tracing(), eval_mode(model):
            return _Tracer().trace(model)
    except Exception:  # control flow, untraceable operators: any failure only means that tracing does not tell
        return None


class _Tracer(torch.fx.Tracer):
    """Shows linear layers as they are called, those of others' classes too."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Linear) or super().is_leaf_module(m, module_qualified_name)


def _last_linear(model: nn.Module, part: nn.Module) -> str | None:
    """Return the full name of ``part`` if it is linear, else of the last linear layer inside it."""
    inside = {m for m in part.modules() if isinstance(m, nn.Linear)}
    return next((name for name, module in reversed([*model.named_modules()]) if module in inside), None)


def _linear_layers(model: nn.Module) -> list[str]:
    return [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and n]


def _linear_candidates(model: nn.Module) -> str:
    names = _linear_layers(model)
    if not names:
        return (
            f"{type(model).__name__} has no nn.Linear layer inside it: wrap it as nn.Sequential(backbone, nn.Linear(d, C)) "
            "where backbone gives features of shape (N, d). If attach() has taken its output layer before, use the Classifier "
            f"that attach() returned. {UNSUPPORTED}"
        )
    layers: list[Any] = [model.get_submodule(name) for name in names[-8:]]
    shown = [f"{n} ({m.in_features} -> {m.out_features})" for n, m in zip(names[-8:], layers, strict=True)]
    more = f" and {len(names) - 8} before them" if len(names) > 8 else ""
    return f"Its linear layers are {', '.join(shown)}{more}: choose one with attach(..., layer={names[-1]!r})."
