"""The command line, a file a command."""

from offaxis.cli import train  # noqa: F401 - importing a command registers it
from offaxis.cli.app import app, main

__all__ = ["app", "main"]
