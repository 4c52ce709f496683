"""The command line: `causeway run`, `init`, `chat`, `doctor`, `pair …`, `sessions …`, `mcp …` and so on."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge import cli_init, cli_people, cli_skills, cli_store, doctor
from bridge.cli_mcp import add_parsers as add_mcp_parsers
from bridge.config import Config, ConfigError, load_config

if TYPE_CHECKING:
    from bridge.app import App
    from bridge.cluster.gateway import Gateway


#: File descriptors that the bridge asks for when it may have them.
_DESCRIPTORS = 65_536


def _version() -> str:
    try:
        return version("causeway")
    except PackageNotFoundError:
        return "(not installed)"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="causeway", description="A bridge from chat platforms to LLM agents.")
    top.add_argument("--version", action="version", version=f"causeway {_version()}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--config", type=Path, metavar="FILE", help="the configuration (default: "
                        "./config.yaml, then ~/.causeway/config.yaml, then built-in defaults)")  # fmt: skip
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    run = commands.add_parser("run", parents=[common], help="start the bridge (the default)")
    run.add_argument("--port", type=int, help="listen here instead of server: port (0: any free port, which "
                     "is what a worker takes)")  # fmt: skip
    run.add_argument("--role", choices=("all", "gateway", "worker"), default="all", help="one process for "
                     "all (the default), or one of several on a Redis store: a gateway holds the channels, a "
                     "worker runs the agents")  # fmt: skip
    chat = commands.add_parser("chat", parents=[common], help="talk to the bot in this terminal")
    chat.add_argument("--verbose", action="store_true", help="show the log too")
    config = commands.add_parser("config", help="look at the configuration").add_subparsers(
        dest="what", required=True, metavar="WHAT"
    )
    config.add_parser("check", parents=[common], help="say whether the configuration is right")
    add_mcp_parsers(commands, common)
    cli_skills.add_parser(commands, common)
    spoken = argparse.ArgumentParser(add_help=False)
    spoken.add_argument("--language", choices=("en", "zh"), help="of what is said (default: by the locale)")
    cli_init.add_parser(commands, [common, spoken])
    doctor.add_parser(commands, [common, spoken])
    cli_people.add_parsers(commands, [common, spoken])
    cli_store.add_parser(commands, [common, spoken])
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0 for success, 1 for a fault that was explained, 2 for wrong usage."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help", "--version")):
        arguments.insert(0, "run")
    options = parser().parse_args(arguments)
    try:
        if options.command in ("init", "doctor"):  # they deal with a faulty configuration themselves
            logging.getLogger("causeway").setLevel(logging.CRITICAL)
            return {"init": cli_init.run, "doctor": doctor.run}[options.command](options, os.environ)
        config = load_config(options.config, os.environ)
    except KeyboardInterrupt:
        return 130
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    actions: dict[str, Callable[[Config, argparse.Namespace], Coroutine[Any, Any, int]]] = {
        "run": _run,
        "chat": _chat,
        "config": _config_check,
        "mcp": _mcp,
        "skills": _skills,
        "backup": _backup,
        **dict.fromkeys(("pair", "sessions", "usage", "audit"), _people),
    }
    try:
        code = asyncio.run(actions[options.command](config, options))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except asyncio.CancelledError:  # SIGTERM in the middle of a command that leaves in order
        return 143
    except BrokenPipeError:  # whoever reads has seen enough, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _set_up_logs(config: Config, level: str | None = None) -> Any:
    from agent.tools.masking import Masker
    from bridge.log import set_up

    masker = Masker(config.secrets())
    set_up(level or config.log.level, config.log.format, masker)
    return masker


def _on_signal(wanted: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, wanted.set)


def _raise_descriptors() -> None:
    """Connections take descriptors: use what the system lets this process have, where it is set lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # not allowed here; what is set has to do
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _run(config: Config, options: argparse.Namespace) -> int:
    from bridge.http import ListenError
    from bridge.log import LoopFaults
    from bridge.process import StartError
    from bridge.store.base import StoreError

    masker = _set_up_logs(config)
    role = getattr(options, "role", "all")
    if options.port is not None:
        config.server.port = options.port
    elif role == "worker":
        config.server.port = 0  # the configured one is the gateway's
    _raise_descriptors()
    asyncio.get_running_loop().set_exception_handler(LoopFaults())
    wanted = asyncio.Event()
    _on_signal(wanted)
    app = _process(role, config, masker)
    try:
        await app.start()
    except (StartError, StoreError, ListenError) as error:
        print(error, file=sys.stderr)
        return 1
    print(_banner(app, role), flush=True)
    await wanted.wait()
    print("Stopping …", flush=True)
    await app.stop()
    return 0


