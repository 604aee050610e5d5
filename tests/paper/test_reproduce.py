"""``offaxis reproduce``: every item dry-runs at every scale, and really runs at a tiny one."""

import csv
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from offaxis.cli import app
from offaxis.errors import ArgumentError, DataError, EvaluationError, RunError
from offaxis.evaluation import Store
from offaxis.evaluation.records import SetRecord
from offaxis.files import digest
from offaxis.options import EvaluateOptions, TrainOptions
from offaxis.paper.commands import EvaluateCommand, Reproduction, TrainCommand, check_sets, run_name, variant_of
from offaxis.paper.items import ITEMS, paper_items
from offaxis.paper.published import paper_table
from offaxis.paper.settings import SCALES, TINY, ablation_rows, training

# one epoch on tiny images teaches little, and training says so
pytestmark = pytest.mark.filterwarnings("ignore:The network has learned next to nothing")
TABLES = ("classification", "one-vs-one", "less-biased", "less-biased-framed", "ablation", "time", "ensembles")
FIGURES = ("head", "histograms", "less-biased-bars", "dependency", "fixed-scale", "tsne", "frames")


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["reproduce", *words], env={"COLUMNS": "300", "OFFAXIS_DATA": "/nowhere"})


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all items, as they share trainings and results."""
    return tmp_path_factory.mktemp("reproduce")


def test_the_items_are_all_tables_and_figures() -> None:
    assert tuple(ITEMS) == TABLES + FIGURES
    shown = run()
    assert shown.exit_code == 0
    assert all(name in shown.output for name in ITEMS)
    with pytest.raises(ArgumentError, match="beauty"):
        paper_items("beauty")
    assert isinstance(run("one-vs-one", "--scale", "huge").exception, ArgumentError)
    for words in ((), ("--network", "wrn-10-1")):
        refused = run("one-vs-one", "--recipe", "magic", *words).exception
        assert isinstance(refused, ArgumentError)
        assert "'magic'" in str(refused)
    assert run("one-vs-one", "--epochs", "0").exit_code == 2


@pytest.mark.parametrize("scale", list(SCALES))
@pytest.mark.parametrize("name", list(ITEMS))
def test_every_item_lists_commands_that_the_program_takes(name: str, scale: str, tmp_path: Path) -> None:
    chain = Reproduction(SCALES[scale], tmp_path, tmp_path / "runs")
    steps = paper_items(name)[name].steps(chain)
    evaluations = [step for step in steps if isinstance(step, EvaluateCommand)]
    assert len({step.words for step in evaluations}) == len(evaluations)
    for step in steps:
        assert shlex.split(step.command) == ["offaxis", *step.words]
        assert step.cost.forward > 0
        assert not step.done
        if isinstance(step, TrainCommand):
            assert step.cost.backward > 0
            assert "--resume" in step.words
            assert step.words[0] == "train"
        else:
            assert step.words[0] == "evaluate"


@pytest.mark.parametrize(
    ("scale", "every"),
    [("tiny", True), ("laptop", True), ("paper", False), pytest.param("paper", True, marks=pytest.mark.slow)],
)
def test_the_commands_stand_for_what_is_called(
    scale: str, every: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ``--list`` prints, typed into the shell, is the call that ``reproduce`` makes: each, or one of each form."""
    calls: list[TrainOptions | EvaluateOptions] = []

    def remember(options: TrainOptions | EvaluateOptions, *_: object) -> list[object]:
        calls.append(options)
        return []

    monkeypatch.setattr("offaxis.training.start.train_by_options", remember)
    monkeypatch.setattr("offaxis.evaluation.evaluating.evaluate_by_options", remember)
    monkeypatch.setattr("offaxis.cli.evaluate.evaluate_by_options", remember)
    program = get_command(app)
    chain = Reproduction(SCALES[scale], tmp_path, tmp_path / "runs")
    steps = [step for name in ITEMS for step in paper_items(name)[name].steps(chain)]
    unique = {step.words if every else tuple(w for w in step.words if w.startswith("--")): step for step in steps}
    for step in unique.values():
        program([*step.words, "--quiet"], standalone_mode=False)
        step.run(quiet=True)
        shell, called = calls
        assert shell == called
        calls.clear()


