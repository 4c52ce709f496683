"""message/send: paced, recognisable when repeated, and its failures told apart.

WeCom drops what goes over a member's limits without a word (WW 90454: 30 a minute and 1,000 an hour from one
application), so sends are counted before they are made and the excess waits. The counts lie in the channel's
notes: a restart does not forget them.

With `enable_duplicate_check` WeCom delivers an identical request once (WW 90236). That makes a send whose
outcome is unknown safe to repeat, as long as the repetition is identical and in time. It would also swallow
an answer that rightly says the same again ("好的"), so every request is noted with a digest of what it says,
and one that would be taken for an earlier one gets an ending of invisible characters.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from channels.alone import Busy, alone
from channels.base import ChannelState, Flooded, Gone, Health, NotSent, Rejected, SendError, Unknown
from channels.wechat.tokens import STALE
from channels.wecom.api import Api, ApiError, Data

log = logging.getLogger("causeway.wecom")

#: WeCom counts when a message arrives, we when it leaves: the spans have a margin for the way between.
MINUTE, PER_MINUTE = 63.0, 30
HOUR, PER_HOUR = 3630.0, 1000
#: Seconds in which WeCom knows an identical request again; we rely on a little less.
DUPLICATE_WINDOW = 1800
_SAFE_WINDOW = DUPLICATE_WINDOW - 120.0
#: Room that the invisible ending may take in a text, in bytes.
ENDING = 30
_INVISIBLE = "\u200b\u200c"
_STRIPES = 64
#: WW 90454: who is over a limit is blocked for a minute, an hour or a day; the answer does not say which.
_BLOCKED = (60.0, 300.0, 900.0)
_BUSY = 3.0

#: The codes with which WeCom refuses a file as a picture, voice or video: it goes as a file instead.
_WRONG_KIND = frozenset({40004, 40005, 40006, 40009, 40010, 40011, 45001})

_GONE = {
    40003: "no such member",
    40031: "no such member",
    46004: "no such member",
    50002: "the member is outside the application's 可见范围",
    60011: "the member is outside the application's 可见范围",
    60111: "no such member",
    81013: "no such member, or outside the application's 可见范围",
    82001: "no such member",
}
_BROKEN = {
    40001: "secret is wrong: copy it again from 应用管理 → 自建 → the application → Secret",
    40013: "corp_id is wrong: copy it again from 我的企业 → 企业信息 → 企业ID",
    40091: "secret is wrong: copy it again from 应用管理 → 自建 → the application → Secret",
    40056: "agent_id is not the application that the secret belongs to",
    48002: "the application has no right to this call",
    50003: "the application is switched off (已停用): switch it on in 应用管理",
    301002: "agent_id is not the application that the secret belongs to",
}


def remedy(error: ApiError) -> str:
    """What an administrator should do about an error that stops all sending, or ""."""
    if error.code == 60020:
        ip = error.ip or "this server's public address"
        return f"add {ip} under 应用管理 → 自建 → the application → 企业可信IP"
    return _BROKEN.get(error.code, "")


def send_error(error: ApiError) -> SendError:
    """The SendError that says what the bridge does next (codes: WW 90313)."""
    if error.taken == "no":
        return NotSent(str(error))
    if error.taken == "maybe":
        return Unknown(str(error))
    if error.code in _GONE:
        return Gone(f"{error}: {_GONE[error.code]}")
    if cure := remedy(error):
        return NotSent(f"{error}: {cure}")  # the settings are at fault, not the message: it waits
    if error.code == 45009:
        return Flooded(str(error), _BLOCKED[0])
    if error.code == 45033:
        return Flooded(str(error), _BUSY)
    if error.call == "gettoken" or error.code in STALE or error.code in (-1, 0):
        return NotSent(str(error))
    return Rejected(str(error))


@dataclass(frozen=True, slots=True)
class Booking:
    """Leave to send. `ending` makes the text unlike earlier ones; `first` is when it was first tried; `media`
    (`kind:media_id`) is what was uploaded for it."""

    call: str
    ending: str
    media: str
    first: float


class Ledger:
    """What went to each member within the last hour, in the channel's notes: `sent:<member>` is a list of
    [Unix time, digest of the call, digest of the words, number of the ending, media]."""

    def __init__(self, state: ChannelState, clock: Callable[[], float], *, shared: bool = False) -> None:
        self._state = state
        self._clock = clock
        self._shared = shared
        self._locks = [asyncio.Lock() for _ in range(_STRIPES)]

    @asynccontextmanager
    async def _turn(self, person: str) -> AsyncIterator[None]:
        """Nobody else changes what is noted of a member meanwhile, in no gateway."""
        async with self._locks[hash(person) % _STRIPES]:
            if not self._shared:
                yield
                return
            try:
                async with alone(self._state, f"lock:{person}"):
                    yield
            except Busy:
                raise NotSent("another gateway has been noting a send to the member for too long") from None

    async def _read(self, person: str) -> list[list[Any]]:
        stored = await self._state.get(f"sent:{person}")
        since = self._clock() - HOUR
        return [entry for entry in stored if entry[0] > since] if isinstance(stored, list) else []

    async def media(self, person: str, call: str) -> str:
        """What an earlier try of this call uploaded, or ""."""
        async with self._turn(person):
            found = [entry[4] for entry in await self._read(person) if entry[1] == _digest(call)]
        return str(found[0]) if found else ""

    async def room(self, person: str) -> None:
        """Raises Flooded when the member's limit is reached."""
        async with self._turn(person):
            _fit(await self._read(person), self._clock())

    async def book(self, person: str, call: str, words: str, media: str = "") -> Booking:
        """Note that a message goes out now. The same `call` (a name that stays over restarts) gets the same
        ending. Raises Flooded when the member's limit is reached, Unknown when an earlier try may have
        arrived and is too old to be recognised."""
        name, said = _digest(call), _digest(words) if words else ""
        async with self._turn(person):
            entries, now = await self._read(person), self._clock()
            earlier = [entry for entry in entries if entry[1] == name]
            if earlier and now - earlier[0][0] > _SAFE_WINDOW:
                raise Unknown("an earlier try may have arrived; it is too old to be known again")
            _fit(entries, now)
            if earlier:
                number, media = earlier[0][3], earlier[0][4] or media
            else:
                number = len({entry[1] for entry in entries if said and entry[2] == said})
            entries.append([now, name, said, number, media])
            await self._state.put(f"sent:{person}", entries)
        return Booking(name, _ending(number), media, earlier[0][0] if earlier else now)

    async def cancel(self, person: str, booking: Booking) -> None:
        """The booked send was certainly not taken: its newest entry counts no more."""
        async with self._turn(person):
            entries = await self._read(person)
            for index in range(len(entries) - 1, -1, -1):
                if entries[index][1] == booking.call:
                    del entries[index]
                    break
            await self._state.put(f"sent:{person}", entries)


