"""Make the small copy of the results that is kept with the project: ``python -m study.archive``."""

import shutil

from offaxis.evaluation import Store
from offaxis.evaluation.store import archive_store
from study.steps import KEPT, WORK

IMAGES = 800
"""Test images of each set whose scores are kept: all of them."""


def main() -> None:
    """Replace the copy by one of what there is now."""
    made = WORK / "copy"
    shutil.rmtree(made, ignore_errors=True)
    archive_store(Store.existing(WORK / "results"), made, IMAGES)
    shutil.rmtree(KEPT / "results", ignore_errors=True)
    made.rename(KEPT / "results")


if __name__ == "__main__":
    main()
