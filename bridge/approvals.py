"""Confirmations: a call that needs a person's yes waits here, for one answer, bound to exactly its arguments.

An approval is written down before its card is shown, so it outlives a restart: the run that comes back finds
it, decided or still waiting. It ends by the first answer of somebody permitted, or by time, which is a no.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from agent.turn import Approval, Approved
from bridge.access import Access
from bridge.store.base import Store
from bridge.texts import text
from channels.base import Address, Channel, Choice, Flooded, NotSent, Press, ReplyRef, Sender, SendError

log = logging.getLogger("causeway.approvals")

State = Literal["waiting", "once", "session", "always", "denied", "timeout"]
#: Letters and digits that are not mistaken for one another.
CLEAR = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"
_CODES = tuple(a + b for a in CLEAR for b in CLEAR if not (a.isalpha() and b.isalpha()))
_SCOPE, _ALWAYS, _FOR_SESSION = "approval", "approved", "approved here"
#: The audit log: `store.channel_state(AUDIT_SCOPE)`, log `AUDIT_LOG`; the newest `AUDIT_KEPT` entries stay.
AUDIT_SCOPE, AUDIT_LOG, AUDIT_KEPT = "~audit", "approvals", 10_000
#: Seconds after its end that a card is kept for a run that may still come back to it.
_KEPT = 24 * 3600.0
_TRIM_EVERY = 500
_MOST_OPEN = 20  # of one session
_LONGEST_ARGUMENTS = 1500
_POST_DEADLINE = 30.0
_YES_STATES = ("once", "session", "always")


@dataclass(frozen=True, slots=True)
class Card:
    """One approval as it is stored."""

    id: str
    code: str
    session: str
    tool: str
    source: str
    arguments: str  # canonical JSON
    asker: str
    ref: dict[str, Any]
    until: float
    message_id: str = ""
    state: State = "waiting"
    by: str = ""
    by_name: str = ""
    words: str = ""
    own: bool = False  # the person who asked may answer

    @property
    def address(self) -> Address:
        return Address(**self.ref["address"])


@dataclass(slots=True)
class _Open:
    card: Card
    decided: asyncio.Event = field(default_factory=asyncio.Event)


class Approvals:
    """All confirmations of a process. `wait` seconds are given for an answer. `shared`: other processes work
    on the same store, so what is not in memory is looked for there."""

    def __init__(
        self,
        store: Store,
        channels: Mapping[str, Channel],
        access: Access,
        clock: Callable[[], float],
        mask: Callable[[str], str],
        wait: float = 600.0,
        shared: bool = False,
    ) -> None:
        self._store = store
        self._channels = channels
        self._access = access
        self._clock = clock
        self._mask = mask
        self._wait = wait
        self._shared = shared
        #: Told the id of each card that is decided here: the run that waits for it may be elsewhere.
        self.announce: Callable[[str], None] = lambda id: None
        self._audit = store.channel_state(AUDIT_SCOPE)
        self._open: dict[str, _Open] = {}
        #: Decided and shown, by session: kept in the store until the run is over, which may come back to it.
        self._over: dict[str, set[str]] = {}
        self._last_code = secrets.randbelow(len(_CODES))

    async def load(self) -> None:
        """Take up what an earlier process left."""
        if self._shared:
            return  # a session's cards come with its runs
        self._open.update({card.id: _Open(card) for card in await self.tidy()})

    async def tidy(self) -> list[Card]:
        """Put away cards that no run will come back to; returns the others."""
        kept: list[Card] = []
        for id, stored in (await self._store.settings(_SCOPE)).items():
            card = _read(stored)
            if card is None or card.until < self._clock() - _KEPT:
                await self._store.put_setting(_SCOPE, id, None)
            else:
                kept.append(card)
        return kept

    # -- asking ----------------------------------------------------------------------------------------

    async def ask(self, session: str, ref: ReplyRef, approval: Approval) -> Approved:
        """Get a yes or no for a call. Cancelling (a stop) leaves the card decided as no."""
        channel = self._channels.get(ref.address.channel)
        arguments = canonical(approval.arguments)
        subject = subject_of(approval.tool, approval.source, arguments)
        if await self._granted(session, ref.address, subject):
            return Approved(True)
        if channel is None or not channel.asks:
            return Approved(False, "nobody")
        id = hashlib.sha256("\0".join((session, approval.run, approval.call)).encode()).hexdigest()[:20]
        mine = await self._find(id)
        if mine is not None and mine.card.arguments != arguments:
            return Approved(False, "denied")  # a yes holds for the arguments that were shown, and no others
        if mine is None:
            open_here = sum(1 for one in self._open.values() if one.card.session == session)
            if open_here >= _MOST_OPEN:
                return Approved(False, "nobody")
            card = Card(
                id,
                self._code(),
                session,
                approval.tool,
                approval.source,
                arguments,
                approval.caller.id,
                {**asdict(ref)},
                self._clock() + self._wait,
                own=_may_self(approval),
            )
            mine = self._open[id] = _Open(card)
            await self._keep(card)
        self._open.setdefault(id, mine)
        if mine.card.state == "waiting" and not mine.card.message_id:
            await self._show(channel, ref, mine, approval)
        return await self._answered(channel, ref, mine)

    async def _granted(self, session: str, address: Address, subject: str) -> bool:
        """Whether somebody has said yes to all such calls, for the chat or for the session. Looked up in the
        store: it takes no memory, and what another process takes back is gone here too."""
        kept = await self._store.get_setting(_ALWAYS, _always_key(address, subject))
        return bool(kept or await self._store.get_setting(_here(session), subject))

    async def _find(self, id: str) -> _Open | None:
        """A card in memory, or one that another process has written down."""
        mine = self._open.get(id)
        if mine is not None or not self._shared:
            return mine
        card = _read(await self._store.get_setting(_SCOPE, id))
        return self._open.get(id) or (_Open(card) if card is not None else None)

    async def _stored(self) -> dict[str, _Open]:
        """All cards; those in memory first."""
        found = dict(self._open)
        for id, kept in (await self._store.settings(_SCOPE)).items() if self._shared else ():
            if id not in found and (card := _read(kept)) is not None:
                found[id] = _Open(card)
        return found

    async def _answered(self, channel: Channel, ref: ReplyRef, mine: _Open) -> Approved:
        # Cancelled for a restart, the card stays as it is; for a stop by a person `stopped` settles it.
        if mine.card.state == "waiting":
            try:
                async with asyncio.timeout(self._left(mine.card)):
                    await mine.decided.wait()
            except TimeoutError:
                if mine.card.state == "waiting":
                    await self._decide(mine, "timeout", "", "")
        card = mine.card
        await self._end(channel, ref, card)
        if card.state in _YES_STATES:
            return Approved(True)
        return Approved(False, "timeout" if card.state == "timeout" else "denied", card.words)

    def _left(self, card: Card) -> float:
        """Seconds that a card still waits. A clock that was set back adds nothing to them."""
        return min(max(card.until - self._clock(), 0.0), self._wait)

    async def _show(self, channel: Channel, ref: ReplyRef, mine: _Open, approval: Approval) -> None:
        card, language = mine.card, ref.language
        admin_only = not card.own
        question = text(
            "approval.question",
            language,
            tool=card.tool,
            where=text("approval.builtin", language) if approval.source == "builtin" else approval.source,
            arguments=_visible(self._mask(card.arguments)),
            who=text("approval.admins" if admin_only else "approval.you", language),
            minutes=max(1, round(self._left(card) / 60)),
        )
        if not channel.buttons:
            question += "\n\n" + text("approval.words", language, code=card.code)
        choices = [
            Choice(f"ap:{card.id}:once", text("approval.once", language), "primary"),
            Choice(f"ap:{card.id}:session", text("approval.session", language)),
            Choice(f"ap:{card.id}:always", text("approval.always", language)),
            Choice(f"ap:{card.id}:denied", text("approval.no", language), "danger"),
        ]
        own = replace(ref, id=f"a{card.id}", private=False)
        message = await self._put(channel, own, question, choices if channel.buttons else (), mine)
        mine.card = replace(mine.card, message_id=message or "-")
        await self._keep(mine.card)

    async def _put(
        self, channel: Channel, ref: ReplyRef, question: str, choices: Sequence[Choice], mine: _Open
    ) -> str:
        """Show a card; again while the platform does not take it. Without it `/approve` still works."""
        pause = 1.0
        while not mine.decided.is_set():
            try:
                async with asyncio.timeout(_POST_DEADLINE):
                    return await channel.ask(ref, question, choices)
            except NotSent as error:
                wait = error.retry_after if isinstance(error, Flooded) else pause
                pause = min(pause * 2, 30.0)
                if wait >= self._left(mine.card):
                    log.warning("a question was not shown in time: %s", error)
                    return ""
                await asyncio.sleep(wait)
            except (SendError, TimeoutError) as error:
                log.warning("a question was not shown: %s", error)
                return ""
        return ""

    # -- answering -------------------------------------------------------------------------------------

    async def press(self, press: Press) -> str | None:
        """A button of a card. Returns the words for that person, None when it is no button of ours."""
        kind, _, rest = press.choice.partition(":")
        id, _, state = rest.partition(":")
        if kind != "ap":
            return None
        language = press.sender.language
        mine = await self._find(id)
        if mine is None or state not in (*_YES_STATES, "denied"):
            return text("approval.gone", language)
        if mine.card.address.chat != press.address.chat or mine.card.address.channel != press.address.channel:
            return text("approval.gone", language)
        return await self._answer(mine, state, press.sender, press.address, "", language)  # type: ignore[arg-type]

    async def answer(
        self, code: str, yes: str, sender: Sender, address: Address, words: str, language: str
    ) -> str | None:
        """`/approve CODE [session|always]` and `/deny CODE words`; None when nothing waits under it."""
        known = [
            one for one in (await self._stored()).values() if one.card.address.channel == address.channel
        ]
        here = [one for one in known if one.card.address.chat == address.chat]
        # Codes are short, and two processes may give the same: the one of this chat is meant.
        found = [one for one in (*here, *known) if one.card.code == code.upper()]
        if not found and not code:
            found = [one for one in here if one.card.state == "waiting"]
            if len(found) > 1:
                codes = ", ".join(one.card.code for one in found)
                return text("approval.which", language, codes=codes)
        if not found:
            return None
        return await self._answer(found[0], yes, sender, address, words, language)  # type: ignore[arg-type]

    async def _answer(
        self, mine: _Open, state: State, sender: Sender, address: Address, words: str, language: str
    ) -> str:
        verdict = self._access.of(sender, address)
        owner = mine.card.own and sender.id == mine.card.asker
        allowed = verdict.kind == "allowed" and (verdict.admin or (owner and verdict.role != "guest"))
        if not allowed or (state == "always" and not verdict.admin):
            await self._log("refused", mine.card, sender.id)
            return text("approval.not_you" if not allowed else "approval.always_admin", language)
        if mine.card.state != "waiting" or self._clock() >= mine.card.until:
            return text("approval.late", language)
        await self._decide(mine, state, sender.id, words, plain_name(sender.name))
        return text(f"approval.did.{'no' if state == 'denied' else 'yes'}", language, tool=mine.card.tool)

    async def _decide(self, mine: _Open, state: State, by: str, words: str, name: str = "") -> None:
        # In memory first and without a wait between look and change: the first answer wins.
        mine.card = replace(mine.card, state=state, by=by, by_name=name, words=words[:500])
        card, subject = mine.card, _key(mine.card)
        if state == "session":
            await self._store.put_setting(_here(card.session), subject, True)
        if state == "always":
            yes = {"by": by, "at": self._clock()}
            await self._store.put_setting(_ALWAYS, _always_key(card.address, subject), yes)
        await self._keep(card)
        await self._log(state, card, by)
        mine.decided.set()
        self.announce(card.id)

    def holds(self, id: str) -> bool:
        """Whether a run of this process waits for, or has shown, this card."""
        return id in self._open

    async def heard(self, id: str) -> None:
        """Another process says that this card is decided."""
        mine = self._open.get(id)
        if mine is None or mine.card.state != "waiting":
            return
        card = _read(await self._store.get_setting(_SCOPE, id))
        if card is not None and card.state != "waiting" and mine.card.state == "waiting":
            mine.card = card
            mine.decided.set()

    async def stopped(self, session: str) -> None:
        """The session's run was stopped: what waits in it is a no."""
        over = self._over.get(session, ())
        here = [one for one in (await self._stored()).values() if one.card.session == session]
        for mine in [one for one in here if one.card.id not in over]:
            self._open.setdefault(mine.card.id, mine)
            if mine.card.state == "waiting":
                await self._decide(mine, "denied", "", "")
            channel = self._channels.get(mine.card.address.channel)
            if channel is not None:
                await self._end(channel, _ref(mine.card), mine.card)

    async def done(self, session: str) -> None:
        """The session's run is over, and does not come back to what was decided for it."""
        left = [
            id
            for id, one in self._open.items()
            if one.card.session == session and one.card.state != "waiting"
        ]
        for id in (*self._over.pop(session, ()), *left):
            self._open.pop(id, None)
            await self._store.put_setting(_SCOPE, id, None)

    async def forget(self, session: str) -> None:
        """A new conversation: what was allowed for the old one is so no more."""
        for subject in await self._store.settings(_here(session)):
            await self._store.put_setting(_here(session), subject, None)

    async def open(self) -> Sequence[Card]:
        """The confirmations of all sessions that wait, the one that ends first first."""
        cards = [one.card for one in (await self._stored()).values() if one.card.state == "waiting"]
        return sorted(cards, key=lambda card: card.until)

    async def decide(self, id: str, yes: bool, by: str) -> Card | None:
        """Answer one for the person at this machine, who may decide everything; the first answer wins. None:
        it does not wait (any more). The run that waits goes on and shows the outcome in the chat."""
        mine = await self._find(id)
        if mine is None or mine.card.state != "waiting" or self._clock() >= mine.card.until:
            return None
        await self._decide(mine, "once" if yes else "denied", by, "")
        return mine.card

    def waiting(self, session: str) -> Sequence[Card]:
        here = [one.card for one in self._open.values() if one.card.session == session]
        return [card for card in here if card.state == "waiting"]

    async def _end(self, channel: Channel, ref: ReplyRef, card: Card) -> None:
        """Show the outcome in the card's place. What was decided stays in the store until the run is over: a
        call that a crash kept from beginning does not ask again."""
        if self._open.pop(card.id, None) is None:
            return
        self._over.setdefault(card.session, set()).add(card.id)
        key = {"denied": "approval.was.no", "timeout": "approval.was.late"}.get(
            card.state, "approval.was.yes"
        )
        outcome = text(key, ref.language, tool=card.tool, by=card.by_name or card.by)
        if card.message_id in ("", "-"):
            return
        try:
            async with asyncio.timeout(_POST_DEADLINE):
                await channel.settle(replace(ref, id=f"a{card.id}"), card.message_id, outcome)
        except (SendError, TimeoutError) as error:
            log.info("the outcome of a question was not shown: %s", error)

    # -- keeping ---------------------------------------------------------------------------------------

    def _code(self) -> str:
        """A short code that no other open approval has, and as far as can be none of late had: a late answer
        must not hit another question."""
        taken = {one.card.code for one in self._open.values()}
        for tried in range(len(_CODES) * 10):
            self._last_code += 1
            code = _CODES[self._last_code % len(_CODES)] + ("" if tried < len(_CODES) else str(tried))
            if code not in taken:
                return code
        raise RuntimeError("there are more open approvals than codes")

    async def _keep(self, card: Card) -> None:
        await self._store.put_setting(_SCOPE, card.id, asdict(card))

    async def _log(self, what: str, card: Card, by: str) -> None:
        """The audit log: who said what about which call, with its arguments masked."""
        log.info("approval %s: %s by %s (session %s)", card.code, what, by or "-", card.session)
        entry = {
            "at": self._clock(),
            "what": what,
            "tool": card.tool,
            "arguments": self._mask(card.arguments)[:_LONGEST_ARGUMENTS],
            "session": card.session,
            "asker": card.asker,
            "by": by,
        }
        seq = await self._audit.append(AUDIT_LOG, f"{card.id}:{what}:{by}", entry)
        if (
            seq % _TRIM_EVERY == 0
            and len(kept := await self._audit.read(AUDIT_LOG, limit=AUDIT_KEPT)) >= AUDIT_KEPT
        ):
            await self._audit.trim(AUDIT_LOG, kept[0].seq - 1)


