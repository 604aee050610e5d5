"""Which of several settings separates best: the rule by which hyperparameters are tuned."""

from torch import Tensor

from offaxis.errors import ArgumentError
from offaxis.metrics import auroc, fpr_at_tpr


def best_setting(id_scores: Tensor, ood_scores: Tensor) -> int:
    """The setting with the best TNR at TPR 95 %; among equals (all may be 0) that with the best AUROC, then the first.

    Args:
        id_scores: (N, S) of validation images of the ID set, larger = more out-of-distribution.
        ood_scores: (M, S) of validation images of the assumed OOD set.
    """
    if not len(id_scores) or not len(ood_scores):
        raise ArgumentError(
            f"Expected validation images of both kinds but got {len(id_scores)} ID and {len(ood_scores)} OOD images."
        )
    columns = list(zip(id_scores.cpu().numpy().T, ood_scores.cpu().numpy().T, strict=True))
    merits = [(1 - fpr_at_tpr(known, strange), auroc(known, strange)) for known, strange in columns]
    return merits.index(max(merits))
