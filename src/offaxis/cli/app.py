"""The program ``offaxis``: thin commands, errors without tracebacks.

Modules of this folder import nothing heavy at their top, so that the program starts at once: torch, NumPy, and every
room that needs them are imported inside the commands.
"""

import errno
import io
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import MISSING, Field, fields
from functools import partial
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, get_args, get_type_hints

import typer
from typer.core import TyperGroup

from offaxis import __version__
from offaxis.errors import ArgumentError, OffaxisError, StorageError, TrainingStopped
from offaxis.options import Options

COMMANDS = (
    *("demo", "data", "train", "bundle", "score", "serve", "calibrate", "export"),
    *("evaluate", "report", "reproduce", "paper", "bench", "doctor"),
)
"""The order in which a user meets the commands; any other comes after them."""
SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")


class Program(TyperGroup):
    """A command group that remembers the words that it was called with."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of ``COMMANDS``."""
        return sorted(super().list_commands(ctx), key=[*COMMANDS, *super().list_commands(ctx)].index)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words, and parse them; completion is for the shell that is named, or else for the one that runs."""
        ctx.obj = ("offaxis", *args)
        if len(args) == 2 and args[0] in ("--show-completion", "--install-completion"):
            _complete(ctx, *args)
        return super().parse_args(ctx, args)


def _complete(ctx: Any, option: str, shell: str) -> NoReturn:
    """Show or install the completion of a shell, with Typer's callbacks, whose options take no value."""
    from typer.completion import install_callback, show_callback

    if shell not in SHELLS:
        raise ArgumentError(f"Expected one of {', '.join(SHELLS)} after {option} but got {shell!r}.")
    callback: Any = show_callback if option == "--show-completion" else install_callback
    callback(ctx, None, shell)
    raise typer.Exit  # never reached: they exit themselves


app = typer.Typer(
    name="offaxis",
    cls=Program,
    help="Out-of-distribution detection for image classifiers.",
    invoke_without_command=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def command_words(context: typer.Context) -> tuple[str, ...]:
    """Return the words that a command was called with, ``offaxis`` first; bytes that are not UTF-8 are escaped."""
    from offaxis.data.decode import printable

    return tuple(printable(word) for word in context.find_root().obj)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"offaxis {__version__}")
        raise typer.Exit


def example(*commands: str) -> str:
    """Return the end of a command's help: examples that can be pasted."""
    return "\n\n".join(f"[bold]Example[/bold]   [cyan]{command}[/cyan]" for command in commands)


FIRST_COMMANDS = (
    ("offaxis demo --quick", "see it work: trains on digits, scores OOD images, writes a page; a minute"),
    (
        "offaxis train --id photos --network efficientnet-lite0 --freeze --out runs/photos",
        "train on folders of photographs",
    ),
    ("offaxis bundle runs/photos --calibrate photos --out photos.oax", "calibrate it, and keep it in one file"),
    ("offaxis score photos.oax new/", "class, p-value and verdict of every image"),
    ("offaxis doctor", "what is installed, what is missing"),
)
"""What ``offaxis`` by itself shows: a command and what it does."""


