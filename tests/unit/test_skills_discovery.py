from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.skills.discovery import Found, scan
from agent.skills.loader import Loaded, load, usable_name
from tests.unit.skills_shop import put, symlink, text


def paths(root: Path) -> list[str]:
    return [os.path.relpath(found.path, root) for found in scan(root, "custom").found]


def one(root: Path) -> Found:
    (found,) = scan(root, "custom").found
    return found


def loaded(tmp_path: Path, *lines: str, folder: str = "thing") -> Loaded:
    put(tmp_path / folder / "SKILL.md", "\n".join(["---", *lines, "---", "", "Body.", ""]))
    return load(one(tmp_path))


def test_a_missing_root_or_a_file_in_its_place_is_a_diagnostic_and_no_skill(tmp_path: Path) -> None:
    gone = scan(tmp_path / "none", "builtin")
    file = scan(put(tmp_path / "file", "x"), "custom")
    assert gone.found == file.found == ()
    assert "does not exist" in gone.diagnostics[0].reason
    assert "no folder" in file.diagnostics[0].reason


def test_root_files_folders_and_category_folders_are_found_in_a_stable_order(tmp_path: Path) -> None:
    for name in (
        "zeta/SKILL.md",
        "alpha/SKILL.md",
        "team/inner/SKILL.md",
        "note.md",
        "b.MD",
        "team/readme.md",
    ):
        put(tmp_path / name, text("x"))
    put(tmp_path / "README.md", "# About")
    put(tmp_path / "Readme.md", "# About")
    put(tmp_path / "list.txt", "x")
    assert paths(tmp_path) == ["alpha/SKILL.md", "b.MD", "note.md", "team/inner/SKILL.md", "zeta/SKILL.md"]


def test_a_root_skill_file_is_a_skill_and_the_folders_beside_it_are_searched(tmp_path: Path) -> None:
    put(tmp_path / "SKILL.md", text("whole"))
    put(tmp_path / "a" / "SKILL.md", text("a"))
    assert paths(tmp_path) == ["SKILL.md", "a/SKILL.md"]


def test_a_skill_is_not_searched_deeper_even_when_it_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "outer" / "SKILL.md", "no frontmatter")
    put(tmp_path / "outer" / "inner" / "SKILL.md", text("inner"))
    assert paths(tmp_path) == ["outer/SKILL.md"]


def test_a_folder_called_like_the_file_is_no_skill_file(tmp_path: Path) -> None:
    put(tmp_path / "odd" / "SKILL.md" / "inner" / "SKILL.md", text("inner"))
    put(tmp_path / "docs.md" / "SKILL.md", text("docs"))
    assert paths(tmp_path) == ["docs.md/SKILL.md", "odd/SKILL.md/inner/SKILL.md"]


def test_hidden_and_machine_made_folders_are_skipped(tmp_path: Path) -> None:
    for folder in (".git", ".hidden", "node_modules", "__pycache__", "venv"):
        put(tmp_path / folder / "SKILL.md", text("x"))
        put(tmp_path / "team" / folder / "SKILL.md", text("x"))
    put(tmp_path / ".hidden.md", text("x"))
    assert paths(tmp_path) == []


def test_a_skill_file_in_lower_case_is_found(tmp_path: Path) -> None:
    put(tmp_path / "low" / "skill.md", text("low"))
    result = load(one(tmp_path))
    assert result.skill
    assert result.skill.location == "/skills/low/skill.md"


def test_what_lies_too_deep_is_told(tmp_path: Path) -> None:
    put(tmp_path.joinpath(*"abcdefgh", "SKILL.md"), text("deep"))
    result = scan(tmp_path, "custom")
    assert not result.found
    assert "deeper" in result.diagnostics[0].reason


