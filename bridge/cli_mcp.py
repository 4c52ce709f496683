"""`causeway mcp`: looking at tool servers, testing them, and asking the running bridge to follow the file."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import re
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.tools.masking import Masker
from bridge.config import Config
from bridge.config_faults import nearest

if TYPE_CHECKING:
    from agent.tools.mcp.config import McpConfig, ServerSpec
    from agent.tools.mcp.logins import Logins
    from bridge.cli_mcp_page import Page

#: Servers that are tested at the same time.
_SIDE_BY_SIDE = 4
#: What a running bridge does about a failed server, at the end of its reason.
_ONWARDS = re.compile(r"(?:; next try in \d+ s|; mend its entry or restart it with .*)$", re.DOTALL)


class Refused(Exception):
    """A command cannot be carried out. The message says why and what to do."""


def add_parsers(top: argparse._SubParsersAction[Any], common: argparse.ArgumentParser) -> None:
    """The commands below `causeway mcp`."""
    bridge = argparse.ArgumentParser(add_help=False)
    bridge.add_argument("--port", type=int, help="the port of the running bridge, if it is not server: port")
    as_json = argparse.ArgumentParser(add_help=False)
    as_json.add_argument("--json", action="store_true", help="print JSON")
    mcp = top.add_parser("mcp", help="tool servers: list, test, reload, restart, login")
    what = mcp.add_subparsers(dest="what", required=True, metavar="WHAT")
    what.add_parser(
        "list",
        parents=[common, bridge, as_json],
        help="states, tools and costs: of the running bridge, else each server is started once",
    )
    test = what.add_parser(
        "test",
        parents=[common, as_json],
        help="test servers link by link: entry, process or address, handshake, tools, a call",
        description="Walks from the cheap end and says at which link a server breaks, why, and what to do. "
        "Works without a running bridge. The exit code is 1 when something is broken.",
    )
    test.add_argument("name", nargs="?", metavar="NAME", help="a server of mcp.json (default: all)")
    test.add_argument("--call", metavar="TOOL", help="call this tool of NAME too (it really runs)")
    test.add_argument(
        "--args", metavar="JSON", help='its arguments, for example \'{"timezone": "Asia/Tokyo"}\''
    )
    what.add_parser(
        "reload",
        parents=[common, bridge, as_json],
        help="let the running bridge follow mcp.json and skills now",
    )
    restart = what.add_parser(
        "restart", parents=[common, bridge, as_json], help="let the running bridge start a server anew"
    )
    restart.add_argument("name", metavar="NAME")
    login = what.add_parser("login", parents=[common, bridge], help="log in to a remote server by a web page")
    login.add_argument("name", metavar="NAME")


async def run(config: Config, options: argparse.Namespace, masker: Masker) -> int:
    """Carry out one of the commands; the exit code."""
    from bridge.cli_mcp_page import Page

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    if task is not None:  # on SIGTERM too the servers' processes are ended before this one
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
    page = Page(masker, as_json=getattr(options, "json", False))
    actions = {"list": _list, "test": _test, "reload": _reload, "restart": _restart, "login": _login}
    try:
        return await actions[options.what](config, options, page)
    except Refused as refusal:
        page.refuse(str(refusal))
        return 1
    except BaseExceptionGroup as group:
        if group.split(BrokenPipeError)[1] is None:  # nobody reads on, told by walks side by side
            raise BrokenPipeError from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def _file(config: Config) -> Path:
    return config.workspace / config.mcp.file


# Without a bridge ---------------------------------------------------------------------------------------


async def _list(config: Config, options: argparse.Namespace, page: Page) -> int:
    try:
        found = await _ask(config, options, "GET", "/mcp/servers")
        origin = "As the running bridge has them:"
    except Refused as why:
        found = await _start_once(config, page.masker)
        origin = f"{str(why).partition('. ')[0].rstrip('.')}. Each server was started once here:"
    return page.servers(found, _file(config), origin)


async def _start_once(config: Config, masker: Masker) -> dict[str, Any]:
    from agent.tools.mcp.hub import McpHub
    from bridge.mcp_admin import overview

    found = await asyncio.to_thread(_read, config, masker)
    async with _logins(config, masker, found.servers) as logins:
        hub = McpHub(
            _file(config),
            environ=config.environ,
            log_dir=config.workspace / "logs",
            cwd_default=config.workspace,
            on_secret=masker.add,
            start_timeout=config.mcp.start_timeout,
            logins=logins,
        )
        await hub.start(lambda: None)
        try:
            await hub.settle(config.mcp.start_timeout + 5)
            servers = await overview(hub)
        finally:
            await hub.stop()
    for server in servers["servers"]:  # nothing is tried again here
        server["reason"] = _ONWARDS.sub("", server["reason"])
    return {"file": str(_file(config)), **servers}


@asynccontextmanager
async def _logins(
    config: Config, masker: Masker, servers: Iterable[ServerSpec]
) -> AsyncIterator[Logins | None]:
    """The logins that are kept, for remote servers; no new one can begin."""
    if all(spec.kind == "stdio" for spec in servers):
        yield None
        return
    from bridge.mcp_login import McpLogin
    from bridge.store import open_store
    from bridge.store.base import StoreError

    store = open_store(config.store.url, config.workspace, synchronous=config.store.synchronous)
    try:
        await store.open()
    except StoreError as fault:
        raise Refused(str(fault)) from fault
    logins = McpLogin(store, lambda: "", on_secret=masker.add).logins
    try:
        yield logins
    finally:
        await logins.stop()
        await store.close()


def _read(config: Config, masker: Masker) -> McpConfig:
    """What mcp.json says; blocking. Raises Refused when the file as a whole is unusable."""
    from agent.tools.mcp.config import ConfigError, McpConfig, parse_config

    path = _file(config)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return McpConfig()
    except OSError as fault:
        raise Refused(f"{path} cannot be read: {fault.strerror}. Check its rights.") from fault
    try:
        return parse_config(
            data, environ=config.environ, on_secret=masker.add, start_timeout=config.mcp.start_timeout
        )
    except ConfigError as fault:
        raise Refused(f"{path}{f':{fault.line}' if fault.line else ''}: {fault}") from fault


def _no_such(name: str, known: list[str], path: Path) -> Refused:
    if not known:
        return Refused(f"There is no server {name!r}: {path} names none.")
    meant = nearest(name, known)
    hint = f"Did you mean {meant!r}? " if meant else ""
    return Refused(f"There is no server {name!r} in {path}. {hint}It names: {', '.join(sorted(known))}.")


def _call_of(options: argparse.Namespace) -> tuple[str, dict[str, Any]] | None:
    if options.call is None:
        if options.args is not None:
            raise Refused("--args goes with --call TOOL.")
        return None
    if options.name is None:
        raise Refused(f"Name the server too: causeway mcp test NAME --call {options.call}")
    example = f"Write an object, for example --args '{json.dumps({'city': 'Oslo'})}'"
    try:
        arguments = json.loads(options.args or "{}")
    except ValueError as fault:
        raise Refused(f"--args is no JSON ({fault}). {example}") from fault
    if not isinstance(arguments, dict):
        raise Refused(f"--args is no JSON object. {example}")
    return options.call, arguments


async def _test(config: Config, options: argparse.Namespace, page: Page) -> int:
    from agent.tools.mcp.alone import Step
    from agent.tools.mcp.probe import Probe, probe
    from agent.tools.mcp.surroundings import Sdk, Surroundings

    call = _call_of(options)
    found = await asyncio.to_thread(_read, config, page.masker)
    bad = {entry.name: entry for entry in found.bad}
    known = [*(spec.name for spec in found.servers), *bad]
    if options.name is not None and options.name not in known:
        raise _no_such(options.name, known, _file(config))
    wanted = [options.name] if options.name is not None else list(dict.fromkeys(known))
    if not wanted:
        return page.no_servers(_file(config))
    specs = {spec.name: spec for spec in found.servers}
    if options.name is None:
        wanted = [name for name in wanted if name in bad or not specs[name].disabled]
    limit = asyncio.Semaphore(_SIDE_BY_SIDE)

    async def walk(name: str) -> Probe:
        if name in bad:
            at = f" (line {bad[name].line})" if bad[name].line else ""
            broken = Probe(name, [Step("entry", "broken", f"{bad[name].reason}{at}")])
            for step in broken.steps if live else ():
                page.step(step)
            return broken
        async with limit:
            on_step = page.step if live else lambda step: None
            warnings = _warnings(found, name)
            return await probe(specs[name], around, call=call, warnings=warnings, on_step=on_step)

    live = len(wanted) == 1 and not page.as_json
    if live:
        page.title(wanted[0])
    async with _logins(config, page.masker, specs.values()) as logins, asyncio.TaskGroup() as group:
        around = Surroundings(config.environ, None, config.workspace, Sdk(), logins=logins)
        walks = [group.create_task(walk(name)) for name in wanted]
        probes = [page.walked(await one, steps=not live) for one in walks]
    return page.tested(probes, off=len(known) - len(wanted) if options.name is None else 0)


def _warnings(found: McpConfig, name: str) -> tuple[str, ...]:
    """What reading the file had to say about one entry."""
    prefix = f"{name}: "
    return tuple(text.removeprefix(prefix) for text in found.warnings if text.startswith(prefix))


# With a bridge ------------------------------------------------------------------------------------------


async def _reload(config: Config, options: argparse.Namespace, page: Page) -> int:
    return page.reloaded(await _ask(config, options, "POST", "/mcp/reload"))


async def _restart(config: Config, options: argparse.Namespace, page: Page) -> int:
    found = await _ask(config, options, "POST", "/mcp/restart", name=options.name)
    return page.restarted(found, options.name)


async def _login(config: Config, options: argparse.Namespace, page: Page) -> int:
    found = await asyncio.to_thread(_read, config, page.masker)
    spec = next((spec for spec in found.servers if spec.name == options.name), None)
    if spec is None:
        bad = next((entry for entry in found.bad if entry.name == options.name), None)
        if bad is not None:
            raise Refused(f"The entry of {options.name!r} is faulty: {bad.reason}")
        raise _no_such(options.name, [spec.name for spec in found.servers], _file(config))
    from bridge.mcp_login import login_here

    code = await login_here(config, spec.name, say=page.whole, on_secret=page.masker.add)
    if code == 0:
        with suppress(Refused):  # without a bridge there is nothing to restart
            await _ask(config, options, "POST", "/mcp/restart", name=spec.name)
            page.say("The running bridge uses it from now on.")
    return code


async def _ask(config: Config, options: argparse.Namespace, method: str, path: str, **query: str) -> Any:
    """What the running bridge of this workspace answers. Raises Refused when there is none or it refuses."""
    import aiohttp

    base = await asyncio.to_thread(_base_url, config, options.port)
    key = await asyncio.to_thread(_key, config)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limit = aiohttp.ClientTimeout(total=config.mcp.start_timeout + 30, sock_connect=5)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit, headers=headers) as client,
            client.request(method, base + path, params=query) as response,
        ):
            text = await response.text()
    except (aiohttp.ClientConnectionError, OSError) as fault:
        raise Refused(await asyncio.to_thread(_absent, config, base)) from fault
    except TimeoutError as fault:
        raise Refused(f"The bridge at {base} did not answer in time. Look into its log.") from fault
    if response.status in (401, 403):
        raise Refused(f"The bridge at {base} refuses this: {text.strip()[:300]}")
    return _understood(config, base, text, response.status, query.get("name", ""))


def _understood(config: Config, base: str, text: str, status: int, name: str) -> Any:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or "file" not in found:
        raise Refused(
            f"What answers at {base} is no bridge, or one of another version. Restart the bridge, or give "
            "its port with --port."
        )
    if found["file"] != str(_file(config)):
        raise Refused(
            f"The bridge at {base} works with {found['file']}, not with {_file(config)}. Give its "
            "configuration with --config, or the other bridge's port with --port."
        )
    if status == 404:
        raise {
            "disabled": Refused(
                f"{name!r} is switched off ('disabled' in {found['file']}). Switch it on there."
            ),
            "bad entry": Refused(f"The entry of {name!r} is faulty. causeway mcp test {name} says why."),
        }.get(str(found.get("error")), _no_such(name, found.get("known", []), _file(config)))
    return found


def _base_url(config: Config, port: int | None) -> str:
    """Where the bridge should listen; blocking. Raises Refused when that cannot be known."""
    host = config.server.host
    if host in ("0.0.0.0", "::", ""):  # noqa: S104 (compared, not bound)
        host = "127.0.0.1"
    port = config.server.port if port is None else port
    base = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    if port == 0:
        raise Refused(_absent(config, base))
    return base


def _key(config: Config) -> str | None:
    """The key that guards the bridge, if it has one; none is made here."""
    if config.server.key is not None:
        return config.server.key.get_secret_value()
    with suppress(OSError):
        return (config.workspace / "server.key").read_text(encoding="ascii").strip()
    return None


def _absent(config: Config, base: str) -> str:
    """Why nobody answers: the lock of the workspace tells whether a bridge runs."""
    with suppress(OSError), (config.workspace / "causeway.lock").open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return (
                f"A bridge runs in {config.workspace}, but not at {base}. Give the port that it printed at "
                "its start with --port."
            )
    return (
        f"No bridge runs in {config.workspace}. Start it with causeway run; it reads {config.mcp.file} at "
        "its start, and after each reply."
    )
