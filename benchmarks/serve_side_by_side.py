"""Images a second of ``offaxis serve`` beside two other services that run the same graph in onnxruntime.

    python -m benchmarks.serve_side_by_side            # about six minutes; needs fastapi, python-multipart and litserve
    python -m benchmarks.serve_side_by_side 5 2        # five rounds of two seconds
    python -m benchmarks.serve_side_by_side 5 2 FOLDER # bundle, graph and images are kept there for the next time

- minimal: FastAPI, Pillow and onnxruntime in one function; no limits, no metrics, no batching, no drift monitor.
- litserve: the same in LitServe, once request by request and once with its batching; the better of the two counts.
- offaxis: ``offaxis serve`` as it is, with all limits, metrics and the drift monitor on.

All of them have one process for the model, uvicorn with httptools and uvloop where these are installed, multipart requests of
28x28 PNG files, and their clients on the same cores. Rounds alternate between the services, so that whatever else the machine
does falls on all of them; the ratio is the median over rounds. Prints JSON, with the load of the machine.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.load_test import free_port, multipart, post, prepare, run_threads

CASES = ((1, 1), (16, 1), (64, 1), (3, 32))
MINIMAL = """
import io, json, sys
import numpy as np, onnxruntime, uvicorn
from fastapi import FastAPI, UploadFile
from PIL import Image

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
app = FastAPI()

@app.post("/v1/predict")
async def predict(f: list[UploadFile]):
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(await file.read())))[None] for file in f])
    logits, cosine, score, p_value = session.run(None, {"pixels": pixels})
    best = logits.argmax(1)
    return {"predictions": [{"class": classes[b], "cosine": float(cosine[i, b]), "score": float(score[i]),
                             "p_value": float(p_value[i])} for i, b in enumerate(best)]}

uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
"""
LITSERVE = """
import io, json, sys
import litserve, numpy as np, onnxruntime
from PIL import Image

class Api(litserve.LitAPI):
    def setup(self, device):
        self.session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
        self.classes = json.loads(self.session.get_modelmeta().custom_metadata_map["classes"])

    def decode_request(self, request):
        files = request.getlist("f")
        return np.stack([np.asarray(Image.open(io.BytesIO(file.file.read())))[None] for file in files])

    def batch(self, requests):
        self.sizes = [len(pixels) for pixels in requests]
        return np.concatenate(requests)

    def unbatch(self, outputs):
        ends = np.cumsum(self.sizes)
        return [[out[end - size:end] for out in outputs] for size, end in zip(self.sizes, ends)]

    def predict(self, pixels):
        return self.session.run(None, {"pixels": pixels})

    def encode_response(self, output):
        logits, cosine, score, p_value = output
        best = logits.argmax(1)
        return {"predictions": [{"class": self.classes[b], "cosine": float(cosine[i, b]), "score": float(score[i]),
                                 "p_value": float(p_value[i])} for i, b in enumerate(best)]}

if __name__ == "__main__":
    batched = sys.argv[3] == "batched"
    api = Api(max_batch_size=32 if batched else 1, batch_timeout=0.002 if batched else 0.0, api_path="/v1/predict")
    litserve.LitServer(api, accelerator="cpu", workers_per_device=1).run(
        port=int(sys.argv[2]), log_level="warning", generate_client_file=False)