def test_sk_08_a_linked_skill_is_listed_once_and_edited_in_place(tmp_path: Path) -> None:
    real = put(tmp_path / "elsewhere" / "foo" / "SKILL.md", text("foo"))
    root = tmp_path / "skills"
    symlink(root / "foo", real.parent)
    symlink(root / "again", real.parent)
    result = scan(root, "custom")
    skill = load(result.found[0]).skill
    assert len(result.found) == 1
    assert skill
    assert (skill.file, skill.folder) == (real, real.parent)
    assert [diagnostic.severity for diagnostic in result.diagnostics] == ["note"]


def test_sk_08_of_a_folder_and_a_link_to_it_the_folder_is_the_skill(tmp_path: Path) -> None:
    put(tmp_path / "zoo" / "SKILL.md", text("zoo"))
    symlink(tmp_path / "alias", "zoo")
    assert paths(tmp_path) == ["zoo/SKILL.md"]


@pytest.mark.parametrize("target", ["/", "..", ".", "trap", "../category"])
def test_sk_08_a_link_that_leads_to_no_skill_is_not_crawled(tmp_path: Path, target: str) -> None:
    put(tmp_path / "category" / "inner" / "SKILL.md", text("inner"))
    put(tmp_path / "SKILL.md", text("above"))
    root = tmp_path / "skills"
    put(root / "good" / "SKILL.md", text("good"))
    symlink(root / "trap", target)
    result = scan(root, "custom")
    assert [found.hint for found in result.found] == ["good"]
    assert len(result.diagnostics) == 1


def test_sk_08_a_dead_link_gives_one_warning(tmp_path: Path) -> None:
    put(tmp_path / "good" / "SKILL.md", text("good"))
    symlink(tmp_path / "dead", "nowhere")
    symlink(tmp_path / "dead.md", "nowhere")
    symlink(tmp_path / "half" / "SKILL.md", "nowhere")
    result = scan(tmp_path, "custom")
    assert [found.hint for found in result.found] == ["good"]
    assert [d.reason for d in result.diagnostics] == ["The link leads nowhere"] * 3


def test_a_skill_file_that_is_a_link_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "secret.txt", text("x"))
    symlink(tmp_path / "skills" / "a" / "SKILL.md", tmp_path / "secret.txt")
    result = scan(tmp_path / "skills", "custom")
    assert not result.found
    assert "out of its folder" in result.diagnostics[0].reason


def test_a_pipe_in_place_of_a_file_is_refused_without_waiting(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "SKILL.md")
    os.mkfifo(tmp_path / "b.md")
    result = scan(tmp_path, "custom")
    assert not result.found
    assert [d.reason for d in result.diagnostics] == ["It is not a regular file"] * 2


def test_a_file_exchanged_for_a_link_or_pipe_after_the_walk_is_not_read(tmp_path: Path) -> None:
    file = put(tmp_path / "a" / "SKILL.md", text("a"))
    found = one(tmp_path)
    file.unlink()
    os.mkfifo(file)
    piped = load(found)
    file.unlink()
    symlink(file, put(tmp_path / "other", text("a")))
    linked = load(found)
    assert piped.skill is linked.skill is None
    assert piped.again
    assert linked.again


def test_a_file_over_the_bound_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "big" / "SKILL.md", text("big", body="x" * 300_000))
    result = load(one(tmp_path))
    assert result.skill is None
    assert "256 KiB" in result.diagnostics[0].reason


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ([], "no description"),
        (["description:"], "empty"),
        (['description: "  "'], "empty"),
        (["description: 42"], "no text"),
        (["description: true"], "no text"),
        (["description: [[a]]"], "empty"),
        (["desc: x"], "there is 'desc'"),
    ],
)
def test_sk_10_a_skill_without_a_text_as_description_is_refused_with_its_line(
    tmp_path: Path, written: list[str], reason: str
) -> None:
    result = loaded(tmp_path, "name: thing", *written)
    assert result.skill is None
    (diagnostic,) = result.diagnostics
    assert reason in diagnostic.reason
    assert diagnostic.file.endswith("thing/SKILL.md")
    assert diagnostic.line >= 1
    assert diagnostic.cure


