"""Who may talk, and as what. Ids, never names; what is not said is forbidden.

`Access.decide` is pure and quick: it looks at the rules of the configuration and at the grants that admins
gave by pairing, both in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from agent.tools.base import Role
from bridge.addressing import GroupRule
from channels.base import Address, Inbound, Sender

Ids = list[Annotated[str, Field(min_length=1, max_length=200)]]
#: The one key of `access` that is no channel: named lists of people.
PEOPLE = "people"


class ChatRule(GroupRule):
    """One group (or one topic of it, as `chat/topic`). `allow`: only these people, instead of everybody."""

    allow: Ids = Field(default_factory=list)


class AccessRule(GroupRule):
    """Who may talk in a channel. `allow`, `admins`, `guests` and `bots` are platform ids or `@list` (a list
    of `access.people`); a group's id in `allow` lets its members talk there. `chats` are groups with
    settings of their own, let in by being named."""

    model_config = ConfigDict(extra="forbid")

    direct: Literal["pairing", "allowlist", "open", "off"] = "pairing"
    groups: Literal["allowlist", "open", "off"] = "allowlist"
    allow: Ids = Field(default_factory=list)
    admins: Ids = Field(default_factory=list)
    guests: Ids = Field(default_factory=list)
    bots: Ids = Field(default_factory=list)
    chats: dict[str, ChatRule] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`allowed`: answer. `pairing`: tell this person how to be let in. `denied`: say once that they are not
    known. `ignored`: say nothing."""

    kind: Literal["allowed", "pairing", "denied", "ignored"]
    role: Role = "guest"

    @property
    def admin(self) -> bool:
        return self.role == "admin"


class Grants:
    """What admins gave by pairing: the roles of persons by channel. Kept in memory (some 150 bytes each);
    `load` brings them from the store."""

    def __init__(self) -> None:
        self._roles: dict[str, dict[str, Role]] = {}
        #: How often something was given or taken here.
        self.changes = 0

    @staticmethod
    def read(stored: Mapping[str, object]) -> dict[str, dict[str, Role]]:
        """`stored` maps "channel\\0person" to {"role": …}; what is none is left out."""
        names: dict[object, Role] = {"admin": "admin", "member": "member", "guest": "guest"}
        roles: dict[str, dict[str, Role]] = {}
        for key, value in stored.items():
            role = names.get(value.get("role")) if isinstance(value, dict) else None
            if role is not None:
                channel, _, person = key.partition("\0")
                roles.setdefault(channel, {})[person] = role
        return roles

    def load(self, roles: dict[str, dict[str, Role]]) -> None:
        """Take what `read` made in the place of what is known."""
        self._roles = roles

    def give(self, channel: str, person: str, role: Role) -> None:
        self._roles.setdefault(channel, {})[person] = role
        self.changes += 1

    def take(self, channel: str, person: str) -> None:
        self._roles.get(channel, {}).pop(person, None)
        self.changes += 1

    def role(self, channel: str, person: str) -> Role | None:
        return self._roles.get(channel, {}).get(person)

    def admins(self, channel: str) -> list[str]:
        return [who for who, role in self._roles.get(channel, {}).items() if role == "admin"]


