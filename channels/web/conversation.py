"""One visitor's chat in memory: what grows, who looks on, and in which order things stand.

What is finished is in the channel's log. Here is only what a crash may take: the text of a reply that is
still growing, tools that run, the sign that the bot works. A page that connects gets the log and then this.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from channels.base import LogEntry

#: Seconds without a sign of life after which a reply no longer counts as being worked on.
WORKING_FOR = 15.0
#: Things that may wait for one slow page; one that is behind by more is cut off and catches up from the log.
MAX_WAITING = 500
_MAX_SENT = 1000


@dataclass(slots=True)
class Draft:
    """Text of a reply that is not final."""

    id: str
    place: dict[str, Any]
    text: str


@dataclass(frozen=True, slots=True)
class Entry:
    """Something to show as it is. `seq` is its place in the log, or 0 when it is not there (yet)."""

    id: str
    value: dict[str, Any]
    seq: int = 0


@dataclass(frozen=True, slots=True)
class Busy:
    on: bool


Item: TypeAlias = Draft | Entry | Busy


@dataclass(eq=False, slots=True)
class Page:
    """An open page. Of each thing only its newest state waits, so a slow page misses steps, never the end."""

    waiting: OrderedDict[str, Item] = field(default_factory=OrderedDict)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False

    def put(self, key: str, item: Item) -> None:
        if self.closed:
            return
        # Always at the end: entries must reach the page in the order of the log, or a page that reconnects
        # after a later one would never get the earlier one.
        self.waiting.pop(key, None)
        self.waiting[key] = item
        if len(self.waiting) > MAX_WAITING:
            self.close()
        self.news.set()

    def close(self) -> None:
        self.closed = True
        self.waiting.clear()
        self.news.set()


class Conversation:
    def __init__(self, chat: str) -> None:
        self.chat = chat
        self.pages: set[Page] = set()
        self.drafts: dict[str, Draft] = {}
        self.tools: dict[str, Entry] = {}
        #: Messages known to be in the log; `loaded` once the log was looked at.
        self.sent: OrderedDict[str, None] = OrderedDict()
        self.loaded = False
        #: The newest entry of the log that was looked at here.
        self.seq = 0
        #: Held while a message is handed over, so that messages keep their order.
        self.sending = asyncio.Lock()
        #: Held while the log is written, so that pages hear of entries in the order of the log.
        self.writing = asyncio.Lock()
        self._working: dict[str, float] = {}
        self._places: OrderedDict[str, int] = OrderedDict()
        self._last_place = 0
        #: Message -> the reply that answers it.
        self._replies: OrderedDict[str, str] = OrderedDict()

    @property
    def idle(self) -> bool:
        return not (self.pages or self.drafts or self.tools or self.sending.locked() or self.writing.locked())

    # -- order ---------------------------------------------------------------------------------------

    def place(self, group: str, now: float) -> int:
        """Where a message stands in the page: by its first appearance, in milliseconds, each one later than
        the ones before. It is written down with the message, so it holds over a restart."""
        if group not in self._places:
            self.note_place(group, max(self._last_place + 1, int(now * 1000)))
        return self._places[group]

    def knows(self, group: str) -> bool:
        return group in self._places

    def note(self, entry: LogEntry) -> None:
        """What an entry of the log says about order and answers."""
        value = entry.value
        self.note_place(value["group"], value["pos"])
        self.note_reply(value.get("to", ""), value["group"])
        if value["role"] == "user":
            self.note_sent(entry.id.removeprefix("u:"))
        self.seq = entry.seq

    def note_place(self, group: str, place: int) -> None:
        self._last_place = max(self._last_place, place)
        self._places.setdefault(group, place)
        if len(self._places) > _MAX_SENT:
            self._places.popitem(last=False)

    def note_reply(self, to: str, group: str) -> None:
        """`group` answers the message `to` ("u:" and its id); the first one counts."""
        if to != "u:" and to:
            self._replies.setdefault(to, group)
            if len(self._replies) > _MAX_SENT:
                self._replies.popitem(last=False)

    def reply_to(self, message: str) -> str:
        """The reply that answers a message, or ""."""
        return self._replies.get(f"u:{message}", "")

    def note_sent(self, id: str) -> None:
        self.sent[id] = None
        if len(self.sent) > _MAX_SENT:
            self.sent.popitem(last=False)

    # -- what pages see ------------------------------------------------------------------------------

    def show(self, key: str, item: Item) -> None:
        for page in self.pages:
            page.put(key, item)

    def grow(self, id: str, place: dict[str, Any], text: str) -> None:
        draft = self.drafts.get(id)
        if draft is None:
            draft = self.drafts[id] = Draft(id, place, text)
        draft.text = text
        self.show(id, draft)

    def tool(self, entry: Entry) -> None:
        self.tools[entry.id] = entry
        self.show(entry.id, entry)

    def logged(self, entry: Entry) -> None:
        """The entry is in the log: it replaces what was in memory of it."""
        self.drafts.pop(entry.id, None)
        if entry.value.get("state") != "running":
            self.tools.pop(entry.id, None)
        self.show(entry.id, entry)

    def open_page(self) -> Page:
        page = Page()
        self.pages.add(page)
        return page

    def show_unfinished(self, page: Page, now: float) -> None:
        for draft in self.drafts.values():
            page.put(draft.id, draft)
        for entry in self.tools.values():
            page.put(entry.id, entry)
        page.put("busy", Busy(self.busy(now)))

    # -- the sign that the bot works -------------------------------------------------------------------

    def working(self, reply: str, now: float) -> None:
        self._working[reply] = now
        self.show("busy", Busy(on=True))

    def ended(self, reply: str, now: float) -> None:
        self._working.pop(reply, None)
        self.show("busy", Busy(self.busy(now)))

    def busy(self, now: float) -> bool:
        self._working = {reply: at for reply, at in self._working.items() if now - at < WORKING_FOR}
        return bool(self._working)
