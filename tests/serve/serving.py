"""A service in a thread, on a real socket."""

import io
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from offaxis import Model, Prediction
from offaxis.data import ImageSet
from offaxis.options import ServeOptions
from offaxis.serve.app import TokenFile
from offaxis.serve.queue import Limits
from offaxis.serve.server import Server, make_server, serve
from tests.waiting import free_port


@contextmanager
def running(
    model: Model | Mapping[str, Model],
    limits: Limits | None = None,
    token: str | TokenFile | None = None,
    **options: Any,
) -> Iterator[tuple[str, Server]]:
    """(address, server) while the block lasts."""
    port = free_port()
    server = make_server(
        model,
        ServeOptions(
            port=port, **{key: options.pop(key) for key in ("level", "allowed_host", "on_alarm") if key in options}
        ),
        limits=limits,
        token=token,
        **options,
    )
    started = threading.Event()
    thread = threading.Thread(target=serve, args=(server, lambda _: started.set()), daemon=True)
    thread.start()
    assert started.wait(20)
    try:
        yield f"http://127.0.0.1:{port}", server
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def altered(model: Model, given: Callable[[Tensor], list[Prediction]]) -> Model:
    """The model with another way to predict a batch of pixels."""

    class Altered(Model):
        def predict_batch(self, pixels: Tensor) -> list[Prediction]:
            return given(pixels)

    return Altered(**{name: getattr(model, name) for name in model.__dataclass_fields__})


def png(images: ImageSet, number: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.asarray(images.batch(torch.tensor([number])))[0, 0]).save(out, "PNG")
    return out.getvalue()
