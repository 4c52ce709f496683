"""What makes a skill be chosen rightly and followed well, as findings with a cure.

Rules of thumb on words, in English and Chinese: a finding is advice, unless it is an error of the file.
Pure, but for `inspect`, which reads the skill's folder.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.skills.discovery import SKILL_FILE, Found, Stamp, holds
from agent.skills.frontmatter import Document, parse
from agent.skills.loader import Loaded, load
from agent.skills.skill import Severity, Skill, Source
from agent.skills.textfile import read_bytes
from agent.skills.words import anchors, excludes, meant, sentences, words

#: Tokens of the text below the frontmatter, and of one reference file.
BODY_TOKENS = 2_000
REFERENCE_TOKENS = 5_000
#: Lines of one table or code block that should be a file of its own.
LONG_BLOCK = 60
_MAX_FILES = 2_000
_FEWEST_ANCHORS = 5
#: Share of words that two descriptions may have in common.
_ALIKE = 0.35


@dataclass(frozen=True, slots=True)
class Finding:
    """`rule` is a fixed word, `line` counts from 1 (0: the file as a whole)."""

    rule: str
    skill: str
    line: int
    reason: str
    cure: str
    severity: Severity = "warning"
    file: str = SKILL_FILE

    def __str__(self) -> str:
        where = f"{self.skill}/{self.file}" + (f":{self.line}" if self.line else "")
        return f"{where}: {self.reason}. To mend it: {self.cure}. [{self.rule}]"


def tokens(text: str) -> int:
    """About how many tokens a text costs: four characters of English, one and a half of Chinese."""
    wide = len(re.findall(r"[\u3040-\u9fff\uac00-\ud7af\uff00-\uffef]", text))
    return wide * 2 // 3 + (len(text) - wide) // 4


# -- the description ---------------------------------------------------------------------------------------

_WHEN = re.compile(
    r"\b(when|whenever|if (someone|the|a|you)|use (this|it|for)|used? (to|for)|for requests|asks? (for|to)|"
    r"wants?|mentions?)\b|使用|用于|适用|当|时用|场景",
    re.IGNORECASE,
)
_LOOK = re.compile(
    r"\b(read|look|inspect|list|quer(y|i)|search|analy[sz]|summari[sz]|diagnos|audit|explain|report|monitor)\w*"
    r"|查询|查看|读取|统计|排查|分析|诊断|总结|检索",
    re.IGNORECASE,
)
_CHANGE = re.compile(
    r"\b(delet|drop|truncat|remov|overwrit|deploy|publish|migrat|back(s|ing)? ?up|restor|restart|purg|wip)\w*"
    r"|删除|清空|写入|覆盖|部署|发布|迁移|备份|恢复|重启",
    re.IGNORECASE,
)
_DANGER = re.compile(
    r"\b(delet(e|es|ed|ing)|drop(s|ping)? (the )?(table|database|schema)\w*|truncat\w+|overwrit\w+|"
    r"wip(e|es|ing)|purg(e|es|ing)|force.push\w*|payments?|production|irreversibl\w+)\b|\brm -\w*[rf]"
    r"|\b(UPDATE|DELETE|DROP|TRUNCATE)\b|删除|清空|覆盖|生产环境|付款|转账|不可恢复",
)
_HARD = re.compile(
    r"\b(never|do not|don't|must not|must|only|refuse|forbidden|not allowed)\b"
    r"|不要|禁止|绝不|一律不|严禁|不得|请勿|必须|仅",
    re.IGNORECASE,
)
_SOFT = re.compile(
    r"\b(be (very |extra )?careful|carefully|with care|cautious\w*|try (not to|to avoid)|preferably|ideally|"
    r"should avoid|avoid if|if possible|better not)\b|谨慎|小心|尽量|最好不|建议不|注意",
    re.IGNORECASE,
)
_EMPTY = re.compile(
    r"\bas \w+ as possible\b|\b(appropriately|properly|robustly|meticulously|professionally|high[- ]quality|"
    r"best practices?|world[- ]class|state[- ]of[- ]the[- ]art|be (thorough|smart|creative|helpful))\b"
    r"|尽可能|高质量|恰当地|合理地|妥善|最佳实践",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"\"[^\"\n]*\"|“[^”\n]*”|「[^」\n]*」|`[^`\n]*`|\([^)\n]*\)")


def describe(skill: Skill, line: int) -> Iterator[Finding]:
    """Findings on the description, which is all that a model sees before it chooses."""
    text = " ".join(skill.description.split())
    positive = meant(text)

    def found(rule: str, reason: str, cure: str) -> Finding:
        return Finding(rule, skill.name, line, reason, cure)

    if not _WHEN.search(positive):
        yield found(
            "when", "The description does not say when to use the skill",
            "add 'Use when someone ...' with words that people really write",
        )  # fmt: skip
    if not any(excludes(part) for part in sentences(text)):
        yield found(
            "when-not", "The description does not say when not to use the skill",
            "add 'Do not use for ...' and name the requests that look alike",
        )  # fmt: skip
    few = len(anchors(positive))
    if few < _FEWEST_ANCHORS:
        yield found(
            "nouns", f"The description has only {few} words that tell it from others",
            "name the things that people write: file types, fields, product names, phrases in quotes",
        )  # fmt: skip
    plain = _QUOTED.sub(" ", positive)
    look, change = _LOOK.search(plain), _CHANGE.search(plain)
    if look and change:
        yield found(
            "one-kind", f"The description both looks ({look[0]!r}) and changes ({change[0]!r})",
            "make two skills, so that looking never leads into changing",
        )  # fmt: skip


# -- the text ----------------------------------------------------------------------------------------------

_FENCE = re.compile(r"\s*(`{3,}|~{3,})\s*(\w*)")
_PATH = re.compile(r"(?<![\w/.-])(?:\./)?((?:references|scripts|assets|templates)/[\w./-]*\w\.\w+)")
_LINK = re.compile(r"\]\(\s*<?([^)>\s#]+)")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:|//|/|#", re.IGNORECASE)


def advise(skill: Skill, document: Document, files: Mapping[str, int]) -> Iterator[Finding]:
    """Findings on the text. `files` are the skill's files with their sizes in tokens (0: no text)."""
    lines, first_line = document.body.split("\n"), document.body_line
    spent = tokens(document.body)
    if spent > BODY_TOKENS:
        yield Finding(
            "length", skill.name, first_line, f"The text has about {spent} tokens, more than {BODY_TOKENS}",
            "move what is only sometimes needed into references/, one topic a file, and say when to read it",
        )  # fmt: skip
    yield from _wording(skill, lines, first_line)
    yield from _long_blocks(skill, lines, first_line)
    yield from _references(skill, lines, first_line, files)


