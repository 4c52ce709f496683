"""What can go wrong with a server, by what the caller does next."""

from __future__ import annotations

import asyncio

from agent.tools.base import ToolFailure


class McpFault(ToolFailure):
    """Something went wrong with one server. The message is fit for a model and for an admin: it says what
    happened and why, and holds no credential. `cure` is what a model should try after a call; `lasting` is
    whether trying again by itself will not help."""

    cure = "Try once more in a few seconds."
    lasting = False


class StartFailed(McpFault):
    """The server cannot be used."""

    def __init__(self, message: str, *, lasting: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting


class NeedsLogin(McpFault):
    """The server answers 401 or 403."""

    cure = "An admin has to log in or to renew the server's credentials in mcp.json."
    lasting = True


class Unreachable(McpFault):
    """There is no session to call through; the call was not sent."""

    cure = "The call was not run. Try once more in a few seconds, or do without this tool."


class Down(McpFault):
    """The connection is gone; the outcome of the call is unknown."""

    cure = "It is unknown whether the call took effect: check before trying it again."


class SessionGone(McpFault):
    """A remote server forgot the session; the call was not run and may be sent again."""


class CallTimeout(McpFault):
    """No answer within the deadline."""

    cure = "The server was told to stop. Ask for less at a time, or try once more later."


class CallRefused(McpFault):
    """The server answered the call with a protocol error, or with something unreadable."""

    cure = "Check the tool's name and arguments against its description."


def leaf_of(fault: BaseException) -> BaseException:
    """What is inside of exception groups: the first that is no cancelling, if there is one."""
    if not isinstance(fault, BaseExceptionGroup):
        return fault
    leaves = [leaf_of(part) for part in fault.exceptions]
    return next((leaf for leaf in leaves if not isinstance(leaf, asyncio.CancelledError)), leaves[0])
