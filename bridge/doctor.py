"""`causeway doctor`: looks at everything a bridge needs and says what to change. It changes nothing."""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agent.tools.masking import Masker
from bridge.cli_terminal import Terminal
from bridge.config import Config, ConfigError, load_config
from bridge.doctor_checks import CHECKS, Check, Scene, channel_check, machine
from bridge.doctor_outside import CHANNEL, PROBE
from bridge.house_admin import chat_channels
from bridge.running import runs
from bridge.store.base import StoreError
from bridge.texts import text
from bridge.texts_cli import terminal_language
from channels.base import Finding

log = logging.getLogger("causeway.doctor")

#: Seconds for one check.
_DEADLINE = 20.0
_MARKS = {"ok": "✓", "warning": "!", "error": "✗"}
_PLAIN_MARKS = {"ok": "ok", "warning": "!", "error": "x"}


@dataclass(frozen=True, slots=True)
class Group:
    """What one check found. `name` is for programs, `title` for people."""

    name: str
    title: str
    findings: tuple[Finding, ...]


async def examine(
    config: Config, language: str, *, probe: bool = False, skip: Collection[str] = ()
) -> list[Group]:
    """All checks side by side, each with a deadline, save those named in `skip`."""
    running = await asyncio.to_thread(runs, config)
    scene = Scene(config, language, probe, running)
    every: dict[str, Check] = {}
    for name, check in CHECKS.items():
        every[name] = check
        if name == "model":
            every |= {f"channel:{one}": channel_check(one) for one in chat_channels(config)}
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_run(name, check, scene)) for name, check in every.items() if name not in skip
        ]
    return [found for task in tasks if (found := task.result()).findings]


async def _run(name: str, check: Check, scene: Scene) -> Group:
    kind, _, instance = name.partition(":")
    title = text(f"doctor.title.{kind}", scene.language) + (f" {instance}" if instance else "")
    deadline = _DEADLINE
    if kind == "channel":
        deadline = CHANNEL + 5
    elif kind == "model" and scene.probe:
        deadline = (PROBE + 10) * (1 + len(scene.config.model.fallbacks))
    try:
        async with asyncio.timeout(deadline):
            found = await check(scene)
    except TimeoutError:
        found = [scene.say("error", "late", seconds=round(deadline))]
    except StoreError as error:
        found = [Finding("error", str(error))]
    except Exception as error:
        # One check with a fault of its own must not hide what the others found.
        log.exception("the check of %s failed", name)
        found = [scene.say("error", "failed", reason=f"{type(error).__name__}: {error}")]
    return Group(name, title, tuple(found))


def faults(error: ConfigError, language: str) -> list[Group]:
    """What can be said when the configuration does not load."""
    found = tuple(Finding("error", fault.text(error.file)) for fault in error.faults)
    return [
        Group("configuration", text("doctor.title.configuration", language), found),
        Group("machine", text("doctor.title.machine", language), tuple(machine(language))),
    ]


def show(groups: Sequence[Group], terminal: Terminal, *, brief: bool = False) -> bool:
    """Print the findings (`brief`: only what is to be changed); whether there is no error."""
    for group in groups:
        found = [one for one in group.findings if not brief or one.level != "ok"]
        if found:
            terminal.raw(f"{group.title}\n")
            show_findings(found, terminal)
    errors, warnings = count(groups)
    terminal.say("doctor.sum" if errors or warnings else "doctor.well", errors=errors, warnings=warnings)
    return not errors


def show_findings(findings: Sequence[Finding], terminal: Terminal) -> None:
    plain = not terminal.can_show("".join(_MARKS.values()) + "→")
    marks, arrow = (_PLAIN_MARKS, "  ") if plain else (_MARKS, "→ ")
    for one in findings:
        terminal.raw(f"  {marks[one.level]} " + one.what.replace("\n", "\n    ") + "\n")
        if one.cure:
            terminal.raw(f"      {arrow}" + one.cure.replace("\n", "\n        ") + "\n")


def count(groups: Sequence[Group]) -> tuple[int, int]:
    levels = [one.level for group in groups for one in group.findings]
    return levels.count("error"), levels.count("warning")


def add_parser(commands: Any, parents: Sequence[argparse.ArgumentParser]) -> None:
    doctor = commands.add_parser(
        "doctor", parents=parents, help="look at everything a bridge needs and say what to change"
    )
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.add_argument("--probe", action="store_true", help="ask the model for a real, tiny answer")


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Look and print; 1 when there is an error."""
    language = terminal_language(environ, options.language)
    try:
        config = load_config(options.config, environ)
        masker = Masker(config.secrets())
        groups = asyncio.run(examine(config, language, probe=options.probe))
    except ConfigError as error:
        masker = Masker()
        groups = faults(error, language)
    terminal = Terminal(language, environ, masker)
    errors, warnings = count(groups)
    if not options.json:
        show(groups, terminal)
        return 1 if errors else 0
    terminal.json(
        {
            "ok": not errors,
            "errors": errors,
            "warnings": warnings,
            "groups": [
                {"name": group.name, "findings": [asdict(one) for one in group.findings]} for group in groups
            ],
        }
    )
    return 1 if errors else 0
