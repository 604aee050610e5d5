"""Libraries of others: imported beside a build of torch that torchvision was not compiled for."""

from pathlib import Path

import pytest

from offaxis.networks import third_party
from offaxis.networks.third_party import import_library

LIBRARY = """
from pathlib import Path
from {name} import part
count = Path(__file__).with_name("count")
imports = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(imports))
if imports == 1:
    raise RuntimeError("{message}")
"""


def write(folder: Path, name: str, message: str) -> None:
    """Write a library whose first import fails after a part of it was imported."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(LIBRARY.format(name=name, message=message))
    (folder / name / "part.py").write_text("")


def test_a_missing_operator_of_torchvision_does_not_keep_a_library_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        third_party, "_declared", [object()]
    )  # as if they were declared: a matching torchvision has them
    write(tmp_path, "needs_operators", "operator torchvision::nms does not exist")
    library = import_library("needs_operators")
    assert library.imports == 2
    assert library.part.__name__ == "needs_operators.part"


def test_other_errors_of_a_library_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path, "broken_otherwise", "no such device")
    with pytest.raises(RuntimeError, match="no such device"):
        import_library("broken_otherwise")
    with pytest.raises(ModuleNotFoundError):
        import_library("no_such_library")
