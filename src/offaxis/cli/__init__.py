"""The command line, a file a command."""

from offaxis.cli import (
    data,
    evaluate,  # noqa: F401 - importing a command registers it
    paper,  # noqa: F401
    report,  # noqa: F401
    train,  # noqa: F401
)
from offaxis.cli.app import app, main

app.add_typer(data.app)

__all__ = ["app", "main"]
