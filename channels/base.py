"""The contract between a chat platform and the bridge.

A channel knows its platform and nothing else: no sessions, no agents, no policy. It turns a platform
event into an `Inbound` and awaits `receive(inbound)`; only when that returns may it acknowledge the
event to the platform. It shows a reply by three primitives that the bridge drives: `render` (pure: text
to chunks that the platform can show), `post` (one platform call for one new chunk) and `edit` (one
platform call that replaces a chunk already shown). The bridge writes down each chunk around its `post`,
so that after a crash a reply goes on at the chunk where it stopped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from aiohttp import web
from pydantic import BaseModel, ConfigDict

Json: TypeAlias = "None | bool | int | float | str | list[Any] | dict[str, Any]"
ChatKind = Literal["direct", "group", "channel"]
#: How a message means the bot: "" (not at all), a direct chat, its name, a reply to it, a command for it.
Cue = Literal["", "direct", "mention", "reply", "command"]
AttachmentKind = Literal["image", "audio", "video", "file"]

INBOUND_VERSION = 1


@dataclass(frozen=True, slots=True)
class Address:
    """Where a conversation takes place. `channel` is the instance's name in the configuration."""

    channel: str
    chat: str
    kind: ChatKind = "direct"
    thread: str | None = None


@dataclass(frozen=True, slots=True)
class Sender:
    """Who wrote. `id` is the platform's stable id; `language` is a BCP-47 tag or empty."""

    id: str
    name: str = ""
    is_bot: bool = False
    language: str = ""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that came with a message; fetched later with `Channel.fetch`. `size` in bytes, -1 unknown."""

    kind: AttachmentKind
    ref: str
    mime: str = ""
    name: str = ""
    size: int = -1


@dataclass(frozen=True, slots=True)
class Quote:
    """The message that this one replies to."""

    text: str
    sender: str = ""
    message_id: str = ""


@dataclass(frozen=True, slots=True)
class ContextMessage:
    """An earlier message that the platform handed along; it seeds a session that has no history yet."""

    role: Literal["user", "assistant", "system"]
    text: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Inbound:
    """One message of one person. Plain data: it is stored before it is acknowledged.

    `id` is the platform's message id, unique within the channel instance and chat, and the key by which a
    second delivery is recognised. `text` has the bot's mention removed. `addressed`: the bot is meant
    (mentioned, replied to, or a direct chat), and `cue` says by what. `sent_at` is Unix time in seconds.
    `album`: messages of one chat with the same album are parts of one message (each is stored as it comes;
    the bridge puts them together). `replaces`: the id of an earlier message that this one corrects; it never
    starts a turn of its own. `via` is the bridge's: which of several gateways took the message in.
    """

    id: str
    address: Address
    sender: Sender
    text: str
    addressed: bool = True
    quote: Quote | None = None
    attachments: tuple[Attachment, ...] = ()
    context: tuple[ContextMessage, ...] = ()
    sent_at: float = 0.0
    cue: Cue = ""
    album: str = ""
    replaces: str = ""
    via: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"v": INBOUND_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Inbound:
        """Read what `to_json` wrote. Raises ValueError for a version this program does not know."""
        if data.get("v") != INBOUND_VERSION:
            raise ValueError(f"stored message has version {data.get('v')!r}, expected {INBOUND_VERSION}")
        quote = data.get("quote")
        return cls(
            id=data["id"],
            address=Address(**data["address"]),
            sender=Sender(**data["sender"]),
            text=data["text"],
            addressed=data["addressed"],
            quote=Quote(**quote) if quote else None,
            attachments=tuple(Attachment(**a) for a in data["attachments"]),
            context=tuple(ContextMessage(**c) for c in data["context"]),
            sent_at=data["sent_at"],
            cue=data.get("cue", ""),
            album=data.get("album", ""),
            replaces=data.get("replaces", ""),
            via=data.get("via", ""),
        )


@dataclass(frozen=True, slots=True)
class OutFile:
    """A local file to show in the chat. The bridge has already checked that it may be sent."""

    path: str
    name: str
    mime: str = "application/octet-stream"
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Outbound:
    """What is to be shown: Markdown text (CommonMark with tables) and files."""

    text: str
    files: tuple[OutFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of a reply as one platform call will show it. Plain JSON, since it is stored.

    `text` is the visible text; `data` is whatever the channel needs besides (entities, parse mode);
    `file` makes it a file chunk.
    """

    text: str
    data: dict[str, Any] = field(default_factory=dict)
    file: OutFile | None = None