@app.callback(epilog=example("offaxis demo --quick"))
def offaxis_command(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback prints it
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Out-of-distribution detection for image classifiers."""
    if context.invoked_subcommand is None:
        typer.echo(
            f"offaxis {__version__}: is this image one that the classifier was trained for?\n\nFirst commands:\n"
        )
        for command, purpose in FIRST_COMMANDS:
            typer.echo(f"  {command}\n      {purpose}")
        typer.echo("\nAll commands: offaxis --help. One of them: offaxis train --help.")


def print_note(text: str, style: str | None = None) -> None:
    """Print a sentence to standard error, as it is but for what a terminal would obey."""
    from rich.console import Console

    from offaxis.progress import visible

    Console(stderr=True).print(visible(text), style=style, markup=False, highlight=False, soft_wrap=True)


def _show_warning(
    others: Callable[..., None], message: Warning | str, category: type[Warning], filename: str, *place: Any
) -> None:
    """Print a warning of this package as a sentence, and those of ``others`` as ever."""
    if issubclass(category, UserWarning) and Path(filename).is_relative_to(Path(__file__).parents[1]):
        print_note(f"Warning: {message}", "yellow")
    else:
        others(message, category, filename, *place)


def main() -> None:
    """Run the command line; a user's error is one sentence, with exit code 2."""
    for told_elsewhere in ("Image size .* exceeds limit", "Corrupt EXIF data"):  # by Pillow, in lines of its own
        warnings.filterwarnings("ignore", message=told_elsewhere)
    warnings.showwarning = partial(_show_warning, warnings.showwarning)
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names that are not text, and terminals without Unicode
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # here, where a full disk can still be told
    except OSError as error:
        if isinstance(error, OffaxisError):
            _exit_with(error)
        if error.filename is not None:
            name, reason = os.fsdecode(error.filename), error.strerror or "unknown error"
            _exit_with(StorageError(f"{name} cannot be opened ({reason}): check its name and its permissions."))
        if error.errno in (errno.EMFILE, errno.ENFILE):
            _exit_with(
                StorageError(f"No more files can be opened ({error.strerror}): raise the limit, as ulimit -n does.")
            )
        if not _is_of_output(error):
            raise
        with suppress(OSError):
            sys.stdout.close()  # else it is flushed once more at the end, and fails again
        if isinstance(error, BrokenPipeError):  # the reader, such as head, has closed the pipe
            sys.exit(1)
        closed = isinstance(error, io.UnsupportedOperation) or error.errno == errno.EBADF
        reason = "it is closed): redirect it to a file" if closed else f"{error.strerror}): free some space"
        _exit_with(StorageError(f"Standard output cannot be written ({reason}."))
    except TrainingStopped as stopped:
        print_note(str(stopped), "yellow")
        sys.exit(stopped.exit_code)
    except OffaxisError as error:
        _exit_with(error)


def _is_of_output(error: OSError) -> bool:
    """Return whether an error that names no file is one that writing to standard output fails with."""
    from offaxis.files import DISK_ERRORS

    kinds = (BrokenPipeError, io.UnsupportedOperation)
    return isinstance(error, kinds) or error.errno in {errno.EBADF, *DISK_ERRORS}


def _open_closed_streams() -> None:
    """Replace standard streams that were closed (``>&-``): what is written to standard output then fails, notes are lost."""
    for name, mode in (("stdin", "r"), ("stdout", "r"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - until the end


def _exit_with(error: Exception) -> NoReturn:
    """Print a user's error as one sentence and exit with code 2; raise any other error."""
    if not isinstance(error, OffaxisError):
        raise error
    from rich.console import Console

    Console(stderr=True).print("error:", style="bold red", end=" ")
    print_note(str(error))
    sys.exit(2)


Task = TypeVar("Task", bound=Options)


def command(
    name: str, task: type[Task], *examples: str
) -> Callable[[Callable[[Task, tuple[str, ...]], None]], Callable[[Task, tuple[str, ...]], None]]:
    """Register a function of (options, words of the command line) as a command whose options are the fields of ``task``."""

    def register(function: Callable[[Task, tuple[str, ...]], None]) -> Callable[[Task, tuple[str, ...]], None]:
        own = {each.name: each for each in fields(task)}
        hints = get_type_hints(task)

        def run(context: typer.Context, **given: Any) -> None:
            values = {key: _value(own[key], value) for key, value in given.items()}
            for key, value in values.items():
                if value is not None and own[key].metadata.get("registers"):
                    from offaxis.detectors.registry import register_file

                    register_file(value)
            function(task(**values), command_words(context))

        context = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
        parameters = [context, *(_parameter(each, hints[each.name]) for each in own.values())]
        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        run.__doc__ = function.__doc__
        app.command(name, epilog=example(*examples))(run)
        return function

    return register


def _value(each: "Field[Any]", given: Any) -> Any:
    """Return the value of a field from what Typer gives."""
    parse = each.metadata.get("parse")
    if parse is not None and isinstance(given, str):
        return parse(given)
    return () if given is None and each.default == () else tuple(given) if isinstance(given, list) else given


def _parameter(each: "Field[Any]", hint: Any) -> Parameter:
    """Return the parameter by which Typer knows the option of a field."""
    how, default = each.metadata, each.default
    required = how.get("required") or default is MISSING
    if "parse" in how:
        hint = str if required or default is not None else str | None
        default = default if default is None else how["text"](default)
    elif hint == tuple[str, ...]:
        hint, default = (list[str], None) if required else (list[str] | None, None)
    elif required:
        hint = next((part for part in get_args(hint) if part is not type(None)), hint)
    make = typer.Argument if how.get("argument") else typer.Option
    names = [how["flags"]] if "flags" in how else []
    known = {"shown": "show_default", "least": "min", "most": "max", "environment": "envvar"}
    passed = {known.get(key, key): how[key] for key in how if key in (*known, "metavar", "hidden")}
    info = make(*names, help=how["help"], **passed)
    info.rich_help_panel = how["group"]
    value = Parameter.empty if required else default
    return Parameter(each.name, Parameter.KEYWORD_ONLY, default=value, annotation=Annotated[hint, info])
