"""One server alone, without the client: its process, or its address. The cheap end of `probe`."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from agent.tools.mcp.config import ServerSpec
from agent.tools.mcp.process import Child, StderrLog, child_environment
from agent.tools.mcp.surroundings import Surroundings

LinkName = Literal["entry", "process", "address", "handshake", "tools", "call"]
_HELLO: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "causeway", "version": "1"},
    },
}
_ADDRESS_LIMIT = 15.0  # seconds for an address to answer
_BEGINNING = 64 * 1024  # bytes of an answer that are read
_MOST_NOISE = 1_000  # lines
_QUOTED = 100  # characters of a server's words that are shown
#: What brings a command that many entries begin with.
_LAUNCHERS = {
    "npx": "It comes with Node.js.",
    "node": "Install Node.js.",
    "uvx": "It comes with uv (pip install uv).",
    "uv": "pip install uv brings it.",
    "python": 'Many systems call it "python3".',
    "docker": "Install Docker, or a variant of the server that needs none.",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One link of the chain. "odd" works here, but is no good. `text` is what was found or what broke and
    why, `cure` what to do about it (may be empty: then the text says it)."""

    link: LinkName
    state: Literal["ok", "odd", "broken"]
    text: str
    cure: str = ""
    ms: int | None = None


def folder_of(spec: ServerSpec, around: Surroundings) -> Path:
    return around.cwd / Path(spec.cwd).expanduser()


def place_of(url: str) -> str:
    """Host and port alone: the rest of an address may hold a credential."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


# The process alone --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Heard:
    """What a process wrote to stdout until its first message."""

    noise: str = ""
    lines: int = 0
    message: bool = False


async def check_process(spec: ServerSpec, around: Surroundings) -> Step:
    """Does the command exist, does it start, is the first line on its stdout a clean message? The process is
    stopped again. Takes at most the entry's start time and that of stopping."""
    env = child_environment(around.environ, dict(spec.env))
    cwd = folder_of(spec, around)
    if not await asyncio.to_thread(cwd.is_dir):
        return Step("process", "broken", f"its folder 'cwd' {spec.cwd!r} does not exist", "Create it.")
    command = str(cwd / spec.command) if "/" in spec.command else spec.command
    if await asyncio.to_thread(shutil.which, command, path=env.get("PATH")) is None:
        return _missing(spec)
    stderr, heard = StderrLog(None), _Heard()
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        argv = (spec.command, *spec.args)
        child = await Child.spawn(argv, env=env, cwd=str(cwd), stderr=stderr, grace=around.patience.grace)
    except OSError as fault:
        text = f"the command {spec.command!r} cannot be run ({fault.strerror})"
        return Step("process", "broken", text, "Check the file and its rights.")
    code, late = None, False
    try:
        async with asyncio.timeout(spec.start_timeout):
            with suppress(ConnectionError):
                child.stdin.write(json.dumps(_HELLO).encode() + b"\n")
                await child.stdin.drain()
            await _listen(child, heard)
    except TimeoutError:
        late = True
    finally:
        ms = round((loop.time() - began) * 1000)
        try:
            if not late and not heard.message:
                code = await child.exit_code(1.0)
            await child.stop()
            said = stderr.last_words()
        finally:
            await child.release()
    return _judged(spec, heard, late, code, said, ms)


async def _listen(child: Child, heard: _Heard) -> None:
    """Read lines until one is a message, the output ends, or it is plain that no message comes."""
    while True:
        try:
            line = await child.stdout.readline()
        except ValueError:
            line = b"(a line of more than 1 MiB)"
        except ConnectionError:
            return
        if not line:
            return
        if _is_message(line):
            heard.message = True
            return
        if line.strip():
            heard.lines += 1
            heard.noise = heard.noise or _quote(line.decode("utf-8", "replace"))
        if heard.lines >= _MOST_NOISE:
            return


def _is_message(text: str | bytes) -> bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    parts = value if isinstance(value, list) else [value]
    return bool(parts) and all(isinstance(part, dict) and part.get("jsonrpc") == "2.0" for part in parts)


def _quote(text: str) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= _QUOTED else text[:_QUOTED] + "…")


def _missing(spec: ServerSpec) -> Step:
    text = f"the command {spec.command!r} was not found"
    if " " in spec.command.strip():
        return Step("process", "broken", text, "Write the program alone there; its arguments go into 'args'.")
    if "/" in spec.command:
        return Step("process", "broken", text, "Check the path, and that the file may be executed.")
    text += " on the bridge's PATH"
    cure = f"{_LAUNCHERS.get(spec.command, 'Install it.')} If it is installed, write its full path."
    return Step("process", "broken", text, cure)


