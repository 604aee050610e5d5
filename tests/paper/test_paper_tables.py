"""The paper's tables: counted, compared with each other, and with numbers that were typed by hand."""

from collections import Counter

import pytest

from offaxis.data import CATALOGUE
from offaxis.errors import ArgumentError
from offaxis.metrics import accuracy_at_tpr, aupr_in, auroc
from offaxis.networks import by_name
from offaxis.paper.published import TABLES, PaperCell, as_csv, paper_table

DENSE, WIDE = "densenet-100-12", "wrn-28-10"
MANY = ("one-vs-one", "less-biased", "less-biased-framed", "ensembles")

# typed by hand: table, network, id, ood, method, metric, mean, std, bold
TYPED = """
classification      densenet-100-12 cifar10  -              linear      accuracy        95.11 0.10 no
classification      densenet-100-12 cifar100 -              cosine      accuracy        75.65 0.12 no
classification      wrn-28-10       cifar10  -              cosine      accuracy        95.72 0.05 no
classification      wrn-28-10       cifar100 -              linear      accuracy        81.04 0.37 no
time                densenet-100-12 -        -              mahalanobis seconds         0.67  -    no
time                densenet-100-12 -        -              odin        seconds         0.19  -    no
time                densenet-100-12 -        -              cosine      seconds         0.08  -    yes
time                wrn-28-10       -        -              mahalanobis seconds         1.61  -    no
time                wrn-28-10       -        -              odin        seconds         0.61  -    no
time                wrn-28-10       -        -              cosine      seconds         0.22  -    yes
one-vs-one-main     densenet-100-12 cifar10  tin-crop       max-softmax auroc           94.90 0.43 no
one-vs-one-main     densenet-100-12 cifar10  svhn           mahalanobis auroc           98.89 0.37 no
one-vs-one-main     densenet-100-12 cifar100 food101        odin        auroc           90.82 0.60 yes
one-vs-one-main     wrn-28-10       cifar10  tin-crop-free  mahalanobis auroc           98.50 0.11 yes
one-vs-one-main     wrn-28-10       cifar100 tin-resize     cosine      auroc           95.84 0.67 no
one-vs-one-main     wrn-28-10       cifar100 food101        cosine      auroc           92.53 0.38 yes
one-vs-one          densenet-100-12 cifar10  tin-crop       odin        accuracy_at_tpr 94.59 0.80 no
one-vs-one          densenet-100-12 cifar10  mnist          mahalanobis accuracy_at_tpr 97.50 0.00 yes
one-vs-one          densenet-100-12 cifar10  uniform        max-softmax accuracy_at_tpr 60.28 19.27 no
one-vs-one          densenet-100-12 cifar100 svhn           mahalanobis aupr_in         94.33 0.78 yes
one-vs-one          densenet-100-12 cifar100 stl10          mahalanobis auroc           91.64 5.03 yes
one-vs-one          densenet-100-12 cifar100 gaussian       odin        auroc           93.44 6.60 no
one-vs-one          wrn-28-10       cifar10  food101        odin        aupr_in         71.88 6.62 no
one-vs-one          wrn-28-10       cifar10  notmnist       cosine      auroc           99.11 0.28 no
one-vs-one          wrn-28-10       cifar100 gaussian       odin        auroc           80.04 41.24 no
one-vs-one          wrn-28-10       cifar100 uniform        max-softmax aupr_in         74.03 12.70 no
one-vs-one          wrn-28-10       cifar100 fashion-mnist  cosine      accuracy_at_tpr 92.48 1.22 yes
less-biased         densenet-100-12 cifar10  tin-crop-free  mahalanobis auroc           90.16 11.53 no
less-biased         densenet-100-12 cifar10  mnist          odin        auroc           99.24 0.68 yes
less-biased         densenet-100-12 cifar100 svhn           mahalanobis aupr_in         60.65 31.79 no
less-biased         densenet-100-12 cifar100 mnist          odin        accuracy_at_tpr 87.24 6.78 yes
less-biased         wrn-28-10       cifar10  tin-resize     mahalanobis accuracy_at_tpr 91.47 7.96 yes
less-biased         wrn-28-10       cifar10  food101        odin        aupr_in         55.33 13.49 no
less-biased         wrn-28-10       cifar100 stl10          mahalanobis accuracy_at_tpr 72.25 11.96 yes
less-biased         wrn-28-10       cifar100 gaussian       mahalanobis auroc           88.04 30.26 no
less-biased-framed  densenet-100-12 cifar10  tin-crop       mahalanobis auroc           86.44 8.15 no
less-biased-framed  densenet-100-12 cifar10  svhn           odin        accuracy_at_tpr 76.56 8.01 no
less-biased-framed  densenet-100-12 cifar100 gaussian       mahalanobis accuracy_at_tpr 70.35 24.18 no
less-biased-framed  wrn-28-10       cifar10  lsun-crop      odin        auroc           94.92 1.72 no
less-biased-framed  wrn-28-10       cifar100 lsun-crop      mahalanobis auroc           74.40 5.23 no
less-biased-framed  wrn-28-10       cifar100 notmnist       mahalanobis accuracy_at_tpr 80.87 15.35 yes
less-biased-framed  wrn-28-10       cifar100 uniform        mahalanobis aupr_in         91.62 20.71 no
ensembles densenet-100-12 cifar10  tin-crop       leave-out-published accuracy_at_tpr 96.89 - no
ensembles densenet-100-12 cifar10  tin-crop-free  leave-out-published auroc           -     - no
ensembles densenet-100-12 cifar10  svhn           leave-out           auroc           94.39 - no
ensembles densenet-100-12 cifar10  svhn           leave-out           aupr_in         95.06 - no
ensembles densenet-100-12 cifar100 stl10          cosine-ensemble     auroc           92.04 - no
ensembles densenet-100-12 cifar100 gaussian       leave-out-published accuracy_at_tpr 57.64 - no
ensembles wrn-28-10       cifar10  lsun-resize    leave-out           aupr_in         99.37 - no
ensembles wrn-28-10       cifar100 lsun-resize    cosine-ensemble     accuracy_at_tpr 84.58 - no
ensembles wrn-28-10       cifar100 uniform        leave-out-published auroc           93.04 - no
ensembles wrn-28-10       cifar100 uniform        leave-out-published aupr_in         88.64 - no
"""
ABLATION = {
    "row-1": (89.22, 76.59),
    "row-2": (95.74, 88.70),
    "row-3": (94.09, 82.76),
    "row-4": (96.53, 89.02),
    "row-5": (87.06, 95.66),
    "row-6": (62.02, 94.82),
    "row-7": (95.16, 91.30),
    "row-8": (97.66, 95.84),
    "row-9": (94.71, 87.55),
    "row-10": (89.90, 86.96),
}


