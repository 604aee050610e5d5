"""The same work on Ray Data: units are spread over workers, each with its own copy of the model; rows keep their order."""

import json
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from offaxis.deploy.bundle import read
from offaxis.deploy.scoring.engine import score_units
from offaxis.deploy.scoring.rows import Row
from offaxis.deploy.scoring.sources import Unit
from offaxis.errors import MissingPackageError


class Scorer:
    """What a worker of Ray holds: the model, read once."""

    def __init__(self, bundle: str, batch: int) -> None:
        import torch

        torch.set_num_threads(1)  # a worker has one core
        self.model = read(bundle)
        self.batch = batch

    def __call__(self, record: dict[str, Any]) -> list[dict[str, str]]:
        """A unit as JSON -> its rows as JSON: columns that are empty in one block and numbers in the next confuse Arrow."""
        said = json.loads(record["unit"])
        unit = Unit(tuple(said["paths"]), said["archive"])
        found = score_units(self.model, [unit], self.batch, workers=1)
        return [{"row": json.dumps(row)} for rows in found for row in rows]


def score_with_ray(bundle: Path, work: Iterable[Unit], batch: int, workers: int | None = None) -> Iterator[list[Row]]:
    """As ``score_units``, on the Ray cluster of ``RAY_ADDRESS``, or on this machine where there is none.

    Bundle and images must lie where every worker can read them.

    Raises:
        MissingPackageError: Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise MissingPackageError(
            "--engine ray needs Ray, which is not installed: pip install 'offaxis[scale]'."
        ) from error
    started = not ray.is_initialized()
    if started:
        ray.init(include_dashboard=False, configure_logging=True, logging_level=logging.ERROR, log_to_driver=False)
    try:
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        units = [{"unit": json.dumps(asdict(unit))} for unit in work]
        if not units:
            return
        resources: dict[str, float] = ray.cluster_resources()
        size = workers or max(1, int(resources.get("CPU", 1)) - 1)
        records = ray.data.from_items(units, override_num_blocks=min(len(units), 4 * size)).flat_map(
            Scorer, fn_constructor_args=(str(bundle.resolve()), batch), compute=ray.data.ActorPoolStrategy(size=size)
        )
        for record in records.iter_rows():
            yield [json.loads(record["row"])]
    finally:
        if started:
            ray.shutdown()
