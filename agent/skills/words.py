"""The words of a description that tell one skill from another, in English and Chinese. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from agent.skills.skill import Skill

_WORD = re.compile(r"[a-z][a-z0-9]+|[\u3400-\u9fff]+")
_ENDINGS = re.compile(r"(ations?|ing|ies|es|s|ed|e)\Z")
#: Words that stand in every description.
_COMMON_WORDS = """
a about after all also an and any anything are as asks at be been before both but by can do does done each
for from gets give given gives has have help how if in into is it its just know like made make makes may
more must need needed needs never new no not of on one only or other out over own please request requests
same say says should skill so some someone something such task tasks than that the their them then there
these they this those to two up use used user users uses using want wants was way we what when whenever
where which while who will with without work works would write writes you your
"""
COMMON = frozenset(_COMMON_WORDS.split())
#: Words so wide that a skill described by nothing else is chosen for everything.
_WIDE_WORDS = """
assist assists assisting content data deal deals dealing files general generic handle handles handling
helper information item items manage manages managing management misc operate operation operations perform
performs process processes processing related stuff support supports things tool tools various
"""
WIDE = frozenset(_WIDE_WORDS.split())
_WIDE_CHINESE = re.compile(
    "相关|处理|操作|数据|内容|信息|各种|一般|通用|管理|帮助|任务|功能|技能|用户|使用|需要|时候"
)
_WITHOUT = re.compile(
    r"\b(do not|don't|does not|not for|never|must not|should not|except|rather than|instead of)\b"
    r"|不要|不适用|请勿|勿|禁止|不用于|不得|严禁|别用",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[。！？；;])")


def sentences(text: str) -> list[str]:
    return [part for part in _SENTENCE.split(" ".join(text.split())) if part.strip()]


def excludes(sentence: str) -> bool:
    """Whether a sentence says when a skill is not meant."""
    return bool(_WITHOUT.search(sentence))


def meant(description: str) -> str:
    """The description without the sentences on what it is not for."""
    return " ".join(part for part in sentences(description) if not excludes(part))


def words(text: str) -> frozenset[str]:
    """Content words in one form; Chinese by pairs of characters."""
    found: set[str] = set()
    for word in _WORD.findall(text.casefold()):
        if word[0] >= "\u3400":
            found.update(word[i : i + 2] for i in range(len(word) - 1))
        elif word not in COMMON and len(word) > 2:
            short = _ENDINGS.sub("", word)
            found.add(short if len(short) > 2 else word)
    return frozenset(found)


def anchors(text: str) -> frozenset[str]:
    """Content words that are not so wide that they fit everything."""
    plain = " ".join(word for word in re.split(r"\s+", text) if word.strip(".,;:").casefold() not in WIDE)
    return words(_WIDE_CHINESE.sub(" ", plain))


def ranked(query: str, skills: Iterable[Skill]) -> list[Skill]:
    """The skills that share words with the query, best first; equal ones by name."""
    wanted = words(query)
    scored = []
    for skill in skills:
        name = words(skill.name.replace("-", " ").replace("_", " "))
        score = 2 * len(wanted & name) + len(wanted & words(meant(skill.description)))
        if score:
            scored.append((-score, skill.name, skill))
    return [skill for _, _, skill in sorted(scored, key=lambda item: item[:2])]
