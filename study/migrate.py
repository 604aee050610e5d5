"""Rewrite the study's store of version 1 as version 2: fields in place of labels (``python -m study.migrate``)."""

import gzip
import json
from pathlib import Path
from typing import Any

from offaxis.deploy.evaluated_network import short_name
from offaxis.files import replacing, write_text
from offaxis.reproduce.commands import EvaluateCommand, TrainCommand
from study.steps import KEPT, all_steps

STORE = KEPT / "results"


def main() -> None:
    """Rewrite networks and results; sets and scores stay."""
    trainings: dict[str, TrainCommand] = {}
    evaluations: list[EvaluateCommand] = []
    for command, _ in all_steps():
        if isinstance(command, TrainCommand):
            trainings[command.training.name] = command
        elif isinstance(command, EvaluateCommand):
            evaluations.append(command)
    with gzip.open(STORE / "results" / "all.jsonl.gz", "rt", encoding="utf-8") as file:
        results = [json.loads(line) for line in file]
    versions = {r["weights"]: r["versions"] for r in results}
    described: dict[str, dict[str, Any]] = {}
    members_of: dict[str, tuple[str, ...]] = {}
    for file in sorted((STORE / "networks").glob("*.json")):
        old = json.loads(file.read_text())
        origins = tuple(old["origin"].split(", "))
        members_of[old["weights"][:16]] = origins
        kind = "single"
        if len(origins) > 1:
            [kind] = {e.evaluation.kind for e in evaluations if names(e) == origins}
        settings, network = old.pop("settings"), None
        network = dict(settings["network"])
        head = network.pop("head")
        runs = [trainings[name].training for name in origins]
        recipe = {"name": runs[-1].recipe, **settings["recipe"]}
        # the numbers of the record are those that the study's settings give
        expected = runs[-1].numbers((network["in_channels"], 28 if old["id"] == "fashion-mnist" else 32, 32)).to_json()
        differs = {k for k in settings["recipe"] if expected.get(k) != settings["recipe"][k]}
        assert differs <= {"crop", "flip", "gamma", "max_norm", "milestones"}, (old["label"], differs)
        assert short_name(network) == runs[-1].architecture
        assert head["name"] == runs[-1].head
        fields = {
            "architecture": short_name(network),
            "head": head,
            "recipe": recipe,
            "data": {"name": old["id"]},
            "kind": kind,
            "members": list(origins) if kind != "single" else [],
            "settings": {
                "network": network,
                "loss": settings.get("loss", "cross_entropy"),
                "precision": runs[-1].precision,
            },
            "versions": versions[old["weights"][:16]],
        }
        described[old["weights"][:16]] = fields
        commands = [["offaxis", *trainings[name].words] for name in origins]
        origin = ", ".join(origins)
        write_text(file, json.dumps({**fields, **old, "origin": origin, "commands": commands}, indent=1) + "\n")
    unknown = 0
    with replacing(STORE / "results" / "all.jsonl.gz") as temporary, gzip.GzipFile(temporary, "wb", mtime=0) as out:
        for r in results:
            words = command_of(r, members_of[r["weights"]], described[r["weights"]]["kind"], evaluations)
            unknown += not words
            out.write(json.dumps({**described[r["weights"]], **r, "command": words}).encode() + b"\n")
    write_text(STORE / "store.json", json.dumps({"format": "offaxis-results", "version": 2}) + "\n")
    print(f"{len(described)} networks, {len(results)} results, {unknown} without a command")


def names(command: EvaluateCommand) -> tuple[str, ...]:
    """Return the names of the networks that a command evaluates."""
    return tuple(Path(network).name for network in command.evaluation.networks)


def command_of(r: dict[str, Any], origins: tuple[str, ...], kind: str, evaluations: list[EvaluateCommand]) -> list[str]:
    """Return the words of the first of the study's commands that makes a result."""
    for command in evaluations:
        e = command.evaluation
        whole = e.images is None
        fits = names(command) == origins and e.kind == kind and r["ood"] in e.ood and r["detector"] in e.detectors
        if not fits or whole != (r["ood"] == "letters"):
            continue
        if r["assumed"] is None or (e.tune and (e.protocol == "both" or (r["assumed"] == r["ood"]))):
            return ["offaxis", *command.words]
    return []


if __name__ == "__main__":
    main()
