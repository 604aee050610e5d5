"""The command line, a file a command; importing a command registers it."""

from offaxis.cli import bench, bundle, data, demo, evaluate, export, paper, report, reproduce, score, serve, train
from offaxis.cli.app import app, main

app.add_typer(bench.app)
app.add_typer(data.app)

__all__ = [
    "app",
    "bench",
    "bundle",
    "data",
    "demo",
    "evaluate",
    "export",
    "main",
    "paper",
    "report",
    "reproduce",
    "score",
    "serve",
    "train",
]
