"""Questions and answers in a terminal: from a person, from a pipe (a line each), or from flags."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Collection, Sequence

from bridge.cli_terminal import Terminal


class Stopped(Exception):
    """The dialogue cannot go on. The message says why and what to do."""


class Dialogue:
    """`yes`: nothing is asked (`silent`), defaults count. `given`: answers by slot, each used once. Secrets
    are never shown. All calls block, and raise Stopped when the input ends."""

    def __init__(self, terminal: Terminal, *, yes: bool) -> None:
        self.terminal = terminal
        self.given: dict[str, str] = {}
        self.silent = yes
        self._person = sys.stdin.isatty()

    def ask(
        self,
        slot: str,
        key: str,
        /,
        *,
        default: str = "",
        secret: bool = False,
        required: bool = True,
        kept: bool = False,
        **values: object,
    ) -> str:
        """The answer to the text `key`, or what was given for `slot`; "" only when none is `required` or what
        is there is `kept`. Raises Stopped when nobody gives one that is needed."""
        question = self.terminal.text(key, **values)
        end = "init.default" if default else "init.keep" if kept else "" if required else "init.optional"
        while True:
            if slot in self.given:
                answer = self.given.pop(slot).strip()
            else:
                answer = self._read(question, end, default, secret)
            if secret and answer:
                self.terminal.masker.add(answer)
            answer = answer or default
            if answer or not required or kept:
                return answer
            if self.silent:
                raise Stopped(self.terminal.text("init.missing", what=question, slot=slot))
            self.terminal.say("init.needed")

    def taken(self, group: str, but: Collection[str] = ()) -> dict[str, str]:
        """What was given for `group.NAME`, by name, save the names in `but`; it is used with this."""
        slots = [slot for slot in self.given if slot.startswith(f"{group}.")]
        names = {slot: slot.partition(".")[2] for slot in slots}
        return {name: self.given.pop(slot).strip() for slot, name in names.items() if name not in but}

    def _read(self, question: str, end: str, default: str, secret: bool) -> str:
        if self.silent:
            return ""
        shown = question + (self.terminal.text(end, default=default) if end else "")
        hidden = secret and self._person
        if hidden:
            shown += self.terminal.text("init.hidden")
        self.terminal.raw(f"{shown}\n")
        if hidden:
            try:
                return getpass.getpass("> ").strip()
            except EOFError:
                raise Stopped(self.terminal.text("init.ended")) from None
        else:
            self.terminal.raw("> ")
            line = sys.stdin.readline()
            if not self._person:
                self.terminal.raw("\n")
        if not line:
            raise Stopped(self.terminal.text("init.ended"))
        return line.strip()

    def agreed(self, key: str, /, *, default: bool, **values: object) -> bool:
        words = self._read(self.terminal.text(key, **values), "init.yes" if default else "init.no", "", False)
        return words.lower() in ("y", "yes", "是", "好") if words else default

    def choose(self, key: str, options: Sequence[str]) -> str:
        """One of the options, by number or name; `<key>.<option>` is its text. The first is the default."""
        labels = [self.terminal.text(f"{key}.{one}") for one in options]
        while True:
            found = self.several(key, options, labels)
            if len(found) <= 1:
                return found[0] if found else options[0]
            self.terminal.say("init.one")

    def several(self, key: str, options: Sequence[str], labels: Sequence[str]) -> list[str]:
        """Any of the options, by numbers or names."""
        lines = [f"  {number}  {label}" for number, label in enumerate(labels, 1)]
        question = "\n".join([self.terminal.text(key), *lines])
        while True:
            found, wrong = [], []
            for word in self._read(question, "", "", False).replace(",", " ").replace(",", " ").split():
                if word.isdecimal() and 1 <= int(word) <= len(options):
                    found.append(options[int(word) - 1])
                elif word.lower() in options:
                    found.append(word.lower())
                else:
                    wrong.append(word)
            if not wrong:
                return list(dict.fromkeys(found))
            self.terminal.say("init.not_there", words=", ".join(wrong)[:80])

    def after_fault(self, keepable: bool) -> str:
        """What to do about settings that do not work: "again", "keep", "skip", or "NAME=VALUE". Without
        anybody to ask, what may work later is kept and the rest stops the dialogue."""
        while True:
            answer = self._read(
                self.terminal.text("init.fault" if keepable else "init.fault_again"), "", "", False
            )
            if self.silent and not answer:
                if keepable:
                    return "keep"
                raise Stopped(self.terminal.text("init.stopped"))
            if "=" in answer:
                return answer
            word = answer.lower()
            if word in ("", "a", "again"):
                return "again"
            if word in ("k", "keep") and keepable:
                return "keep"
            if word in ("s", "skip"):
                return "skip"
