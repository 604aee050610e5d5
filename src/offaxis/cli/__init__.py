"""The command line; importing a module of this folder registers its commands."""

from offaxis.cli import bundle, data, demo, doctor, evaluate, reproduce, score, train
from offaxis.cli.app import app, main

app.add_typer(reproduce.bench_app)
app.add_typer(data.app)

__all__ = ["app", "bundle", "data", "demo", "doctor", "evaluate", "main", "reproduce", "score", "train"]
