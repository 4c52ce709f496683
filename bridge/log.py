"""Structured logs: one line an event, one id a message, no message bodies, secrets masked."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import hashlib
import json
import logging
import resource
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from agent.tools.masking import Masker, MaskingFilter
from channels.base import Inbound

#: The message a task works on; set by the router and the runner, inherited by every task they start.
current_message: contextvars.ContextVar[str] = contextvars.ContextVar("causeway_message", default="")


log = logging.getLogger("causeway.app")

#: Of equal warnings and errors so many are printed within so many seconds; so many kinds are known at a time.
_MOST_EQUAL, _SPAN, _MOST_KINDS = 5, 60.0, 1000


def message_id(inbound: Inbound) -> str:
    """The id under which all that happens to a message is logged: its channel and a digest."""
    address = inbound.address
    parts = "\0".join((address.channel, address.chat, address.thread or "", inbound.id))
    return f"{address.channel}-{hashlib.sha256(parts.encode()).hexdigest()[:10]}"


class _MessageId(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.message_id = current_message.get()
        return True


class Repeats(logging.Filter):
    """A fault that comes again every second must not fill the log, nor the disk that it lies on: of equal
    warnings and errors a few a minute are printed. The first one after that says how many were left out."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._lines: OrderedDict[tuple[str, int, str], tuple[float, int]] = OrderedDict()
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        key, now = (record.name, record.levelno, record.getMessage()), self._now()
        with self._lock:
            began, count = self._lines.pop(key, (now, 0))
            if now - began >= _SPAN:
                if count > _MOST_EQUAL:
                    record.msg, record.args = f"{key[2]} ({count - _MOST_EQUAL} more like this before)", ()
                began, count = now, 0
            self._lines[key] = began, count + 1
            if len(self._lines) > _MOST_KINDS:
                self._lines.popitem(last=False)
        return count < _MOST_EQUAL


class LoopFaults:
    """The event loop's exception handler. Without file descriptors a listening socket fails a hundred times a
    second, which asyncio tells with as many tracebacks: here it is one line a minute, with the cure."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._told = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif self._now() - self._told >= _SPAN:
            self._told = self._now()
            log.error(
                "No file descriptor is left (%s; this process may have %d): new connections wait until some "
                "are free. Raise the limit: LimitNOFILE= in the systemd unit, ulimits: nofile in a compose "
                "file, `ulimit -n` in a shell.",
                error.strerror,
                resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            )


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        ident = getattr(record, "message_id", "")
        line = f"{stamp} {record.levelname.lower():7} {record.name} {record.getMessage()}"
        if ident:
            line += f" [{ident}]"
        # The masking filter has turned the traceback into masked text; the raw one is never printed.
        return f"{line}\n{record.exc_text}" if record.exc_text else line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        data = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "part": record.name,
            "message": record.getMessage(),
        }
        if ident := getattr(record, "message_id", ""):
            data["id"] = ident
        if record.exc_text:
            data["exception"] = record.exc_text
        return json.dumps(data, ensure_ascii=False)


def set_up(level: str, form: str, masker: Masker) -> None:
    """Send all logs to stderr. The libraries' own chatter is kept at warnings, with the level debug at info:
    below that some print whole messages."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_MessageId())
    handler.addFilter(MaskingFilter(masker))
    handler.addFilter(Repeats())
    handler.setFormatter(_Json() if form == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO if level == "debug" else logging.WARNING)
    logging.getLogger("causeway").setLevel(level.upper())
