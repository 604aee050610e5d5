"""The program ``offaxis``: commands made from ``offaxis.options``, errors without tracebacks.

What a command needs is imported when it runs, so that the program starts at once: neither torch nor NumPy is imported here.
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
from importlib import import_module
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args, get_type_hints

import typer
from rich.console import Console
from typer.completion import install_callback, show_callback
from typer.core import TyperGroup

from offaxis import __version__
from offaxis.errors import ArgumentError, MissingPackageError, OffaxisError, StorageError, TrainingStopped
from offaxis.files import DISK_ERRORS
from offaxis.options import COMMANDS, Options, ShellCommand
from offaxis.progress import print_note

GROUPS = {
    "data": ("List, download and inspect image sets.", "offaxis data list"),
    "bench": ("Measure computing times on this machine.", "offaxis bench cost --rounds 3"),
}
"""The first word of several commands -> the help of the group and an example."""
SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")


class Program(TyperGroup):
    """A command group that remembers the words that it was called with."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - Typer's
        """Return the names of the commands in the order in which they are declared."""
        return list(dict.fromkeys(words.split()[0] for words in COMMANDS))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words, and parse them; completion is for the shell that is named, or else for the one that runs."""
        ctx.obj = ("offaxis", *args)
        if len(args) == 2 and args[0] in ("--show-completion", "--install-completion"):  # Typer's take no value
            if args[1] not in SHELLS:
                raise ArgumentError(f"Expected one of {', '.join(SHELLS)} after {args[0]} but got {args[1]!r}.")
            complete: Any = show_callback if args[0] == "--show-completion" else install_callback
            complete(ctx, None, args[1])  # exits
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="offaxis",
    cls=Program,
    help="Out-of-distribution detection for image classifiers.",
    invoke_without_command=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"offaxis {__version__}")
        raise typer.Exit


def _examples(*commands: str) -> str:
    """Return the end of a command's help."""
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


@app.callback(epilog=_examples("offaxis demo --quick"))
def offaxis_command(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback prints it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
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


# commands from options ------------------------------------------------------------------------------------------------


def _runner(command: ShellCommand) -> Callable[..., None]:
    """Return a function for Typer whose parameters are the options of a command, and that runs it."""
    own = {each.name: each for each in fields(command.options)}
    hints = get_type_hints(command.options)

    def run(context: typer.Context, **given: Any) -> None:
        options = command.options(**{name: _value(own[name], value) for name, value in given.items()})
        _register_own_detector(options)
        module, _, function = command.function.partition(":")
        words = (os.fsencode(word).decode("utf-8", "backslashreplace") for word in context.find_root().obj)
        try:
            task = getattr(import_module(module), function)
        except ImportError as error:
            if command.extra is None:
                raise
            raise MissingPackageError(
                f"This command needs more packages ({error}): pip install 'offaxis[{command.extra}]'."
            ) from error
        task(options, tuple(words))

    inherited = {each.name for base in command.options.__mro__[1:-1] for each in fields(base)}
    last = sorted(own, key=lambda name: name in inherited)  # those that many commands have
    context = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [context, *(_parameter(own[name], hints[name]) for name in last)]
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__doc__ = command.options.__doc__
    return run


def _register_own_detector(options: Options) -> None:
    for each in fields(options):
        file = getattr(options, each.name)
        if file is not None and each.metadata.get("registers"):
            import_module("offaxis.detectors.registry").register_file(file)


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


groups = {"": app}
for name, (purpose, usage) in GROUPS.items():
    groups[name] = typer.Typer(name=name, help=purpose, epilog=_examples(usage), no_args_is_help=True)
    groups[name].callback()(lambda: None)
    app.add_typer(groups[name])
for words, each in COMMANDS.items():
    group, _, name = words.rpartition(" ")
    groups[group].command(name, epilog=_examples(*each.examples))(_runner(each))


# the program ----------------------------------------------------------------------------------------------------------


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
    except TrainingStopped as stopped:
        print_note(str(stopped), "yellow")
        sys.exit(stopped.exit_code)
    except OffaxisError as error:
        _exit_with(error)
    except OSError as error:
        _exit_with(_explained(error))


def _open_closed_streams() -> None:
    """Replace standard streams that were closed (``>&-``): what is written to standard output then fails, notes are lost."""
    for name, mode in (("stdin", "r"), ("stdout", "r"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - until the end


def _explained(error: OSError) -> OffaxisError:
    """Return what to say of an error of the system; raise it again where it is no user's, and end where the reader has gone."""
    if error.filename is not None:
        name, reason = os.fsdecode(error.filename), error.strerror or "unknown error"
        return StorageError(f"{name} cannot be opened ({reason}): check its name and its permissions.")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return StorageError(f"No more files can be opened ({error.strerror}): raise the limit, as ulimit -n does.")
    closed = isinstance(error, io.UnsupportedOperation) or error.errno == errno.EBADF
    if not (closed or isinstance(error, BrokenPipeError) or error.errno in DISK_ERRORS):
        raise error
    with suppress(OSError):
        sys.stdout.close()  # else it is flushed once more at the end, and fails again
    if isinstance(error, BrokenPipeError):  # the reader, such as head, has closed the pipe
        sys.exit(1)
    reason = "it is closed): redirect it to a file" if closed else f"{error.strerror}): free some space"
    return StorageError(f"Standard output cannot be written ({reason}.")


def _exit_with(error: OffaxisError) -> NoReturn:
    Console(stderr=True).print("error:", style="bold red", end=" ")
    print_note(str(error))
    sys.exit(2)
