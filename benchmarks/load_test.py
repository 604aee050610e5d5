"""Throughput, latency and robustness of the service on this machine.

    python -m benchmarks.load_test               # about two minutes
    python -m benchmarks.load_test 10            # 64 clients for 10 seconds instead of a minute
    python -m benchmarks.load_test 60 FOLDER     # bundle and graph are kept there for the next time

1. Images a second: raw onnxruntime and eager PyTorch on pixels in memory, against the service, which also reads HTTP and
   decodes PNG files; the same batch size, one thread for the network each.
2. 64 clients at once, half of them sending broken, huge or slow requests: statuses, latency, memory, and whether every
   good request got the right prediction.

Prints each figure as soon as it is known and during 2. a line every few seconds to standard error, and all as JSON at the end.
Leaves with an error where a good request got a wrong answer or none, or any got another answer than 200, 4xx or 503.
"""

import http.client
import io
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import offaxis
from offaxis import Model, networks
from offaxis.data import TensorSet, load_images
from offaxis.onnx import export_onnx, output_names
from offaxis.training import laptop

BATCH = 32
CLIENTS = 64


def main(seconds: str = "60", keep: str = "") -> None:
    with tempfile.TemporaryDirectory() as room:
        folder = Path(keep or room)
        model, pictures = prepare(folder)
        result: dict[str, Any] = {"batch": BATCH, "image": "28x28 grey PNG", "network": "wrn-10-2-half"}
        result |= told(raw(model, folder / "x.onnx"))
        port = free_port()
        server = start(folder / "x.oax", port)
        try:
            result |= told(throughput(port, pictures))
            result["served_over_onnxruntime"] = result["served_images_a_second"] / result["onnxruntime_images_a_second"]
            result |= told({"one_client_one_image": latency(port, pictures)})
            expected = offaxis.load(folder / "x.oax").predict(pictures)
            result["storm"] = storm(port, server.pid, pictures, [p.class_name for p in expected], float(seconds))
        finally:
            server.terminate()
            server.wait(60)
        print(json.dumps(result, indent=2))
        if result["storm"]["not_as_expected"]:
            raise SystemExit("some requests were not answered as they should be: see not_as_expected")


def told(found: dict[str, Any]) -> dict[str, Any]:
    """Print figures to standard error and return them."""
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


def prepare(folder: Path) -> tuple[Model, list[bytes]]:
    """A trained model as bundle and graph, made where they are absent, and digits as PNG files."""
    training, unseen = load_images("digits", "train"), load_images("digits", "test")
    pictures = [png(unseen, number) for number in range(500, 700)]
    if (folder / "x.onnx").exists():
        return offaxis.load(folder / "x.oax"), pictures
    torch.manual_seed(0)
    network = networks.by_name("wrn-10-2-half")(num_classes=10, in_channels=1)
    trained = offaxis.train(network, training, laptop().replace(epochs=1, crop=2, flip=False), quiet=True)
    model = Model.calibrated(trained, unseen.subset(torch.arange(500)), used=[training])
    model.save(folder / "x.oax")
    export_onnx(model, folder / "x.onnx")
    return model, pictures


def png(images: Any, number: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.asarray(images.batch(torch.tensor([number])))[0, 0]).save(out, "PNG")
    return out.getvalue()


