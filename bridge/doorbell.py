"""Telling admins that somebody asks to be let in, with buttons where the platform has them.

It is a courtesy: a request is answered by its code just as well, so what cannot be shown is only logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict

from agent.tools.base import Role
from bridge.access import Access
from bridge.approvals import plain_name
from bridge.pairing import Pairing, Request
from bridge.store.base import Store
from bridge.texts import text
from channels.base import Address, Channel, Choice, Inbound, Press, ReplyRef, SendError

log = logging.getLogger("causeway.pairing")

_SCOPE = "reach"
_DEADLINE = 30.0
#: Admins of a channel that are told at most.
_MOST = 5


class Doorbell:
    """Knows in which direct chats admins can be reached: those in which they have written."""

    def __init__(
        self,
        store: Store,
        channels: Mapping[str, Channel],
        access: Access,
        pairing: Pairing,
        welcome: Callable[[Request, Role], Awaitable[None]],
    ) -> None:
        self._store = store
        self._channels = channels
        self._access = access
        self._pairing = pairing
        self._welcome = welcome
        self._known: dict[tuple[str, str], tuple[Address, str]] = {}
        self._ringing: set[asyncio.Task[None]] = set()

    async def load(self) -> None:
        for key, value in (await self._store.settings(_SCOPE)).items():
            channel, _, person = key.partition("\0")
            if isinstance(value, dict):
                self._known[channel, person] = Address(**value["address"]), str(value["language"])

    async def seen(self, inbound: Inbound) -> None:
        """An admin wrote in a direct chat: there they can be told."""
        key = (inbound.address.channel, inbound.sender.id)
        place = (inbound.address, inbound.sender.language)
        if self._known.get(key) != place:
            self._known[key] = place
            value = {"address": asdict(place[0]), "language": place[1]}
            await self._store.put_setting(_SCOPE, "\0".join(key), value)

    def ring(self, request: Request) -> None:
        """Tell the channel's admins, in a task of ours."""
        task = asyncio.create_task(self._tell(request), name=f"doorbell {request.code}")
        self._ringing.add(task)
        task.add_done_callback(self._ringing.discard)

    async def stop(self) -> None:
        for task in self._ringing:
            task.cancel()
        if self._ringing:
            await asyncio.wait(set(self._ringing))

    async def _tell(self, request: Request) -> None:
        channel = self._channels.get(request.channel)
        if channel is None:
            return
        await self.load()  # admins may have written to another process
        rule = self._access.rule(request.channel)
        admins = dict.fromkeys([*rule.admins, *self._access.grants.admins(request.channel)])
        places = [
            self._known[request.channel, one] for one in admins if (request.channel, one) in self._known
        ]
        for address, language in places[:_MOST]:
            choices = [
                Choice(f"pa:{request.code}:member", text("doorbell.member", language), "primary"),
                Choice(f"pa:{request.code}:guest", text("doorbell.guest", language)),
                Choice(f"pa:{request.code}:deny", text("doorbell.deny", language), "danger"),
            ]
            name = plain_name(request.name)
            words = text(
                "doorbell.asks", language, name=name or request.person, id=request.person, code=request.code
            )
            ref = ReplyRef(f"d{request.code}", address, "", language)
            try:
                async with asyncio.timeout(_DEADLINE):
                    await channel.ask(ref, words, choices if channel.buttons else ())
            except (SendError, TimeoutError) as error:
                log.info("an admin could not be told of a request: %s", error)

    async def press(self, press: Press) -> str | None:
        """A button of such a message; None when it is none of ours."""
        kind, _, rest = press.choice.partition(":")
        code, _, what = rest.partition(":")
        if kind != "pa":
            return None
        language = press.sender.language
        if not self._access.of(press.sender, press.address).admin:
            return text("admins.only", language)
        outcome = await self._decide(code, what, f"{press.address.channel}:{press.sender.id}", language)
        if (channel := self._channels.get(press.address.channel)) is not None:
            ref = ReplyRef(f"d{code}", press.address, "", language)
            try:
                async with asyncio.timeout(_DEADLINE):
                    await channel.settle(ref, press.message_id, outcome)
            except (SendError, TimeoutError) as error:
                log.info("the outcome of a request was not shown: %s", error)
        return outcome

    async def _decide(self, code: str, what: str, by: str, language: str) -> str:
        if what == "deny":
            denied = await self._pairing.deny(code)
            return text("pairing.denied" if denied else "pairing.unknown", language, code=code)
        done = await self._pairing.approve(code, by, "guest" if what == "guest" else "member")
        if done is None:
            return text("pairing.unknown", language, code=code)
        await self._welcome(*done)
        request, role = done
        name = request.name or request.person
        return text("pairing.approved", language, name=name, role=text(f"role.{role}", language))
