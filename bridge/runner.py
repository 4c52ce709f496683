"""One session's worker: takes the oldest waiting messages, lets the agent answer, delivers the answer, and
only then takes the next. One that has nothing to do for a while leaves memory; a message brings it back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent.agent import Agent
from agent.desk import Ask
from agent.events import Emit, Event, Outcome, ToolFinished, Usage, Used
from agent.prompt import NO_REPLY
from agent.skills.invocation import Refused, invocation
from agent.tools.base import Answer, Caller, Question
from agent.turn import Approval, Approve, Approved, Part, Turn
from bridge.batch import first_batch, run_of
from bridge.commands import parse
from bridge.delivery import LiveReply, body_from_json
from bridge.log import current_message, message_id
from bridge.notes import BusyMode
from bridge.offers import attach, prepare
from bridge.store.base import SessionLost, StoreError, Waiting
from bridge.texts import language_of, text
from bridge.turns import build_part, compose, seed
from channels.base import ContextMessage, Inbound, Outbound, ReplyRef, SendError

if TYPE_CHECKING:
    from bridge.sessions import Office, Sessions, Stopped

log = logging.getLogger("causeway.sessions")

_MOST_FAULTS = 4
#: Waiting messages that are looked at for one run.
_LOOK = 200
_EARLIER = 30
_HEARD, _HEARD_END = "[Overheard since then, not said to you]", "[End of what was overheard]"
_EARLIER_DEADLINE = 10.0
#: A quiet time is waited for at most so many times its length.
_LONGEST_SETTLE = 10


class Runner:
    """One session's worker."""

    def __init__(self, office: Office, sessions: Sessions, session: str, recovering: bool) -> None:
        self.office = office
        self.sessions = sessions
        self.session = session
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.working = False
        self._recovering = recovering
        self._agent: Agent | None = None
        self._run: asyncio.Task[Outcome] | None = None
        self._batch: list[Waiting] = []
        self._heard = 0
        self._used: tuple[Mapping[str, Usage], Mapping[str, int]] = ({}, {})
        self._idle = asyncio.Event()
        self._idle.set()
        self._fresh = False
        self._stopped = False
        self._faults = 0

    def start(self) -> None:
        self.task = asyncio.create_task(self._main(), name=f"session {self.session}")
        self.task.add_done_callback(lambda _: self.sessions.forget(self))

    def arrived(self) -> None:
        """A message came in."""
        self._fresh = True
        self.wake.set()
        if self.working and self._batch and self._mode() == "interrupt":
            self._end_run()

    @property
    def agent(self) -> Agent:
        if self._agent is None:
            self._agent = self.office.new_agent(self.session, self.office.folder(self.session))
        return self._agent

    # -- the loop --------------------------------------------------------------------------------------

    async def _main(self) -> None:
        pause = 1.0
        while not self.sessions.stopping:
            try:
                waiting = await self.office.store.next(self.session, _LOOK)
                if waiting:
                    batch = await self._gather(waiting)
                    if batch:
                        await self._one(batch)
                    pause, self._faults = 1.0, 0
                    continue
            except SessionLost as error:
                log.info("%s; it goes on with what was written", error)
                return
            except StoreError as error:
                # The message is still in the inbox: try again later, keep the session alive.
                log.error("session waits for the store: %s", error)
                # What of it is already shown has to be looked up again.
                self._agent, self._recovering = None, True
                await asyncio.sleep(pause)
                pause = min(pause * 2, 30.0)
                continue
            except Exception:
                # A fault of ours outside the agent. The message stays in the inbox and is tried again a few
                # times; one that always fails must not hold up its session for ever.
                log.exception("session failed on a message")
                self._agent, self._recovering = None, True
                self._faults += 1
                if self._faults >= _MOST_FAULTS:
                    await self._give_up()
                else:
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 30.0)
                continue
            self._recovering = False
            if not await self._something_new():
                return

    async def _gather(self, waiting: Sequence[Waiting]) -> tuple[Waiting, ...]:
        """The messages of the next run. Parts of an album, and in the mode `collect` all messages, are waited
        for until nothing new has come for a moment."""
        head = waiting[0]
        if self._recovering and head.run is None and await self._begun(run_of(head)):
            return (head,)  # what came since is no part of that run: its answer may be complete
        limits, mode = self.sessions.limits, self._mode(waiting[0].inbound)
        quiet = limits.album if waiting[0].inbound.album else 0.0
        if mode == "collect" and not _is_command(waiting[0]):
            quiet = max(quiet, limits.debounce)
        loop = asyncio.get_running_loop()
        until = loop.time() + quiet * _LONGEST_SETTLE
        while quiet > 0 and waiting[0].run is None and loop.time() < until and not self.sessions.stopping:
            self.wake.clear()
            try:
                async with asyncio.timeout(quiet):
                    await self.wake.wait()
            except TimeoutError:
                break
            waiting = await self.office.store.next(self.session, _LOOK)
            if not waiting:
                return ()
        batch = first_batch(waiting, mode, _is_command)
        if len(batch) > 1:
            await self.office.store.take([one.seq for one in batch], run_of(batch[0]))
        return batch

    async def _begun(self, run: str) -> bool:
        """Whether an earlier process has begun to answer."""
        return await self.office.store.reply(run) is not None or await self.agent.began(run)

    def _mode(self, inbound: Inbound | None = None) -> BusyMode:
        inbound = inbound or self._batch[0].inbound
        channel = self.office.channels.get(inbound.address.channel)
        return self.sessions.mode(self.session, channel) if channel is not None else "queue"

    async def _give_up(self) -> None:
        for waiting in await self.office.store.next(self.session):
            log.error("message %s is given up after %d faults", waiting.seq, self._faults)
            await self.office.store.settle_reply(run_of(waiting), "failed", [waiting.seq])
            await self._unanswered(waiting)
        self._faults = 0

    async def _unanswered(self, waiting: Waiting) -> None:
        inbound = waiting.inbound
        person, via = inbound.sender.id, inbound.via
        ref = ReplyRef(f"r{waiting.seq}", inbound.address, inbound.id, person=person, via=via)
        await self.office.delivery.unanswered(ref)

    async def _something_new(self) -> bool:
        try:
            async with asyncio.timeout(self.sessions.limits.idle):
                await self.wake.wait()
        except TimeoutError:
            # Nothing is awaited between this look and `forget`, so no wake can be lost between them.
            if not self.wake.is_set():
                self.sessions.forget(self)
                return False
        self.wake.clear()
        return True

    # -- one run ---------------------------------------------------------------------------------------

    async def _one(self, batch: Sequence[Waiting]) -> None:
        head = batch[0].inbound
        token = current_message.set(message_id(head))
        self._batch = list(batch)
        self.working = True
        self._idle.clear()
        self._stopped = False
        try:
            channel = head.address.channel
            async with self.sessions.slots.hold(
                f"{channel}\0{head.sender.id}", f"{channel}\0{head.address.chat}"
            ):
                await self._answer(head, run_of(batch[0]))
        finally:
            self.working = False
            self._idle.set()
            self._run = None
            self._batch = []
            current_message.reset(token)

    async def _answer(self, inbound: Inbound, run: str) -> None:
        language = inbound.sender.language or language_of("", inbound.text)
        ref = ReplyRef(run, inbound.address, inbound.id, language, inbound.sender.id, via=inbound.via)
        stored = await self.office.store.reply(run) if self._recovering else None
        live = self.office.delivery.open(ref, self.session, stored)
        if stored is not None and stored.state == "complete":
            await self._finish(live, body_from_json(stored.body))
            return
        notice, words = await self._queued_command(inbound, ref, run, language)
        if notice:
            await live.finish(Outbound(notice), self._seqs())
            return
        if words:
            self._batch[0] = replace(self._batch[0], inbound=replace(inbound, text=words))
        try:
            outbound = await self._work(run, live, language)
        except asyncio.CancelledError:
            await live.park()  # also when the bridge stops between the end of the run and its delivery
            raise
        if self._recovering or self.office.approvals.waiting(self.session):
            # A call that waited for a yes may have ended without one: its tool was not there any more.
            await self.office.approvals.stopped(self.session)
        await self._finish(live, outbound)
        log.info("answered")
        await self._account()

    async def _account(self) -> None:
        """What a run used and has taken in, written down once its answer is out: nobody waits for that."""
        head = self._batch[0].inbound
        address, (models, tools) = head.address, self._used
        # Only now: a crash before this gives what was overheard once more, which is better than never.
        await self.office.overheard.forget(self.session, self._heard)
        self._heard = 0
        await self.office.ledger.record(
            self.session, address.channel, address.chat, head.sender.id, models, tools
        )

    async def _finish(self, live: LiveReply, outbound: Outbound) -> None:
        await live.finish(outbound, self._seqs())
        for waiting in self._batch[1:]:  # answered with the first: nobody is to wait for more
            await self._unanswered(waiting)
        self.office.delivered()
        await self.office.approvals.done(self.session)

    def _seqs(self) -> list[int]:
        return [waiting.seq for waiting in self._batch]

    async def _queued_command(
        self, inbound: Inbound, ref: ReplyRef, run: str, language: str
    ) -> tuple[str, str]:
        """Run a command that kept its place among the messages. Returns (its whole answer, or else the words
        that the agent is to answer in its stead)."""
        command = parse(inbound.text)
        if command is None or not command.queued:
            return "", ""
        if command.name == "new":
            await self._clear()
            return text("new.done", language), ""
        if command.name == "resource":
            folder = self.office.folder(self.session)
            there = self._there(inbound)
            attached = await attach(self.office.offers, command.argument, folder, language, there)
            if attached.content:
                await self.agent.attach(attached.content)
            return attached.notice, ""
        if await self.agent.began(run):
            return "", ""
        if command.name == "skill":
            return await self._skill(command.argument, language)
        ask = self._ask(ref, inbound)
        there = self._there(inbound)
        prepared = await prepare(self.office.offers, command.argument, ask, language, there)
        return prepared.notice, prepared.words

    def _there(self, inbound: Inbound) -> Callable[[str], bool]:
        """Whether an MCP server is mounted for a message's person."""
        caller = self._caller_of(inbound)
        mounted = self.office.notes.mounted(self.session, self.office.clock())
        return lambda server: self.office.offers.is_mounted(server, caller, mounted)

    async def _clear(self) -> None:
        await self.agent.clear()
        await self.office.approvals.forget(self.session)

    async def _skill(self, argument: str, language: str) -> tuple[str, str]:
        """`/skill NAME words`: the person calls a skill by its name."""
        name, _, words = argument.partition(" ")
        skills = self.office.skills.current
        found = skills.get(name)
        hidden = found is not None and not found.model_invocable
        body = await asyncio.to_thread(found.read_body) if found is not None and hidden else None
        invoked = invocation(skills, name, words, body)
        if isinstance(invoked, Refused):
            near = "_near" if invoked.key == "skill.unknown" and invoked.detail else ""
            return text(f"{invoked.key}{near}", language, name=invoked.name, detail=invoked.detail), ""
        self.office.counts.used(invoked.skill.name)
        return "", invoked.text

    def _ask(self, ref: ReplyRef, inbound: Inbound) -> Ask:
        async def ask(question: Question) -> Answer:
            return await self.office.questions.ask(self.session, ref, inbound.sender.id, question)

        return ask

    def _approve(self, ref: ReplyRef) -> Approve:
        async def approve(approval: Approval) -> Approved:
            return await self.office.approvals.ask(self.session, ref, approval)

        return approve

    async def _work(self, run: str, live: LiveReply, language: str) -> Outbound:
        """Run the agent to an end: an answer, a fault, or a stop. Cancelling it parks the run."""
        folder = self.office.folder(self.session)
        used: Counter[str] = Counter()
        models: dict[str, Usage] = {}

        def emit(event: Event) -> None:
            if isinstance(event, Used):
                models[event.model] = models.get(event.model, Usage()) + event.usage
            elif isinstance(event, ToolFinished):
                used[event.name] += 1
            live.emit(event)

        live.start()
        self._run = asyncio.create_task(self._agent_run(run, live, folder, emit), name=f"run {run}")
        if self._stopped:
            self._run.cancel()  # the stop came before the run had begun
        try:
            outcome = await self._run
        except asyncio.CancelledError:
            if not self._run.done():
                self._run.cancel()
                await asyncio.wait({self._run})
            if not self._stopped:
                await live.park()
                raise
            await self.office.approvals.stopped(self.session)
            outcome = await self.agent.settle(run, "stopped")
        except StoreError:
            await live.park(patient=True)
            raise
        except Exception:
            # A fault of ours: the person gets a sentence, the log the traceback, and the session goes on.
            log.exception("run failed")
            outcome = await self.agent.settle(run, "internal")
        self._used = models, used
        if live.ref.address.kind != "direct" and outcome.text.strip() == NO_REPLY and not outcome.files:
            return Outbound("")
        if outcome.files or "![" in outcome.text:
            return await asyncio.to_thread(compose, outcome, folder, language)
        return compose(outcome, folder, language)  # touches no file

    async def _agent_run(self, run: str, live: LiveReply, folder: Path, emit: Emit) -> Outcome:
        head = self._batch[0].inbound
        taken = await self.agent.messages(run)
        if not taken and await self.agent.began(run):
            taken = frozenset({self._batch[0].seq})
        caller = self._caller(self._batch, taken)
        if taken:
            turn = Turn(run, caller, "", messages=tuple(taken))
        else:
            turn = await self._new_turn(run, head, folder, caller)
            taken = frozenset(turn.messages)
        given = set(taken)
        turn = replace(
            turn,
            ask=self._ask(live.ref, head),
            approve=self._approve(live.ref),
            more=lambda: self._more(run, given, folder),
        )
        return await self.agent.run(turn, emit)

    async def _new_turn(self, run: str, head: Inbound, folder: Path, caller: Caller) -> Turn:
        """A run's beginning: what people said, what stood before it, and what was overheard."""
        channel = self.office.channels[head.address.channel]
        await self._reset_if_due(head)
        part = await build_part(self._batch, channel, folder, caller, self.office.intake)
        words, mark = part.text, 0
        if head.address.kind != "direct":
            rule = self.office.access.group_rule(head.address)
            heard, mark = await self.office.overheard.heard(self.session, rule.overhear)
            if heard:
                words = f"{_HEARD}\n{heard}\n{_HEARD_END}\n\n{words}"
        context = head.context
        if not context and head.address.thread is not None and not await self.agent.entries():
            context = await self._earlier(head)
        earlier = seed(context, shared=head.address.kind != "direct")
        self._heard = mark
        return Turn(run, caller, words, part.images, earlier, messages=part.messages)

    async def _earlier(self, head: Inbound) -> tuple[ContextMessage, ...]:
        channel = self.office.channels[head.address.channel]
        try:
            async with asyncio.timeout(_EARLIER_DEADLINE):
                return await channel.earlier(head, _EARLIER)
        except (SendError, TimeoutError) as error:
            log.info("what stood before in the thread could not be read: %s", error)
            return ()

    async def _reset_if_due(self, head: Inbound) -> None:
        """Begin the conversation anew where the rule for that says so."""
        limits = self.sessions.limits
        if limits.reset == "never":
            return
        now = self.office.clock()
        kept = await self.office.store.get_setting("active", self.session)
        last = float(kept) if isinstance(kept, int | float) else now
        await self.office.store.put_setting("active", self.session, now)
        if limits.reset == "idle":
            due = now - last > limits.reset_idle
        else:
            # A clock that was set back begins no new day.
            due = now > last and _day_of(last, limits.reset_hour) != _day_of(now, limits.reset_hour)
        if due:
            log.info("the conversation begins anew (%s)", limits.reset)
            await self._clear()

    def _caller(self, batch: Sequence[Waiting], taken: frozenset[int]) -> Caller:
        """The people whose messages the run answers: whoever they are, a call must be allowed to each."""
        callers = [self._caller_of(one.inbound) for one in batch if not taken or one.seq in taken]
        callers = callers or [self._caller_of(batch[0].inbound)]
        first = callers[0]
        for other in callers[1:]:
            first = first.joined(other)
        return first

    def _caller_of(self, inbound: Inbound) -> Caller:
        verdict = self.office.access.decide(inbound)
        address, sender = inbound.address, inbound.sender
        return Caller(
            sender.id,
            sender.name,
            verdict.admin,
            address.channel,
            address.kind,
            sender.language,
            self.office.notes.home(address),
            verdict.role == "guest",
        )

    async def _more(self, run: str, given: set[int], folder: Path) -> list[Part]:
        """Messages for the run under way: those that an earlier process had taken into it, and in the mode
        `steer` what has come since."""
        if self._fresh and self._mode() == "steer":
            self._fresh = False
            known = {one.seq for one in self._batch}
            fresh: list[Waiting] = []
            for one in await self.office.store.next(self.session, _LOOK):
                if one.seq in known:
                    continue
                if one.run not in (None, run) or _is_command(one):
                    break
                if one.inbound.address != self._batch[0].inbound.address:
                    break  # it is answered where it was written
                fresh.append(one)
            if fresh:
                await self.office.store.take([one.seq for one in (self._batch[0], *fresh)], run)
                self._batch.extend(fresh)
        pending = [one for one in self._batch if one.seq not in given]
        if not pending:
            return []
        channel = self.office.channels[pending[0].inbound.address.channel]
        caller = self._caller(pending, frozenset())
        part = await build_part(pending, channel, folder, caller, self.office.intake)
        given.update(part.messages)
        return [part]

    # -- ends ------------------------------------------------------------------------------------------

    async def interrupt(self, person: str, *, everything: bool, admin: bool) -> Stopped:
        """See `Sessions.stop_run`."""
        from bridge.sessions import Stopped

        waiting = await self.office.store.next(self.session, limit=1000)
        working = {one.seq for one in self._batch} if self.working else set()
        behind = [one for one in waiting if one.seq not in working]
        mine = behind if everything else [one for one in behind if one.inbound.sender.id == person]
        askers = {one.inbound.sender.id for one in self._batch}
        running = self.working and not (self._run is not None and self._run.done())
        refused = running and not (everything or admin or person in askers)
        await self.office.store.drop([one.seq for one in mine])
        for one in mine:
            await self._unanswered(one)
        if not running or refused:
            return Stopped(False, len(mine), refused)
        self._end_run()
        return Stopped(True, len(mine))

    async def quiet(self, deadline: float = 30.0) -> None:
        """Wait until no run is under way; at most so many seconds."""
        try:
            async with asyncio.timeout(deadline):
                await self._idle.wait()
        except TimeoutError:
            log.warning("session %s is still at work after %.0f s", self.session, deadline)

    def _end_run(self) -> None:
        self._stopped = True
        if self._run is not None:
            self._run.cancel()


def _is_command(waiting: Waiting) -> bool:
    command = parse(waiting.inbound.text)
    return command is not None and command.queued


def _day_of(at: float, hour: int) -> tuple[int, int]:
    """The day that a moment belongs to when days begin at `hour`, local time."""
    local = time.localtime(at - hour * 3600)
    return local.tm_year, local.tm_yday
