"""``offaxis bench cost``."""

import json

import pytest
from typer.testing import CliRunner

from offaxis.cli import app
from offaxis.errors import ArgumentError
from offaxis.paper.tables import measure_cost

SMALL = ["bench", "cost", "--network", "wrn-10-1", "--batch", "4", "--rounds", "2"]


def test_the_table_has_the_papers_columns() -> None:
    result = CliRunner().invoke(
        app, [*SMALL, "--network", "densenet-10-4"], catch_exceptions=False, env={"COLUMNS": "120"}
    )
    assert result.exit_code == 0
    for word in ("Mahalanobis", "ODIN", "Cosine", "wrn-10-1", "densenet-10-4", "batch of 4"):
        assert word in result.stdout


def test_as_json() -> None:
    result = CliRunner().invoke(app, [*SMALL, "--json"], catch_exceptions=False)
    cost = json.loads(result.stdout)
    assert cost["network"] == "wrn-10-1"
    assert cost["mahalanobis"] > cost["odin"] > cost["cosine"] > 0


def test_help_has_an_example() -> None:
    result = CliRunner().invoke(app, ["bench", "cost", "--help"], env={"COLUMNS": "120"})
    assert "offaxis bench cost --network wrn-16-4" in result.stdout


@pytest.mark.parametrize("name", ["resnet", "wrn-28", "wrn-11-1", "densenet-0-0"])
def test_unknown_networks(name: str) -> None:
    with pytest.raises(ArgumentError, match="Expected"):
        measure_cost(name)
    with pytest.raises(ArgumentError, match="rounds"):
        measure_cost("wrn-10-1", rounds=0)


def test_unknown_devices() -> None:
    with pytest.raises(ArgumentError, match=r"can use here \(auto, cpu.*'abacus'"):
        CliRunner().invoke(app, [*SMALL, "--device", "abacus"], catch_exceptions=False)
