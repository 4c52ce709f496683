"""Following `mcp.json` on the disk: one stat a look; a digest, then a parse, only when that differs."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.tools.mcp.config import ConfigError, McpConfig

log = logging.getLogger("causeway.mcp")

#: A file changed this short a time before it was read may change again without its stat telling.
_RACY_NS = 100_000_000
_BLANK = b"\xef\xbb\xbf \t\r\n\0"
_Signature = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at the file found: a configuration to put in force, and whether its fault changed."""

    config: McpConfig | None = None
    changed: bool = False


class ConfigFile:
    """The file, and what is known of it. It is never written."""

    def __init__(self, path: Path, environ: Mapping[str, str], parse: Callable[[bytes], McpConfig]) -> None:
        self.fault = ""  # why the file cannot be used now, with its path and line
        self._path = path
        self._environ = environ
        self._parse = parse  # in a thread
        self._signature: _Signature | None = None
        self._racy = False
        self._applied = ""  # the digest of the content that is in force
        self._variables: Mapping[str, str | None] = {}  # what it read from the environment
        self._warned = ""  # the digest, or the kind of fault, that was reported

    async def look(self, in_use: bool) -> Look:
        """Look whether there is something new. `in_use`: servers run that an empty file would end."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            # A file that never was is no fault.
            return self._unusable("the file is gone", "gone") if in_use or self._applied else Look()
        except OSError as fault:
            return self._unusable(f"the file cannot be read ({fault.strerror})", "unreadable")
        signature = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
        same_environment = all(self._environ.get(key) == value for key, value in self._variables.items())
        if signature == self._signature and not self._racy and same_environment:
            return Look()
        return await self._read(signature, in_use, same_environment)

    async def _read(self, signature: _Signature, in_use: bool, same_environment: bool) -> Look:
        # The signature is from before reading: a write that comes meanwhile is seen at the next look.
        racy = time.time_ns() - signature[0] < _RACY_NS
        try:
            data = await asyncio.to_thread(self._path.read_bytes)
        except OSError as fault:
            return self._unusable(f"the file cannot be read ({fault.strerror})", "unreadable")
        self._signature, self._racy = signature, racy
        digest = hashlib.sha256(data).hexdigest()
        if digest == self._warned:
            return Look()
        if digest == self._applied and same_environment:
            return Look(changed=self._usable_again())
        if in_use and not data.strip(_BLANK):
            return self._unusable("the file is empty", digest)
        try:
            config = await asyncio.to_thread(self._parse, data)
        except ConfigError as fault:
            return self._unusable(str(fault), digest, fault.line)
        self._usable_again()
        self._applied = digest
        self._variables = dict(config.variables)
        return Look(config)

    def where(self, fault: str, line: int = 0) -> str:
        """A fault with the place it is at."""
        return f"{self._path}:{line}: {fault}" if line else f"{self._path}: {fault}"

    def _usable_again(self) -> bool:
        had_fault, self.fault, self._warned = bool(self.fault), "", ""
        return had_fault

    def _unusable(self, fault: str, content: str, line: int = 0) -> Look:
        """Keep what is in force, and warn once for this content."""
        self.fault = self.where(fault, line)
        if self._warned == content:
            return Look()
        self._warned = content
        if content in ("gone", "unreadable"):
            self._signature = None  # when it is back it is read, whatever its stat says
        log.warning("%s; the last good configuration stays in force", self.fault)
        return Look(changed=True)