def _fit(entries: list[list[Any]], now: float) -> None:
    """Raises Flooded with the seconds until one more message fits a member's limits."""
    # What lies ahead of a clock that was set back is not waited for.
    times, wait = [entry[0] for entry in entries if entry[0] <= now], 0.0
    for span, most in ((MINUTE, PER_MINUTE), (HOUR, PER_HOUR)):
        if sum(1 for sent in times if sent > now - span) >= most:
            wait = max(wait, times[-most] + span - now)
    if wait > 0:
        raise Flooded(f"the member has had as many messages as WeCom lets through; {wait:.0f} s", wait)


def _digest(text: str) -> str:
    return hashlib.blake2s(text.encode("utf-8", "replace"), digest_size=6).hexdigest()


def _ending(number: int) -> str:
    """`number` (0 for the first) in invisible characters; at most ten for what an hour can hold."""
    return "".join(_INVISIBLE[int(bit)] for bit in f"{number:b}") if number else ""


class Sender:
    """Sends to one member at a time. `health` says what stops all sending, if anything does."""

    def __init__(
        self,
        api: Api,
        agent_id: int,
        state: ChannelState,
        clock: Callable[[], float],
        name: str,
        *,
        shared: bool = False,
    ) -> None:
        self._api = api
        self._agent_id = agent_id
        self._clock = clock
        self._name = name
        self.ledger = Ledger(state, clock, shared=shared)
        self.health = Health(True)
        self._blocked_until = 0.0
        self._blocks = 0

    async def probe(self) -> bool:
        """Ask for the application's own data; what stops all sending then stands in `health`."""
        try:
            agent = await self._api.get("agent/get", agentid=self._agent_id)
        except ApiError as error:
            if not remedy(error):
                log.info("%s: WeCom could not be asked: %s", self._name, error)
            self._failed(error)
            return False
        self.health = Health(True)
        log.info("%s: signed in to WeCom as %s", self._name, agent.get("name", ""))
        return True

    async def text(self, person: str, call: str, kind: str, content: str) -> Data:
        """Send words: `kind` is text or markdown. `call` names this message for good. Raises SendError."""
        booking = await self._book(person, call, content)
        return await self._send(
            person, booking, {"msgtype": kind, kind: {"content": content + booking.ending}}
        )

    async def file(self, person: str, call: str, kinds: Sequence[str], name: str, content: bytes) -> Data:
        """Upload and send a file as the first of `kinds` (image, voice, video, file) that WeCom takes it for.

        Another try of the same call sends what was uploaded before, or it would not be known again. Raises
        SendError.
        """
        media = await self.ledger.media(person, call)
        if not media:
            await self.ledger.room(person)  # or each try would upload in vain
            media = await self._upload(kinds, name, content)
        booking = await self._book(person, call, "", media)
        kind, _, media_id = booking.media.partition(":")
        return await self._send(person, booking, {"msgtype": kind, kind: {"media_id": media_id}})

    async def _upload(self, kinds: Sequence[str], name: str, content: bytes) -> str:
        """`kind:media_id` of an upload."""
        for kind in kinds:
            try:
                return f"{kind}:{await self._api.upload(kind, name, content)}"
            except ApiError as error:
                if error.code in _WRONG_KIND and kind != kinds[-1]:
                    log.info("%s: a file was refused as %s (%d)", self._name, kind, error.code)
                    continue
                failed = self._failed(error)
                # An upload shows nothing: whatever became of it, it can be done again.
                raise NotSent(str(failed)) if isinstance(failed, Unknown) else failed from None
        raise Rejected("no kind of message to send the file as")

    async def card(self, person: str, call: str, card: Data) -> Data:
        """Send a template card; its task_id is new, so it is like no other. Raises SendError."""
        booking = await self._book(person, call, "")
        return await self._send(person, booking, {"msgtype": "template_card", "template_card": card})

    async def update_card(self, person: str, response_code: str, words: str) -> None:
        """Replace a card's buttons by words. A code is good once, for 72 hours (WW 94888)."""
        body = {
            "userids": [person],
            "agentid": self._agent_id,
            "response_code": response_code,
            "button": {"replace_name": words},
        }
        try:
            await self._api.post("message/update_template_card", body)
        except ApiError as error:
            raise self._failed(error) from None

    async def _book(self, person: str, call: str, words: str, media: str = "") -> Booking:
        if 0 < (wait := self._blocked_until - self._clock()) <= _BLOCKED[-1]:
            raise Flooded(f"WeCom blocked this application for its frequency; {wait:.0f} s", wait)
        return await self.ledger.book(person, call, words, media)

    async def _send(self, person: str, booking: Booking, message: Data) -> Data:
        body = {
            "touser": person,
            "agentid": self._agent_id,
            **message,
            "enable_duplicate_check": 1,
            "duplicate_check_interval": DUPLICATE_WINDOW,
        }
        try:
            answer = await self._repeated(body)
        except ApiError as error:
            failed = self._failed(error)
            if not isinstance(failed, Unknown):
                await self.ledger.cancel(person, booking)
            elif self._clock() - booking.first < _SAFE_WINDOW:
                # WeCom knows the request again if it arrived, so trying later shows it once.
                raise NotSent(f"{failed}; it is sent again, and WeCom drops the copy") from None
            raise failed from None
        self.health, self._blocks = Health(True), 0
        for field, why in (
            ("invaliduser", "no such member, or outside the application's 可见范围"),
            ("unlicenseduser", "the member has no 基础接口许可"),
        ):
            # WeCom lists ids in lower case, whatever their case was.
            if person.lower() in str(answer.get(field) or "").lower().split("|"):
                await self.ledger.cancel(person, booking)
                raise Gone(f"WeCom took the message but not the member: {why}")
        return answer

    async def _repeated(self, body: Data) -> Data:
        """The call, and at once the identical call when its outcome is unknown."""
        try:
            return await self._api.post("message/send", body)
        except ApiError as error:
            if error.taken != "maybe":
                raise
            log.info(
                "%s: the outcome of a send is unknown (%s); asking with the same request", self._name, error
            )
        return await self._api.post("message/send", body)

    def _failed(self, error: ApiError) -> SendError:
        """What a failure means, kept for `health` and for the sends that come after it."""
        failed = send_error(error)
        if cure := remedy(error):
            if self.health.ok:
                log.error("%s: WeCom refuses to send: %s. %s", self._name, error, cure)
            self.health = Health(False, str(error), cure)
        if isinstance(failed, Flooded) and error.code == 45009:
            wait = _BLOCKED[min(self._blocks, len(_BLOCKED) - 1)]
            self._blocks += 1
            self._blocked_until = self._clock() + wait
            return Flooded(str(error), wait)
        return failed
