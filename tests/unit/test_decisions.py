"""The decisions about people and messages, on tables: each row says what is expected, and why."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agent.tools.base import Annotations, Caller, FunctionTool, ToolContext, ToolResult
from agent.tools.policy import Policy, PolicyRule
from bridge.access import Access, AccessRule, Grants
from bridge.addressing import GroupRule, meant
from bridge.keys import Scope, session_key
from channels.base import Address, ChatKind, Sender

DATA = Path(__file__).resolve().parent.parent / "data" / "decisions"


def rows(name: str) -> list[Any]:
    found = yaml.safe_load((DATA / f"{name}.yaml").read_text(encoding="utf-8"))
    return [pytest.param(row, id=row["because"][:70]) for row in found]


def test_there_are_enough_rows_and_each_has_its_reason() -> None:
    every = [row for file in DATA.glob("*.yaml") for row in yaml.safe_load(file.read_text(encoding="utf-8"))]
    assert len(every) >= 150
    assert all(row["because"].strip() for row in every)


@pytest.mark.parametrize("row", rows("addressing"))
def test_when_the_bot_answers_in_a_group(row: dict[str, Any]) -> None:
    found = meant(
        row["text"],
        row["cue"],
        GroupRule.model_validate(row.get("rule", {})),
        in_thread=row.get("thread", False),
        activation=row.get("activation"),
    )
    assert found.answer is row["answer"]
    assert found.why == row.get("why", "")
    assert found.text == row.get("said", row["text"])


@pytest.mark.parametrize("row", rows("access"))
def test_who_may_talk(row: dict[str, Any]) -> None:
    grants = Grants()
    if "grant" in row:
        grants.give("telegram", row["who"], row["grant"])
    rule = row["rule"]
    kind: ChatKind = row.get("kind", "direct")
    address = Address("telegram", row.get("chat", row["who"]), kind, row.get("thread"))
    access = Access(
        {} if rule is None else {"telegram": AccessRule.model_validate(rule)},
        frozenset({"telegram"} if row.get("local") else ()),
        people=row.get("people"),
        grants=grants,
        homes={("telegram", row["chat"]): row["home"]} if "home" in row else None,
    )
    verdict = access.of(Sender(row["who"], "Ann", is_bot=row.get("bot", False)), address)
    assert verdict.kind == row["verdict"]
    if "role" in row:
        assert verdict.role == row["role"]


async def _nothing(params: dict[str, Any], context: ToolContext) -> ToolResult:
    return ToolResult("")


class Placed(FunctionTool):
    """A tool with what its server's entry says of it."""

    pre_approved = False
    mount: tuple[str, ...] = ()
    on_request = False


def tool_of(given: dict[str, Any]) -> Placed:
    stated = "read" in given
    notes = Annotations(
        given.get("read", False),
        given.get("destructive", not given.get("read", False)),
        given.get("open", False),
        stated,
    )
    kind = type(
        "Row",
        (Placed,),
        {
            "pre_approved": given.get("approved", False),
            "mount": tuple(given.get("mount", ())),
            "on_request": given.get("on_request", False),
        },
    )
    return cast(
        Placed,
        kind(
            given["name"],
            "",
            {},
            _nothing,
            notes,
            source=given["source"],
            admin_only=given.get("admin_only", False),
        ),
    )


def caller_of(given: dict[str, Any], id: str = "1") -> Caller:
    return Caller(
        given.get("id", id),
        "Ann",
        given["role"] == "admin",
        given.get("channel", "telegram"),
        given.get("kind", "direct"),
        chat=given.get("chat", "1"),
        guest=given["role"] == "guest",
    )


@pytest.mark.parametrize("row", rows("policy"))
def test_which_tools_may_be_used(row: dict[str, Any]) -> None:
    caller = caller_of(row["who"])
    for number, role in enumerate(row.get("others", ()), 2):
        caller = caller.joined(caller_of({**row["who"], "role": role}, str(number)))
    policy = Policy([PolicyRule.model_validate(rule) for rule in row.get("rules", ())])
    mounted = frozenset(row.get("mounted", ()))
    decision = policy.decide(tool_of(row["tool"]), caller, mounted)
    assert decision.effect == row["effect"]
    assert policy.allowed(tool_of(row["tool"]), caller, mounted) is (row["effect"] != "deny")
    assert bool(decision.reason) or decision.effect != "deny"


def key_of(parts: list[Any], scope: Scope) -> str:
    channel, kind, chat, thread, who = parts
    return session_key(Address(channel, chat, kind, thread), who, scope)


@pytest.mark.parametrize("row", rows("session_key"))
def test_which_messages_share_a_session(row: dict[str, Any]) -> None:
    same = key_of(row["one"], row["scope"]) == key_of(row["other"], row["scope"])
    assert same is row["same"]


TEXT = st.text(alphabet=st.sampled_from("ab:%=/.~#1Ä "), max_size=5)
PLACES = st.tuples(TEXT, st.sampled_from(["direct", "group", "channel"]), TEXT, st.none() | TEXT, TEXT)


@given(st.lists(PLACES, min_size=2, max_size=6, unique=True))
def test_no_two_different_places_give_one_key(places: list[tuple[Any, ...]]) -> None:
    """Over all scopes at once: a key of one scope never equals a key of another for other people."""
    keys: dict[str, tuple[Any, ...]] = {}
    for place, scope in itertools.product(places, ("thread", "person_in_chat")):
        channel, kind, chat, thread, who = place
        meaning = (channel, kind, chat, thread, who if scope == "person_in_chat" else None)
        key = key_of(list(place), cast(Scope, scope))
        assert keys.setdefault(key, meaning) == meaning
        assert "/" not in key
        assert len(key) <= 200
    people = {key_of(list(place), "person"): (place[0], place[4]) for place in places}
    assert len(people) == len({(place[0], place[4]) for place in places})
    assert not people.keys() & keys.keys()