@dataclass(frozen=True, slots=True)
class ReplyRef:
    """Which reply a call belongs to. `id` stays the same over restarts; `to` is the `Inbound.id` answered and
    `person` the id of its sender. `private`: only that person is meant to see it, where the platform can do
    that (a refusal in a group); elsewhere it is shown like any reply. `via`: see `Inbound`."""

    id: str
    address: Address
    to: str = ""
    language: str = ""
    person: str = ""
    private: bool = False
    via: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer to a question. `id` is opaque: at most 40 ASCII letters, digits, `-`, `_`, `:`."""

    id: str
    label: str
    style: Literal["", "primary", "danger"] = ""


@dataclass(frozen=True, slots=True)
class Press:
    """A person pressed a button of a question. `message_id` is what `Channel.ask` returned for it."""

    address: Address
    sender: Sender
    choice: str
    message_id: str = ""


@dataclass(frozen=True, slots=True)
class MenuEntry:
    """One command for a platform's command menu. `about` maps "en" and "zh" to a short description."""

    name: str
    about: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check of the settings found, for `doctor` and `init`. Texts are in the language asked for."""

    level: Literal["ok", "warning", "error"]
    what: str
    cure: str = ""


@dataclass(frozen=True, slots=True)
class SetupField:
    """A setting that `causeway init` asks for. `about` maps "en" and "zh" to where the person finds it."""

    name: str
    about: Mapping[str, str]
    secret: bool = False
    required: bool = True


@dataclass(frozen=True, slots=True)
class Activity:
    """Something the agent does that a channel may show: a tool that starts or ends."""

    call: str
    name: str
    state: Literal["running", "done", "failed"]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the platform takes.

    `max_text`: longest text of one chunk in `unit` (0: no limit). `streams`: a chunk may be posted before
    it is final and edited as text arrives. `update_interval`: least seconds between two edits of one
    chat. `typing_interval`: seconds after which the typing sign must be renewed (0: it has none).
    `idempotent`: posting the same reply id and chunk number twice shows it once.
    """

    max_text: int = 0
    unit: Literal["chars", "utf16", "bytes"] = "chars"
    streams: bool = False
    update_interval: float = 1.0
    typing_interval: float = 0.0
    idempotent: bool = False


@dataclass(frozen=True, slots=True)
class Health:
    """State of a channel for /readyz, /status and the log. `cure` says what a person should do."""

    ok: bool
    reason: str = ""
    cure: str = ""


class SendError(Exception):
    """A platform call failed. The subclass says what the caller does next.

    SendError
     ├─ NotSent      certainly not shown; try again later (connection refused, 5xx before it was taken)
     │   └─ Flooded  the same, and the platform says when: `retry_after` seconds
     ├─ Unknown      may have been shown (time-out after sending); do not repeat
     ├─ Rejected     this chunk will never be taken (bad request); go on with the next
     │   └─ Lost     the message to edit is gone or can no longer be changed; post the chunk anew
     └─ Gone         this chat can no longer be written to (blocked, deleted); give the reply up
    """


class NotSent(SendError):
    pass


class Flooded(NotSent):
    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unknown(SendError):
    pass


class Rejected(SendError):
    pass


class Lost(Rejected):
    pass


class Gone(SendError):
    pass


class ChannelError(Exception):
    """The channel cannot work as configured. The message names the setting and the cure."""


class TooLarge(Exception):
    """An attachment is larger than the platform or the bridge lets through; `limit` in bytes, 0 unknown."""

    def __init__(self, message: str, limit: int = 0) -> None:
        super().__init__(message)
        self.limit = limit


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of a channel's log. `seq` grows with every write, also when an entry is written anew."""

    seq: int
    id: str
    value: dict[str, Any]


