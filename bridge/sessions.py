"""Sessions: one runner each, strictly in order, independent of all others.

A runner takes the oldest waiting message, lets the agent answer it, delivers the answer, and only then takes
the next. A runner that has nothing to do for a while leaves memory; its next message brings it back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agent.agent import Agent
from agent.desk import Ask
from agent.events import Outcome
from agent.skills.counts import SkillCounts
from agent.skills.invocation import Refused, invocation
from agent.skills.manager import SkillManager
from agent.tools.base import Answer, Caller, Question
from agent.turn import Turn
from bridge.access import Access
from bridge.commands import parse
from bridge.delivery import Delivery, LiveReply, body_from_json
from bridge.log import current_message, message_id
from bridge.offers import Source, attach, prepare
from bridge.questions import Questions
from bridge.store.base import Store, StoreError, Waiting
from bridge.texts import language_of, text
from bridge.turns import build_turn, compose
from channels.base import Channel, Inbound, Outbound, ReplyRef

log = logging.getLogger("causeway.sessions")

_MOST_FAULTS = 4


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """`idle`: seconds until an idle runner leaves memory. `running`: most runs at once in this process."""

    idle: float = 60.0
    running: int = 1000


class Sessions:
    """Owns all runners."""

    def __init__(
        self,
        store: Store,
        delivery: Delivery,
        channels: Mapping[str, Channel],
        access: Access,
        new_agent: Callable[[str, Path], Agent],
        folder: Callable[[str], Path],
        delivered: Callable[[], None],
        offers: Source,
        questions: Questions,
        skills: SkillManager,
        counts: SkillCounts,
        limits: SessionLimits,
    ) -> None:
        self.store = store
        self.delivery = delivery
        self.channels = channels
        self.access = access
        self.new_agent = new_agent
        self.folder = folder
        self.delivered = delivered
        self.offers = offers
        self.questions = questions
        self.skills = skills
        self.counts = counts
        self.limits = limits
        self.slots = asyncio.Semaphore(limits.running)
        self.stopping = False
        self._runners: dict[str, Runner] = {}

    def wake(self, session: str, *, recovering: bool = False) -> None:
        """There is something in the session's inbox."""
        if self.stopping:
            return  # it is in the inbox; the next start takes it
        runner = self._runners.get(session)
        if runner is None:
            runner = self._runners[session] = Runner(self, session, recovering)
            runner.start()
        runner.wake.set()

    async def stop_run(self, session: str) -> tuple[bool, int]:
        """`/stop`: end the session's run and drop what waits behind it. Returns (a run was ended, how many
        messages were dropped)."""
        runner = self._runners.get(session)
        return await runner.interrupt() if runner is not None else (False, 0)

    def busy(self, session: str) -> bool:
        runner = self._runners.get(session)
        return runner is not None and runner.working

    @property
    def count(self) -> int:
        """How many runners are in memory."""
        return len(self._runners)

    def forget(self, runner: Runner) -> None:
        if self._runners.get(runner.session) is runner:
            del self._runners[runner.session]

    async def recover(self) -> int:
        """Wake every session that an earlier process left with waiting messages. Returns how many."""
        sessions = await self.store.waiting_sessions(list(self.channels))
        for session in sessions:
            self.wake(session, recovering=True)
        return len(sessions)

    async def stop(self, grace: float) -> None:
        """Let runs under way end within `grace` seconds, then park them: the next start goes on with them."""
        self.stopping = True
        for runner in self._runners.values():
            runner.wake.set()
        tasks = {runner.task for runner in self._runners.values() if runner.task is not None}
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=grace)
        for task in late:
            task.cancel()
        if late:
            log.info("%d runs are parked; the next start goes on with them", len(late))
            await asyncio.wait(late)


