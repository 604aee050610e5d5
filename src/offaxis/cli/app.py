"""The program ``offaxis``: one thin command a file, errors without tracebacks."""

import sys
from typing import Annotated

import typer
from rich.console import Console

from offaxis.errors import OffaxisError, TrainingStopped
from offaxis.version import __version__

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
