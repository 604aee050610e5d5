"""``offaxis evaluate`` and ``offaxis report`` as a user types them."""

import csv
import html
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

from offaxis.cli import app
from offaxis.detectors import DETECTORS as ALL_DETECTORS
from offaxis.detectors import make_detectors
from offaxis.errors import ArgumentError, OffaxisError
from offaxis.evaluation import Store
from offaxis.networks.open import open_network
from offaxis.networks.resnet import to_published
from offaxis.training.record import single

DETECTORS = "cosine,max-softmax,knn:k=5,odin:temperatures=(1.0,1000.0):epsilons=(0.0,0.01)"


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "120", "OFFAXIS_DATA": "/nowhere"})


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for head, seed in (("cosine", 0), ("cosine", 1), ("linear", 0)):
        trained = run(
            *("train", "--id", "small-digits", "--network", "wrn-10-1-half", "--head", head, "--epochs", "2"),
            *(
                "--batch-size",
                "64",
                "--crop",
                "0",
                "--seed",
                str(seed),
                "--quiet",
                "--out",
                str(folder / f"{head}{seed}"),
            ),
        )
        assert trained.exit_code == 0, trained.output
    return folder


@pytest.fixture(scope="session")
def store(runs: Path) -> Path:
    out = runs / "store"
    shown = run(
        "evaluate",
        str(runs / "cosine0"),
        str(runs / "cosine1"),
        str(runs / "linear0"),
        "--ood",
        "letters,gaussian",
        "--images",
        "120",
        "--detectors",
        DETECTORS,
        "--protocol",
        "both",
        "--out",
        str(out),
    )
    assert shown.exit_code == 0, shown.output
    return out


def test_evaluate_fills_a_store(store: Path) -> None:
    results = Store(store).results()
    assert {r.network for r in results} == {"wrn-10-1-half cosine", "wrn-10-1-half linear"}
    assert {r.seed for r in results} == {0, 1}
    assert {r.detector for r in results if r.network.endswith("linear")} == {"max-softmax", "knn", "odin"}
    assert {r.hyperparameters["k"] for r in results if r.method == "knn, k=5"} == {5}
    assert {(r.assumed, r.ood) for r in results if r.state == "tuned"} == {
        (a, b) for a in ("letters", "gaussian") for b in ("letters", "gaussian")
    }


def test_evaluate_shows_settings_and_protocols_apart(runs: Path, tmp_path: Path) -> None:
    shown = run(
        "evaluate",
        str(runs / "cosine0"),
        "--ood",
        "letters,gaussian",
        "--images",
        "120",
        "--detectors",
        "cosine,knn:k=5,knn:k=20",
        "--protocol",
        "both",
        "--out",
        str(tmp_path / "store"),
    )
    assert shown.exit_code == 0, shown.output
    table = shown.output[shown.output.index("tuned on") :]
    assert "wrn-10-1-half cosine" in shown.output[: shown.output.index("tuned on")]  # the one network, said above
    rows = [re.split(r"\s{2,}", line.strip()) for line in table.splitlines() if re.match(r"\s*(cosine|knn)\b", line)]
    found = {(row[0], row[1]) if len(row) == 5 else (row[0], "") for row in rows}
    expected = {("cosine", ""), ("knn, k=5", ""), ("knn, k=20", "")}
    tuned = ("knn (tuned from k=5)", "knn (tuned from k=20)")
    expected |= {(name, where) for name in tuned for where in ("the tested set", "another set")}
    assert found == expected
    assert {row[-1] for row in rows} == {"2"}


def test_ensembles_and_pairs(runs: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "store")
    same = ("--ood", "letters", "--images", "60", "--no-tune", "--quiet", "--out", out)
    first, second = str(runs / "cosine0"), str(runs / "cosine1")
    assert run("evaluate", first, second, "--as", "ensemble", "--detectors", "native", *same).exit_code == 0
    assert (
        run(
            "evaluate", str(runs / "linear0"), first, "--as", "paired", "--detectors", "cosine,max-softmax", *same
        ).exit_code
        == 0
    )
    labels = {
        r.network: {x.detector for x in Store(out).results() if x.network == r.network} for r in Store(out).results()
    }
    assert "cosine-ensemble" in labels["wrn-10-1-half cosine x2"]
    assert labels["wrn-10-1-half linear + wrn-10-1-half cosine"] == {"cosine", "max-softmax"}
    assert {record.kind for record in Store(out).networks()} == {"ensemble", "paired"}


