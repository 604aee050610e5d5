"""Task 4: compare detectors on a trained network, in memory: that of Task 2, calibrate_and_keep.py."""

import sys

import offaxis


def main(network: str = "runs/small-digits") -> None:
    test = offaxis.load_images("small-digits", "test")
    ood = {name: offaxis.load_images(name, like=test) for name in ("letters", "photographs", "gaussian")}
    results = offaxis.evaluate(
        network,
        test,
        ood,
        detectors=["cosine", "two-cosines", "energy", "knn:k=10"],
        train=offaxis.load_images("small-digits", "train"),
    )
    print(results.table())


if __name__ == "__main__":
    main(*sys.argv[1:])
