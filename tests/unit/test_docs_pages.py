"""The pages say what the program does: commands, settings, defaults. Both languages say the same."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from agent.tools.base import Annotations, Caller, FunctionTool, Tool, ToolContext, ToolResult
from agent.tools.builtin import builtin_tools
from agent.tools.builtin.skills import find_skills_tool, install_skill_tool
from agent.tools.policy import Policy, PolicyRule
from agent.tools.settings import ToolSettings
from agent.tools.workers import Workers
from bridge.cli import parser
from bridge.commands import FOR_ADMINS, NAMES
from bridge.config import SECTIONS, TOP_KEYS, AccessRule, load_config
from bridge.config_faults import inner_models
from bridge.ledger import UseLimits
from channels.base import ChannelConfig
from channels.registry import TYPES, load
from channels.telegram.config import TelegramConfig
from scripts.check_tree import ROOT

DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "README.zh.md", ROOT / "CONTRIBUTING.md"])
LANGUAGES = ["", ".zh"]
#: Pages that are kept in both languages, block by block.
PAIRS = ["README", "docs/telegram", "docs/groups", "docs/retrieval", "docs/configuration", "docs/deploy"]


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def together(language: str, *pages: str) -> str:
    return "\n".join(read(f"docs/{page}{language}.md") for page in pages)


def table(text: str, first: str) -> list[list[str]]:
    """The rows of the table whose first row contains `first`, cell by cell."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.lstrip().startswith("|") and first in line)
    rows = []
    for line in lines[start:]:
        if not line.lstrip().startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip().strip("|").split("|")])
    return rows


# -- commands ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_chat_command_has_its_line_and_those_for_admins_say_so(language: str) -> None:
    rows = table(together(language, "groups"), "`/help`")
    shown = {name: row for row in rows for name in re.findall(r"`/([a-z]+)[^`]*`", row[0])}
    assert sorted(shown) == sorted(NAMES)
    word = "管理员" if language else "admins"
    assert [name for name in sorted(FOR_ADMINS) if word not in shown[name][1]] == []


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_readme_names_every_chat_command(page: str) -> None:
    (paragraph,) = [part for part in read(page).split("\n\n") if "`/help`" in part]
    assert set(re.findall(r"`/([a-z]+)`", paragraph)) == set(NAMES)


