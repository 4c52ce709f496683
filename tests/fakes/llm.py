"""Model servers for tests: two that nobody here wrote, and a scripted one for exact control.

`llmock_server()` and `aimock_server()` start the real programs. `ScriptedModel` speaks both protocols from a
script; it also runs by itself, with no delay, for benchmarks:

    python -m tests.fakes.llm --port 4900 --pieces 20
    python -m tests.fakes.llm --port 4900 --script answers.json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import pytest
from aiohttp import web

NODE = Path(__file__).parent.parent / "node"
AIMOCK = NODE / "node_modules/@copilotkit/aimock/dist/cli.js"


def require(condition: object, reason: str) -> None:
    """Skip the test when its counterpart is missing; in CI (environment CI=true) that is a failure."""
    if condition:
        return
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"missing in CI: {reason}")
    pytest.skip(reason)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True)
class Server:
    """A running model server: its root and the base URLs of both protocols."""

    root: str
    openai: str
    anthropic: str

    def control(self, path: str, body: object = None, method: str = "POST") -> Any:
        """Call the server's own control API (blocking; the server is another process)."""
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(
            self.root + path, data=data, method=method, headers={"content-type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return json.loads(answer.read() or b"null")


@contextlib.contextmanager
def _process(command: Sequence[str], root: str, probe: str, *, deadline: float = 30.0) -> Iterator[None]:
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("LLMOCK_", "AIMOCK_"))
    }
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            end = time.monotonic() + deadline
            while not _answers(root + probe):
                if process.poll() is not None or time.monotonic() > end:
                    output.seek(0)
                    raise RuntimeError(f"{command[0]} did not start: {output.read()[-2000:]!r}")
                time.sleep(0.02)
            yield
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


@contextlib.contextmanager
def llmock_server(*options: str) -> Iterator[Server]:
    """`llmock` from PyPI. Control: POST /_llmock/scenario {"behaviors": [...]}, POST /_llmock/reset."""
    binary = Path(sys.executable).with_name("llmock")
    require(binary.exists(), "llmock is not installed (pip install llmock)")
    root = f"http://127.0.0.1:{(port := free_port())}"
    command = [str(binary), "serve", "--port", str(port), "--log-level", "warning", *options]
    with _process(command, root, "/health"):
        yield Server(root, f"{root}/v1", f"{root}/anthropic")


@contextlib.contextmanager
def aimock_server(fixtures: Sequence[dict[str, Any]], *options: str) -> Iterator[Server]:
    """`@copilotkit/aimock` from npm with these fixtures. Control: POST /__aimock/reset and others."""
    require(shutil.which("node"), "node is not installed")
    require(AIMOCK.exists(), f"aimock is not installed (npm ci in {NODE.name})")
    root = f"http://127.0.0.1:{(port := free_port())}"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "fixtures.json").write_text(json.dumps({"fixtures": list(fixtures)}))
        command = ["node", str(AIMOCK), "-p", str(port), "-f", folder, "--validate-on-load", "--strict"]
        with _process([*command, "--log-level", "warn", *options], root, "/health"):
            yield Server(root, f"{root}/v1", root)


# -- the scripted server -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call to make. `text` replaces the argument text, to be as broken as a test wants."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    id: str | None = None
    text: str | None = None

    @property
    def json(self) -> str:
        return json.dumps(self.arguments) if self.text is None else self.text


@dataclass(frozen=True, slots=True)
class Say:
    """One answer of the script.

    `text` comes in `pieces` pieces, `delay` seconds before the first one and `between` seconds between
    them. `status` other than 200 answers with an error: `text` is its message, `kind` its type.
    `finish` replaces the reason that follows from the rest. `fault` happens after `after` pieces:
    "disconnect" drops the connection, "truncate" ends without a reason, "malformed" sends no JSON,
    "stall" says nothing more until the client leaves. `gate` is waited for before the first piece, or
    after `after` pieces when `gate_at` says so (in-process only).
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    thinking: str = ""
    pieces: int = 1
    delay: float = 0.0
    between: float = 0.0
    finish: str = ""
    status: int = 200
    kind: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    fault: Literal["", "disconnect", "truncate", "malformed", "stall"] = ""
    after: int = 1
    gate: asyncio.Event | None = None
    gate_at: Literal["start", "after"] = "start"


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as the server saw it; `number` counts from 0."""

    number: int
    protocol: Literal["openai", "anthropic"]
    body: dict[str, Any]
    headers: dict[str, str]
    at: float

    @property
    def last_user(self) -> str:
        """The text of the last message that a person wrote."""
        for message in reversed(self.body.get("messages", [])):
            if message.get("role") == "user" and (text := _text_in(message.get("content"))):
                return text
        return ""

    @property
    def results(self) -> list[str]:
        """The tool results at the end of the history, in order."""
        found: list[str] = []
        for message in reversed(self.body.get("messages", [])):
            content = message.get("content")
            if message.get("role") == "tool":
                found.append(_text_in(content))
            elif message.get("role") == "user" and isinstance(content, list) and _has_results(content):
                found += [
                    _text_in(b.get("content")) for b in reversed(content) if b.get("type") == "tool_result"
                ]
            elif message.get("role") == "assistant":
                break
        return found[::-1]

    @property
    def tools(self) -> list[str]:
        return [
            tool.get("name") or tool.get("function", {}).get("name") for tool in self.body.get("tools", [])
        ]


