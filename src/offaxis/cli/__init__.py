"""The command line, a file a command."""

from offaxis.cli.app import app, main

__all__ = ["app", "main"]
