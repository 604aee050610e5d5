"""The record of a run of offaxis 0.2.0, read as one of this version: it goes when such runs are read no more."""

from typing import Any

from offaxis.heads import complete_description
from offaxis.options import TrainOptions

VERSION, CHECKPOINT = 2, "offaxis-checkpoint-2"
"""Of run.json, and the format of checkpoints; neither these files nor the others have checksums."""


def complete(record: dict[str, Any]) -> dict[str, Any]:
    """Return what run.json holds with what it left out: the start of a cosine head, and options beside the command."""
    settings, words = dict(record["settings"]), list(record.get("command") or ())
    settings = {"frozen": False, **settings, "head": complete_description(settings["head"])}
    network = settings["network"]
    if network is not None and "name" in network:  # one of offaxis.networks
        settings["network"] = {**network, "head": complete_description(network["head"])}
    options = TrainOptions.from_words(words[2:]).record() if words[1:2] == ["train"] else None
    return {**record, "options": options, "settings": settings}