@pytest.mark.parametrize("name", ["one-vs-one", "ensembles", "head"])
def test_dry_runs_say_what_it_costs_and_do_nothing(name: str, tmp_path: Path) -> None:
    shown = run(name, "--scale", "tiny", "--dry-run", "--out", str(tmp_path / "new"))
    assert shown.exit_code == 0, shown.output
    assert ("on this machine" in shown.output) == (name != "head")
    assert not (tmp_path / "new").exists()
    listed = run(name, "--scale", "paper", "--list", "--out", str(tmp_path / "new"))
    lines = [line for line in listed.output.splitlines() if line]
    assert all(line.startswith("offaxis ") for line in lines)
    assert len(lines) == {"one-vs-one": 80, "ensembles": 48, "head": 0}[name]


def test_what_was_asked_for_is_shown_quietly_too(tmp_path: Path) -> None:
    """--quiet is about progress."""
    assert run("--quiet").output == run().output != ""
    words = ["one-vs-one", "--out", str(tmp_path / "r")]
    for way in ("--list", "--dry-run"):
        assert run(*words, way, "--quiet").output.count("offaxis train") > 0


def test_listed_commands_have_the_device_and_the_folder_of_data(tmp_path: Path) -> None:
    words = ["one-vs-one", "--out", str(tmp_path / "r"), "--list"]
    there = run(*words, "--device", "cuda:1", "--data", "my images").output.splitlines()
    assert all(line.endswith(" --device cuda:1 --data 'my images'") for line in there)
    assert [line.partition(" --device")[0] for line in there] == run(*words).output.splitlines()


def test_the_scale_can_be_changed(tmp_path: Path) -> None:
    words = ("--id", "digits", "--seeds", "1", "--network", "wrn-10-1", "--recipe", "laptop", "--epochs", "3", "--list")
    lines = run("classification", *words, "--out", str(tmp_path)).output.splitlines()
    assert len(lines) == 4
    assert "--id digits --network wrn-10-1 --head linear --recipe laptop --epochs 3 --seed 0" in lines[0]


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_really_made(name: str, folder: Path) -> None:
    shown = run(name, "--scale", "tiny", "--quiet", "--out", str(folder))
    assert shown.exit_code == 0, shown.exception
    text = (folder / name / "tables.md").read_text()
    assert text.count("|") >= 18
    assert list((folder / name).glob("*.csv"))
    assert list((folder / name).glob("*.tex"))


def test_what_the_tables_hold(folder: Path) -> None:
    for name in ("one-vs-one", "less-biased", "ablation", "ensembles"):
        assert run(name, "--scale", "tiny", "--quiet", "--out", str(folder)).exit_code == 0
    rows = list(csv.reader((folder / "one-vs-one" / "sets-small-digits-one-vs-one-auroc.csv").read_text().splitlines()))
    assert {row[0] for row in rows[1:]} == {"cosine", "max-softmax", "odin (tuned)", "mahalanobis (tuned)"}
    assert rows[0][2:] == ["letters", "photograph crops", "Gaussian"]
    ablation = list(csv.DictReader((folder / "ablation" / "ablation.csv").read_text().splitlines()))
    assert [row["row"] for row in ablation] == [str(n) for n in range(1, 11)]
    team = (folder / "ensembles" / "sets-small-digits-one-vs-one-auroc.csv").read_text()
    assert "cosine-ensemble" in team
    assert "leave-out" in team


def test_a_second_call_runs_no_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("one-vs-one", "--scale", "tiny", "--quiet", "--out", str(folder)).exit_code == 0
    before = Store(folder / "results").results()
    for kind in (TrainCommand, EvaluateCommand):
        monkeypatch.setattr(kind, "run", lambda *_, **__: pytest.fail("nothing is left"))
    assert run("one-vs-one", "--scale", "tiny", "--quiet", "--out", str(folder)).exit_code == 0
    assert "Nothing is left" in run("one-vs-one", "--scale", "tiny", "--dry-run", "--out", str(folder)).output
    assert Store(folder / "results").results() == before


def test_networks_of_another_training_are_not_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("classification", "--scale", "tiny", "--quiet", "--out", str(folder))
    assert run(*words).exit_code == 0
    monkeypatch.setitem(SCALES, "tiny", TINY.replace(networks=(replace(TINY.networks[0], dropout=0.5),)))
    for last in ((), ("--dry-run",)):
        refused = run(*words, *last).exception
        assert isinstance(refused, RunError)
        assert re.search(r"trained with dropout 0.5 but the one in .*seed0 was trained with dropout 0", str(refused))
    assert run(*words, "--list").exit_code == 0  # these commands may be for another machine


