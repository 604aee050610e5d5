"""Record golden values anew: ``python -m tests.golden.record [GROUP ...]``, from the project's root.

Without a name every group is recorded but ``networks``, the weights that scores are pinned on: naming it pins
other scores.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np

from tests.operators import import_library

from . import cases, subjects


def write_json(path: Path, value: subjects.Json) -> None:
    """Write a value so that a diff shows what has moved: a line for each entry of the second level."""
    lines = []
    for name, entry in value.items():
        if isinstance(entry, dict):
            inner = ",\n".join(f"  {json.dumps(key)}: {json.dumps(item)}" for key, item in entry.items())
            lines.append(f" {json.dumps(name)}: {{\n{inner}\n }}")
        else:
            lines.append(f" {json.dumps(name)}: {json.dumps(entry)}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def write_texts(path: Path, texts: dict[str, str]) -> None:
    """Write all texts of a group into one file, each below a line with its name."""
    path.write_text("".join(f"@@ {name}\n{text}" for name, text in texts.items()), encoding="utf-8")


def record(name: str) -> None:
    """Compute one group and write its file."""
    if name == "networks":
        np.savez_compressed(subjects.VALUES / "networks.npz", **subjects.networks())  # type: ignore[arg-type]
    elif name in cases.ARRAY_GROUPS:
        np.savez_compressed(subjects.VALUES / f"{name}.npz", **cases.ARRAY_GROUPS[name]())  # type: ignore[arg-type]
    elif name in cases.JSON_GROUPS:
        write_json(subjects.VALUES / f"{name}.json", cases.JSON_GROUPS[name]())
    else:
        write_texts(subjects.VALUES / f"{name}.txt", cases.TEXT_GROUPS[name]())


def main() -> None:
    """Record the groups that are named."""
    os.chdir(subjects.ROOT)
    import_library("torchvision")
    every = (*cases.ARRAY_GROUPS, *cases.JSON_GROUPS, *cases.TEXT_GROUPS)
    subjects.VALUES.mkdir(exist_ok=True)
    if not sys.argv[1:]:
        (subjects.VALUES / "recorded.json").write_text(json.dumps(subjects.about(), indent=1) + "\n", encoding="utf-8")
    for name in sys.argv[1:] or every:
        with subjects.one_thread():
            record(name)
        print(name)


if __name__ == "__main__":
    main()