def _judged(spec: ServerSpec, heard: _Heard, late: bool, code: int | None, said: str, ms: int) -> Step:
    lines = "a line that is no message" if heard.lines == 1 else f"{heard.lines} lines that are no messages"
    if heard.message and not heard.lines:
        return Step("process", "ok", "it starts, and its first line is a clean message", ms=ms)
    if heard.message:
        text = f"it starts, but first writes to stdout {lines}: {heard.noise}"
        cure = "Send its logs to stderr. They are skipped here; other programs fail on them."
        return Step("process", "odd", text, cure, ms)
    if heard.lines:
        wrote = "wrote" if late or code is None else f"ended (exit code {code}) after writing"
        text = f"it {wrote} to stdout {lines}: {heard.noise}{said}"
        cure = "Check that it is started in its MCP mode over stdio, and send its logs to stderr."
        return Step("process", "broken", text, cure, ms)
    if not late:
        how = "closed its output" if code is None else f"ended (exit code {code})"
        cure = "Run its command by hand, with the variables of 'env' set, to see all that it says."
        return Step("process", "broken", f"it {how} before it answered{said}", cure, ms)
    cure = "Check that it is an MCP server over stdio (some need a flag for that) and what it waits for; "
    cure += "give it more time with 'start_timeout'."
    if "python" in spec.command and not {"-u", "-m"} & set(spec.args):
        cure += " A Python script may hold its output back: put \"-u\" first in 'args'."
    text = f"it runs but did not answer within {spec.start_timeout:g} s{said}"
    return Step("process", "broken", text, cure, ms)


# The address alone --------------------------------------------------------------------------------------


async def check_address(spec: ServerSpec, around: Surroundings) -> Step:
    """Is the name known, does somebody answer there, and like an MCP server? Takes at most 20 s."""
    await around.sdk.link()  # brings the HTTP library, in a thread
    import httpx2

    from agent.tools.mcp.remote import describe

    limit = min(spec.start_timeout, _ADDRESS_LIMIT)
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.timeout(limit), httpx2.AsyncClient(headers=dict(spec.headers)) as client:
            status, kind, body = await _answer_of(client, spec)
    except TimeoutError:
        text = f"{place_of(spec.url)} did not answer within {limit:g} s"
        return Step("address", "broken", text, "Check that the server runs and that no firewall is between.")
    except httpx2.HTTPError as fault:
        text, cure = await _unreachable(spec.url, describe(fault))
        return Step("address", "broken", text, cure)
    return _judged_answer(spec, status, kind, body, round((loop.time() - began) * 1000))


def knock(client: Any, url: str, sse: bool) -> Any:
    """The answer of a remote server to a first request, as a stream; `client` is the HTTP library's."""
    if sse:
        return client.stream("GET", url, headers={"accept": "text/event-stream"})
    accept = {"accept": "application/json, text/event-stream"}
    return client.stream("POST", url, headers=accept, json=_HELLO)


async def _answer_of(client: Any, spec: ServerSpec) -> tuple[int, str, bytes]:
    """Status, content type and the beginning of the body of the answer to a first request."""
    body = b""
    async with knock(client, spec.url, spec.kind == "sse") as response:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "text/event-stream":  # a stream may stay open for ever
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) >= _BEGINNING:
                    break
        session = response.headers.get("mcp-session-id")
    if session and spec.kind == "http":  # leave nothing behind
        await client.delete(spec.url, headers={"mcp-session-id": session})
    return response.status_code, kind, body


async def _unreachable(url: str, fault: str) -> tuple[str, str]:
    """Why there is no connection, and what to do."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(5):
            await asyncio.get_running_loop().getaddrinfo(parts.hostname, parts.port or 443)
    except (socket.gaierror, UnicodeError):
        return f"the name {parts.hostname!r} cannot be resolved", "Check the 'url' for typing mistakes."
    except TimeoutError:
        return f"the name {parts.hostname!r} was not resolved within 5 s", "Check this machine's network."
    text = f"{place_of(url)}: {fault}"
    if "certificate" in fault.lower() or "ssl" in fault.lower():
        return text, "Check that the address begins rightly with https:// and that its certificate is valid."
    cure = "Start the server, or correct host and port in its 'url'."
    if parts.hostname in ("127.0.0.1", "localhost", "::1"):
        cure += " (In a container this address is the container itself.)"
    return text, cure


def _judged_answer(spec: ServerSpec, status: int, kind: str, body: bytes, ms: int) -> Step:
    answers = f"{place_of(spec.url)} answers with HTTP {status}"
    if spec.kind == "http":
        path = 'Check the path of its \'url\' (often /mcp). An older server needs "type": "sse".'
    else:
        path = "Check the path of its 'url' (often /sse). For streamable HTTP leave out 'type'."
    if status in (401, 403):
        return Step("address", "ok", f"{answers}: it asks for a login", ms=ms)
    if status in (404, 405, 410) and not _is_message(body):
        return Step("address", "broken", f"{answers}: there is no MCP server at this path", path, ms)
    if status >= 500:
        text = f"{answers}: the server, or a proxy before it, has a fault"
        return Step("address", "broken", text, "Look into its own log, or try again later.", ms)
    if 300 <= status < 400:
        return Step("address", "odd", f"{answers}: it redirects", "Write the address it leads to.", ms)
    if kind == "text/html" or (spec.kind == "sse" and status < 300 and kind != "text/event-stream"):
        what = "a web page" if kind == "text/html" else f"{kind or 'something'}, no event stream"
        return Step("address", "broken", f"{answers} and {what}, not as an MCP server", path, ms)
    return Step("address", "ok" if status < 300 else "odd", answers, ms=ms)
