"""``offaxis bundle``, ``calibrate`` and ``export``: a run -> a bundle, a new calibration, an ONNX file."""

import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offaxis.bundle import check_replaceable, load
from offaxis.calibration.calibration import Calibration
from offaxis.calibration.classes import SURE
from offaxis.data.containers import read_rows
from offaxis.data.images import drop_copies, list_skipped, unpack_hashes
from offaxis.data.transforms import Preprocessing, VectorInput
from offaxis.detectors.registry import OWN
from offaxis.errors import ArgumentError
from offaxis.files import replacing
from offaxis.hub import PREFIX
from offaxis.make_model import images_like, make_model
from offaxis.model import Model
from offaxis.networks.open import open_network, open_runs
from offaxis.networks.resnet import to_published
from offaxis.networks.saved import describe, must_be_given
from offaxis.onnx import check_exportable, export_int8, export_onnx, output_names
from offaxis.options import BundleOptions, CalibrateOptions, ExportOptions, flag_of
from offaxis.progress import counting, print_note
from offaxis.training.record import single

PROMISES = ("alpha", "per_class", "confidence", "max_error")


def write_bundle(options: BundleOptions, words: tuple[str, ...]) -> None:
    """Put a trained network or several, their preprocessing, a detector and a calibration into one file."""
    assert options.out is not None
    _check_out(options.out, options.overwrite, options.folder)
    notes: list[str] = []
    try:
        model = make_model(options, words, notes.append)
    finally:  # not over the count
        for text in notes:
            print_note(text)
    if model.examples is not None:
        count = len(model.examples.pixels)
        print_note(
            f"{count} calibration images leave with {options.out}: anyone who has the bundle can see them.", "yellow"
        )
    model.save(options.out, folder=options.folder)
    _print_calibration(model, options.out)
    if model.expectation is not None:
        print_note("\n".join(model.expectation["sentences"]))
    name = shlex.quote(str(options.out))
    own = _own_code(model, options.network or options.networks[0], options.detector)
    print_note(f"To use it: offaxis score {name} IMAGES{own}, or offaxis serve {name}{own}")


def _check_out(out: Path, overwrite: bool, folder: bool) -> None:
    """Refuse to replace what is there, before anything is computed."""
    if out.exists() and not overwrite:
        raise ArgumentError(f"{out} is there already: name another --out, or add --overwrite.")
    if folder:
        check_replaceable(out)


def _own_code(model: Model, network: str, detector: str | None) -> str:
    """Return the options of ``score`` and ``serve`` that name code which no bundle holds, each after a space."""
    own = {"--network": network} if must_be_given(describe(model.network)) else {}
    if file := OWN.fullmatch(detector or ""):
        own["--detector"] = file[1]
    return "".join(f" {option} {shlex.quote(value)}" for option, value in own.items())


def calibrate_bundle(options: CalibrateOptions, _: tuple[str, ...]) -> None:
    """Calibrate a bundle again, on other ID images or for another level; nothing is trained."""
    if options.out is None and str(options.bundle).startswith(PREFIX):
        raise ArgumentError(
            f"Expected --out FILE for the bundle {options.bundle}, which cannot be changed in place: push_to_hub uploads the "
            "new one."
        )
    promise: dict[str, Any] = {name: getattr(options, name) for name in PROMISES}
    if options.images is None and all(value is None for value in promise.values()):
        raise ArgumentError(
            "Expected ID images to calibrate on, or a new --alpha, --per-class, --confidence or --max-error."
        )
    out = options.out or options.bundle
    _check_out(out, options.overwrite, out.is_dir())
    model = load(options.bundle, options.network).to(options.device)
    before = 0 if model.examples is None else len(model.examples.pixels)
    with counting(options.quiet):
        inputs = None if options.images is None else _calibration_inputs(options, options.images, model)
        model = model.recalibrated(inputs, **promise)
    if gone := before - (0 if model.examples is None else len(model.examples.pixels)):
        print_note(
            f"{gone} of the {before} images that the bundle kept to show are not among these, and are no longer in it."
        )
    model.save(out, folder=out.is_dir())
    _print_calibration(model, out)


def _calibration_inputs(options: CalibrateOptions, name: str, model: Model) -> Any:
    """Read the ID images of a name, or the feature vectors, that a model is calibrated on again."""
    wanted = model.preprocessing
    if isinstance(wanted, VectorInput):
        return np.concatenate([*read_rows(name)] or [np.empty((0, wanted.size))])
    images = images_like(name, wanted.shape, options.data, resize=wanted.resize, skip_bad=options.skip_bad)
    if options.drop_duplicates:
        images = drop_copies(images, unpack_hashes(model.used))
    if images.skipped:
        print_note("\n".join(list_skipped(images.skipped)))
    return images


