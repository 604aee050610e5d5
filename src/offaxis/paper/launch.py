"""The trainings and evaluations of a reproduction as a graph: several processes here or on a Ray cluster, or a SLURM array."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from offaxis.errors import MissingPackageError, RunError
from offaxis.files import write_text
from offaxis.paper.commands import Command, Note, TrainCommand

Submit = Callable[[Command, str], "Future[int]"]
"""Start a command on a device; the exit code is to come."""


def run_graph(steps: Sequence[Command], submit: Submit, devices: Sequence[str], note: Note) -> None:
    """Run commands side by side, each as soon as the networks that it needs are trained.

    Args:
        steps: the commands that are left to run.
        submit: starts one.
        devices: where commands run, one at a time on each entry.
        note: called with a sentence for each command that ends.

    Raises:
        RunError: commands failed; those that do not need them have run, and the next call goes on with the others.
    """
    made = {step.record: step.name for step in steps if isinstance(step, TrainCommand)}
    waiting = {step.name: (step, {made[path] for path in step.needs if path in made}) for step in steps}
    running: dict[Future[int], tuple[Command, str]] = {}
    failed: dict[str, None] = {}
    free = list(devices)
    while waiting or running:
        for name, (step, needed) in list(waiting.items()):
            if needed & failed.keys():
                failed[name] = None
                del waiting[name]
            elif free and not needed:
                device = free.pop(0)
                running[submit(step, device)] = (step, device)
                del waiting[name]
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            step, device = running.pop(future)
            free.append(device)
            if future.result() == 0:
                step.mark()
                for _, needed in waiting.values():
                    needed.discard(step.name)
            else:
                failed[step.name] = None
            left = len(waiting) + len(running)
            note(f"{'failed' if step.name in failed else 'done'} ({left} left): {step.command}")
    if failed:
        raise RunError(
            f"{len(failed)} of {len(steps)} commands failed, or need one that did: {', '.join(failed)}. See the file of that "
            "name in the folder logs, and call again: what is done is not repeated."
        )


def run_words(words: Sequence[str], log: Path, folder: Path) -> int:
    """Run ``offaxis`` with these words in a process of its own and return its exit code; what it prints goes to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        command = [sys.executable, "-m", "offaxis", *words]
        return subprocess.run(command, stdout=output, stderr=output, cwd=folder, check=False).returncode


def run_launched(steps: Sequence[Command], devices: Sequence[str], logs: Path, *, ray: bool, note: Note) -> None:
    """Run commands on devices of this machine, or on the Ray cluster of ``RAY_ADDRESS``, else one that is started here.

    Args:
        steps: the commands that are left to run.
        devices: where they run, one at a time on each entry; empty for as many as the cluster has processors or GPUs.
        logs: the folder for what they print.
        ray: whether Ray runs them; all its machines must share the folders.
        note: called with a sentence for each command that ends.
    """
    if not ray:
        with ThreadPoolExecutor(len(devices)) as pool:
            run_graph(steps, lambda s, d: pool.submit(run_words, s.argv(d), logs / s.name, Path.cwd()), devices, note)
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage reports
    try:
        import ray as cluster
    except ImportError as error:
        raise MissingPackageError(
            "--launcher ray needs Ray, which is not installed: pip install 'offaxis[scale]'."
        ) from error
    started = not cluster.is_initialized()
    if started:
        cluster.init(include_dashboard=False, log_to_driver=False)
    try:
        resources = cluster.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        remote = cluster.remote(run_words).options(num_cpus=1, num_gpus=min(gpus, 1))

        def submit(step: Command, device: str) -> "Future[int]":
            future: Future[int] = remote.remote(step.argv(device), logs.resolve() / step.name, Path.cwd()).future()
            return future

        run_graph(steps, submit, devices or ["auto"] * (gpus or int(resources["CPU"])), note)
    finally:
        if started:
            cluster.shutdown()


def write_slurm(steps: Sequence[Command], folder: Path) -> Path:
    """Write lists of commands, a job that runs one line, and the script that submits trainings, then evaluations.

    Returns:
        The script: ``bash submit.sh --gpus=1 --time=24:00:00`` passes its words to each ``sbatch``.
    """
    submit = ["#!/bin/bash", "# usage: bash submit.sh [OPTIONS OF SBATCH]", "set -e", 'cd "$(dirname "$0")"', "after="]
    for name, training in (("trainings", True), ("evaluations", False)):
        own = [step for step in steps if isinstance(step, TrainCommand) is training]
        lines = [step.command if training else f"{step.command} && {_marking(step)}" for step in own]
        write_text(folder / f"{name}.txt", "".join(line + "\n" for line in lines))
        if own:
            submit.append(f'job=$(sbatch --parsable --array=1-{len(own)} $after "$@" job.sh {name}.txt)')
            submit.append("after=--dependency=afterany:$job")
    job = f"""#!/bin/bash
line=$(sed -n "${{SLURM_ARRAY_TASK_ID}}p" "$1")
cd {shlex.quote(str(Path.cwd()))}
eval "$line"
"""
    write_text(folder / "job.sh", job)
    write_text(folder / "submit.sh", "\n".join(submit) + "\n")
    return folder / "submit.sh"


def _marking(step: Command) -> str:
    record = shlex.quote(str(step.record))
    return f"mkdir -p {shlex.quote(str(step.record.parent))} && touch {record}"
