"""The repository itself: what git tracks, the lock files, the Makefile, the borders between packages."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts import check_tree

ROOT = check_tree.ROOT
BIN = Path(sys.executable).parent


def run(*command: str | Path, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=60, env={**os.environ, **env}, check=False
    )


# -- tracked files ---------------------------------------------------------------------------------------


def test_the_tree_is_tidy():
    assert check_tree.faults() == []


def test_a_registry_host_in_a_file_is_found_with_its_line(tmp_path: Path):
    file = tmp_path / "some.lock"
    file.write_text("first\n--index-url https://" + check_tree.REGISTRY_HOSTS[0] + "/simple\n")
    (fault,) = check_tree.registry_hosts([file])
    assert f"{file}:2:" in fault


def test_a_large_file_is_found(tmp_path: Path):
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(b"x" * check_tree.MAX_BYTES)
    large.write_bytes(b"x" * (check_tree.MAX_BYTES + 1))
    (fault,) = check_tree.large_files([small, large])
    assert str(large) in fault


def test_a_link_that_leads_nowhere_is_found_and_good_ones_are_not(tmp_path: Path):
    (tmp_path / "other.md").write_text("# A heading: with `code`\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Top\n[file](other.md) [heading](other.md#a-heading-with-code) [own](#top) [web](https://x.example/y)\n"
        "`[not a link](in-code.md)`\n```\n[nor this](fenced.md)\n```\n"
        '<img src="gone.png"> ![lost](lost.svg "title") [bad](other.md#nowhere)\n'
    )
    found = "\n".join(check_tree.broken_links([page]))
    assert found.count("\n") == 2
    assert all(target in found for target in ("'gone.png'", "'lost.svg'", "'other.md#nowhere'"))


# -- lock files ------------------------------------------------------------------------------------------


def pins(lock: str) -> dict[str, str]:
    """Name (and marker) to version of every requirement in a lock file."""
    text = (ROOT / lock).read_text().replace("\\\n", " ")
    found: dict[str, str] = {}
    for line in text.splitlines():
        if match := re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*])?==(\S+)( ; .*?)?\s+--hash=", line):
            found[canonicalize_name(match[1]) + (match[3] or "").rstrip()] = match[2]
    return found


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-dev.lock"])
def test_every_line_of_a_lock_file_is_pinned_and_hashed(lock: str):
    text = (ROOT / lock).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    assert len(lines) > 20
    assert [line for line in lines if "==" not in line or "--hash=sha256:" not in line] == []


def test_the_tests_run_on_the_versions_that_the_program_is_installed_with():
    program = {name.split(" ;")[0]: version for name, version in pins("requirements.lock").items()}
    tests = {name.split(" ;")[0]: version for name, version in pins("requirements-dev.lock").items()}
    assert {name: tests.get(name) for name in program} == program


def declared(*extras: str) -> list[Requirement]:
    """What pyproject.toml asks for: the program's own requirements and those of some extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = [Requirement(one) for one in project["dependencies"]]
    waiting = [requirement for extra in extras for requirement in project["optional-dependencies"][extra]]
    while waiting:
        requirement = Requirement(waiting.pop())
        if requirement.name == project["name"]:
            waiting += [
                one for extra in requirement.extras for one in project["optional-dependencies"][extra]
            ]
        else:
            found.append(requirement)
    return found


@pytest.mark.parametrize(("lock", "extra"), [("requirements.lock", "all"), ("requirements-dev.lock", "dev")])
def test_a_lock_file_satisfies_pyproject(lock: str, extra: str):
    locked = {name.split(" ;")[0]: version for name, version in pins(lock).items()}
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    missing = [
        str(one)
        for one in [*declared(extra), *map(Requirement, groups["build"])]
        if not one.specifier.contains(locked.get(canonicalize_name(one.name), "0"), prereleases=True)
    ]
    assert missing == [], "run `make lock`"


def imported(*folders: str) -> dict[str, Path]:
    """Names of the packages that the code imports, standard library and our own left out, and where."""
    own = {path.name for path in ROOT.iterdir() if path.is_dir()}
    found: dict[str, Path] = {}
    for file in check_tree.tracked():
        if file.suffix != ".py" or file.relative_to(ROOT).parts[0] not in folders:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            found |= {name.split(".")[0]: file.relative_to(ROOT) for name in names}
    return {name: file for name, file in found.items() if name not in sys.stdlib_module_names | own}


