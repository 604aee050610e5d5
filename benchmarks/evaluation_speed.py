"""Eight detectors on an ID set and four OOD sets: a straightforward pytorch-ood loop over offaxis.evaluate, with equal scores.

python -m benchmarks.evaluation_speed
python -m benchmarks.evaluation_speed --cpu     # processor time instead of elapsed time, on a busy machine

Both fit on the same training images, score the same 1,000 images of each set with a WRN-16-2 and compute AUROC, AUPR and FPR.
Like for like: the same features, dimensions, neighbours and hyperparameters. pytorch-ood inverts covariances in the 32 bits of
the features, so these must be far from dependent for the scores to agree: batch norm has the statistics of the training images,
and images have more detail than there are features. With batch norm as it starts, the smallest variance of the features is a
millionth of the largest, and Mahalanobis and ViM differ by what 32 bits lose.
"""

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.bench_detectors import pytorch_ood
from benchmarks.paired import paired, publish
from offaxis import evaluate
from offaxis.data import Normalise, TensorSet
from offaxis.detectors import KNN, ODIN, Detector, Energy, Mahalanobis, MaxLogit, MaxSoftmax, ReAct, ViM
from offaxis.networks import Classifier, wide_resnet

STD = (0.25, 0.25, 0.25)
NORMALISE = Normalise((0.5, 0.5, 0.5), STD)


def sets(images: int, training: int) -> dict[str, TensorSet]:
    """Blurred noise of different strengths, with labels for the ID set and the training images."""
    draw = torch.Generator().manual_seed(0)
    found = {}
    for place, name in enumerate(("train", "id", "a", "b", "c", "d")):
        count = training if name == "train" else images
        small = torch.rand(count, 3, 16 + 2 * place, 16 + 2 * place, generator=draw)
        pixels = torch.nn.functional.interpolate(small, 32, mode="bilinear").mul(255).byte()
        found[name] = TensorSet(name, pixels, torch.arange(count) % 10)
    return found


def prepared(network: Classifier, images: Tensor) -> Classifier:
    """Give batch norm the statistics of some images, as training would."""
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # the mean over batches
    with torch.no_grad():
        for batch in images.split(250):
            network.train()(batch)
    return network.eval()


LARGEST_DIFFERENCE = 2e-3
"""Of two scores, relative to their standard deviation: what 32 bits leave."""
LARGEST_OF_ODIN = 2e-2
"""Of ODIN's, which moves a pixel by the sign of a gradient: those next to 0 turn by rounding."""


@torch.no_grad()
def widest_gap(network: Any, images: Tensor) -> int:
    """Return the number of principal directions that ViM can tell from the rest in 32 bits: where variances fall the most."""
    features = torch.cat([network.features(batch) for batch in images.split(250)]).double()
    weight, bias = network.head.weight.double(), network.head.bias.double()
    centred = features + torch.linalg.pinv(weight) @ bias
    variances = torch.linalg.eigvalsh(centred.T @ centred / len(centred)).flip(0)
    gaps = variances[:-1] - variances[1:]
    return 8 + int(gaps[7:100].argmax())


def ours(network: Any, data: dict[str, TensorSet], dim: int, odin: bool, store: str | None) -> Any:
    detectors: list[Detector] = [
        MaxSoftmax(),
        Energy(),
        MaxLogit(),
        KNN(5),
        ViM(dim),
        ReAct(0.9),
        Mahalanobis(("final",)),
    ]
    detectors += [ODIN(1000.0, 0.0014, std=STD)] if odin else []
    ood = {name: data[name] for name in "abcd"}
    return evaluate(
        network,
        data["id"],
        ood,
        detectors,
        train=data["train"],
        normalise=NORMALISE,
        validation=0,
        device="cpu",
        store=store,
    )


