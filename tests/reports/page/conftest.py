"""A results store with random scores: two networks, two seeds, four methods, three sets, both protocols."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offaxis.data import load_images
from offaxis.data.images import limit_images
from offaxis.evaluation import NetworkRecord, Result, Store
from offaxis.evaluation.protocols import EvaluationSet, split_images
from offaxis.metrics import all_metrics

GROUPS = {"letters": "near", "photographs": "far", "gaussian": "noise"}
METHODS = {"cosine": ("none", 2.0), "max-softmax": ("none", 1.0), "odin": ("published default", 1.2)}


@pytest.fixture(scope="session")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("made-up") / "store")
    draw = np.random.default_rng(0)
    known = limit_images(load_images("small-digits"), 100)
    images = {name: limit_images(load_images(name, like=known), 80) for name in GROUPS}
    parts = {one.name: EvaluationSet(one.name, split_images(one)) for one in (known, *images.values())}
    for part in parts.values():
        store.add_set(part.key, part.record)
    results = []
    for head in ("cosine", "linear"):
        label = f"wrn-10-1 {head}"
        fields: dict[str, Any] = {"architecture": "wrn-10-1", "head": {"name": head, "scale": None}}
        for seed in (0, 1):
            weights = f"{label[-6:]}{seed}".encode().hex().ljust(64, "0")
            id_data = parts["small-digits"].key
            store.add_network(
                NetworkRecord(
                    label=label,
                    seed=seed,
                    weights=weights,
                    id="small-digits",
                    id_data=id_data,
                    accuracy=0.97 - seed / 100,
                    ece=0.03,
                    aurc=0.004,
                    origin=f"run{seed}",
                    commands=(("offaxis", "train", "--head", head, "--out", "my run"),) if seed else (),
                    **fields,
                )
            )
            for method, (state, shift) in METHODS.items():
                if method == "cosine" and head == "linear":
                    continue
                for ood, group in GROUPS.items():
                    assumptions = [None] if method != "odin" else [None, *GROUPS]
                    for assumed in assumptions:
                        scores = [draw.normal(size=80), draw.normal(shift + 0.2 * len(ood) / 5, size=64)]
                        names = [f"scores/{weights[:16]}/{method}-{ood}-{assumed}-{side}.npz#scores" for side in "ab"]
                        for name, values in zip(names, scores, strict=True):
                            store.add_scores(name, values)
                        results.append(
                            Result(
                                network=label,
                                seed=seed,
                                weights=weights[:16],
                                id="small-digits",
                                ood=ood,
                                assumed=assumed,
                                id_data=id_data,
                                ood_data=parts[ood].key,
                                assumed_data=parts[assumed].key if assumed else None,
                                group=group,  # type: ignore[arg-type]
                                detector=method,
                                setup="",
                                hyperparameters={},
                                state="tuned" if assumed else state,
                                passes=(2, 1) if method == "odin" else (1, 0),
                                metrics=all_metrics(*scores),
                                images=(80, 64),
                                scores=(names[0], names[1]),
                                versions={"offaxis": "0.1.0", "torch": "2"},
                                command=("offaxis", "evaluate", f"run{seed}") if seed else (),
                                **fields,
                            )
                        )
    store.add(results)
    return store


@pytest.fixture(scope="session")
def page(made_up: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from offaxis.reports.page import write_page
    from offaxis.reports.report import write_tables

    out = tmp_path_factory.mktemp("page")
    sections = write_tables(made_up, out)
    path = out / "index.html"
    write_page(made_up, sections, path, title="A & B <test>", thumbnails=3)
    return path