def _has_results(content: list[Any]) -> bool:
    return any(block.get("type") == "tool_result" for block in content)


def _text_in(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if part.get("type") == "text")
    return ""


Answerer = Callable[[Seen], "Say | Awaitable[Say]"]
Script = Sequence[Say] | Answerer


class ScriptedModel:
    """A model server of both protocols that answers as its script says.

    A list is used up from its beginning, the last answer again and again; a function gets each request
    and gives its answer (or a coroutine of it).

        async with ScriptedModel([Say(calls=(Call("clock"),)), Say("It is noon.")]).running() as server:
            ... server.openai_url ... server.seen ...
    """

    def __init__(self, script: Script = (Say("ok"),)) -> None:
        self.script = script
        self.seen: list[Seen] = []
        self.left = 0
        """Requests whose client went away before the answer was whole."""
        self.active = 0
        self.root = ""
        self._changed = asyncio.Condition()
        self._asked = 0
        self._most_kept = 100_000

    @property
    def openai_url(self) -> str:
        return f"{self.root}/v1"

    @property
    def anthropic_url(self) -> str:
        return self.root

    async def until(self, condition: Callable[[], bool], deadline: float = 10.0) -> None:
        """Wait until something that the server sees is so (`server.left == 1`)."""
        async with asyncio.timeout(deadline), self._changed:
            await self._changed.wait_for(condition)

    @contextlib.asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[ScriptedModel]:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._openai)
        app.router.add_post("/v1/messages", self._anthropic)
        app.router.add_get("/v1/models", self._models)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.2)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=2048).start()
        self.root = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    async def _openai(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, "openai")

    async def _anthropic(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, "anthropic")

    async def _serve(
        self, request: web.Request, protocol: Literal["openai", "anthropic"]
    ) -> web.StreamResponse:
        body = await request.json()
        seen = Seen(self._asked, protocol, body, dict(request.headers), time.monotonic())
        self._asked += 1
        if len(self.seen) < self._most_kept:
            self.seen.append(seen)
        self.active += 1
        await self._tell()
        try:
            say = await self._answer(seen)
            if say.gate is not None and say.gate_at == "start":
                await say.gate.wait()
            if say.delay:
                await asyncio.sleep(say.delay)
            if say.status != 200:
                return _refusal(say, protocol)
            if not seen.body.get("stream"):
                return web.json_response(_whole(say, protocol))
            return await _Streaming(say, protocol, seen.number).send(request)
        except (asyncio.CancelledError, ConnectionError):
            self.left += 1
            raise
        finally:
            self.active -= 1
            await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _answer(self, seen: Seen) -> Say:
        if callable(self.script):
            answer = self.script(seen)
            return answer if isinstance(answer, Say) else await answer
        return self.script[min(seen.number, len(self.script) - 1)]


def _refusal(say: Say, protocol: str) -> web.Response:
    error: dict[str, Any] = {"type": say.kind or "error", "message": say.text}
    body: dict[str, Any] = {"error": error}
    if protocol == "anthropic":
        body = {"type": "error", "error": error}
    if not say.text:
        return web.Response(status=say.status, headers=say.headers)
    return web.json_response(body, status=say.status, headers=say.headers)


def _finish(say: Say, protocol: str) -> str:
    if say.finish:
        return say.finish
    if protocol == "openai":
        return "tool_calls" if say.calls else "stop"
    return "tool_use" if say.calls else "end_turn"


def _whole(say: Say, protocol: str) -> dict[str, Any]:
    if protocol == "openai":
        message: dict[str, Any] = {"role": "assistant", "content": say.text or None}
        if say.calls:
            message["tool_calls"] = [_openai_call(call, n) for n, call in enumerate(say.calls)]
        choice = {"index": 0, "message": message, "finish_reason": _finish(say, protocol)}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }
    blocks: list[dict[str, Any]] = [{"type": "text", "text": say.text}] if say.text else []
    for n, call in enumerate(say.calls):
        blocks.append(
            {"type": "tool_use", "id": call.id or f"toolu_{n}", "name": call.name, "input": call.arguments}
        )
    return {
        "id": "m", "type": "message", "role": "assistant", "model": "m", "content": blocks,
        "stop_reason": _finish(say, protocol), "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }  # fmt: skip


def _openai_call(call: Call, n: int, unique: str = "") -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.json}
    return {"index": n, "id": call.id or f"call_{unique}{n}", "type": "function", "function": function}


class _Gone(Exception):
    """The scripted fault dropped the connection."""


