"""The study at the accuracy of the field: its plan, and its tables made of made-up rows."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from offaxis.reports.tables import Table, Value, markdown
from study import field, field_tables
from study.second import scratch, store
from study.second.sets import SEEDS


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(store, "RESULTS", tmp_path)
    for module in (field, scratch):
        monkeypatch.setattr(module, "NETWORKS", tmp_path / "networks")
    return iter(())


def texts(table: Table) -> list[list[str]]:
    return [[cell.text if isinstance(cell, Value) else cell for cell in row] for row in table.rows]


def test_the_plan_has_every_training_once_and_what_it_needs() -> None:
    plan = [each.name for each in field.trainings()]
    assert len(plan) == len(set(plan))
    assert plan[:2] == ["convnet-256-linear-cifar10-seed0", "convnet-256-cosine-cifar10-seed0"]
    for seed in field.ABLATION_SEEDS:
        assert len(field.ablation(seed)) == 10
        assert {each.name for each in (*field.ablation(seed).values(), *field.scales(seed).values())} <= set(plan)
    assert {each.name for one in field.evaluations() for each in one.members} <= set(plan)
    assert [len(team.members) for team in field.teams()] == [5, 5]
    assert {f"wrn-10-4-half-linear-cifar10-seed0-{run.recipe}" for run in field.COMPARED} <= set(plan)
    keys = [tuple(each.key.values()) for each in field.trainings()]
    assert len(keys) == len(set(keys))


def test_nothing_is_invented_where_nothing_has_run(rows: None) -> None:
    for name, table in field_tables.TABLES.items():
        made = table("cifar10")
        own = [text for row in texts(made) for text in row[made.heads :]]
        assert "not run" in own
        assert "not run" in markdown(made), name


def put(step: str, key: dict[str, object], values: Mapping[Any, float], **about: float) -> None:
    made = [{"detector": d, "ood": o, "assumed": a, "auroc": v} for (d, o, a), v in values.items()]
    store.replace(step, key, [{"accuracy": 0.94, **about}, *made])


def test_tables_are_means_of_the_rows(rows: None) -> None:
    near, far = field_tables.NEAR, field_tables.FAR
    for seed in SEEDS[:2]:
        values: dict[Any, float] = {("max-softmax", name, None): 0.9 + 0.01 * seed for name in near}
        values |= {("max-softmax", name, None): 0.95 for name in far}
        put(field.STEP, field.training("cifar10", "linear", seed).key, values, core_minutes=61.4, peak_mb=900)
    line = next(row for row in texts(field_tables.leaderboard("cifar10")) if row[:2] == ["linear", "max-softmax"])
    assert line[2:] == [
        "94.00 (0.00), 2 of 3 seeds", "90.50 (0.71), 2 of 3 seeds", "95.00 (0.00), 2 of 3 seeds", "88.0", "90.7"
    ]  # fmt: skip
    ablation = {row[0]: row[1:] for row in texts(field_tables.ablation(""))}
    assert ablation["(1) Baseline"] == ["90.50 (0.71)", "89.22"]
    cost = {(row[0], row[2]): row[3:] for row in texts(field_tables.cost(""))}
    assert cost["fast", "0"] == ["94.00", "61", "900"]
    assert cost["fast", "2"] == ["not run"] * 3
    sets = field.PAPERS_SETS
    values = {}
    for a in sets:
        values |= {("odin", t, a): 0.9 if a == t else 0.6 + 0.01 * sets.index(a) for t in sets}
    put(field.TUNED_STEP, next(iter(field.evaluations())).key, values)
    for less_biased, expected in ((False, 90.0), (True, 100 * fmean(0.6 + 0.01 * n for n in range(1, 5)))):
        row = next(row for row in texts(field_tables.tuned("cifar10", less_biased)) if row[0] == "odin")
        assert row[2] == f"{expected:.2f}, 1 of 3 seeds"
    team = field.teams()[0]
    put(field.TUNED_STEP, team.key, {("cosine-ensemble", name, None): 0.97 for name in sets})
    assert texts(field_tables.ensembles(""))[0] == ["five cosines", "94.00", *["97.00"] * 5]
    assert texts(field_tables.ensembles(""))[1][1:] == ["not run"] * 6


def test_the_cost_of_a_training_is_kept_over_its_calls(rows: None) -> None:
    each = field.training("cifar10", "linear", 0)
    assert field.cost_of(each) == {}

    def work(one: field.FieldTraining) -> None:
        (scratch.NETWORKS / one.name).mkdir(parents=True, exist_ok=True)
        sum(range(10**6))

    for _ in range(2):
        field.train_measured(each, work)
    found = field.cost_of(each)
    assert found["peak_mb"] > 10
    assert found["core_minutes"] >= 0
    assert len((scratch.NETWORKS / each.name / "cost.jsonl").read_text().splitlines()) == 2