class ChannelState(Protocol):
    """A channel's own durable notes (an update offset, a page's messages). Already scoped to the instance.

    Every write is committed when the call returns.
    """

    async def get(self, key: str) -> Json: ...

    async def put(self, key: str, value: Json) -> None: ...

    async def append(self, log: str, entry: str, value: dict[str, Any]) -> int:
        """Write an entry (an existing id is replaced and moves to the end); return its new `seq`."""
        ...

    async def read(self, log: str, after: int = 0, limit: int = 500) -> list[LogEntry]:
        """The newest `limit` entries with `seq > after`, oldest first."""
        ...

    async def trim(self, log: str, upto: int) -> None:
        """Delete the entries of a log with `seq <= upto`."""
        ...

    async def remove(self, log: str, entry: str) -> bool:
        """Delete an entry of a log. True for the one caller that found it there."""
        ...

    async def claim(self, key: str, holder: str, seconds: float) -> bool:
        """Take or renew a lease: True when nobody else holds `key` now. It ends after `seconds`."""
        ...

    async def release(self, key: str, holder: str) -> None:
        """Give a lease back; one that another holds stays as it is."""
        ...


class Translate(Protocol):
    """The catalogue of user-facing texts: key, language tag (empty: the default), values."""

    def __call__(self, key: str, language: str = "", /, **values: object) -> str: ...


async def _nobody_asked(_press: Press) -> str:
    """For a channel that is only checked, not run."""
    return ""


async def _nobody_moves(_old: str, _new: str) -> None:
    """For a channel that is only checked, not run."""


@dataclass(frozen=True, slots=True)
class Env:
    """What a channel is given: its notes, the texts, a folder of its own, and the clock (Unix seconds).

    `press` takes a pressed button and returns within a second the words to show to that person alone (empty:
    nothing to say). `moved` says that a chat has a new id (old, new); it returns when that is written down.
    `public_url` is where the platform reaches this server, without a slash at its end; empty when unknown.
    `shared`: other processes may run the same channel with the same notes and the same folder.
    """

    state: ChannelState
    text: Translate
    folder: Path
    clock: Callable[[], float]
    press: Callable[[Press], Awaitable[str]] = _nobody_asked
    moved: Callable[[str, str], Awaitable[None]] = _nobody_moves
    public_url: str = ""
    shared: bool = False


Receive: TypeAlias = Callable[[Inbound], Awaitable[None]]


class ChannelConfig(BaseModel):
    """Settings common to all channels; each channel's `Config` inherits from it."""

    model_config = ConfigDict(extra="forbid")

    type: str = ""
    enabled: bool = True


_ConfigClass: TypeAlias = type[ChannelConfig]