def test_a_network_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\nfrom offaxis.networks import by_name\n"
        "def network():\n    torch.manual_seed(0)\n    return by_name('wrn-10-1-half')(num_classes=10, in_channels=1)\n"
        "def other():\n    return 5\n"
    )
    out = str(tmp_path / "store")
    words = (
        "--id",
        "small-digits",
        "--ood",
        "letters",
        "--images",
        "40",
        "--detectors",
        "cosine",
        "--quiet",
        "--out",
        out,
    )
    assert run("evaluate", str(file), *words).exit_code == 0
    [result] = Store(out).results()
    assert (result.network, result.detector) == ("mine", "cosine")
    with pytest.raises(ArgumentError, match="returned a int"):
        open_network(f"{file}:other")
    with pytest.raises(ArgumentError, match="it has network, other"):
        open_network(f"{file}:missing")
    file.write_text("1 / 0")
    with pytest.raises(ArgumentError, match="ZeroDivisionError"):
        open_network(file)
    with pytest.raises(ArgumentError, match="not there"):
        open_network(tmp_path / "absent")
    with pytest.raises(ArgumentError, match="not there"):
        open_network(tmp_path / "absent.py")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--detectors", "magic"), "magic"),
        (("--detectors", "knn:k"), "knn:k=10"),
        (("--detectors", "knn:size=3"), "does not take"),
        (("--as", "paired"), "got 1 as 'paired'"),
        (("--ood", "svhn"), "svhn"),
        (("--device", "abacus"), "can use here (auto, cpu"),
        (("--device", "meta"), "but got 'meta'"),
    ],
)
def test_wrong_words_are_refused(runs: Path, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    shown = run("evaluate", str(runs / "cosine0"), "--ood", "letters", "--out", str(tmp_path / "s"), *words)
    assert isinstance(shown.exception, OffaxisError)
    assert said in str(shown.exception)


@pytest.mark.parametrize(("option", "value"), [("--protocol", "fair"), ("--as", "team")])
def test_words_that_are_not_among_the_choices_are_refused(runs: Path, tmp_path: Path, option: str, value: str) -> None:
    shown = run("evaluate", str(runs / "cosine0"), "--ood", "letters", "--out", str(tmp_path / "s"), option, value)
    assert shown.exit_code == 2
    assert option in shown.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="cuda can be used here")
def test_a_device_that_pytorch_was_not_built_for_is_refused(runs: Path, tmp_path: Path) -> None:
    shown = run("evaluate", str(runs / "cosine0"), "--device", "cuda", "--out", str(tmp_path / "s"))
    assert isinstance(shown.exception, ArgumentError)
    assert "but got 'cuda'" in str(shown.exception)


@pytest.mark.parametrize(
    ("option", "value"),
    [("--batch-size", "0"), ("--images", "0"), ("--images", "-5"), ("--fit-images", "0"), ("--validation", "-1")],
)
def test_numbers_that_are_too_small_are_refused(runs: Path, tmp_path: Path, option: str, value: str) -> None:
    shown = run("evaluate", str(runs / "cosine0"), "--ood", "letters", "--out", str(tmp_path / "s"), option, value)
    assert shown.exit_code == 2
    assert option in shown.output
    assert not (tmp_path / "s").exists()


def test_families_of_detectors(runs: Path) -> None:
    cosine, linear = open_network(runs / "cosine0"), open_network(runs / "linear0")
    native = [d.name for d in make_detectors(["native"], cosine.network)]
    assert "cosine" in native
    assert not {"isomax", "generalized-odin", "cosine-ensemble", "leave-out"} & set(native)
    assert [d.name for d in make_detectors(["isomax", "cosine", "cosine"], cosine.network)] == ["isomax", "cosine"]
    assert linear.normalise is not None
    [odin] = make_detectors(["odin"], linear.network, linear.normalise.std)
    assert odin.std == linear.normalise.std


