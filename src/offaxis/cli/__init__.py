"""The command line, a file a command; importing a command registers it."""

from offaxis.cli import bundle, data, demo, evaluate, paper, report, reproduce, score, serve, train
from offaxis.cli.app import app, main

app.add_typer(reproduce.bench_app)
app.add_typer(data.app)

__all__ = [
    "app",
    "bundle",
    "data",
    "demo",
    "evaluate",
    "main",
    "paper",
    "report",
    "reproduce",
    "score",
    "serve",
    "train",
]
