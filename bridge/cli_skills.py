"""`causeway skills ...`: list, lint, new, enable, disable, install, history, rollback.

A running bridge follows what these commands change at its next upkeep; it need not run.
"""

# ruff: noqa: T201 (a command line prints)
from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge.config import Config
from bridge.keys import COUNTS_KEY, COUNTS_SCOPE

if TYPE_CHECKING:
    from agent.skills.counts import SkillCounts
    from agent.skills.install import Offer
    from agent.skills.lint import Finding
    from agent.skills.manager import SkillManager
    from agent.skills.skill import Skill, SkillSet
    from bridge.skill_versions import SkillVersions
    from channels.base import ChannelState

_Action = Callable[[Config, argparse.Namespace, "SkillManager"], Awaitable[int]]

_SKELETON = """\
---
name: {name}
description: >-
  Answers questions about {title} from the notes in this folder. Use when someone asks about {title} by name,
  its dates, its people or its rules. Do not use for other topics, or to change the notes.
---

# {title}

## Steps

1. Read `references/notes.md`.
2. Answer from it in at most five lines, and name the heading that the answer comes from.
3. If the notes do not hold the answer, say so. Never guess.
"""
_NOTES = "# Notes on {title}\n\n## Dates\n\n## People\n\n## Rules\n"


