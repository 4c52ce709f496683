"""Names under which tools are offered."""

from __future__ import annotations

import itertools
import re

from hypothesis import example, given
from hypothesis import strategies as st

from agent.tools.mcp.names import file_stem, offered_name

LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")


def test_an_ordinary_name_is_server_and_tool() -> None:
    assert offered_name("github", "create_issue") == "github__create_issue"


def test_mc_10_hostile_names_are_legal_and_different() -> None:
    long = "x" * 89
    pairs = [
        ("my srv", "a.b"), ("my srv", "a_b"), ("my srv", long + "1"), ("my srv", long + "2"), ("two", "a_b"),
        ("a", "b__c"), ("a__b", "c"), ("a_", "b"), ("a", "_b"), ("", "x"), ("x", ""),
        ("服务", "工具"), ("服努", "工具"),
    ]  # fmt: skip
    names = [offered_name(*pair) for pair in pairs]
    assert all(LEGAL.fullmatch(name) for name in names)
    assert len(set(names)) == len(names)


@given(st.text(max_size=90), st.text(max_size=90), st.text(max_size=90), st.text(max_size=90))
@example("a", "b__c", "a__b", "c")
@example("a_", "_b", "a", "__b")
def test_two_tools_never_share_a_name(server: str, tool: str, other_server: str, other_tool: str) -> None:
    one, two = offered_name(server, tool), offered_name(other_server, other_tool)
    assert LEGAL.fullmatch(one)
    assert (one == two) == ((server, tool) == (other_server, other_tool))


def test_short_names_over_a_small_alphabet_never_collide() -> None:
    words = ["".join(letters) for size in range(5) for letters in itertools.product("a_.", repeat=size)]
    names = [offered_name(server, tool) for server in words for tool in words]
    assert len(set(names)) == len(names)


def test_a_file_stem_cannot_leave_its_folder() -> None:
    assert file_stem("time") == "time"
    for name in ("../../etc/passwd", "a/b", "", ".", "x" * 300, "a\0b"):
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,48}", file_stem(name))