def _print_calibration(model: Model, path: Path) -> None:
    """Print the detector, its threshold and the share of ID images that it will flag."""
    calibration = model.calibration
    sure = "" if calibration.confidence is None else f", confidence {calibration.confidence:g}"
    level = f"(alpha {calibration.alpha:g}{sure})"
    if calibration.per_class:
        thresholds = [value for value in calibration.class_thresholds() if value is not None]
        rates = [rate for rate in calibration.class_flag_rates() if rate is not None]
        threshold = f"{min(thresholds):.4g} to {max(thresholds):.4g}, by predicted class {level}"
        flagged = f"{min(r.mean for r in rates):.2%} to {max(r.mean for r in rates):.2%} of the ID images of a class"
        whose, sets = "ID images of each class", "sets of these sizes"
    else:
        rates = [calibration.flag_rate()]
        threshold = f"{calibration.threshold():.4g} {level}"
        flagged, whose, sets = f"{rates[0].mean:.2%} of ID images", "ID images", "sets of this size"
    lines = [
        f"{path}: {model.detector.name} on {len(calibration.scores)} calibration images, flagged above {threshold}.",
        f"In the long run it flags {flagged}; nine of ten calibration {sets} give {min(r.low for r in rates):.2%} to "
        f"{max(r.high for r in rates):.2%}.",
    ]
    if calibration.confidence is not None:
        lines.append(
            f"With a probability of {calibration.confidence:.4g} over calibration sets it flags at most "
            f"{calibration.alpha:.4g} of {whose} in the long run."
        )
    few = [name for name, enough in zip(model.classes, calibration.enough(), strict=True) if not enough]
    if few and calibration.per_class:
        lines.append(f"Not enough calibration images for a verdict: {', '.join(few[:8])}{', ...' * (len(few) > 8)}.")
    lines += _about_classes(calibration)
    held_out = model.provenance.get("held_out")
    if held_out is not None:
        accuracy = "" if held_out["accuracy"] is None else f"the class of {held_out['accuracy']:.2%} is right, and "
        lines.append(
            f"On the {held_out['images']:,} other images, which it was not calibrated on: {accuracy}"
            f"{held_out['flagged']:.2%} are flagged."
        )
    elif calibration.accuracy is not None:
        lines.append(f"It predicts the class of {calibration.accuracy:.2%} of the calibration images.")
    if not model.overlap_checked:
        lines.append("It was not checked whether calibration images were used for training.")
    print_note("\n".join(lines))


def _about_classes(calibration: Calibration) -> list[str]:
    """Return what is known of class probabilities, and of the images that can be decided alone."""
    known, alone = calibration.classes, calibration.alone
    if known is None:
        return [
            "Without labels it is not known how far class probabilities hold, nor which other classes an image could be."
        ]
    half = len(known.mass) - known.half
    lines = [
        f"Probabilities are off by {known.ece[1]:.1%} (expected calibration error on {half} images; {known.ece[0]:.1%} without "
        f"the temperature {known.temperature:.3g}, which the other {known.half} gave)."
    ]
    if alone is not None:
        lines.append(
            f"{alone.share:.1%} of ID images can be decided alone, from a probability of {alone.probability:.3g} on: at most "
            f"{calibration.max_error:.3g} of them are wrong, with a confidence of {SURE:.0%}. The others are unsure."
        )
    return lines


def export_bundle(options: ExportOptions, _: tuple[str, ...]) -> None:
    """Write a bundle as one ONNX graph (uint8 pixels in; logits, cosine, score and p-value out), or a network's weights."""
    if (options.onnx is None) == (options.published is None):
        raise ArgumentError("Expected one of --onnx FILE and --published FILE.")
    of_int8 = ("int8", "calibrate", "ood", "skip_bad")
    given = [flag_of(each) for each in fields(options) if each.name in of_int8 and getattr(options, each.name)]
    if given and not (options.onnx and options.int8 and options.calibrate):
        raise ArgumentError(
            f"Expected --int8 and --calibrate IMAGES together, beside --onnx FILE, but got {', '.join(given)}: the quantised "
            "graph is calibrated anew, and without it no images are read."
        )
    if options.published is None:
        _export_onnx(options)
    else:
        _export_published(options.bundle, options.network, options.published)
        print_note(f"{options.published}: a state dictionary that OpenOOD and open_network(..., weights=FILE) read.")


def _export_published(source: Path, network: str | None, out: Path) -> None:
    """Write the weights of a run or a bundle by their published names, as a state dictionary of PyTorch."""
    weights = to_published(single(open_network(open_runs([str(source)], network)[0])))
    with replacing(out) as temporary:
        torch.save({name: tensor.contiguous() for name, tensor in weights.items()}, temporary)


def _export_onnx(options: ExportOptions) -> None:
    assert options.onnx is not None
    model = load(options.bundle, options.network)
    wanted = model.preprocessing
    shape = ", ".join(map(str, wanted.shape))
    about = f"{options.onnx}: pixels uint8 (N, {shape}) -> {', '.join(output_names(model))}."
    if options.calibrate is None:
        difference = export_onnx(model, options.onnx)
        print_note(f"{about} onnxruntime and PyTorch differ by {difference:.1g} at most.")
        return
    check_exportable(model)
    assert isinstance(wanted, Preprocessing)  # others cannot be exported
    rules: dict[str, Any] = {"resize": wanted.resize, "skip_bad": options.skip_bad}
    sets = [images_like(name, wanted.shape, options.data, **rules) for name in (options.calibrate, *options.ood)]
    if skipped := [line for images in sets for line in list_skipped(images.skipped)]:
        print_note("\n".join(skipped))
    found = export_int8(model, options.onnx, sets[0], sets[1:])
    what = "ID accuracy" if found.labelled else "Equal classes"
    lines = [about, f"{what} {found.accuracy[0]:.2%} before, {found.accuracy[1]:.2%} after."]
    lines += [f"AUROC on {name} {old:.2%} before, {new:.2%} after." for name, (old, new) in found.aurocs.items()]
    lines.append(f"{found.bytes[0]:,} bytes before, {found.bytes[1]:,} after; {found.images} calibration images.")
    print_note("\n".join(lines))
