"""The container files. There may be no engine where tests run, so what is checked is what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from bridge.config import load_config
from scripts.check_tree import ROOT


def compose() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return data


def dockerfile() -> list[str]:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_the_compose_file_publishes_its_port_on_this_machine_only():
    ports = [port for service in compose()["services"].values() for port in service["ports"]]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_the_container_writes_nowhere_but_its_volume():
    (service,) = compose()["services"].values()
    assert service["read_only"] is True
    assert service["volumes"] == ["workspace:/data"]
    assert "workspace" in compose()["volumes"]
    assert service["cap_drop"] == ["ALL"]


def test_the_image_runs_as_an_ordinary_user():
    users = [line.split()[1] for line in dockerfile() if line.startswith("USER ")]
    assert users
    assert users[-1] not in ("root", "0")


def test_what_the_image_copies_exists_and_is_sent_to_the_builder():
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    sources = [
        source
        for line in dockerfile()
        if line.startswith("COPY ") and "--from" not in line
        for source in [word for word in line.split()[1:] if not word.startswith("--")][:-1]
    ]
    assert "requirements.lock" in sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert Path(source).parts[0] in allowed, source


def test_the_health_check_asks_the_port_that_the_image_serves():
    config = yaml.safe_load((ROOT / "docker" / "config.yaml").read_text())
    port = config["server"]["port"]
    text = (ROOT / "Dockerfile").read_text() + (ROOT / "docker-compose.yml").read_text()
    assert set(re.findall(r"127\.0\.0\.1:(\d+)/healthz", text)) == {str(port)}
    assert f"127.0.0.1:{port}:{port}" in text


def test_the_images_configuration_is_right_with_and_without_a_key():
    for environ, key in (({}, None), ({"CAUSEWAY_KEY": "long enough a key"}, "long enough a key")):
        config = load_config(ROOT / "docker" / "config.yaml", environ)
        assert config.server.host == "0.0.0.0"
        assert (config.server.key.get_secret_value() or None if config.server.key else None) == key
        assert config.workspace == Path("/data")
