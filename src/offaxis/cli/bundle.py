"""``offaxis bundle``, ``calibrate`` and ``export``: a run -> a bundle, calibrated anew, and as an ONNX file."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from offaxis.cli.app import app, example
from offaxis.cli.score import Network
from offaxis.errors import ArgumentError

Alpha = Annotated[float, typer.Option(help="The share of new ID images that may be flagged.")]
PerClass = Annotated[bool, typer.Option(help="Verdicts hold for each predicted class.")]
Data = Annotated[Path | None, typer.Option(envvar="OFFAXIS_DATA", help="Where image sets are kept.")]
AsFolder = Annotated[bool, typer.Option("--folder", help="Write a folder instead of one file.")]


@app.command(
    "bundle",
    epilog=example(
        "offaxis bundle runs/digits --calibrate digits --out digits.oax",
        "offaxis bundle runs/d0 runs/d1 runs/d2 --as ensemble --calibrate digits --out three.oax",
    ),
)
def bundle_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders that offaxis train --out made.", metavar="RUN...")],
    calibrate: Annotated[
        str, typer.Option(help="ID images that nothing was trained on: a set (its test images), folder or archive.")
    ],
    out: Annotated[Path, typer.Option(help="The bundle, by custom x.oax.")],
    together: Annotated[
        str,
        typer.Option(
            "--as",
            help="Several networks as one: ensemble (averaged), paired (the first names the class, the second judges "
            "familiarity) or leave-out (in the order of their folds).",
        ),
    ] = "single",
    detector_run: Annotated[
        Path | None, typer.Option(help="The same as a second RUN and --as paired: its network judges familiarity.")
    ] = None,
    detector: Annotated[
        str | None,
        typer.Option(help="How familiarity is judged.", show_default="cosine, cosine-ensemble or leave-out"),
    ] = None,
    alpha: Alpha = 0.05,
    per_class: PerClass = False,
    trained_on: Annotated[
        str | None, typer.Option(help="The training images, where the run does not name a known set.")
    ] = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Do not look for calibration images among the training images.")
    ] = False,
    size: Annotated[int | None, typer.Option(help="Height and width of images, with --unchecked.", min=1)] = None,
    folder: AsFolder = False,
    data: Data = None,
) -> None:
    """Put a trained network or several, their preprocessing, a detector and a calibration into one file."""
    from offaxis.deploy.assemble import make_model

    if detector_run is not None:
        if together not in ("single", "paired"):
            raise ArgumentError(
                f"Expected --detector-run for a pair but got --as {together} beside it: name one of them."
            )
        runs, together = [*runs, detector_run], "paired"
    model = make_model(
        runs,
        calibrate,
        kind=together,
        detector=detector,
        alpha=alpha,
        per_class=per_class,
        trained_on=trained_on,
        unchecked=unchecked,
        size=size,
        data=data,
    )
    model.save(out, folder=folder)
    _report(model, out)


@app.command("calibrate", epilog=example("offaxis calibrate digits.oax photos/ --alpha 0.01"))
def calibrate_command(
    bundle: Annotated[Path, typer.Argument(help="A bundle; it is changed in place unless --out says otherwise.")],
    images: Annotated[str, typer.Argument(help="ID images: a set (its test images), a folder or an archive.")],
    out: Annotated[Path | None, typer.Option(help="Write another bundle.", show_default="BUNDLE itself")] = None,
    alpha: Annotated[float | None, typer.Option(help="Another level.", show_default="as it was")] = None,
    per_class: Annotated[bool | None, typer.Option(help="Verdicts per class.", show_default="as it was")] = None,
    network: Network = None,
    data: Data = None,
) -> None:
    """Calibrate a bundle anew, on other ID images or for another level; nothing is trained."""
    from offaxis.deploy.assemble import images_like
    from offaxis.deploy.bundle import load

    model = load(bundle, network)
    model = model.recalibrated(images_like(images, model.preprocessing.shape, data), alpha, per_class)
    model.save(out or bundle, folder=(out or bundle).is_dir())
    _report(model, out or bundle)


def _report(model: "object", path: Path) -> None:
    from offaxis.deploy.model import Model

    assert isinstance(model, Model)
    calibration = model.calibration
    about = f"{path}: {model.detector.name} on {len(calibration.scores)} calibration images, flagged above"
    level = f"(alpha {calibration.alpha:g})"
    if calibration.per_class:
        used = [value for value in calibration.class_thresholds() if value is not None]
        rates = [rate for rate in calibration.class_flag_rates() if rate is not None]
        lines = [
            f"{about} {min(used):.4g} to {max(used):.4g}, by predicted class {level}.",
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
    few = [name for name, enough in zip(model.classes, calibration.enough(), strict=True) if not enough]
    if few and calibration.per_class:
        lines.append(
            f"Not enough calibration images for a verdict: {', '.join(few[:8])}{', ...' if len(few) > 8 else ''}."
        )
    if not len(model.used):
        lines.append("It was not checked whether calibration images were used for training.")
    Console(stderr=True).print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


@app.command("export", epilog=example("offaxis export digits.oax --onnx digits.onnx"))
def export_command(
    bundle: Annotated[Path, typer.Argument(help="A bundle.")],
    onnx: Annotated[Path, typer.Option(help="The file to write, by custom x.onnx.")],
    network: Network = None,
) -> None:
    """Write a bundle as one ONNX graph: uint8 pixels in; logits, cosine, score and p-value out."""
    from offaxis.deploy.bundle import load
    from offaxis.deploy.onnx import export_onnx, output_names

    model = load(bundle, network)
    difference = export_onnx(model, onnx)
    channels, height, width = model.preprocessing.shape
    Console(stderr=True).print(
        f"{onnx}: pixels uint8 (N, {channels}, {height}, {width}) -> {', '.join(output_names(model))}. onnxruntime and PyTorch "
        f"differ by {difference:.1g} at most.",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
