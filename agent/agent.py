"""The loop of one session: ask the model, run the tools it calls, give the results back, until it is done.

A step is stored when the model's answer is whole, and each tool result as it arrives. `run` therefore both
begins a run and goes on with one that a crash left: it looks at what the run already wrote and does the rest.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent.desk import Ask, CallDesk, SampleBudget
from agent.events import Emit, Outcome, TextDelta, TextReset, ToolFinished, ToolStarted
from agent.history import (
    Assistant,
    Ended,
    Entry,
    HistoryStore,
    ImageRef,
    ToolBegun,
    ToolCall,
    ToolOutput,
    User,
    of_run,
    open_calls,
    reply_files,
    reply_text,
    shortened,
    window,
)
from agent.models.base import Completed, ContextTooLong, Model, ModelError, Request, Text, ToolSpec
from agent.prompt import LAST_STEP, READ, SystemPrompt
from agent.skills.counts import SkillCounts
from agent.skills.formatter import teaching
from agent.skills.limits import consent, skill_of
from agent.skills.manager import SkillManager
from agent.tools.base import Caller, Tool, ToolContext, ToolResult
from agent.tools.builtin.skills import NAME as FIND_SKILLS
from agent.tools.catalog import Catalog
from agent.tools.manager import ToolManager, UnknownTool

log = logging.getLogger("causeway.agent")

_UNKNOWN_OUTCOME = (
    "The program was restarted while this call was under way, so its outcome is unknown. It was not run "
    "again. Find out what it did before you repeat it."
)
_STOPPED = "The call was interrupted: the person stopped this turn. Its outcome is unknown."


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Bounds of one run. `retry_budget`: seconds of waiting for the model in one step. `loop_limit`: after so
    many equal calls with equal results the run is ended. `samples`: how often MCP servers may ask for text
    from the model in one run (0: never), each for at most `sample_tokens`."""

    max_steps: int = 25
    history_entries: int = 200
    max_attempts: int = 4
    retry_budget: float = 60.0
    parallel_calls: int = 8
    loop_limit: int = 5
    samples: int = 0
    sample_tokens: int = 1000


