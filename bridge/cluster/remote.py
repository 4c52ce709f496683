"""A gateway's channel as a worker sees it: what is pure is done here, each platform call by a gateway."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bridge.cluster.codec import (
    chunk_to_json,
    context_from_json,
    error_from_json,
    outward,
    ref_to_json,
)
from bridge.cluster.wire import Refused, Unreached, Wire, ranked
from bridge.store.base import SessionLost
from channels.base import (
    Activity,
    Address,
    Attachment,
    Channel,
    Choice,
    Chunk,
    ContextMessage,
    Health,
    Inbound,
    NotSent,
    Outbound,
    Receive,
    ReplyRef,
    Unknown,
)

log = logging.getLogger("causeway.cluster")

#: The session that a task works for: its platform calls count only while this worker has the session.
current_session: contextvars.ContextVar[str] = contextvars.ContextVar("causeway_session", default="")

#: Below what delivery gives a platform call, so that it hears of the outcome.
_CALL_SECONDS = 110.0
_QUICK = 20.0
_FETCH_SECONDS = 110.0
#: Text that grows crosses over no more often than this (seconds).
_LEAST_INTERVAL = 0.1


class RemoteChannel(Channel):
    """`real` is the channel itself, never started: it renders. `token` gives the fencing token of a session.

    A call goes to the gateway that took the message in, when that one can send; else to one that can.
    """

    def __init__(
        self, real: Channel, wire: Wire, token: Callable[[str], int | None], workspace: Path
    ) -> None:
        super().__init__(real.name, real.config, real.env)
        self._real = real
        self._wire = wire
        self._token = token
        self._workspace = workspace
        interval = max(real.limits.update_interval, _LEAST_INTERVAL)
        self.limits = replace(real.limits, update_interval=interval)

    async def start(self, receive: Receive) -> None:
        return

    async def stop(self) -> None:
        return

    def has(self, method: str) -> bool:
        return self._real.has(method)

    def render(self, outbound: Outbound) -> list[Chunk]:
        return self._real.render(outbound)

    # -- which gateway ---------------------------------------------------------------------------------

    def _states(self) -> dict[str, dict[str, Any]]:
        """What each gateway that has this channel says of it."""
        return {
            one.name: dict(one.channels[self.name])
            for one in self._wire.members("gateway")
            if self.name in one.channels
        }

    def _gateway(self, via: str, chat: str) -> str:
        states = self._states()
        able = [name for name, state in states.items() if state.get("holds", True)] or list(states)
        if via in able or (not able and self._wire.alive(via)):
            return via
        if not able:
            raise NotSent(f"no gateway with the channel {self.name} is running; start one")
        return ranked(able, f"{self.name}\0{chat}")[0]

    @property
    def buttons(self) -> bool:  # type: ignore[override]
        return any(state.get("buttons") for state in self._states().values()) or self._real.buttons

    def health(self) -> Health:
        states = list(self._states().values())
        if not states:
            return Health(False, "no gateway is running", "Start one: causeway run --role gateway")
        best = next((state for state in states if state.get("ok")), states[0])
        return Health(bool(best.get("ok")), str(best.get("reason", "")), str(best.get("cure", "")))

    # -- calls -----------------------------------------------------------------------------------------

    async def _do(
        self, what: str, via: str, chat: str, *args: Any, fenced: bool = False, seconds: float = _QUICK
    ) -> Any:
        session, fence = current_session.get(), None
        if fenced and session:
            token = self._token(session)
            if token is None:
                raise SessionLost(f"lost the session {session} before a platform call")
            fence = [session, token]
        to = self._gateway(via, chat)
        try:
            return await self._wire.call(to, "channel", [self.name, what, fence, *args], seconds=seconds)
        except Refused as refused:
            if refused.kind == "SessionLost":
                raise SessionLost(str(refused)) from None
            error = error_from_json(refused.kind, str(refused), refused.extra)
            raise error or RuntimeError(f"{what} failed: {refused}") from None
        except Unreached as error:
            # As after a crash of one process: a call in flight at a gateway's death may be done once more.
            if error.sent and self._wire.alive(to):
                raise Unknown(f"{what}: {error}") from None
            raise NotSent(f"{what}: {error}") from None

    async def post(self, ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        data = chunk_to_json(chunk, self._workspace)
        args = (ref_to_json(ref), n, data, final)
        return str(
            await self._do("post", ref.via, ref.address.chat, *args, fenced=True, seconds=_CALL_SECONDS)
        )

    async def edit(self, ref: ReplyRef, n: int, message_id: str, chunk: Chunk, *, final: bool) -> None:
        data = chunk_to_json(chunk, self._workspace)
        args = (ref_to_json(ref), n, message_id, data, final)
        await self._do("edit", ref.via, ref.address.chat, *args, fenced=True, seconds=_CALL_SECONDS)

    async def end(self, ref: ReplyRef) -> None:
        await self._do("end", ref.via, ref.address.chat, ref_to_json(ref), fenced=True)

    def activity(self, ref: ReplyRef, activity: Activity) -> None:
        if not self._real.has("activity"):
            return
        try:
            to = self._gateway(ref.via, ref.address.chat)
        except NotSent:
            return  # it is a sign of life: nothing is lost but that
        self._wire.tell(to, "activity", [self.name, ref_to_json(ref), asdict(activity)])

    async def typing(self, ref: ReplyRef) -> None:
        await self._sign("typing", ref)

    async def acknowledge(self, ref: ReplyRef) -> None:
        await self._sign("acknowledge", ref)

    async def _sign(self, what: str, ref: ReplyRef) -> None:
        """A sign of life. What another worker has now is that one's to show."""
        try:
            await self._do(what, ref.via, ref.address.chat, ref_to_json(ref), fenced=True)
        except SessionLost as error:
            log.info("no sign of life: %s", error)

    async def ask(self, ref: ReplyRef, question: str, choices: Sequence[Choice]) -> str:
        args = (ref_to_json(ref), question, [asdict(choice) for choice in choices])
        return str(await self._do("ask", ref.via, ref.address.chat, *args, fenced=True))

    async def settle(self, ref: ReplyRef, message_id: str, outcome: str) -> None:
        await self._do("settle", ref.via, ref.address.chat, ref_to_json(ref), message_id, outcome)

    async def earlier(self, inbound: Inbound, limit: int) -> tuple[ContextMessage, ...]:
        if not self._real.has("earlier"):
            return ()
        rows = await self._do("earlier", inbound.via, inbound.address.chat, inbound.to_json(), limit)
        return context_from_json(rows)

    async def forget(self, address: Address) -> None:
        await self._do("forget", "", address.chat, asdict(address))

    async def fetch(self, attachment: Attachment, target: Path, max_bytes: int) -> None:
        args = (asdict(attachment), outward(target, self._workspace), max_bytes)
        await self._do("fetch", "", attachment.ref, *args, seconds=_FETCH_SECONDS)


def remote(real: Channel, wire: Wire, token: Callable[[str], int | None], workspace: Path) -> RemoteChannel:
    """A channel of the same kind, whose calls go over the wire."""
    same = {name: getattr(real, name) for name in ("type", "local", "asks", "joins_threads", "texts")}
    cls: type[RemoteChannel] = type(f"Remote{type(real).__name__}", (RemoteChannel,), same)
    return cls(real, wire, token, workspace)