def test_sk_10_a_skill_with_any_plain_metadata_loads(tmp_path: Path) -> None:
    result = loaded(
        tmp_path, "name: thing", "description: d", "metadata: {version: 1.3, tags: [a, b], nested: {k: v}}"
    )
    assert result.skill
    assert result.skill.metadata == {"version": 1.3, "tags": ["a", "b"], "nested": {"k": "v"}}
    assert result.diagnostics == ()


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("name: other", "other"),
        ("name: [3]", "3"),
        ("name: [first, second]", "first"),
        ("name: 42", "42"),
        ("name:", "thing"),
        ("license: MIT", "thing"),
        ("name: 会议记录", "会议记录"),
        ("name: {a: b}", "thing"),
        ('name: "a</name></skill>"', "thing"),
        ('name: "a\\u0007b"', "thing"),
        ('name: "a\\nb"', "thing"),
        ("name: ../../etc", "thing"),
        ("name: a/b", "thing"),
        ("name: -a", "thing"),
        ("name: " + "x" * 65, "thing"),
    ],
)
def test_sk_05_a_name_is_usable_or_the_folders_name_stands_in(
    tmp_path: Path, written: str, name: str
) -> None:
    result = loaded(tmp_path, written, "description: d")
    assert result.skill
    assert result.skill.name == name
    assert result.skill.location == f"/skills/{name}/SKILL.md"


def test_sk_05_a_folder_whose_name_cannot_be_used_needs_a_name_in_the_file(tmp_path: Path) -> None:
    refused = loaded(tmp_path / "1", "description: d", folder="a<b>\nc")
    given = loaded(tmp_path / "2", "description: d", "name: fine", folder="a<b>\nc")
    assert refused.skill is None
    assert "\n" not in refused.diagnostics[0].file
    assert given.skill
    assert given.skill.name == "fine"


@pytest.mark.parametrize(
    "name", ["..", ".", "", "a/b", "a\\b", "a\x00", "a\u202eb", "\ud800", "a&b", "a'b", "x."]
)
def test_names_that_could_leave_a_path_or_hide_text_are_not_usable(name: str) -> None:
    assert not usable_name(name)


def test_root_files_without_a_name_are_called_by_their_own_file_name(tmp_path: Path) -> None:
    for name in ("alpha", "beta"):
        put(tmp_path / f"{name}.md", "---\ndescription: d\n---\n")
    skills = [load(found).skill for found in scan(tmp_path, "custom").found]
    assert [(skill.name, skill.location, skill.root) for skill in skills if skill] == [
        ("alpha", "/skills/alpha/alpha.md", tmp_path / "alpha.md"),
        ("beta", "/skills/beta/beta.md", tmp_path / "beta.md"),
    ]


def test_a_list_as_description_is_joined(tmp_path: Path) -> None:
    result = loaded(tmp_path, "name: thing", "description: [Draws, charts]")
    assert result.skill
    assert result.skill.description == "Draws charts"


@pytest.mark.parametrize(
    ("written", "tools"),
    [
        ("license: MIT", None),
        ("allowed-tools: read, write", ("read", "write")),
        ("allowed-tools: Bash(git add:*) Read", ("Bash(git add:*)", "Read")),
        ("allowed-tools: Bash(git: *), Read", ("Bash(git: *)", "Read")),
        ('allowed-tools: ["Bash"]', ("Bash",)),
        ("allowed-tools:\n  - read\n  - ls", ("read", "ls")),
        ("allowed-tools:", ()),
        ("allowed-tools: 3", ()),
        ("allowed-tools: [{a: b}]", ()),
    ],
)
def test_sk_01_a_tool_limit_is_never_lost(
    tmp_path: Path, written: str, tools: tuple[str, ...] | None
) -> None:
    result = loaded(tmp_path, "name: thing", "description: Makes: plans", *written.split("\n"))
    assert result.skill
    assert result.skill.allowed_tools == tools