def add_parser(subparsers: Any, common: argparse.ArgumentParser) -> None:
    """Add `skills` and its commands to the command line."""
    skills = subparsers.add_parser("skills", help="list, check, add and change skills").add_subparsers(
        dest="what", required=True, metavar="WHAT"
    )

    def command(name: str, action: _Action, help: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = skills.add_parser(name, parents=[common], help=help)
        added.set_defaults(action=action)
        return added

    listing = command("list", _list, "show the skills, how often they were used, and what is wrong with them")
    listing.add_argument("--json", action="store_true", help="as JSON")
    lint = command("lint", _lint, "say how skills could be chosen and followed better")
    lint.add_argument("names", nargs="*", metavar="NAME", help="a skill's name or folder (default: all)")
    new = command("new", _new, "make a skill in the workspace to begin from")
    new.add_argument("name", metavar="NAME", help="small letters, digits and single hyphens")
    command("enable", _switch, "switch a skill on").add_argument("name", metavar="NAME")
    command("disable", _switch, "switch a skill off").add_argument("name", metavar="NAME")
    install = command("install", _install, "bring skills from a folder, a zip file or a git address")
    install.add_argument("source", metavar="SOURCE", help="a folder, a .zip, or https://, ssh://, file://")
    install.add_argument("--only", action="append", metavar="NAME", help="take only this one (repeat)")
    install.add_argument("--ref", default="", help="branch or tag of a git address")
    install.add_argument("--replace", action="store_true", help="replace your own skills of the same name")
    install.add_argument("--yes", action="store_true", help="install without asking")
    history = command("history", _history, "show who changed a skill of the workspace, when and why")
    history.add_argument("name", metavar="NAME")
    rollback = command("rollback", _rollback, "bring an earlier version of a skill back")
    rollback.add_argument("name", metavar="NAME")
    rollback.add_argument("version", metavar="VERSION", help="as `skills history` shows it")
    for one in (install, rollback, new):
        one.add_argument("--why", default="", help="a word on the reason, for the history")


async def run(config: Config, options: argparse.Namespace) -> int:
    """Do what was asked; the exit code."""
    from agent.skills.manager import SkillManager
    from bridge.paths import builtin_skills
    from bridge.store.base import StoreError

    manager = SkillManager(builtin_skills(), _custom(config), environ=lambda: config.environ)
    await manager.refresh()
    action: _Action = options.action
    try:
        return await action(config, options, manager)
    except StoreError as error:
        return _fault(error)


def _custom(config: Config) -> Path:
    return config.workspace / "skills"


def _fault(message: object) -> int:
    print(message, file=sys.stderr)
    return 1


# -- looking -----------------------------------------------------------------------------------------------


async def _list(config: Config, options: argparse.Namespace, manager: SkillManager) -> int:
    from agent.skills.formatter import clean

    skills, counts = manager.current, await _counts(config)
    states = {skill.name: "" for skill in skills.available}
    states |= {skill.name: f"missing {missing}" for skill, missing in skills.unavailable}
    states |= {skill.name: "switched off" for skill in skills.disabled}
    everyone = sorted(skills, key=lambda skill: skill.name)
    if options.json:
        every = [_as_json(skill, states[skill.name], counts) for skill in everyone]
        problems = [str(diagnostic) for diagnostic in skills.diagnostics]
        print(json.dumps({"skills": every, "problems": problems}, ensure_ascii=False, indent=2))
        return 0
    for skill in everyone:
        source = "yours" if skill.source == "custom" else "built in"
        state = f"  [{states[skill.name]}]" if states[skill.name] else ""
        print(f"{skill.name}  ({source}; {counts.of(skill.name)}){state}")
        print(f"    {clean(skill.description, 74)}")
    for diagnostic in skills.diagnostics:
        print(f"{'problem' if diagnostic.severity == 'error' else diagnostic.severity}: {diagnostic}")
    if not everyone:
        print(f"No skills. Make one: causeway skills new NAME (it lies in {_custom(config)} then).")
    return 0


def _as_json(skill: Skill, state: str, counts: SkillCounts) -> dict[str, Any]:
    return {
        "name": skill.name,
        "source": skill.source,
        "state": state or "available",
        "description": skill.description,
        "file": str(skill.file),
        **asdict(counts.of(skill.name)),
    }


async def _counts(config: Config) -> SkillCounts:
    """What the bridge has counted so far; nothing when there is no store yet or it cannot be read."""
    from agent.skills.counts import SkillCounts
    from bridge.store import is_redis, sqlite_path
    from bridge.store.base import StoreError

    counts, url = SkillCounts(), config.store.url
    try:
        if not is_redis(url) and not sqlite_path(url, config.workspace).exists():
            return counts
        async with _notes(config, COUNTS_SCOPE) as notes:
            counts.load(await notes.get(COUNTS_KEY))
    except StoreError as error:
        print(f"The counts are not known: {error}", file=sys.stderr)
    return counts


async def _lint(config: Config, options: argparse.Namespace, manager: SkillManager) -> int:
    skills = manager.current
    try:
        checked, findings = await asyncio.to_thread(_check, options.names, skills, _custom(config))
    except (OSError, ValueError) as error:
        return _fault(error)
    lines = [f"{finding.severity}: {finding}" for finding in findings]
    if not options.names:  # of files that gave no skill
        lines += [f"error: {d}" for d in skills.diagnostics if d.severity == "error"]
    broken = any(line.startswith("error: ") for line in lines)
    for first, second, shared in await asyncio.to_thread(_alike, checked, skills):
        lines.append(
            f"warning: {first.name} and {second.name} are easily taken for each other; both speak of "
            f"{', '.join(shared[:6])}. To mend it: say in each when the other is meant, by its name. [alike]"
        )
    print("\n".join([*lines, f"{len(checked)} checked, {len(lines)} findings."]))
    return 1 if broken else 0


def _check(names: Sequence[str], skills: SkillSet, custom: Path) -> tuple[list[Skill], list[Finding]]:
    """The skills of these names or folders (none: all), and what is found on them. Raises ValueError."""
    from agent.skills.lint import inspect, inspect_skill

    checked: list[Skill] = []
    findings: list[Finding] = []
    for name in names or sorted(skill.name for skill in skills):
        skill = skills.find(name)
        if skill is not None:
            found = inspect_skill(skill)
        else:
            folder = next((f for f in (Path(name), custom / name) if f.is_dir()), None)
            if folder is None:
                raise ValueError(_unknown(name, skills))
            skill, found = inspect(folder)
        checked += [skill] if skill else []
        findings += found
    return checked, findings


def _alike(checked: Sequence[Skill], skills: SkillSet) -> list[tuple[Skill, Skill, tuple[str, ...]]]:
    from agent.skills.lint import confusable

    names = {skill.name for skill in checked}
    pairs = confusable([*checked, *(skill for skill in skills if skill.name not in names)])
    return [pair for pair in pairs if names & {pair[0].name, pair[1].name}]


def _unknown(name: str, skills: SkillSet) -> str:
    import difflib

    near = difflib.get_close_matches(name, [skill.name for skill in skills], 1, 0.6)
    hint = f"Did you mean {near[0]}?" if near else "`causeway skills list` shows them."
    return f"There is no skill called {name[:80]!r}. {hint}"


# -- making and switching ----------------------------------------------------------------------------------


async def _new(config: Config, options: argparse.Namespace, manager: SkillManager) -> int:
    import re

    name = options.name
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) or len(name) > 64:
        return _fault(f"{name!r} is no name for a skill. Use small letters, digits and single hyphens.")
    folder = _custom(config) / name
    if folder.exists() or manager.current.find(name):
        return _fault(f"There is a skill called {name} already. Choose another name, or edit that one.")
    title = name.replace("-", " ").capitalize()
    await _keep_version(config, manager)
    try:
        (folder / "references").mkdir(parents=True)
        (folder / "SKILL.md").write_text(_SKELETON.format(name=name, title=title), "utf-8")
        (folder / "references" / "notes.md").write_text(_NOTES.format(title=title), "utf-8")
    except OSError as error:
        return _fault(f"{folder} cannot be made: {error.strerror}.")
    await _keep_version(config, manager, options.why or "made from the skeleton")
    print(f"Made {folder}/SKILL.md. It is an example: put your own words into it,")
    print(f"then run: causeway skills lint {name}")
    return 0