def plain_name(name: str) -> str:
    """A display name that is safe to show in a message of ours: one line, no markup."""
    return "".join(c for c in name if c.isprintable() and c not in "*_`[]<>~|\\").strip()[:60]


def canonical(arguments: Mapping[str, Any]) -> str:
    """Arguments as one text: equal exactly when the arguments are."""
    return json.dumps(arguments, ensure_ascii=False, sort_keys=True, separators=(", ", ": "))


def _visible(arguments: str) -> str:
    """Arguments as a card shows them: nothing in them hides or turns round what stands beside it, and what is
    left out of the middle is said."""
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in arguments)
    if len(plain) <= _LONGEST_ARGUMENTS:
        return plain
    half = _LONGEST_ARGUMENTS // 2
    return f"{plain[:half]}\n[… {len(plain) - 2 * half} …]\n{plain[-half:]}"


def subject_of(tool: str, source: str, arguments: str) -> str:
    """What a yes for the session or for always covers: an MCP tool as a whole, but of a built-in one (a
    shell can do anything) only the very same call."""
    if source != "builtin":
        return tool
    return f"{tool}:{hashlib.sha256(arguments.encode()).hexdigest()[:32]}"


def _here(session: str) -> str:
    """The scope of settings that holds what is allowed in a session."""
    return f"{_FOR_SESSION}\0{session}"


def _always_key(address: Address, subject: str) -> str:
    """What "always" covers: the subject in this chat, and nowhere else, since other people talk there."""
    return "\0".join((address.channel, address.chat, subject))


def _key(card: Card) -> str:
    return subject_of(card.tool, card.source, card.arguments)


def _may_self(approval: Approval) -> bool:
    """In a direct chat people decide about their own calls; in a group an admin does."""
    return approval.caller.chat_kind == "direct" and not approval.caller.guest


def _ref(card: Card) -> ReplyRef:
    return ReplyRef(**{**card.ref, "address": card.address})


def _read(stored: object) -> Card | None:
    try:
        return Card(**stored) if isinstance(stored, dict) else None
    except TypeError:
        log.warning("a stored approval cannot be read; it is dropped")
        return None
