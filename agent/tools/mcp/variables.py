"""`${VAR}` in `mcp.json`: expanded once, with the values that look like credentials told to a masker."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_REFERENCE = re.compile(r"(\$?)\$\{([^{}]*)\}")
_NAME = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_SECRET_NAME = re.compile(
    r"token|secret|passw|pwd|api_?key|access_?key|private_?key|(?:^|_)key(?:$|_)|auth|credential|cookie|bearer|(?:^|_)pat(?:$|_)",
    re.IGNORECASE,
)
#: Headers whose values everybody may know; every other header's value counts as a credential.
_OPEN_HEADERS = frozenset({"accept", "accept-language", "content-type", "user-agent", "x-request-id"})
_SHORTEST_SECRET = 6  # masking shorter values would tear ordinary words apart


class UnknownVariable(ValueError):
    """A reference that cannot be expanded. The message names the variable and the cure."""


def looks_secret(name: str) -> bool:
    """Whether a variable or key of this name is likely to hold a credential."""
    return _SECRET_NAME.search(name) is not None


@dataclass(slots=True)
class Expander:
    """Expands references and remembers which variables were read and with what value.

    `${VAR}` needs VAR to be set; `${VAR:-x}` is x when VAR is unset or empty; `$${VAR}` is the literal
    `${VAR}`. What a variable brings in is never expanded again, so a value may contain `$`.
    """

    environ: Mapping[str, str]
    on_secret: Callable[[str], None]
    used: dict[str, str | None] = field(default_factory=dict)

    def expand(self, text: str) -> str:
        """`text` with its references replaced. Raises UnknownVariable."""
        return _REFERENCE.sub(self._replace, text) if "${" in text else text

    def note_secret(self, value: str) -> None:
        """Tell the masker about a credential; the part after `Bearer ` counts by itself too."""
        for part in (value, value.partition(" ")[2]):
            if len(part) >= _SHORTEST_SECRET:
                self.on_secret(part)

    def note_header(self, name: str, value: str) -> None:
        if name.lower() not in _OPEN_HEADERS:
            self.note_secret(value)

    def _replace(self, match: re.Match[str]) -> str:
        if match[1]:
            return match[0][1:]
        inside = _NAME.fullmatch(match[2])
        if inside is None:
            raise UnknownVariable(
                f"${{{match[2]}}} is not understood; write ${{NAME}} or ${{NAME:-default}} for an "
                "environment variable"
            )
        name, default = inside[1], inside[2]
        value = self.environ.get(name)
        self.used[name] = value
        if default is not None and not value:
            return default
        if value is None:
            raise UnknownVariable(
                f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}"
            )
        if looks_secret(name):
            self.note_secret(value)
        return value
