"""A service in a thread, on a real socket."""

import io
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import uvicorn
from PIL import Image

from offaxis import Model
from offaxis.data import ImageSet
from offaxis.server.body import Limits
from offaxis.server.run import make_server


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(
    model: Model, limits: Limits | None = None, token: str | None = None
) -> Iterator[tuple[str, uvicorn.Server]]:
    """(address, server) while the block lasts."""
    port = free_port()
    server = make_server(model, port=port, limits=limits, token=token)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.started
    try:
        yield f"http://127.0.0.1:{port}", server
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def png(images: ImageSet, number: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.asarray(images.batch(torch.tensor([number])))[0, 0]).save(out, "PNG")
    return out.getvalue()
