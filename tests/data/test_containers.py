"""Films, Parquet tables, WebDataset tars and buckets: each image of them, one at a time, or the reason why not."""

import io
import json
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import numpy as np
import pytest
from PIL import Image

from offaxis.data.containers import film_frames, images_in, parquet_images, walk
from offaxis.data.decode import decode
from offaxis.errors import ArgumentError, DataError


def _png(value: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 6), (value, 0, 0)).save(out, "PNG")
    return out.getvalue()


def _tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as pack:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            pack.addfile(info, io.BytesIO(data))
    return path


def _film(path: Path, count: int = 50, rate: int = 10) -> Path:
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as film:
        stream = film.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(count):
            pixels = np.zeros((48, 64, 3), np.uint8)
            pixels[:24] = number * 255 // count
            film.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        film.mux(stream.encode())
    return path


@pytest.mark.thirdparty
@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".avi"])
def test_a_film_gives_a_frame_a_second_with_its_time(tmp_path: Path, suffix: str) -> None:
    film = _film(tmp_path / f"film{suffix}")
    found = list(film_frames(film))
    assert [round(seconds, 3) for seconds, _ in found] == pytest.approx([0, 1, 2, 3, 4], abs=0.11)
    assert [int(pixels[:20].mean()) for _, pixels in found] == pytest.approx([0, 51, 102, 153, 204], abs=8)
    assert [pixels.shape for _, pixels in found] == [(48, 64, 3)] * 5
    assert len(list(film_frames(film, 0.5))) == 10
    assert [source.name for source in images_in(str(film), 2)] == [f"{film}::{second}.00s" for second in (0, 2, 4)]
    with pytest.raises(ArgumentError, match="every"):
        next(film_frames(film, 0))


@pytest.mark.thirdparty
def test_frames_of_a_telephone_are_upright(tmp_path: Path) -> None:
    film = _film(tmp_path / "film.mp4", 3)
    unity = np.array([0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000], ">i4").tobytes()
    turned = np.array([0, 0x10000, 0, -0x10000, 0, 0, 0, 0, 0x40000000], ">i4").tobytes()  # as held upright: clockwise
    before, after = film.read_bytes().rsplit(unity, 1)
    film.write_bytes(before + turned + after)
    pixels = list(film_frames(film, 0.1))[-1][1]
    assert pixels.shape == (64, 48, 3)
    assert pixels[:, 30:].mean() > pixels[:, :20].mean() + 50  # what was above is on the right


@pytest.mark.thirdparty
def test_a_film_that_is_damaged_or_a_list_of_other_files_is_one_row_with_the_reason(tmp_path: Path) -> None:
    secret = _film(tmp_path / "secret.mp4")
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{secret}\n#EXT-X-ENDLIST\n"
    for name, data in {"list": playlist.encode(), "none": b"no film" * 99, "cut": secret.read_bytes()[:700]}.items():
        film = tmp_path / f"{name}.mp4"
        film.write_bytes(data)
        [row] = images_in(str(film))
        assert row.source is None
        assert f"{film} is no film, or is damaged" in str(row.reason)


def test_images_of_a_webdataset_come_without_rows_for_their_metadata(tmp_path: Path) -> None:
    files = {
        "a/1.cls": b"3",
        "a/1.jpg": _png(1),
        "a/1.json": b"{}",
        "a/2.png": _png(2),
        "a/2.txt": b"cat",
        "b.txt": b"?",
    }
    shard = _tar(tmp_path / "shard.tar", files)
    assert [source.name for source in images_in(str(shard))] == [
        f"{shard}::{name}" for name in ("a/1.jpg", "a/2.png", "b.txt")
    ]


def test_files_of_one_name_are_not_collected_without_bound(tmp_path: Path) -> None:
    shard = _tar(tmp_path / "scans.tar", {f"scan.{number}": _png(1) for number in range(200)})
    assert len(list(images_in(str(shard)))) == 200


