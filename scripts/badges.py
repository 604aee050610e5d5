"""Draw the README's badges, from what pyproject.toml says, into docs/images/badges: ``python scripts/badges.py``.

Nothing is fetched from a badge service. Coverage is the bound that ``make coverage`` fails below, docs that ``make docs``
is strict.
"""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "images" / "badges"


def texts() -> dict[str, tuple[str, str]]:
    """Return the two halves of each badge, by file name."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = settings["project"]
    return {
        "licence": ("licence", project["license"]),
        "python": ("Python", project["requires-python"].replace(">=", "≥ ")),
        "coverage": ("coverage", f"≥ {settings['tool']['coverage']['report']['fail_under']} %"),
        "docs": ("docs", "strict build"),
    }


def badge(name: str, value: str) -> str:
    """Return a badge as SVG; the width follows the number of letters."""
    left, right = (round(6.6 * len(text) + 14) for text in (name, value))
    width = left + right
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{name}: {value}">'
        f"<title>{name}: {value}</title>"
        f'<rect width="{width}" height="20" rx="3" fill="#555"/>'
        f'<path d="M{left} 0h{right - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{right - 3}z" fill="#3949ab"/>'
        '<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="{left / 2}" y="14">{name}</text><text x="{left + right / 2}" y="14">{value}</text></g></svg>\n'
    )


def main() -> None:
    """Write the badges."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file, (name, value) in texts().items():
        (FOLDER / f"{file}.svg").write_text(badge(name, value), encoding="utf-8")


if __name__ == "__main__":
    main()
