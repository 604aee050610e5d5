"""The program ``offaxis``: one thin command a file, errors without tracebacks."""

import sys
from typing import Annotated

import torch
import typer
from rich.console import Console

from offaxis import __version__
from offaxis.errors import ArgumentError, OffaxisError, TrainingStopped

app = typer.Typer(
    name="offaxis",
    help="Tells whether an image is one that a classifier was trained for.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"offaxis {__version__}")
        raise typer.Exit


@app.callback()
def offaxis_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Tells whether an image is one that a classifier was trained for."""


def example(*commands: str) -> str:
    """The epilogue of a command's help: examples that can be pasted."""
    return "\n\n".join(f"[bold]Example[/bold]   [cyan]{command}[/cyan]" for command in commands)


def main() -> None:
    """Run the command line; what a user got wrong is told in a sentence, with exit code 2."""
    try:
        app()
    except TrainingStopped as stopped:
        Console(stderr=True).print(str(stopped), style="yellow", markup=False, highlight=False)
        sys.exit(stopped.exit_code)
    except OffaxisError as error:
        console = Console(stderr=True)
        console.print("error:", style="bold red", end=" ")
        console.print(str(error), markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)


Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ... or mps.")]


def usable(device: str) -> str:
    """The device, once a number has been there and back.

    Raises:
        ArgumentError: PyTorch knows no such device or cannot use it here; the message names those that it can.
    """
    try:
        torch.zeros(1, device=device).item()
    except (
        RuntimeError,
        AssertionError,
        ImportError,
    ):  # by whether PyTorch knows it, was built for it, or has a plug-in
        raise ArgumentError(
            f"Expected --device to be one that PyTorch can use here ({', '.join(devices())}) but got {device!r}."
        ) from None
    return device


def devices() -> list[str]:
    """The devices that there are, such as cpu, cuda:0 and cuda:1."""
    found = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    return [*found, "mps"] if torch.backends.mps.is_available() else found