def raw(model: Model, graph: Path) -> dict[str, float]:
    import onnxruntime

    torch.set_num_threads(1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    pixels = TensorSet("x", torch.randint(0, 256, (BATCH, *model.preprocessing.shape), dtype=torch.uint8)).images
    wanted = output_names(model)
    return {
        "onnxruntime_images_a_second": rate(lambda: session.run(wanted, {"pixels": pixels.numpy()})),
        "pytorch_images_a_second": rate(lambda: model.predict_batch(pixels)),
    }


def rate(work: Any, seconds: float = 4.0) -> float:
    """Images a second: the median of rounds, after a warm-up."""
    for _ in range(5):
        work()
    times, until = [], time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return BATCH / float(np.median(times))


def start(bundle: Path, port: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "offaxis", "serve", str(bundle), "--port", str(port)]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                return process
        except OSError:
            time.sleep(0.1)
    process.kill()
    raise SystemExit("the service did not start")


def multipart(pictures: list[bytes]) -> tuple[bytes, dict[str, str]]:
    edge = uuid.uuid4().hex
    head = 'Content-Disposition: form-data; name="f"; filename="{}.png"\r\nContent-Type: image/png\r\n\r\n'
    parts = [f"--{edge}\r\n{head.format(i)}".encode() + data + b"\r\n" for i, data in enumerate(pictures)]
    return b"".join(parts) + f"--{edge}--\r\n".encode(), {"Content-Type": f"multipart/form-data; boundary={edge}"}


def post(connection: http.client.HTTPConnection, body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
    connection.request("POST", "/v1/predict", body, headers)
    answer = connection.getresponse()
    data = answer.read()
    return answer.status, json.loads(data) if data else None


def throughput(port: int, pictures: list[bytes], seconds: float = 8.0) -> dict[str, float]:
    """Three clients, each with BATCH images a request."""
    body, headers = multipart(pictures[:BATCH])
    served, times = Counter[str](), list[float]()
    until = time.perf_counter() + seconds

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        while time.perf_counter() < until:
            began = time.perf_counter()
            status, _ = post(connection, body, headers)
            assert status == 200
            times.append(time.perf_counter() - began)
            served["images"] += BATCH

    run_threads(client, 3)
    return {
        "served_images_a_second": served["images"] / seconds,
        "request_of_a_batch_p50_ms": 1e3 * float(np.median(times)),
    }


def latency(port: int, pictures: list[bytes], count: int = 300) -> dict[str, float]:
    connection, times = http.client.HTTPConnection("127.0.0.1", port, timeout=30), []
    for number in range(count):
        began = time.perf_counter()
        post(connection, pictures[number % len(pictures)], {"Content-Type": "image/png"})
        times.append(1e3 * (time.perf_counter() - began))
    return {"p50_ms": float(np.percentile(times, 50)), "p99_ms": float(np.percentile(times, 99))}


def storm(port: int, pid: int, pictures: list[bytes], classes: list[str], seconds: float) -> dict[str, Any]:
    """Good and bad clients at once."""
    good, bad, times, memory = Counter[str](), Counter[str](), list[float](), list[int]()
    until = time.monotonic() + seconds
    lock = threading.Lock()

    def good_client(seed: int) -> None:
        chance = random.Random(seed)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while time.monotonic() < until:
            number = chance.randrange(len(pictures))
            began, status = time.perf_counter(), 0
            try:
                status, body = post(connection, pictures[number], {"Content-Type": "image/png"})
                outcome = str(status)
                if status == 200 and body["predictions"][0]["class"] != classes[number]:
                    outcome = "wrong class"
            except (OSError, http.client.HTTPException) as error:
                outcome = type(error).__name__
                connection.close()
            with lock:
                good[outcome] += 1
                times.append(1e3 * (time.perf_counter() - began))
            if status == 503:
                connection.close()
                time.sleep(0.2)

    def bad_client(seed: int) -> None:
        chance = random.Random(seed)
        while time.monotonic() < until:
            how = (broken, huge, slow)[seed % 3]
            try:
                outcome = how(port, chance, pictures)
            except OSError:
                outcome = "closed"
            with lock:
                bad[f"{how.__name__}: {outcome}"] += 1

    def sample_memory() -> None:
        while True:
            memory.append(resident(pid))
            if len(memory) % 5 == 1:
                with lock:
                    told({"good": dict(good), "bad": dict(sorted(bad.items())), "memory_mb": round(memory[-1] / 2**20)})
            if time.monotonic() >= until:
                return
            time.sleep(1)

    threads = [threading.Thread(target=good_client, args=(i,)) for i in range(CLIENTS // 2)]
    threads += [threading.Thread(target=bad_client, args=(i,)) for i in range(CLIENTS // 2)]
    threads.append(threading.Thread(target=sample_memory))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = ("200", "4", "503", "closed", "vanished")
    odd = {f"good: {name}": n for name, n in good.items() if name not in ("200", "503")}
    odd |= {name: n for name, n in bad.items() if not name.partition(": ")[2].startswith(expected)}
    parts = np.array_split(memory, min(10, len(memory)))
    return {
        "seconds": seconds,
        "good_requests": dict(good),
        "bad_requests": dict(sorted(bad.items())),
        "not_as_expected": odd,
        "good_p50_ms": float(np.percentile(times, 50)) if times else None,
        "good_p99_ms": float(np.percentile(times, 99)) if times else None,
        "memory_mb_over_time": [round(float(np.mean(part)) / 2**20) for part in parts],
        "memory_mb_most": round(max(memory) / 2**20),
    }


def broken(port: int, chance: random.Random, pictures: list[bytes]) -> str:
    data = bytearray(chance.choice(pictures))
    for _ in range(20):
        data[chance.randrange(len(data))] = chance.randrange(256)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        status, _ = post(connection, bytes(data[: chance.randrange(1, len(data))]), {"Content-Type": "image/png"})
    finally:
        connection.close()
    time.sleep(0.05)
    return str(status)


def huge(port: int, chance: random.Random, pictures: list[bytes]) -> str:
    """A body that is declared too long, or grows too long without being declared."""
    time.sleep(0.2)
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        head = "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
        if chance.random() < 0.5:
            connection.sendall(f"{head}Content-Length: 1000000000\r\n\r\n".encode() + pictures[0])
        else:
            connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
            chunk = f"{2**20:x}\r\n".encode() + bytes(2**20) + b"\r\n"
            try:
                for _ in range(20):
                    connection.sendall(chunk)
            except OSError:
                pass
        return status_of(connection)


def slow(port: int, chance: random.Random, pictures: list[bytes]) -> str:
    """A head or a body that comes byte by byte; some vanish in the middle."""
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        data = "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
        data += f"Content-Length: {len(pictures[0])}\r\n\r\n"
        whole = data.encode() + pictures[0]
        begun = chance.choice((10, len(data) + 5))
        connection.sendall(whole[:begun])
        vanishes = chance.random() < 0.3
        for number in range(14):
            time.sleep(1)
            if vanishes and number == 2:
                return "vanished"
            connection.sendall(whole[begun + number : begun + number + 1])
        return status_of(connection)


def status_of(connection: socket.socket) -> str:
    connection.settimeout(20)
    answer = connection.recv(4096)
    return answer.split(b" ", 2)[1].decode() if answer.startswith(b"HTTP") else "closed"


def resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return 1024 * int(line.split()[1])
    return 0


def run_threads(work: Any, count: int) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    main(*sys.argv[1:])