def _wording(skill: Skill, lines: Sequence[str], first_line: int) -> Iterator[Finding]:
    told = 0
    for number, line in enumerate(lines, first_line):
        plain = _QUOTED.sub(" ", line)
        soft, empty = _SOFT.search(plain), _EMPTY.search(plain)
        if soft and _DANGER.search(plain):
            yield Finding(
                "hard-words", skill.name, number, f"A danger is met with soft words ({soft[0]!r})",
                "forbid it: 'Never ...', or say the condition under which it is allowed",
            )  # fmt: skip
        elif empty and told < 5 and not line.startswith("#"):
            told += 1
            yield Finding(
                "empty-words", skill.name, number, f"{empty[0]!r} tells nothing that can be checked",
                "write a condition or a number, or leave it out",
            )  # fmt: skip
    plain = _QUOTED.sub(" ", "\n".join([skill.description, *lines]))
    if (danger := _DANGER.search(plain)) and not _HARD.search(plain):
        yield Finding(
            "hard-words", skill.name, 0, f"The skill speaks of {danger[0]!r} and forbids nothing",
            "say in hard words what must never be done, in the description too",
        )  # fmt: skip


def _long_blocks(skill: Skill, lines: Sequence[str], first_line: int) -> Iterator[Finding]:
    begun, fence = 0, ""
    for number, line in enumerate([*lines, ""], first_line):
        match = _FENCE.match(line)
        table = line.lstrip().startswith("|")
        ends = not table if fence == "|" else match and match[1].startswith(fence)
        if begun and ends:
            if number - begun > LONG_BLOCK:
                yield Finding(
                    "split", skill.name, begun, f"A table or example has {number - begun} lines",
                    "put it into a file under references/ and say when to read it",
                )  # fmt: skip
            begun = 0
        elif not begun and (match or table):
            begun, fence = number, match[1] if match else "|"