@pytest.mark.parametrize(
    ("lines", "user", "model"),
    [
        ([], True, True),
        (["disable-model-invocation: true"], True, False),
        (['disable-model-invocation: "false"'], True, True),
        (["user-invocable: no"], False, True),
        (["user-invocable: perhaps", "disable-model-invocation: perhaps"], False, False),
    ],
)
def test_who_may_call_a_skill_is_read_with_care(
    tmp_path: Path, lines: list[str], user: bool, model: bool
) -> None:
    skill = loaded(tmp_path, "name: thing", "description: d", *lines).skill
    assert skill
    assert (skill.user_invocable, skill.model_invocable) == (user, model)


@pytest.mark.parametrize(
    ("metadata", "on"),
    [
        ("{}", True),
        ("{default_enabled: true}", True),
        ('{default_enabled: "false"}', False),
        ("{default_enabled: perhaps}", False),
        ("{openclaw: {default_enabled: false}}", False),
        ("{openclaw: {default_enabled: false}, author: x}", True),
        ('\'{"cowagent": {"defaultEnabled": false}}\'', False),
    ],
)
def test_the_first_position_of_the_switch_is_read_from_the_metadata(
    tmp_path: Path, metadata: str, on: bool
) -> None:
    skill = loaded(tmp_path, "name: thing", "description: d", f"metadata: {metadata}").skill
    assert skill
    assert skill.default_enabled is on


@pytest.mark.parametrize("metadata", ["broken {", "[a]", "3", "'{\"requires\": {'", "{requires: git}"])
def test_metadata_that_may_have_held_requirements_is_never_passed_over(tmp_path: Path, metadata: str) -> None:
    result = loaded(tmp_path, "name: thing", "description: d", f"metadata: {metadata}")
    assert result.skill is None
    assert result.diagnostics[0].line == 4


@pytest.mark.parametrize(
    ("metadata", "kept"),
    [
        ("{openclaw: {emoji: x}}", {"emoji": "x"}),
        ("{other: {os: linux}}", {"os": "linux"}),
        ("{other: {k: v}}", {"other": {"k": "v"}}),
        ("{openclaw: {emoji: x}, version: 1}", {"openclaw": {"emoji": "x"}, "version": 1}),
    ],
)
def test_one_programs_block_is_unwrapped_only_when_it_is_alone(
    tmp_path: Path, metadata: str, kept: dict[str, object]
) -> None:
    skill = loaded(tmp_path, "name: thing", "description: d", f"metadata: {metadata}").skill
    assert skill
    assert skill.metadata == kept


def test_install_hints_of_any_shape_do_no_harm(tmp_path: Path) -> None:
    result = loaded(tmp_path, "name: thing", "description: d", "metadata:", "  install: [{kind: null}]")
    assert result.skill


def test_setup_is_the_first_lines_under_its_heading(tmp_path: Path) -> None:
    body = "\n".join(["## Setup", "", *(f"step {i}" for i in range(9)), "## Use", "x"])
    put(tmp_path / "a" / "SKILL.md", text("a", "d", "metadata: {requires: {env: KEY}}", body=body))
    skill = load(one(tmp_path)).skill
    assert skill
    assert skill.setup == "step 0 step 1 step 2 step 3 step 4 step 5"


def test_what_the_public_format_forbids_loads_with_a_note(tmp_path: Path) -> None:
    result = loaded(tmp_path, "name: My Thing", f"description: {'x' * 1_100}")
    assert result.skill
    assert [diagnostic.severity for diagnostic in result.diagnostics] == ["note", "note"]


def test_a_skill_reads_its_body_from_the_disk_each_time(tmp_path: Path) -> None:
    file = put(tmp_path / "a" / "SKILL.md", text("a", body="First."))
    skill = load(one(tmp_path)).skill
    assert skill
    assert skill.read_body() == "First."
    put(file, text("a", body="Second."))
    assert skill.read_body() == "Second."
    assert skill.read_text().startswith("---\nname: a")
    assert not hasattr(skill, "__dict__")
    assert "First." not in repr(skill)
