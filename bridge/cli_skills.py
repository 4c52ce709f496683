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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
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

    def command(name: str, help: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = skills.add_parser(name, parents=[common], help=help)
        return added

    listing = command("list", "show the skills, how often they were used, and what is wrong with them")
    listing.add_argument("--json", action="store_true", help="as JSON")
    lint = command("lint", "say how skills could be chosen and followed better")
    lint.add_argument("names", nargs="*", metavar="NAME", help="a skill's name or folder (default: all)")
    new = command("new", "make a skill in the workspace to begin from")
    new.add_argument("name", metavar="NAME", help="small letters, digits and single hyphens")
    command("enable", "switch a skill on").add_argument("name", metavar="NAME")
    command("disable", "switch a skill off").add_argument("name", metavar="NAME")
    install = command("install", "bring skills from a folder, a zip file or a git address")
    install.add_argument("source", metavar="SOURCE", help="a folder, a .zip, or https://, ssh://, file://")
    install.add_argument("--only", action="append", metavar="NAME", help="take only this one (repeat)")
    install.add_argument("--ref", default="", help="branch or tag of a git address")
    install.add_argument("--replace", action="store_true", help="replace your own skills of the same name")
    install.add_argument("--yes", action="store_true", help="install without asking")
    history = command("history", "show who changed a skill of the workspace, when and why")
    history.add_argument("name", metavar="NAME")
    rollback = command("rollback", "bring an earlier version of a skill back")
    rollback.add_argument("name", metavar="NAME")
    rollback.add_argument("version", metavar="VERSION", help="as `skills history` shows it")
    for one in (install, rollback, new):
        one.add_argument("--why", default="", help="a word on the reason, for the history")


async def run(config: Config, options: argparse.Namespace) -> int:
    """Do what was asked; the exit code."""
    actions: dict[str, Callable[[Config, argparse.Namespace, SkillManager], Awaitable[int]]] = {
        "list": _list,
        "lint": _lint,
        "new": _new,
        "enable": _switch,
        "disable": _switch,
        "install": _install,
        "history": _history,
        "rollback": _rollback,
    }
    from agent.skills.manager import SkillManager
    from bridge.paths import builtin_skills

    manager = SkillManager(builtin_skills(), _custom(config), environ=lambda: config.environ)
    await manager.refresh()
    from bridge.store.base import StoreError

    try:
        return await actions[options.what](config, options, manager)
    except StoreError as error:
        return _fault(error)


def _custom(config: Config) -> Path:
    return config.workspace / "skills"


def _fault(message: object) -> int:
    print(message, file=sys.stderr)
    return 1


# -- looking -----------------------------------------------------------------------------------------------


async def _list(config: Config, options: argparse.Namespace, manager: SkillManager) -> int:
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
        print(f"    {_short(skill.description)}")
    for diagnostic in skills.diagnostics:
        print(f"{'problem' if diagnostic.severity == 'error' else diagnostic.severity}: {diagnostic}")
    if not everyone:
        print(f"No skills. Make one: causeway skills new NAME (it lies in {_custom(config)} then).")
    return 0


def _as_json(skill: Skill, state: str, counts: SkillCounts) -> dict[str, Any]:
    count = counts.of(skill.name)
    return {
        "name": skill.name,
        "source": skill.source,
        "state": state or "available",
        "description": skill.description,
        "file": str(skill.file),
        "offered": count.offered,
        "read": count.read,
        "used": count.used,
    }


async def _counts(config: Config) -> SkillCounts:
    """What the bridge has counted so far; nothing when there is no store yet or it cannot be read."""
    from agent.skills.counts import SkillCounts
    from bridge.store import is_redis, open_store, sqlite_path
    from bridge.store.base import StoreError

    counts = SkillCounts()
    try:
        url = config.store.url
        if not is_redis(url) and not sqlite_path(url, config.workspace).exists():
            return counts
        store = open_store(config.store.url, config.workspace)
        await store.open()
        try:
            counts.load(await store.channel_state(COUNTS_SCOPE).get(COUNTS_KEY))
        finally:
            await store.close()
    except StoreError as error:
        print(f"The counts are not known: {error}", file=sys.stderr)
    return counts


def _short(text: str, limit: int = 74) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1].rstrip()}…"