class _Streaming:
    """One streamed answer."""

    def __init__(self, say: Say, protocol: str, number: int) -> None:
        self._say = say
        self._protocol = protocol
        self._number = number
        self._sent = 0

    async def send(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **self._say.headers})
        await response.prepare(request)
        parts = _openai_stream if self._protocol == "openai" else _anthropic_stream
        try:
            for counted, part in parts(self._say, self._number):
                if counted:
                    await self._before_piece(request, response)
                await response.write(part)
        except _Gone:
            return response
        await response.write_eof()
        return response

    async def _before_piece(self, request: web.Request, response: web.StreamResponse) -> None:
        """Faults and pauses before the next piece."""
        say, sent = self._say, self._sent
        self._sent += 1
        if sent and say.between:
            await asyncio.sleep(say.between)
        if sent != say.after:
            return
        if say.gate is not None and say.gate_at == "after":
            await say.gate.wait()
        match say.fault:
            case "disconnect":
                assert request.transport is not None
                request.transport.abort()
                raise _Gone
            case "truncate":
                await response.write_eof()
                raise _Gone
            case "malformed":
                await response.write(b'event: content_block_delta\ndata: {"id": "broken", \n\n')
            case "stall":
                await asyncio.Event().wait()


def _cut(text: str, pieces: int) -> list[str]:
    if not text:
        return []
    size = max(1, -(-len(text) // max(1, pieces)))
    return [text[n : n + size] for n in range(0, len(text), size)]


def _openai_stream(say: Say, number: int) -> Iterator[tuple[bool, bytes]]:
    """Pieces of the stream, each with whether it counts as a piece of the answer."""

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _data(
            {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        )

    yield False, chunk({"role": "assistant", "content": ""})
    if say.thinking:
        yield False, chunk({"reasoning_content": say.thinking})
    for piece in _cut(say.text, say.pieces):
        yield True, chunk({"content": piece})
    for n, call in enumerate(say.calls):
        whole = _openai_call(call, n, f"{number}_")
        arguments = whole["function"]["arguments"]
        whole["function"] = {"name": call.name, "arguments": ""}
        yield True, chunk({"tool_calls": [whole]})
        for piece in _cut(arguments, 2):
            yield True, chunk({"tool_calls": [{"index": n, "function": {"arguments": piece}}]})
    yield True, chunk({}, _finish(say, "openai"))
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    yield False, _data({"id": "c", "object": "chat.completion.chunk", "choices": [], "usage": usage})
    yield False, b"data: [DONE]\n\n"


def _anthropic_stream(say: Say, number: int) -> Iterator[tuple[bool, bytes]]:
    def event(kind: str, **content: Any) -> bytes:
        return f"event: {kind}\n".encode() + _data({"type": kind, **content})

    def block(
        index: int, start: dict[str, Any], deltas: Sequence[dict[str, Any]]
    ) -> Iterator[tuple[bool, bytes]]:
        yield False, event("content_block_start", index=index, content_block=start)
        for delta in deltas:
            yield True, event("content_block_delta", index=index, delta=delta)
        yield False, event("content_block_stop", index=index)

    usage = {"input_tokens": 10, "output_tokens": 1}
    message: dict[str, Any] = {
        "id": f"msg_{number}", "type": "message", "role": "assistant", "model": "m", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    yield False, event("message_start", message=message)
    yield False, event("ping")
    index = 0
    if say.thinking:
        deltas = [
            {"type": "thinking_delta", "thinking": say.thinking},
            {"type": "signature_delta", "signature": "c2ln"},
        ]
        yield from block(index, {"type": "thinking", "thinking": "", "signature": ""}, deltas)
        index += 1
    if say.text:
        deltas = [{"type": "text_delta", "text": piece} for piece in _cut(say.text, say.pieces)]
        yield from block(index, {"type": "text", "text": ""}, deltas)
        index += 1
    for n, call in enumerate(say.calls):
        start = {"type": "tool_use", "id": call.id or f"toolu_{number}_{n}", "name": call.name, "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *_cut(call.json, 2))]
        yield from block(index, start, deltas)
        index += 1
    delta = {"stop_reason": _finish(say, "anthropic"), "stop_sequence": None}
    yield True, event("message_delta", delta=delta, usage={"output_tokens": 5})
    yield False, event("message_stop")


def _data(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"


def say_from_json(data: dict[str, Any]) -> Say:
    """A `Say` from its JSON form; calls are objects of name, arguments, id, text."""
    known = {one.name for one in fields(Say)} - {"gate"}
    if unknown := set(data) - known:
        raise ValueError(f"unknown keys {sorted(unknown)}; known are {sorted(known)}")
    return Say(**{**data, "calls": tuple(Call(**call) for call in data.get("calls", ()))})


async def _run(port: int, script: Sequence[Say]) -> None:
    model = ScriptedModel(script)
    model._most_kept = 0  # a benchmark keeps nothing
    async with model.running(port):
        print(model.root, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="A scripted model server of both protocols.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=Path, help="JSON: a list of answers; the last one is repeated")
    parser.add_argument("--pieces", type=int, default=20, help="pieces of the default answer")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before the default answer")
    options = parser.parse_args()
    words = " ".join(f"word{n}" for n in range(options.pieces))
    script = [Say(words, pieces=options.pieces, delay=options.delay)]
    if options.script:
        script = [say_from_json(one) for one in json.loads(options.script.read_text())]
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(options.port, script))


if __name__ == "__main__":
    main()
