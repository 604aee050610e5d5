"""The commands that would make a store's results again, as far as they are known."""

import shlex
from collections.abc import Sequence
from typing import Any

from offaxis.data import CATALOGUE
from offaxis.data.splits import LARGEST_SHARE, VALIDATION_IMAGES
from offaxis.deploy.open import short_name
from offaxis.detectors import DETECTORS
from offaxis.errors import ArgumentError, OffaxisError
from offaxis.evaluation.results import NetworkRecord, Result
from offaxis.evaluation.store import Store
from offaxis.networks.ensemble import folds
from offaxis.training import RECIPES
from offaxis.training.leave_out import MarginEntropyLoss
from offaxis.training.step import describe_loss

_OPTIONS = ("epochs", "batch_size", "learning_rate", "weight_decay", "clip", "crop", "flip", "decay_head")
"""What ``offaxis train`` can change of a recipe."""


def commands(results: Sequence[Result], records: Sequence[NetworkRecord], store: Store) -> list[str]:
    """Training, evaluation and report, for one ID set."""
    training = [text for record in records if (text := train_command(record))]
    report = f"offaxis report {shlex.quote(store.path.name)} --out report"
    return [*training, *evaluate_commands(results, records, store), report]


def train_command(record: NetworkRecord) -> str:
    """How a network was trained; empty where no command is known (a network or a loss of one's own, an ensemble)."""
    network: dict[str, Any] | None = record.settings.get("network")
    if network is None or ", " in record.origin:
        return ""
    recipe, head = record.settings["recipe"], network["head"]
    base, left_out = _base(recipe), _left_out(record.settings.get("loss"), network)
    if base is None or left_out is None:
        return ""
    usual = (None, "predicted") if head["name"] == "cosine" else (None,)
    words = [f"offaxis train --id {shlex.quote(record.id)} --network {short_name(network)} --head {head['name']}"]
    words += [f"--{name} {head[name]}" for name in ("scale", "hidden") if head.get(name) not in usual]
    words.append(f"--epochs {recipe['epochs']} --batch-size {recipe['batch_size']} --lr {recipe['learning_rate']:g}")
    words.append(f"--weight-decay {recipe['weight_decay']:g} --crop {recipe['crop']}")
    words.append("--flip" if recipe["flip"] else "--no-flip")
    words += ["--decay-head"] if recipe.get("decay_head") else []
    words += [f"--clip {recipe['clip']:g}"] if recipe.get("clip") else []
    words += [f"--recipe {base}"] if base != "laptop" else []
    words += [f"--dropout {network['dropout']:g}"] if network["dropout"] else []
    words += [f"--leave-out {left_out}"] if left_out else []
    precision = record.settings.get("precision", "32-true")
    words += [f"--precision {precision}"] if precision != "32-true" else []
    words += ["--sync-bn"] if record.settings.get("sync_bn") else []
    return " ".join([*words, f"--seed {record.seed} --out {shlex.quote(record.origin)}"])


def evaluate_commands(results: Sequence[Result], records: Sequence[NetworkRecord], store: Store) -> list[str]:
    """How the detectors were compared: networks that were evaluated alike share a command, those made of several do not."""
    own: dict[str, list[Result]] = {}
    for r in results:
        own.setdefault(r.weights, []).append(r)
    known = {record.key: record for record in records}
    alike: dict[str, list[str]] = {}
    teams = []
    for key, found in own.items():
        options = _options(found, store)
        origins = known[key].origin.split(", ") if key in known and known[key].origin else ["RUN..."]
        if len(origins) == 1:
            alike.setdefault(options, []).extend(origins)
        elif together := _together(known[key], len(origins)):
            teams.append(f"offaxis evaluate {_words(origins)} --as {together} {options}")
    return [f"offaxis evaluate {_words(dict.fromkeys(runs))} {options}" for options, runs in alike.items()] + teams


def _words(names: Sequence[str] | dict[str, None]) -> str:
    return " ".join(name if name == "RUN..." else shlex.quote(name) for name in names)


