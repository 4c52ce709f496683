"""Structured logs: one line an event, one id a message, no message bodies, secrets masked."""

from __future__ import annotations

import contextvars
import hashlib
import json
import logging
import sys
import time

from agent.tools.masking import Masker, MaskingFilter
from channels.base import Inbound

#: The message a task works on; set by the router and the runner, inherited by every task they start.
current_message: contextvars.ContextVar[str] = contextvars.ContextVar("causeway_message", default="")


def message_id(inbound: Inbound) -> str:
    """The id under which all that happens to a message is logged: its channel and a digest."""
    address = inbound.address
    parts = "\0".join((address.channel, address.chat, address.thread or "", inbound.id))
    return f"{address.channel}-{hashlib.sha256(parts.encode()).hexdigest()[:10]}"


class _MessageId(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.message_id = current_message.get()
        return True


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
    handler.setFormatter(_Json() if form == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO if level == "debug" else logging.WARNING)
    logging.getLogger("causeway").setLevel(level.upper())
