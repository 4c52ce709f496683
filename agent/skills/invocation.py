"""`/skill NAME words`: a person calls a skill by its name."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

from agent.skills.limits import chosen_line
from agent.skills.skill import Skill, SkillSet

Refusal = Literal["skill.unknown", "skill.disabled", "skill.missing", "skill.not_for_people"]


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a skill cannot be called: a text's key. `detail` is what is missing, or the nearest name."""

    key: Refusal
    name: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Invoked:
    """`text` is what the model reads as the person's message. `skill` is the one that it begins with."""

    skill: Skill
    text: str


def invocation(skills: SkillSet, name: str, words: str, body: str | None = None) -> Invoked | Refused:
    """The message for the model, or the refusal. Pure.

    Without `body` the model is told where to read the skill. A skill that is hidden from models
    (`disable-model-invocation`) can be called by a person all the same: that is what it is for.
    """
    wanted = name.strip()
    near = [skill for skill in skills.available if skill.name.casefold() == wanted.casefold()]
    skill = skills.get(wanted) or (near[0] if len(near) == 1 else None)
    if skill is None:
        return _refused(skills, wanted)
    if not skill.user_invocable:
        return Refused("skill.not_for_people", skill.name)
    said = words.strip() or "(nothing more: ask what is needed, if the skill needs it)"
    how = f"Read {skill.location} now and follow it." if body is None else f"Follow it:\n\n{body.strip()}\n"
    return Invoked(skill, f"{chosen_line(skill.name)}{how}\nThe person's words: {said}")


def _refused(skills: SkillSet, wanted: str) -> Refused:
    for skill, missing in skills.unavailable:
        if skill.name == wanted:
            return Refused("skill.missing", wanted, str(missing))
    if any(skill.name == wanted for skill in skills.disabled):
        return Refused("skill.disabled", wanted)
    callable_by_people = [skill.name for skill in skills.available if skill.user_invocable]
    near = difflib.get_close_matches(wanted, callable_by_people, 1, 0.6)
    return Refused("skill.unknown", wanted[:64], near[0] if near else "")
