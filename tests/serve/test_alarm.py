"""What the operator is told of an alarm: a line in the log, and a call."""

import base64
import io
import json
import logging
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
import httpx

from offaxis import Model
from offaxis.calibration.drift import Bets, appearances
from offaxis.data import TensorSet, load_images, match
from offaxis.errors import ArgumentError
from offaxis.explain import with_examples
from offaxis.options import ServeOptions
from offaxis.serve import alarm
from offaxis.serve.server import JsonFormatter, PlainFormatter, make_server
from tests.models import World
from tests.serve.serving import png, running
from tests.waiting import eventually


def send(address: str, images: Any, count: int) -> None:
    for start in range(0, count, 20):
        files = [("f", (f"{i}.png", png(images, i))) for i in range(start, start + 20)]
        assert httpx.post(f"{address}/v1/predict", files=files).status_code == 200


def test_an_alarm_is_in_the_log_and_a_command_is_told(
    model: Model, world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "notify.py").write_text("import sys; open(sys.argv[1], 'w').write(sys.stdin.read())")
    command = f"{sys.executable} {tmp_path}/notify.py {tmp_path}/told.json"
    with caplog.at_level(logging.WARNING, "offaxis.serve"), running(model, on_alarm=command) as (address, _):
        send(address, world.test, 60)
        assert not caplog.records
        send(address, match(load_images("letters", count=200), world.test.shape), 200)
        alarms = [record for record in caplog.records if record.levelname == "ERROR"]
        assert len(alarms) == 1
        assert "drift alarm at image" in alarms[0].getMessage()
        assert "are flagged" in alarms[0].getMessage()
        assert eventually(lambda: (tmp_path / "told.json").exists() and (tmp_path / "told.json").stat().st_size > 0)
        told = json.loads((tmp_path / "told.json").read_text())
        assert told == alarms[0].drift  # type: ignore[attr-defined]
        assert (told["event"], told["image"]) == ("alarm", httpx.get(f"{address}/v1/drift").json()["alarmed_at"])
        assert told["latest"]["images"] == 100 or told["image"] < 100
        assert set(told["classes"]) <= set(model.classes)
        httpx.post(f"{address}/v1/drift/reset")
        assert caplog.records[-1].getMessage() == "the drift monitor was started again"
    line = json.loads(JsonFormatter().format(alarms[0]))
    assert line["drift"]["event"] == "alarm"


def test_an_alarm_says_what_has_changed_and_shows_it(
    model: Model, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Images that are darker than those of calibration, to a model that keeps examples."""
    pixels = world.test.batch(torch.arange(100))
    darker = TensorSet("darker", pixels // 8)
    with (
        caplog.at_level(logging.ERROR, "offaxis.serve"),
        running(with_examples(model, world.calibration, 20)) as (
            address,
            _,
        ),
    ):
        send(address, darker, 100)
        send(address, darker, 20)  # again, and shown once
        state = httpx.get(f"{address}/v1/drift").json()
    assert state["alarm"]
    looks = state["report"]["appearance"]
    assert [looks[name]["change"] for name in ("brightness", "sharpness", "colour")] == ["lower", "lower", "as usual"]
    median = float(np.median(pixels.float().mean((1, 2, 3)) // 1) / 255)
    assert looks["brightness"]["calibration"] == pytest.approx(median, rel=0.15)
    assert looks["brightness"]["now"] == pytest.approx(median / 8, rel=0.25)
    assert "Of the images themselves brightness is lower, sharpness is lower than usual." in caplog.text
    assert 0 < len(state["unusual"]) == len({each["image"] for each in state["unusual"]}) <= 6
    shown = [Image.open(io.BytesIO(base64.b64decode(each["image"].partition(",")[2]))) for each in state["unusual"]]
    assert {each.size for each in shown} == {(8, 8)}
    assert sorted(each["p_value"] for each in state["unusual"]) == [each["p_value"] for each in state["unusual"]]


def test_how_images_look_is_measured() -> None:
    """A flat grey, a chessboard of black and white, and a pure red."""
    flat, chess, red = np.full((3, 3, 8, 8), 128, np.uint8)
    chess[:] = 255 * (np.indices((8, 8)).sum(0) % 2)
    red[:] = np.array([255, 0, 0])[:, None, None]
    found = appearances(np.stack([flat, chess, red]))
    assert found[0] == pytest.approx((128 / 255, 0, 0))
    assert found[1] == pytest.approx((0.5, 1, 0))
    assert found[2] == pytest.approx((1 / 3, 0, 1))


def test_a_warning_is_in_the_log_before_the_alarm(
    model: Model, world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bet(bets: Bets, _: float) -> None:
        bets.images += 1
        bets.warnings, bets.warned_at = 1, 7

    monkeypatch.setattr(Bets, "bet", bet)
    with caplog.at_level(logging.WARNING, "offaxis.serve"), running(model) as (address, _):
        send(address, world.test, 40)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "drift warning at image 7" in caplog.text


def test_an_address_is_told_and_asked_again_where_it_fails(
    model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bodies: list[Any] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(500 if len(bodies) == 1 else 200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    monkeypatch.setattr(alarm, "PAUSES", (0, 0, 0))
    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        alarm.call(f"http://127.0.0.1:{server.server_port}/hook", {"event": "alarm"})
        server.shutdown()
    assert bodies == [{"event": "alarm"}] * 2
    assert not caplog.records
    alarm.call(f"{sys.executable} -c 'raise SystemExit(\"no mail\")'", {})
    assert "(exit code 1 no mail)" in caplog.text


@pytest.mark.parametrize("wrong", ["", "no-such-program x", "ftp://host/x", "'unbalanced"])
def test_what_cannot_be_called_is_refused_at_the_start(model: Model, wrong: str) -> None:
    with pytest.raises(ArgumentError, match="Expected --on-alarm with an http"):
        make_server(model, ServeOptions(port=0, on_alarm=wrong))


@pytest.mark.parametrize("kind", [JsonFormatter, PlainFormatter])
def test_a_line_of_the_log_holds_nothing_that_a_terminal_obeys(kind: type[logging.Formatter]) -> None:
    said = "a\x1bb\x9bc\u2028d\u202ee"
    line = kind().format(logging.LogRecord("x", logging.ERROR, "", 0, "%s", (said,), None))
    assert line.isprintable()
    assert kind is PlainFormatter or json.loads(line)["message"] == said
