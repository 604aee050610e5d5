"""List what wheel and sdist hold; refuse data sets, weights and large files: ``python scripts/check_dist.py dist``."""

import sys
import tarfile
import zipfile
from pathlib import Path

REFUSED = {
    ".bin", ".ckpt", ".gz", ".h5", ".jpeg", ".jpg", ".mat", ".npy", ".npz", ".oax", ".onnx", ".parquet", ".pkl", ".pt", ".pth",
    ".safetensors", ".tar", ".th", ".zip",
}  # fmt: skip
"""Endings of images, arrays, weights and archives."""
WHEEL_ONLY = {".csv", ".css", ".html", ".j2", ".js", ".py", ".svg", ".toml", ""}
"""Endings of what the package itself is made of; py.typed and the files of dist-info aside."""
LARGEST = 2_000_000  # bytes
FROZEN = "tests/frozen/kept/"
"""Bundles and runs of version 0.2.0 with networks of a few thousand weights, which every later version must read."""
KEPT = ("study/results/", "study/second/results/scores/", "tests/golden/values/", FROZEN)
"""Numbers, in the sdist alone: what the study's tables are rebuilt from, and what the tests compare with."""


def contents(path: Path) -> dict[str, int]:
    """Return the files of an archive with their sizes."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return {item.filename: item.file_size for item in archive.infolist()}
    with tarfile.open(path) as archive:
        return {member.name.partition("/")[2]: member.size for member in archive if member.isfile()}


def problems(name: str, size: int, wheel: bool) -> list[str]:
    """Return what is wrong with a file of an archive."""
    suffix = Path(name).suffix
    found = []
    kept = (".gz", ".npz", *((".oax", ".safetensors") if name.startswith(FROZEN) else ()))
    if suffix in REFUSED and (wheel or not (name.startswith(KEPT) and suffix in kept)):
        found.append(f"{name}: a data set or weights?")
    if suffix == ".png" and not name.startswith("docs/images/"):
        found.append(f"{name}: a picture that no page shows?")
    if size > LARGEST:
        found.append(f"{name}: {size:,} bytes")
    if wheel and suffix not in WHEEL_ONLY and ".dist-info/" not in name and not name.endswith("py.typed"):
        found.append(f"{name}: not what the package is made of")
    return found


def main(folder: Path) -> None:
    """List and check both archives."""
    paths = sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])
    if len(paths) != 2:
        raise SystemExit(f"Expected a wheel and an sdist in {folder} but found {len(paths)} of them.")
    wrong = []
    for path in paths:
        files = contents(path)
        by_folder: dict[str, list[int]] = {}
        for name, size in files.items():
            by_folder.setdefault("/".join(name.split("/")[:2]) if "/" in name else name, []).append(size)
            wrong += [f"{path.name}: {problem}" for problem in problems(name, size, path.suffix == ".whl")]
        sys.stdout.write(f"{path.name}: {len(files)} files, {path.stat().st_size:,} bytes\n")
        for place, sizes in sorted(by_folder.items()):
            sys.stdout.write(f"  {place:40} {len(sizes):4} files {sum(sizes):>12,} bytes\n")
    if wrong:
        raise SystemExit("\n".join(["Refused:", *wrong]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
