"""Task 12: something that is no image: which questions is a chat bot not made for?

The texts are those of chatterbot-corpus: questions by topic, in several languages (pip install chatterbot-corpus pyyaml).
"""

from importlib.resources import files

import numpy as np
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


def main(path: str = "intents.oax") -> None:
    english, german = questions("english"), questions("german")
    texts = [text for topic in KNOWN for text in english[topic]]
    topics = [topic for topic in KNOWN for _ in english[topic]]
    train, rest, y_train, y_rest = train_test_split(texts, topics, test_size=0.5, stratify=topics, random_state=0)
    held_out, new, _, y_new = train_test_split(rest, y_rest, test_size=0.5, stratify=y_rest, random_state=0)

    # Any features will do: TF-IDF of letters here, sentence embeddings of a language model elsewhere.
    tfidf = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True, min_df=2).fit(train)
    detector = offaxis.EmbeddingDetector(alpha=0.1, random_state=0)
    detector.fit(tfidf.transform(train).toarray(), y_train)
    detector.calibrate(tfidf.transform(held_out).toarray())
    detector.save(path)

    known = tfidf.transform(new).toarray()
    accuracy = np.mean(detector.predict_class(known) == y_new)
    print(f"{len(train)} questions on {len(KNOWN)} topics, {known.shape[1]} features; accuracy {accuracy:.1%}")
    unknown = {
        "other topics": [text for topic in sorted(set(english) - set(KNOWN)) for text in english[topic]],
        "German": [text for several in german.values() for text in several],
    }
    print(f"known topics: {np.mean(detector.predict(known) == -1):.1%} of {len(new)} called unknown")
    for name, others in unknown.items():
        rows = tfidf.transform(others).toarray()
        area = auroc(-detector.score_samples(known), -detector.score_samples(rows))
        print(f"{name}: {np.mean(detector.predict(rows) == -1):.1%} of {len(rows)} called unknown, AUROC {area:.1%}")


if __name__ == "__main__":
    main()
