"""Who may talk, and with which rights. Ids, never names; what is not said is forbidden."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bridge.config import AccessRule
from channels.base import Inbound


@dataclass(frozen=True, slots=True)
class Verdict:
    """`allowed`: answer. `denied`: say once that this person is not known. `ignored`: say nothing."""

    kind: Literal["allowed", "denied", "ignored"]
    admin: bool = False


class Access:
    """Decides from the configuration alone; pure and quick.

    `local`: channel instances whose person sits at this machine (the HTTP server or the terminal has
    already made sure of that): without a rule of their own they may do everything.
    """

    def __init__(self, rules: Mapping[str, AccessRule], local: frozenset[str]) -> None:
        self._rules = rules
        self._local = local

    def rule(self, channel: str) -> AccessRule | None:
        return self._rules.get(channel) or self._rules.get("default")

    def decide(self, inbound: Inbound) -> Verdict:
        channel, sender = inbound.address.channel, inbound.sender
        if sender.is_bot:
            return Verdict("ignored")
        if channel in self._local and channel not in self._rules:
            return Verdict("allowed", admin=True)
        rule = self.rule(channel)
        direct = inbound.address.kind == "direct"
        mode = (rule.direct if direct else rule.groups) if rule else "allowlist"
        if mode == "off":
            return Verdict("ignored")
        if not inbound.addressed:
            return Verdict("ignored")
        admin = rule is not None and sender.id in rule.admins
        if admin or mode == "open":
            return Verdict("allowed", admin)
        ids = {sender.id} if direct else {sender.id, inbound.address.chat}
        if rule is not None and not ids.isdisjoint(rule.allow):
            return Verdict("allowed", admin)
        return Verdict("denied")