@pytest.mark.parametrize(
    ("folders", "extra"),
    [(("bridge", "channels", "agent"), "all"), (("tests", "benchmarks", "scripts"), "dev")],
)
def test_every_package_that_the_code_imports_is_declared(folders: tuple[str, ...], extra: str):
    """A package that only comes along with another one is gone when the other drops it."""
    names = {canonicalize_name(requirement.name) for requirement in declared(extra)}
    providers = importlib.metadata.packages_distributions()
    undeclared = {
        module: str(file)
        for module, file in imported(*folders).items()
        if names.isdisjoint(canonicalize_name(name) for name in providers.get(module, []))
    }
    assert undeclared == {}


# -- commands --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["README.md", "README.zh.md", "CONTRIBUTING.md", *(
    str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*.md")))])  # fmt: skip
def test_every_make_command_in_the_documents_exists(page: str):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in set(re.findall(r"^(?:\$ )?make ([a-z]+)|`make ([a-z]+)", text, re.MULTILINE)):
        result = run("make", "--dry-run", "".join(target))
        assert result.returncode == 0, result.stderr


def test_the_readme_starts_with_the_two_commands():
    for page in ("README.md", "README.zh.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        commands = re.findall(r"^make (\w+)", text, re.MULTILINE)
        assert commands[:2] == ["run", "test"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As much of a checkout as the installer reads."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "install", tmp_path / "scripts")
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "requirements.lock").write_text("")
    return tmp_path


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_without_a_python_the_installer_says_what_to_install(checkout: Path):
    old = script(checkout / "python-old", "exit 1")
    result = run(checkout / "scripts/install", "run", cwd=checkout, PYTHON=old)
    assert result.returncode != 0
    assert "Python 3.11 or newer" in result.stderr
    assert "apt install python3 python3-venv" in result.stderr
    assert not (checkout / ".venv").exists()


def test_without_the_venv_module_the_installer_names_the_package(checkout: Path):
    bare = f'case "$*" in *ensurepip*) exit 1;; esac; exec "{sys.executable}" "$@"'
    python = script(checkout / "python-bare", bare)
    result = run(checkout / "scripts/install", "run", cwd=checkout, PYTHON=python)
    assert result.returncode != 0
    major, minor = sys.version_info[:2]
    assert f"sudo apt install python{major}.{minor}-venv" in result.stderr


def test_a_failed_install_is_not_taken_for_a_finished_one(checkout: Path):
    (checkout / "requirements.lock").write_text("no-hash-so-refused==1\n")
    for _ in range(2):
        result = run(checkout / "scripts/install", "run", cwd=checkout, PYTHON=sys.executable)
        assert result.returncode != 0
        assert not list((checkout / ".venv").glob(".installed-*"))


# -- borders ---------------------------------------------------------------------------------------------


def test_the_borders_between_the_packages_hold():
    result = run(BIN / "lint-imports", "--no-cache")
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("file", "line"), [("channels/x.py", "import agent"), ("agent/x.py", "import channels.y"),
                       ("agent/y.py", "import bridge"), ("channels/z.py", "from bridge import y")]
)  # fmt: skip
def test_crossing_a_border_is_found(tmp_path: Path, file: str, line: str):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in ("bridge", "channels", "agent"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
        (tmp_path / package / "y.py").touch()
    assert run(BIN / "lint-imports", "--no-cache", cwd=tmp_path).returncode == 0
    (tmp_path / file).write_text(line + "\n")
    assert run(BIN / "lint-imports", "--no-cache", cwd=tmp_path).returncode == 1


def test_starting_the_command_line_loads_no_vendors_sdk():
    sdks = ("telegram", "slack_bolt", "slack_sdk", "wechatpy", "redis", "openai", "anthropic", "mcp")
    code = f"import sys, bridge.cli, bridge.app; print([m for m in {sdks!r} if m in sys.modules])"
    result = run(sys.executable, "-c", code)
    assert result.stdout.strip() == "[]", result.stderr