@pytest.mark.parametrize(
    ("words", "recipes"),
    [
        (("--network", "wrn-28-10"), {"paper-wide-resnet"}),
        (("--network", "densenet-40-12"), {"paper-densenet"}),
        (("--id", "cifar10", "--seeds", "1"), {"paper-wide-resnet", "paper-densenet"}),
        (("--network", "resnet18-32", "--recipe", "openood"), {"openood"}),
    ],
)
def test_the_scale_decides_the_recipe_of_a_network(words: tuple[str, ...], recipes: set[str]) -> None:
    lines = run("classification", "--scale", "paper", "--list", *words).output.splitlines()
    assert {line.split("--recipe ")[1].split()[0] for line in lines if "offaxis train" in line} == recipes
    refused = run("classification", "--scale", "paper", "--network", "resnet18-32").exception
    assert isinstance(refused, ArgumentError)
    assert "--recipe beside --network resnet18-32" in str(refused)


def test_another_recipe_has_folders_of_its_own() -> None:
    def folders(*more: str) -> set[str]:
        words = ("classification", "--scale", "paper", "--network", "wrn-28-10", "--id", "cifar10", "--seeds", "1")
        listed = run(*words, "--list", *more).output
        return set(re.findall(r"--out reproduce/paper/runs/(\S+)", listed))

    assert folders() == {f"wrn-28-10-{head}-cifar10-seed0" for head in ("linear", "cosine")}
    assert folders("--recipe", "paper-wide-resnet", "--epochs", "200") == folders()
    assert folders("--recipe", "laptop") == {f"wrn-28-10-{head}-laptop-cifar10-seed0" for head in ("linear", "cosine")}
    assert folders("--epochs", "3") == {f"wrn-28-10-{head}-epochs-3-cifar10-seed0" for head in ("linear", "cosine")}


def test_every_set_is_looked_for_before_anything_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainCommand, "run", lambda *_, **__: pytest.fail("days of training"))
    for item, sets in {
        "one-vs-one": ("cifar10", "tin-crop", "svhn", "food101"),
        "ablation": ("cifar10", "tin-resize"),
        "tsne": ("cifar10", "tin-resize", "svhn"),
    }.items():
        for last in ((), ("--dry-run",)):
            refused = run(item, "--out", str(tmp_path / "new"), *last).exception
            assert isinstance(refused, DataError)
            assert all(name in str(refused) for name in sets)
            assert "/nowhere" in str(refused)
    assert not (tmp_path / "new").exists()
    assert isinstance(run("ablation", "--scale", "tiny", "--id", "cifarr10").exception, ArgumentError)


def test_sets_of_a_pool_that_are_left_out_are_said_before_anything_runs(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "isun" / "image").mkdir(parents=True)
    chain = Reproduction(TINY.replace(one_vs_one=("paper-frame-free",)), tmp_path, tmp_path / "runs", tmp_path)
    check_sets(paper_items("one-vs-one")["one-vs-one"].steps(chain), data=tmp_path, note=said.append)
    assert "left out" in said[0]
    assert "tin-crop-free" in said[0]
    assert "gaussian" not in said[0]


