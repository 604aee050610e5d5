"""AUROC of ten million ID and ten million OOD scores, ours against scikit-learn's, in turn.

    python -m benchmarks.bench_metrics --rounds 5

scikit-learn is given labels and scores that are joined beforehand, so only its own work is timed.
"""

import argparse

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

from benchmarks.paired import paired, publish
from offaxis.metrics import all_metrics, auroc


def main() -> None:
    parser = argparse.ArgumentParser(description="AUROC, ours against scikit-learn's.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scores", type=int, default=10_000_000, help="of each kind")
    given = parser.parse_args()
    draw = np.random.default_rng(0)
    id_scores = draw.standard_normal(given.scores, np.float32)
    ood_scores = draw.standard_normal(given.scores, np.float32) + np.float32(1)
    labels = np.concatenate([np.zeros(given.scores, np.int8), np.ones(given.scores, np.int8)])
    scores = np.concatenate([id_scores, ood_scores])
    assert abs(auroc(id_scores, ood_scores) - roc_auc_score(labels, scores)) < 1e-12
    ratio = paired(lambda: roc_auc_score(labels, scores), lambda: auroc(id_scores, ood_scores), given.rounds, 0)
    publish("AUROC, scikit-learn's time over ours", ratio, ">= 3", ratio.median >= 3, scores=given.scores)
    few = max(given.scores // 20, 1)
    both = [id_scores[:few], ood_scores[:few]]
    labels_few, scores_few = labels[[*range(few), *range(-few, 0)]], np.concatenate(both)

    def theirs() -> None:
        roc_auc_score(labels_few, scores_few)
        average_precision_score(labels_few, scores_few)
        average_precision_score(1 - labels_few, -scores_few)

    ratio = paired(theirs, lambda: all_metrics(*both), given.rounds, 1)
    publish("three metrics of scikit-learn's over seven of ours", ratio, ">= 1", ratio.median >= 1, scores=few)


if __name__ == "__main__":
    main()
