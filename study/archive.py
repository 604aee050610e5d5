"""Make the small copy of the results that is kept with the project: ``python -m study.archive``."""

import shutil

from offaxis.evaluation import Store
from offaxis.evaluation.store import archive_store
from study.steps import KEPT, WORK

IMAGES = 800
"""Test images of each set whose scores are kept: all of them."""


def main() -> None:
    """Replace the copy by one of the present results."""
    copy = WORK / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    archive_store(Store.existing(WORK / "results"), copy, IMAGES)
    shutil.rmtree(KEPT / "results", ignore_errors=True)
    copy.rename(KEPT / "results")


if __name__ == "__main__":
    main()
