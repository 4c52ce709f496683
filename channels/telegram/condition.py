"""How well receiving goes: counts failures in a row, paces the attempts, tells a person what to do."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass

from channels.base import Health
from channels.telegram.api import ApiError

log = logging.getLogger("causeway.telegram")

#: Failures in a row after which the channel is called unhealthy.
TOLERATED = 2
#: Seconds without a success after which it is, whatever else is known.
WATCHDOG = 180.0
#: Seconds without a new conflict after which a rival counts as gone: between two of its requests a poll of
#: ours may well succeed.
PEACE = 25.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0
_REFUSED_PAUSE = 30.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong. `rest`: least seconds to the next attempt. `lasting`: seconds it stays in spite of
    success. `grave`: no accident of one moment, so it is shown at once."""

    health: Health
    rest: float = 0.0
    lasting: float = 0.0
    grave: bool = False


class Condition:
    """`failed` and `succeeded` are told; `health` and `pause` follow from them."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._failures = 0
        self._proven = False
        self._trouble: Trouble | None = Trouble(
            Health(False, "not connected to Telegram yet", "wait a moment; see the log if it stays so")
        )
        self._resting = ""
        self._last_failure = 0.0
        self._last_success = _now()

    @property
    def trouble(self) -> Trouble | None:
        return self._trouble

    @property
    def health(self) -> Health:
        trouble = self._trouble
        if self._resting:
            return Health(True, self._resting)
        if trouble is not None and (trouble.grave or not self._proven or self._failures >= TOLERATED):
            return trouble.health
        silent = _now() - self._last_success
        if silent > WATCHDOG:
            reason = f"no {self._what} has succeeded for {silent / 60:.0f} minutes"
            return Health(False, reason, "check the network and the log; restart the bridge if it stays so")
        return Health(True)

    def failed(self, trouble: Trouble) -> None:
        health, old = trouble.health, self._trouble
        self._resting = ""
        self._failures += 1
        self._last_failure = _now()
        if old is None or old.health.reason != health.reason or self._failures == TOLERATED:
            log.warning("Telegram: %s; %s", health.reason, health.cure)
        self._trouble = trouble

    def succeeded(self) -> None:
        """One attempt went through. What has to show its end by silence stays a while."""
        self._resting = ""
        self._proven = True
        self._last_success = _now()
        if self._trouble is None or _now() - self._last_failure < self._trouble.lasting:
            return
        log.info("receiving messages from Telegram")
        self._trouble = None
        self._failures = 0

    def rest(self, why: str) -> None:
        """Nothing is attempted, and that is right."""
        if why != self._resting:
            log.info("Telegram: %s", why)
        self._resting = why
        self._last_success = _now()

    def pause(self) -> float:
        """Seconds until the next attempt."""
        grown = min(_FIRST_PAUSE * 2.0 ** min(max(self._failures - 1, 0), 10), _LONGEST_PAUSE)
        # What the server asks for is kept; only the rest of a pause may be shortened by chance.
        rest = self._trouble.rest if self._trouble else 0.0
        return max(grown * (0.75 + random.random() / 2), rest)


def _now() -> float:
    return asyncio.get_running_loop().time()


def diagnose(error: ApiError, name: str) -> Trouble:
    """What a failed call of the receiving side means for the people who run the bot."""
    if error.code in (401, 404):
        return Trouble(
            Health(
                False,
                f"Telegram does not know this bot token ({error.reason})",
                f"take the token from @BotFather and put it into channels.{name}.token",
            ),
            rest=_REFUSED_PAUSE,
            grave=True,
        )
    if error.code == 409 and "webhook" in error.reason:
        return Trouble(
            Health(
                False,
                "a webhook that this bridge did not set is active for this bot, so it cannot poll",
                "remove it by opening https://api.telegram.org/bot<token>/deleteWebhook once, or set "
                f"channels.{name}.mode: webhook",
            )
        )
    if error.code == 409:
        return Trouble(
            Health(
                False,
                "another program polls with the same bot token",
                "stop the other program, or give each its own bot from @BotFather",
            ),
            lasting=PEACE,
        )
    if error.code == 0:
        return Trouble(
            Health(
                False,
                f"Telegram's server cannot be reached ({error.reason})",
                f"check the network, channels.{name}.proxy and channels.{name}.base_url",
            )
        )
    if error.code == 429:
        return Trouble(
            Health(False, "Telegram asks to wait", "nothing; it goes on by itself"), rest=error.retry_after
        )
    return Trouble(Health(False, f"Telegram refuses: {error.reason} ({error.code})", "see the log"))