def _process(role: str, config: Config, masker: Any) -> App | Gateway:
    if role == "gateway":
        from bridge.cluster.gateway import Gateway

        return Gateway(config, masker=masker)
    if role == "worker":
        from bridge.cluster.worker import Worker

        return Worker(config, masker=masker)
    from bridge.app import App

    return App(config, masker=masker)


def _banner(app: App | Gateway, role: str) -> str:
    lines = [f"Causeway {_version()} is running{'' if role == 'all' else f' as {app.name}'}."]
    if role == "worker":
        lines.append(f"  Health     {app.url}/healthz")
    elif any(channel.type == "web" for channel in app.channels.values()):
        lines.append(f"  Chat       {app.url}/{f'?key={app.key}' if app.key else ''}")
    if role != "worker" and any(channel.type == "api" for channel in app.channels.values()):
        lines.append(f"  API        {app.url}/v1")
    others = [name for name, channel in app.channels.items() if channel.type not in ("web", "api")]
    if others:
        lines.append(f"  Channels   {', '.join(others)}")
    lines += [f"  Off        {name}: {reason}" for name, reason in app.failed.items()]
    model = getattr(app, "model", None)
    name = model.name if model else "?"
    if name == "demo":
        name = "demo (no real model: set OPENAI_API_KEY or ANTHROPIC_API_KEY, or model: in config.yaml)"
    if role != "gateway":
        lines.append(f"  Model      {name}")
    lines.append(f"  Workspace  {app.workspace}")
    lines.append("Ctrl-C stops it.")
    return "\n".join(lines)


async def _chat(config: Config, options: argparse.Namespace) -> int:
    from bridge.app import App, StartError
    from bridge.store.base import StoreError
    from channels.terminal.channel import TerminalChannel

    masker = _set_up_logs(config, None if options.verbose else "error")
    settings = config.channels.get("terminal") or TerminalChannel.Config()
    config.channels = {"terminal": settings}
    app = App(config, masker=masker, serve=False)
    wanted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, wanted.set)
    try:
        await app.start()
    except (StartError, StoreError) as error:
        print(error, file=sys.stderr)
        return 1
    terminal = app.channels["terminal"]
    assert isinstance(terminal, TerminalChannel)
    ends = [asyncio.create_task(wanted.wait()), asyncio.create_task(terminal.closed.wait())]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for end in ends:
        end.cancel()
    await app.stop()
    return 0


async def _backup(config: Config, options: argparse.Namespace) -> int:
    return await cli_store.run(config, options, _set_up_logs(config, "error"))


async def _config_check(config: Config, options: argparse.Namespace) -> int:
    source = config.source or "built-in defaults (no config.yaml found)"
    print(f"The configuration is right: {source}")
    print(f"  workspace  {config.workspace}")
    print(f"  channels   {', '.join(config.channels)}")
    return 0


async def _mcp(config: Config, options: argparse.Namespace) -> int:
    from bridge.cli_mcp import run

    return await run(config, options, _set_up_logs(config, "error"))


async def _skills(config: Config, options: argparse.Namespace) -> int:
    _set_up_logs(config, "error")
    return await cli_skills.run(config, options)


async def _people(config: Config, options: argparse.Namespace) -> int:
    return await cli_people.run(config, options, _set_up_logs(config, "error"))


if __name__ == "__main__":
    raise SystemExit(main())
