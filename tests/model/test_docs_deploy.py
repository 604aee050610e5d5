"""The page on deployment shows the commands of deployment."""

import re
from importlib.metadata import metadata
from pathlib import Path

from offaxis.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"


def test_the_commands_exist() -> None:
    shown = set(re.findall(r"\$ offaxis (\w+)", PAGE.read_text(encoding="utf-8")))
    assert shown <= {command.name for command in app.registered_commands}
    assert {"bundle", "calibrate", "score", "export", "serve"} <= shown


def test_the_container_has_what_bundles_need_and_sees_new_ones() -> None:
    """A mounted file stays the old one where another takes its name, as every bundle that is written does."""
    dockerfile, extras = (PAGE.parents[1] / "Dockerfile").read_text(encoding="utf-8"), {"serve", "onnx", "photos"}
    named = re.search(r"^ARG EXTRAS=(\S+)$", dockerfile, re.MULTILINE)
    assert named is not None
    assert set(named[1].split(",")) == extras <= set(metadata("offaxis").get_all("Provides-Extra") or ())
    for text in (dockerfile, PAGE.with_name("serve.md").read_text(encoding="utf-8")):
        assert re.findall(r'--volume "(\S+)"', text) == ["$PWD/model:/model:ro"]
        assert '--build-arg PACKAGES="timm torchvision"' in text
    assert '["/model/model.oax"' in dockerfile
