"""Whatever people do to one skill's files and switches, the others stay and nothing raises."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.skills.discovery import Found, Stamp
from agent.skills.formatter import skills_section
from agent.skills.frontmatter import parse
from agent.skills.loader import build
from agent.skills.manager import UnknownSkill
from tests.unit.skills_shop import Shop, put, text

PIECES = [
    "---\n", "---", "name: ", "name: a\n", "description: ", "d\n", "x: y\n", "metadata: ",
    "{", "}", "[", "]", "\n",
    "  requires:\n", "    bins: [git]\n", "\t", "\r\n", ": ", "'", '"', ">-\n", "|2-\n",
    "&a ", "*a", "!!python/object:os.system ",
    "<<: ", "? ", "- ", "#", "\ufeff", "\x00", "\u2028", "</skill>", '"\\ud800"',
    ".nan", "1e999", "0o17", "9" * 5000, "é", "你好",
    "allowed-tools: ", "always: ", "os: ", "null", "user-invocable: ", "## Setup\n", "%YAML 1.1\n", "...\n",
]  # fmt: skip

texts = st.lists(st.sampled_from(PIECES), max_size=25).map("".join)
framed = texts.map(lambda inner: f"---\nname: v\n{inner}\n---\nBody.")
contents = st.one_of(
    st.binary(max_size=200),
    st.tuples(
        st.one_of(texts, framed), st.sampled_from(["utf-8", "utf-16", "utf-16-le", "gb18030", "utf-8-sig"])
    ).map(lambda pair: pair[0].encode(pair[1], "replace")),
)
FOUND = Found("/s/v/SKILL.md", "/s/v/SKILL.md", "/s/v", "v", False, "custom", Stamp(0, 0, 0, 0))


@given(contents)
@settings(max_examples=400, deadline=None)
def test_any_bytes_give_a_skill_that_can_be_shown_or_a_reason(data: bytes) -> None:
    document = parse(data)
    loaded = build(FOUND, document)
    if loaded.skill is None:
        assert loaded.diagnostics
        assert all(d.reason and d.cure for d in loaded.diagnostics)
        return
    assert not document.fatal
    assert loaded.skill.description.strip()
    str(loaded.diagnostics).encode("utf-8")
    json.dumps(dict(loaded.skill.metadata), allow_nan=False).encode("utf-8")
    assert build(FOUND, parse(data)) == loaded


actions = st.one_of(
    st.tuples(st.just("write"), contents),
    st.tuples(st.just("remove"), st.just(b"")),
    st.tuples(st.just("toggle"), st.booleans()),
    st.tuples(st.just("toggle other"), st.booleans()),
    st.tuples(st.just("tear"), st.binary(max_size=20)),
    st.tuples(st.just("restart"), st.just(b"")),
    st.tuples(st.just("refresh"), st.just(b"")),
    st.tuples(st.just("other process"), st.booleans()),
)


@given(st.lists(st.tuples(actions, st.booleans()), max_size=10))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_edit_of_one_skill_changes_another_and_no_switch_is_lost(
    steps: list[tuple[tuple[str, object], bool]],
) -> None:
    """`refreshed` says whether upkeep comes between a step and the next, so that steps pile up too."""
    with tempfile.TemporaryDirectory() as folder:
        shop = Shop(Path(folder))
        manager = shop.manager()
        shop.skill("steady", text("steady"))
        shop.skill("other", text("other"))
        manager._pass(None)
        on = True
        for (action, value), refreshed in steps:
            if action == "write" and isinstance(value, bytes):
                put(shop.custom / "v" / "SKILL.md", value)
            elif action == "remove":
                shutil.rmtree(shop.custom / "v", ignore_errors=True)
            elif action == "restart":
                manager = shop.manager()
            elif action == "tear" and isinstance(value, bytes):
                whole = shop.config.read_bytes()
                shop.config.write_bytes(b"{" + value)
                manager._pass(None)
                shop.config.write_bytes(whole)
            elif action == "toggle other":
                on = bool(value)
                manager._pass(("other", on))
            elif action == "other process":
                on = bool(value)
                second = shop.manager()
                second._pass(None)
                second._pass(("other", on))
            elif action == "refresh":
                manager._pass(None)
            else:
                try:
                    manager._pass(("v", bool(value)))
                except UnknownSkill:
                    assert manager.current.find("v") is None
            if not refreshed:
                continue
            manager._pass(None)
            current = manager.current
            steady = current.get("steady")
            assert steady
            assert steady.description == "Does it. Use when asked."
            assert (current.get("other") is not None) is on
            assert skills_section(current, "read").count("</available_skills>") == 1
        manager._pass(None)
        assert (manager.current.get("other") is not None) is on
