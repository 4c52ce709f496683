"""A line to one Redis server: what is asked at the same time goes over in one round trip, in the order asked.

The server does the commands of a line one after the other, so calls that one task makes together take effect
in their order. A batch whose answer was lost is sent again as a whole: every command of the store may be
done twice (see `redis_scripts`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qs, unquote, urlencode, urlsplit, urlunsplit

from bridge.store.base import SessionLost, StoreError
from bridge.store.redis_scripts import ALL, Command

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = logging.getLogger("causeway.store")

MAX_BATCH = 256  # commands in one round trip
MAX_QUEUED = 4096  # pieces of work; further callers wait for room
STOP_SECONDS = 30.0
_SOCKET_SECONDS = 5.0
_CONFIRM_MS = 2000
_WARN_SECONDS = 3.0
_OPTIONS = {"db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"}
_PLACE = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")

Connect: TypeAlias = "Callable[[Place], Redis]"
_Item: TypeAlias = "tuple[tuple[Command, ...], asyncio.Future[list[Any]] | None]"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the store is. `url` is what the client understands; `shown` is free of secrets. `prefix` begins
    every key; `replicas` is how many replicas must have a write before it counts."""

    url: str
    shown: str
    prefix: str = "causeway"
    replicas: int = 0


def place(url: str) -> Place:
    """Read a store's url: redis://, rediss:// (TLS) or unix://, with `?prefix=` and `?replicas=`.

    Pure. Raises StoreError, which repeats no secret.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or 6379
    except ValueError:
        raise _wrong("its host or port cannot be read") from None
    options = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    prefix, replicas = options.pop("prefix", "causeway"), options.pop("replicas", "0")
    if unknown := sorted(set(options) - _OPTIONS):
        known = ", ".join(sorted({*_OPTIONS, "prefix", "replicas"}))
        raise _wrong(f"the option {unknown[0]!r} is unknown; there are {known}")
    if not prefix or not set(prefix) <= _PLACE or len(prefix) > 64:
        raise _wrong("prefix may have only letters, digits, '.', '_' and '-'")
    if not replicas.isdecimal() or int(replicas) > 9:
        raise _wrong("replicas must be a number from 0 to 9")
    path = unquote(parts.path).lstrip("/")
    if parts.scheme == "unix":
        shown = f"unix:{unquote(parts.path)}"
        if not path:
            raise _wrong("the path of the socket is missing")
    else:
        shown = f"{parts.hostname}:{port}/{options.get('db', path) or 0}"
        if not parts.hostname or not (path or "0").isdecimal():
            raise _wrong("the host is missing" if not parts.hostname else "the database must be a number")
    if not options.get("db", "0").isdecimal():
        raise _wrong("the database must be a number")
    clean = urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(options), ""))
    return Place(clean, shown, prefix, int(replicas))


def _wrong(why: str) -> StoreError:
    return StoreError(
        f"store.url is no address of a Redis store: {why}. Write redis://user:password@host:6379/0 "
        "(rediss:// with TLS, unix:///path/to/socket), with ?prefix=NAME where bridges share a server."
    )


def connect(place: Place) -> Redis:
    """A client for one connection. Imports the client library, which takes a while: call it in a thread."""
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError as error:
        raise StoreError(
            "A store in Redis needs the client library. Install it: pip install causeway[redis]"
        ) from error
    client: Redis = Redis.from_url(
        place.url,
        decode_responses=True,
        encoding_errors="surrogatepass",  # platforms do send ids with half surrogate pairs
        protocol=2,
        socket_timeout=_SOCKET_SECONDS,
        socket_connect_timeout=_SOCKET_SECONDS,
        retry=Retry(NoBackoff(), 0),  # the line itself sends again
        client_name="causeway",
    )
    return client


# What a server says when it will (perhaps) take the command later, by the first word of its answer.
_LATER = {"READONLY", "LOADING", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "NOREPLICAS", "BUSY", "UNCONFIRMED"}
_CURES = {
    "READONLY": "It is a replica that may only be read: a failover is going on, or store.url names the wrong "
    "server. Point store.url at the primary (a name that follows it after a failover).",
    "LOADING": "It is still loading its data. The bridge goes on by itself when that is done.",
    "MISCONF": "It cannot write its data to disk and refuses writes. Free disk space or see its log; the "
    "bridge goes on by itself.",
    "OOM": "It has reached its maxmemory. Give it more memory, or free some; keep maxmemory-policy at "
    "noeviction, since anything else throws messages away. The bridge goes on by itself.",
    "NOREPLICAS": "Too few of its replicas are connected (min-replicas-to-write). Bring them up.",
    "UNCONFIRMED": "Too few of its replicas have confirmed the write (see ?replicas= in store.url).",
    "NOPERM": "The user in store.url may not run a command that the store needs. Allow it: "
    "ACL SETUSER name ~prefix:* &prefix:* +@all -@dangerous +info +config|get",
    "NOAUTH": "It asks for a password. Write it into store.url: redis://user:password@host:6379/0",
    "WRONGPASS": "User name or password are wrong. Correct them in store.url.",
    "MOVED": "It is one node of a Redis Cluster, which this version does not follow. Name a server (or a "
    "managed endpoint) that holds all keys.",
    "NOSCRIPT": "It forgets scripts as soon as they are loaded. Is something between that answers for it?",
}
_CURES |= dict.fromkeys(("ASK", "CROSSSLOT", "CLUSTERDOWN", "TRYAGAIN"), _CURES["MOVED"])
_CURES["MASTERDOWN"] = _CURES["READONLY"]
_AWAY = "Start it, or correct store.url. The bridge goes on by itself when it is back."


def word_of(error: BaseException) -> str:
    """The kind of an error, as the first word of the server's own answer; "AWAY" when there was no answer."""
    from redis import exceptions as known

    kinds: tuple[tuple[type[BaseException], str], ...] = (
        (known.AuthenticationError, "WRONGPASS"),
        (known.AuthenticationWrongNumberOfArgsError, "WRONGPASS"),
        (known.NoPermissionError, "NOPERM"),
        (known.BusyLoadingError, "LOADING"),
        (known.ReadOnlyError, "READONLY"),
        (known.OutOfMemoryError, "OOM"),
        (known.NoScriptError, "NOSCRIPT"),
        (known.MovedError, "MOVED"),
        (known.AskError, "ASK"),
        (known.MasterDownError, "MASTERDOWN"),
        (known.ClusterDownError, "CLUSTERDOWN"),
        (known.TryAgainError, "TRYAGAIN"),
        (known.ClusterCrossSlotError, "CROSSSLOT"),
        (known.ConnectionError, "AWAY"),
        (known.TimeoutError, "AWAY"),
        (OSError, "AWAY"),
        (TimeoutError, "AWAY"),
    )
    said = str(error)
    if "NOAUTH" in said or "Authentication required" in said:
        return "NOAUTH"
    for kind, word in kinds:
        if isinstance(error, kind):
            return word
    word = said.split(" ", 1)[0]
    return word if word.isupper() else "FAULT"