async def _lint(config: Config, options: argparse.Namespace, manager: SkillManager) -> int:
    skills = manager.current
    try:
        checked, findings = await asyncio.to_thread(_check, options.names, skills, _custom(config))
    except (OSError, ValueError) as error:
        return _fault(error)
    lines = [f"{finding.severity}: {finding}" for finding in findings]
    broken = any(finding.severity == "error" for finding in findings)
    if not options.names:  # of files that gave no skill
        faults = [f"error: {d}" for d in skills.diagnostics if d.severity == "error"]
        lines += faults
        broken = broken or bool(faults)
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
                raise ValueError(_unknown(name, [one.name for one in skills]))
            skill, found = inspect(folder)
        checked += [skill] if skill else []
        findings += found
    return checked, findings


def _alike(checked: Sequence[Skill], skills: SkillSet) -> list[tuple[Skill, Skill, tuple[str, ...]]]:
    from agent.skills.lint import confusable

    names = {skill.name for skill in checked}
    pairs = confusable([*checked, *(skill for skill in skills if skill.name not in names)])
    return [pair for pair in pairs if names & {pair[0].name, pair[1].name}]


def _unknown(name: str, names: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, names, 1, 0.6)
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

    with tempfile.TemporaryDirectory(prefix="causeway-skills-") as staging:
        try:
            return await _install_from(config, options, manager, Path(staging))
        except InstallError as error:
            return _fault(error)


async def _install_from(
    config: Config, options: argparse.Namespace, manager: SkillManager, staging: Path
) -> int:
    from agent.skills.install import InstallError, contents, fetch, place, replaceable, shown_source

    root = await asyncio.to_thread(fetch, options.source, staging, options.ref)
    found = await asyncio.to_thread(contents, root)
    for refused in found.refused:
        print(f"left out: {refused}", file=sys.stderr)
    offers = [offer for offer in found.offers if not options.only or offer.name in options.only]
    lacking = set(options.only or ()) - {offer.name for offer in found.offers}
    if lacking:
        return _fault(f"{shown_source(options.source)} holds no skill called {', '.join(sorted(lacking))}.")
    if not offers:
        return _fault(
            f"{shown_source(options.source)} holds no skill that can be used. Nothing was installed."
        )
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
        try:
            await asyncio.to_thread(place, offer, custom, copies[offer.name])
        except InstallError as error:
            return _fault(error)
        print(f"Installed {offer.name}.")
    await _keep_version(config, manager, options.why or f"installed from {shown_source(options.source)}")
    for skill, missing in manager.current.unavailable:
        if skill.name in {offer.name for offer in offers}:
            print(f"{skill.name} cannot be used yet: missing {missing}.")
    return 0


def _described(offer: Offer, replaces: bool, hides: bool) -> str:
    """What an admin should know before a skill is let in."""
    size = sum(size for _, size in offer.files)
    lines = [f"{offer.name}: {_short(offer.skill.description, 200)}"]
    lines.append(
        f"  {len(offer.files)} files, {max(1, size // 1024)} KiB: {_names(n for n, _ in offer.files)}"
    )
    scripts = _names(offer.scripts) if offer.scripts else "none"
    lines.append(f"  scripts (run only through the bash tool): {scripts}")
    if offer.skill.allowed_tools is not None:
        lines.append(f"  tools it may use without asking: {', '.join(offer.skill.allowed_tools) or 'none'}")
    if offer.skill.requirements:
        lines.append("  it needs programs, variables or a system: see its metadata")
    if replaces:
        lines.append("  replaces your own skill of this name")
    elif hides:
        lines.append("  takes the place of the built-in skill of this name")
    lines += [f"  {finding.severity}: {finding}" for finding in offer.findings if finding.severity == "error"]
    advice = sum(1 for finding in offer.findings if finding.severity != "error")
    if advice:
        lines.append(
            f"  {advice} findings that are advice: causeway skills lint {offer.name} shows them then"
        )
    return "\n".join(lines)


def _names(names: Iterable[str], most: int = 12) -> str:
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


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
    from bridge.store import open_store

    await asyncio.to_thread(config.workspace.mkdir, parents=True, exist_ok=True)
    store = open_store(config.store.url, config.workspace, synchronous=config.store.synchronous)
    await store.open()
    try:
        shelf = StoreShelf(store.channel_state(VERSIONS_SCOPE), asyncio.get_running_loop())
        yield SkillVersions(_custom(config), shelf)
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
            return _fault(_unknown(options.name, [one.name for one in manager.current]))
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
