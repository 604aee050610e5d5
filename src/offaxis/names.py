"""Every name that a user can type, and where it lives: ``name -> "module:Object"``, imported at its first use.

The command line lists these names in its help without the import of what they name.
"""

import ast
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from offaxis.detectors.base import Detector
    from offaxis.heads.base import Head
    from offaxis.networks.classifier import Classifier
    from offaxis.training.recipe import Recipe

Object = TypeVar("Object")


class Named(UserDict[str, Object]):
    """Objects by name; those that are given as ``"module:Object"`` are imported when they are first asked for."""

    data: dict[str, Any]

    def __init__(self, places: Mapping[str, str]) -> None:
        super().__init__()
        self.data.update(places)

    def __getitem__(self, name: str) -> Object:
        entry = self.data[name]
        if isinstance(entry, str):
            module, _, attribute = entry.partition(":")
            entry = self.data[name] = getattr(import_module(module), attribute)
        found: Object = entry
        return found


def lazy(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package that imports its names when they are first asked for.

    Args:
        package: its ``__name__``.
        file: its ``__file__``; the stub beside it (``.pyi``), which type checkers read, says which module each name is from.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = (node for node in stub.body if isinstance(node, ast.ImportFrom))
    homes = {name.name: str(node.module) for node in imports for name in node.names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(import_module(package), name, value)
        return value

    return get, lambda: sorted({*vars(import_module(package)), *homes}), [*homes]


def alike(name: str, known: Iterable[str]) -> str:
    """Return a question that names what may have been meant; empty where nothing is alike."""
    meant = get_close_matches(name, list(known), 3)
    return f" Did you mean {' or '.join(meant)}?" if meant else ""


HEADS: "Named[Callable[..., Head]]" = Named(
    {
        "cosine": "offaxis.heads.cosine:CosineHead",
        "linear": "offaxis.heads.linear:LinearHead",
        "deconf-c": "offaxis.heads.generalized_odin:deconf_c",
        "deconf-i": "offaxis.heads.generalized_odin:deconf_i",
        "deconf-e": "offaxis.heads.generalized_odin:deconf_e",
        "isomax": "offaxis.heads.isomax:IsoMaxHead",
        "logitnorm": "offaxis.heads.normalised:LogitNormHead",
        "t2fnorm": "offaxis.heads.normalised:T2FNormHead",
        "elogitnorm": "offaxis.heads.normalised:ELogitNormHead",
        "l2-softmax": "offaxis.heads.normalised:L2SoftmaxHead",
        "sphereface": "offaxis.heads.margin:SphereFaceHead",
        "cosface": "offaxis.heads.margin:CosFaceHead",
        "arcface": "offaxis.heads.margin:ArcFaceHead",
    }
)
"""Name -> (in_features, num_classes, **arguments) -> Head."""
HeadName = Literal[
    "cosine",
    "linear",
    "deconf-c",
    "deconf-i",
    "deconf-e",
    "isomax",
    "logitnorm",
    "t2fnorm",
    "elogitnorm",
    "l2-softmax",
    "sphereface",
    "cosface",
    "arcface",
    "keep",
]
"""The keys of HEADS, which type checkers read here; and "keep", the trained output layer as it is, where a network has one."""

NETWORKS: "Named[Callable[..., Classifier]]" = Named(
    {
        "wide_resnet": "offaxis.networks.cifar:wide_resnet",
        "densenet_bc": "offaxis.networks.cifar:densenet_bc",
        "resnet18_32": "offaxis.networks.resnet:resnet18_32",
        "resnet_cifar": "offaxis.networks.resnet:resnet_cifar",
        "convnet": "offaxis.networks.cifar:convnet",
    }
)
"""The functions that make this package's networks, by the name in records."""

RECIPES: "Named[Callable[[], Recipe]]" = Named(
    {
        "laptop": "offaxis.training.recipe:laptop",
        "short": "offaxis.training.recipe:short",
        "fast": "offaxis.training.recipe:fast",
        "finetune": "offaxis.training.recipe:finetune",
        "frozen": "offaxis.training.recipe:frozen",
        "paper-wide-resnet": "offaxis.training.recipe:paper_wide_resnet",
        "paper-densenet": "offaxis.training.recipe:paper_densenet",
        "openood": "offaxis.training.recipe:openood_resnet",
    }
)
"""Name -> function that returns the recipe."""

NATIVE: "Named[type[Detector]]" = Named(
    {
        "cosine": "offaxis.detectors.cosine:Cosine",
        "cosine-ensemble": "offaxis.detectors.cosine:CosineEnsemble",
        "two-cosines": "offaxis.detectors.cosine:TwoCosines",
        "mean-cosine": "offaxis.detectors.cosine:MeanCosine",
        "combined": "offaxis.detectors.combined:Combined",
        "max-softmax": "offaxis.detectors.logit_scores:MaxSoftmax",
        "odin": "offaxis.detectors.odin:ODIN",
        "mahalanobis": "offaxis.detectors.mahalanobis:Mahalanobis",
        "leave-out": "offaxis.detectors.leave_out:LeaveOut",
        "max-logit": "offaxis.detectors.logit_scores:MaxLogit",
        "energy": "offaxis.detectors.logit_scores:Energy",
        "gen": "offaxis.detectors.logit_scores:GEN",
        "knn": "offaxis.detectors.knn:KNN",
        "vim": "offaxis.detectors.vim:ViM",
        "relative-mahalanobis": "offaxis.detectors.feature_mahalanobis:RelativeMahalanobis",
        "react": "offaxis.detectors.activation_shaping:ReAct",
        "ash": "offaxis.detectors.activation_shaping:ASH",
        "scale": "offaxis.detectors.activation_shaping:SCALE",
        "generalized-odin": "offaxis.detectors.generalized_odin:GeneralizedODIN",
        "isomax": "offaxis.detectors.cosine:IsoMaxPlus",
        "fdbd": "offaxis.detectors.fdbd:FDBD",
        "nci": "offaxis.detectors.fdbd:NCI",
        "neco": "offaxis.detectors.neco:NECO",
        "weiper-kld": "offaxis.detectors.weiper:WeiPerKLD",
        "nnguide": "offaxis.detectors.nnguide:NNGuide",
        "core": "offaxis.detectors.core:CORE",
        "ora": "offaxis.detectors.ora:ORA",
        "mahalanobis++": "offaxis.detectors.feature_mahalanobis:MahalanobisPlusPlus",
        "relative-mahalanobis++": "offaxis.detectors.feature_mahalanobis:RelativeMahalanobisPlusPlus",
    }
)
"""Name -> class of the detectors that are written in this package."""

FAMILIES = ("native", "pytorch-ood", "all")
"""Words that stand for several detectors wherever names are taken."""
POOLS = ("paper-one-vs-one", "paper-frame-free", "paper-framed", "embedded", "here")
"""Words that stand for several OOD sets (``offaxis.evaluation.POOLS``)."""
BENCHMARKS = ("openood-cifar10", "openood-cifar100", "openood-imagenet200", "openood-imagenet")
"""OpenOOD's benchmarks."""
METRICS = (
    "auroc",
    "aupr_in",
    "aupr_out",
    "aupr_in_trapezoid",
    "aupr_out_trapezoid",
    "accuracy_at_tpr95",
    "fpr_at_tpr95",
    "fpr_at_tpr95_ood",
    "fpr_at_tpr95_openood",
    "detection_error",
)
"""The functions of ``offaxis.metrics`` of ID and OOD scores alone."""
_ALL_METRICS = (*METRICS, "oscr", "ccr_at_fpr1", "ccr_at_fpr10")
RESULT_METRICS = (*_ALL_METRICS, *(f"full_spectrum_{name}" for name in _ALL_METRICS))
"""What results can hold: those that need labels too, and all with shifted ID images among the ID images."""