def _options(results: Sequence[Result], store: Store) -> str:
    """The options of ``offaxis evaluate`` that gave one network's results."""
    pairs = {r.assumed == r.ood for r in results if r.assumed is not None}
    protocol = "both" if len(pairs) == 2 else "less-biased" if pairs == {False} else "one-vs-one"
    words = [f"--id {shlex.quote(results[0].id)} --ood {shlex.quote(','.join(dict.fromkeys(r.ood for r in results)))}"]
    words.append(f"--detectors {shlex.quote(','.join(_detectors(results)))}")
    words.append(f"--protocol {protocol}" + ("" if pairs else " --no-tune"))
    sets = store.sets()
    about = [sets[key] for key in {key for r in results for key in (r.id_data, r.ood_data)} if key in sets]
    cut = [a["images"] for a in about if a["name"] in CATALOGUE and a["images"] < CATALOGUE[a["name"]].counts["test"]]
    words += [f"--images {max(cut)}"] if cut else []
    fitted = next((r.fitted_on.split()[0] for r in results if r.fitted_on), "")
    words += [f"--fit-images {fitted}"] if fitted.isdigit() else []
    if any(a["validation"] != min(VALIDATION_IMAGES, int(LARGEST_SHARE * a["images"])) for a in about):
        words.append(f"--validation {max(a['validation'] for a in about)}")  # the others gave the share that they may
    return " ".join([*words, f"--out {shlex.quote(store.path.name)}"])


def _detectors(results: Sequence[Result]) -> list[str]:
    """What each detector was asked for by: "knn", or "knn:k=10" where a hyperparameter is not the usual one."""
    found: dict[tuple[str, str], str] = {}
    for r in sorted(results, key=lambda r: r.assumed is not None):  # what is tuned has other values than it was given
        if (r.detector, r.setup) not in found:
            usual = _usual(r.detector) if r.assumed is None else {}
            given = [f"{k}={v}" for k, v in r.hyperparameters.items() if k in usual and _plain(v) and v != usual[k]]
            found[r.detector, r.setup] = ":".join([r.detector, *given])
    return list(dict.fromkeys(found.values()))


def _usual(detector: str) -> dict[str, Any]:
    """The hyperparameters that a detector has by its name alone; none where it cannot be made here."""
    try:
        return DETECTORS[detector]().hyperparameters
    except (KeyError, TypeError, OffaxisError):
        return {}


def _plain(value: object) -> bool:
    return isinstance(value, (bool, int, float, str))


def _base(recipe: dict[str, Any]) -> str | None:
    """The recipe that a training must have started from: what no option can change is the same."""
    for name, make in RECIPES.items():
        base = make().to_json()
        fixed = [key for key in base if key in recipe and key not in _OPTIONS]
        if all(base[key] == recipe[key] for key in fixed) and (base["clip"] is None or recipe.get("clip")):
            return name
    return None


def _left_out(loss: dict[str, Any] | str | None, network: dict[str, Any]) -> str | None:
    """K/N of a network of a leave-out ensemble, "" of an ordinary one; None where the loss is neither's."""
    if loss in (None, "cross_entropy", {"name": "cross_entropy"}):
        return ""
    loss = {**loss, "fold": None} if isinstance(loss, dict) else loss
    classes = network["num_classes"]
    for count in range(2, classes + 1):
        try:
            dealt = folds(classes, count)
        except ArgumentError:  # too few classes for so few folds
            continue
        for k, fold in enumerate(dealt):
            if loss in (repr(MarginEntropyLoss(fold, classes)), describe_loss(MarginEntropyLoss(fold, classes))):
                return f"{k}/{count}"  # where two N deal this fold, the training is the same
    return None


def _together(record: NetworkRecord, members: int) -> str:
    """How several networks were put together: as the record says, or else its label; empty where neither does."""
    if "together" in record.settings:
        return str(record.settings["together"])
    if record.label.endswith(f" leave-out x{members}"):
        return "leave-out"
    if record.label.endswith(f" x{members}"):
        return "ensemble"
    return "paired" if members == 2 and " + " in record.label else ""