async def _switch(config: Config, options: argparse.Namespace, manager: SkillManager) -> int:
    from agent.skills.manager import SwitchesBroken, UnknownSkill

    try:
        await manager.set_enabled(options.name, options.what == "enable")
    except (UnknownSkill, SwitchesBroken) as error:
        return _fault(error)
    print(f"{options.name} is switched {'on' if options.what == 'enable' else 'off'}.")
    for skill, missing in manager.current.unavailable:
        if skill.name == options.name:
            print(f"It cannot be used yet: missing {missing}.")
    return 0


# -- installing --------------------------------------------------------------------------------------------


async def _install(config: Config, options: argparse.Namespace, manager: SkillManager) -> int:
    from agent.skills.install import InstallError

    try:
        with tempfile.TemporaryDirectory(prefix="causeway-skills-") as staging:
            return await _install_from(config, options, manager, Path(staging))
    except InstallError as error:
        return _fault(error)


async def _install_from(
    config: Config, options: argparse.Namespace, manager: SkillManager, staging: Path
) -> int:
    from agent.skills.install import contents, fetch, place, replaceable, shown_source

    root = await asyncio.to_thread(fetch, options.source, staging, options.ref)
    found = await asyncio.to_thread(contents, root)
    for refused in found.refused:
        print(f"left out: {refused}", file=sys.stderr)
    offers = [offer for offer in found.offers if not options.only or offer.name in options.only]
    source = shown_source(options.source)
    lacking = set(options.only or ()) - {offer.name for offer in found.offers}
    if lacking:
        return _fault(f"{source} holds no skill called {', '.join(sorted(lacking))}.")
    if not offers:
        return _fault(f"{source} holds no skill that can be used. Nothing was installed.")
    custom = _custom(config)
    copies = {offer.name: await asyncio.to_thread(replaceable, offer.name, custom) for offer in offers}
    builtin = {skill.name for skill in manager.current if skill.source == "builtin"}
    for offer in offers:
        print(_described(offer, copies[offer.name] is not None, offer.name in builtin))
    taken = [offer.name for offer in offers if copies[offer.name]]
    if taken and not options.replace:
        return _fault(f"You have {', '.join(taken)} already. Nothing was installed. Use --replace to replace "
                      "your copy (the old one stays in `skills history`), or --only to choose.")  # fmt: skip
    if not options.yes and not _agreed(len(offers)):
        return _fault("Nothing was installed. Repeat with --yes if this is what you want.")
    await _keep_version(config, manager)
    for offer in offers:
        await asyncio.to_thread(place, offer, custom, copies[offer.name])
        print(f"Installed {offer.name}.")
    await _keep_version(config, manager, options.why or f"installed from {source}")
    for skill, missing in manager.current.unavailable:
        if skill.name in {offer.name for offer in offers}:
            print(f"{skill.name} cannot be used yet: missing {missing}.")
    return 0


