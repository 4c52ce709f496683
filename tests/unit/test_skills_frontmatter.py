from __future__ import annotations

import pytest

from agent.skills.frontmatter import Document, parse
from agent.skills.textfile import decode


def head(*lines: str) -> Document:
    return parse("\n".join(["---", *lines, "---", "", "Body.", ""]).encode())


def test_a_plain_head_gives_its_fields_their_lines_and_the_body() -> None:
    document = head("name: planner", "description: Makes plans.", "version: 1.3")
    assert document.fields == {"name": "planner", "description": "Makes plans.", "version": 1.3}
    assert document.line("description") == 3
    assert document.body == "Body."
    assert document.faults == ()


def test_sk_01_an_unquoted_colon_in_the_description_costs_neither_it_nor_the_limits() -> None:
    document = head("name: planner", "description: Makes plans: goals, steps", "allowed-tools: read")
    assert document.fields["name"] == "planner"
    assert document.fields["description"] == "Makes plans: goals, steps"
    assert document.fields["allowedtools"] == "read"
    (fault,) = document.faults
    assert (fault.line, fault.fatal) == (3, False)
    assert "double quotes" in fault.cure


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("Makes plans: goals: steps", "Makes plans: goals: steps"),
        ("ends with a colon:", "ends with a colon:"),
        ('"Quoted" word first', '"Quoted" word first'),
        ("[beta] Draws charts", "[beta] Draws charts"),
        ("{x} is a placeholder", "{x} is a placeholder"),
        ("@someone asks", "@someone asks"),
        ("`code` first", "`code` first"),
        ("*starred*: text", "*starred*: text"),
        ("%percent", "%percent"),
        ("'it's here'", "it's here"),
        ("- a dash: and a colon", "- a dash: and a colon"),
        ("Use when: x\n  and then: y", "Use when: x and then: y"),
        ("Does this\nand that", "Does this and that"),
        ("\n  Makes plans: goals", "Makes plans: goals"),
    ],
)
def test_sk_01_descriptions_as_people_write_them_are_read_as_meant(written: str, meant: str) -> None:
    document = head("name: planner", f"description: {written}", "metadata:", "  os: [linux]")
    assert document.fields["description"] == meant
    assert document.fields["metadata"] == {"os": ["linux"]}
    assert not document.fatal


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (">-\n  Draws charts:\n  bar, line", "Draws charts: bar, line"),
        (">\n  Draws charts:\n  bar, line", "Draws charts: bar, line"),
        ("|\n  Draws charts:\n  bar, line", "Draws charts:\nbar, line"),
        ("|2-\n  Draws charts:\n  bar, line", "Draws charts:\nbar, line"),
        ("Draws charts,\n  bar, line", "Draws charts, bar, line"),
        ("Draws charts:\n  bar, line", "Draws charts: bar, line"),
    ],
)
@pytest.mark.parametrize("beside", ["license: MIT", "license: MIT: or so"])
def test_sk_02_folded_and_literal_text_is_the_description(written: str, meant: str, beside: str) -> None:
    document = head("name: charts", f"description: {written}", "version: 1.3", beside)
    assert document.fields["description"].strip() == meant
    assert document.fields["version"] == 1.3
    assert set(document.fields) == {"name", "description", "version", "license"}


def test_sk_10_numbers_lists_and_maps_in_metadata_are_plain_data() -> None:
    document = head("name: n", "description: d", "metadata: {version: 1.3, tags: [a, b], nested: {k: v}}")
    assert document.fields["metadata"] == {"version": 1.3, "tags": ["a", "b"], "nested": {"k": "v"}}


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf---\nname: n\ndescription: caf\xc3\xa9\n---\nBody.",
        b"---\r\nname: n\r\ndescription: caf\xc3\xa9\r\n---\r\nBody.\r\n",
        b"---\rname: n\rdescription: caf\xc3\xa9\r---\rBody.\r",
        b"---\nname: n\ndescription: caf\xe9\n---\nBody.\n",
        "---\nname: n\ndescription: café\n---\nBody.\n".encode("utf-16"),
        "---\nname: n\ndescription: café\n---\nBody.\n".encode("utf-16-le"),
        "---\nname: n\ndescription: café\n---\nBody.\n".encode("utf-16-be"),
        "---\nname: n\ndescription: café\n---\nBody.\n".encode("utf-32"),
        b"\n\n---   \nname: n\ndescription: caf\xc3\xa9\n---  \nBody.",
        b"---\nname:\tn\ndescription:\tcaf\xc3\xa9\n...\nBody.",
        b"---\nname: n\ndescription: caf\xc3\xa9\x00\x07\n---\nBody.",
    ],
)
def test_any_usual_encoding_and_line_end_is_read(data: bytes) -> None:
    document = parse(data)
    assert document.fields == {"name": "n", "description": "café"}
    assert document.body == "Body."
    assert not document.fatal


