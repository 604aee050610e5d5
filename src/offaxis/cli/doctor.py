"""``offaxis doctor``: what is installed, what is missing, devices, threads and folders, as a bug report needs it."""

import importlib
import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import torch
import typer

from offaxis import __version__
from offaxis.data.catalogue import CATALOGUE, data_root
from offaxis.options import DoctorOptions

FOR_DEVELOPERS = ("browser", "dev", "docs", "hostile", "notebook", "test", "thirdparty")
"""Extras that are not shown: only working on offaxis itself needs them."""
BESIDE = ("timm", "torchvision", "transformers", "pytorch-ood")
"""Packages of others that offaxis works with where they can be imported."""


_TORCHVISION = (
    "torchvision was built for another torch, as that of PyPI is for one with CUDA: take both from one place, such as pip "
    "install --force-reinstall torch torchvision --index-url https://download.pytorch.org/whl/cpu, or remove torchvision, "
    "which offaxis does not need"
)


def extras() -> dict[str, dict[str, str | None]]:
    """Return, for each extra, its packages with their versions; None for one that is missing."""
    found: dict[str, dict[str, str | None]] = {}
    for line in metadata.requires("offaxis") or ():
        parts = re.fullmatch(r"([\w.-]+)[^;]*;.*extra == ['\"]([\w-]+)['\"].*", line)
        if parts and parts[1] != "offaxis" and parts[2] not in FOR_DEVELOPERS:
            found.setdefault(parts[2], {})[parts[1]] = _version_of(parts[1])
    return found


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _importable(package: str) -> str:
    """Return the version of a package, or why it cannot be used."""
    version = _version_of(package)
    if version is None:
        return "not installed"
    try:
        importlib.import_module(package.replace("-", "_"))
    except Exception as error:  # whatever a broken installation raises
        reason = " ".join(str(error).split())[:120]
        torchvision = "torchvision::" in reason and f". {_TORCHVISION}"
        return f"{version}, which cannot be imported ({type(error).__name__}: {reason}){torchvision or ''}"
    return version


def examine(data: Any = None) -> dict[str, Any]:
    """Return everything that the command shows, in types that JSON has."""
    root = data_root(data)
    required = [re.split(r"[^\w.-]", line)[0] for line in metadata.requires("offaxis") or () if "extra ==" not in line]
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    present = [name for name, entry in CATALOGUE.items() if entry.layouts and entry.available(root)]
    return {
        "offaxis": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "packages": {name: _version_of(name) for name in required},
        "extras": extras(),
        "beside": {name: _importable(name) for name in BESIDE},
        "devices": ["cpu", *(["mps"] if torch.backends.mps.is_available() else []), *gpus],
        "threads": {
            "of torch": torch.get_num_threads(),
            "cores": os.cpu_count() or 1,
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        },
        "data": {"root": str(root), "exists": root.is_dir(), "sets": present},
    }


def report_installation(options: DoctorOptions, _: tuple[str, ...]) -> None:
    """Show what is installed, which extras are missing, devices, threads and image sets: paste it into a bug report."""
    found = examine(options.data)
    typer.echo(json.dumps(found, indent=2) if options.as_json else as_text(found))


def as_text(found: Mapping[str, Any]) -> str:
    """Return what ``examine`` found as lines that can be read and pasted."""
    missing = [name for name, version in found["packages"].items() if version is None]
    lines = [f"offaxis {found['offaxis']}, Python {found['python']}, {found['system']}", "", "Packages"]
    lines.append("  " + ", ".join(f"{name} {version}" for name, version in found["packages"].items() if version))
    if missing:
        lines.append(
            f"  MISSING: {', '.join(missing)}. Install offaxis again, in its clone: pip install --force-reinstall ."
        )
    lines += ["", "Extras"]
    for extra, packages in found["extras"].items():
        absent = [name for name, version in packages.items() if version is None]
        state = f"missing {', '.join(absent)}: pip install 'offaxis[{extra}]'" if absent else "installed"
        state += ", which makes scoring on a CPU three times faster" * (bool(absent) and extra == "onnx")
        lines.append(f"  {extra:12} {state}")
    lines += ["", "Libraries of others, by import"]
    lines += [f"  {name:12} {state}" for name, state in found["beside"].items()]
    threads, data = found["threads"], found["data"]
    set_by = "not set" if threads["OMP_NUM_THREADS"] is None else threads["OMP_NUM_THREADS"]
    lines += ["", f"Devices    {', '.join(found['devices'])}"]
    lines.append(f"Threads    {threads['of torch']} of {threads['cores']} cores (OMP_NUM_THREADS is {set_by})")
    lines.append(f"Data root  {data['root']}{'' if data['exists'] else ', which does not exist yet'}")
    lines.append(f"           sets: {', '.join(data['sets']) or 'none yet; offaxis data get NAME fetches one'}")
    return "\n".join(lines)
