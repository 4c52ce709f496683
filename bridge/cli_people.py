"""`causeway pair`: who may talk; and the command line of `sessions`, `usage` and `audit`.

Letting people in is done by the running bridge, so that it counts at once and they are told; without one it
is done in the store.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.tools.masking import Masker
from bridge.cli_records import GROUPS, Wrong, audit, sessions, usage
from bridge.cli_terminal import Terminal
from bridge.config import Config
from bridge.house_admin import Refusal, carry_out
from bridge.running import Unreached
from bridge.store.base import StoreError


def add_parsers(commands: Any, parents: Sequence[argparse.ArgumentParser]) -> None:
    """Add the four commands to the command line."""
    as_json = argparse.ArgumentParser(add_help=False)
    as_json.add_argument("--json", action="store_true", help="print JSON")
    bridge = argparse.ArgumentParser(add_help=False)
    bridge.add_argument("--port", type=int, help="the port of the running bridge, if it is not server: port")
    both = [*parents, as_json]

    def below(name: str, help: str) -> Callable[..., argparse.ArgumentParser]:
        what = commands.add_parser(name, help=help).add_subparsers(dest="what", required=True, metavar="WHAT")

        def command(name: str, help: str, *more: argparse.ArgumentParser) -> argparse.ArgumentParser:
            added: argparse.ArgumentParser = what.add_parser(name, parents=[*both, *more], help=help)
            return added

        return command

    pair = below("pair", "let people in: list, approve, deny, invite, revoke, people")
    pair("list", "who asks to be let in", bridge)
    approve = pair("approve", "let the person of a code in", bridge)
    deny = pair("deny", "refuse a request", bridge)
    invite = pair("invite", "make a code that lets one person in, valid for a day", bridge)
    invite.add_argument("--channel", metavar="NAME", help="where (default: the only channel)")
    revoke = pair("revoke", "take back what was granted to somebody", bridge)
    revoke.add_argument("channel", metavar="CHANNEL")
    revoke.add_argument("person", metavar="ID")
    pair("people", "who may talk, and as what", bridge)
    for one in (approve, deny):
        one.add_argument("code", metavar="CODE")
    for one in (approve, invite):
        one.add_argument(
            "--role",
            choices=("admin", "member", "guest"),
            help="what they become (default: admin where there is none yet, else member)",
        )

    sessions = below("sessions", "conversations: list, show, export, delete")
    listing = sessions("list", "the conversations that are kept")
    listing.add_argument("--channel", metavar="NAME", help="only of this channel")
    listing.add_argument("-n", type=_days, metavar="N", help="so many, newest last (default: 200; JSON: all)")
    show = sessions("show", "what was said in one")
    export = sessions("export", "write one to a file, or to the terminal")
    export.add_argument("--format", choices=("json", "md"), default="json")
    export.add_argument("-o", "--output", type=Path, metavar="FILE")
    delete = sessions("delete", "delete one for good, with its files", bridge)
    delete.add_argument("--yes", action="store_true", help="without asking")
    for one in (show, export, delete):
        one.add_argument("key", metavar="KEY", help="its key, or a part that only it has")

    usage = commands.add_parser("usage", parents=both, help="what was used, and what it cost")
    usage.add_argument("--days", type=_days, default=30, help="how many, today included (default: 30)")
    usage.add_argument("--by", choices=tuple(GROUPS), default="person")
    usage.add_argument("-n", type=_days, metavar="N", help="so many, largest first (default: 200; JSON: all)")
    audit = commands.add_parser("audit", parents=both, help="who allowed or refused which dangerous call")
    audit.add_argument("-n", type=_days, default=50, metavar="N", help="so many, newest last (default: 50)")


def _days(value: str) -> int:
    number = int(value)
    if not 1 <= number <= 100_000:
        raise ValueError(value)
    return number


async def run(config: Config, options: argparse.Namespace, masker: Masker) -> int:
    """Carry out one of the commands; the exit code."""
    terminal = Terminal(options.language, os.environ, masker)
    actions = {"pair": _pair, "sessions": sessions, "usage": usage, "audit": audit}
    try:
        return await actions[options.command](config, options, terminal)
    except (Wrong, Unreached, StoreError) as error:
        message = str(error)
    except Refusal as refusal:
        message = _refused(refusal.key, refusal.values, terminal)
    if options.json:
        terminal.json({"error": message})
    else:
        terminal.complain(message)
    return 1


# -- people ------------------------------------------------------------------------------------------------


async def _pair(config: Config, options: argparse.Namespace, terminal: Terminal) -> int:
    what = options.what
    method, path = ("GET", "/people") if what in ("list", "people") else ("POST", f"/pair/{what}")
    names = ("code", "role", "channel", "person")
    asked = {name: value for name in names if (value := getattr(options, name, None)) is not None}

    def beside(why: Unreached) -> None:
        terminal.complain(terminal.text("cli.pair.beside", reason=why))

    found = await carry_out(config, options.port, method, path, asked, beside=beside)
    if options.json:
        terminal.json(found)
    elif what in ("list", "people"):
        _show_people(found, terminal, waiting=what == "list")
    else:
        _show_done(what, found, terminal)
    return 0


def _show_people(found: Mapping[str, Any], terminal: Terminal, *, waiting: bool) -> None:
    if not waiting:
        rows = [
            (
                one["channel"],
                one["person"],
                terminal.text(f"role.{one['role']}"),
                one["by"],
                _day(one.get("at")),
            )
            for one in found["people"]
        ]
        terminal.table(terminal.text("cli.pair.columns.people").split("|"), rows, "cli.pair.nobody")
        return
    rows = [
        (one["code"], one["channel"], one["person"], one["name"], _minutes(one["until"]))
        for one in found["waiting"]
    ]
    terminal.table(terminal.text("cli.pair.columns").split("|"), rows, "cli.pair.none")
    if rows:
        terminal.say("cli.pair.how")


def _show_done(what: str, found: Mapping[str, Any], terminal: Terminal) -> None:
    role = terminal.text(f"role.{found['role']}") if found.get("role") else ""
    name = found.get("name") or found.get("person", "")
    values = {**found, "role": role, "name": name}
    terminal.say(f"cli.pair.{what}", **values)
    if found.get("first"):
        terminal.say(f"cli.pair.first.{what}", channel=found["channel"])
    if what == "approve":
        terminal.say("cli.pair.told" if found.get("told") else "cli.pair.not_told", name=name)
    if found.get("still"):
        still = terminal.text(f"role.{found['still']}")
        terminal.say("cli.pair.still", channel=found["channel"], role=still)


def _refused(key: str, values: Mapping[str, Any], terminal: Terminal) -> str:
    known = ", ".join(values.get("known", ())) or "-"
    if key == "channel" and not values.get("channel"):
        key = "channel.which" if values.get("known") else "channel.none"
    return terminal.text(f"cli.refused.{key}", **{**values, "known": known})


def _day(at: float | None) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at)) if at else ""


def _minutes(until: float) -> str:
    return f"{max(0, round((until - time.time()) / 60))} min"