@pytest.mark.parametrize(
    ("data", "encoding", "text"),
    [
        ("---\n说明".encode("gb2312"), "gb2312", "---\n说明"),
        ("---\nélève".encode("latin-1"), "windows-1252", "---\nélève"),
        (b"---\n\x81\x8d", "latin-1", "---\n"),
    ],
)
def test_a_file_that_is_not_utf_8_says_so(data: bytes, encoding: str, text: str) -> None:
    assert decode(data) == (text, encoding)
    assert any("UTF-8" in fault.reason for fault in parse(data).faults)


@pytest.mark.parametrize("end", ["---", "---\n", "--- \t\n"])
def test_the_closing_line_needs_no_text_after_it(end: str) -> None:
    document = parse(f"---\nname: n\ndescription: d\n{end}".encode())
    assert document.fields == {"name": "n", "description": "d"}
    assert document.body == ""


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no frontmatter"),
        (b"# Title\n", "no frontmatter"),
        (b"---\nname: n\ndescription: d\n", "never closed"),
        (b"---\n{name: n, x: [\n---\n", "cannot be read"),
        (b"---\n" + b"a: b\n" * 20_000 + b"---\n", "longer than 64 KiB"),
    ],
)
def test_what_is_no_frontmatter_is_a_fatal_fault_with_a_cure(data: bytes, reason: str) -> None:
    document = parse(data)
    assert document.fatal
    assert any(reason in fault.reason and fault.cure for fault in document.faults)


@pytest.mark.parametrize(
    "lines",
    [
        ["metadata:", "  requires:", "    bins: [git"],
        ["metadata:", "  requires:", "\tbins: [git]", "   x"],
        ["metadata: {requires: {bins: [git]}"],
        ["requires: [x: {"],
        ["allowed-tools: [read"],
        ["user-invocable: {"],
    ],
)
def test_a_limit_that_cannot_be_read_is_fatal(lines: list[str]) -> None:
    document = head("name: n", "description: d", *lines)
    assert document.fatal


@pytest.mark.parametrize(
    "lines",
    [
        ["metadata:", "\trequires:", "\t\tbins: [git]"],
        ["metadata:", "  requires:", "\tbins: [git]"],
        ["metadata:", "  note: say: hello", "  requires:", "    bins: [git]"],
        ["metadata:", "  requires: {bins: [git]}"],
        ['metadata: {"requires": {"bins": ["git"]}, "emoji": "\\ud83d\\udc19"}'],
        ["metadata:", "  {", '\t"requires": {', '\t\t"bins": ["git"]', "\t}", "  }"],
    ],
)
def test_limits_survive_the_repair_of_another_line(lines: list[str]) -> None:
    document = head("name: n", "description: Use when: asked", *lines)
    assert not document.fatal
    assert document.fields["metadata"]["requires"] == {"bins": ["git"]}
    assert document.fields["description"] == "Use when: asked"
    assert document.fields["name"] == "n"


def test_merged_keys_count() -> None:
    lines = ["x: &x {bins: [git]}", "metadata:", "  requires:", "    <<: *x"]
    assert head(*lines).fields["metadata"]["requires"] == {"bins": ["git"]}


def test_a_nested_name_never_becomes_the_skills_name() -> None:
    document = head("name: outer", "description: Makes: plans", "metadata:", "  name: inner")
    assert document.fields["name"] == "outer"
    assert document.fields["metadata"] == {"name": "inner"}


def test_aliases_cannot_grow_without_bound() -> None:
    bomb = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for letter, last in zip("bcdefgh", "abcdefg", strict=True):
        bomb.append(f"{letter}: &{letter} [{', '.join([f'*{last}'] * 9)}]")
    document = head("name: n", "description: d", *bomb)
    assert document.fields["name"] == "n"
    assert any("more than" in fault.reason for fault in document.faults)
    assert "h" not in document.fields


def test_an_alias_to_itself_ends() -> None:
    document = head("name: n", "description: d", "metadata: &m {again: *m}")
    assert document.fatal


def test_text_lost_to_a_yaml_comment_is_told() -> None:
    document = head("name: n", "description: Fix issue #42 quickly")
    assert document.fields["description"] == "Fix issue"
    assert any("comment" in fault.reason and fault.line == 3 for fault in document.faults)


@pytest.mark.parametrize(
    ("written", "name"), [("on", "on"), ("007", "007"), ("1e3", "1e3"), ("2024-01-01", "2024-01-01")]
)
def test_a_name_is_what_is_written(written: str, name: str) -> None:
    assert head(f"name: {written}", "description: d").fields["name"] == name


def test_keys_are_found_in_any_usual_spelling() -> None:
    document = head("Name: n", "Description: d", "allowed_tools: read", "disableModelInvocation: true")
    assert document.fields == {
        "name": "n",
        "description": "d",
        "allowedtools": "read",
        "disablemodelinvocation": True,
    }
