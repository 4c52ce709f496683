"""One message that grows by chat.startStream, appendStream and stopStream.

Measured by others, not promised by Slack: a stream ends about 306 s after its start (sooner when idle), then
every write is refused (`message_not_in_streaming_state`) and only chat.update works; before that chat.update
is refused (`streaming_state_conflict`). What is appended cannot be taken back, blanks at its beginning are
lost, and the person can stop it. So text is appended only as far as it will not change, never beginning with
a blank; where the final text parted from what was shown, the message is replaced as a whole afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal

from channels.base import Activity, Chunk
from channels.slack.api import Api, ApiError

log = logging.getLogger("causeway.slack")

#: Seconds after which a stream is ended by us, to go on with chat.update.
LIFE = 240.0
_MAX_FIELD = 256
_MOST_TASKS = 50
_STATES = {"running": "in_progress", "done": "complete", "failed": "error"}
Data = dict[str, Any]


class Over(Exception):
    """The stream has ended, and the message does not show what it should: replace it."""


class Tasks:
    """Tool steps as task cards. At most 50 a reply; further steps are not shown."""

    def __init__(self) -> None:
        self._tasks: dict[str, Data] = {}
        self._changed: dict[str, None] = {}

    def note(self, activity: Activity) -> None:
        if activity.call not in self._tasks and len(self._tasks) >= _MOST_TASKS:
            return
        words = f"{activity.name}: {activity.detail}" if activity.detail else activity.name
        # Control characters of Slack's text are not wanted in a title, and escaping them is not documented.
        title = " ".join(words.replace("<", "‹").replace(">", "›").split())[:_MAX_FIELD] or "…"
        task = {"id": activity.call[:_MAX_FIELD], "title": title, "status": _STATES[activity.state]}
        if self._tasks.get(activity.call) != task:
            self._tasks[activity.call] = task
            self._changed[activity.call] = None

    @property
    def changed(self) -> bool:
        return bool(self._changed)

    def take(self) -> list[Data]:
        """The cards to send now."""
        cards = [{"type": "task_update", **self._tasks[call]} for call in self._changed]
        self._changed.clear()
        return cards

    def finish(self) -> None:
        """Nothing runs any more."""
        for call, task in self._tasks.items():
            if task["status"] == "in_progress":
                self._tasks[call] = {**task, "status": "complete"}
                self._changed[call] = None

    def again(self, cards: Sequence[Data]) -> None:
        """These cards did not get through."""
        self._changed.update(
            (call, None) for call, t in self._tasks.items() if any(c["id"] == t["id"] for c in cards)
        )


class Stream:
    """A streamed message. Its caller lets one call run at a time."""

    def __init__(self, api: Api, channel: str, ts: str, clock: Callable[[], float], sent: str) -> None:
        self._api, self._channel, self._clock = api, channel, clock
        self.ts, self.sent = ts, sent
        self.state: Literal["open", "over", "stopped"] = "open"
        self._began = clock()
        self._torn = False  # an append's outcome is unknown

    async def show(self, chunk: Chunk, tasks: Tasks, metadata: Data, *, final: bool) -> None:
        """Bring the message to `chunk`; `metadata` goes with its end. Raises Over, or ApiError when the call
        may be tried again."""
        text = chunk.text + str(chunk.data.get("close") or "")
        grows = not self._torn and chunk.data.get("form") == "markdown" and text.startswith(self.sent)
        if final:
            await self.stop(text[len(self.sent) :] if grows else "", tasks, metadata)
            if not grows:
                raise Over
            self.sent = text
        elif self._torn or chunk.data.get("form") != "markdown":
            await self.stop("", tasks)
            raise Over
        elif grows:
            end = joint(chunk.text, int(chunk.data.get("steady", 0)))
            delta = chunk.text[len(self.sent) : end]
            if self._clock() - self._began > LIFE:
                await self.stop(delta, tasks)
            elif delta or tasks.changed:
                await self.append(delta, tasks)

    async def append(self, delta: str, tasks: Tasks) -> None:
        """Add text and cards. Raises Over or ApiError."""
        await self._call("chat.appendStream", delta, tasks)
        self.sent += delta

    async def stop(self, delta: str, tasks: Tasks, metadata: Data | None = None) -> None:
        """End the stream with the rest of its text. Raises Over when it had ended already."""
        tasks.finish()
        await self._call("chat.stopStream", delta, tasks, metadata=metadata)
        self.sent += delta
        if self.state == "open":
            self.state = "over"

    async def _call(self, method: str, delta: str, tasks: Tasks, **more: Any) -> None:
        cards = tasks.take()
        more["chunks"] = chunks(cards, delta) or None
        try:
            await self._api.call(method, channel=self._channel, ts=self.ts, **more)
        except ApiError as error:
            if error.error == "stopped_by_user":
                self.state = "stopped"
                return
            if error.error in ("ratelimited", "http_503") or error.taken == "no":
                tasks.again(cards)
                raise
            if error.taken == "maybe":
                self._torn = True
                raise
            if error.error != "message_not_in_streaming_state":
                log.warning("a streamed message ends early: %s", error)
            self.state = "over"
            raise Over from None


def chunks(cards: list[Data], text: str) -> list[Data]:
    """What a call adds to a stream."""
    return [*cards, {"type": "markdown_text", "text": text}] if text else cards


def joint(text: str, steady: int) -> int:
    """Where growing text may be cut, at most at `steady`: what follows begins with no blank, and is there."""
    end = min(steady, len(text) - 1)
    while end > 0 and text[end].isspace():
        end -= 1
    return max(end, 0)