class Access:
    """Decides from rules and grants alone.

    `local`: channel instances whose person sits at this machine (the HTTP server or the terminal has
    already made sure of that): without a rule of their own they may do everything. `people`: the named
    lists. `homes` maps (channel, chat) to the id that a chat had before it moved: rules written for that
    still hold.
    """

    def __init__(
        self,
        rules: Mapping[str, AccessRule],
        local: frozenset[str],
        *,
        people: Mapping[str, Sequence[str]] | None = None,
        grants: Grants | None = None,
        homes: Mapping[tuple[str, str], str] | None = None,
    ) -> None:
        self._rules = rules
        self._local = local
        self._people = {name: frozenset(ids) for name, ids in (people or {}).items()}
        self.grants = grants or Grants()
        self.homes: Mapping[tuple[str, str], str] = {} if homes is None else homes

    def rule(self, channel: str) -> AccessRule:
        return self._rules.get(channel) or self._rules.get("default") or _NOBODY

    def group_rule(self, address: Address) -> GroupRule:
        """The settings for a group: its topic's, else its own, else the channel's; each adds to the next."""
        rule = self.rule(address.channel)
        known = self._chats(address)
        found = [
            rule.chats[f"{chat}/{address.thread}"]
            for chat in known
            if f"{chat}/{address.thread}" in rule.chats
        ]
        found += [rule.chats[chat] for chat in known if chat in rule.chats]
        merged: dict[str, object] = {}
        for one in (*found, rule):
            for name in GroupRule.model_fields:
                if name in one.model_fields_set:
                    merged.setdefault(name, getattr(one, name))
        return GroupRule.model_validate(merged)

    def decide(self, inbound: Inbound) -> Verdict:
        """Whether this person may talk here, and as what."""
        return self.of(inbound.sender, inbound.address)

    def of(self, sender: Sender, address: Address) -> Verdict:
        channel = address.channel
        if channel in self._local and channel not in self._rules:
            return Verdict("ignored") if sender.is_bot else Verdict("allowed", "admin")
        rule = self.rule(channel)
        if sender.is_bot:
            known = self._named(rule.bots, channel, sender.id)
            return (
                Verdict("allowed", "guest")
                if known and self._place_open(rule, address)
                else Verdict("ignored")
            )
        role = self._role(rule, channel, sender.id)
        if address.kind == "direct":
            return self._direct(rule, role)
        return self._group(rule, address, sender, role)

    def _direct(self, rule: AccessRule, role: Role | None) -> Verdict:
        if rule.direct == "off":
            return Verdict("ignored")
        if role is not None:
            return Verdict("allowed", role)
        if rule.direct == "open":
            return Verdict("allowed", "guest")
        return Verdict("pairing" if rule.direct == "pairing" else "denied")

    def _group(self, rule: AccessRule, address: Address, sender: Sender, role: Role | None) -> Verdict:
        if rule.groups == "off":
            return Verdict("ignored")
        if role == "admin":
            return Verdict("allowed", role)
        only = self._only(rule, address)
        if only is not None and not self._named(only, address.channel, sender.id):
            return Verdict("denied")
        if self._place_open(rule, address) or role is not None:
            return Verdict("allowed", role or "guest")
        return Verdict("denied")

    def _place_open(self, rule: AccessRule, address: Address) -> bool:
        """Whether everybody in this place may talk."""
        if address.kind == "direct":
            return rule.direct != "off"
        if rule.groups == "open":
            return True
        names = {*rule.chats, *(id for id in rule.allow if not id.startswith("@"))}
        named = {*names, *(name.partition("/")[0] for name in rule.chats)}
        return rule.groups != "off" and any(chat in named for chat in self._chats(address))

    def _only(self, rule: AccessRule, address: Address) -> Ids | None:
        """The people to whom a group is limited, if it is."""
        for chat in self._chats(address):
            for name in (f"{chat}/{address.thread}", chat):
                if name in rule.chats and "allow" in rule.chats[name].model_fields_set:
                    return rule.chats[name].allow
        return None

    def _chats(self, address: Address) -> tuple[str, ...]:
        home = self.homes.get((address.channel, address.chat))
        return (address.chat,) if home is None else (address.chat, home)

    def _role(self, rule: AccessRule, channel: str, person: str) -> Role | None:
        if self._named(rule.admins, channel, person):
            return "admin"
        granted = self.grants.role(channel, person)
        if granted == "admin":
            return granted
        if self._named(rule.allow, channel, person):
            return "member"
        if granted is not None:
            return granted
        return "guest" if self._named(rule.guests, channel, person) else None

    def _named(self, ids: Sequence[str], channel: str, person: str) -> bool:
        """Whether a person is among `ids`, by id or through a named list (there also as `channel:id`)."""
        for one in ids:
            if one == person:
                return True
            if one.startswith("@"):
                listed = self._people.get(one[1:], frozenset())
                if person in listed or f"{channel}:{person}" in listed:
                    return True
        return False


_NOBODY = AccessRule()