def commands() -> Iterator[tuple[str, str]]:
    """(command, "") or (command, what) for all that the command line knows."""

    def below(one: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
        found = [a.choices for a in one._actions if isinstance(a, argparse._SubParsersAction)]
        return dict(found[0]) if found else {}

    for name, sub in below(parser()).items():
        whats = below(sub)
        yield from ((name, what) for what in whats) if whats else ((name, ""),)


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_readme_names_every_command_of_the_command_line(page: str) -> None:
    lines = read(page).splitlines()

    def is_named(name: str, what: str) -> bool:
        here = [line for line in lines if f"`causeway {name}" in line]
        return any(f"`{what}`" in line or f"`causeway {name} {what}" in line or not what for line in here)

    assert [one for one in commands() if not is_named(*one)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_the_command_line_that_a_page_names_exist(page: Path) -> None:
    known = set(commands())
    names = {name for name, _ in known}
    text = page.read_text(encoding="utf-8")
    wrong = []
    for name, what in re.findall(r"(?:`|^|bin/)causeway ([a-z]+)(?: ([a-z]+)\b)?", text, re.MULTILINE):
        if name not in names or (what and (name, "") not in known and (name, what) not in known):
            wrong.append(f"causeway {name} {what}".strip())
    assert wrong == []


# -- settings ----------------------------------------------------------------------------------------------


def keys(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield field.alias or name
        for inner in inner_models(field.annotation):
            if inner not in (model, UseLimits):  # limits are named by their parts
                yield from keys(inner)


def unnamed(model: type[BaseModel], text: str, *but: str) -> list[str]:
    """Keys of a model that a page does not name, neither as code nor in a block."""
    code = "\n".join(re.findall(r"`[^`\n]+`", text)) + "\n".join(re.findall(r"```\w*\n(.*?)```", text, re.S))
    wanted = dict.fromkeys(key for key in keys(model) if key not in but)
    return [key for key in wanted if not re.search(rf"(?<![\w-]){key}(?![\w-])", code)]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_of_a_section_is_named_in_its_pages(section: str, language: str) -> None:
    pages = ["configuration", *{"sessions": ["groups"], "tools": ["groups"]}.get(section, [])]
    pages += ["retrieval"] if section == "retrieval" else []
    assert unnamed(SECTIONS[section], together(language, *pages)) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_section_has_its_line_in_the_page_about_configuration(language: str) -> None:
    rows = table(together(language, "configuration"), "`workspace`")
    assert [re.findall(r"`([a-z]+)`", row[0])[0] for row in rows] == list(TOP_KEYS)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_key_of_an_access_rule_is_named(language: str) -> None:
    assert unnamed(AccessRule, together(language, "groups")) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_limit_is_told_by_its_two_parts(language: str) -> None:
    text = together(language, "groups")
    whose = {name.split("_")[0] for name in UseLimits.model_fields}
    kinds = {name.split("_")[1] for name in UseLimits.model_fields}
    assert [one for one in sorted(whose) if f"`{one}_`" not in text] == []
    assert [one for one in sorted(kinds) if f"`{one}`" not in text] == []


#: Types whose settings stand in the page about configuration.
HERE = {"web": "configuration", "api": "configuration", "terminal": "configuration", "wecom_bot": "wecom-bot"}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", TYPES)
def test_every_key_of_a_channel_is_named_in_its_page(kind: str, language: str) -> None:
    text = together(language, HERE.get(kind, kind))
    assert unnamed(load(kind).Config, text, *ChannelConfig.model_fields) == []
    assert unnamed(ChannelConfig, together(language, "configuration")) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_defaults_of_the_telegram_page_are_those_of_the_program(language: str) -> None:
    rows = table(together(language, "telegram"), "`token`")
    told = {row[0].strip("`"): row[1].strip("`") for row in rows}
    fields = TelegramConfig.model_fields
    assert set(told) == set(fields) - set(ChannelConfig.model_fields)
    for name, default in told.items():
        real = "" if fields[name].is_required() else fields[name].default
        assert default == ("" if real is None else str(real).lower() if isinstance(real, bool) else real), (
            name
        )


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_defaults_of_the_session_settings_are_those_of_the_program(language: str) -> None:
    fields = SECTIONS["sessions"].model_fields
    rows = table(together(language, "configuration"), "`max_steps`")
    told = {row[0].strip("`"): row[1] for row in rows if row[1]}
    assert len(told) >= 6
    assert {name: float(value) for name, value in told.items()} == {
        name: fields[name].default for name in told
    }


# -- blocks ------------------------------------------------------------------------------------------------


def blocks(text: str) -> list[str]:
    """The YAML blocks of a page, those in lists moved to the left."""
    found = re.findall(r"^( *)(?:\d+\. )?```ya?ml\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(body) for _, body in found]


#: What a channel needs to be named by a rule of an example that leaves `channels` out.
LEAST: dict[str, dict[str, Any]] = {
    "telegram": {"token": "1:a"},
    "slack": {"bot_token": "xoxb-a"},
    "wechat": {"app_id": "wx0123456789abcdef", "app_secret": "a" * 32, "token": "abc"},
    "wecom": {"corp_id": "ww1", "agent_id": 1, "secret": "a", "token": "abc", "aes_key": "a" * 43},
}


def loaded(block: str, folder: Path) -> None:
    """Load an example as the program would. Raises ConfigError."""
    data = yaml.safe_load(block)
    channels = data.setdefault("channels", {})
    for name in data.get("access", {}):
        if name in TYPES and name not in channels:
            channels[name] = LEAST.get(name, {})
    environ = dict.fromkeys(re.findall(r"\$\{([A-Z_]+)", block), "a" * 43)
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    load_config(file, {"HOME": str(folder), **environ})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_example_of_a_configuration_loads(page: Path, tmp_path: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        assert set(yaml.safe_load(block)) <= set(TOP_KEYS), block
        loaded(block, tmp_path)


@pytest.mark.parametrize("pair", PAIRS)
def test_both_languages_show_the_same_examples_and_tables(pair: str) -> None:
    english, chinese = (read(f"{pair}{language}.md") for language in LANGUAGES)
    assert [yaml.safe_load(b) for b in blocks(english)] == [yaml.safe_load(b) for b in blocks(chinese)]

    def heads(text: str) -> list[list[str]]:
        cells = re.findall(r"^\|([^|\n]+)\|", text, re.MULTILINE)
        return [[code.split()[0] for code in re.findall(r"`([^`]+)`", cell)] for cell in cells]

    assert heads(english) == heads(chinese)
    shape = r"^(#+|\||\d+\.|- )"
    assert len(re.findall(shape, english, re.M)) == len(re.findall(shape, chinese, re.M))


# -- which tools -------------------------------------------------------------------------------------------


async def nothing(params: dict[str, Any], context: ToolContext) -> ToolResult:
    raise AssertionError("nothing is called here")


def remote(name: str, notes: Annotations, source: str = "server") -> Tool:
    return FunctionTool(f"{source}__{name}", "", {}, nothing, notes, source=source)


READS = Annotations(read_only=True, destructive=False)
WRITES = Annotations(read_only=False, destructive=False)
DESTROYS = Annotations()
SILENT = Annotations(stated=False)
#: The rows of the table that are about tools of servers, in their order.
ROWS = [
    [remote("look", READS), remote("get_page", SILENT), remote("list_all", SILENT)],
    [remote("note", WRITES)],
    [remote("wipe", DESTROYS), remote("create_page", SILENT), remote("send_mail", SILENT)],
    [remote("frobnicate", SILENT)],
]
PLACES = [
    Caller("1", admin=True, chat_kind="direct"),
    Caller("1", chat_kind="direct"),
    Caller("1", guest=True, chat_kind="direct"),
    Caller("1", admin=True, chat_kind="group"),
]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[dict[str, Tool]]:
    """The built-in tools, the shell switched on."""
    settings = ToolSettings.model_validate({"bash": {"enabled": True}})
    workers = Workers()

    async def installed(who: str, why: str) -> None:
        raise AssertionError("nothing is installed here")

    more = [install_skill_tool(tmp_path, installed), find_skills_tool(lambda: None)]  # type: ignore[arg-type, return-value]
    yield {tool.name: tool for tool in [*builtin_tools(settings, workers), *more]}
    workers.close()


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_table_of_tools_is_what_the_policy_decides(language: str, own: dict[str, Tool]) -> None:
    words = {"是": "allow", "否": "deny", "先问": "ask", "yes": "allow", "no": "deny", "asks": "ask"}
    rows = table(together(language, "groups"), "`read`")
    named = [re.findall(r"`([a-z_]+)`", row[0]) for row in rows]
    tools = [[own[name] for name in names] for names in named if names] + ROWS
    assert len(tools) == len(rows)
    assert {name for names in named for name in names} == own.keys() - {"find_skills"}
    for row, its in zip(rows, tools, strict=True):
        for tool in its:
            decided = [Policy().decide(tool, caller).effect for caller in PLACES]
            assert decided == [words[cell] for cell in row[1:]], tool.name


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_five_rules_of_the_page_do_what_they_say(language: str, own: dict[str, Tool]) -> None:
    (block,) = [block for block in blocks(together(language, "groups")) if "policy" in block]
    rules = [PolicyRule.model_validate(rule) for rule in yaml.safe_load(block)["tools"]["policy"]]
    assert len(rules) == 5

    def decided(tool: Tool, kind: Any = "direct", channel: str = "telegram", **more: Any) -> str:
        return Policy(rules).decide(tool, Caller("7", channel=channel, chat_kind=kind, **more)).effect

    web, mail = own["web_fetch"], remote("send_mail", SILENT, "mail")
    assert (decided(web, guest=True), decided(web), decided(own["read"], guest=True)) == (
        "deny",
        "allow",
        "allow",
    )
    mail = remote("send", WRITES, "mail")
    assert (decided(mail), decided(mail, "group"), decided(mail, guest=True)) == ("ask", "deny", "deny")
    book, here = remote("create_event", SILENT, "calendar"), {"kind": "group", "chat": "-1001234567890"}
    assert (decided(book, **here), decided(book, "group", chat="-1"), decided(book, **here, guest=True)) == (
        "ask", "deny", "deny",
    )  # fmt: skip
    notes = remote("delete_note", SILENT, "notes")
    own_notes = Policy(rules).decide(notes, Caller("123456789", channel="telegram", chat_kind="direct"))
    assert (own_notes.effect, decided(notes), decided(notes, "group")) == ("allow", "ask", "deny")
    assert decided(own["bash"], channel="slack_acme", admin=True) == "deny"
    assert decided(own["bash"], admin=True) == "ask"
