"""``offaxis export``: a bundle -> an ONNX file."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from offaxis.cli.app import app, example
from offaxis.cli.score import Network


@app.command("export", epilog=example("offaxis export digits.oax --onnx digits.onnx"))
def export_command(
    bundle: Annotated[Path, typer.Argument(help="A bundle.")],
    onnx: Annotated[Path, typer.Option(help="The file to write, by custom x.onnx.")],
    network: Network = None,
) -> None:
    """Write a bundle as one ONNX graph: uint8 pixels in; logits, cosine, score and p-value out."""
    from offaxis.deploy.bundle import read
    from offaxis.deploy.onnx import export, names
    from offaxis.deploy.own_network import made_by

    model = read(bundle, made_by(network))
    difference = export(model, onnx)
    channels, height, width = model.preprocessing.shape
    Console(stderr=True).print(
        f"{onnx}: pixels uint8 (N, {channels}, {height}, {width}) -> {', '.join(names(model))}. onnxruntime and PyTorch differ "
        f"by {difference:.1g} at most.",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
