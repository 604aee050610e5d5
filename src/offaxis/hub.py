"""Bundles on the Hugging Face Hub: push a model with its card, and fetch the bundle of ``hf:name/repo``."""

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offaxis.data.transforms import Preprocessing
from offaxis.errors import ArgumentError, BundleError, MissingPackageError, OffaxisError, StorageError
from offaxis.files import write_text
from offaxis.networks.saved import describe, must_be_given

if TYPE_CHECKING:
    from offaxis.model import Model

PREFIX = "hf:"


def push_to_hub(
    model: "Model",
    repo: str,
    *,
    results: Any = None,
    accuracy: float | None = None,
    private: bool = False,
    token: str | None = None,
) -> str:
    """Upload the bundle and a model card to the Hugging Face Hub; ``offaxis.load("hf:name/repo")`` reads it.

    The card tells classes, accuracy, calibration, thresholds, AUROC on OOD sets, how the model was made and how to use it.

    Args:
        model: the calibrated model.
        repo: ``"name/repo"``; it is created where it does not exist.
        results: of ``offaxis.evaluate``, for the accuracy and the table of OOD sets.
        accuracy: on ID test images, in [0, 1], where there are no results.
        private: whether a new repository is private.
        token: of the hub; None takes that of ``hf auth login`` or HF_TOKEN.

    Returns:
        The address of the repository.

    Raises:
        StorageError: the hub cannot be reached, or refuses the upload.
        MissingPackageError: huggingface_hub is not installed.
    """
    api = _hub().HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "bundle"
        model.save(folder, folder=True)
        write_text(folder / "README.md", model_card(model, repo, results=results, accuracy=accuracy))
        with _hub_errors(StorageError, f"{repo} could not be uploaded"):
            created = api.create_repo(repo, private=private or None, exist_ok=True)
            api.upload_folder(repo_id=created.repo_id, folder_path=folder, commit_message="Upload a calibrated model")
    return str(created)


def download(source: str, names: Sequence[str]) -> Path:
    """Download files of ``hf:name/repo`` or ``hf:name/repo@revision`` into the cache of the hub; return their folder.

    Raises:
        BundleError: there is no such repository or revision, it has no file of the first name, or it cannot be reached.
        MissingPackageError: huggingface_hub is not installed.
    """
    repo, _, revision = source.removeprefix(PREFIX).partition("@")
    if repo.count("/") > 1 or not repo.strip("/"):
        raise BundleError(f"Expected hf:name/repo, perhaps with @revision, but got {source!r}.")
    fetch, endpoint = _hub().snapshot_download, os.environ.get("HF_ENDPOINT")
    with _hub_errors(BundleError, f"{source} could not be downloaded"):
        folder = Path(fetch(repo, revision=revision or None, allow_patterns=list(names), endpoint=endpoint))
    if not (folder / names[0]).exists():
        raise BundleError(
            f"Expected a bundle of offaxis in {source} but it has no {names[0]}: model.push_to_hub makes one."
        )
    return folder


def model_card(model: "Model", repo: str, *, results: Any = None, accuracy: float | None = None) -> str:
    """Return the model card: classes, accuracy, calibration, thresholds, OOD table and how to use it, in Markdown."""
    if accuracy is None and results is not None and results.networks:
        accuracy = float(results.networks[0].accuracy)
    if accuracy is not None and not 0 <= accuracy <= 1:
        raise ArgumentError(f"Expected `accuracy` as a share from 0 to 1 but got {accuracy!r}.")
    own, calibration = model.calibration.accuracy, model.calibration
    measured = "Not measured." if own is None else f"{own:.2%} of the {len(calibration.scores):,} calibration images."
    if accuracy is not None:
        measured = f"{accuracy:.2%} of the in-distribution test images or rows."
    images = isinstance(model.preprocessing, Preprocessing)
    about = _hub().ModelCardData(
        library_name="offaxis",
        tags=["out-of-distribution-detection", "conformal-prediction"],
        pipeline_tag="image-classification" if images else None,
    )
    given = must_be_given(describe(model.network))
    sections = [
        f"---\n{about.to_yaml()}\n---",
        f"# {repo.rpartition('/')[2]}",
        "A classifier that says when it was not trained for its input: each prediction comes with a calibrated p-value "
        f"(detector `{model.detector.name}`). Made with [offaxis](https://arxiv.org/abs/1905.10628).",
        "## How to use",
        "```python\nimport offaxis\n"
        + ("\nmodule = ...  # the network that was trained: its weights are here, not its code" if given else "")
        + f'\nmodel = offaxis.load("{PREFIX}{repo}"{", network=module" if given else ""})\n'
        + (
            'prediction = model.predict("photo.jpg")[0]'
            if images
            else "prediction = model.predict(rows)[0]  # features (N, d)"
        )
        + "\nprint(prediction.class_name, prediction.p_value, prediction.verdict)\n```",
        "## Classes",
        f"{len(model.classes)}: " + ", ".join(f"`{name}`" for name in model.classes),
        "## Accuracy",
        measured,
        "## Calibration",
        _calibration_lines(model),
        *(
            []
            if model.expectation is None
            else ["## What to expect", "\n".join(f"- {said}" for said in model.expectation["sentences"])]
        ),
        "## Out-of-distribution sets",
        "Not measured." if results is None else "AUROC in percent, by detector:\n\n" + results.table(),
        "## How it was made",
        "```json\n" + json.dumps(model.provenance, indent=1) + "\n```",
    ]
    return "\n\n".join(sections) + "\n"


def _calibration_lines(model: "Model") -> str:
    calibration = model.calibration
    unsure = "" if model.overlap_checked else " (as its maker says: they were not compared with those of training)"
    lines = [f"- calibrated on: {len(calibration.scores):,} inputs that it was not trained on{unsure}"]
    lines += [f"- {name}: {value}" for name, value in calibration.facts().items() if value]
    if not calibration.per_class:
        return "\n".join([*lines, f"- flagged above a score of: {calibration.threshold():.6g}"])
    lines += ["", "| class | flagged above a score of |", "| --- | ---: |"]
    limits = ("too few images" if limit is None else f"{limit:.4g}" for limit in calibration.class_thresholds())
    return "\n".join([*lines, *(f"| {name} | {limit} |" for name, limit in zip(model.classes, limits, strict=True))])


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingPackageError(
            "The Hugging Face Hub needs huggingface_hub, which is not installed: pip install 'offaxis[hub]'."
        ) from error
    return huggingface_hub


@contextmanager
def _hub_errors(kind: type[OffaxisError], what: str) -> Iterator[None]:
    """Turn errors of the hub, and of the way to it, into one of ours, with what to do."""
    try:
        yield
    except Exception as error:  # of its own, of the HTTP library that its version uses, and of the system
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise kind(f"{what} ({reason}): check its name, the network and the token (hf auth login).") from error
