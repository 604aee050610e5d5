"""The command line: ``offaxis.options`` declares its commands, and a module of this folder runs one or a few of them."""

from offaxis.cli.app import app, main

__all__ = ["app", "main"]
