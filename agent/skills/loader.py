"""From a found file to a skill, or to the reason why it is none."""

from __future__ import annotations

import contextlib
import logging
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from agent.skills.discovery import Found, shown
from agent.skills.frontmatter import GUARDED, BadValue, Document, Fault, canonical, compose, parse, plain
from agent.skills.recovery import from_json
from agent.skills.requirements import parse_requirements, switch
from agent.skills.skill import VIRTUAL_ROOT, Diagnostic, Skill
from agent.skills.textfile import TooLarge, read_bytes

log = logging.getLogger("causeway.skills")

MAX_NAME = 64
#: The public format allows 1,024 characters; a longer one is kept to this and shortened in the prompt.
MAX_DESCRIPTION = 4_096
FORMAT_DESCRIPTION = 1_024
_FORMAT_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\Z")
_SETUP = re.compile(r"^#{1,6}[ \t]+setup[ \t]*#*[ \t]*$", re.IGNORECASE)
#: Programs that keep their metadata in a block of their own, and fields that make any block such a one.
_PROGRAMS = frozenset({"causeway", "cowagent", "openclaw", "clawdbot", "nanobot"})
_OURS = frozenset({"requires", "os", "always", "defaultenabled"})
_TOOL = re.compile(r"(?:[^\s,(]|\([^)]*\))+")


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a file gave. `again`: it could not be read, so it is tried again although it did not change."""

    skill: Skill | None
    diagnostics: tuple[Diagnostic, ...] = ()
    again: bool = False


class Refused(Exception):
    """The file is no skill: its arguments are the line, the reason and the cure."""


def load(found: Found) -> Loaded:
    """Read one file. Blocks; never raises, whatever the file holds."""
    at, again = shown(found.path), False
    try:
        return build(found, parse(read_bytes(Path(found.file))))
    except TooLarge as error:
        reason = f"The file is not used: {error}"
        cure = "move what is long into files beside it and name them in the text"
    except OSError as error:
        reason = f"The file cannot be read: {error.strerror or error}"
        cure, again = "check its permissions", True
    except Exception:
        # One file, whatever is in it, must never cost the others; this is a defect of ours, so it is told.
        log.exception("skill file %s could not be handled", at)
        reason = "The file could not be handled, which is a defect of the loader"
        cure = "simplify its frontmatter, and report the log"
    return Loaded(None, (Diagnostic(at, 0, reason, cure),), again)


def build(found: Found, document: Document) -> Loaded:
    """The skill that a parsed file describes."""
    at = shown(found.path)
    faults = list(document.faults)
    try:
        _refuse_fatal(faults)
        skill = _skill(found, document, faults)
        _refuse_fatal(faults)
    except Refused as refusal:
        return Loaded(None, (Diagnostic(at, *refusal.args), *_told(at, faults)))
    return Loaded(skill, (*_told(at, faults), *_notes(at, found, document, skill)))


def _refuse_fatal(faults: list[Fault]) -> None:
    for fault in faults:
        if fault.fatal:
            raise Refused(fault.line, fault.reason, fault.cure)


def _told(at: str, faults: list[Fault]) -> list[Diagnostic]:
    return [Diagnostic(at, f.line, f.reason, f.cure, "warning") for f in faults if not f.fatal]


def _skill(found: Found, document: Document, faults: list[Fault]) -> Skill:
    fields = document.fields
    description = _description(document)
    name = _name(found, document, faults)
    metadata = _metadata(document)
    requirements, more = parse_requirements(metadata, fields, document.line("metadata"))
    faults.extend(more)
    meta = {canonical(key): value for key, value in metadata.items()}
    unclear = Fault(
        document.line("metadata"),
        "'default_enabled' is neither true nor false; the skill begins switched off",
        "write true or false",
    )
    file_name = found.path.replace("\\", "/").rpartition("/")[2]
    return Skill(
        name=name,
        description=description,
        source=found.source,
        file=Path(found.file),
        folder=Path(found.folder),
        location=f"{VIRTUAL_ROOT}/{name}/{file_name}",
        single=found.single,
        # A switch that cannot be read is taken as the narrower one.
        user_invocable=_switch(document, "userinvocable", True, False, faults),
        model_invocable=not _switch(document, "disablemodelinvocation", False, True, faults),
        default_enabled=switch(meta.get("defaultenabled"), True, False, faults, unclear),
        allowed_tools=_allowed_tools(document, faults),
        requirements=requirements,
        setup=_setup(document.body) if requirements else "",
        metadata=MappingProxyType(dict(metadata)),
    )


def _description(document: Document) -> str:
    value = document.fields.get("description")
    line = document.line("description")
    cure = "write 'description:' and one sentence that says what the skill does and when to use it"
    if isinstance(value, list):
        value = " ".join(str(item) for item in value if isinstance(item, (str, int, float)))
    if value is None and "description" not in document.lines:
        near = [key for key in document.fields if key.startswith("desc") or key in ("summary", "about")]
        hint = f" (there is {near[0]!r})" if near else ""
        raise Refused(line, f"The skill has no description{hint}", cure)
    if value is not None and not isinstance(value, str):
        raise Refused(line, "The description is no text", cure)
    if not value or not value.strip():
        raise Refused(line, "The description is empty", cure)
    return value.strip()[:MAX_DESCRIPTION]


def usable_name(name: str) -> bool:
    """Letters and digits of any script, `-`, `_`, `.` and blanks inside; it stands in a path and in XML."""
    if not name or len(name) > MAX_NAME or ".." in name or name[-1] in ". " or name[0] in "-_. ":
        return False
    return all(c in "-_. " or unicodedata.category(c)[0] in "LMN" for c in name)


def _name(found: Found, document: Document, faults: list[Fault]) -> str:
    value = document.fields.get("name")
    if isinstance(value, list):
        value = value[0] if value else None
    given = "" if value is None or isinstance(value, (dict, list)) else str(value)
    given = unicodedata.normalize("NFC", given).strip()
    hint = unicodedata.normalize("NFC", found.hint)
    if usable_name(given):
        return given
    cure = f"use letters, digits and '-', at most {MAX_NAME} characters"
    line = document.line("name")
    if not usable_name(hint):
        reason = "Neither the name in the file nor the name of its folder can be used as a skill's name"
        raise Refused(line, reason, cure)
    if value is not None:
        faults.append(Fault(line, f"The name cannot be used; the skill is called {hint!r} instead", cure))
    return hint


def _metadata(document: Document) -> Mapping[str, Any]:
    value = document.fields.get("metadata")
    if isinstance(value, str) and value.strip():
        value = _from_text(value)
    if value is None or value == "":
        return {}
    if not isinstance(value, dict):
        # It may have held requirements: a skill is not offered as if it had none.
        cure = "write it as indented 'key: value' lines or as one JSON object"
        reason = "The metadata is neither a mapping nor a JSON object"
        raise Refused(document.line("metadata"), reason, cure)
    if len(value) == 1:
        ((key, inner),) = value.items()
        if isinstance(inner, dict):
            ours = not _OURS.isdisjoint(map(canonical, inner)) and canonical(key) not in GUARDED
            if ours or canonical(key) in _PROGRAMS:
                return inner  # one block for one program, as `metadata: {openclaw: {...}}`
    return value


def _from_text(text: str) -> Any:
    """Metadata given as a string. What is no mapping comes back as the string."""
    with contextlib.suppress(BadValue):
        return from_json(text)
    try:
        node = compose(text.replace("\t", "  "))
        return plain(node) if node is not None else text
    except (yaml.YAMLError, BadValue, RecursionError):
        return text


def _switch(document: Document, key: str, default: bool, careful: bool, faults: list[Fault]) -> bool:
    reason = f"A switch is neither true nor false; it counts as {str(careful).lower()}"
    unclear = Fault(document.line(key), reason, "write true or false")
    return switch(document.fields.get(key), default, careful, faults, unclear)


def _allowed_tools(document: Document, faults: list[Fault]) -> tuple[str, ...] | None:
    if "allowedtools" not in document.fields:
        return None
    value = document.fields["allowedtools"]
    items = _TOOL.findall(value) if isinstance(value, str) else value
    if items is None:
        return ()
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        reason = "'allowed-tools' is no list of names; it counts as none"
        faults.append(Fault(document.line("allowedtools"), reason, "write 'allowed-tools: read, write'"))
        return ()
    return tuple(dict.fromkeys(item.strip() for item in items if item.strip()))


def _setup(body: str) -> str:
    """The first six lines under `## Setup`, at most 300 characters."""
    lines = iter(body.split("\n"))
    if not any(_SETUP.match(line) for line in lines):
        return ""
    picked: list[str] = []
    for line in lines:
        if re.match(r"#{1,6}[ \t]", line) or len(picked) == 6:
            break
        if line.strip():
            picked.append(line.strip())
    return " ".join(picked)[:300]


def _notes(at: str, found: Found, document: Document, skill: Skill) -> list[Diagnostic]:
    """What the public format forbids and this loader bears."""
    notes = []
    line = document.line("name")
    if not found.single and unicodedata.normalize("NFC", found.hint) != skill.name:
        reason = f"The name {skill.name!r} is not the folder's name {shown(found.hint)!r}"
        notes.append(Diagnostic(at, line, reason, "give both the same name", "note"))
    elif not _FORMAT_NAME.match(skill.name):
        reason = f"The name {skill.name!r} is not in the public format"
        notes.append(Diagnostic(at, line, reason, "use small letters, digits and single '-'", "note"))
    if len(skill.description) > FORMAT_DESCRIPTION:
        reason = f"The description is longer than {FORMAT_DESCRIPTION} characters"
        line = document.line("description")
        notes.append(Diagnostic(at, line, reason, "say what and when; move the rest into the text", "note"))
    return notes