def store_error(error: BaseException, shown: str) -> StoreError:
    """Say what failed, why, and what an admin can do."""
    word = word_of(error)
    if word == "LOST":
        return SessionLost("lost the session: another worker has it, or the claim has run out")
    if word == "AWAY":
        return StoreError(f"Redis at {shown} cannot be reached ({_brief(error)}). {_cure(word)}")
    return StoreError(f"Redis at {shown} cannot be used ({word}: {_brief(error)}). {_cure(word)}")


def _cure(word: str) -> str:
    if word == "AWAY":
        return _AWAY
    return _CURES.get(word, "This is a fault of the bridge or of the server; see both logs.")


def _brief(error: BaseException) -> str:
    said = str(error).split("\n", 1)[0].split(" script: ", 1)[0]
    return said.removeprefix(f"{word_of(error)} ")[:200] or type(error).__name__


class _Unconfirmed(Exception):
    pass


class RedisLine:
    """Holds at most `MAX_QUEUED` pieces of work; further callers wait for room. While the server is away the
    work is tried again for `patience` seconds, then it fails with StoreError."""

    def __init__(
        self,
        place: Place,
        *,
        connect: Connect = connect,
        patience: float = 10.0,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        confirm: bool = False,
    ) -> None:
        #: Why the last work failed, if that was the server's own fault; empty once work goes through.
        self.fault = ""
        self._place = place
        self._connect = connect
        self._patience = patience
        self._sleep = sleep
        self._replicas = place.replicas if confirm else 0
        self._client: Redis | None = None
        self._queue: deque[_Item] = deque()
        self._filled = asyncio.Event()
        self._room = asyncio.Semaphore(MAX_QUEUED)
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._steps = 0  # pieces of work of several round trips that are under way

    async def start(self) -> None:
        """Raises StoreError when the client library is missing. Connects with the first command."""
        self._client = await asyncio.to_thread(self._connect, self._place)
        self._task = asyncio.create_task(self._main(), name="store-redis")

    async def run(self, *commands: Command) -> list[Any]:
        """Do commands, in order and with nothing of this line between them; their answers. When one of them
        fails the others may have been done: it raises StoreError. Cancelling takes back nothing."""
        await self._room.acquire()
        if self._task is None or (self._stopping and not self._steps):
            self._room.release()
            raise StoreError(
                f"The store at {self._place.shown} is closed: the bridge is stopping or never opened it."
            )
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._queue.append((commands, future))
        self._filled.set()
        return await future

    async def one(self, command: Command) -> Any:
        """Do one command; its answer."""
        return (await self.run(command))[0]

    @contextmanager
    def steps(self) -> Iterator[None]:
        """Several round trips that belong together: `stop` waits until all are done."""
        if not self._stopping:
            self._steps += 1
            try:
                yield
            finally:
                self._steps -= 1
                self._filled.set()
        else:
            yield  # `run` says that the line is closed

    def post(self, *commands: Command) -> None:
        """Do commands that only tidy up: nobody waits, and nothing is wrong when they are lost."""
        if (not self._stopping or self._steps) and len(self._queue) < MAX_QUEUED:
            self._queue.append((commands, None))
            self._filled.set()

    async def stop(self) -> None:
        """Finish what is queued, then close. Raises StoreError when that takes too long."""
        self._stopping = True
        self._filled.set()
        try:
            if self._task is not None and not self._task.done():
                async with asyncio.timeout(STOP_SECONDS):
                    await asyncio.shield(self._task)
        except TimeoutError:
            assert self._task is not None
            self._task.cancel()
            await asyncio.wait({self._task})
            raise StoreError(
                f"Redis at {self._place.shown} did not finish the last writes within {STOP_SECONDS:.0f} s; "
                "those that had not returned may be missing."
            ) from None
        finally:
            if self._client is not None:
                await self._client.aclose()

    # -- the task --------------------------------------------------------------------------------------

    async def _main(self) -> None:
        while True:
            if not self._queue:
                if self._stopping and not self._steps:
                    return
                self._filled.clear()
                await self._filled.wait()
                continue
            batch = [self._queue.popleft()]
            size = len(batch[0][0])
            while self._queue and size + len(self._queue[0][0]) <= MAX_BATCH:
                batch.append(self._queue.popleft())
                size += len(batch[-1][0])
            await self._serve(batch)

    async def _serve(self, batch: Sequence[_Item]) -> None:
        commands = [command for work, _ in batch for command in work]
        try:
            answers: list[Any] = await self._patiently(commands)
        except asyncio.CancelledError:
            # `stop` has waited long enough; nobody may be left to wait for ever.
            batch = [*batch, *self._queue]
            self._queue.clear()
            late = StoreError(f"Redis at {self._place.shown} did not take a write before the bridge stopped.")
            self._tell(batch, [late] * sum(len(work) for work, _ in batch))
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, each caller must get it instead of a hang
            # Whoever came meanwhile has waited too, and would wait as long again for the same answer.
            batch = [*batch, *self._queue]
            self._queue.clear()
            answers = [error] * sum(len(work) for work, _ in batch)
        self._tell(batch, answers)

    def _tell(self, batch: Sequence[_Item], answers: list[Any]) -> None:
        """Give each caller its part of the answers."""
        at = 0
        for work, future in batch:
            mine = answers[at : at + len(work)]
            at += len(work)
            fault = next((answer for answer in mine if isinstance(answer, Exception)), None)
            if future is not None and not isinstance(fault, StoreError):
                self._note(fault)
            if future is None:
                if fault is not None:
                    log.debug("tidying up was not done: %s", store_error(fault, self._place.shown))
                continue
            self._room.release()
            if future.done():  # its caller was cancelled
                continue
            if fault is None:
                future.set_result(mine)
            else:
                known = isinstance(fault, StoreError)
                future.set_exception(fault if known else store_error(fault, self._place.shown))

    def _note(self, fault: Exception | None) -> None:
        """Note how the server is for whoever asks; what only one caller did wrong says nothing of it."""
        word = word_of(fault) if fault is not None else ""
        if fault is None or word in _CURES or word == "AWAY":
            self.fault = f"Redis: {word}. {_cure(word)}" if word else ""

    async def _patiently(self, commands: Sequence[Command]) -> list[Any]:
        # At once the first time: a connection that lay idle may have been closed by whatever is between.
        began, pause, warned = time.monotonic(), 0.0, False
        while True:
            fault: Exception | None = None
            answers: list[Any] = []
            try:
                answers = await self._once(commands)
            except Exception as error:  # noqa: BLE001 - sorted by its kind just below
                fault = error
            later = fault or next((a for a in answers if isinstance(a, Exception) and _later(a)), None)
            if later is None:
                return answers
            waited = time.monotonic() - began
            if not _later(later) or waited >= self._patience:
                if fault is not None:
                    self._note(fault)
                    raise store_error(fault, self._place.shown) from None
                return answers
            if waited >= _WARN_SECONDS and not warned:
                warned = True
                self._note(later)
                log.warning("%s Trying again.", store_error(later, self._place.shown))
            await self._sleep(pause)
            pause = min(max(pause * 2, 0.05), 1.0)

    async def _once(self, commands: Sequence[Command]) -> list[Any]:
        """One round trip; scripts that the server does not know (any more) are loaded and run in a second."""
        assert self._client is not None
        answers = await self._pipe(commands)
        missing = [n for n, answer in enumerate(answers) if _is(answer, "NOSCRIPT")]
        if missing:
            await self._pipe([("SCRIPT LOAD", script.source) for script in ALL])
            for n, answer in zip(missing, await self._pipe([commands[n] for n in missing]), strict=True):
                answers[n] = answer
        if any(_is(answer, "READONLY") for answer in answers):
            # After a failover the same name may lead to another server: ask for it anew.
            await self._client.connection_pool.disconnect()
        if self._replicas:
            [count] = await self._pipe([("WAIT", self._replicas, _CONFIRM_MS)])
            if not isinstance(count, int) or count < self._replicas:
                raise _Unconfirmed(f"UNCONFIRMED {count} of {self._replicas} replicas")
        return answers

    async def _pipe(self, commands: Sequence[Command]) -> list[Any]:
        assert self._client is not None
        pipe = self._client.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        answers: list[Any] = await pipe.execute(raise_on_error=False)
        return answers


def _later(error: BaseException) -> bool:
    return word_of(error) in _LATER | {"AWAY"}


def _is(answer: object, word: str) -> bool:
    return isinstance(answer, Exception) and word_of(answer) == word
