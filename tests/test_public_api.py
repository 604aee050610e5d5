"""The public names of `import offaxis`, the tree of errors, and what is imported only where it is used."""

import subprocess
import sys

import pytest

import offaxis
from offaxis import errors

PUBLIC = [
    "Calibration",
    "Classifier",
    "CosineHead",
    "Detector",
    "EmbeddingDetector",
    "Ensemble",
    "ImageSet",
    "LinearHead",
    "Model",
    "OffaxisError",
    "Outputs",
    "Paired",
    "Prediction",
    "Recipe",
    "Results",
    "Verdict",
    "__version__",
    "attach",
    "calibrate",
    "evaluate",
    "load",
    "load_images",
    "open_network",
    "register_detector",
    "train",
]


def test_the_public_names_are_exactly_these() -> None:
    assert sorted(offaxis.__all__) == PUBLIC
    assert sorted(set(dir(offaxis)) & set(PUBLIC)) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(offaxis, name) is not None


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        offaxis.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_the_error_tree_is_drawn_as_it_is() -> None:
    drawn = errors.__doc__ or ""
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.OffaxisError)]
    assert len(kinds) > 10
    for kind in kinds:
        assert f" {kind.__name__} " in drawn or f" {kind.__name__}\n" in drawn, kind
        assert kind.__doc__


def test_importing_does_not_pull_in_what_only_some_need() -> None:
    heavy = {"lightning_fabric", "matplotlib", "sklearn", "torchvision", "pytorch_ood", "starlette"}
    code = f"import sys, offaxis.cli; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
