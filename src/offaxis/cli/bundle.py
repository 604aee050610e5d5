"""``offaxis bundle``, ``calibrate`` and ``export``: a run -> a bundle, a new calibration, an ONNX file."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offaxis.bundle import check_replaceable, load
from offaxis.bundling import images_like, make_model
from offaxis.data.images import list_skipped
from offaxis.data.transforms import Preprocessing
from offaxis.data.vectors import VectorInput, read_rows
from offaxis.detectors.registry import OWN
from offaxis.errors import ArgumentError
from offaxis.files import replacing
from offaxis.hub import PREFIX
from offaxis.model import Model
from offaxis.networks.open import open_network, open_runs
from offaxis.networks.resnet import to_published
from offaxis.networks.saved import describe, must_be_given
from offaxis.onnx import check_exportable, export_int8, export_onnx, output_names
from offaxis.options import BundleOptions, CalibrateOptions, ExportOptions
from offaxis.progress import counting, print_note
from offaxis.training.record import single


def bundle(options: BundleOptions, words: tuple[str, ...]) -> None:
    """Put a trained network or several, their preprocessing, a detector and a calibration into one file."""
    assert options.out is not None
    if options.folder:
        check_replaceable(options.out)  # before anything is computed
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
    _report(model, options.out)
    name = shlex.quote(str(options.out))
    own = _own_code(model, options.network or options.networks[0], options.detector)
    print_note(f"To use it: offaxis score {name} IMAGES{own}, or offaxis serve {name}{own}")


def _own_code(model: Model, network: str, detector: str | None) -> str:
    """Return the options of ``score`` and ``serve`` that name code which no bundle holds, each after a space."""
    own = {"--network": network} if must_be_given(describe(model.network)) else {}
    if file := OWN.fullmatch(detector or ""):
        own["--detector"] = file[1]
    return "".join(f" {option} {shlex.quote(value)}" for option, value in own.items())


def calibrate(options: CalibrateOptions, _: tuple[str, ...]) -> None:
    """Calibrate a bundle again, on other ID images or for another level; nothing is trained."""
    if options.out is None and str(options.bundle).startswith(PREFIX):
        raise ArgumentError(
            f"Expected --out FILE for the bundle {options.bundle}, which cannot be changed in place: push_to_hub uploads the "
            "new one."
        )
    out = options.out or options.bundle
    if out.is_dir():
        check_replaceable(out)
    model = load(options.bundle, options.network).to(options.device)
    wanted = model.preprocessing
    if isinstance(wanted, VectorInput):
        inputs: Any = np.concatenate([*read_rows(options.images)] or [np.empty((0, wanted.size))])
    else:
        with counting(options.quiet):
            rules: dict[str, Any] = {"resize": wanted.resize, "skip_bad": options.skip_bad}
            inputs = images_like(options.images, wanted.shape, options.data, **rules)
        if inputs.skipped:
            print_note("\n".join(list_skipped(inputs.skipped)))
    before = 0 if model.examples is None else len(model.examples.pixels)
    with counting(options.quiet):
        model = model.recalibrated(inputs, options.alpha, options.per_class, confidence=options.confidence)
    if gone := before - (0 if model.examples is None else len(model.examples.pixels)):
        print_note(
            f"{gone} of the {before} images that the bundle kept to show are not among these, and are no longer in it."
        )
    model.save(out, folder=out.is_dir())
    _report(model, out)


def _report(model: Model, path: Path) -> None:
    """Print the detector, its threshold and the share of ID images that it will flag."""
    calibration = model.calibration
    about = f"{path}: {model.detector.name} on {len(calibration.scores)} calibration images, flagged above"
    sure = "" if calibration.confidence is None else f", confidence {calibration.confidence:g}"
    level = f"(alpha {calibration.alpha:g}{sure})"
    if calibration.per_class:
        thresholds = [value for value in calibration.class_thresholds() if value is not None]
        rates = [rate for rate in calibration.class_flag_rates() if rate is not None]
        lines = [
            f"{about} {min(thresholds):.4g} to {max(thresholds):.4g}, by predicted class {level}.",
            f"In the long run it flags {min(r.mean for r in rates):.2%} to {max(r.mean for r in rates):.2%} of the ID images "
            "of a class; nine of ten calibration sets of these sizes give "
            f"{min(r.low for r in rates):.2%} to {max(r.high for r in rates):.2%}.",
        ]
    else:
        rate = calibration.flag_rate()
        lines = [
            f"{about} {calibration.threshold():.4g} {level}.",
            f"In the long run it flags {rate.mean:.2%} of ID images; nine of ten calibration sets of this size give "
            f"{rate.low:.2%} to {rate.high:.2%}.",
        ]
    if calibration.confidence is not None:
        whose = "ID images of each class" if calibration.per_class else "ID images"
        lines.append(
            f"With a probability of {calibration.confidence:.4g} over calibration sets it flags at most "
            f"{calibration.alpha:.4g} of {whose} in the long run."
        )
    few = [name for name, enough in zip(model.classes, calibration.enough(), strict=True) if not enough]
    if few and calibration.per_class:
        lines.append(
            f"Not enough calibration images for a verdict: {', '.join(few[:8])}{', ...' if len(few) > 8 else ''}."
        )
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


def export(options: ExportOptions, _: tuple[str, ...]) -> None:
    """Write a bundle as one ONNX graph (uint8 pixels in; logits, cosine, score and p-value out), or a network's weights."""
    if (options.onnx is None) == (options.published is None):
        raise ArgumentError("Expected one of --onnx FILE and --published FILE.")
    of_onnx = ("int8", "calibrate", "ood", "skip_bad")
    useless = [f"--{name.replace('_', '-')}" for name in of_onnx if getattr(options, name)]
    if options.published is not None:
        if useless:
            raise ArgumentError(f"Expected --published FILE alone but got {', '.join(useless)}: these are for --onnx.")
        _export_published(options.bundle, options.network, options.published)
        print_note(f"{options.published}: a state dictionary that OpenOOD and open_network(..., weights=FILE) read.")
        return
    if options.int8 != (options.calibrate is not None):
        raise ArgumentError("Expected --int8 and --calibrate IMAGES together: the quantised graph is calibrated anew.")
    if not options.int8 and (options.ood or options.skip_bad):
        raise ArgumentError(
            "Expected --int8 and --calibrate beside --ood and --skip-bad: without them no images are read."
        )
    _export_onnx(options)


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
