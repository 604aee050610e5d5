"""The commands that would make a store's results again."""

from collections.abc import Sequence
from typing import Any

from offaxis.datasets import CATALOGUE
from offaxis.protocols.result import NetworkRecord, Result
from offaxis.protocols.store import Store
from offaxis.protocols.subject import short_name


def commands(results: Sequence[Result], records: Sequence[NetworkRecord], store: Store) -> list[str]:
    """Training, as far as it is known, evaluation and report, for one ID set."""
    training = [text for record in records if (text := train_command(record))]
    return [*training, evaluate_command(results, records, store), f"offaxis report {store.path.name} --out report"]


def train_command(record: NetworkRecord) -> str:
    """How a network was trained; empty where that is not known (a network of one's own, an ensemble)."""
    network: dict[str, Any] | None = record.settings.get("network")
    if network is None or ", " in record.origin:
        return ""
    recipe, head = record.settings["recipe"], network["head"]
    words = [f"offaxis train --id {record.id} --network {short_name(network)} --head {head['name']}"]
    words += [f"--{name} {head[name]}" for name in ("scale", "hidden") if head.get(name) not in (None, "predicted")]
    words.append(f"--epochs {recipe['epochs']} --batch-size {recipe['batch_size']} --lr {recipe['learning_rate']:g}")
    words.append(f"--weight-decay {recipe['weight_decay']:g} --crop {recipe['crop']}")
    words.append("--flip" if recipe["flip"] else "--no-flip")
    words += ["--decay-head"] if recipe.get("decay_head") else []
    words += [f"--clip {recipe['clip']:g}"] if recipe.get("clip") else ["--recipe paper-wide-resnet"]
    words += [f"--dropout {network['dropout']:g}"] if network["dropout"] else []
    return " ".join([*words, f"--seed {record.seed} --out {record.origin}"])


def evaluate_command(results: Sequence[Result], records: Sequence[NetworkRecord], store: Store) -> str:
    """How the detectors were compared."""
    pairs = {r.assumed == r.ood for r in results if r.assumed is not None}
    protocol = "both" if len(pairs) == 2 else "less-biased" if pairs == {False} else "one-vs-one"
    runs = " ".join(dict.fromkeys(word for r in records for word in r.origin.split(", ") if word)) or "RUN..."
    words = [f"offaxis evaluate {runs} --id {results[0].id} --ood {','.join(dict.fromkeys(r.ood for r in results))}"]
    words.append(f"--detectors {','.join(dict.fromkeys(r.detector for r in results))}")
    words.append(f"--protocol {protocol}" + ("" if pairs else " --no-tune"))
    about = store.sets().values()
    cut = [a["images"] for a in about if a["name"] in CATALOGUE and a["images"] < CATALOGUE[a["name"]].counts["test"]]
    words += [f"--images {max(cut)}"] if cut else []
    fitted = next((r.fitted_on.split()[0] for r in results if r.fitted_on), "all")
    words += [] if fitted == "all" else [f"--fit-images {fitted}"]
    return " ".join([*words, f"--out {store.path.name}"])