def by_key(name: str) -> dict[tuple[str, ...], PaperCell]:
    return {cell.key: cell for cell in paper_table(name)}


@pytest.mark.parametrize("line", TYPED.strip().splitlines())
def test_numbers_typed_by_hand(line: str) -> None:
    name, *key, mean, std, bold = line.split()
    cell = by_key(name)[tuple("" if part == "-" else part for part in key)]
    assert cell.mean == (None if mean == "-" else float(mean))
    assert cell.std == (None if std == "-" else float(std))
    assert cell.bold == (bold == "yes")


def test_all_of_the_ablation_as_typed_by_hand() -> None:
    cells = by_key("ablation")
    assert len(cells) == 20
    for row, means in ABLATION.items():
        for id_name, mean in zip(("cifar10", "cifar100"), means, strict=True):
            cell = cells[WIDE, id_name, "tin-resize", row, "auroc"]
            assert cell.mean == mean
            assert cell.bold == (row == "row-8")
    scales = [cells[WIDE, "cifar10", "tin-resize", f"row-{row}", "auroc"].printed_method for row in (3, 4, 5, 6)]
    assert [text.split("scale ")[1].split(",")[0] for text in scales] == ["16", "32", "64", "128"]


@pytest.mark.parametrize(
    ("name", "cifar10", "cifar100"),
    [
        ("one-vs-one", (14, 14), (15, 15)),
        ("ensembles", (14, 14), (15, 15)),
        ("less-biased", (12, 12), (13, 12)),
        ("less-biased-framed", (12, 12), (13, 13)),
        ("one-vs-one-main", (9, 9), (9, 9)),
    ],
)
def test_rows_of_each_network_and_id_set(name: str, cifar10: tuple[int, int], cifar100: tuple[int, int]) -> None:
    rows = {(cell.network, cell.id, cell.ood) for cell in paper_table(name)}
    found = Counter((network, id_name) for network, id_name, _ in rows)
    assert found == {
        (DENSE, "cifar10"): cifar10[0],
        (WIDE, "cifar10"): cifar10[1],
        (DENSE, "cifar100"): cifar100[0],
        (WIDE, "cifar100"): cifar100[1],
    }
    methods, metrics = {cell.method for cell in paper_table(name)}, {cell.metric for cell in paper_table(name)}
    assert len(paper_table(name)) == len(by_key(name)) == len(rows) * len(methods) * len(metrics)
    assert not any(id_name == "cifar10" and ood == "stl10" for _, id_name, ood in rows)


