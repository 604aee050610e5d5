"""What a newcomer meets: `offaxis` by itself, help pages with examples, completion, the doctor, the quick demo."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from offaxis import __version__
from offaxis.cli import app, doctor
from offaxis.cli.app import FIRST_COMMANDS
from offaxis.errors import ArgumentError
from offaxis.options import COMMANDS as DECLARED

RUNNER = CliRunner()


def commands(command: Any, words: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every command with the words that call it."""
    if not hasattr(command, "commands"):
        return [(words, command)]
    return [found for name, each in command.commands.items() for found in commands(each, (*words, name))]


COMMANDS = commands(typer.main.get_command(app))


def test_without_arguments_five_first_commands_are_shown() -> None:
    shown = RUNNER.invoke(app, [])
    assert shown.exit_code == 0
    assert re.findall(r"^  (offaxis .*)$", shown.output, re.MULTILINE) == [command for command, _ in FIRST_COMMANDS]
    assert len(FIRST_COMMANDS) == 5


@pytest.mark.parametrize(("words", "command"), COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS])
def test_every_help_page_has_an_example_that_exists(words: tuple[str, ...], command: Any) -> None:
    examples = re.findall(r"\[cyan\]offaxis (.*?)\[/cyan\]", command.epilog or "")
    assert examples
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for example in examples:
        assert tuple(example.split()[: len(words)]) == words
        assert {word for word in example.split() if word.startswith("--")} <= options, example
    assert "Example" in RUNNER.invoke(app, [*words, "--help"]).output


def test_help_lists_the_commands_in_the_order_in_which_they_are_met() -> None:
    shown = RUNNER.invoke(app, ["--help"]).output
    assert re.findall(r"^│ ([a-z]+) ", shown.partition("Commands")[2], re.M) == list(
        dict.fromkeys(words.split()[0] for words in DECLARED)
    )
    for group in ("data", "bench"):
        assert "Example" in RUNNER.invoke(app, [group, "--help"]).output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_offers_commands_and_options(shell: str) -> None:
    def complete(words: str) -> str:
        place = str(len(words.split(" ")) - 1)
        spoken = {
            "bash": {"COMP_WORDS": words, "COMP_CWORD": place},
            "zsh": {"_TYPER_COMPLETE_ARGS": words},
            "fish": {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        }[shell]
        settings = {**os.environ, **spoken, "_OFFAXIS_COMPLETE": f"complete_{shell}"}
        code = "import sys; sys.argv = ['offaxis']; from offaxis.__main__ import start; start()"
        return subprocess.run(
            [sys.executable, "-c", code], env=settings, capture_output=True, text=True, timeout=60, check=False
        ).stdout

    assert "train" in complete("offaxis tr")
    assert "--freeze" in complete("offaxis train --fr")


@pytest.mark.parametrize(
    ("shell", "part"), [("bash", "complete -o default"), ("zsh", "compdef "), ("fish", "complete --command ")]
)
def test_completion_is_shown_and_installed_for_the_shell_that_is_named(
    shell: str, part: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whichever shell runs the command."""
    shown = RUNNER.invoke(app, ["--show-completion", shell])
    assert shown.exit_code == 0
    assert part in shown.output
    assert f"=complete_{shell} " in shown.output
    monkeypatch.setenv("HOME", str(tmp_path))
    installed = RUNNER.invoke(app, ["--install-completion", shell])
    assert installed.exit_code == 0
    assert f"{shell} completion installed" in installed.output
    assert any(part in file.read_text() for file in tmp_path.rglob("*") if file.is_file())


def test_completion_for_another_shell_is_refused() -> None:
    refused = RUNNER.invoke(app, ["--show-completion", "tcsh"])
    assert isinstance(refused.exception, ArgumentError)
    assert str(refused.exception).startswith("Expected one of bash, zsh, fish")


def test_the_doctor_says_what_is_there_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_importable", lambda name: f"{name} 1.0")  # imports of others take seconds
    true = doctor._version_of
    monkeypatch.setattr(doctor, "_version_of", lambda name: None if name == "pandas" else true(name))
    shown = RUNNER.invoke(app, ["doctor", "--data", "/nowhere"])
    assert shown.exit_code == 0, shown.output
    assert f"offaxis {__version__}, Python" in shown.output
    assert "missing pandas: pip install 'offaxis[frames]'" in shown.output
    assert "/nowhere, which does not exist yet" in shown.output
    found = json.loads(RUNNER.invoke(app, ["doctor", "--json"]).output)
    assert found["packages"]["torch"]
    assert found["devices"][0] == "cpu"
    assert "serve" in found["extras"]
    assert not set(found["extras"]) & set(doctor.FOR_DEVELOPERS)


def test_a_package_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise RuntimeError("operator torchvision::nms\ndoes not exist")

    monkeypatch.setattr("importlib.import_module", broken)
    assert doctor._importable("nothing-of-this-name") == "not installed"
    said = doctor._importable("numpy")
    assert "cannot be imported (RuntimeError: operator torchvision::nms does not exist)" in said
    assert "torchvision was built for another torch" in said
    assert "download.pytorch.org/whl/cpu" in said


@pytest.mark.skipif(sys.platform != "linux", reason="other systems limit memory in other ways")
@pytest.mark.parametrize("megabytes", [200, 400])  # with more, PyTorch itself may abort, which nobody can catch
def test_too_little_memory_is_a_sentence(megabytes: int, tmp_path: Path) -> None:
    limited = (
        f"ulimit -v {megabytes * 1000}; exec {sys.executable} -m offaxis train --id digits --out {tmp_path / 'run'}"
    )
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: The memory that this process may have")
    assert "Traceback" not in done.stderr
