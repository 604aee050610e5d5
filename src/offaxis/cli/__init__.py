"""The command line, a file a command; importing a command registers it."""

from offaxis.cli import data, demo, train
from offaxis.cli.app import app, main

app.add_typer(data.app)

__all__ = ["app", "data", "demo", "main", "train"]
