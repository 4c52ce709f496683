"""The tool calls of a run: which run side by side, what a restart may repeat, what a skill allows."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from agent.conversation import Conversation
from agent.desk import CallDesk, SampleBudget
from agent.events import Emit, ToolFinished, ToolStarted
from agent.history import ToolBegun, ToolCall, ToolOutput
from agent.models.base import Model
from agent.prompt import READ
from agent.skills.counts import SkillCounts
from agent.skills.formatter import teaching
from agent.skills.limits import consent, skill_of
from agent.skills.manager import SkillManager
from agent.tools.base import ToolContext, ToolResult
from agent.tools.catalog import Catalog
from agent.tools.manager import ToolManager, UnknownTool
from agent.turn import AgentSettings, Approval, Approved, Turn

log = logging.getLogger("causeway.agent")

_UNKNOWN_OUTCOME = (
    "The program was restarted while this call was under way, so its outcome is unknown. It was not run "
    "again. Find out what it did before you repeat it."
)

_REFUSED = {
    "denied": "A person said no. Do not try it again unless you are asked to.",
    "timeout": "It needs a person's yes, and nobody answered in time. Say what you wanted, and stop there.",
    "nobody": "It needs a person's yes, and nobody can be asked here. An admin can allow it with "
    "tools: policy in config.yaml. Do without it.",
    "approved": "",
}


class Calls:
    """Runs the calls that a model asks for, and stores each result as it arrives."""

    def __init__(
        self,
        conversation: Conversation,
        folder: Path,
        model: Model,
        tools: ToolManager,
        skills: SkillManager,
        counts: SkillCounts,
        settings: AgentSettings,
    ) -> None:
        self._conversation = conversation
        self._folder = folder
        self._model = model
        self._tools = tools
        self._skills = skills
        self._counts = counts
        self._settings = settings
        self._has_folder = False
        self._samples: tuple[str, SampleBudget] | None = None

    async def run(self, turn: Turn, calls: Sequence[ToolCall], catalog: Catalog, emit: Emit) -> None:
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
            isinstance(e, ToolBegun) and e.call == call.id for e in await self._conversation.of_run(turn.run)
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
            if refused is None:
                refused = await self._unconfirmed(turn, call, catalog)
            if refused is None and not reads and catalog.get(call.name) is not None:
                await self._conversation.add(ToolBegun(turn.run, call.id))
            result = refused or await self._execute(turn, call, catalog, context)
        await self._conversation.add(
            ToolOutput(
                turn.run, call.id, call.name, result.text, result.is_error, result.files, result.images
            )
        )
        seconds = time.monotonic() - started
        emit(ToolFinished(call.id, call.name, not result.is_error, _preview(result.text), seconds))

    def _context(self, turn: Turn, call: ToolCall, emit: Emit) -> ToolContext:
        return ToolContext(
            session=self._conversation.session,
            run=turn.run,
            folder=self._folder,
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
        own = await self._conversation.of_run(turn.run)
        language = context.caller.language
        skills = self._skills.current
        return await consent(own, skills, call.name, call.arguments, context.desk, READ, language)

    async def _unconfirmed(self, turn: Turn, call: ToolCall, catalog: Catalog) -> ToolResult | None:
        """Wait for a person's yes where the policy wants one; None: go on."""
        tool = catalog.get(call.name)
        if tool is None or self._tools.decide(tool, turn.caller, self._conversation.session).effect != "ask":
            return None
        if turn.approve is None:
            said = Approved(False, "nobody")
        else:
            said = await turn.approve(
                Approval(turn.run, call.id, tool.name, tool.source, call.arguments, turn.caller)
            )
        if said.yes:
            return None
        words = f" They said: {said.words}" if said.words and said.why == "denied" else ""
        return ToolResult(f"{call.name} was not run. {_REFUSED[said.why]}{words}", is_error=True)

    async def _execute(
        self, turn: Turn, call: ToolCall, catalog: Catalog, context: ToolContext
    ) -> ToolResult:
        if not self._has_folder:
            try:
                await asyncio.to_thread(self._folder.mkdir, parents=True, exist_ok=True)
            except OSError as error:
                log.error("the folder %s cannot be made: %s", self._folder, error.strerror)
                why = f"the folder for this conversation's files cannot be made ({error.strerror})"
                return ToolResult(f"{call.name} was not run: {why}. Tell the person.", is_error=True)
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
        session = self._conversation.session
        offered = [tool.name for tool in self._tools.offered(catalog, turn.caller, session)]
        skill = self._skills.current.teachable(call.name)
        if skill is not None:
            again = any(
                isinstance(e, ToolOutput) and e.name == call.name for e in await self._conversation.entries()
            )
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


def _preview(text: str, limit: int = 200) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