@dataclass(frozen=True, slots=True)
class Turn:
    """What one run answers. `seed` is earlier talk for a session without history; `ask` puts a question to
    the person (None: nobody is there)."""

    run: str
    caller: Caller
    text: str
    images: tuple[ImageRef, ...] = ()
    seed: tuple[Entry, ...] = ()
    ask: Ask | None = None


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
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.session = session
        self.folder = folder
        self._model = model
        self._tools = tools
        self._skills = skills
        self._history = history
        self._settings = settings
        self._prompt = prompt
        self._counts = counts
        self._sleep = sleep
        self._jitter = jitter
        self._entries: list[Entry] | None = None
        self._partial = ""
        self._has_folder = False
        self._samples: tuple[str, SampleBudget] | None = None

    # -- the run -------------------------------------------------------------------------------------

    async def run(self, turn: Turn, emit: Emit) -> Outcome:
        """Answer a turn, or go on with it. Raises nothing but CancelledError and the store's errors."""
        entries = await self._load()
        own = of_run(entries, turn.run)
        if not own:
            seed = turn.seed if not entries else ()
            await self._add(*seed, User(run=turn.run, text=turn.text, images=turn.images))
            tools = self._tools.offered(self._tools.catalog, turn.caller)
            self._counts.offered(self._prompt.made({tool.name for tool in tools}).offered)
        elif isinstance(own[-1], Ended):
            return self._outcome(turn.run, own[-1].failure)
        elif said := reply_text(own):
            emit(TextDelta(said))
        try:
            return await self._steps(turn, emit)
        except _Failed as fault:
            await self._add(Ended(turn.run, fault.failure))
            log.warning("run ended: %s: %s", fault.failure, fault.detail)
            return replace(self._outcome(turn.run, fault.failure), detail=fault.detail)

    async def _steps(self, turn: Turn, emit: Emit) -> Outcome:
        catalog = self._tools.catalog
        cut_off = 0
        seen: dict[str, int] = {}
        while True:
            own = of_run(await self._load(), turn.run)
            await self._run_calls(turn, open_calls(own), catalog, emit)
            own = of_run(await self._load(), turn.run)
            answers = [e for e in own if isinstance(e, Assistant)]
            if answers and not answers[-1].calls:
                return self._outcome(turn.run)
            if answers:
                faults = [bool(call.fault) for call in answers[-1].calls]
                cut_off = cut_off + 1 if all(faults) else 0
                if cut_off >= 3:
                    raise _Failed("cut_off", "three answers in a row ended inside a tool call's arguments")
                self._guard_loop(answers[-1], own, seen)
            used = [call.name for answer in answers for call in answer.calls]
            catalog = self._tools.catalog.keeping(catalog, used)
            last = len(answers) >= self._settings.max_steps
            answer = await self._ask(turn, catalog, emit, last=last)
            if last and answer.calls:
                if not answer.text.strip():
                    raise _Failed("steps", f"no answer within {self._settings.max_steps} steps")
                answer = replace(answer, calls=(), opaque={})
            await self._add(Assistant(turn.run, answer.text, answer.calls, answer.opaque))
            self._partial = ""
            if answer.stop == "length" and not answer.calls:
                raise _Failed("cut_off", "the model's output limit ended the answer")
            if answer.stop == "refused" and not answer.calls and not answer.text.strip():
                raise _Failed("refused", "the model refused without a word")

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
        entries = await self._load()
        said = len(reply_text(of_run(entries, turn.run)))
        offered = self._tools.offered(catalog, turn.caller)
        prompt = self._prompt.made({tool.name for tool in offered})
        if not prompt.left_out:
            offered = tuple(tool for tool in offered if tool.name != FIND_SKILLS)
        view, level = window(entries, turn.run, self._settings.history_entries), 0
        waited, attempt, empty = 0.0, 0, 0
        while True:
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
                out_of_time = waited + wait > self._settings.retry_budget
                if not fault.retryable or attempt >= self._settings.max_attempts or out_of_time:
                    raise _Failed(fault.kind, fault.detail) from fault
                log.info("model: %s, attempt %d, waiting %.1f s", fault.kind, attempt, wait)
                await self._sleep(wait)
                waited += wait
            else:
                if answer.text.strip() or answer.calls or answer.stop == "refused":
                    return answer
                empty += 1
                if empty >= 3:
                    raise _Failed("empty", "the model answered with nothing, three times")

    def _backoff(self, attempt: int) -> float:
        return float(min(2.0 ** (attempt - 1), 20.0) * (0.5 + self._jitter()))

    def _request(self, view: list[Entry], system: str, offered: Sequence[Tool], last: bool) -> Request:
        return Request(
            system=f"{system}\n\n{LAST_STEP}" if last else system,
            entries=view,
            tools=[ToolSpec(tool.name, tool.description, tool.params) for tool in offered],
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

    # -- the tools -----------------------------------------------------------------------------------

    async def _run_calls(self, turn: Turn, calls: Sequence[ToolCall], catalog: Catalog, emit: Emit) -> None:
        """Run calls: neighbours that only read side by side, all others one after the other, in order."""
        index = 0
        while index < len(calls):
            batch = [calls[index]]
            if self._reads(catalog, calls[index]):
                for call in calls[index + 1 : index + self._settings.parallel_calls]:
                    if not self._reads(catalog, call):
                        break
                    batch.append(call)
            if len(batch) == 1:
                await self._call(turn, batch[0], catalog, emit)
            else:
                try:
                    async with asyncio.TaskGroup() as group:
                        for call in batch:
                            group.create_task(self._call(turn, call, catalog, emit))
                except ExceptionGroup as faults:
                    raise faults.exceptions[0] from faults
            index += len(batch)

    @staticmethod
    def _reads(catalog: Catalog, call: ToolCall) -> bool:
        tool = catalog.get(call.name)
        return tool is not None and tool.annotations.read_only

    async def _call(self, turn: Turn, call: ToolCall, catalog: Catalog, emit: Emit) -> None:
        reads = self._reads(catalog, call)
        begun = not reads and any(
            isinstance(e, ToolBegun) and e.call == call.id for e in of_run(await self._load(), turn.run)
        )
        started = time.monotonic()
        emit(ToolStarted(call.id, call.name, _preview(json.dumps(call.arguments, ensure_ascii=False))))
        if call.fault:
            result = ToolResult(
                f"The call of {call.name} was not run: {call.fault}. Send the whole call again; if the "
                "arguments are long, split the work into smaller calls.",
                is_error=True,
            )
        elif begun:
            result = ToolResult(_UNKNOWN_OUTCOME, is_error=True)
        else:
            context = self._context(turn, call, emit)
            refused = await self._limited(turn, call, catalog, context)
            if refused is None and not reads and catalog.get(call.name) is not None:
                await self._add(ToolBegun(turn.run, call.id))
            result = refused or await self._execute(turn, call, catalog, context)
        await self._add(
            ToolOutput(
                turn.run, call.id, call.name, result.text, result.is_error, result.files, result.images
            )
        )
        seconds = time.monotonic() - started
        emit(ToolFinished(call.id, call.name, not result.is_error, _preview(result.text), seconds))

    def _context(self, turn: Turn, call: ToolCall, emit: Emit) -> ToolContext:
        return ToolContext(
            session=self.session,
            run=turn.run,
            folder=self.folder,
            caller=turn.caller,
            skill_folder=self._skills.current.folder,
            call=call.id,
            desk=CallDesk(call.id, call.name, emit, turn.ask, self._model, self._budget(turn.run)),
        )

    async def _limited(
        self, turn: Turn, call: ToolCall, catalog: Catalog, context: ToolContext
    ) -> ToolResult | None:
        """What a skill in use says of a call that it does not allow without asking; None: go on."""
        if catalog.get(call.name) is None:
            return None
        own = of_run(await self._load(), turn.run)
        return await consent(own, self._skills.current, call.name, call.arguments, context.desk, READ)

    async def _execute(
        self, turn: Turn, call: ToolCall, catalog: Catalog, context: ToolContext
    ) -> ToolResult:
        if not self._has_folder:
            await asyncio.to_thread(self.folder.mkdir, parents=True, exist_ok=True)
            self._has_folder = True
        try:
            result = await self._tools.call(catalog, call.name, call.id, call.arguments, context)
        except UnknownTool as unknown:
            return await self._unknown(turn, call, catalog, unknown)
        if call.name == READ and not result.is_error and (skill := skill_of(call.arguments)):
            self._counts.read(skill)
        return result

    async def _unknown(
        self, turn: Turn, call: ToolCall, catalog: Catalog, unknown: UnknownTool
    ) -> ToolResult:
        """A name that is no tool: a skill's is taught, any other explained."""
        offered = [tool.name for tool in self._tools.offered(catalog, turn.caller)]
        skill = self._skills.current.teachable(call.name)
        if skill is not None:
            again = any(isinstance(e, ToolOutput) and e.name == call.name for e in await self._load())
            text = await asyncio.to_thread(teaching, skill, call.name, offered, again=again)
            self._counts.used(skill.name)
            return ToolResult(text, is_error=True)
        near = f" Did you mean {', '.join(unknown.close_matches)}?" if unknown.close_matches else ""
        return ToolResult(
            f"There is no tool named {call.name}.{near} Available: {', '.join(offered)}.", is_error=True
        )

    def _budget(self, run: str) -> SampleBudget:
        """What is left of the run's budget; a restart begins it anew."""
        if self._samples is None or self._samples[0] != run:
            self._samples = (run, SampleBudget(self._settings.samples, self._settings.sample_tokens))
        return self._samples[1]

    # -- ends and notes --------------------------------------------------------------------------------

    async def settle(self, run: str, failure: str) -> Outcome:
        """Close a run whose task was cancelled: open calls get a result, what was shown is kept."""
        own = of_run(await self._load(), run)
        closing: list[Entry] = [
            ToolOutput(run, call.id, call.name, _STOPPED, is_error=True) for call in open_calls(own)
        ]
        if self._partial.strip() and not closing:
            closing.append(Assistant(run, self._partial.strip()))
        self._partial = ""
        if not own or not isinstance(own[-1], Ended):
            closing.append(Ended(run, failure))
        await self._add(*closing)
        return self._outcome(run, failure)

    async def clear(self) -> None:
        """Forget the session's history (`/new`); its background tasks end."""
        await self._tools.end_session(self.session)
        await self._history.clear(self.session)
        self._entries = []

    async def attach(self, text: str) -> None:
        """Put something the person chose (a resource) into the conversation, for the turns to come."""
        entry = User("", text)
        entries = await self._load()
        if not entries or entries[-1] != entry:  # a command that a crash repeats attaches nothing twice
            await self._add(entry)

    async def began(self, run: str) -> bool:
        """Whether an earlier process already took this run up."""
        return bool(of_run(await self._load(), run))

    async def entries(self) -> list[Entry]:
        """A copy of the history."""
        return list(await self._load())

    def _outcome(self, run: str, failure: str = "") -> Outcome:
        own = of_run(self._entries or [], run)
        return Outcome(text=reply_text(own), files=reply_files(own), failure=failure)

    async def _load(self) -> list[Entry]:
        if self._entries is None:
            self._entries = await self._history.load(self.session)
        return self._entries

    async def _add(self, *entries: Entry) -> None:
        """Store entries, then know them: what is in memory is never ahead of the disk."""
        loaded = await self._load()
        write = asyncio.ensure_future(self._history.append(self.session, entries))
        try:
            await asyncio.shield(write)
        except asyncio.CancelledError:
            # The write was begun and will be committed: memory and disk must agree on it.
            await asyncio.wait({write})
            if not write.cancelled() and write.exception() is None:
                loaded.extend(entries)
            raise
        loaded.extend(entries)


def _smaller(view: list[Entry], run: str, level: int) -> tuple[list[Entry], int] | None:
    """The next view that really is smaller, and its level; None when nothing can be cut any more."""
    size = sum(len(repr(entry)) for entry in view)
    for deeper in range(level + 1, 4):
        candidate = shortened(view, run, deeper)
        if sum(len(repr(entry)) for entry in candidate) < size:
            return candidate, deeper
    return None


def _preview(text: str, limit: int = 200) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
