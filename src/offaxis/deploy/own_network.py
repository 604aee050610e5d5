"""A network of one's own for a bundle that holds its weights alone."""

import importlib
import sys
from pathlib import Path

from torch import nn

from offaxis.errors import ArgumentError


def made_by(reference: str | None) -> nn.Module | None:
    """What the function ``module:function`` returns; None for None. Only what a user typed is imported, never a bundle's word.

    Raises:
        ArgumentError: there is no such function, or it gives no network.
    """
    if reference is None:
        return None
    module, _, function = reference.partition(":")
    if not module or not function:
        raise ArgumentError(f"Expected --network module:function but got {reference!r}.")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        made = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise ArgumentError(f"--network {reference} cannot be found ({error}).") from error
    if not isinstance(made, nn.Module):
        raise ArgumentError(
            f"Expected {reference} to return a Classifier, a Paired or an Ensemble but got a {type(made).__name__}."
        )
    return made
