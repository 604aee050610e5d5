"""What the site adds to the pages of docs/; MkDocs calls these hooks (mkdocs.yml).

- README, CHANGELOG, CONTRIBUTING, SECURITY and CODE_OF_CONDUCT become pages; the README is the home page.
- A link to another file of the project (an example, the study's notes) leads to a page that shows the file.
- The tables of detectors, image sets and commands are made from the code, so that they cannot fall behind it.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
AT_THE_ROOT = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "code-of-conduct.md": "CODE_OF_CONDUCT.md",
}
"""Page -> the file that it is made from."""
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)")
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash", ".txt": "text", "": "dockerfile"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    made = {page: (ROOT / file).read_text(encoding="utf-8") for page, file in AT_THE_ROOT.items()}
    made["reference/detectors.md"] = detectors_page()
    made["reference/datasets.md"] = datasets_page()
    made["reference/cli.md"] = commands_page()
    sources = {file.src_uri: f"docs/{file.src_uri}" for file in files.documentation_pages()} | AT_THE_ROOT
    for source in sources.values():
        for target in LINK.findall((ROOT / source).read_text(encoding="utf-8")):
            path = _path(source, target)
            if _page(path).startswith("source/") and _page(path) not in made:
                made[_page(path)] = _shown(path)
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Let links to files of the project lead to their pages."""
    uri = page.file.src_uri
    source = AT_THE_ROOT.get(uri) or (uri[7:-3] if uri.startswith("source/") else f"docs/{uri}")
    return LINK.sub(lambda match: os.path.relpath(_page(_path(source, match[1])), Path(uri).parent), markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Show what docstrings have of reStructuredText, roles (``:func:`name```) and double colons, as text."""
    html = re.sub(r":(?:func|class|mod|meth):(?=<code)", "", html)
    return re.sub(r"<p>::</p>", "", html).replace("::</p>", ":</p>")


def _path(source: str, target: str) -> str:
    """Return the path of a link's target from the project's root."""
    return os.path.normpath(Path(source).parent / target)


def _page(path: str) -> str:
    """Return the page, or the file of the site, that shows a file of the project."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    at_the_root = {file: page for page, file in AT_THE_ROOT.items()}
    return at_the_root.get(path, f"source/{path}.md")


def _shown(path: str) -> str:
    """Return a file of the project as a page."""
    file = ROOT / path
    if not file.is_file():
        raise PluginError(f"A page links to {path}, which is no file of the project.")
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return text
    if file.suffix == ".ipynb":
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
        return "\n\n".join(code if kind == "markdown" else f"```python\n{code}\n```" for kind, code in cells)
    return f"# {path}\n\n```{LANGUAGES.get(file.suffix, 'text')}\n{text}\n```\n"


# tables -----------------------------------------------------------------------------------------------------------------


def _table(header: list[str], rows: list[list[str]]) -> str:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *escaped)) + "\n"


def detectors_page() -> str:
    """Return the table of all detectors, from the classes themselves."""
    from offaxis.detectors import DETECTORS, NATIVE
    from offaxis.detectors.pytorch_ood import FED_WITH, PASSES

    rows = []
    for name in NATIVE:
        detector = DETECTORS[name]()
        settings = ", ".join(f"{key} ({value})" for key, value in detector.hyperparameters.items())
        reads = detector.reads if detector.reads != "outputs" else ", ".join(detector.uses)
        about = (type(detector).__doc__ or "").strip().split("\n")[0]
        linked = f"[`{name}`]({detector.paper})" if detector.paper else f"`{name}`"
        fit = "yes" if detector.needs_fit else "no"
        rows.append([linked, about, reads, _passes(*detector.passes), fit, settings or "none"])
    theirs = [
        [f"`pytorch-ood-{kind.lower()}`", f"`{kind}`", str(feed), _passes(*PASSES.get(kind, (1, 0)))]
        for kind, feed in FED_WITH.items()
    ]
    return "\n\n".join(
        [
            "# Table of detectors",
            "Made from `offaxis.detectors.DETECTORS`. Larger scores mean more out-of-distribution, for every detector. "
            "*Passes* are the forward (+ backward) passes that scoring one image takes; one forward pass is shared by all "
            "detectors that read outputs. *Fit* says whether training images are needed. Which one to choose, and what each "
            "costs: [Detectors](../detectors.md).",
            f"## Ours\n\n{len(rows)} detectors; a name links to its paper.",
            _table(["name", "what it computes", "reads", "passes", "fit", "hyperparameters (default)"], rows),
            f"## pytorch-ood's\n\n{len(theirs)} classes of pytorch-ood under the same contract, with "
            "`pip install 'offaxis[pytorch-ood]'`.",
            _table(["name", "class", "fed with", "passes"], theirs),
        ]
    )


def _passes(forward: float, backward: float = 0) -> str:
    return f"{forward:g} + {backward:g}" if backward else f"{forward:g}"


def datasets_page() -> str:
    """Return the table of all image sets, from the catalogue."""
    from offaxis.data import CATALOGUE

    rows = []
    for name, entry in CATALOGUE.items():
        title = f"[{entry.title}]({entry.homepage})" if entry.homepage else entry.title
        counts = [f"{entry.counts[split]:,}" if split in entry.counts else "" for split in ("train", "test")]
        source = "download" if entry.downloads else "by hand" if entry.layouts else "installed or generated"
        rows.append([f"`{name}`", title, entry.kind, *counts, entry.native, source, _plain(entry.licence)])
    return "\n\n".join(
        [
            "# Table of image sets",
            "Made from the catalogue. `offaxis data list NAME` shows one in full, with its publisher, citation, checksums and "
            "addresses; [Image sets](../datasets.md) says how they are loaded.",
            _table(["name", "title", "kind", "train", "test", "size", "from", "terms"], rows),
        ]
    )


def commands_page() -> str:
    """Return every command with its arguments, options and examples."""
    import typer

    from offaxis.cli import app

    text = ["# Command line", "Every command, as `--help` shows it."]
    for words, command in _commands(typer.main.get_command(app), "offaxis"):
        text += [f"## `{words}`", _plain(command.help or "")]
        examples = re.findall(r"\[cyan\](.*?)\[/cyan\]", command.epilog or "")
        if examples:
            text.append("```bash\n" + "\n".join(examples) + "\n```")
        rows = []
        for parameter in command.params:
            option = parameter.param_type_name == "option"
            if parameter.name == "help" or (option and getattr(parameter, "hidden", False)):
                continue
            names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
            if not option:
                names = f"`{parameter.metavar or (parameter.name or '').upper()}`"
            rows.append([names, _plain(getattr(parameter, "help", "") or ""), _default(parameter)])
        if rows:
            text.append(_table(["", "", "default"], rows))
    return "\n\n".join(text)


def _commands(command: Any, words: str) -> list[tuple[str, Any]]:
    """Return the commands of a group with the words that call them, in their order."""
    if not hasattr(command, "commands"):
        return [(words, command)]
    return [
        found for name in command.list_commands(None) for found in _commands(command.commands[name], f"{words} {name}")
    ]


def _default(parameter: Any) -> str:
    shown = getattr(parameter, "show_default", None)
    if isinstance(shown, str):
        return shown
    value = parameter.default
    if value is None or value is False or value == () or callable(value):
        return "required" if parameter.required else ""
    return f"`{value}`"


def _plain(text: str) -> str:
    """Return a help text without the marks of rich, as Markdown that shows it as it is."""
    return re.sub(r"([*_<])", r"\\\1", re.sub(r"\[/?(bold|cyan|dim)\]", "", " ".join(text.split())))