class Runner:
    """One session's worker."""

    def __init__(self, sessions: Sessions, session: str, recovering: bool) -> None:
        self.sessions = sessions
        self.session = session
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.working = False
        self._recovering = recovering
        self._agent: Agent | None = None
        self._run: asyncio.Task[Outcome] | None = None
        self._stopped = False
        self._faults = 0

    def start(self) -> None:
        self.task = asyncio.create_task(self._main(), name=f"session {self.session}")
        self.task.add_done_callback(lambda _: self.sessions.forget(self))

    @property
    def agent(self) -> Agent:
        if self._agent is None:
            self._agent = self.sessions.new_agent(self.session, self.sessions.folder(self.session))
        return self._agent

    async def _main(self) -> None:
        pause = 1.0
        while not self.sessions.stopping:
            try:
                waiting = await self.sessions.store.next(self.session)
                if waiting:
                    await self._one(waiting[0])
                    pause, self._faults = 1.0, 0
                    continue
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

    async def _give_up(self) -> None:
        for waiting in await self.sessions.store.next(self.session):
            log.error("message %s is given up after %d faults", waiting.seq, self._faults)
            run = waiting.run or f"r{waiting.seq}"
            await self.sessions.store.settle_reply(run, "failed", [waiting.seq])
            await self._unanswered(waiting)
        self._faults = 0

    async def _unanswered(self, waiting: Waiting) -> None:
        inbound = waiting.inbound
        ref = ReplyRef(waiting.run or f"r{waiting.seq}", inbound.address, inbound.id)
        await self.sessions.delivery.unanswered(ref)

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

    async def _one(self, waiting: Waiting) -> None:
        inbound = waiting.inbound
        run = waiting.run or f"r{waiting.seq}"
        token = current_message.set(message_id(inbound))
        self.working = True
        self._stopped = False
        try:
            async with self.sessions.slots:
                await self._answer(waiting, inbound, run)
        finally:
            self.working = False
            self._run = None
            current_message.reset(token)

    async def _answer(self, waiting: Waiting, inbound: Inbound, run: str) -> None:
        language = inbound.sender.language or language_of("", inbound.text)
        ref = ReplyRef(run, inbound.address, inbound.id, language)
        stored = await self.sessions.store.reply(run) if self._recovering else None
        live = self.sessions.delivery.open(ref, self.session, stored)
        if stored is not None and stored.state == "complete":
            await live.finish(body_from_json(stored.body), [waiting.seq])
            self.sessions.delivered()
            return
        notice, words = await self._queued_command(inbound, ref, run, language)
        if notice:
            await live.finish(Outbound(notice), [waiting.seq])
            return
        if words:
            inbound = replace(inbound, text=words)
        outbound = await self._work(run, inbound, live, language)
        await live.finish(outbound, [waiting.seq])
        log.info("answered")
        self.sessions.delivered()

    async def _queued_command(
        self, inbound: Inbound, ref: ReplyRef, run: str, language: str
    ) -> tuple[str, str]:
        """Run a command that kept its place among the messages. Returns (its whole answer, or else the words
        that the agent is to answer in its stead)."""
        command = parse(inbound.text)
        if command is None or not command.queued:
            return "", ""
        if command.name == "new":
            await self.agent.clear()
            return text("new.done", language), ""
        if command.name == "resource":
            folder = self.sessions.folder(self.session)
            attached = await attach(self.sessions.offers, command.argument, folder, language)
            if attached.content:
                await self.agent.attach(attached.content)
            return attached.notice, ""
        if await self.agent.began(run):
            return "", ""
        if command.name == "skill":
            return await self._skill(command.argument, language)
        ask = self._ask(ref, inbound)
        prepared = await prepare(self.sessions.offers, command.argument, ask, language)
        return prepared.notice, prepared.words

    async def _skill(self, argument: str, language: str) -> tuple[str, str]:
        """`/skill NAME words`: the person calls a skill by its name."""
        name, _, words = argument.partition(" ")
        skills = self.sessions.skills.current
        found = skills.get(name)
        hidden = found is not None and not found.model_invocable
        body = await asyncio.to_thread(found.read_body) if found is not None and hidden else None
        invoked = invocation(skills, name, words, body)
        if isinstance(invoked, Refused):
            near = "_near" if invoked.key == "skill.unknown" and invoked.detail else ""
            return text(f"{invoked.key}{near}", language, name=invoked.name, detail=invoked.detail), ""
        self.sessions.counts.used(invoked.skill.name)
        return "", invoked.text

    def _ask(self, ref: ReplyRef, inbound: Inbound) -> Ask:
        async def ask(question: Question) -> Answer:
            return await self.sessions.questions.ask(self.session, ref, inbound.sender.id, question)

        return ask

    async def _work(self, run: str, inbound: Inbound, live: LiveReply, language: str) -> Outbound:
        """Run the agent to an end: an answer, a fault, or a stop. Cancelling it parks the run."""
        folder = self.sessions.folder(self.session)
        live.start()
        self._run = asyncio.create_task(self._agent_run(run, inbound, live, folder), name=f"run {run}")
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
            outcome = await self.agent.settle(run, "stopped")
        except StoreError:
            await live.park()
            raise
        except Exception:
            # A fault of ours: the person gets a sentence, the log the traceback, and the session goes on.
            log.exception("run failed")
            outcome = await self.agent.settle(run, "internal")
        if outcome.files or "![" in outcome.text:
            return await asyncio.to_thread(compose, outcome, folder, language)
        return compose(outcome, folder, language)  # touches no file

    async def _agent_run(self, run: str, inbound: Inbound, live: LiveReply, folder: Path) -> Outcome:
        verdict = self.sessions.access.decide(inbound)
        address, sender = inbound.address, inbound.sender
        caller = Caller(sender.id, sender.name, verdict.admin, address.channel, address.kind, sender.language)
        if await self.agent.began(run):
            turn = Turn(run, caller, "")
        else:
            channel = self.sessions.channels[address.channel]
            turn = await build_turn(run, inbound, channel, folder, caller)
        turn = replace(turn, ask=self._ask(live.ref, inbound))
        return await self.agent.run(turn, live.emit)

    async def interrupt(self) -> tuple[bool, int]:
        waiting = await self.sessions.store.next(self.session, limit=1000)
        behind = waiting[1:] if self.working else waiting
        await self.sessions.store.drop([w.seq for w in behind])
        for waiting_one in behind:
            await self._unanswered(waiting_one)
        if not self.working or (self._run is not None and self._run.done()):
            return False, len(behind)
        self._stopped = True
        if self._run is not None:
            self._run.cancel()
        return True, len(behind)
