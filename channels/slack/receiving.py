"""The receiving half of the channel: signs in, listens, and hands messages to the bridge in order."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Awaitable
from typing import Protocol

from aiohttp import web

from channels.base import Env, Health, Inbound, Receive
from channels.slack.api import Api, ApiError, trouble
from channels.slack.config import SlackConfig, secret
from channels.slack.events import Data, Events, Lanes
from channels.slack.inbound import Identity, Message, build, read, sender_of
from channels.slack.people import People
from channels.slack.socket import Socket, Timing

log = logging.getLogger("causeway.slack")

#: Threads and chats remembered in memory (threads are also in the channel's notes), and notices (home opened,
#: …) under way.
_REMEMBERED = 5000
_MOST_NOTICES = 100
_NOTICE_DEADLINE = 60.0
_KIND_IN = 1.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


class Cards(Protocol):
    """Where buttons, commands and notices go."""

    async def handle_interaction(self, payload: Data) -> Data | None: ...

    async def handle_command(self, form: Data) -> Data | None: ...

    async def handle_notice(self, event: Data) -> None: ...


class Receiver:
    """One workspace's events. `start` returns at once; signing in goes on until it succeeds."""

    def __init__(
        self,
        name: str,
        config: SlackConfig,
        env: Env,
        api: Api,
        me: Identity,
        people: People,
        timing: Timing | None = None,
    ) -> None:
        self._name = name
        self._config = config
        self._env = env
        self._api = api
        self._me = me
        self._people = people
        self._timing = timing
        self._lanes = Lanes()
        self._kinds: OrderedDict[str, str] = OrderedDict()  # chat -> im, mpim, channel, group
        self._threads: OrderedDict[str, None] = (
            OrderedDict()
        )  # notes about threads that are known to be there
        self._notices: set[asyncio.Task[None]] = set()
        self._events: Events | None = None
        self._socket: Socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._receive: Receive | None = None
        self._cards: Cards | None = None
        self._trouble: Health | None = Health(False, "not signed in to Slack yet", "wait a moment")

    # -- life --------------------------------------------------------------------------------------------

    async def start(self, receive: Receive, cards: Cards) -> None:
        self._receive, self._cards = receive, cards
        signing = secret(self._config.signing_secret)
        self._events = await Events.connect(self._api, self._env, self._me, signing, self._name)
        self._task = asyncio.create_task(self._run(), name=f"slack {self._name}")

    async def pause(self) -> None:
        """Stop receiving. What was taken from Slack before is still handed over."""
        if self._events is not None:
            self._events.open = False
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def stop(self) -> None:
        await self.pause()
        if self._events is not None:
            await self._events.close()
        notices = list(self._notices)
        for notice in notices:
            notice.cancel()
        if notices:
            await asyncio.wait(notices)

    def health(self) -> Health:
        if self._trouble is not None:
            return self._trouble
        if self._task is not None and self._task.done():
            return Health(False, "receiving ended unexpectedly", "restart the bridge and report the log")
        return self._socket.health() if self._socket is not None else Health(True)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer a request of the Events API."""
        if self._events is None:
            return web.Response(status=503)
        return await self._events.serve(request)

    async def _run(self) -> None:
        assert self._events is not None
        await self._sign_in()
        if self._config.mode == "http":
            self._events.bind(self)
            await asyncio.Event().wait()
        token = secret(self._config.app_token)

        async def connect() -> str:
            answer = await self._api.call("apps.connections.open", _token=token)
            return str(answer["url"])

        self._socket = Socket(connect, self._api.session, self._events.envelope, self._timing)
        self._events.bind(self)
        await self._socket.run()

    async def _sign_in(self) -> None:
        """Learn who the bot is; until then nothing can be told from its own words."""
        failures = 0
        while True:
            try:
                found = await self._api.call("auth.test")
            except ApiError as error:
                health, failures = trouble(error), failures + 1
                if self._trouble is None or self._trouble.reason != health.reason:
                    log.warning("Slack: %s; %s", health.reason, health.cure)
                self._trouble = health
                pause = min(_FIRST_PAUSE * 2.0 ** min(failures - 1, 10), _LONGEST_PAUSE)
                await asyncio.sleep(max(error.retry_after, pause * (0.75 + random.random() / 2)))
            else:
                break
        me = self._me
        me.user, me.bot = str(found.get("user_id") or ""), str(found.get("bot_id") or "")
        me.team, me.team_name = str(found.get("team_id") or ""), str(found.get("team") or "")
        me.name = str(found.get("user") or "")
        log.info("Slack: signed in to %s as %s", me.team_name, me.name)
        self._trouble = None

    # -- what comes in (Listener) ------------------------------------------------------------------------

    async def message(self, event: Data) -> None:
        """Hand a message over; returns when the bridge has it. One lane for each place of answers (a thread,
        or the chat itself) keeps the order."""
        try:
            event = await self._with_kind(event)
            found = read(event, self._me, self._config)
        except (KeyError, TypeError, ValueError, AttributeError):
            # One odd event must not come back for ever.
            log.exception("an event of type %s could not be read; it is skipped", event.get("type"))
            return
        if found is None:
            return
        async with self._lanes.lane(f"{found.chat} {found.thread or ''}"):
            inbound = await self._build(event, found)
            assert self._receive is not None
            await self._receive(inbound)

    async def _with_kind(self, event: Data) -> Data:
        """Both events of a mention must give the same address, and `app_mention` lacks the chat's kind."""
        chat = str(event["channel"])
        if kind := event.get("channel_type"):
            self._kinds[chat] = str(kind)
        elif chat not in self._kinds:
            try:
                answer = await self._api.call("conversations.info", _KIND_IN, channel=chat)
            except ApiError as error:
                log.info("the kind of a chat is not known: %s", error)
                return event
            found = answer.get("channel") or {}
            self._kinds[chat] = next((k for k in ("im", "mpim") if found.get(f"is_{k}")), "channel")
        self._kinds.move_to_end(chat)
        while len(self._kinds) > _REMEMBERED:
            self._kinds.popitem(last=False)
        return {**event, "channel_type": self._kinds[chat]}

    async def _build(self, event: Data, found: Message) -> Inbound:
        within = found.root != found.ts
        cue = found.cue
        if found.kind == "im" and within and found.thread is None:
            # The assistant's threads are sessions of their own, whatever holds for the chat.
            if await self._noted("assistant", found.chat, found.root):
                found = read(event, self._me, self._config, assistant=True) or found
        elif within and not (cue or found.for_another) and self._config.threads == "joined":
            cue = "reply" if await self._noted("joined", found.chat, found.root) else ""
        names = await self._people.names(found.users, found.channels)
        person = self._people.known(str(found.data.get("user") or ""))
        sender = sender_of(found.data, person.name, person.language, is_bot=person.is_bot)
        return build(found, self._name, names, sender, self._me, cue)

    async def notice(self, event: Data) -> None:
        """Anything but a message. Slack is not kept waiting for what follows from it."""
        kind = event.get("type")
        if kind == "user_change":
            user = event.get("user")
            self._people.forget(str(user.get("id") if isinstance(user, dict) else user))
        elif kind in ("channel_rename", "group_rename"):
            self._people.forget(str((event.get("channel") or {}).get("id")))
        elif kind == "assistant_thread_started":
            thread = event.get("assistant_thread") or {}
            await self.note("assistant", str(thread.get("channel_id")), str(thread.get("thread_ts")))
        if self._cards is None:
            return
        if len(self._notices) >= _MOST_NOTICES:
            log.warning("%d notices of Slack are under way; a %s is dropped", _MOST_NOTICES, kind)
            return
        task = asyncio.create_task(self._hand_on(self._cards.handle_notice(event)), name=f"slack {kind}")
        self._notices.add(task)
        task.add_done_callback(self._notices.discard)

    async def _hand_on(self, work: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(_NOTICE_DEADLINE):
                await work
        except Exception:
            # Nobody waits for it: what a notice leads to (the home tab, prompts) is a nicety.
            log.exception("a notice of Slack was not dealt with")

    async def interaction(self, payload: Data) -> Data | None:
        return await self._cards.handle_interaction(payload) if self._cards else None

    async def command(self, form: Data) -> Data | None:
        return await self._cards.handle_command(form) if self._cards else None

    # -- threads -----------------------------------------------------------------------------------------

    async def note(self, what: str, chat: str, thread: str | None) -> None:
        """Remember, also over a restart and for other gateways, that a thread is `joined` or `assistant`."""
        key = f"{what}:{chat}:{thread}"
        if not thread or key in self._threads:
            return
        await self._env.state.put(key, self._env.clock())
        self._keep(key)

    async def _noted(self, what: str, chat: str, thread: str) -> bool:
        key = f"{what}:{chat}:{thread}"
        if key in self._threads:
            self._threads.move_to_end(key)
            return True
        if await self._env.state.get(key) is None:
            return False
        self._keep(key)
        return True

    def _keep(self, key: str) -> None:
        self._threads[key] = None
        while len(self._threads) > _REMEMBERED:
            self._threads.popitem(last=False)