def test_report_writes_tables_and_a_page(store: Path, tmp_path: Path) -> None:
    shown = run("report", str(store), "--out", str(tmp_path / "report"), "--thumbnails", "2")
    assert shown.exit_code == 0, shown.output
    text = (tmp_path / "report" / "report.md").read_text()
    for words in ("Ranking by mean AUROC", "less-biased", "one-vs-one", "by assumed set", "accuracy %", "knn (tuned)"):
        assert words in text
    tables = tmp_path / "report" / "tables"
    rows = list(csv.DictReader((tables / "results.csv").read_text().splitlines()))
    assert len(rows) == len(Store(store).results())
    assert float(rows[0]["auroc"]) == Store(store).results()[0].metrics["auroc"]
    assert (tables / "ranking-small-digits-one-vs-one-auroc.tex").read_text().count(r"\\") > 3
    assert (tables / "pairs-small-digits-one-vs-one-auroc.csv").exists()
    page = (tmp_path / "report" / "index.html").read_text()
    assert page.count("data:image/png") > 4
    assert "offaxis train --id small-digits --network wrn-10-1-half --head cosine --epochs 2" in page
    assert f"--detectors '{DETECTORS}' --protocol both" in html.unescape(page)
    assert "http://" not in page.replace("http://www.w3.org/", "")


def test_report_of_nothing_is_refused(tmp_path: Path) -> None:
    shown = run("report", str(tmp_path), "--out", str(tmp_path / "report"))
    assert isinstance(shown.exception, OffaxisError)
    shown = run("report", str(tmp_path), "--metrics", "beauty", "--out", str(tmp_path / "report"))
    assert isinstance(shown.exception, ArgumentError)


def test_a_bundle_is_evaluated_as_its_run(runs: Path, tmp_path: Path) -> None:
    bundle, out = str(tmp_path / "x.oax"), tmp_path / "store"
    made = CliRunner().invoke(
        app, ["bundle", str(runs / "cosine0"), "--calibrate", "small-digits", "--out", bundle], env={"COLUMNS": "120"}
    )
    assert made.exit_code == 0, made.exception
    same = (
        "--id",
        "small-digits",
        "--ood",
        "letters",
        "--images",
        "60",
        "--detectors",
        "cosine",
        "--quiet",
        "--out",
        str(out),
    )
    assert run("evaluate", str(runs / "cosine0"), *same).exit_code == 0
    assert run("evaluate", bundle, *same).exit_code == 0
    assert len(Store(out).results()) == 1  # the same weights: what was known of the run holds for the bundle
    assert open_network(bundle).label == "x"
    assert open_network(bundle).weights == open_network(runs / "cosine0").weights


OWN = """
import offaxis


class Lead(offaxis.Detector):
    name = "lead"

    def forward(self, outputs):
        best = outputs.logits.topk(2, dim=1).values
        return best[:, 1] - best[:, 0]
"""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    """A file with a detector; what is registered is gone afterwards."""
    before = dict(ALL_DETECTORS)
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    yield file
    ALL_DETECTORS.clear()
    ALL_DETECTORS.update(before)