def _described(offer: Offer, replaces: bool, hides: bool) -> str:
    """What an admin should know before a skill is let in."""
    from agent.skills.formatter import clean

    size = sum(size for _, size in offer.files)
    names = _names([name for name, _ in offer.files])
    lines = [
        f"{offer.name}: {clean(offer.skill.description, 200)}",
        f"  {len(offer.files)} files, {max(1, size // 1024)} KiB: {names}",
        f"  scripts (run only through the bash tool): {_names(offer.scripts) or 'none'}",
    ]
    if offer.skill.allowed_tools is not None:
        lines.append(f"  tools it may use without asking: {', '.join(offer.skill.allowed_tools) or 'none'}")
    if offer.skill.requirements:
        lines.append("  it needs programs, variables or a system: see its metadata")
    if replaces:
        lines.append("  replaces your own skill of this name")
    elif hides:
        lines.append("  takes the place of the built-in skill of this name")
    faults = [f"  error: {finding}" for finding in offer.findings if finding.severity == "error"]
    lines += faults
    if advice := len(offer.findings) - len(faults):
        lines.append(
            f"  {advice} findings that are advice: causeway skills lint {offer.name} shows them then"
        )
    return "\n".join(lines)


def _names(names: Sequence[str], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _agreed(count: int) -> bool:
    if not sys.stdin.isatty():
        return False
    what = "this skill" if count == 1 else f"these {count} skills"
    return input(f"Install {what}? [y/N] ").strip().casefold() in ("y", "yes")


@asynccontextmanager
async def _versions(config: Config) -> AsyncIterator[SkillVersions]:
    """The versions, in the store that a running bridge may have open too."""
    from bridge.skill_shelf import VERSIONS_SCOPE, StoreShelf
    from bridge.skill_versions import SkillVersions

    await asyncio.to_thread(config.workspace.mkdir, parents=True, exist_ok=True)
    async with _notes(config, VERSIONS_SCOPE) as notes:
        yield SkillVersions(_custom(config), StoreShelf(notes, asyncio.get_running_loop()))


@asynccontextmanager
async def _notes(config: Config, scope: str) -> AsyncIterator[ChannelState]:
    """What the store keeps under `scope`. Raises StoreError."""
    from bridge.store import open_store

    store = open_store(config.store.url, config.workspace, synchronous=config.store.synchronous)
    await store.open()
    try:
        yield store.channel_state(scope)
    finally:
        await store.close()


# -- versions ----------------------------------------------------------------------------------------------


async def _keep_version(config: Config, manager: SkillManager, why: str = "") -> None:
    """Keep what changed. Called without a reason before a command changes something, so that what others
    did is not put down to it."""
    from bridge.skill_versions import whoami

    await manager.refresh()
    async with _versions(config) as versions:
        await asyncio.to_thread(versions.record, tuple(manager.current), whoami() if why else "", why)


async def _history(config: Config, options: argparse.Namespace, manager: SkillManager) -> int:
    skill = manager.current.find(options.name)
    async with _versions(config) as kept:
        versions = await asyncio.to_thread(kept.history, options.name, skill)
    if not versions:
        if skill is None:
            return _fault(_unknown(options.name, manager.current))
        kind = "It came with the program." if skill.source == "builtin" else "The bridge keeps one at upkeep."
        return _fault(f"There are no versions of {options.name} yet. {kind}")
    for one in versions:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.when))
        print(f"{one.id:>8}  {when}  {one.who:12}  {one.why}")
    return 0


async def _rollback(config: Config, options: argparse.Namespace, manager: SkillManager) -> int:
    from bridge.skill_versions import VersionError, whoami

    skill = manager.current.find(options.name)
    skill = skill if skill is not None and skill.source == "custom" else None
    try:
        async with _versions(config) as versions:
            made = await asyncio.to_thread(
                versions.rollback, options.name, options.version, skill, whoami(), options.why
            )
    except VersionError as error:
        return _fault(error)
    print(f"{options.name} is as in version {options.version} again (now version {made.id}).")
    return 0
