"""The study: its page says what its store says, and its split of the sets is one."""

from pathlib import Path

import numpy as np
import pytest

from offaxis.data import CATALOGUE, relation
from offaxis.evaluation import Store
from study.page import BLOCK, PAGES, filled
from study.sets import CONTROLS, DEVELOPMENT, REPORTED
from study.shift import SHIFTS
from study.steps import KEPT, all_steps

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The study's paths begin at the root of the project."""
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_table_of_a_page_is_what_the_store_gives(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert BLOCK.search(text)
    assert filled(text) == text


def test_development_and_reported_sets_have_nothing_in_common() -> None:
    for id_name, reported in REPORTED.items():
        assert not set(reported) & {*DEVELOPMENT, *CONTROLS, id_name}
        for name in (*reported, *DEVELOPMENT):
            assert not relation(id_name, name).refused
            assert name in CATALOGUE


def test_no_evaluation_comes_before_its_training() -> None:
    seen = set()
    for step, needs in all_steps():
        seen.add(step.words)
        assert {need.words for need in needs} <= seen


def test_the_store_that_is_kept_is_small_and_holds_no_image() -> None:
    files = [path for path in (KEPT / "results").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 20_000_000
    assert {path.suffix for path in files} <= {".json", ".npz", ".gz"}
    for result in Store.existing(KEPT / "results").results():
        assert 0 <= result.metrics["auroc"] <= 1
        assert result.assumed is not None or result.state != "tuned"


def test_changes_that_keep_the_class_keep_the_picture() -> None:
    import torch

    ramp = torch.arange(0, 160, 5, dtype=torch.uint8).expand(2, 3, 32, 32).contiguous()
    for name, change in SHIFTS.items():
        changed = change(ramp)
        assert changed.shape == ramp.shape
        assert changed.dtype == torch.uint8
        assert (name == "as they are") == bool((changed == ramp).all())
        assert np.corrcoef(changed.flatten(), ramp.flatten())[0, 1] > 0.98
