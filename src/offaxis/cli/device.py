"""The option ``--device`` of every command that has it."""

from typing import Annotated

import torch
import typer

from offaxis.errors import ArgumentError

Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ... or mps.")]


def usable(device: str) -> str:
    """The device, once a number has been there and back.

    Raises:
        ArgumentError: PyTorch knows no such device or cannot use it here; the message names those that it can.
    """
    try:
        torch.zeros(1, device=device).item()
    except (
        RuntimeError,
        AssertionError,
        ImportError,
    ):  # by whether PyTorch knows it, was built for it, or has a plug-in
        raise ArgumentError(
            f"Expected --device to be one that PyTorch can use here ({', '.join(devices())}) but got {device!r}."
        ) from None
    return device


def devices() -> list[str]:
    """The devices that there are, such as cpu, cuda:0 and cuda:1."""
    found = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    return [*found, "mps"] if torch.backends.mps.is_available() else found
