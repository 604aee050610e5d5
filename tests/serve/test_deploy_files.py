"""The files of deploy/: what they name exists, and Prometheus takes the rules and the queries of the dashboard."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
import httpx

from offaxis import Model
from offaxis.options import ServeOptions
from tests.models import World
from tests.serve.serving import png, running
from tests.waiting import eventually, free_port

FILES = Path(__file__).parents[2] / "deploy"


def promtool(*words: str) -> None:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Debian's package prometheus")
def test_the_rules_alarm_when_they_should() -> None:
    promtool("check", "rules", str(FILES / "alerts.yml"))
    promtool("test", "rules", str(FILES / "alerts-test.yml"))
    promtool("check", "config", "--syntax-only", str(FILES / "prometheus.yml"))


def queries() -> list[str]:
    """The queries of the dashboard, with what Grafana puts for its variables."""
    board = json.loads((FILES / "grafana.json").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [each.replace("$__rate_interval", "1m").replace("$model", ".*") for each in found]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's package prometheus")
def test_every_query_of_the_dashboard_has_an_answer(model: Model, world: World, tmp_path: Path) -> None:
    """A real Prometheus scrapes a real service every second."""
    port = free_port()
    with running(model) as (address, _):
        config = {"global": {"scrape_interval": "1s"}, "rule_files": [str(FILES / "alerts.yml")]}
        job = {"job_name": "offaxis", "static_configs": [{"targets": [address.removeprefix("http://")]}]}
        (tmp_path / "prometheus.yml").write_text(json.dumps({**config, "scrape_configs": [job]}))
        command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=log, stdout=log)
        try:

            def ask(query: str) -> Any:
                try:
                    answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": query}).json()
                except httpx.TransportError:
                    return []
                assert answer["status"] == "success", answer
                return answer["data"]["result"]

            def answered() -> bool:
                httpx.post(f"{address}/v1/predict", content=png(world.test, 0))
                return all(map(ask, queries()))

            assert eventually(answered, 90), [query for query in queries() if not ask(query)]
        finally:
            process.terminate()
            process.wait(20)


def test_the_options_that_files_give_exist() -> None:
    options = {f"--{name.replace('_', '-')}" for name in ServeOptions.__dataclass_fields__}
    for name in ("compose.yaml", "offaxis.service", "kubernetes.yaml", "logrotate"):
        given = set(re.findall(r"(?<![\w-])--(?!user|entrypoint|from)[a-z][a-z-]*", (FILES / name).read_text()))
        assert given, name
        assert given <= options, name


def test_kubernetes_and_compose_mount_what_they_name() -> None:
    yaml = pytest.importorskip("yaml")
    deployment, service = yaml.safe_load_all((FILES / "kubernetes.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    volumes = {each["name"] for each in deployment["spec"]["template"]["spec"]["volumes"]}
    assert {each["name"] for each in container["volumeMounts"]} == volumes
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": container["ports"][0]["name"]}
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    compose = yaml.safe_load((FILES / "compose.yaml").read_text())
    named = {volume.partition(":")[0] for volume in compose["services"]["offaxis"]["volumes"]}
    assert {each for each in named if not each.startswith(".")} == set(compose["volumes"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = (FILES / "offaxis.service").read_text().replace("/opt/offaxis/bin/offaxis", "/bin/true")
    (tmp_path / "offaxis.service").write_text(unit)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "offaxis.service")], capture_output=True, text=True, check=False
    )
    assert "offaxis.service:" not in done.stderr, done.stderr