"""


def main(rounds: str = "9", seconds: str = "3", keep: str = "") -> None:
    with tempfile.TemporaryDirectory() as room:
        folder = Path(keep or room)
        pictures = prepared(folder)
        services = start_all(folder)
        try:
            wait_until_right(services, pictures)
            rows = [row(services, pictures, clients, images, int(rounds), float(seconds)) for clients, images in CASES]
        finally:
            for process, _ in services.values():
                os.killpg(process.pid, signal.SIGTERM)
            for process, _ in services.values():
                stop(process)
    print(
        json.dumps({"rounds": int(rounds), "seconds": float(seconds), "cores": os.cpu_count(), "table": rows}, indent=2)
    )


def prepared(folder: Path) -> list[bytes]:
    """Bundle and graph in the folder, made where they are absent, and PNG files of digits."""
    return prepare(folder)[1]


def start_all(folder: Path) -> dict[str, tuple["subprocess.Popen[bytes]", int]]:
    """The services by name, each with its port."""
    graph, started = str(folder / "x.onnx"), dict[str, tuple["subprocess.Popen[bytes]", int]]()
    (folder / "minimal.py").write_text(MINIMAL)
    (folder / "lit.py").write_text(LITSERVE)
    commands = {
        "offaxis": ["-m", "offaxis", "serve", str(folder / "x.oax"), "--engine", "onnx", "--port"],
        "minimal": [str(folder / "minimal.py"), graph],
    }
    if importlib.util.find_spec("litserve") is not None:
        commands |= {"litserve": [str(folder / "lit.py"), graph], "litserve-batched": [str(folder / "lit.py"), graph]}
    else:
        print("litserve is not installed, so it is left out: pip install litserve", file=sys.stderr)
    for name, words in commands.items():
        port = free_port()
        last = [name.rpartition("-")[2]] if name.startswith("litserve") else []
        command = [sys.executable, *words, str(port), *last]
        started[name] = subprocess.Popen(command, start_new_session=True), port
    return started


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Wait for a service, and end the processes that it has started and left."""
    try:
        process.wait(30)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def wait_until_right(services: dict[str, tuple["subprocess.Popen[bytes]", int]], pictures: list[bytes]) -> None:
    """Wait for every service and compare their classes and p-values."""
    import http.client

    body, headers = multipart(pictures[:32])
    answers = {}
    for name, (process, port) in services.items():
        deadline = time.monotonic() + 600
        while name not in answers:
            try:
                status, answer = post(http.client.HTTPConnection("127.0.0.1", port, timeout=30), body, headers)
                assert status == 200, (name, status, answer)
                answers[name] = [(record["class"], round(record["p_value"], 9)) for record in answer["predictions"]]
            except OSError:
                assert process.poll() is None, f"{name} did not start"
                assert time.monotonic() < deadline, f"{name} does not answer"
                time.sleep(0.3)
    assert all(answer == answers["offaxis"] for answer in answers.values()), answers


def row(services: Any, pictures: list[bytes], clients: int, images: int, rounds: int, seconds: float) -> dict[str, Any]:
    """One case: rates by round, alternating, and the medians of their ratios."""
    rates: dict[str, list[float]] = {name: [] for name in services}
    for _, port in services.values():
        rate(port, pictures, clients, images, 1.0)  # warm-up
    for number in range(rounds):
        order = list(services)[number % len(services) :] + list(services)[: number % len(services)]
        for name in order:
            rates[name].append(rate(services[name][1], pictures, clients, images, seconds))
    result: dict[str, Any] = {"clients": clients, "images": images, "load": round(os.getloadavg()[0], 1)}
    result["images_a_second"] = {name: round(float(np.median(values))) for name, values in rates.items()}
    result["over_minimal"] = round(median_ratio(rates["offaxis"], rates["minimal"]), 2)
    lit = [name for name in rates if name.startswith("litserve")]
    if lit:
        result["over_litserve"] = round(min(median_ratio(rates["offaxis"], rates[name]) for name in lit), 2)
    print(json.dumps(result), file=sys.stderr, flush=True)
    return result


def median_ratio(first: list[float], second: list[float]) -> float:
    return float(np.median(np.array(first) / np.array(second)))


def rate(port: int, pictures: list[bytes], clients: int, images: int, seconds: float) -> float:
    """Images a second of so many clients, each with so many images a request."""
    import http.client

    bodies = [multipart(pictures[first : first + images]) for first in range(0, 128, images)]
    counts: list[int] = []
    until = time.perf_counter() + seconds

    def client() -> None:
        connection, done = http.client.HTTPConnection("127.0.0.1", port, timeout=60), 0
        while time.perf_counter() < until:
            status, _ = post(connection, *bodies[done % len(bodies)])
            assert status == 200
            done += 1
        counts.append(done)

    began = time.perf_counter()
    run_threads(client, clients)
    return images * sum(counts) / (time.perf_counter() - began)


if __name__ == "__main__":
    main(*sys.argv[1:])
