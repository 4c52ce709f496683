"""What people say in a group without meaning the bot: kept for a while, and given to the model with the next
message that does mean it."""

from __future__ import annotations

from collections import OrderedDict

from bridge.store.base import Store
from channels.base import ChannelState, Inbound

_SCOPE = "~overheard"
_LONGEST = 1000
#: How much overheard talk goes into one turn, in characters; the newest counts.
_MOST_TEXT = 6000
_SLACK = 20
_REMEMBERED = 5000


class Overheard:
    """A bounded log for each session, in the store."""

    def __init__(self, store: Store) -> None:
        self._log: ChannelState = store.channel_state(_SCOPE)
        self._counts: OrderedDict[str, int] = OrderedDict()

    async def keep(self, session: str, inbound: Inbound, speaker: str, most: int) -> None:
        """Keep a message; a second delivery of it is kept once. The oldest beyond `most` are forgotten."""
        said = inbound.text.strip()
        if not said and inbound.attachments:
            said = ", ".join(f"[{a.kind}: {a.name or a.mime}]" for a in inbound.attachments)
        if not said or most <= 0:
            return
        await self._log.append(session, inbound.id, {"by": speaker, "text": said[:_LONGEST]})
        count = self._counts.pop(session, most) + 1
        if count >= most + _SLACK:
            newest = await self._log.read(session, limit=most)
            await self._log.trim(session, newest[0].seq - 1)
            count = len(newest)
        self._counts[session] = count
        if len(self._counts) > _REMEMBERED:
            self._counts.popitem(last=False)

    async def heard(self, session: str, most: int) -> tuple[str, int]:
        """What was overheard, as lines for the model, and the mark up to which that goes."""
        entries = await self._log.read(session, limit=most) if most > 0 else []
        lines: list[str] = []
        size = 0
        for entry in reversed(entries):
            text = " / ".join(str(entry.value.get("text", "")).splitlines())
            line = f"{entry.value.get('by', '')} {text}"
            size += len(line)
            if size > _MOST_TEXT:
                break
            lines.append(line)
        return "\n".join(reversed(lines)), entries[-1].seq if entries else 0

    async def forget(self, session: str, upto: int) -> None:
        """What a turn has taken in is not given again."""
        if upto:
            await self._log.trim(session, upto)
            self._counts.pop(session, None)
