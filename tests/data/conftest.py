"""Tiny sets in the publishers' own formats, and a real HTTP server."""

import io
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from PIL import Image

from tests.data.support import Pixels, Png, Publish, Save, Site, old_pickle, publish_set, random_images, save_image


@pytest.fixture(scope="session")
def publish() -> Publish:
    """(folder, entry, layout, split) -> a tiny set, written as its publisher lays it out."""

    return publish_set


@pytest.fixture(scope="session")
def pickle_of() -> Callable[[Pixels, str, list[int]], bytes]:
    return old_pickle


@pytest.fixture(scope="session")
def save() -> Save:
    return save_image


@pytest.fixture(scope="session")
def png() -> Png:
    def encode(image: Pixels) -> bytes:
        file = io.BytesIO()
        Image.fromarray(image.transpose(1, 2, 0)).save(file, format="PNG")
        return file.getvalue()

    return encode


@pytest.fixture
def site() -> Iterator[Site]:
    state = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range", "")
            state.requests.append((self.path, wanted))
            if self.path not in state.files:
                self.send_error(404)
                return
            content, start = state.files[self.path], 0
            if wanted and state.ranges:
                start = int(wanted.removeprefix("bytes=").split("-")[0])
                if start >= len(content):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(content)}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            else:
                self.send_response(200)
            if state.lengths:
                self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            cut = state.cuts[self.path].pop(0) if state.cuts.get(self.path) else None
            self.wfile.write(content[start:][:cut])
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def by_class(tmp_path: Path, save: Save) -> Path:
    """Twelve images of three classes, a folder for each."""
    images = random_images(12, 3, 8, 8)
    for number, image in enumerate(images):
        save(tmp_path / "photos" / ["cat", "dog", "eel"][number // 4] / f"{number:02d}.png", image)
    return tmp_path / "photos"
