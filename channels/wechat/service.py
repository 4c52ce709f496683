"""Customer-service messages: whether the account may send them, how many are left, what a refusal means."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from channels.base import ChannelState, Gone, Health, NotSent, OutFile, Rejected, SendError, Unknown
from channels.wechat.api import Api, ApiError
from channels.wechat.passive import Part, Person

log = logging.getLogger("causeway.wechat")

Mode = Literal["auto", "passive", "customer_service"]

#: What the account may do is asked again after so long (seconds): it may have been verified since.
ASK_AGAIN = 24 * 3600.0
#: The window is closed or the quota used: only the person's next message opens it again.
_PERSON = frozenset((45015, 45047))
NO_RIGHT = 48001
#: The account cannot call now (daily quota, IP white list, an admin's yes to the IP): seconds to keep off.
_ACCOUNT = {45009: 3600.0, 40164: 300.0, 89503: 300.0, 89506: 300.0, 89507: 300.0, 40013: 300.0, 40125: 300.0}
_GONE = frozenset((40003, 43004, 43019))
_BUSY = frozenset((-1, 45011))
_TYPING_IGNORED = frozenset((45080, 45081))
MIB = 1024 * 1024
#: Temporary media (developers.weixin.qq.com, media/upload): message kind and largest size by MIME type.
_MEDIA = {
    "image/jpeg": ("image", 10 * MIB),
    "image/png": ("image", 10 * MIB),
    "image/gif": ("image", 10 * MIB),
    "image/bmp": ("image", 10 * MIB),
    "audio/amr": ("voice", 2 * MIB),
    "audio/mpeg": ("voice", 2 * MIB),
    "audio/mp3": ("voice", 2 * MIB),
    "video/mp4": ("video", 10 * MIB),
}


def cure(code: int) -> str:
    """What a person does about an error code of the whole account; "" when that is not known."""
    return {
        48001: "the account has no customer-service permission (接口权限): set mode: auto",
        45009: "the daily quota of the API is used up; it is new at midnight (Beijing)",
        40164: "put this server's IP (in the reason) on the white list: 设置与开发 → 开发接口管理 → IP白名单",
        89503: "an administrator of the account must confirm calls from this IP, by the message in WeChat",
        40013: "app_id is not valid; copy it from 基本配置",
        40125: "app_secret is not valid; reset it in 基本配置 and set the new one",
    }.get(code, "")


class Service:
    """Sends by the customer-service API within its rules. What it may not send now waits in the store."""

    def __init__(self, mode: Mode, api: Api, state: ChannelState, clock: Callable[[], float]) -> None:
        self._mode = mode
        self._api = api
        self._state = state
        self._clock = clock
        self._right: bool | None = None if mode != "passive" else False
        self._asked = 0.0
        self._blocked = 0.0  # until then the account cannot call
        self._faulty = False  # it could not when it last tried
        #: A part that waits is sent by one process: each has a name of its own.
        self._flusher = f"service:{secrets.token_hex(4)}"
        self.health = Health(True)

    # -- rights -----------------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """What comes later can surely go by this way."""
        if self._mode == "passive" or self._faulty:
            return False
        return self._right is not False if self._mode == "customer_service" else self._right is True

    @property
    def worth_trying(self) -> bool:
        return self._mode != "passive" and self._right is not False and not self._closed

    @property
    def _closed(self) -> bool:
        """Whether the account cannot call now. A clock that is set back makes that no longer."""
        return 0 < self._blocked - self._clock() <= max(_ACCOUNT.values())

    async def learn(self) -> None:
        """Find out whether the account has the right, unless that was found out within a day."""
        if self._mode != "auto":
            return
        note = await self._state.get("rights")
        if isinstance(note, dict) and self._clock() - float(note["at"]) < ASK_AGAIN:
            self._right, self._asked = bool(note["service"]), float(note["at"])
            return
        if self._closed:
            return
        try:
            await self._api.service_accounts()
        except ApiError as error:
            if error.taken != "refused":
                log.info("whether the account may send customer-service messages is not known yet: %s", error)
                return
            if error.code in _ACCOUNT:
                self._account_fault(error)
                return
            await self._keep_right(error.code != NO_RIGHT)
        else:
            await self._keep_right(True)

    @property
    def due(self) -> bool:
        """Whether `learn` has something to find out."""
        return self._mode == "auto" and self._clock() - self._asked > ASK_AGAIN

    async def _keep_right(self, right: bool) -> None:
        if right != self._right:
            log.info(
                "customer-service messages: %s", "permitted" if right else "not permitted (passive only)"
            )
        self._right, self._asked = right, self._clock()
        await self._state.put("rights", {"service": right, "at": self._asked})

    def _account_fault(self, error: ApiError) -> None:
        self._blocked, self._faulty = self._clock() + _ACCOUNT.get(error.code, 300.0), True
        self.health = Health(False, str(error), cure(error.code))
        log.error("the WeChat API refuses this account's calls: %s. %s", error, cure(error.code))

    # -- sending ----------------------------------------------------------------------------------------

    async def text(self, person: Person, part: Part) -> None:
        """Send one part, or let it wait when the platform does not take it now. Raises SendError."""
        async with person.sending:
            sent = await self._send(person, part)
        if not sent:
            async with person.lock:
                await person.put(part)
            log.info("a part of reply %s waits until the person writes again", part.reply)

    async def _send(self, person: Person, part: Part) -> bool:
        """False: not now. The caller holds `sending`."""
        await person.refresh()
        if person.left <= 0:
            return False
        await self._settle(person)
        hint = person.words("more", person.language) if person.left == 1 and part.more else ""
        try:
            await self._api.send_text(person.user, part.text + hint)
        except ApiError as error:
            if await self._must_wait(person, error):
                return False
            raise self._failed(error) from None
        await self._spent(person, invited=bool(hint))
        return True

    async def _settle(self, person: Person) -> None:
        pause = person.not_before - asyncio.get_running_loop().time()
        if pause > 0:
            await asyncio.sleep(pause)

    async def _spent(self, person: Person, *, invited: bool) -> None:
        self._faulty, self.health = False, Health(True)
        async with person.changing():
            person.left -= 1
            person.invited = invited
            await person.save()

    async def _must_wait(self, person: Person, error: ApiError) -> bool:
        """Whether a refusal means "not now": then nothing is lost, since the part waits."""
        if error.code in _PERSON:
            async with person.changing():
                person.left = 0
                await person.save()
            return True
        if error.code == NO_RIGHT:
            if self._mode == "auto":
                await self._keep_right(False)
            else:
                self._right = False  # until the next start: meanwhile answers wait for the person's words
                self._account_fault(error)
            return True
        if error.code in _ACCOUNT:
            self._account_fault(error)
            return True
        return False

    def _failed(self, error: ApiError) -> SendError:
        if error.taken == "maybe":
            return Unknown(str(error))
        if error.taken == "no" or error.code in _BUSY or error.code in (40001, 40014, 42001):
            return NotSent(str(error))
        if error.code in _GONE:
            return Gone(str(error))
        return Rejected(str(error))

    async def flush(self, person: Person) -> None:
        """Send what waits for a person, in order, as far as the platform takes it."""
        async with person.sending:
            await person.refresh()
            while self.worth_trying and person.left > 0:
                async with person.lock:
                    waiting = await person.waiting()
                if not waiting or len(waiting) <= person.open.total():
                    return  # open requests carry the rest
                part = replace(waiting[0], more=max(waiting[0].more, len(waiting) - 1))
                if not await person.reserve(part, self._flusher):
                    return
                try:
                    sent = await self._send(person, part)
                except (NotSent, Gone) as error:
                    log.info("what waits for a person stays: %s", error)
                    sent = False
                except SendError as error:
                    log.warning("a waiting part was refused or its end is unknown: %s", error)
                    sent = True
                if not sent:
                    await person.release(part, self._flusher)
                    return
                await person.drop(part)

    # -- files and signs ----------------------------------------------------------------------------------

    async def file(self, person: Person, file: OutFile) -> bool:
        """Send a picture, voice or video; False when it cannot go this way (then its name is told)."""
        await person.refresh()
        kind, largest = _MEDIA.get(file.mime.partition(";")[0].lower(), ("", 0))
        if not kind or not self.worth_trying or person.left <= 0:
            return False
        data = await asyncio.to_thread(_read, file, largest)
        if data is None:
            return False
        async with person.sending:
            await self._settle(person)
            try:
                media = await self._api.upload(kind, file.name or Path(file.path).name, data, file.mime)
                await self._api.send_media(person.user, kind, media)
            except ApiError as error:
                if await self._must_wait(person, error):
                    return False
                failed = self._failed(error)
                if isinstance(failed, Rejected):
                    log.warning("a file was refused: %s", error)
                    return False
                raise failed from None
            await self._spent(person, invited=False)
        return True

    async def typing(self, user: str) -> None:
        if not self.usable:
            return
        try:
            await self._api.typing(user)
        except ApiError as error:
            if error.code not in _TYPING_IGNORED:
                log.debug("the typing sign was not shown: %s", error)


def _read(file: OutFile, largest: int) -> bytes | None:
    path = Path(file.path)
    try:
        size = path.stat().st_size
        return path.read_bytes() if 5 < size <= largest else None
    except OSError as error:
        raise Rejected(f"{file.name} cannot be read: {error.strerror}") from None
