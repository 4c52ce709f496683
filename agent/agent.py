"""The loop of one session: ask the model, run the tools it calls, give the results back, until it is done.

A step is stored when the model's answer is whole, and each tool result as it arrives. `run` therefore both
begins a run and goes on with one that a crash left: it looks at what the run already wrote and does the rest.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from agent.calls import Calls
from agent.conversation import Conversation
from agent.events import Emit, Outcome, TextDelta, TextReset, Used
from agent.history import (
    Assistant,
    Ended,
    Entry,
    HistoryStore,
    ToolOutput,
    User,
    of_run,
    open_calls,
    reply_files,
    reply_text,
    shortened,
    told,
    window,
)
from agent.models.base import Completed, ContextTooLong, Model, ModelError, Request, Text
from agent.prompt import LAST_STEP, SystemPrompt
from agent.skills.counts import SkillCounts
from agent.skills.manager import SkillManager
from agent.tools.base import Tool
from agent.tools.builtin.skills import NAME as FIND_SKILLS
from agent.tools.catalog import Catalog
from agent.tools.manager import ToolManager
from agent.tools.retrieval import Injected, Retrieval
from agent.turn import AgentSettings, Turn

log = logging.getLogger("causeway.agent")

_STOPPED = "The call was interrupted: the person stopped this turn. Its outcome is unknown."


class _Failed(Exception):
    """The run cannot go on; `outcome` says why."""

    def __init__(self, failure: str, detail: str) -> None:
        super().__init__(detail)
        self.failure = failure
        self.detail = detail


class Agent:
    """One session's agent. Not for use by two tasks at once, save `settle` after its `run` was cancelled."""

    def __init__(
        self,
        session: str,
        folder: Path,
        *,
        model: Model,
        tools: ToolManager,
        skills: SkillManager,
        prompt: SystemPrompt,
        counts: SkillCounts,
        history: HistoryStore,
        settings: AgentSettings,
        retrieval: Retrieval | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.session = session
        self.folder = folder
        self._model = model
        self._tools = tools
        self._settings = settings
        self._prompt = prompt
        self._counts = counts
        self._sleep = sleep
        self._jitter = jitter
        self._retrieval = retrieval
        self._injected = Injected()
        self._partial = ""
        self._conversation = Conversation(session, history, settings.history_entries)
        self._calls = Calls(self._conversation, folder, model, tools, skills, counts, settings)

    # -- the run -------------------------------------------------------------------------------------

    async def run(self, turn: Turn, emit: Emit) -> Outcome:
        """Answer a turn, or go on with it. Raises nothing but CancelledError and the store's errors."""
        entries = await self._conversation.entries()
        own = of_run(entries, turn.run)
        if not own:
            seed = turn.seed if not entries else ()
            own_words = User(turn.run, turn.text, turn.images, turn.messages)
            await self._conversation.add(*seed, own_words)
            tools = self._tools.offered(self._tools.catalog, turn.caller, self.session)
            self._counts.offered(self._prompt.made({tool.name for tool in tools}).offered)
        elif isinstance(own[-1], Ended):
            return await self._outcome(turn.run, own[-1].failure)
        elif said := reply_text(own):
            emit(TextDelta(said))
        try:
            return await self._steps(turn, emit)
        except _Failed as fault:
            await self._conversation.add(Ended(turn.run, fault.failure))
            log.warning("run ended: %s: %s", fault.failure, fault.detail)
            outcome = await self._outcome(turn.run, fault.failure)
            return replace(outcome, detail=fault.detail)

    async def _steps(self, turn: Turn, emit: Emit) -> Outcome:
        catalog = self._tools.catalog
        cut_off = 0
        seen: dict[str, int] = {}
        while True:
            own = await self._conversation.of_run(turn.run)
            await self._calls.run(turn, open_calls(own), catalog, emit)
            own = await self._conversation.of_run(turn.run)
            answers = [e for e in own if isinstance(e, Assistant)]
            if answers and not answers[-1].calls:
                return await self._outcome(turn.run)
            if answers:
                faults = [bool(call.fault) for call in answers[-1].calls]
                cut_off = cut_off + 1 if all(faults) else 0
                if cut_off >= 3:
                    raise _Failed("cut_off", "three answers in a row ended inside a tool call's arguments")
                self._guard_loop(answers[-1], own, seen)
            turn = await self._joined(turn)
            used = [call.name for answer in answers for call in answer.calls]
            if self._retrieval is not None and self._retrieval.settings.enabled:
                # What was given may not shrink; without retrieval a list is as the servers are now.
                used += self._injected.names if self._injected.run == turn.run else ()
            catalog = self._tools.catalog.keeping(catalog, used)
            last = len(answers) >= self._settings.max_steps
            answer = await self._ask(turn, catalog, emit, last=last)
            if last and answer.calls:
                if not answer.text.strip():
                    raise _Failed("steps", f"no answer within {self._settings.max_steps} steps")
                answer = replace(answer, calls=(), opaque={})
            self._partial = ""  # an answer whose writing is begun is kept, also when a stop comes meanwhile
            await self._conversation.add(Assistant(turn.run, answer.text, answer.calls, answer.opaque))
            if answer.stop == "length" and not answer.calls:
                raise _Failed("cut_off", "the model's output limit ended the answer")
            if answer.stop == "refused" and not answer.calls and not answer.text.strip():
                raise _Failed("refused", "the model refused without a word")

    async def _joined(self, turn: Turn) -> Turn:
        """Take in what people wrote meanwhile. Each of them counts from here on in what the run may do."""
        for part in await turn.more():
            await self._conversation.add(User(turn.run, part.text, part.images, part.messages))
            turn = replace(turn, caller=turn.caller.joined(part.caller))
        return turn

    def _guard_loop(self, answer: Assistant, own: Sequence[Entry], seen: dict[str, int]) -> None:
        """End a run that makes the same call with the same result again and again."""
        outputs = {e.call: e.text for e in own if isinstance(e, ToolOutput)}
        for call in answer.calls:
            key = json.dumps([call.name, call.arguments, outputs.get(call.id)], sort_keys=True)
            seen[key] = seen.get(key, 0) + 1
            if seen[key] >= self._settings.loop_limit:
                raise _Failed("loop", f"{call.name} was called {seen[key]} times with the same result")

    # -- the model -----------------------------------------------------------------------------------

    async def _ask(self, turn: Turn, catalog: Catalog, emit: Emit, *, last: bool) -> Completed:
        """One answer, with bounded retries. Raises _Failed when the model cannot be had."""
        entries = await self._conversation.entries()
        said = len(reply_text(of_run(entries, turn.run)))
        offered = self._tools.offered(catalog, turn.caller, self.session)
        in_group = turn.caller.chat_kind != "direct"
        prompt = self._prompt.made({tool.name for tool in offered}, in_group=in_group)
        if not prompt.left_out:
            offered = tuple(tool for tool in offered if tool.name != FIND_SKILLS)
        longest, before = self._settings.history_entries, self._conversation.before
        view, level = window(entries, turn.run, longest, before), 0
        if self._retrieval is not None:
            chosen = await self._retrieval.choose(catalog, offered, view, turn.run, self._injected)
            offered = chosen.tools
        spent, attempt, empty = 0.0, 0, 0
        now = asyncio.get_running_loop().time
        while True:
            asked = now()
            try:
                answer = await self._stream(self._request(view, prompt.text, offered, last), emit, said)
            except ContextTooLong as fault:
                smaller = _smaller(view, turn.run, level)
                if smaller is None:
                    raise _Failed("context", fault.detail) from fault
                view, level = smaller
            except ModelError as fault:
                attempt += 1
                wait = fault.retry_after if fault.retry_after is not None else self._backoff(attempt)
                spent += now() - asked
                # One more try is due unless the server forbids it: where there are fallbacks it is theirs.
                budget = self._settings.retry_budget
                out_of_time = (fault.retry_after or 0.0) > budget or (attempt > 1 and spent + wait > budget)
                if not fault.retryable or attempt >= self._settings.max_attempts or out_of_time:
                    raise _Failed(fault.kind, fault.detail) from fault
                log.info("model: %s, attempt %d, waiting %.1f s", fault.kind, attempt, wait)
                await self._sleep(wait)
                spent += wait
            else:
                emit(Used(self._model.name, answer.usage))
                if answer.text.strip() or answer.calls or answer.stop == "refused":
                    return answer
                empty += 1
                if empty >= 3:
                    raise _Failed("empty", "the model answered with nothing, three times")

    def _backoff(self, attempt: int) -> float:
        return float(min(2.0 ** (attempt - 1), 20.0) * (0.5 + self._jitter()))

    def _request(self, view: list[Entry], system: str, offered: Sequence[Tool], last: bool) -> Request:
        return Request(
            system=system,
            # At the end, so that all before it is still what the provider has cached.
            entries=[*told(view), User("", LAST_STEP)] if last else told(view),
            tools=self._tools.specs(offered),
            load_image=lambda image: (self.folder / image.path).read_bytes(),
            key=self.session,
        )

    async def _stream(self, request: Request, emit: Emit, said: int) -> Completed:
        """One try of one answer. When it breaks, what was shown of it is taken back."""
        shown = False
        self._partial = ""
        stream = self._model.stream(request)
        try:
            async for delta in stream:
                if isinstance(delta, Completed):
                    if shown and not delta.text.strip():
                        emit(TextReset(said))
                    return delta
                if isinstance(delta, Text) and (delta.text.strip() or shown):
                    emit(TextDelta(delta.text if shown else self._paragraph(delta.text, said)))
                    shown = True
                    self._partial += delta.text
        except ModelError:
            if shown:
                emit(TextReset(said))
            self._partial = ""
            raise
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
        raise AssertionError("a model's stream ended without Completed")

    @staticmethod
    def _paragraph(text: str, said: int) -> str:
        return f"\n\n{text.lstrip()}" if said else text.lstrip()

    # -- ends and notes --------------------------------------------------------------------------------

    async def settle(self, run: str, failure: str) -> Outcome:
        """Close a run whose task was cancelled: open calls get a result, what was shown is kept."""
        own = await self._conversation.of_run(run)
        closing: list[Entry] = [
            ToolOutput(run, call.id, call.name, _STOPPED, is_error=True) for call in open_calls(own)
        ]
        if self._partial.strip() and not closing:
            closing.append(Assistant(run, self._partial.strip()))
        self._partial = ""
        if not own or not isinstance(own[-1], Ended):
            closing.append(Ended(run, failure))
        await self._conversation.add(*closing)
        return await self._outcome(run, failure)

    async def clear(self) -> None:
        """Forget the session's history (`/new`); its background tasks end."""
        await self._tools.end_session(self.session)
        await self._conversation.clear()

    async def attach(self, text: str) -> None:
        """Put something the person chose (a resource) into the conversation, for the turns to come."""
        entry = User("", text)
        entries = await self._conversation.entries()
        if not entries or entries[-1] != entry:  # a command that a crash repeats attaches nothing twice
            await self._conversation.add(entry)

    async def began(self, run: str) -> bool:
        """Whether an earlier process already took this run up."""
        return bool(await self._conversation.of_run(run))

    async def messages(self, run: str) -> frozenset[int]:
        """The inbox numbers of the messages that the run has taken in."""
        own = await self._conversation.of_run(run)
        return frozenset(number for entry in own if isinstance(entry, User) for number in entry.messages)

    async def entries(self) -> list[Entry]:
        """A copy of the newest part of the history; empty only when there is none."""
        return list(await self._conversation.entries())

    async def _outcome(self, run: str, failure: str = "") -> Outcome:
        own = await self._conversation.of_run(run)
        return Outcome(text=reply_text(own), files=reply_files(own), failure=failure)


def _smaller(view: list[Entry], run: str, level: int) -> tuple[list[Entry], int] | None:
    """The next view that really is smaller, and its level; None when nothing can be cut any more."""
    size = sum(len(repr(entry)) for entry in view)
    for deeper in range(level + 1, 4):
        candidate = shortened(view, run, deeper)
        if sum(len(repr(entry)) for entry in candidate) < size:
            return candidate, deeper
    return None
