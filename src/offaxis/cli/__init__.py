"""The command line, a file a command; importing a command registers it."""

from offaxis.cli import bench, data, demo, evaluate, paper, report, reproduce, train
from offaxis.cli.app import app, main

app.add_typer(bench.app)
app.add_typer(data.app)

__all__ = ["app", "bench", "data", "demo", "evaluate", "main", "paper", "report", "reproduce", "train"]
