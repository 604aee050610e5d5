"""Compute the golden scores: every detector on a fixed network and fixed images."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from torch import Tensor

from offaxis.detectors import DETECTORS, Detector

from .subjects import DIGITS, Arrays, Json, digits_images, network, noise, plain, stripes

STD = {"std": (0.5,)}
NATIVE_CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "cosine": ("cosine", {}, "cosine"),
    "cosine of a pair": ("cosine", {}, "paired"),
    "cosine of an ensemble": ("cosine", {}, "ensemble"),
    "cosine ensemble": ("cosine-ensemble", {}, "ensemble"),
    "two cosines": ("two-cosines", {}, "cosine"),
    "two cosines of a pair": ("two-cosines", {}, "paired"),
    "mean cosine": ("mean-cosine", {}, "linear"),
    "mean cosine, cosine head": ("mean-cosine", {}, "cosine"),
    "max-softmax": ("max-softmax", {}, "linear"),
    "max-softmax, cosine head": ("max-softmax", {}, "cosine"),
    "max-softmax of an ensemble": ("max-softmax", {}, "ensemble"),
    "odin": ("odin", STD, "linear"),
    "odin, T = 1": ("odin", {"temperature": 1, "eps": 0.001, **STD}, "linear"),
    "odin without eps": ("odin", {"eps": 0}, "linear"),
    "odin, cosine head": ("odin", STD, "cosine"),
    "mahalanobis": ("mahalanobis", {}, "linear"),
    "mahalanobis with eps": ("mahalanobis", {"eps": 0.001, **STD}, "linear"),
    "mahalanobis of a pair": ("mahalanobis", {"layers": ("second",), "eps": 0.001}, "paired"),
    "mahalanobis, cosine head": ("mahalanobis", {}, "cosine"),
    "leave-out": ("leave-out", {"networks": 2, **STD}, "leave-out"),
    "leave-out without eps": ("leave-out", {"networks": 2, "eps": 0}, "leave-out"),
    "max-logit": ("max-logit", {}, "linear"),
    "max-logit, cosine head": ("max-logit", {}, "cosine"),
    "energy": ("energy", {}, "linear"),
    "energy, cosine head": ("energy", {}, "cosine"),
    "gen": ("gen", {}, "linear"),
    "gen, top": ("gen", {"top": 2}, "linear"),
    "knn": ("knn", {"k": 10}, "linear"),
    "knn, cosine head": ("knn", {"k": 10}, "cosine"),
    "vim": ("vim", {}, "linear"),
    "vim, cosine head": ("vim", {"dim": 8}, "cosine"),
    "relative mahalanobis": ("relative-mahalanobis", {}, "linear"),
    "relative mahalanobis, cosine head": ("relative-mahalanobis", {}, "cosine"),
    "react": ("react", {}, "linear"),
    "react, cosine head": ("react", {"percentile": 0.95}, "cosine"),
    "ash-s": ("ash", {"percentile": 0.65}, "linear"),
    "ash-b": ("ash", {"percentile": 0.65, "variant": "b"}, "linear"),
    "ash-p": ("ash", {"percentile": 0.65, "variant": "p"}, "linear"),
    "scale": ("scale", {}, "linear"),
    "scale of a pair": ("scale", {}, "paired"),
    "generalized odin, deconf-c": ("generalized-odin", STD, "deconf-c"),
    "generalized odin, deconf-i": ("generalized-odin", {}, "deconf-i"),
    "generalized odin, deconf-e": ("generalized-odin", {}, "deconf-e"),
    "generalized odin without eps": ("generalized-odin", {"perturb": False}, "deconf-c"),
    "isomax": ("isomax", {}, "isomax"),
    "fdbd": ("fdbd", {}, "linear"),
    "fdbd, cosine head": ("fdbd", {}, "cosine"),
    "nci": ("nci", {}, "linear"),
    "nci, cosine head": ("nci", {}, "cosine"),
    "mahalanobis++": ("mahalanobis++", {}, "linear"),
    "mahalanobis++, shrunk": ("mahalanobis++", {"shrinkage": True}, "linear"),
    "relative mahalanobis++": ("relative-mahalanobis++", {}, "cosine"),
}
"""Name -> detector, its arguments, and the network it judges."""
PYTORCH_OOD_ARGUMENTS: dict[str, dict[str, Any]] = {
    "pytorch-ood-knn": {"k": 5},
    "pytorch-ood-mcd": {"samples": 3},
    "pytorch-ood-vim": {"d": 8},
    "pytorch-ood-odin": {"eps": 0.001, "temperature": 1.0},
    "pytorch-ood-mahalanobisodin": {"eps": 0.001},
}
PYTORCH_OOD_CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    name: (name, {"keywords": PYTORCH_OOD_ARGUMENTS.get(name)}, "linear")
    for name in DETECTORS
    if name.startswith("pytorch-ood-")
} | {
    f"{name}, cosine head": (name, {"keywords": PYTORCH_OOD_ARGUMENTS.get(name)}, "cosine")
    for name in ("pytorch-ood-dice", "pytorch-ood-nnguide", "pytorch-ood-react", "pytorch-ood-vim", "pytorch-ood-fdbd")
}
DIGITS_CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    f"{name} on {kind}": (name, {}, kind)
    for kind in ("digits-cosine", "digits-linear")
    for name in (
        "mean-cosine", "max-softmax", "odin", "mahalanobis", "energy", "knn", "vim", "relative-mahalanobis", "react", "ash",
        "scale", "gen",
    )
}  # fmt: skip
DIGITS_CASES |= {
    "cosine on digits-cosine": ("cosine", {}, "digits-cosine"),
    "two-cosines on digits-cosine": ("two-cosines", {}, "digits-cosine"),
    "cosine-ensemble on digits-ensemble": ("cosine-ensemble", {}, "digits-ensemble"),
}
DETECTOR_CASES = NATIVE_CASES | PYTORCH_OOD_CASES | DIGITS_CASES
ILL_CONDITIONED = ("mahalanobis on digits-cosine", "mahalanobis on digits-linear")
"""Their covariances are nearly singular: the last bits decide the inverse, so another processor gives other distances, in the
same order."""
SINGLE_PRECISION = ("pytorch-ood-pnml", "pytorch-ood-rmd")
"""Inverses in 32 bits: a few scores move by 0.1 % on another processor."""
ROUNDED_BY_NUMPY_2 = "pytorch-ood-openmax"
"""pytorch-ood adds 10,000 to distances in 32 bits before it fits them. NumPy 2 does that in 32 bits, which rounds them to a
thousandth; NumPy 1 did it in 64. The fit (scipy's) of the same numbers is the same in both."""
PERTURBING = (
    "odin",
    "mahalanobis",
    "leave-out",
    "pytorch-ood-mcd",
    "pytorch-ood-grad",
    "pytorch-ood-nacue",
    "pytorch-ood-vim",
)
"""Detectors whose scores hang on the sign of gradients near zero, on random masks or on a near-singular matrix: on another
machine most images agree."""


@cache
def _toy_images() -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
    images, labels = stripes(400, 1)
    return list(zip(images.split(100), labels.split(100), strict=True)), stripes(32, 2)[0], noise(32, 3)


def make_detector(name: str) -> tuple[Detector, Any, tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]]:
    """Return a case's detector, fitted, with its network and images."""
    kind, arguments, judged = DETECTOR_CASES[name]
    data = digits_images() if judged in DIGITS or judged == "digits-ensemble" else _toy_images()
    return DETECTORS[kind](**arguments).fit(network(judged), data[0]), network(judged), data


def detector_scores(name: str) -> Arrays:
    """Compute a case's scores of familiar and of strange images."""
    detector, judged, (_, known, strange) = make_detector(name)
    return {
        f"{name}/known": detector.score_images(judged, known).numpy(),
        f"{name}/strange": detector.score_images(judged, strange).numpy(),
    }


def detectors(names: Sequence[str] = tuple(DETECTOR_CASES)) -> Arrays:
    """Compute the scores of every case."""
    return {key: scores for name in names for key, scores in detector_scores(name).items()}


def tuning() -> Json:
    """Compute what tuning on the OOD images chooses, and the scores that come of it, for every detector with a grid."""
    found = {}
    for name in NATIVE_CASES:
        detector, judged, (_, known, strange) = make_detector(name)
        if detector.grid:
            tuned = detector.tune(judged, [known[:16]], [strange[:16]])
            chosen = {key: tuned.arguments[key] for key in detector.grid}
            scores = tuned.score_images(judged, strange[16:24]).tolist()
            found[name] = {"settings": len(detector.settings), "chosen": chosen, "scores": scores}
    return plain(found)