class Channel(ABC):
    """One instance of one platform.

    Lifecycle: constructed (no I/O, no SDK imported before `start`), `start` once, `stop` once. `start`
    returns when the channel is set up; it must not wait for an unreachable platform but report it by
    `health` and go on trying. Every task it starts is awaited by its `stop`.
    """

    type: ClassVar[str]
    Config: ClassVar[_ConfigClass]
    limits: Limits = Limits()
    #: The person on this machine is trusted without a configured access rule (web, api, terminal).
    local: ClassVar[bool] = False
    #: A person is there to answer a question while a run waits (not so where one request gets one answer).
    asks: ClassVar[bool] = True
    #: A thread is a side conversation that the bot may take part in (no standing room as a forum topic is).
    joins_threads: ClassVar[bool] = False
    #: `ask` shows the choices as buttons; elsewhere people answer in words.
    buttons: bool = False
    #: What `causeway init` asks for, in order.
    setup: ClassVar[tuple[SetupField, ...]] = ()
    #: User-facing texts of this channel type: key (beginning with the type's name) -> (English, Chinese).
    texts: ClassVar[Mapping[str, tuple[str, str]]] = MappingProxyType({})

    def __init__(self, name: str, config: Any, env: Env) -> None:
        self.name = name
        self.config = config
        self.env = env

    def has(self, method: str) -> bool:
        """Whether this channel does what the base class leaves undone, such as `acknowledge` or `menu`."""
        return getattr(type(self), method) is not getattr(Channel, method)

    @abstractmethod
    async def start(self, receive: Receive) -> None:
        """Begin to receive. Raises ChannelError when the settings cannot work."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop receiving, then release everything. Called after the last `post`."""

    async def pause(self) -> None:
        """Stop receiving while replies still go out (the bridge drains). Default: nothing to do."""

    @abstractmethod
    def render(self, outbound: Outbound) -> list[Chunk]:
        """Turn a reply into chunks within `limits`. Pure; also called on text that is still growing.

        The visible text of all chunks together is the whole reply: nothing is cut off.
        """

    @abstractmethod
    async def post(self, ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        """Show chunk number `n` (from 0) of the reply as a new message; return the platform's message id.

        `final`: the chunk will not change any more. A chunk that is not final may be shown in a passing way
        that leaves no message (a draft): then the id is "", and the same chunk is posted again as it grows,
        the last time with `final`. Raises SendError.
        """

    async def edit(self, ref: ReplyRef, n: int, message_id: str, chunk: Chunk, *, final: bool) -> None:
        """Replace a chunk already shown. "Not modified" is success. Raises SendError; `Lost` makes the bridge
        post the chunk anew."""
        raise Rejected(f"{self.type} cannot edit messages")

    async def end(self, ref: ReplyRef) -> None:
        """All that will be shown of this reply has been shown (or given up). May be called again."""
        return

    def activity(self, ref: ReplyRef, activity: Activity) -> None:
        """Show what the agent is doing, if the platform has a place for it. Must not block."""
        return

    async def typing(self, ref: ReplyRef) -> None:
        """Show the typing sign once. Failures are the channel's own to log."""
        return

    async def acknowledge(self, ref: ReplyRef) -> None:
        """Show that a message was taken up (a reaction), where that is a setting. May be called again."""
        return

    async def ask(self, ref: ReplyRef, question: str, choices: Sequence[Choice]) -> str:
        """Put a question (Markdown) with choices into the chat; return the message id. Default: words."""
        lines = [question, *(f"- {choice.label}" for choice in choices)]
        return await self.post(ref, 0, self.render(Outbound("\n".join(lines)))[0], final=True)

    async def settle(self, ref: ReplyRef, message_id: str, outcome: str) -> None:
        """A question is decided: show the outcome (Markdown) in its place, without buttons. Default: nothing,
        since the words around it say it. Raises SendError."""
        return

    async def menu(self, entries: Sequence[MenuEntry]) -> None:
        """Tell the platform which commands there are. Called once the channel runs; may raise SendError."""
        return

    async def earlier(self, inbound: Inbound, limit: int) -> tuple[ContextMessage, ...]:
        """Up to `limit` messages that stood in this thread or chat before `inbound`, oldest first, for a
        session without history. Called while a run is prepared, never before a message is acknowledged."""
        return ()

    async def fetch(self, attachment: Attachment, target: Path, max_bytes: int) -> None:
        """Write an attachment's bytes to `target`. Raises TooLarge, NotSent or Rejected."""
        raise Rejected(f"{self.type} has no attachments")

    async def forget(self, address: Address) -> None:
        """Delete what this channel itself keeps of a conversation. Works on a channel that was never started.
        Raises SendError."""
        return

    def routes(self) -> list[web.RouteDef]:
        """Routes for the bridge's HTTP server. Asked for once, before `start`."""
        return []

    @property
    def holds(self) -> bool:
        """Whether this instance can send. Of several gateways only one may have what it takes (a connection
        of which the platform allows one); the others raise NotSent at once."""
        return True

    def health(self) -> Health:
        return Health(True)

    async def check(self, language: str = "") -> list[Finding]:
        """Look at the settings, the account and the rights from outside, for `doctor` and `init`.

        Works on a channel that was never started and must not disturb one that runs elsewhere with the same
        account. Never raises for a fault of the settings: that is what it reports."""
        return []