def test_a_file_is_no_folder_for_results(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    for option in ("--out", "--runs"):
        refused = run("classification", "--scale", "tiny", "--dry-run", option, str(tmp_path / "taken")).exception
        assert isinstance(refused, ArgumentError)
        assert f"a folder for {option}" in str(refused)


def test_a_mark_needs_its_networks_and_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Reproduction(TINY, tmp_path, tmp_path / "runs")
    one = training(chain.scale.networks[0], "cifar10", 0, "cosine")
    monkeypatch.setenv("OFFAXIS_DATA", str(tmp_path / "data"))

    def done(ood: list[str]) -> bool:
        return chain.evaluate([one], ood, ["cosine"]).done

    named = chain.evaluate([one], ["letters", "gaussian"], ["cosine"])
    assert named.name == f"evaluate-{digest(list(named.words))}"
    files = [tmp_path / "results" / "store.json", tmp_path / "runs" / run_name(one) / "model.safetensors"]
    for file in files:
        file.parent.mkdir(parents=True)
        file.touch()
    assert not done(["letters", "gaussian"])
    named.mark()
    assert done(["letters", "gaussian"])
    for file in files:
        file.unlink()
        assert not done(["letters", "gaussian"])
        file.touch()
    pool = chain.evaluate([one], ["paper-framed"], ["cosine"])
    pool.mark()
    assert done(["paper-framed"])
    (tmp_path / "data" / "svhn").mkdir(parents=True)
    (tmp_path / "data" / "svhn" / "test_32x32.mat").touch()
    assert not done(["paper-framed"])  # there is a set more of that pool
    assert chain.evaluate([one], ["paper-framed"], ["cosine"]).words == pool.words
    assert done(["letters", "gaussian"])
    named.forget()
    assert not done(["letters", "gaussian"])


def test_what_follows_from_a_network_that_is_trained_again_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("classification", "--scale", "tiny", "--seeds", "1", "--quiet", "--out", str(tmp_path))
    assert run(*words).exit_code == 0
    for model in tmp_path.glob("runs/*cosine*/model.safetensors"):
        model.unlink()
    for kind in (TrainCommand, EvaluateCommand):
        monkeypatch.setattr(kind, "run", lambda *_, **__: pytest.fail("stopped"))
    with pytest.raises(pytest.fail.Exception):
        CliRunner().invoke(app, ["reproduce", *words], catch_exceptions=False)
    monkeypatch.undo()
    left = [
        step
        for step in paper_items("classification")["classification"].steps(
            Reproduction(TINY.replace(seeds=(0,)), tmp_path, tmp_path / "runs")
        )
        if not step.done
    ]
    assert [type(step) for step in left] == [TrainCommand, EvaluateCommand]
    (left[0].out / "model.safetensors").touch()  # as if the next call had come as far as this
    assert left[0].done
    assert not left[1].done


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_really_drawn(name: str, folder: Path) -> None:
    shown = run(name, "--scale", "tiny", "--quiet", "--out", str(folder))
    assert shown.exit_code == 0, shown.exception
    drawn = sorted((folder / name).iterdir())
    assert {path.suffix for path in drawn} == {".svg", ".png"}
    assert len(drawn) == (6 if name == "dependency" else 2)


def test_the_ablation_has_the_papers_rows() -> None:
    rows = ablation_rows(TINY.networks[0], "cifar10", 0)
    assert set(rows) == {cell.method for cell in paper_table("ablation")}
    assert (rows["row-1"].head, variant_of(rows["row-1"])) == ("linear", "")
    assert (rows["row-2"].scale, variant_of(rows["row-2"])) == ("predicted", "scale predicted")
    assert (rows["row-3"].scale, variant_of(rows["row-3"])) == (16.0, "scale 16 decay-head")
    assert (rows["row-8"].head, variant_of(rows["row-8"])) == ("cosine", "")
    assert rows["row-9"].decay_head
    assert not rows["row-10"].decay_head
    assert rows["row-9"].hidden == rows["row-10"].hidden == 512


def test_names_of_folders_show_what_is_special() -> None:
    trained = TINY.networks[0]
    assert run_name(training(trained, "cifar10", 3, "cosine")) == "wrn-10-1-half-cosine-cifar10-seed3"
    special = training(trained, "cifar10", 0, "cosine", scale=16.0, hidden=8, decay_head=True)
    assert run_name(special) == "wrn-10-1-half-cosine-scale-16-hidden-8-decay-head-cifar10-seed0"
    left_out = training(trained, "cifar10", 1, "linear", leave_out=(1, 5), epochs=9)
    assert run_name(left_out) == "wrn-10-1-half-linear-leave-out-1of5-cifar10-seed1"
    assert (left_out.epochs, left_out.crop) == (9, 0)


@pytest.mark.parametrize(
    ("field", "value", "said"), [("precision", "bf16-mixed", "precision bf16"), ("dropout", 0.5, "dropout 0.5")]
)
def test_networks_that_were_computed_otherwise_are_not_taken(
    folder: Path, field: str, value: object, said: str
) -> None:
    words = ("classification", "--scale", "tiny", "--quiet", "--out", str(folder))
    assert run(*words).exit_code == 0
    chain = Reproduction(TINY, folder, folder / "runs")
    own = training(chain.scale.networks[0], "small-digits", 0, "cosine")
    chain.train(own).check()
    with pytest.raises(RunError, match=f"trained with {said}.* but the one in .*seed0 was trained with {field} "):
        chain.train(replace(own, **{field: value})).check()  # type: ignore[arg-type]


def test_an_outcome_without_results_says_so(tmp_path: Path) -> None:
    chain = Reproduction(TINY, tmp_path, tmp_path / "runs")
    Store(tmp_path / "results").add_set("k", SetRecord({}, np.arange(2), np.arange(2)))
    with pytest.raises(EvaluationError, match="run the steps first"):
        paper_items("one-vs-one")["one-vs-one"].finish(chain, tmp_path / "out")


def test_every_file_of_weights_is_an_option_of_its_own() -> None:
    words = list(EvaluateOptions(networks=("resnet18-32",), weights=("a.ckpt", "b.ckpt")).words())
    assert [words[i + 1] for i, word in enumerate(words) if word == "--weights"] == ["a.ckpt", "b.ckpt"]
    assert "--weights" not in list(EvaluateOptions(networks=("runs/a",)).words())
