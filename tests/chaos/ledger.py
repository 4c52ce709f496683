"""An MCP server over stdio whose tools leave a trace in a file, so that it shows how often each was run."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

SCHEMA = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}


def tool(name: str, about: str, *, reads: bool) -> dict[str, Any]:
    notes = {"readOnlyHint": reads, "openWorldHint": False}
    return {"name": name, "description": about, "inputSchema": SCHEMA, "annotations": notes}


TOOLS = [
    tool("write", "Writes a number into the ledger.", reads=False),
    tool("pay", "Pays a number.", reads=False),
    tool("look", "Looks a number up.", reads=True),
]


def trace(path: str, line: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, f"{line}\n".encode())
    os.close(file)


def answer(request: dict[str, Any], path: str, seconds: float) -> dict[str, Any]:
    found = result(request, path, seconds)
    if found is None:
        return {"error": {"code": -32601, "message": f"unknown method {request['method']}"}}
    return {"result": found}


def result(request: dict[str, Any], path: str, seconds: float) -> dict[str, Any] | None:
    match request["method"]:
        case "initialize":
            about = {"name": "ledger", "version": "1"}
            return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
        case "tools/list":
            trace(path, "listed")
            return {"tools": TOOLS}
        case "tools/call":
            name, number = request["params"]["name"], request["params"]["arguments"]["number"]
            trace(path, f"{'look' if name == 'look' else 'run'} {number}")
            time.sleep(seconds)
            return {"content": [{"type": "text", "text": f"{name} {number}: done"}]}
    return None


def main(path: str, seconds: float) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request and "method" in request:
            said = {"jsonrpc": "2.0", "id": request["id"], **answer(request, path, seconds)}
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
