"""What `import offaxis` gives, and what it does not."""

import subprocess
import sys

import offaxis
from offaxis import errors

PUBLIC = {
    "Classifier",
    "CosineHead",
    "LinearHead",
    "OffaxisError",
    "Outputs",
    "Paired",
    "Recipe",
    "__version__",
    "attach",
    "train",
}


def test_the_public_names_are_these() -> None:
    assert set(offaxis.__all__) >= PUBLIC
    assert all(hasattr(offaxis, name) for name in offaxis.__all__)
    assert list(offaxis.__all__) == sorted(offaxis.__all__)


def test_the_error_tree_is_drawn_as_it_is() -> None:
    drawn = errors.__doc__ or ""
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.OffaxisError)]
    assert len(kinds) > 10
    for kind in kinds:
        assert f" {kind.__name__} " in drawn or f" {kind.__name__}\n" in drawn, kind
        assert kind.__doc__


def test_importing_does_not_pull_in_what_only_some_need() -> None:
    heavy = {"lightning_fabric", "matplotlib", "sklearn", "torchvision", "pytorch_ood", "fastapi"}
    code = f"import sys, offaxis.cli; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
