"""The example is run as it is, only shorter."""

import importlib.util
import socket
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "practitioner.py"


def test_the_whole_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mlxtend")
    pytest.importorskip("uvicorn")
    spec = importlib.util.spec_from_file_location("practitioner", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    practitioner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(practitioner)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    practitioner.main(tmp_path, epochs=2, port=port)
    said = capsys.readouterr().out
    assert "served: a letter is" in said
    assert (tmp_path / "digits.oax").exists()
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 51
    assert (tmp_path / "scores.html").exists()
