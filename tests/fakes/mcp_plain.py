"""An MCP server over stdio in plain Python, quick to start, with faults on demand. Speaks 2025-06-18.

Run as a program; every option is a fault or a feature. `--tools FILE` holds the list as JSON and is read at
each tools/list, so that a test can change it.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

_lock = threading.Lock()
_cancelled: set[Any] = set()


def send(message: dict[str, Any]) -> None:
    with _lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def schema(**properties: str) -> dict[str, Any]:
    return {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}


DEFAULT = [
    {"name": "echo", "description": "Says it again.", "inputSchema": schema(text="string"),
     "annotations": {"readOnlyHint": True, "openWorldHint": False}},
    {"name": "pid", "description": "The process id.", "inputSchema": schema()},
    {"name": "sleep", "description": "Waits.", "inputSchema": schema(seconds="number")},
    {"name": "die", "description": "Ends the process.", "inputSchema": schema()},
    {"name": "env", "description": "A variable.", "inputSchema": schema(name="string")},
    {"name": "shapes", "description": "Results of odd shapes.", "inputSchema": schema(kind="string")},
    {"name": "burst", "description": "Tells a change five times.", "inputSchema": schema()},
]  # fmt: skip

PNG = b"\x89PNG\r\n\x1a\n" + b"\x00" * 300_000
WAV = base64.b64encode(b"RIFF" * 9).decode()
PDF = base64.b64encode(b"%PDF-1").decode()
SHAPES: dict[str, dict[str, Any]] = {
    "structured": {"content": [], "structuredContent": {"n": 1}},
    "png": {"content": [
        {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}]},
    "audio": {"content": [{"type": "audio", "data": WAV, "mimeType": "audio/wav"}]},
    "error": {"content": [{"type": "text", "text": "no"}], "isError": True},
    "resource": {"content": [{"type": "resource", "resource": {"uri": "note://1", "text": "the note"}}]},
    "blob": {"content": [{"type": "resource", "resource": {
        "uri": "file://x.pdf", "mimeType": "application/pdf", "blob": PDF}}]},
    "link": {"content": [{"type": "resource_link", "uri": "https://example.org/a", "name": "a page"}]},
    "odd": {"content": [{"type": "hologram"}, {"type": "image"}, {"type": "text", "text": "still here"}]},
    "nothing": {"content": []},
}  # fmt: skip


class Server:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    def tools(self) -> list[dict[str, Any]]:
        if self.options.tools:
            return json.loads(Path(self.options.tools).read_text())
        return DEFAULT

    def list_tools(self, params: dict[str, Any]) -> dict[str, Any]:
        if self.options.die_on_list:
            os._exit(5)
        self.log("list")
        time.sleep(self.options.list_delay)
        tools, size = self.tools(), self.options.page
        if not size:
            return {"tools": tools}
        at = int(params.get("cursor") or 0)
        page: dict[str, Any] = {"tools": tools[at : at + size]}
        if at + size < len(tools):
            page["nextCursor"] = str(at + size)
        elif self.options.loop:
            page["nextCursor"] = "0"
        return page

    def call(self, rid: Any, params: dict[str, Any]) -> dict[str, Any]:
        name, arguments = params["name"], params.get("arguments") or {}
        self.log(f"call {name}")
        if self.options.stderr:
            sys.stderr.write("x" * 1023 * self.options.stderr + "\n")
            sys.stderr.flush()
        if name == "die":
            os._exit(3)
        if name == "sleep":
            until = time.monotonic() + float(arguments["seconds"])
            while time.monotonic() < until:
                if rid in _cancelled:
                    self.log("cancelled")
                    return {}
                time.sleep(0.01)
        if name == "shapes":
            return SHAPES[arguments["kind"]]
        if name == "burst":
            for _ in range(5):
                send({"method": "notifications/tools/list_changed"})
        text = {
            "pid": str(os.getpid()),
            "env": os.environ.get(str(arguments.get("name")), "(unset)"),
        }.get(name, f"{name}: {json.dumps(arguments)}")
        return {"content": [{"type": "text", "text": text}]}

    def answer(self, request: dict[str, Any]) -> None:
        method, rid, params = request["method"], request.get("id"), request.get("params") or {}
        if method == "initialize":
            time.sleep(self.options.delay)
            while self.options.gate and not Path(self.options.gate).exists():
                time.sleep(0.01)
            tools = {} if self.options.unannounced else {"tools": {"listChanged": True}}
            send({"id": rid, "result": {
                "protocolVersion": "2025-06-18", "capabilities": tools,
                "serverInfo": {"name": "plain", "version": "1"}}})  # fmt: skip
        elif method == "tools/list":
            send({"id": rid, "result": self.list_tools(params)})
        elif method == "tools/call":
            if params["name"] == "refused":
                send({"id": rid, "error": {"code": -32000, "message": "quota used up"}})
            else:
                send({"id": rid, "result": self.call(rid, params)})
        elif rid is not None:
            send({"id": rid, "error": {"code": -32601, "message": "unknown method"}})

    def log(self, line: str) -> None:
        if self.options.log:
            with Path(self.options.log).open("a") as file:
                file.write(line + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--list-delay", type=float, default=0.0)
    parser.add_argument("--page", type=int, default=0)
    parser.add_argument("--stderr", type=int, default=0, help="KiB before the list and in each call")
    for flag in (
        "hang",
        "loop",
        "noise",
        "child",
        "stubborn",
        "unannounced",
        "refuse_to_start",
        "die_on_list",
    ):
        parser.add_argument(f"--{flag.replace('_', '-')}", action="store_true")
    for name in ("tools", "log", "pids", "tag", "gate"):
        parser.add_argument(f"--{name}", default="")
    options = parser.parse_args()
    if options.pids:
        with Path(options.pids).open("a") as file:
            file.write(f"{os.getpid()}\n")
    if options.refuse_to_start:
        sys.stderr.write("no database at /var/nowhere\n")
        sys.exit(7)
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.child:
        code = "import signal,time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", code])
        if options.pids:
            with Path(options.pids).open("a") as file:
                file.write(f"{child.pid}\n")
    if options.stderr:
        sys.stderr.write("x" * 1024 * options.stderr + "\n")
    server = Server(options)
    for line in sys.stdin:
        if options.hang:
            continue
        if options.noise:
            print("INFO: got a line", flush=True)
        request = json.loads(line)
        if request.get("method") == "notifications/cancelled":
            _cancelled.add(request["params"]["requestId"])
        threading.Thread(target=server.answer, args=(request,), daemon=True).start()
    while options.stubborn:
        time.sleep(1)


if __name__ == "__main__":
    main()
