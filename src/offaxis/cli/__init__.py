"""The command line, a file a command."""

from offaxis.cli import (
    bundle,  # noqa: F401
    data,
    export,  # noqa: F401
    score,  # noqa: F401
    serve,  # noqa: F401
    train,  # noqa: F401
)
from offaxis.cli.app import app, main

app.add_typer(data.app)

__all__ = ["app", "main"]
