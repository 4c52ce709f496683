"""What the bridge keeps, as protocols. SQLite (`sqlite.py`) is the default; Redis (`redis.py`) serves many
processes.

Every write is committed when its call returns, and is all or nothing. No call blocks the event loop.
Raises StoreError when the store cannot do its work (disk full, file damaged); a store that is merely
busy waits.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from agent.history import HistoryStore
from channels.base import ChannelState, Inbound, Json

#: How long a message id is remembered, in seconds; longer than any platform repeats a delivery.
SEEN_SECONDS = 14 * 86_400
#: How long a reply is kept after its end.
REPLY_SECONDS = 2 * 86_400
#: How long the sums of use of a day are kept.
USAGE_SECONDS = 400 * 86_400
#: The spans of the limits on messages and on tokens, in seconds.
MINUTE, DAY = 60.0, 86_400.0
#: Most entries of one log of a channel; the oldest go.
LOG_MOST = 100_000


class StoreError(Exception):
    """The store failed. The message says what, why, and what an admin can do."""


class SessionLost(StoreError):
    """This worker's claim on a session has run out or went to another worker: nothing was written."""


_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_escaped = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


def encode(value: Any) -> str:
    """JSON that every store takes: platforms do send half surrogate pairs, no UTF-8 unless escaped."""
    text = _compact(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return _escaped(value)
    return text


def stored_inbound(text: str, seq: int) -> Inbound:
    """A message as it was stored. Raises StoreError for one that cannot be read."""
    try:
        return Inbound.from_json(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"The stored message {seq} cannot be read ({error}). Stop the bridge and restore a backup, or "
            "take that message out of the inbox by hand."
        ) from None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message in a session's inbox. `seq` grows with arrival over all sessions. `run` is the id of the run
    that took it, or None."""

    seq: int
    session: str
    inbound: Inbound
    run: str | None


ReplyState = Literal["open", "complete", "delivered", "failed"]
ChunkState = Literal["intent", "sent", "unknown", "rejected"]


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk's fate. `intent`: the platform call was begun and its outcome never written down."""

    n: int
    state: ChunkState
    message_id: str = ""


@dataclass(frozen=True, slots=True)
class StoredReply:
    """A reply in the outbox. `id` is the run's id (or `cmd-…` for a command's answer).

    `open`: the run still works on it (chunks may already be visible); `complete`: `body` is the whole
    reply and is to be delivered; `delivered` and `failed` are ends. `ref` and `body` are plain JSON.
    """

    id: str
    session: str
    ref: dict[str, Any]
    body: dict[str, Any]
    state: ReplyState
    chunks: tuple[StoredChunk, ...] = ()


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What was used on a day (UTC, as 2026-01-31). `kind` "model": `calls` answers with so many tokens;
    "tool": `calls` calls."""

    day: str
    session: str
    channel: str
    chat: str
    person: str
    kind: Literal["model", "tool"]
    name: str
    calls: int = 0
    input: int = 0
    output: int = 0
    cached: int = 0


#: What sums of use may be taken per. Per kind and name they always are.
UsageField = Literal["day", "session", "channel", "chat", "person"]
USAGE_FIELDS: tuple[UsageField, ...] = ("day", "session", "channel", "chat", "person")


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session that has a history, and how many entries that has. `active`: when something last happened in
    it, Unix time, to a minute (0: not known)."""

    key: str
    entries: int
    active: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Bound:
    """What one counter may reach (0: no limit): `messages` within `MINUTE`, `tokens` on a day."""

    counter: str
    messages: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Reached:
    """A bound that is reached. `seconds` until its counter has room for a message (0 for tokens: that is the
    day's end)."""

    counter: str
    kind: Literal["messages", "tokens"]
    seconds: float = 0.0


class Meter(Protocol):
    """The counters of the use limits, one for all processes of a store. `now` is Unix time in seconds; days
    are those of UTC."""

    async def admit(self, message: str, now: float, bounds: Sequence[Bound]) -> Reached | None:
        """Count a message against all bounds at once. Where one is reached it counts for none: the first such
        is returned. A message that was counted within the minute is let in again and counts once."""
        ...

    async def spend(self, now: float, tokens: Mapping[str, int]) -> None:
        """Add to the day's counters of tokens."""
        ...

    async def begin(self, now: float, tokens: Mapping[str, int]) -> None:
        """What was used on the day so far, for those counters of tokens that stand at nothing."""
        ...


class Store(Protocol):
    @property
    def meter(self) -> Meter: ...

    @property
    def history(self) -> HistoryStore: ...

    async def open(self) -> None:
        """Open or create. Raises StoreError when the file is damaged or newer than the program."""
        ...

    async def close(self) -> None:
        """Finish every write that was begun, then close."""
        ...

    # -- inbox ---------------------------------------------------------------------------------------

    async def accept(self, inbound: Inbound, session: str, cap: int) -> Literal["accepted", "seen", "full"]:
        """Mark the message seen and put it into the session's inbox, in one commit.

        "seen": (channel, chat, id) was marked before; nothing is written. "full": the session has `cap`
        messages waiting; the message is marked seen but not kept (the caller tells the person).
        """
        ...

    async def mark_seen(self, inbound: Inbound, reply: StoredReply | None = None) -> bool:
        """Mark a message that needs no run as seen, together with its answer (state `complete`) if any.

        False: it was seen before, and nothing was written.
        """
        ...

    async def next(self, session: str, limit: int = 1) -> list[Waiting]:
        """The oldest waiting messages of a session."""
        ...

    async def take(self, seqs: Sequence[int], run: str) -> None:
        """Write down that a run took these messages."""
        ...

    async def amend(self, inbound: Inbound, session: str) -> bool:
        """Put `inbound` in the place of the waiting message that it `replaces`, which keeps its number and
        id. False: that one does not wait here (any more), or a run has taken it."""
        ...

    async def drop(self, seqs: Sequence[int]) -> None:
        """Remove messages from the inbox without an answer (a stop, a `/new`)."""
        ...

    async def waiting_sessions(self, channels: Sequence[str]) -> list[str]:
        """Sessions of these channel instances with waiting messages, the longest waiting first."""
        ...

    async def waiting_count(self, session: str) -> int: ...

    # -- outbox --------------------------------------------------------------------------------------

    async def open_reply(self, reply: StoredReply) -> None:
        """Write a reply down (state `open` or `complete`). An existing one of that id stays as it is."""
        ...

    async def reply(self, id: str) -> StoredReply | None: ...

    async def complete_reply(self, reply: StoredReply) -> None:
        """Write the whole reply (inserting it if needed); its chunks stay as they are."""
        ...

    async def put_chunk(self, reply: str, chunk: StoredChunk) -> None:
        """Write a chunk's state down (insert or replace)."""
        ...

    async def settle_reply(self, id: str, state: Literal["delivered", "failed"], seqs: Sequence[int]) -> None:
        """The reply is finished; in the same commit the messages `seqs` it answers leave the inbox.

        A reply that was never written down (on a channel that recognises repeats) is settled all the same.
        """
        ...

    async def pending_replies(self, channels: Sequence[str]) -> list[StoredReply]:
        """Replies in state `complete` of these channel instances, oldest first."""
        ...

    # -- notes ---------------------------------------------------------------------------------------

    async def get_setting(self, scope: str, key: str) -> Json: ...

    async def put_setting(self, scope: str, key: str, value: Json) -> None:
        """Write a setting; None removes it."""
        ...

    async def settings(self, scope: str) -> dict[str, Json]:
        """All settings of a scope."""
        ...

    async def add_usage(self, rows: Sequence[UsageRow]) -> None:
        """Add to the sums."""
        ...

    async def usage(
        self,
        since: str,
        per: Sequence[UsageField] = USAGE_FIELDS,
        of: tuple[str, str] | None = None,
        most: int = 0,
    ) -> list[UsageRow]:
        """The sums of the day `since` and later, by day; `of` one (channel, person) only. Per these fields
        only: the others are summed over, and empty in the rows. `most`: only so many rows, the largest
        first; in a large bridge the rows of all its people are very many."""
        ...

    async def sessions(self, limit: int = 1000, after: str = "") -> list[StoredSession]:
        """The first `limit` sessions that have a history, in the order of their keys, behind the key
        `after`."""
        ...

    def channel_state(self, channel: str) -> ChannelState: ...

    async def forget_before(self, seen: float, replies: float, limit: int = 5000) -> int:
        """Delete seen marks older than Unix time `seen` and finished replies older than `replies`; at most
        `limit` rows a call. Returns how many. A store whose marks and replies end by themselves, after
        `SEEN_SECONDS` and `REPLY_SECONDS`, has nothing to do."""
        ...

    async def forget_sessions(self, before: float, limit: int = 100) -> list[str]:
        """Delete the histories of sessions in which nothing has happened since Unix time `before` and nothing
        waits; at most `limit` a call. Returns their keys: their files are the caller's to delete."""
        ...

    async def examine(self) -> None:
        """Look through all that is stored, which may take minutes, beside everything else; `notice` then says
        what is damaged. The look at the start is a short one."""
        ...

    async def tidy(self) -> None:
        """Upkeep in small steps: logs are cut to `LOG_MOST` entries, sums of use older than `USAGE_SECONDS`
        go, room that is free goes back to the disk."""
        ...

    def notice(self) -> str:
        """What an admin should know about the store (a damaged file was set aside); empty: nothing."""
        ...

    def fault(self) -> str:
        """Why the store does not work now, as its last calls tell; empty: it works. Names no place."""
        ...


class Claims(Protocol):
    """Sessions claimed by workers, for stores that several processes share. A store that was opened with a
    worker's name refuses to work on a session without a claim on it: SessionLost."""

    async def claim_session(self, session: str, seconds: float) -> int | None:
        """Claim a session for this worker, or renew the claim: its fencing token, which every write of this
        store on the session then carries. None: another worker has it."""
        ...

    async def renew_session(self, session: str, seconds: float) -> bool:
        """Make the claim last for `seconds` from now. False: it is lost."""
        ...

    async def release_session(self, session: str) -> None:
        """Give the claim back."""
        ...

    def token(self, session: str) -> int | None:
        """The fencing token of this worker's claim, as far as it knows; None without one."""
        ...


class Arrivals(Protocol):
    """What gateways have taken from platforms and no worker has looked at yet: a list for each session, in
    order. An item is plain JSON."""

    async def put(self, session: str, item: Json, cap: int) -> str | None:
        """Write an item at the end. Returns the worker that has the session now, "" when none has it; None
        (and nothing is written) when `cap` items wait already."""
        ...

    async def read(self, session: str, limit: int) -> list[Json]:
        """The oldest items of a session that this worker has claimed."""
        ...

    async def consume(self, session: str, count: int) -> bool:
        """Take the oldest `count` items away; whether none are left."""
        ...

    async def unclaimed(self, limit: int) -> list[str]:
        """Sessions for which something has arrived or waits and which no worker has; at most `limit` are
        looked at, others at the next call."""
        ...

    async def holders(self, sessions: Sequence[str]) -> list[str]:
        """The worker that has each session, "" where none has it."""
        ...


class Relay(Protocol):
    """Messages between the processes of one store. They are not kept: who is not listening misses them."""

    async def publish(self, channel: str, text: str) -> int:
        """Send; how many processes were listening."""
        ...

    def listen(self, channels: Sequence[str]) -> AsyncIterator[str | None]:
        """What is sent to these channels from now on; None each time when the line was made anew, so that
        something may have been missed. Never ends by itself and raises nothing of the server's."""
        ...

    async def keep_alive(self, member: str, record: str, seconds: float) -> dict[str, str]:
        """Say that a process is there for so many seconds; returns the records of all that are."""
        ...

    async def leave(self, member: str) -> None: ...
