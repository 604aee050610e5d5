"""Bundles on the Hugging Face Hub: push a model with its card, and fetch the bundle of ``hf:name/repo``."""

import importlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from offaxis.data.transforms import Preprocessing
from offaxis.errors import ArgumentError, BundleError, MissingPackageError, StorageError
from offaxis.files import write_text
from offaxis.networks.describe import describe, must_be_given

if TYPE_CHECKING:
    from offaxis.model import Model

PREFIX = "hf:"


class EvaluationTable(Protocol):
    """What the model card takes of an evaluation; ``offaxis.Results`` is one."""

    @property
    def networks(self) -> Any:
        """Return the evaluated networks, with their accuracy on the ID test images."""

    def table(self, metric: str = "auroc") -> str:
        """Return a Markdown table of a metric by detector and OOD set."""


def push(
    model: "Model",
    repo: str,
    *,
    results: EvaluationTable | None = None,
    accuracy: float | None = None,
    private: bool = False,
    token: str | None = None,
    message: str = "Upload a calibrated model",
) -> str:
    """Upload the files of a bundle and a model card; see :meth:`offaxis.Model.push_to_hub`."""
    api = _hub().HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "bundle"
        model.save(folder, folder=True)
        write_text(folder / "README.md", model_card(model, repo, results=results, accuracy=accuracy))
        with _hub_errors(StorageError, f"{repo} could not be uploaded"):
            created = api.create_repo(repo, private=private or None, exist_ok=True)
            api.upload_folder(repo_id=created.repo_id, folder_path=folder, commit_message=message)
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
    with _hub_errors(BundleError, f"{source} could not be downloaded"):
        folder = _hub().snapshot_download(
            repo,
            revision=revision or None,
            allow_patterns=list(names),
            endpoint=os.environ.get("HF_ENDPOINT"),
        )
    if not (Path(folder) / names[0]).exists():
        raise BundleError(
            f"Expected a bundle of offaxis in {source} but it has no {names[0]}: model.push_to_hub makes one."
        )
    return Path(folder)


def model_card(
    model: "Model", repo: str, *, results: EvaluationTable | None = None, accuracy: float | None = None
) -> str:
    """Return the model card: classes, accuracy, calibration, thresholds, OOD table and how to use it, in Markdown."""
    if accuracy is None and results is not None and results.networks:
        accuracy = float(results.networks[0].accuracy)
    if accuracy is not None and not 0 <= accuracy <= 1:
        raise ArgumentError(f"Expected `accuracy` as a share from 0 to 1 but got {accuracy!r}.")
    images = isinstance(model.preprocessing, Preprocessing)
    sections = [
        _front_matter(images),
        f"# {repo.rpartition('/')[2]}",
        "A classifier that says when it was not trained for its input: each prediction comes with a calibrated p-value "
        f"(detector `{model.detector.name}`). Made with [offaxis](https://arxiv.org/abs/1905.10628).",
        "## How to use",
        _usage(repo, images, given=must_be_given(describe(model.network))),
        "## Classes",
        f"{len(model.classes)}: " + ", ".join(f"`{name}`" for name in model.classes),
        "## Accuracy",
        _accuracy(model, accuracy),
        "## Calibration",
        _calibration(model),
        "## Out-of-distribution sets",
        "Not measured." if results is None else "AUROC in percent, by detector:\n\n" + results.table(),
        "## How it was made",
        "```json\n" + json.dumps(model.provenance, indent=1) + "\n```",
    ]
    return "\n\n".join(sections) + "\n"


def _front_matter(images: bool) -> str:
    tags = ["out-of-distribution-detection", "conformal-prediction"]
    lines = ["---", "library_name: offaxis", "tags:", *(f"- {tag}" for tag in tags)]
    return "\n".join([*lines, *(["pipeline_tag: image-classification"] if images else []), "---"])


def _accuracy(model: "Model", accuracy: float | None) -> str:
    """Return the accuracy on test images, else that on labelled calibration images."""
    own = model.calibration.accuracy
    if accuracy is not None:
        return f"{accuracy:.2%} of the in-distribution test images or rows."
    return "Not measured." if own is None else f"{own:.2%} of the {len(model.calibration.scores):,} calibration images."


def _usage(repo: str, images: bool, given: bool) -> str:
    network = ", network=module" if given else ""
    lines = [
        "```python",
        "import offaxis",
        "",
        *(["module = ...  # the network that was trained: its weights are in this repository, not its code"] * given),
        f'model = offaxis.load("{PREFIX}{repo}"{network})',
        'prediction = model.predict("photo.jpg")[0]'
        if images
        else "prediction = model.predict(rows)[0]  # features (N, d)",
        "print(prediction.class_name, prediction.p_value, prediction.verdict)",
        "```",
    ]
    return "\n".join(lines)


def _calibration(model: "Model") -> str:
    calibration = model.calibration
    what = "images" if isinstance(model.preprocessing, Preprocessing) else "rows"
    lines = [
        f"- level alpha: {calibration.alpha:g}{', for each predicted class' if calibration.per_class else ''}",
        f"- calibrated on {len(calibration.scores):,} in-distribution {what} that it was not trained on"
        f"{'' if model.overlap_checked else f' (as its maker says: they were not compared with the {what} of training)'}",
    ]
    if calibration.confidence is not None:
        lines.append(
            f"- with a probability of {calibration.confidence:g} over calibration sets at most alpha are flagged"
        )
    if calibration.per_class:
        lines += ["", "| class | flagged above a score of |", "| --- | ---: |"]
        limits = zip(model.classes, calibration.class_thresholds(), strict=True)
        return "\n".join(
            [*lines, *(f"| {n} | {'too few images' if limit is None else f'{limit:.4g}'} |" for n, limit in limits)]
        )
    rate = calibration.flag_rate()
    lines += [
        f"- flagged above a score of {calibration.threshold():.6g}",
        f"- share of new in-distribution {what} that is flagged in the long run: {rate.mean:.2%} (nine of ten calibration sets "
        f"of this size give {rate.low:.2%} to {rate.high:.2%})",
    ]
    return "\n".join(lines)


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingPackageError(
            "The Hugging Face Hub needs huggingface_hub, which is not installed: pip install 'offaxis[hub]'."
        ) from error
    return huggingface_hub


@contextmanager
def _hub_errors(kind: type[BundleError] | type[StorageError], what: str) -> Iterator[None]:
    """Turn errors of the hub, and of the way to it, into one of ours, with what to do."""
    _hub()
    errors: Any = importlib.import_module("huggingface_hub.errors")
    of_http = errors.HfHubHTTPError.__bases__[0]  # of the client that this version of the package uses
    try:
        yield
    except errors.RepositoryNotFoundError as error:
        raise kind(
            f"{what}: there is no such repository, or it is private: check its name, or log in (hf auth login)."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise kind(f"{what}: the repository has no such revision.") from error
    except (of_http, errors.LocalEntryNotFoundError, errors.HFValidationError, OSError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise kind(f"{what} ({reason}): check its name, the network and the token (hf auth login).") from error
