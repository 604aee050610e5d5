"""Tables in three formats, and what the page holds before a browser sees it."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from offaxis.cli import app
from offaxis.data import ImageSet
from offaxis.errors import ArgumentError, DataError, EvaluationError
from offaxis.evaluation import Store
from offaxis.evaluation.records import SetRecord
from offaxis.evaluation.summary import View, compare_pair, summarise
from offaxis.paper.tables import beside, paper_numbers, paper_rows
from offaxis.reports.page import (
    Thumbnails,
    extreme_images,
    histogram,
    ranking_figure,
    recorded_commands,
    score_plots,
    write_page,
)
from offaxis.reports.report import build_sections, write_openood, write_tables
from offaxis.reports.result_tables import (
    dependency_tables,
    networks_table,
    pairs_table,
    ranking_table,
    set_title,
    sets_table,
)
from offaxis.reports.tables import Table, Value, comma_separated, escape, in_percent, latex, markdown, percent
from study.archive import archive_store

GROUPS = ("letters", "photographs", "gaussian")
TABLE = Table(
    name="t",
    title="AUROC & more",
    columns=("detector", "a_b", "c"),
    rows=[["x|y", Value(0.98765, "98.77", best=True), Value(None, "-")], ["ours", Value(1 / 3, "33.33"), "50 %"]],
    note="A note.",
)


def test_markdown() -> None:
    text = markdown(TABLE)
    assert "### AUROC & more" in text
    assert r"| x\|y | **98.77** | - |" in text
    assert "| --- | ---: | ---: |" in text
    assert text.endswith("A note.\n")


def test_comma_separated_values_are_in_full() -> None:
    rows = list(csv.reader(io.StringIO(comma_separated(TABLE))))
    assert rows == [["detector", "a_b", "c"], ["x|y", "0.98765", ""], ["ours", repr(1 / 3), "50 %"]]


def test_percentages_are_percentages_in_csv_too() -> None:
    table = Table(
        name="t",
        title="t",
        columns=("network", "accuracy %", "all", "seeds"),
        rows=[
            ["a", in_percent(0.915, 0.01), in_percent(None), Value(3, "3")],
            ["b", in_percent(0.5), in_percent(0.25), "-"],
        ],
    )
    rows = list(csv.reader(io.StringIO(comma_separated(table))))
    assert rows == [["network", "accuracy %", "all", "seeds"], ["a", "91.5", "", "3"], ["b", "50.0", "0.25", "-"]]


def test_oracle_rows_stand_apart_unless_asked_for(made_up: Store, tmp_path: Path) -> None:
    results, networks = made_up.results(), made_up.networks()
    [apart], [among] = build_sections(results, networks), build_sections(results, networks, oracle=True)
    first, together = apart.protocols[0], among.protocols[0]
    tuned = {s.method for s in summarise(results) if s.state == "tuned"}
    assert tuned
    assert first.oracle is not None
    assert first.ranking is not None
    assert not tuned & {s.method for s in first.summaries}
    assert not tuned & {row[1] for row in first.ranking.rows if isinstance(row[1], str)}
    assert {row[1] for row in first.oracle.rows} == tuned
    assert together.oracle is None
    assert tuned < {s.method for s in together.summaries}
    assert apart.protocols[1].oracle is None  # tuned on another set: an honest row
    write_tables(made_up, tmp_path)
    assert "Tuned on the tested set itself (oracle)" in (tmp_path / "report.md").read_text()


def test_latex_is_escaped() -> None:
    text = latex(TABLE)
    assert r"\caption{AUROC \& more. A note.}" in text
    assert r"detector & a\_b & c \\" in text
    assert r"x|y & \textbf{98.77} & - \\" in text
    assert escape("a\\b~c^{±}") == r"a\textbackslash{}b\textasciitilde{}c\textasciicircum{}\{$\pm$\}"
    assert (percent(0.98765, 0.001), percent(None)) == ("98.77(0.10)", "-")


def test_the_tables_of_a_report(made_up: Store) -> None:
    results = made_up.results()
    summaries = summarise(results)
    ranking = ranking_table(summaries, "one-vs-one")
    assert ranking.columns[3:7] == ("all", "near", "far", "noise")
    assert ranking.rows[0][1:3] == ["cosine", "wrn-10-1 cosine"]
    means = [row[3].number or 0.0 for row in ranking.rows if isinstance(row[3], Value)]
    assert means == sorted(means, reverse=True)
    sets = sets_table(summaries, "one-vs-one")
    assert sets.columns == ("detector", "network", "letters", "photograph crops", "Gaussian")
    assert sum(isinstance(e, Value) and e.best for row in sets.rows for e in row) == 3
    pairs = pairs_table(summaries, "one-vs-one")
    assert len(pairs.rows) == len(summaries) - 1
    assert len(pairs_table(summaries, "one-vs-one", every=True).rows) > len(pairs.rows)
    networks = networks_table(made_up.networks(), "small-digits")
    assert [row[0] for row in networks.rows] == ["wrn-10-1 cosine", "wrn-10-1 linear"]
    assert isinstance(networks.rows[0][2], Value)
    assert networks.rows[0][2].text == "96.50(0.71)"


def test_a_report_needs_results(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="offaxis evaluate"):
        build_sections([], [])


def test_reports_are_rebuilt_from_a_compact_copy(made_up: Store, tmp_path: Path) -> None:
    copy = archive_store(made_up, tmp_path / "copy", images=20)
    again = archive_store(copy, tmp_path / "again", images=20)
    for first, second in zip(copy.results(), again.results(), strict=True):
        for one, other in zip(first.scores, second.scores, strict=True):
            assert copy.scores(one).tolist() == again.scores(other).tolist()
    write_tables(made_up, tmp_path / "a")
    sections = write_tables(copy, tmp_path / "b")
    write_page(copy, sections, tmp_path / "b" / "index.html", title="A copy")
    assert "made without thumbnails" in (tmp_path / "b" / "index.html").read_text()
    for file in (tmp_path / "a" / "tables").iterdir():
        if file.stem != "results":
            assert file.read_text() == (tmp_path / "b" / "tables" / file.name).read_text()


def test_the_page_holds_everything_and_escapes_it(page: Path) -> None:
    text = page.read_text()
    assert "<title>A &amp; B &lt;test&gt;</title>" in text
    [data] = [json.loads(block) for block in re.findall(r'class="data">(.*?)</script>', text)]
    assert {(p["network"], p["method"]) for p in data["plots"]} >= {
        ("wrn-10-1 cosine", "cosine"),
        ("wrn-10-1 linear", "odin (tuned)"),
    }
    assert all(len(p["sets"]) == 3 for p in data["plots"])
    assert set(data["strips"]) == {
        "wrn-10-1 cosine|cosine",
        "wrn-10-1 cosine|max-softmax",
        "wrn-10-1 cosine|odin (default)",
        "wrn-10-1 linear|max-softmax",
        "wrn-10-1 linear|odin (default)",
    }
    strips = data["strips"]["wrn-10-1 cosine|cosine"]
    assert all(len(strip) == 3 for strip in strips.values())
    lowest, highest = ([p["score"] for p in strips[f"ID, {which} scores"]] for which in ("lowest", "highest"))
    assert lowest == sorted(lowest)
    assert max(lowest) <= min(highest)
    assert all(p["picture"] in data["pictures"] for strip in strips.values() for p in strip)
    assert not re.findall(r'(?:src|href)="(?!#|data:)', text)
    assert len(text) < 2_000_000


def test_figures_name_the_metric_and_put_the_best_on_top(made_up: Store, tmp_path: Path) -> None:
    sections = write_tables(made_up, tmp_path, ["fpr_at_tpr95", "auroc"])
    write_page(made_up, sections, tmp_path / "index.html", title="Errors")
    text = (tmp_path / "index.html").read_text()
    assert "mean FPR at TPR 95 % (ID positive) (%); the line goes from the best set to the worst" in text
    bars = text[text.index("Less-biased FPR at TPR 95 % (ID positive) by assumed set") :]
    [assumed] = [p.summaries for p in sections[0].protocols if p.view == "less-biased by assumed set"]
    tuned = next(s for s in assumed if s.state == "tuned")
    for name, cell in tuned.rows.items():
        assert f"{set_title(name)}: {100 * cell.mean:.2f}</title></rect>" in bars
    assert "FPR at TPR 95 % (OOD positive, as OpenOOD and pytorch-ood) (%) by tested set" in text  # stands beside it
    assert "mean AUROC" not in text
    drawing = text[text.index("Detectors by mean FPR") :]
    summaries = sections[0].protocols[0].summaries
    order = [drawing.index(f">{s.method}, {s.fields.head['name']}</text>") for s in summaries]
    assert order == sorted(order)


def test_a_detector_that_is_alike_on_all_sets_can_be_ranked(made_up: Store) -> None:
    for value in (0.0225, 0.045, 1.0):  # the mean of six of the first two is not quite the value
        results = [replace(r, metrics=dict.fromkeys(r.metrics, value)) for r in made_up.results()]
        assert ranking_figure(summarise(results)) is not None


def test_settings_of_one_detector_are_drawn_apart(made_up: Store) -> None:
    results = made_up.results()
    both = [*results, *(replace(r, setup="other") for r in results if r.detector == "odin")]
    expected = {(s.network, s.method) for s in summarise(both)}
    assert {m for _, m in expected} > {"odin (tuned)", "odin (tuned) #2", "odin (default)", "odin (default) #2"}
    plots = score_plots(made_up, both)
    assert {(p["network"], p["method"]) for p in plots} == expected
    assert all(len(p["sets"]) == len(GROUPS) for p in plots)
    strips, notes, pictures = extreme_images(made_up, both, Thumbnails(made_up), 3)
    assert notes == {}
    assert {p["picture"] for own in strips.values() for strip in own.values() for p in strip} == set(pictures)
    assert set(strips) == {f"{n}|{m}" for n, m in expected if "(tuned)" not in m}
    dependency = str(dependency_tables(both, "x"))
    assert "odin, wrn-10-1 cosine" in dependency
    assert "odin #2, wrn-10-1 cosine" in dependency


def test_images_that_are_not_at_hand_are_left_out_with_a_note(made_up: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, **options: Any) -> ImageSet:
        raise DataError("nowhere")

    monkeypatch.setattr("offaxis.data.load_images", missing)
    strips, notes, pictures = extreme_images(made_up, made_up.results(), Thumbnails(made_up))
    assert set(notes.values()) == {"not on this machine", "not shown without the ID images"}
    assert pictures == {}
    assert all(strip == [] for own in strips.values() for strip in own.values())


def test_histograms_of_equal_scores_have_a_width() -> None:
    import numpy as np

    found = histogram(np.ones(5), np.ones(5))
    assert found["from"] < 1 < found["to"]
    assert sum(found["id"]) == 1000


def test_the_papers_numbers_beside_ours() -> None:
    ours = {("wrn-10-4-half", "cifar10", ood, "cosine", "auroc"): 90.0 for ood in ("svhn", "letters")}
    [found] = beside(ours, "one-vs-one")
    [row] = found.rows
    assert row[:5] == ["cosine", "wrn-10-4-half", "CIFAR-10", "SVHN", "AUROC"]
    assert [e.text for e in row[5:] if isinstance(e, Value)] == ["90.00", "99.52", "0.24", "-9.52"]
    assert beside({("wrn-10-4-half", "digits", "letters", "cosine", "auroc"): 90.0}, "one-vs-one") == []
    for name, rows in (("densenet-22-12", 1), ("mine", 0), ("wrnet", 0)):  # a network of another kind has no relative
        tables = beside({(name, "cifar10", "svhn", "cosine", "auroc"): 90.0}, "one-vs-one")
        assert sum(len(table.rows) for table in tables) == rows


def test_only_the_papers_rows_are_set_beside_it(made_up: Store) -> None:
    chosen = paper_rows(summarise(made_up.results()))
    assert {(s.network, s.method) for s in chosen} == {
        ("wrn-10-1 cosine", "cosine"),
        ("wrn-10-1 linear", "max-softmax"),
        ("wrn-10-1 linear", "odin (tuned)"),
    }


def test_variants_of_a_network_are_not_set_beside_the_paper(made_up: Store) -> None:
    results = made_up.results()
    plain = paper_rows(summarise(results))
    changes: dict[str, dict[str, Any]] = {
        "scale": {"head": {"name": "cosine", "scale": 128.0}},
        "hidden": {"head": {"name": "cosine", "scale": "predicted", "hidden": 128}},
        "decayed": {"recipe": {"decay_head": True}},
        "pair": {"kind": "paired", "members": ("a", "b")},
        "own": {"architecture": ""},
        "dropout": {"settings": {"network": {"dropout": 0.3}}},
        "leave-out": {"settings": {"loss": {"name": "MarginEntropyLoss"}}},
        "longer, by its label alone": {},
    }
    variants = [replace(r, network=label, **change) for r in results for label, change in changes.items()]
    assert paper_rows(summarise([*results, *variants])) == plain
    head = {"name": "cosine", "scale": "predicted", "hidden": None}
    default: dict[str, Any] = {"head": head, "settings": {"loss": "cross_entropy"}}
    same = [replace(r, **(default if r.head["name"] == "cosine" else {})) for r in results]
    assert [s.title for s in paper_rows(summarise(same))] == [s.title for s in plain]
    assert len(paper_numbers(plain, "auroc")) == sum(len(s.rows) for s in plain)


def test_published_numbers_come_from_the_caller(made_up: Store, tmp_path: Path) -> None:
    asked = []

    def published(by_metric: Any, view: View) -> Table | None:
        asked.append((tuple(by_metric), view))
        return TABLE if view == "one-vs-one" else None

    [section] = write_tables(made_up, tmp_path, ["auroc", "aupr_in"], published)
    assert asked == [(("auroc", "aupr_in"), "one-vs-one"), (("auroc", "aupr_in"), "less-biased by tested set")]
    assert [p.published for p in section.protocols] == [TABLE, None, None]
    assert (tmp_path / "tables" / "t.csv").exists()
    write_page(made_up, [section], tmp_path / "index.html", title="With the paper's")
    assert "AUROC &amp; more" in (tmp_path / "index.html").read_text()


def test_the_page_shows_the_commands_that_were_recorded(made_up: Store, page: Path) -> None:
    commands = recorded_commands(made_up.results(), made_up.networks(), made_up)
    assert commands == [
        "# wrn-10-1 cosine seed 0 (run0): the training command was not recorded",
        "offaxis train --head cosine --out 'my run'",
        "# wrn-10-1 linear seed 0 (run0): the training command was not recorded",
        "offaxis train --head linear --out 'my run'",
        "offaxis evaluate run1",
        f"# {len(made_up.results()) // 2} of {len(made_up.results())} results were made in Python: no evaluation command was "
        "recorded",
        "offaxis report store --out report",
    ]
    text = page.read_text()
    assert "offaxis train --head linear --out &#39;my run&#39;" in text
    assert "offaxis evaluate run1" in text


def test_every_field_and_metric_is_a_column_of_the_results(made_up: Store, tmp_path: Path) -> None:
    write_tables(made_up, tmp_path)
    rows = list(csv.DictReader((tmp_path / "tables" / "results.csv").read_text().splitlines()))
    assert len(rows) == len(made_up.results())
    assert (rows[0]["architecture"], rows[0]["head"], rows[0]["kind"]) == ("wrn-10-1", "cosine", "single")
    assert float(rows[0]["aupr_out"]) == made_up.results()[0].metrics["aupr_out"]


def test_detectors_without_a_set_that_all_seeds_have_are_not_compared(made_up: Store) -> None:
    split = {0: "letters", 1: "gaussian"}
    results = [r for r in made_up.results() if r.assumed is None and r.ood == split[r.seed]]
    [section] = build_sections(results, made_up.networks())
    assert section.protocols[0].differences is not None
    assert not section.protocols[0].differences.rows
    assert markdown(section.protocols[0].differences)
    summaries = summarise(results, "one-vs-one")
    with pytest.raises(ArgumentError, match="no set in common for all seeds"):
        compare_pair(summaries[0], summaries[1])


def test_openoods_table_counts_a_set_once_as_its_images_grow(made_up: Store, tmp_path: Path) -> None:
    bench = "openood-cifar10 (partial)"
    one = next(r for r in made_up.results() if r.detector == "max-softmax" and r.ood == "letters")
    one = replace(one, id=bench, benchmark=bench, group="near")
    steps = {("tin (partial)", 5): 0.1, ("tin (partial)", 10): 0.3, ("tin", 20): 0.6, ("ssb", 20): 0.8}
    store = Store(tmp_path / "store")
    store.add(
        [
            replace(
                one, ood=ood, images=(80, images), ood_data=f"{ood}{images}", metrics={**one.metrics, "auroc": auroc}
            )
            for (ood, images), auroc in steps.items()
        ]
    )
    files = write_openood(store, tmp_path / "ood.csv")
    table, leaderboard = (list(csv.DictReader(file.read_text().splitlines())) for file in files)
    found = {row["dataset"]: float(row["AUROC"]) for row in table}
    assert found == pytest.approx({"tin": 60.0, "ssb": 80.0, "nearood (partial)": 70.0})
    assert [row["Near-OOD_AUROC"] for row in leaderboard] == ["70.00"]


def test_the_first_table_says_what_is_found_and_the_last_what_was_chosen(made_up: Store, tmp_path: Path) -> None:
    [section] = build_sections(made_up.results(), made_up.networks())
    first = section.protocols[0].tables()[0]
    assert first.title.startswith("OOD images found at 5 % false alarms")
    shown = {(row[0], row[1]): row[2:] for row in first.rows}
    for (method, network), cells in shown.items():
        own = [r for r in made_up.results() if r.assumed is None and (r.method, r.network) == (method, network)]
        for title, cell in zip(first.columns[2:], cells, strict=True):
            flagged = []
            for r in own:
                if set_title(r.ood) == title:
                    known, strange = map(made_up.scores, r.scores)
                    flagged.append(float(np.mean(strange > np.quantile(known, 0.95))))
            assert isinstance(cell, Value)
            assert cell.number == pytest.approx(np.mean(flagged))
            assert cell.share == cell.number  # the bar begins at zero
    tuned = [
        replace(r, hyperparameters={"eps": 0.5 if r.seed else 0.002, "temperature": 10.0})
        for r in made_up.results()
        if r.state == "tuned"
    ]
    store = Store(tmp_path / "store")
    for key, about in made_up.sets().items():
        store.add_set(key, SetRecord(about, made_up.indices(key, "validation"), made_up.indices(key)))
    for record in made_up.networks():
        store.add_network(record)
    store.add(tuned)
    write_tables(store, tmp_path / "report")
    text = (tmp_path / "report" / "report.md").read_text()
    assert "eps=0.002, temperature=10 (seed 0); eps=0.5, temperature=10 (seed 1)" in text


def test_figures_are_written_for_a_paper(made_up: Store, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["report", str(made_up.path), "--out", str(tmp_path), "--figures", "--thumbnails", "0"]
    )
    assert done.exit_code == 0, done.output
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    stems = {"ranking-small-digits-one-vs-one", "critical-difference-small-digits-one-vs-one"}
    assert {f"{stem}.{kind}" for stem in stems for kind in ("pdf", "svg")} <= names
    assert (tmp_path / "figures" / "ranking-small-digits-one-vs-one.pdf").read_bytes().startswith(b"%PDF")