def test_the_pools_of_the_less_biased_tables() -> None:
    free = {(cell.network, cell.id, cell.ood) for cell in paper_table("less-biased")}
    framed = {(cell.network, cell.id, cell.ood) for cell in paper_table("less-biased-framed")}
    assert (WIDE, "cifar100", "uniform") not in free
    assert (WIDE, "cifar100", "uniform") in framed
    assert not {"tin-crop", "lsun-crop"} & {ood for *_, ood in free}
    assert not {"tin-crop-free", "lsun-crop-free"} & {ood for *_, ood in framed}


@pytest.mark.parametrize("name", ["less-biased", "less-biased-framed"])
def test_rows_of_the_less_biased_tables_are_the_tested_sets(name: str) -> None:
    complete = by_key("one-vs-one")
    free_of_tuning = [cell for cell in paper_table(name) if cell.method in ("max-softmax", "cosine")]
    assert len(free_of_tuning) == len(paper_table(name)) / 2
    assert all(cell.mean == complete[cell.key].mean for cell in free_of_tuning)
    [differs] = [cell for cell in free_of_tuning if cell.std != complete[cell.key].std]
    assert differs.key == (DENSE, "cifar100", "uniform", "cosine", "accuracy_at_tpr")
    assert (differs.std, complete[differs.key].std) == (0.01, 0.00)  # the one digit in which they differ


def test_the_main_table_is_the_auroc_of_the_complete_one() -> None:
    complete = by_key("one-vs-one")
    for cell in paper_table("one-vs-one-main"):
        assert (cell.printed, cell.bold) == (complete[cell.key].printed, complete[cell.key].bold), cell


def test_where_the_paper_disagrees_with_itself_both_are_kept() -> None:
    complete, ablation = by_key("one-vs-one"), by_key("ablation")
    for id_name, one, other in (("cifar10", 89.22, 89.21), ("cifar100", 76.59, 76.67)):
        assert ablation[WIDE, id_name, "tin-resize", "row-1", "auroc"].mean == one
        assert complete[WIDE, id_name, "tin-resize", "max-softmax", "auroc"].mean == other
    for id_name, one, other in (("cifar10", 97.66, 97.65), ("cifar100", 95.84, 95.84)):
        assert ablation[WIDE, id_name, "tin-resize", "row-8", "auroc"].mean == one
        assert complete[WIDE, id_name, "tin-resize", "cosine", "auroc"].mean == other


def test_bold_is_the_best_of_its_row() -> None:
    for name in ("one-vs-one", "one-vs-one-main", "less-biased", "less-biased-framed"):
        rows: dict[tuple[str, ...], list[PaperCell]] = {}
        for cell in paper_table(name):
            rows.setdefault((cell.network, cell.id, cell.ood, cell.metric), []).append(cell)
        for row in rows.values():
            best = max(cell.mean or 0 for cell in row)
            assert [cell.bold for cell in row] == [cell.mean == best for cell in row], row


def test_dashes_are_only_where_the_leave_out_paper_has_nothing() -> None:
    given = {"tin-crop", "tin-resize", "lsun-crop", "lsun-resize", "gaussian", "uniform"}
    for name in TABLES:
        for cell in paper_table(name):
            missing = cell.method == "leave-out-published" and cell.ood not in given
            assert (cell.mean is None) == missing == (cell.printed == "-"), cell


def test_numbers_are_in_range_and_names_are_ours() -> None:
    for name in TABLES:
        for cell in paper_table(name):
            by_name(cell.network)
            assert not cell.id or cell.id in CATALOGUE
            assert not cell.ood or cell.ood in CATALOGUE
            assert cell.table == name
            if cell.metric == "accuracy_at_tpr" and cell.mean is not None:
                assert 47.5 <= cell.mean <= 97.5
            if cell.mean is not None:
                assert 0 < cell.mean <= 100
    metrics = {cell.metric for name in MANY for cell in paper_table(name)}
    assert metrics == {metric.__name__ for metric in (accuracy_at_tpr, auroc, aupr_in)}


def test_names_as_printed_are_kept() -> None:
    assert {cell.printed_ood for cell in paper_table("one-vs-one") if cell.ood == "svhn"} == {"SVNH"}
    assert {cell.printed_ood for cell in paper_table("ensembles") if cell.ood == "gaussian"} == {"Gausian"}


def test_csv_is_what_is_in_the_files() -> None:
    from importlib import resources

    for name in TABLES:
        file = resources.files("offaxis.paper").joinpath("data", f"{name}.csv")
        assert as_csv(paper_table(name)) == file.read_text(encoding="utf-8")


def test_an_unknown_table_is_answered_with_the_names() -> None:
    with pytest.raises(ArgumentError, match="less-biased-framed.*'nonsense'"):
        paper_table("nonsense")
