"""Servers that a killed bridge left behind: found by a mark in their environment, ended at the next start.

Most servers end when their stdin closes, so also after `kill -9` of the bridge; this is for the others.
Only where there is a /proc (Linux).
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("causeway.mcp")

#: The variable that says which bridge a process is of: a digest of its mcp.json's path, and a process id.
MARK = "CAUSEWAY_OF"


def mark(file: Path) -> str:
    """The mark's value for the children of this process that `file` names."""
    return f"{hashlib.sha256(os.fsencode(file.absolute())).hexdigest()[:16]}:{os.getpid()}"


def end_orphans(own_mark: str) -> None:
    """Kill the marked processes of earlier bridges on the same file that live no more. Blocking."""
    prefix = f"{MARK}={own_mark.partition(':')[0]}:".encode()
    killed = 0
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):  # ended meanwhile, or another user's
            for variable in (entry / "environ").read_bytes().split(b"\0"):
                if variable.startswith(prefix) and not _alive(int(variable[len(prefix) :])):
                    os.kill(int(entry.name), signal.SIGKILL)
                    killed += 1
    if killed:
        log.warning("ended %d processes of MCP servers that a killed bridge had left behind", killed)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it lives, as another user
        pass
    return True
