"""Server-sent events as a pure state machine: bytes in, events out. No I/O.

The line rules are those of the WHATWG HTML standard, section "Server-sent events".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Bytes of one event; a longer one is a broken or hostile server.
LARGEST_EVENT = 4 * 1024 * 1024
_END_OF_LINE = re.compile(rb"\r\n|\n|\r")


class TooLarge(ValueError):
    """An event is larger than `LARGEST_EVENT`."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event: its name ("" when none was given) and its data, still bytes."""

    name: str
    data: bytes


class Decoder:
    """Feed it bytes as they arrive, however they are cut."""

    __slots__ = ("_data", "_first", "_name", "_rest", "_size")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._name = ""
        self._size = 0
        self._first = True

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that are complete with this chunk. Raises TooLarge."""
        text = self._rest + chunk
        if self._first and text:
            if b"\xef\xbb\xbf".startswith(text[:3]):
                if len(text) < 3:
                    self._rest = text
                    return []
                text = text[3:]
            self._first = False
        # A \r at the very end may be half of a \r\n.
        hold = text[-1:] == b"\r"
        lines = _END_OF_LINE.split(text[:-1] if hold else text)
        self._rest = lines.pop() + (b"\r" if hold else b"")
        if len(self._rest) + self._size > LARGEST_EVENT:
            raise TooLarge(f"an event of more than {LARGEST_EVENT} bytes")
        events: list[ServerEvent] = []
        for line in lines:
            self._line(line, events)
        return events

    def _line(self, line: bytes, events: list[ServerEvent]) -> None:
        if not line:
            if self._data:
                events.append(ServerEvent(self._name, b"\n".join(self._data)))
            self._data, self._name, self._size = [], "", 0
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._size += len(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")

    def finish(self) -> list[ServerEvent]:
        """An event whose closing empty line never came: some servers leave it out at the end."""
        return [*self.feed(b"\n"), *self.feed(b"\n")] if self._rest or self._data else []