def _references(
    skill: Skill, lines: Sequence[str], first_line: int, files: Mapping[str, int]
) -> Iterator[Finding]:
    named: set[str] = set()
    inside = ""
    for number, line in enumerate(lines, first_line):
        if match := _FENCE.match(line):
            inside = "" if inside else match[2] or "text"
        if inside in ("markdown", "md"):
            continue  # an example of another file
        links = [] if inside else [link for link in _LINK.findall(line) if not _SCHEME.match(link)]
        for path in dict.fromkeys([*_PATH.findall(line), *links]):
            clean = os.path.normpath(path)
            if clean not in named and not any(holds(clean, file) for file in files):
                yield Finding(
                    "reference", skill.name, number, f"{path} is named and is not there",
                    "correct the path (relative to the skill's folder), or add the file", "error",
                )  # fmt: skip
            named.add(clean)
    for path, spent in sorted(files.items()):
        if not path.startswith("references/"):
            continue
        if not any(holds(name, path) for name in named):
            yield Finding(
                "unnamed", skill.name, 0, f"{path} is nowhere named, so nobody will read it",
                "say in the text when to read it, by its path",
            )  # fmt: skip
        if spent > REFERENCE_TOKENS:
            yield Finding(
                "split", skill.name, 0, f"It has about {spent} tokens and would be read whole",
                "split it by topic into files that can be read one at a time", file=path,
            )  # fmt: skip


# -- whole skills ------------------------------------------------------------------------------------------


def _lint(loaded: Loaded, data: bytes, files: Mapping[str, int], name: str) -> list[Finding]:
    """All findings on one skill; what the loader said comes first. `name` is for a file that is no skill."""
    skill = loaded.skill
    found = [
        Finding("loader", skill.name if skill else name, d.line, d.reason, d.cure, d.severity)
        for d in loaded.diagnostics
    ]
    if skill is None:
        return found
    document = parse(data)
    found += describe(skill, document.line("description"))
    found += advise(skill, document, files)
    return found


def inspect(folder: Path) -> tuple[Skill | None, list[Finding]]:
    """Check a skill's folder, wherever it lies. Blocks. Raises FileNotFoundError without a SKILL.md."""
    real = folder.resolve()
    file = next((f for f in sorted(real.iterdir()) if f.name.casefold() == SKILL_FILE.casefold()), None)
    if file is None:
        raise FileNotFoundError(f"{folder} holds no {SKILL_FILE}")
    return _checked(file, real, False, "custom")


def inspect_skill(skill: Skill) -> list[Finding]:
    """Check a skill that a set holds. Blocks; raises OSError when its file is gone."""
    return _checked(skill.file, skill.folder, skill.single, skill.source)[1]


def _checked(file: Path, folder: Path, single: bool, source: Source) -> tuple[Skill | None, list[Finding]]:
    hint = file.stem if single else folder.name
    loaded = load(Found(str(file), str(file), str(folder), hint, single, source, Stamp.of(file.stat())))
    try:
        data = read_bytes(file)
    except OSError:
        data = b""  # the loader has told why
    return loaded.skill, _lint(loaded, data, {} if single else _files(folder), hint)


def _files(folder: Path) -> dict[str, int]:
    """The files of a folder, by their path in it, with about how many tokens a text would cost."""
    files: dict[str, int] = {}
    for path, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(path, name)
            text = name.endswith((".md", ".txt")) and file.is_file() and file.stat().st_size < 1_000_000
            spent = tokens(file.read_text("utf-8", "replace")) if text else 0
            files[file.relative_to(folder).as_posix()] = spent
            if len(files) >= _MAX_FILES:
                return files
    return files


def confusable(skills: Iterable[Skill]) -> list[tuple[Skill, Skill, tuple[str, ...]]]:
    """Pairs of skills whose descriptions are easily taken for each other, with the words that they share.

    A pair of which one names the other has been told apart by its author.
    """
    known = [(skill, words(meant(skill.description))) for skill in skills if skill.model_invocable]
    shared: dict[tuple[int, int], set[str]] = defaultdict(set)
    holders: dict[str, list[int]] = defaultdict(list)
    for index, (_, mine) in enumerate(known):
        for word in mine:
            holders[word].append(index)
    for word, indices in holders.items():
        for pair in itertools.combinations(indices, 2):
            shared[pair].add(word)
    pairs = []
    for (i, j), both in sorted(shared.items()):
        (first, mine), (second, theirs) = known[i], known[j]
        alike = len(both) >= 3 and len(both) / len(mine | theirs) >= _ALIKE
        if alike and not (_names(first, second) or _names(second, first)):
            pairs.append((first, second, tuple(sorted(both))))
    return pairs


def _names(skill: Skill, other: Skill) -> bool:
    """Whether a description says when the other skill is meant. A name of one word may be just a word."""
    if "-" in other.name:
        return other.name in skill.description
    return any(excludes(part) and other.name in part for part in sentences(skill.description))