def test_parquet_tables_give_the_bytes_of_their_images(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    images = [_png(number) for number in range(40)]
    tables = {
        "plain": {"image": images, "label": list(range(40)), "mask": images},
        "hugging-face": {"photo": [{"bytes": data, "path": "x.png"} for data in images]},
        "only": {"x": images},
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet", row_group_size=7)
        assert list(parquet_images(tmp_path / f"{name}.parquet")) == images
    pq.write_table(pa.table({"x": images, "y": images}), tmp_path / "two.parquet")
    with pytest.raises(DataError, match=r"two.parquet has x, y: rename"):
        list(parquet_images(tmp_path / "two.parquet"))
    pq.write_table(pa.table({"image": [images[0], None]}), tmp_path / "gap.parquet")
    assert [row.reason for row in images_in(str(tmp_path / "gap.parquet"))] == [None, "the row has no image"]
    (tmp_path / "bad.parquet").write_bytes(b"PAR1" + bytes(99))
    [row] = images_in(str(tmp_path / "bad.parquet"))
    assert "bad.parquet is no Parquet table, or is damaged" in str(row.reason)


class _Bucket(BaseHTTPRequestHandler):
    """What S3 answers to a listing, a HEAD and a GET, for one bucket in memory."""

    files: dict[str, bytes]

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        key, query = unquote(place.path).removeprefix("/photos").lstrip("/"), parse_qs(place.query)
        if not key:
            prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
            rests = {
                name: name[len(prefix) :].partition(delimiter)[::2] if delimiter else ("", "") for name in self.files
            }
            inside = {name: rest for name, rest in rests.items() if name.startswith(prefix)}
            files = [n for n in sorted(inside) if not delimiter or delimiter not in n[len(prefix) :]]
            folders = sorted({f"{prefix}{top}{delimiter}" for n, (top, _) in inside.items() if n not in files})
            about = "<ETag>x</ETag><LastModified>2026-01-01T00:00:00Z</LastModified>"
            sizes = {escape(name): len(self.files[name]) for name in files}
            listed = "".join(f"<Contents><Key>{n}</Key><Size>{s}</Size>{about}</Contents>" for n, s in sizes.items())
            listed += "".join(f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in folders)
            return self._answer(
                200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>".encode()
            )
        if key not in self.files:
            return self._answer(404, b"")
        data, span = self.files[key], self.headers.get("Range")
        if span is None:
            return self._answer(200, data)
        first, _, last = span.removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1 if last else None]
        return self._answer(206, part, f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, status: int, body: bytes, span: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Accept-Ranges", "bytes")
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    shard = _tar(tmp_path / "shard.tar", {"0.png": _png(5), "0.json": json.dumps({}).encode()})
    files = {
        "cats/1.png": _png(1),
        "cats/old/2.png": _png(2),
        "cats/.hidden/3.png": _png(3),
        "s.tar": shard.read_bytes(),
    }
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Photos", (_Bucket,), {"files": files})) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name, value in {"ENDPOINT_URL": address, "ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "x"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield address
        server.shutdown()


@pytest.mark.thirdparty
def test_buckets_are_walked_and_read_as_folders_are(bucket: str) -> None:
    pytest.importorskip("s3fs")
    assert list(walk("s3://photos/cats")) == ["s3://photos/cats/1.png", "s3://photos/cats/old/2.png"]
    assert list(walk("s3://photos/cats/1.png")) == ["s3://photos/cats/1.png"]
    assert decode("s3://photos/cats/old/2.png").getpixel((0, 0)) == (2, 0, 0)
    [row] = images_in("s3://photos/s.tar")
    assert (row.name, row.source) == ("s3://photos/s.tar::0.png", _png(5))
    with pytest.raises(DataError, match=r"s3://photos/no\.png cannot be read"):
        decode("s3://photos/no.png")
    with pytest.raises(DataError, match=r"s3://photos/none cannot be read"):  # an empty list would be no mistake
        list(walk("s3://photos/none"))


@pytest.mark.thirdparty
def test_web_addresses_are_read(bucket: str) -> None:
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    assert list(walk(f"{bucket}/photos/cats/1.png")) == [f"{bucket}/photos/cats/1.png"]
    assert decode(f"{bucket}/photos/cats/1.png").size == (8, 6)
    [row] = images_in(f"{bucket}/photos/s.tar")
    assert row.source == _png(5)
    with pytest.raises(DataError, match="no.png cannot be read"):
        decode(f"{bucket}/photos/no.png")
