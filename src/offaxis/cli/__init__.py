"""The command line, a file a command."""

from offaxis.cli import (
    data,
    evaluate,  # noqa: F401 - importing a command registers it
    train,  # noqa: F401
)
from offaxis.cli.app import app, main

app.add_typer(data.app)

__all__ = ["app", "main"]
