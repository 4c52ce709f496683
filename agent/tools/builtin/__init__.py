"""The tools that come with the program."""

from __future__ import annotations

from agent.tools.base import Tool
from agent.tools.builtin.files import file_tools
from agent.tools.builtin.search import search_tool
from agent.tools.builtin.send import send_tool
from agent.tools.builtin.shell import bash_tool
from agent.tools.builtin.web import web_fetch_tool
from agent.tools.masking import Masker
from agent.tools.settings import ToolSettings
from agent.tools.workers import Workers


def builtin_tools(settings: ToolSettings, workers: Workers, masker: Masker | None = None) -> list[Tool]:
    """The built-in tools that the settings switch on, in the order in which models see them. `masker` hides
    secrets where a tool shows a part of something, before the part is cut out."""
    hide = masker or Masker()
    tools: list[Tool] = [
        *file_tools(settings, workers, hide),
        search_tool(settings, workers, hide),
        send_tool(settings, workers),
    ]
    if settings.web_fetch.enabled:
        tools.append(web_fetch_tool(settings.web_fetch, settings.result_chars, workers, masker=hide))
    if settings.bash.enabled:
        tools.append(bash_tool(settings.bash, settings.result_chars))
    return tools
