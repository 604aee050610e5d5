"""The weight of each layer's distance, by logistic regression of OOD against ID samples."""

import numpy as np
import torch
from torch import Tensor

from offaxis.errors import ArgumentError


def half_of(evidence: Tensor, what: str) -> tuple[Tensor, Tensor]:
    """The first and the second half of a validation set."""
    if len(evidence) < 12:
        raise ArgumentError(
            f"Expected at least 12 validation images of each kind to tune mahalanobis but got {len(evidence)} "
            f"(tuning on {what}): half of them fit a cross-validated regression. The published number is 1,000."
        )
    middle = len(evidence) // 2
    return evidence[:middle], evidence[middle:]


def regress(id_distances: Tensor, ood_distances: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (L,) and bias of a logistic regression of OOD (1) against ID (0) over distances (N, L), (M, L)."""
    from sklearn.linear_model import LogisticRegressionCV  # takes two seconds to import, which no other detector needs

    x = torch.cat([id_distances, ood_distances]).double().cpu()
    centre, spread = x.mean(0), x.std(0).clamp_min(torch.finfo(torch.float64).tiny)
    y = np.repeat([0, 1], [len(id_distances), len(ood_distances)])
    model = LogisticRegressionCV(cv=3, max_iter=1000, scoring="accuracy", use_legacy_attributes=False, l1_ratios=(0,))
    model.fit(((x - centre) / spread).numpy(), y)
    weights = torch.from_numpy(model.coef_[0]) / spread
    return weights, torch.tensor(float(model.intercept_[0])) - weights @ centre
