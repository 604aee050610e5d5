"""Task 3: class, probability, p-value and verdict of images, with the bundle of Task 2, calibrate_and_keep.py."""

import sys

import offaxis


def main(path: str = "digits.oax") -> None:
    model = offaxis.load(path)
    for name in ("small-digits", "letters", "photographs"):
        images = offaxis.load_images(name, size=model.preprocessing.shape[1:])
        predictions = model.predict(images)  # files, bytes, Pillow images, arrays and tensors will do as well
        flagged = [prediction.verdict is offaxis.Verdict.OUT for prediction in predictions]
        first = predictions[0]
        print(
            f"{name:14} {sum(flagged) / len(flagged):6.1%} flagged; the first is {first.class_name}, p = {first.p_value:.3f}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
