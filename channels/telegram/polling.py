"""Receiving by long polling: nothing is confirmed to Telegram before it is in the inbox.

An update is confirmed when getUpdates is called with a larger offset (Bot API, getUpdates). So the offset
moves only past updates whose `handle` returned, and a crash in between brings the others once more; the
bridge recognises them by their message ids.

Each chat has a lane: its updates are handled in order, lanes side by side. A chat that is slow to be taken
holds back the offset, not the others: what waits is at most one answer of the server (100 updates), and as
long as the oldest waits, new ones are asked for every now and then (at last once a second).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, TypeAlias

from channels.base import ChannelState, Health
from channels.telegram.api import Api, ApiError
from channels.telegram.condition import PEACE, Condition, Trouble, diagnose
from channels.telegram.lanes import lane_of
from channels.telegram.lease import Lease

log = logging.getLogger("causeway.telegram")

Data: TypeAlias = dict[str, Any]
Handle: TypeAlias = Callable[[Data], Awaitable[None]]

#: Seconds that the server holds a request open when there is nothing new (it allows 50).
LONG_POLL = 30
#: Seconds for one update to be taken in.
HANDLE_DEADLINE = 60.0
#: Under this note a webhook's address is kept while it is the bridge's own.
WEBHOOK_NOTE = "webhook"
#: After a week without updates the next id is a random one, and a remembered offset could hide it.
OFFSET_LIFE = 6 * 86400.0
#: So often an update may fail while others are taken, before it is skipped.
STRIKES = 5
#: Seconds that a poll waits for slow lanes, and how long at last, while some stay slow.
_PATIENCE, _MOST_PATIENCE = 0.1, 1.0
#: Seconds that lanes under way get when polling ends.
_LAST_MOMENT = 5.0


class Poller:
    """Takes updates and hands each to `handle`; recovers by itself from every failure."""

    def __init__(
        self,
        name: str,
        api: Api,
        state: ChannelState,
        clock: Callable[[], float],
        lease: Lease,
        allowed: Sequence[str],
        prepare: Callable[[], Awaitable[None]],
        handle: Handle,
    ) -> None:
        self._name = name
        self._api = api
        self._state = state
        self._clock = clock
        self._lease = lease
        self._allowed = list(allowed)  # named each time, since "nothing named" means "as in the call before"
        self._prepare = prepare
        self._handle = handle
        self._condition = Condition("poll")
        self._offset: int | None = None
        self._offset_at = 0.0
        self._batch: list[int] = []  # ids of the last answer, in order
        self._lanes: dict[Hashable, asyncio.Task[None]] = {}
        self._done: set[int] = set()  # taken, but behind one that is not
        self._failed: dict[int, Exception] = {}
        self._strikes: dict[int, int] = {}  # of those that failed and are not taken yet
        self._progress = False
        self._patience = _PATIENCE

    @property
    def health(self) -> Health:
        return self._condition.health

    async def run(self) -> None:
        """Poll whenever the lease allows it, until cancelled."""
        try:
            while True:
                try:
                    held = await self._lease.take()
                except Exception as error:
                    # The store cannot be asked: then messages could not be stored either.
                    log.exception("the right to poll could not be asked for")
                    self._condition.failed(_unstored(error))
                    await asyncio.sleep(self._condition.pause())
                    continue
                if held:
                    await self._hold()
                else:
                    self._condition.rest("another gateway polls for this bot")
                    await asyncio.sleep(self._lease.pause)
        finally:
            self._lease.close()

    async def _hold(self) -> None:
        polling = asyncio.create_task(self._poll_on(), name=f"poll {self._name}")
        keeping = asyncio.create_task(self._lease.keep(), name=f"keep polling {self._name}")
        try:
            await asyncio.wait({polling, keeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            polling.cancel()
            keeping.cancel()
            await asyncio.wait({polling, keeping})
            await self._finish_lanes()
            await self._lease.release()

    async def _finish_lanes(self) -> None:
        if self._lanes:
            _, late = await asyncio.wait(set(self._lanes.values()), timeout=_LAST_MOMENT)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        try:
            await self._confirm()
        except Exception as error:  # noqa: BLE001 - they come once more and are recognised
            log.warning("the last updates could not be confirmed (%s)", type(error).__name__)

    async def _poll_on(self) -> None:
        prepared = False
        while True:
            try:
                if not prepared:
                    await self._load_offset()
                    await self._prepare()
                    prepared = True
                await self._poll()
            except ApiError as error:
                await self._refused(error)
                await asyncio.sleep(self._condition.pause())
            except Exception as error:
                # The store refused a message, or a fault of ours. Polling must go on in any case: the
                # update stays unconfirmed and comes again.
                log.exception("a Telegram update could not be taken; it will be tried again")
                self._condition.failed(_unstored(error))
                await asyncio.sleep(self._condition.pause())

    async def _poll(self) -> None:
        seconds = self._seconds()
        updates: list[Data] = await self._api.call(
            "getUpdates",
            seconds + 15.0,
            offset=self._valid_offset(),
            timeout=seconds,
            limit=100,
            allowed_updates=self._allowed,
        )
        await self._take(updates)
        if not self._strikes:  # what failed is not merely being tried once more
            self._condition.succeeded()

    def _seconds(self) -> int:
        """Right after a failure the answer is wanted at once, to see whether things are well again; but a
        rival is only gone when a long request was left in peace."""
        trouble = self._condition.trouble
        if trouble is None:
            return LONG_POLL
        return int(min(LONG_POLL, PEACE)) if trouble.lasting else 0

    # -- taking ------------------------------------------------------------------------------------------

    async def _take(self, updates: Sequence[Data]) -> None:
        """Hand the updates to their lanes; confirm up to the first that is not taken. Raises what the first
        failure raised: it holds back its chat only."""
        self._batch = [int(update["update_id"]) for update in updates]
        waiting: dict[Hashable, list[Data]] = {}
        for number, update in zip(self._batch, updates, strict=True):
            lane = lane_of(update)
            if number not in self._done and lane not in self._lanes:
                waiting.setdefault(lane, []).append(update)
        for lane, its in waiting.items():
            self._lanes[lane] = asyncio.create_task(self._run(lane, its), name=f"lane of {self._name}")
        if self._lanes:
            await asyncio.wait(set(self._lanes.values()), timeout=self._patience)
        self._patience = min(self._patience * 2, _MOST_PATIENCE) if self._lanes else _PATIENCE
        failed, self._failed = self._failed, {}
        self._skip_poison(failed)
        await self._confirm()
        if failed:
            raise next(iter(failed.values()))

    async def _run(self, lane: Hashable, updates: Sequence[Data]) -> None:
        try:
            for update in updates:
                number = int(update["update_id"])
                try:
                    async with asyncio.timeout(HANDLE_DEADLINE):
                        await self._handle(update)
                except Exception as error:  # noqa: BLE001 - `_take` raises it, after the other chats
                    self._failed[number] = error
                    return
                self._done.add(number)
                self._progress = True
        finally:
            del self._lanes[lane]

    def _skip_poison(self, failed: dict[int, Exception]) -> None:
        """Give up what fails again and again while others are taken in the same passes: the store is well."""
        waiting = set(self._batch) - self._done
        self._strikes = {n: strikes for n, strikes in self._strikes.items() if n in waiting}
        for number in failed:
            self._strikes[number] = self._strikes.get(number, 0) + self._progress
        self._progress = False
        for number, strikes in self._strikes.items():
            if strikes >= STRIKES:
                log.error("update %d was refused again and again while others were taken: skipped", number)
                self._done.add(number)

    async def _confirm(self) -> None:
        before = self._offset
        for number in self._batch:
            if number not in self._done:
                break
            self._done.discard(number)
            self._offset = number + 1
        self._done.intersection_update(self._batch)
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

    async def _refused(self, error: ApiError) -> None:
        if error.code == 409 and "webhook" in error.reason and await self._remove_own_webhook():
            return
        self._condition.failed(diagnose(error, self._name))

    async def _remove_own_webhook(self) -> bool:
        """The bot was run in webhook mode by this bridge before. Waiting updates are kept."""
        try:
            ours = await self._state.get(WEBHOOK_NOTE)
            found = await self._api.call("getWebhookInfo")
            if not ours or found.get("url") != ours:
                return False
            log.warning("Telegram: the webhook of the earlier mode is removed now")
            await self._api.call("deleteWebhook", drop_pending_updates=False)
            await self._state.put(WEBHOOK_NOTE, None)
        except ApiError as error:
            log.warning("the webhook could not be removed: %s", error)
            return False
        return True


def _unstored(error: Exception) -> Trouble:
    return Trouble(Health(False, f"messages cannot be stored ({type(error).__name__})", "see the log"))
