"""The WeCom application channel: callbacks in, `message/send` out. Direct chats only: an application is not
told what is said in groups (WW 90248)."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import web

from channels.base import (
    Address,
    Attachment,
    Channel,
    ChannelError,
    Choice,
    Chunk,
    Env,
    Finding,
    Health,
    Limits,
    NotSent,
    Outbound,
    OutFile,
    Press,
    Receive,
    Rejected,
    ReplyRef,
    SendError,
)
from channels.base import (
    Sender as Person,
)
from channels.webhook import read_body
from channels.wechat.crypto import Envelope, Refused
from channels.wechat.plain import MAX_BYTES, plain
from channels.wechat.xml import Data, Malformed, parse, text_of
from channels.wecom.api import Api, ApiError
from channels.wecom.cards import MOST_BUTTONS, Cards, card, card_texts, task_id
from channels.wecom.check import Check, callback_path
from channels.wecom.config import SETUP, WecomConfig, verify
from channels.wecom.format import render
from channels.wecom.inbound import CardPress, Entered, Nothing, agent_of, person_of, read
from channels.wecom.people import People
from channels.wecom.sending import Sender, send_error
from channels.wecom.texts import TEXTS

log = logging.getLogger("causeway.wecom")

MIB = 1024 * 1024
#: A callback holds one message of text or the ids of a file: far less than this.
_MAX_BODY = 256 * 1024
#: Smallest and largest file, in bytes (WW 90253). Larger pictures, voices and videos go as files.
_LEAST_FILE, _MOST_FILE = 6, 20 * MIB
_KINDS = {
    "image/jpeg": ("image", 10 * MIB),
    "image/png": ("image", 10 * MIB),
    "audio/amr": ("voice", 2 * MIB),
    "video/mp4": ("video", 10 * MIB),
}
_STRIPES = 64
_MOST_TASKS = 200
#: Seconds for the bridge to take a press; for others to keep off it if we die; and for which it is known when
#: WeCom delivers it again (15 s). A lease may be renewed to twice its time at most.
_PRESS_DEADLINE, _PRESS_HELD, _PRESS_KNOWN = 3.5, 10.0, 20.0
_LAST_WORDS = 5.0
_SIGN_IN_PAUSE = 30.0
_LONGEST_BUTTON = 40


class WecomChannel(Channel):
    type = "wecom"
    Config = WecomConfig
    limits = Limits(max_text=MAX_BYTES, unit="bytes")
    buttons = True
    setup = SETUP
    texts = TEXTS
    config: WecomConfig

    def __init__(self, name: str, config: WecomConfig, env: Env) -> None:
        super().__init__(name, config, env)
        self._set_buttons(config.cards)
        self._cards = Cards(env.state, env.clock)
        self._receive: Receive | None = None
        self._envelope: Envelope | None = None
        self._api: Api | None = None
        self._sender: Sender | None = None
        self._people: People | None = None
        self._signing_in: asyncio.Task[None] | None = None
        self._in_order = [asyncio.Lock() for _ in range(_STRIPES)]
        self._tasks: set[asyncio.Task[None]] = set()
        self._foreign_agent = ""

    def _set_buttons(self, value: bool) -> None:
        self.buttons = value  # the class says what the type can, this what one does

    # -- life --------------------------------------------------------------------------------------------

    async def start(self, receive: Receive) -> None:
        config = self.config
        verify(config, f"channels.{self.name}")
        corp_id, token = config.corp_id.strip(), config.token.get_secret_value().strip()
        try:
            self._envelope = await asyncio.to_thread(
                Envelope, token, config.keys, corp_id, clock=self.env.clock
            )
        except ImportError as error:
            raise ChannelError(
                f"channels.{self.name} needs wechatpy ({error}): pip install 'causeway[wechat]'"
            ) from None
        secret = config.secret.get_secret_value().strip()
        self._api = Api(config.root, corp_id, secret, self.env.state, self.env.clock)
        self._sender = Sender(
            self._api,
            config.agent_id,
            self.env.state,
            self.env.clock,
            self.name,
            shared=self.env.shared,
        )
        self._people = People(self._api, self.env.clock)
        self._receive = receive
        self._signing_in = asyncio.create_task(self._sign_in(self._sender), name=f"{self.name} sign in")
        log.info("%s: WeCom calls back at %s", self.name, self.env.public_url + callback_path(self.name))

    async def _sign_in(self, sender: Sender) -> None:
        """Until WeCom has answered once: later faults show themselves when something is sent."""
        while True:
            if await sender.probe():
                return
            await asyncio.sleep(_SIGN_IN_PAUSE)

    async def pause(self) -> None:
        self._receive = None

    async def stop(self) -> None:
        await self.pause()
        task, self._signing_in = self._signing_in, None
        if task:
            task.cancel()
            await asyncio.wait({task})
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=_LAST_WORDS)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        people, self._people = self._people, None
        if people:
            await people.close()
        api, self._api, self._sender = self._api, None, None
        if api:
            await api.close()

    def health(self) -> Health:
        if self._sender is None:
            return Health(False, "not started", "")
        if self._foreign_agent:
            return Health(
                False,
                f"callbacks come for application {self._foreign_agent}, not {self.config.agent_id}",
                f"correct channels.{self.name}.agent_id, or the callback URL of that application",
            )
        return self._sender.health

    def _send(self) -> Sender:
        if self._sender is None:
            raise NotSent(f"channel {self.name} is not running")
        return self._sender

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it in a task that `stop` waits for; beyond `_MOST_TASKS` it is left out, being a courtesy."""
        if len(self._tasks) >= _MOST_TASKS:
            log.warning("%s: too much to do at once; a greeting or hint is left out", self.name)
            work.close()
            return
        task = asyncio.create_task(work, name=f"{self.name} hint")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def check(self, language: str = "") -> list[Finding]:
        return await Check(self.name, self.config, self.env, language).run()

    # -- receiving ---------------------------------------------------------------------------------------

    def routes(self) -> list[web.RouteDef]:
        path = callback_path(self.name)
        return [web.get(path, self._verify_url, allow_head=False), web.post(path, self._callback)]

    async def _verify_url(self, request: web.Request) -> web.Response:
        """The console saves the URL when this gives back the decrypted echostr, bare, within a second."""
        if self._envelope is None:
            return web.Response(status=503)
        try:
            opened = self._envelope.open(request.query.get("echostr", ""), request.query)
        except Refused as error:
            return self._refused(error)
        return web.Response(body=opened.text, content_type="text/plain")

    async def _callback(self, request: web.Request) -> web.Response:
        """Empty 200 once the message is stored; WeCom repeats anything else, three times at all."""
        if self._receive is None or self._envelope is None:
            return web.Response(status=503)
        body = await read_body(request, _MAX_BODY)
        try:
            opened = self._envelope.open(text_of(parse(body), "Encrypt"), request.query)
            data = parse(opened.text)
        except Refused as error:
            return self._refused(error)
        except Malformed as error:
            log.warning("%s: a callback could not be read: %s", self.name, error)
            return web.Response(status=400)
        agent = agent_of(data)
        if agent not in ("", "0", str(self.config.agent_id)):
            self._foreign_agent = agent
            return self._refused(f"it is for application {agent}, not {self.config.agent_id}")
        self._foreign_agent = ""
        try:
            # One member's messages stay in order, also when a name is being asked for.
            async with self._in_order[hash(person_of(data)) % _STRIPES]:
                await self._handle(data)
        except Exception:
            # Whatever kept the message from being stored: WeCom is to send it again.
            log.exception("%s: a callback could not be taken; WeCom will repeat it", self.name)
            return web.Response(status=503)
        return web.Response()

    def _refused(self, reason: object) -> web.Response:
        log.warning("%s: callback refused: %s", self.name, reason)
        return web.Response(status=403)

    async def _handle(self, data: Data) -> None:
        language, receive = self.config.language, self._receive
        assert receive is not None
        try:
            found = read(data, self.name, language, self.env.text)
        except ValueError as error:
            log.warning("%s: a callback says nothing that can be used: %s", self.name, error)
            return
        if isinstance(found, CardPress):
            await self._press(found)
        elif isinstance(found, Entered):
            await self._greet(found.person)
        elif isinstance(found, Nothing):
            log.debug("%s: ignored: %s", self.name, found.kind)
        else:
            sender = replace(found.sender, name=await self._name(found.sender.id))
            await receive(replace(found, sender=sender))

    async def _name(self, person: str) -> str:
        return await self._people.name(person) if self._people else ""

    async def _greet(self, person: str) -> None:
        key = f"greeted:{person}"
        if not self.config.greeting or await self.env.state.get(key):
            return
        await self.env.state.put(key, True)
        self._later(self._hint(person, key, self.env.text("wecom.greeting", self.config.language)))

    async def _hint(self, person: str, call: str, words: str) -> None:
        try:
            await self._send().text(person, call, "text", words)
        except SendError as error:
            log.info("%s: a hint was not shown: %s", self.name, error)

    async def _press(self, press: CardPress) -> None:
        state, claim, holder = self.env.state, f"press:{press.id}", secrets.token_hex(8)
        if not await state.claim(claim, holder, _PRESS_HELD):
            return  # delivered again
        try:
            words = await self._pressed(press)
        except BaseException:
            await state.release(claim, holder)
            raise
        await state.claim(claim, holder, _PRESS_KNOWN)
        if words:
            self._later(self._hint(press.person, f"press:{press.id}", words))

    async def _pressed(self, press: CardPress) -> str:
        if press.code:
            await self._cards.put(press.task, press.person, press.code)
        address = Address(self.name, press.person, "direct")
        name = await self._name(press.person)
        sender = Person(press.person, name, language=self.config.language)
        async with asyncio.timeout(_PRESS_DEADLINE):
            return await self.env.press(Press(address, sender, press.choice, press.task))

    # -- showing -----------------------------------------------------------------------------------------

    def render(self, outbound: Outbound) -> list[Chunk]:
        return render(outbound, markdown=self.config.markdown)

    async def post(self, ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        call = f"{ref.id}:{n}"
        if chunk.file is not None:
            return await self._post_file(ref, call, chunk.file)
        return await self._post_text(ref, call, chunk.text, str(chunk.data.get("kind") or "text"))

    async def _post_text(self, ref: ReplyRef, call: str, words: str, kind: str = "text") -> str:
        answer = await self._send().text(ref.address.chat, call, kind, words)
        return str(answer.get("msgid") or call)

    async def _post_file(self, ref: ReplyRef, call: str, file: OutFile) -> str:
        try:
            content = await asyncio.to_thread(_read_file, file)
        except OSError as error:
            raise Rejected(f"{file.name} cannot be read: {error.strerror}") from None
        if not isinstance(content, bytes):
            words = self.env.text("wecom.file_size", ref.language, name=file.name, size=content)
            return await self._post_text(ref, call, words)
        kinds = ["file"]
        kind, most = _KINDS.get(file.mime, ("", 0))
        if kind and len(content) <= most:
            kinds.insert(0, kind)
        try:
            answer = await self._send().file(ref.address.chat, call, kinds, _shown_name(file), content)
        except Rejected as error:
            log.warning("%s: a file was refused: %s", self.name, error)
            words = self.env.text("wecom.file_refused", ref.language, name=file.name)
            return await self._post_text(ref, f"{call}:note", words)
        return str(answer.get("msgid") or call)

    # -- questions ---------------------------------------------------------------------------------------

    async def ask(self, ref: ReplyRef, question: str, choices: Sequence[Choice]) -> str:
        """A card with buttons where it can show the whole question; a longer one goes before it as text."""
        if not self.buttons or not 0 < len(choices) <= MOST_BUTTONS:
            return await self._ask_in_words(ref, question, choices)
        texts = card_texts(question)
        if texts is None:
            await self._post_all(ref, question)
            question, texts = "", (self.env.text("wecom.choose", ref.language), "")
        task = task_id(ref.id, choices)
        try:
            answer = await self._send().card(ref.address.chat, f"{ref.id}:card", card(task, *texts, choices))
        except Rejected as error:
            log.warning("%s: a card was refused (%s); questions go in words from now on", self.name, error)
            self._set_buttons(False)
            return await self._ask_in_words(replace(ref, id=f"{ref.id}:words"), question, choices)
        await self._cards.put(task, ref.address.chat, str(answer.get("response_code") or ""))
        return task

    async def _ask_in_words(self, ref: ReplyRef, question: str, choices: Sequence[Choice]) -> str:
        lines = [question, "", *(f"- {choice.label}" for choice in choices)]
        return await self._post_all(ref, "\n".join(lines).strip())

    async def _post_all(self, ref: ReplyRef, text: str) -> str:
        shown = ""
        for n, chunk in enumerate(self.render(Outbound(text))):
            shown = await self.post(ref, n, chunk, final=True)
        return shown

    async def settle(self, ref: ReplyRef, message_id: str, outcome: str) -> None:
        note = await self._cards.get(message_id)
        if note is None or note["done"]:
            return  # asked in words, which say it themselves; or settled before
        words = " ".join(plain(outcome).split())
        told = False
        if code := self._cards.code(note):
            try:
                await self._send().update_card(note["person"], code, _shortened(words))
                told = len(words) <= _LONGEST_BUTTON
            except Rejected as error:
                log.info("%s: a card can no longer be changed: %s", self.name, error)
        if not told:
            await self._post_all(replace(ref, id=f"{message_id}:settled"), outcome)
        await self._cards.settled(message_id, note)

    # -- attachments -------------------------------------------------------------------------------------

    async def fetch(self, attachment: Attachment, target: Path, max_bytes: int) -> None:
        if self._api is None:
            raise NotSent(f"channel {self.name} is not running")
        try:
            await self._api.download(attachment.ref, target, max_bytes)
        except ApiError as error:
            failed = send_error(error)
            # Fetching changes nothing, so whatever is not for good may be tried again.
            raise Rejected(str(failed)) if isinstance(failed, Rejected) else NotSent(str(failed)) from None


def _read_file(file: OutFile) -> bytes | int:
    """The file's bytes, or its size when WeCom does not take one so small or large."""
    path = Path(file.path)
    size = path.stat().st_size
    return path.read_bytes() if _LEAST_FILE <= size <= _MOST_FILE else size


def _shown_name(file: OutFile) -> str:
    """The name as WeCom takes it: no path, no colon, nothing that breaks a header (WW 99310)."""
    name = "".join(ch for ch in file.name or Path(file.path).name if ch.isprintable() and ch not in '/\\:"')
    return name[-120:] or "file"


def _shortened(words: str) -> str:
    return words if len(words) <= _LONGEST_BUTTON else words[: _LONGEST_BUTTON - 1] + "…"
