"""Receiving by long polling: nothing is confirmed to Telegram before it is in the inbox.

An update is confirmed when getUpdates is called with a larger offset (Bot API, getUpdates). So the offset
moves only after `receive` returned, and a crash in between brings the update once more; the bridge
recognises it by its message id.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from channels.base import ChannelState, Health
from channels.telegram.api import Api, ApiError

log = logging.getLogger("causeway.telegram")

Data: TypeAlias = dict[str, Any]

#: Seconds that the server holds a request open when there is nothing new (it allows 50).
LONG_POLL = 30
#: Only messages are read so far. Named, since "nothing named" means "as in the call before".
ALLOWED_UPDATES = ["message"]
#: After a week without updates the next id is a random one, and a remembered offset could hide it.
OFFSET_LIFE = 6 * 86400.0
#: So often an update may fail while others are taken, before it is skipped.
STRIKES = 5
#: Failed polls in a row after which the channel is called unhealthy.
TOLERATED = 2
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0
_REFUSED_PAUSE = 30.0


class Poller:
    """Takes updates in order and hands each to `handle`; recovers by itself from every failure."""

    def __init__(
        self,
        api: Api,
        state: ChannelState,
        clock: Callable[[], float],
        prepare: Callable[[], Awaitable[None]],
        handle: Callable[[Data], Awaitable[None]],
    ) -> None:
        self._api = api
        self._state = state
        self._clock = clock
        self._prepare = prepare
        self._handle = handle
        self._offset: int | None = None
        self._offset_at = 0.0
        self._failures = 0
        self._done: set[int] = set()  # updates taken, but behind one that is not (a batch at most)
        self._strikes: tuple[int, int] = (0, 0)  # an update's id, how often it alone was not taken
        self._trouble: Health | None = Health(
            False, "not connected to Telegram yet", "wait a moment; see the log if it stays so"
        )

    @property
    def health(self) -> Health:
        if self._trouble is not None and (self._failures == 0 or self._failures >= TOLERATED):
            return self._trouble
        return Health(True)

    async def run(self) -> None:
        """Poll until cancelled."""
        prepared = False
        while True:
            try:
                if not prepared:
                    await self._load_offset()
                    await self._prepare()
                    prepared = True
                await self._poll()
            except ApiError as error:
                await asyncio.sleep(await self._failed(error))
            except Exception as error:
                # The store refused a message, or a fault of ours. Polling must go on in any case: the
                # update stays unconfirmed and comes again.
                log.exception("a Telegram update could not be taken; it will be tried again")
                self._note(
                    Health(False, f"messages cannot be stored ({type(error).__name__})", "see the log")
                )
                await asyncio.sleep(self._pause())

    async def _poll(self) -> None:
        # Right after a failure the answer is wanted at once, to see whether things are well again.
        seconds = 0 if self._trouble is not None else LONG_POLL
        updates = await self._api.call(
            "getUpdates",
            seconds + 15.0,
            offset=self._valid_offset(),
            timeout=seconds,
            limit=100,
            allowed_updates=ALLOWED_UPDATES,
        )
        await self._take(updates)
        if self._trouble is not None:
            log.info("receiving messages from Telegram")
        self._trouble = None
        self._failures = 0

    async def _take(self, updates: list[Data]) -> None:
        """Hand the updates over, in order within each chat; confirm up to the first that was not taken.

        One that fails holds back its chat only. Raises what the first failure raised.
        """
        failure: Exception | None = None
        failed_id, held, progress = 0, set(), False
        try:
            for update in updates:
                number, chat = int(update["update_id"]), _chat(update)
                if number in self._done or chat in held:
                    continue
                try:
                    await self._handle(update)
                except Exception as error:  # noqa: BLE001 - raised below, after the other chats
                    held.add(chat)
                    if failure is None:
                        failure, failed_id = error, number
                else:
                    self._done.add(number)
                    progress = True
            if failure is not None and self._is_poison(failed_id, progress):
                log.error("update %d was refused again and again while others were taken: skipped", failed_id)
                self._done.add(failed_id)
        finally:
            await self._confirm(updates)
        if failure is not None:
            raise failure

    def _is_poison(self, number: int, progress: bool) -> bool:
        """Whether to give an update up: others were taken in the same passes, so the store is well."""
        strikes = self._strikes[1] if self._strikes[0] == number else 0
        self._strikes = (number, strikes + progress)
        return strikes + progress >= STRIKES

    async def _confirm(self, updates: list[Data]) -> None:
        before = self._offset
        for update in updates:
            number = int(update["update_id"])
            if number not in self._done:
                break
            self._done.discard(number)
            self._offset = number + 1
        if self._offset != before:
            self._offset_at = self._clock()
            await self._state.put("offset", {"next": self._offset, "at": self._offset_at})

    async def _load_offset(self) -> None:
        stored = await self._state.get("offset")
        if isinstance(stored, dict):
            self._offset, self._offset_at = stored.get("next"), float(stored.get("at") or 0)

    def _valid_offset(self) -> int | None:
        return self._offset if self._clock() - self._offset_at < OFFSET_LIFE else None

    # -- failures ----------------------------------------------------------------------------------------

    async def _failed(self, error: ApiError) -> float:
        """Note a failure; return the seconds to wait."""
        if error.code == 409 and "webhook" in error.reason:
            await self._remove_webhook()
        self._note(_diagnose(error))
        if error.retry_after:
            return error.retry_after
        if error.code in (401, 404):
            return _REFUSED_PAUSE * _jitter()
        return self._pause()

    def _note(self, trouble: Health) -> None:
        self._failures += 1
        if self._trouble is None or self._trouble.reason != trouble.reason or self._failures == TOLERATED:
            log.warning("Telegram: %s; %s", trouble.reason, trouble.cure)
        self._trouble = trouble

    def _pause(self) -> float:
        return min(_FIRST_PAUSE * 2.0 ** min(self._failures - 1, 10), _LONGEST_PAUSE) * _jitter()

    async def _remove_webhook(self) -> None:
        """The bot was used with a webhook before. Waiting updates are kept."""
        log.warning("Telegram: this bot has a webhook, which forbids polling; it is removed now")
        try:
            await self._api.call("deleteWebhook", drop_pending_updates=False)
        except ApiError as error:
            log.warning("the webhook could not be removed: %s", error)


def _chat(update: Data) -> Any:
    """The chat whose order an update belongs to."""
    for part in update.values():
        if isinstance(part, dict) and isinstance(part.get("chat"), dict):
            return part["chat"].get("id")
    return None


def _jitter() -> float:
    return 0.75 + random.random() / 2


def _diagnose(error: ApiError) -> Health:
    if error.code in (401, 404):
        return Health(
            False,
            f"Telegram does not know this bot token ({error.reason})",
            "take the token from @BotFather and put it into channels.telegram.token",
        )
    if error.code == 409 and "webhook" in error.reason:
        return Health(
            False, "a webhook is set for this bot, so it cannot poll", "remove the webhook (deleteWebhook)"
        )
    if error.code == 409:
        return Health(
            False,
            "another program polls with the same bot token",
            "stop the other program, or give each its own bot from @BotFather",
        )
    if error.code == 0:
        return Health(
            False,
            f"Telegram's server cannot be reached ({error.reason})",
            "check the network, a proxy, and base_url",
        )
    return Health(False, f"Telegram refuses to give messages: {error.reason} ({error.code})", "wait")
