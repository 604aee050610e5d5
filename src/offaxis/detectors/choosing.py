"""Which of several settings separates best: the rule by which hyperparameters are tuned."""

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from offaxis.errors import ArgumentError


def tnr_at_tpr(id_scores: Tensor, ood_scores: Tensor, tpr: float = 0.95) -> Tensor:
    """The fraction of OOD scores strictly above the threshold that ``tpr`` of the ID scores lie below.

    Args:
        id_scores: (N, S), larger = more out-of-distribution.
        ood_scores: (M, S).
        tpr: the fraction of ID images that must be kept; the threshold is the interpolated quantile.

    Returns:
        (S,) in [0, 1].
    """
    threshold = torch.quantile(id_scores.double(), tpr, dim=0)
    return (ood_scores.double() > threshold).double().mean(0)


def auroc(id_scores: Tensor, ood_scores: Tensor) -> Tensor:
    """The probability that an OOD image has a larger score than an ID image, ties counting half: (N, S), (M, S) -> (S,)."""
    ranks = torch.from_numpy(np.asarray(rankdata(torch.cat([ood_scores, id_scores]).cpu().numpy(), axis=0)))
    count = len(ood_scores)
    return (ranks[:count].sum(0) - count * (count + 1) / 2) / (count * len(id_scores))


def best_setting(id_scores: Tensor, ood_scores: Tensor) -> int:
    """The column with the best TNR at TPR 95 %; among equals (all may be 0) that with the best AUROC, then the first."""
    if not len(id_scores) or not len(ood_scores):
        raise ArgumentError(
            f"Expected validation images of both kinds but got {len(id_scores)} ID and {len(ood_scores)} OOD images."
        )
    tnr = tnr_at_tpr(id_scores, ood_scores).tolist()
    area = auroc(id_scores, ood_scores).tolist()
    return max(range(len(tnr)), key=lambda setting: (tnr[setting], area[setting]))
