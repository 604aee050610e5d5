"""What is released: one version everywhere, badges and checks that say what is so, workflows and hooks that call make."""

import re
import runpy
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import offaxis

ROOT = Path(__file__).parents[1]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_is_the_same_everywhere() -> None:
    versions = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", read("CHANGELOG.md"), re.M)
    assert versions[0][0] == offaxis.__version__
    assert f"version: {offaxis.__version__}\ndate-released: {versions[0][1]}" in read("CITATION.cff")
    assert f"offaxis-{offaxis.__version__}-py3-none-any.whl" in read("README.md")


def test_the_changelog_has_the_form_of_keep_a_changelog() -> None:
    order = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    sections = re.split(r"^## ", read("CHANGELOG.md"), flags=re.M)[1:]
    names = [section.splitlines()[0] for section in sections]
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d|\[Unreleased\]", name) for name in names), names
    assert len({name.split()[0] for name in names}) == len(names)
    for section in sections:
        kinds = re.findall(r"^### (.*)$", section, re.M)
        assert kinds == [kind for kind in order if kind in kinds]  # each once, in this order


def test_the_badges_say_what_pyproject_says() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "badges.py"))
    for file, texts in script["texts"]().items():
        assert read(f"docs/images/badges/{file}.svg") == script["badge"](*texts)


@pytest.fixture(scope="module")
def targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", read("Makefile"), re.M))


@pytest.mark.parametrize("name", ["check", "docs", "release"])
def test_workflows_call_make_and_say_that_they_are_untried(name: str, targets: set[str]) -> None:
    text = read(f".github/workflows/{name}.yml")
    assert text.startswith("# Untried")
    called = set(re.findall(r"run: make ([a-z-]+)", text))
    assert called
    assert called <= targets


def test_the_hooks_are_make_check(targets: set[str]) -> None:
    hooks = re.findall(r"entry: make (\w+)", read(".pre-commit-config.yaml"))
    (check,) = re.findall(r"^check: ([a-z ]+?) *##", read("Makefile"), re.M)
    assert hooks == check.split()


Problems = Callable[[str, int, bool], list[str]]
"""(name of a file, bytes, whether in a wheel) -> what is wrong with it."""


@pytest.fixture(scope="module")
def problems() -> Problems:
    found: Problems = runpy.run_path(str(ROOT / "scripts" / "check_dist.py"))["problems"]
    return found


@pytest.mark.parametrize(
    ("name", "size", "wheel", "wrong"),
    [
        ("offaxis/metrics.py", 100, True, False),
        ("offaxis/py.typed", 0, True, False),
        ("offaxis-0.2.0.dist-info/METADATA", 100, True, False),
        ("offaxis/data/cifar.npz", 100, True, True),
        ("offaxis/model.safetensors", 100, True, True),
        ("offaxis/notes.md", 100, True, True),
        ("study/results/scores/a.npz", 100, False, False),
        ("study/results/results/all.jsonl.gz", 100, False, False),
        ("tests/golden/values/detectors.npz", 100, False, False),
        ("study/results/model.safetensors", 100, False, True),
        ("docs/photo.jpg", 100, False, True),
        ("docs/images/head.png", 100, False, False),
        ("photos.png", 100, False, True),
        ("docs/results.md", 3_000_000, False, True),
    ],
)
def test_data_and_weights_are_refused_in_a_release(
    problems: Problems, name: str, size: int, wheel: bool, wrong: bool
) -> None:
    assert bool(problems(name, size, wheel)) is wrong


def test_nothing_in_the_repository_is_refused_in_a_release(problems: Problems) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a clone")
    files = [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    assert [wrong for name in files for wrong in problems(name, (ROOT / name).stat().st_size, False)] == []


def test_every_extra_has_pins() -> None:
    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    project = tomllib.loads(read("pyproject.toml"))["project"]
    pinned = {plain(line.split("==")[0]) for line in read("constraints.txt").splitlines() if "==" in line}
    for extra, packages in project["optional-dependencies"].items():
        names = {plain(re.split(r"[^\w.-]", package)[0]) for package in packages} - {"offaxis"}
        assert names <= pinned, extra