def test_a_detector_of_ones_own_from_evaluation_to_scores(runs: Path, own: Path, tmp_path: Path) -> None:
    words = ("--ood", "letters", "--images", "40", "--detectors", f"{own}:Lead,cosine", "--quiet")
    shown = run("evaluate", str(runs / "cosine0"), *words, "--out", str(tmp_path / "store"))
    assert shown.exit_code == 0, shown.output
    assert {result.detector for result in Store(tmp_path / "store").results()} == {"lead", "cosine"}
    bundle, scores = str(tmp_path / "b.oax"), tmp_path / "scores.csv"
    made = run(
        *("bundle", str(runs / "cosine0"), "--calibrate", "small-digits"),
        *("--detector", f"{own}:Lead", "--out", bundle),
    )
    assert made.exit_code == 0, made.output
    del ALL_DETECTORS["lead"]  # as in another process
    Image.new("L", (8, 8), 128).save(tmp_path / "grey.png")
    asked = ("score", bundle, str(tmp_path / "grey.png"), "--out", str(scores), "--quiet")
    with pytest.raises(OffaxisError, match=r"--detector mine.py:Lead"):
        raise run(*asked).exception or AssertionError
    done = run(*asked, "--detector", f"{own}:Lead")
    assert done.exit_code == 0, done.output
    assert len(scores.read_text().splitlines()) == 2


def save_noise(folder: Path, count: int, seed: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = np.random.default_rng([seed, number]).integers(0, 256, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")


def test_a_store_holds_no_results_of_training_images_that_have_changed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights = to_published(single(open_network("resnet8-cifar", num_classes=2, head="linear")))
    torch.save(weights, tmp_path / "w.th")
    save_noise(tmp_path / "strangers", 20)  # and a folder by whose name the normalisation is known
    for place in range(4):
        save_noise(tmp_path / "cifar10" / ("train", "test")[place % 2] / str(place // 2), 10, seed=place)

    def evaluated(store: str) -> dict[str, float]:
        sets = ("--id", str(tmp_path / "cifar10"), "--ood", str(tmp_path / "strangers"))
        asked = ("--weights", str(tmp_path / "w.th"), *sets, "--detectors", "energy,knn:k=1", "--no-tune")
        done = run("evaluate", "resnet8-cifar", *asked, "--out", str(tmp_path / store))
        assert done.exit_code == 0, (done.output, done.exception)
        return {result.detector: result.metrics["auroc"] for result in Store(tmp_path / store).results()}

    before = evaluated("store")
    save_noise(tmp_path / "cifar10" / "train" / "0", 60, seed=100)
    assert evaluated("store") == evaluated("fresh") != before  # the last of each detector
    found = [result.detector for result in Store(tmp_path / "store").results()]
    assert sorted(found) == ["energy", "knn", "knn"]


def test_weights_go_out_by_their_published_names(tmp_path: Path) -> None:
    trained = run(
        *("train", "--id", "small-digits", "--network", "resnet8-cifar", "--head", "linear", "--epochs", "1"),
        *("--batch-size", "128", "--crop", "0", "--quiet", "--out", str(tmp_path / "run")),
    )
    assert trained.exit_code == 0, trained.output
    done = run("export", str(tmp_path / "run"), "--published", str(tmp_path / "best.ckpt"))
    assert done.exit_code == 0, done.output
    weights = torch.load(tmp_path / "best.ckpt", weights_only=True)
    assert {"conv1.weight", "layer3.0.bn2.running_var", "linear.bias"} <= weights.keys()
    images = torch.rand(2, 1, 8, 8)
    again = open_network("resnet8-cifar", weights=tmp_path / "best.ckpt", in_channels=1).network
    assert torch.equal(again(images), open_network(tmp_path / "run").network(images))
    for extra in ((), ("--onnx", "x.onnx", "--published", "y.ckpt")):
        assert isinstance(run("export", str(tmp_path / "run"), *extra).exception, ArgumentError)


def test_changed_images_of_the_home_folder_are_noticed(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    strangers = tmp_path / "strangers"
    strangers.mkdir()
    (strangers / ".link").symlink_to("/nowhere/at/all")

    def evaluated(count: int) -> int:
        save_noise(strangers, count)
        asked = ("--ood", "~/strangers", "--images", "40", "--detectors", "cosine", "--no-tune")
        done = run("evaluate", str(runs / "cosine0"), *asked, "--out", str(tmp_path / "store"))
        assert done.exit_code == 0, (done.output, done.exception)
        return max(result.images[1] for result in Store(tmp_path / "store").results())

    assert evaluated(10) == 8
    assert evaluated(20) == 16
