"""``offaxis bundle``, ``calibrate`` and ``export``: a run -> a bundle, a new calibration, an ONNX file."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offaxis.cli.app import (
    Data,
    Device,
    Network,
    OwnDetector,
    Quiet,
    SkipBad,
    Weights,
    app,
    command_words,
    example,
    print_note,
)
from offaxis.errors import ArgumentError

if TYPE_CHECKING:
    from offaxis.data import Normalise
    from offaxis.deploy.model import Model


@app.command(
    "bundle",
    epilog=example(
        "offaxis bundle runs/digits --calibrate digits --out digits.oax",
        "offaxis bundle runs/d0 runs/d1 runs/d2 --as ensemble --calibrate digits --out three.oax",
        "offaxis bundle timm:resnet18 --weights mine.pt --fit photos/train --calibrate photos/new --out mine.oax",
    ),
)
def bundle_command(
    context: typer.Context,
    networks: Annotated[
        list[str],
        typer.Argument(
            help="Folders of training runs; or a trained network that is kept as it is: timm:NAME, torchvision:NAME or "
            "resnet20-cifar with --weights, transformers:FOLDER, file.py:function.",
            metavar="NETWORK",
        ),
    ],
    calibrate: Annotated[
        str, typer.Option(help="ID images that nothing was trained on: a set (its test images), folder or archive.")
    ],
    out: Annotated[Path, typer.Option(help="The bundle, by custom x.oax.")],
    kind: Annotated[
        str,
        typer.Option(
            "--as",
            help="Several networks as one: ensemble (averaged), paired (the first predicts the class, the second gives "
            "the detection score) or leave-out (in the order of their folds).",
        ),
    ] = "single",
    detector_run: Annotated[
        str | None,
        typer.Option(help="The same as a second RUN and --as paired: its network gives the detection score."),
    ] = None,
    detector: Annotated[
        str | None,
        typer.Option(
            help="The detector, with arguments as in knn:k=10, or file.py:Class.",
            show_default="two-cosines on a backbone that was frozen or trained in part, else cosine; mahalanobis++ for other "
            "heads; cosine-ensemble or leave-out for several networks",
        ),
    ] = None,
    weights: Weights = None,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="The weights that timm or torchvision publish; they are downloaded.")
    ] = False,
    fit: Annotated[
        str | None,
        typer.Option(
            help="Training images to fit the detector on: a set (its training images), folder or archive.",
            show_default="all training images",
        ),
    ] = None,
    calibrate_share: Annotated[
        float,
        typer.Option(
            help="Share of these images that calibrates; the rest reports accuracy and false alarms. 1 calibrates on all."
        ),
    ] = 0.5,
    alpha: Annotated[float, typer.Option(help="The share of new ID images that may be flagged.")] = 0.05,
    per_class: Annotated[
        bool, typer.Option(help="Calibrate within each predicted class: at most alpha is flagged in each.")
    ] = False,
    confidence: Annotated[
        float | None,
        typer.Option(
            help="At most alpha with this probability over calibration sets, such as 0.95, not only on average."
        ),
    ] = None,
    trained_on: Annotated[
        str | None, typer.Option(help="The training images, where the run does not name a known set.")
    ] = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Do not look for calibration images among the training images.")
    ] = False,
    size: Annotated[
        int | None,
        typer.Option(help="Height and width of images, for a network by name; a run has its own.", min=1),
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(help="Mean of each channel, with commas, in place of the network's own: 0.485,0.456,0.406."),
    ] = None,
    std: Annotated[str | None, typer.Option(help="Standard deviation likewise: 0.229,0.224,0.225.")] = None,
    skip_bad: SkipBad = False,
    folder: Annotated[bool, typer.Option("--folder", help="Write a folder instead of one file.")] = False,
    keep_examples: Annotated[
        int,
        typer.Option(min=0, help="Keep so many calibration images in the bundle, to show those nearest to an image."),
    ] = 0,
    network: Network = None,
    device: Device = "auto",
    data: Data = None,
    quiet: Quiet = False,
) -> None:
    """Put a trained network or several, their preprocessing, a detector and a calibration into one file."""
    from offaxis.data.catalogue import cache_folder
    from offaxis.deploy.assemble import make_model
    from offaxis.deploy.container import check_replaceable
    from offaxis.jobs import open_runs
    from offaxis.progress import counting

    if detector_run is not None:
        if kind not in ("single", "paired"):
            raise ArgumentError(f"Expected --detector-run for a pair but got --as {kind} beside it: name one of them.")
        networks, kind = [*networks, detector_run], "paired"
    if folder:
        check_replaceable(out)  # before anything is computed
    notes: list[str] = []
    try:
        with counting(quiet):
            model = make_model(
                open_runs(networks, network),
                calibrate,
                kind=kind,
                weights=weights,
                pretrained=pretrained,
                fit=fit,
                calibrate_share=calibrate_share,
                detector=detector,
                alpha=alpha,
                per_class=per_class,
                confidence=confidence,
                trained_on=trained_on,
                unchecked=unchecked,
                size=size,
                normalise=_normalise(mean, std),
                device=device,
                data=data,
                command=command_words(context),
                keep_examples=keep_examples,
                features=cache_folder() / "features",
                skip_bad=skip_bad,
                note=notes.append,
            )
    finally:  # not over the count
        for text in notes:
            print_note(text)
    if model.examples is not None:
        count = len(model.examples.pixels)
        print_note(f"{count} calibration images leave with {out}: anyone who has the bundle can see them.", "yellow")
    model.save(out, folder=folder)
    _report(model, out)
    name, words = shlex.quote(str(out)), _own_code(model, network or networks[0], detector)
    print_note(f"To use it: offaxis score {name} IMAGES{words}, or offaxis serve {name}{words}")


def _own_code(model: "Model", network: str, detector: str | None) -> str:
    """Return the options of ``score`` and ``serve`` that name code which no bundle holds, each after a space."""
    from offaxis.detectors.registry import OWN
    from offaxis.networks.rebuild import blueprint, must_be_given

    own = {"--network": network} if must_be_given(blueprint(model.network)) else {}
    if file := OWN.fullmatch(detector or ""):
        own["--detector"] = file[1]
    return "".join(f" {option} {shlex.quote(value)}" for option, value in own.items())


@app.command("calibrate", epilog=example("offaxis calibrate digits.oax photos/ --alpha 0.01"))
def calibrate_command(
    bundle: Annotated[
        Path,
        typer.Argument(
            help="A bundle; it is changed in place without --out, which one of the hub (hf:name/repo) needs."
        ),
    ],
    images: Annotated[
        str,
        typer.Argument(
            help="ID images: a set (its test images), a folder or an archive; or a .npy file of feature vectors."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Write another bundle.", show_default="BUNDLE itself")] = None,
    alpha: Annotated[float | None, typer.Option(help="Another level.", show_default="unchanged")] = None,
    per_class: Annotated[bool | None, typer.Option(help="Verdicts per class.", show_default="unchanged")] = None,
    confidence: Annotated[
        float | None,
        typer.Option(
            help="At most alpha with this probability over calibration sets; 0: on average.", show_default="unchanged"
        ),
    ] = None,
    skip_bad: SkipBad = False,
    network: Network = None,
    detector: OwnDetector = None,  # noqa: ARG001 - its callback registers the class
    device: Device = "auto",
    data: Data = None,
    quiet: Quiet = False,
) -> None:
    """Calibrate a bundle again, on other ID images or for another level; nothing is trained."""
    import numpy as np

    from offaxis.data.image_set import list_skipped
    from offaxis.deploy.assemble import images_like
    from offaxis.deploy.bundle import load
    from offaxis.deploy.container import check_replaceable
    from offaxis.deploy.hub import PREFIX
    from offaxis.deploy.preprocessing import VectorInput, read_rows
    from offaxis.progress import counting

    if out is None and str(bundle).startswith(PREFIX):
        raise ArgumentError(
            f"Expected --out FILE for the bundle {bundle}, which cannot be changed in place: push_to_hub uploads the new one."
        )
    if (out or bundle).is_dir():
        check_replaceable(out or bundle)
    model = load(bundle, network).to(device)
    inputs: Any
    if isinstance(model.preprocessing, VectorInput):
        inputs = np.concatenate([*read_rows(images)] or [np.empty((0, model.preprocessing.size))])
    else:
        with counting(quiet):
            inputs = images_like(
                images, model.preprocessing.shape, data, resize=model.preprocessing.resize, skip_bad=skip_bad
            )
        if inputs.skipped:
            print_note("\n".join(list_skipped(inputs.skipped)))
    before = 0 if model.examples is None else len(model.examples.pixels)
    with counting(quiet):
        model = model.recalibrated(inputs, alpha, per_class, confidence=confidence)
    if gone := before - (0 if model.examples is None else len(model.examples.pixels)):
        print_note(
            f"{gone} of the {before} images that the bundle kept to show are not among these, and are no longer in it."
        )
    model.save(out or bundle, folder=(out or bundle).is_dir())
    _report(model, out or bundle)


def _normalise(mean: str | None, std: str | None) -> "Normalise | None":
    if mean is None and std is None:
        return None
    from offaxis.data import Normalise

    try:
        values = [tuple(float(part) for part in (text or "").split(",")) for text in (mean, std)]
    except ValueError:
        values = [(), ()]
    if len(values[0]) not in (1, 3) or len(values[0]) != len(values[1]) or not all(v > 0 for v in values[1]):
        raise ArgumentError(
            "Expected --mean and --std with a number for each channel, as in --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225, "
            f"but got {mean!r} and {std!r}."
        )
    return Normalise(*values)


def _report(model: "Model", path: Path) -> None:
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


@app.command(
    "export",
    epilog=example(
        "offaxis export digits.oax --onnx digits.onnx",
        "offaxis export photos.oax --onnx photos.onnx --with-resize",
        "offaxis export digits.oax --onnx small.onnx --int8 --calibrate digits --ood letters",
        "offaxis export runs/cifar10 --published best.ckpt",
    ),
)
def export_command(
    bundle: Annotated[Path, typer.Argument(help="A bundle; with --published also the folder of a training run.")],
    onnx: Annotated[Path | None, typer.Option(help="The ONNX file to write, by custom x.onnx.")] = None,
    with_resize: Annotated[
        bool, typer.Option("--with-resize", help="Put the rule for the size into the graph: pixels of any size in.")
    ] = False,
    int8: Annotated[bool, typer.Option("--int8", help="Convolutions on 8-bit integers; needs --calibrate.")] = False,
    calibrate: Annotated[
        str | None, typer.Option(help="ID images for --int8 that nothing was trained on: a set, folder or archive.")
    ] = None,
    ood: Annotated[
        list[str] | None, typer.Option(help="OOD images on which --int8 must not lose. May be given again.")
    ] = None,
    published: Annotated[
        Path | None,
        typer.Option(help="A file for the weights of resnet18-32 or resnetN-cifar by their published names (OpenOOD)."),
    ] = None,
    network: Network = None,
    data: Data = None,
    skip_bad: SkipBad = False,
    detector: OwnDetector = None,  # noqa: ARG001 - its callback registers the class
) -> None:
    """Write a bundle as one ONNX graph (uint8 pixels in; logits, cosine, score and p-value out), or a network's weights."""
    if (onnx is None) == (published is None):
        raise ArgumentError("Expected one of --onnx FILE and --published FILE.")
    given = {
        "--with-resize": with_resize,
        "--int8": int8,
        "--calibrate": calibrate,
        "--ood": ood,
        "--skip-bad": skip_bad,
    }
    useless = [option for option, value in given.items() if value]
    if published is not None and useless:
        raise ArgumentError(f"Expected --published FILE alone but got {', '.join(useless)}: these are for --onnx.")
    if published is not None:
        from offaxis.jobs import export_published

        export_published(bundle, network, published)
        print_note(f"{published}: a state dictionary that OpenOOD and open_network(..., weights=FILE) read.")
        return
    from offaxis.deploy.bundle import load
    from offaxis.deploy.onnx import export_onnx, output_names

    assert onnx is not None
    if int8 != (calibrate is not None) or (int8 and with_resize):
        raise ArgumentError(
            "Expected --int8 and --calibrate IMAGES together, without --with-resize: the quantised graph is calibrated anew."
        )
    if not int8 and (ood or skip_bad):
        raise ArgumentError(
            "Expected --int8 and --calibrate beside --ood and --skip-bad: without them no images are read."
        )
    model = load(bundle, network)
    shape = ", ".join(map(str, model.preprocessing.shape))
    if with_resize:
        shape = f"{model.preprocessing.shape[0]}, height, width"
    about = f"{onnx}: pixels uint8 (N, {shape}) -> {', '.join(output_names(model))}."
    if calibrate is None:
        difference = export_onnx(model, onnx, with_resize=with_resize)
        print_note(f"{about} onnxruntime and PyTorch differ by {difference:.1g} at most.")
        return
    from offaxis.data.image_set import list_skipped
    from offaxis.deploy.assemble import images_like
    from offaxis.deploy.engine import export_int8
    from offaxis.deploy.onnx import check_exportable
    from offaxis.deploy.preprocessing import Preprocessing

    check_exportable(model)
    wanted = model.preprocessing
    assert isinstance(wanted, Preprocessing)  # others cannot be exported
    named = (calibrate, *(ood or ()))
    sets = [images_like(name, wanted.shape, data, resize=wanted.resize, skip_bad=skip_bad) for name in named]
    if skipped := [line for images in sets for line in list_skipped(images.skipped)]:
        print_note("\n".join(skipped))
    found = export_int8(model, onnx, sets[0], sets[1:])
    what = "ID accuracy" if found.labelled else "Equal classes"
    lines = [about, f"{what} {found.accuracy[0]:.2%} before, {found.accuracy[1]:.2%} after."]
    lines += [f"AUROC on {name} {old:.2%} before, {new:.2%} after." for name, (old, new) in found.aurocs.items()]
    lines.append(f"{found.bytes[0]:,} bytes before, {found.bytes[1]:,} after; {found.images} calibration images.")
    print_note("\n".join(lines))
