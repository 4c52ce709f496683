"""Who may call which tool. Pure: the answer depends on nothing but the tool and the person of this turn."""

from __future__ import annotations

from agent.tools.base import Caller, Tool


def allowed(tool: Tool, caller: Caller) -> bool:
    """Whether this caller may use the tool here."""
    return not denial(tool, caller)


def denial(tool: Tool, caller: Caller) -> str:
    """Why the caller may not use the tool, as words for the model; empty when they may.

    A tool for admins is for direct chats only: in a group other people's words stand in the same
    conversation, and the model may act on them while the admin's turn is answered.
    """
    if not tool.admin_only:
        return ""
    if not caller.admin:
        return "It is reserved for admins, and the person of this turn is none."
    if caller.chat_kind != "direct":
        return "It may only be used in a direct chat with an admin, which this is not."
    return ""
