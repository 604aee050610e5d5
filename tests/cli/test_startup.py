"""The program starts at once: what it prints without a network needs neither torch nor NumPy."""

import importlib
import json
import os
import subprocess
import sys
from typing import Any

import pytest
import typer

from offaxis import names
from offaxis.cli import app
from offaxis.evaluation import POOLS
from offaxis.metrics import HIGHER_IS_BETTER
from offaxis.options import COMMANDS

HEAVY = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "requests", "lightning_fabric", "PIL", "pandas", "jinja2")
SCRIPT = f"""
import json, sys
from offaxis.cli import main
try:
    main()
except SystemExit:
    pass
print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["paper"],
        ["paper", "one-vs-one"],
        ["data", "list"],
        ["data", "list", "cifar10", "--json"],
        ["train", "--help"],
        ["evaluate", "--help"],
        ["reproduce", "--help"],
        ["serve", "--help"],
        ["train"],
    ],
    ids=" ".join,
)
def test_nothing_heavy_is_imported(words: list[str]) -> None:
    settings = {**os.environ, "OFFAXIS_DATA": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, timeout=120, check=False, env=settings
    )
    assert json.loads(done.stderr.splitlines()[-1]) == []
    assert done.stdout or "Missing option" in done.stderr


def test_names_are_those_of_what_they_name() -> None:
    assert tuple(POOLS) == names.POOLS
    assert tuple(HIGHER_IS_BETTER) == names.METRICS
    for table in (names.HEADS, names.NETWORKS, names.RECIPES, names.NATIVE):
        assert all(callable(table[name]) for name in table)
    assert all(kind.name == name for name, kind in names.NATIVE.items())
    assert all(make().name == name for name, make in names.RECIPES.items())


@pytest.mark.parametrize(
    "words",
    ["train", "evaluate", "bundle", "calibrate", "score", "serve", "reproduce", "bench cost"],
)
def test_every_command_that_runs_a_network_takes_the_same_device(words: str) -> None:
    command: Any = typer.main.get_command(app)
    for word in words.split():
        command = command.commands[word]
    [device] = [parameter for parameter in command.params if parameter.name == "device"]
    assert device.opts == ["--device"]
    assert device.default == "auto"
    assert device.help == "Where networks run: auto (CUDA, else MPS, else the CPU), cpu, cuda, cuda:1, ... or mps."


def test_every_command_names_a_function_that_is_there() -> None:
    for words, each in COMMANDS.items():
        module, _, function = each.function.partition(":")
        assert callable(getattr(importlib.import_module(module), function)), words
