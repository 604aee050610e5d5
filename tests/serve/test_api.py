"""The description of the API: true, and enough for a typed client; images as JSON, and the protocol of KServe."""

import base64
import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
import httpx

from offaxis import Model
from offaxis.serve.queue import Limits
from tests.models import World
from tests.serve.serving import png, running


@pytest.fixture(scope="module")
def client(model: Model) -> Iterator[httpx.Client]:
    with running(model, Limits(images=4)) as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        yield client


def encoded(world: World, number: int) -> str:
    return base64.b64encode(png(world.test, number)).decode()


def test_images_as_json(client: httpx.Client, world: World) -> None:
    images: list[Any] = [{"name": "a.png", "data": encoded(world, 0)}, {"data": encoded(world, 1)}]
    records = client.post("/v1/predict", json={"images": [*images, {"data": "bm90aGluZw=="}]}).json()["predictions"]
    plain = [client.post("/v1/predict", content=png(world.test, number)).json() for number in range(2)]
    assert [each["score"] for each in records[:2]] == pytest.approx([each["predictions"][0]["score"] for each in plain])
    assert [each["name"] for each in records] == ["a.png", "1", "2"]
    assert "Expected an image" in records[2]["error"]
    damaged: list[Any] = [5, [5], [{}], ["%"], [{"data": 5}]]
    for wrong in damaged:
        answer = client.post("/v1/predict", json={"images": wrong})
        assert (answer.status_code, '"images"' in answer.json()["error"]) == (400, True)
    assert client.post("/v1/predict", json={"images": [images[0]] * 5}).status_code == 413
    assert client.post("/v1/predict", json={"images": []}).status_code == 400


def test_the_protocol_of_kserve(client: httpx.Client, world: World) -> None:
    tensor = {"name": "images", "shape": [2], "datatype": "BYTES", "data": [encoded(world, n) for n in range(2)]}
    answer = client.post("/v2/models/model/infer", json={"id": "7", "inputs": [tensor]}).json()
    about = client.get("/v2/models/model").json()
    assert (answer["id"], answer["model_name"]) == ("7", "model")
    assert [each["name"] for each in answer["outputs"]] == [each["name"] for each in about["outputs"]]
    assert {tuple(each["shape"]) for each in answer["outputs"]} == {(2,)}
    record = client.post("/v1/predict", content=png(world.test, 1)).json()["predictions"][0]
    for each in answer["outputs"]:  # numbers alike to rounding, as the batch is another
        expected = record[each["name"]]
        assert each["data"][1] == (pytest.approx(expected) if each["datatype"] == "FP64" else expected)
    assert client.get("/v2/health/live").status_code == client.get("/v2/models/model/ready").status_code == 200
    assert client.get("/v2/models/none").status_code == 404
    for inputs, status in ((None, 400), ([], 400), ([{"data": ["AAAA"]}], 422)):
        assert client.post("/v2/models/model/infer", json={"inputs": inputs}).status_code == status


def test_every_route_is_described_and_every_reference_is_there(client: httpx.Client) -> None:
    api = client.get("/openapi.json").json()
    for name in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(api)):
        assert name in api["components"]["schemas"]
    for path, methods in api["paths"].items():
        for method, described in methods.items():
            answer = client.request(method, path.replace("{model}", "model"))
            assert str(answer.status_code) in described["responses"], path
    described = {path for path in api["paths"] if "{" not in path}
    undescribed = {"/", "/page.css", "/page.js", "/charts.js", "/docs", "/docs.js", "/openapi.json"}
    assert {path for path in described | undescribed if client.get(path).status_code == 404} == set()


def test_what_the_api_describes_is_answered(client: httpx.Client, world: World) -> None:
    """Answers have the fields that their schemas require, and no others."""
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    predictions = client.post("/v1/predict?explain=1", content=png(world.test, 0)).json()["predictions"]
    answers = {path: client.get(path).json() for path in ("/v1/model", "/v1/models", "/v1/drift", "/v2/models/model")}
    for name, found in (
        ("Model", answers["/v1/model"]),
        ("Models", answers["/v1/models"]),
        ("Drift", answers["/v1/drift"]),
        ("V2Model", answers["/v2/models/model"]),
        ("Record", predictions[0]),
    ):
        assert set(schemas[name]["required"]) <= set(found), name
        assert set(found) <= set(schemas[name]["properties"]), name


def test_the_page_of_the_api_needs_nothing_from_elsewhere(client: httpx.Client) -> None:
    page, script = client.get("/docs"), client.get("/docs.js")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert not re.search(r"https?://", page.text + script.text)


@pytest.mark.thirdparty
@pytest.mark.skipif(shutil.which("openapi-python-client") is None, reason="pipx install openapi-python-client")
def test_a_client_is_generated_from_it(
    model: Model, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an environment of its own, as its pins differ from ours; needs attrs and python-dateutil here."""
    pytest.importorskip("attrs")
    pytest.importorskip("dateutil")
    with running(model, token="secret") as (address, _):
        (tmp_path / "api.json").write_bytes(httpx.get(f"{address}/openapi.json").content)
        command = ["openapi-python-client", "generate", "--path", "api.json", "--output-path", "made", "--meta", "none"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        monkeypatch.syspath_prepend(str(tmp_path))
        made, models = importlib.import_module("made"), importlib.import_module("made.models")
        ask = importlib.import_module("made.api.default.predict_v1_predict_post").sync
        drift = importlib.import_module("made.api.default.drift_v1_drift_get").sync
        body = models.Images(images=[models.Image(data=encoded(world, 0), name="a.png")])
        with made.AuthenticatedClient(base_url=address, token="secret") as client:
            (record,) = ask(client=client, body=body).predictions
            assert drift(client=client).images == 1
        expected = model.predict(png(world.test, 0))[0]
        assert (record.name, record.class_, record.verdict) == ("a.png", expected.class_name, expected.verdict)
        assert record.p_value == pytest.approx(expected.p_value)
        with made.Client(base_url=address) as client:
            assert "Bearer" in ask(client=client, body=body).error
    for name in [name for name in sys.modules if name.partition(".")[0] == "made"]:
        del sys.modules[name]
