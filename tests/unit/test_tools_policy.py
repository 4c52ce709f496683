"""Who may use which tool."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from agent.tools.base import Caller, FunctionTool, ToolContext, ToolResult
from agent.tools.policy import Policy


async def _nothing(params: dict[str, Any], context: ToolContext) -> ToolResult:
    return ToolResult("")


PLAIN = FunctionTool("plain", "", {}, _nothing)
GUARDED = FunctionTool("guarded", "", {}, _nothing, admin_only=True)


@pytest.mark.parametrize(
    ("admin", "kind", "expected"),
    [
        (True, "direct", True),
        (True, "group", False),
        (True, "channel", False),
        (False, "direct", False),
        (False, "group", False),
    ],
)
def test_a_tool_for_admins_is_for_admins_in_direct_chats_only(
    admin: bool, kind: Literal["direct", "group", "channel"], expected: bool
) -> None:
    caller = Caller("1", admin=admin, chat_kind=kind)
    policy = Policy()
    assert policy.allowed(GUARDED, caller) is expected
    assert bool(policy.decide(GUARDED, caller).reason) is not expected
    assert policy.allowed(PLAIN, caller) is (kind == "direct")