def theirs(network: Any, data: dict[str, TensorSet], dim: int, odin: bool) -> dict[str, dict[str, Tensor]]:
    """One detector after the other, one loop over every set: as its examples are written."""
    kinds = pytorch_ood()
    from pytorch_ood.metrics import OODMetrics

    def loader(name: str) -> DataLoader[Any]:
        images, labels = NORMALISE(data[name].images), data[name].labels
        assert labels is not None
        return DataLoader(TensorDataset(images, labels if name in ("train", "id") else -labels - 1), batch_size=128)

    def logits(images: Tensor) -> Tensor:
        out: Tensor = network(images)
        return out

    head = torch.nn.Sequential(torch.nn.Flatten(), network.head)
    made: dict[str, Any] = {
        "max-softmax": kinds.MaxSoftmax(logits),
        "energy": kinds.EnergyBased(logits),
        "max-logit": kinds.MaxLogit(logits),
        "knn": kinds.KNN(network.features, k=5),
        "vim": kinds.ViM(network.features, d=dim, w=network.head.weight, b=network.head.bias),
        "react": kinds.ReAct(lambda x: network.features(x)[:, :, None, None], head, percentile=0.9),
        "mahalanobis": kinds.Mahalanobis(network.features),
    }
    if odin:
        made["odin"] = kinds.ODIN(logits, eps=0.0014, temperature=1000.0, norm_std=list(STD))
    training, loaders = loader("train"), {name: loader(name) for name in ("id", *"abcd")}
    scores: dict[str, dict[str, Tensor]] = {}
    for name, one in made.items():
        one.fit(training)
        scores[name] = {}
        for set_name, batches in loaders.items():
            rows = []
            with torch.set_grad_enabled(name == "odin"):
                rows = [one(images) for images, _ in batches]
            scores[name][set_name] = torch.cat(rows).detach()
        for set_name in "abcd":
            metrics = OODMetrics()
            for part, sign in (("id", 1), (set_name, -1)):
                metrics.update(scores[name][part], torch.full((len(scores[name][part]),), sign))
            metrics.compute()
    return scores


def check_equal(results: Any, reference: dict[str, dict[str, Tensor]]) -> dict[str, float]:
    """Return the largest difference of scores by detector, relative to their spread; Mahalanobis has a factor of its own."""
    worst: dict[str, float] = {}
    for result in results:
        for part, key in (("id", result.scores[0]), (result.ood, result.scores[1])):
            found, expected = torch.from_numpy(results.scores(key)).double(), reference[result.detector][part].double()
            if result.detector == "mahalanobis":  # theirs does not divide the covariance by the number of images
                expected = expected * float(found.norm() / expected.norm())
            apart = float((found - expected).abs().max() / expected.std())
            worst[result.detector] = max(worst.get(result.detector, 0.0), apart)
    return worst


def processor_seconds(run: Callable[[], object]) -> float:
    """Return the seconds of this process's processor time: not those of others on a busy machine."""
    start = time.process_time()
    run()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--training", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=1, help="Runs of both beforehand that are not counted.")
    parser.add_argument("--store", action="store_true", help="Keep the results in a store on the disk.")
    parser.add_argument("--cpu", action="store_true", help="Measure processor time.")
    parser.add_argument("--only", choices=["with", "without"], help="Measure with ODIN or without it alone.")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    data = sets(options.images, options.training)
    network = prepared(wide_resnet(16, 2, head="linear"), NORMALISE(data["train"].images))
    dim = widest_gap(network, NORMALISE(data["train"].images))
    for odin, bound in ((False, 8.0), (True, 3.0)):
        if options.only is not None and odin != (options.only == "with"):
            continue
        made: dict[str, Any] = {}

        def run_theirs(odin: bool = odin, made: dict[str, Any] = made) -> None:
            made["theirs"] = theirs(network, data, dim, odin)

        def run_ours(odin: bool = odin, made: dict[str, Any] = made) -> None:
            with tempfile.TemporaryDirectory() as folder:
                made["ours"] = ours(network, data, dim, odin, folder if options.store else None)

        measure = processor_seconds if options.cpu else None
        ratio = paired(run_theirs, run_ours, options.rounds, options.warm_up, measure=measure)
        differences = check_equal(made["ours"], made["theirs"])
        print("largest difference of scores over their standard deviation:", differences)
        bounds = dict.fromkeys(differences, LARGEST_DIFFERENCE) | {"odin": LARGEST_OF_ODIN}
        unequal = [name for name, value in differences.items() if value > bounds[name]]
        if unequal:
            raise SystemExit(f"The scores of {', '.join(unequal)} differ: no ratio is published.")
        name = f"eight detectors, pytorch-ood's loop over ours, {'with' if odin else 'without'} ODIN"
        publish(
            name, ratio, f"at least {bound:g}", ratio.median >= bound, differences=differences, images=options.images
        )


if __name__ == "__main__":
    main()
