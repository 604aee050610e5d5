"""What docs/reliability.md names is there: every test, every file and every make target."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


def test_every_named_test_exists() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE))
    assert len(named) > 30
    for file, test in sorted(named):
        assert (ROOT / file).is_file(), file
        assert not test or f"\ndef {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"


def test_every_promise_has_a_test() -> None:
    table = PAGE.partition("## Guarantees and their tests")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    for row in rows:
        assert re.search(r"`(tests/\S+::\w+|make [\w-]+)`", row), row


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`(?:\w+=\w+ )?make ([\w-]+)`", PAGE)):
        assert f"\n{target}:" in makefile, target
