"""The client that the MCP conformance suite judges: our hub, with a desk that says yes to everything.

The suite runs `python -m tests.conformance.client URL` for each scenario and tells the rest by environment
variables. Started by hand the scenario is played in this process. Under the tests this is only a messenger,
so that the SDK is imported once and not a hundred times: it hands its orders to the socket that the tests
listen on.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.conformance.play import Orders

SOCKET = "CAUSEWAY_CONFORMANCE_SOCKET"


def orders(url: str) -> Orders:
    return {
        "url": url,
        "scenario": os.environ.get("MCP_CONFORMANCE_SCENARIO", ""),
        "context": json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}"),
    }


def carry(path: str, message: Orders) -> str:
    """Have the scenario played by whoever listens at `path`; what it was refused for, if it was."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        line.sendall(json.dumps(message).encode() + b"\n")
        with line.makefile("r") as answer:
            return str(json.loads(answer.readline())["fault"])


def play_here(message: Orders) -> str:
    import asyncio
    import tempfile
    from pathlib import Path

    from tests.conformance.play import play

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(play(message, Path(folder)))


def main() -> int:
    message = orders(sys.argv[-1])
    path = os.environ.get(SOCKET)
    fault = carry(path, message) if path else play_here(message)
    if fault:
        print(fault, file=sys.stderr)
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
