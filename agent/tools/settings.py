"""The settings of the built-in tools and of what every tool call is bounded by."""

from __future__ import annotations

import ipaddress
import re

from pydantic import BaseModel, ConfigDict, Field, field_validator

from agent.tools.policy import PolicyRule

_FILE_TOOLS = ("read", "write", "edit", "ls", "search", "send_file")
_HOST = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BashSettings(_Settings):
    """The shell tool: off unless enabled, and then for admins in direct chats only.

    `timeout` is in seconds; `output_bytes` is how much a command may print before it is stopped.
    """

    enabled: bool = False
    timeout: float = Field(default=60.0, gt=0, le=3600)
    output_bytes: int = Field(default=20_000_000, ge=1000)


class WebFetchSettings(_Settings):
    """Reading web pages. Only public addresses are reached, save those that `allow_hosts` names.

    An entry of `allow_hosts` is a host name, `host:port`, an address, or a network such as `10.1.0.0/16`.
    `max_bytes` bounds a body both as sent and as unpacked; `timeout` (seconds) spans all redirects.
    """

    enabled: bool = True
    allow_hosts: tuple[str, ...] = ()
    max_bytes: int = Field(default=2_000_000, ge=1000, le=50_000_000)
    timeout: float = Field(default=30.0, gt=0, le=600)

    @field_validator("allow_hosts")
    @classmethod
    def _known_forms(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        for entry in entries:
            if "/" in entry:
                try:
                    ipaddress.ip_network(entry, strict=False)
                except ValueError as error:
                    raise ValueError(
                        f"{entry!r} is no network; write it as 10.1.0.0/16, or a host without a slash"
                    ) from error
            elif not _HOST.fullmatch(entry) and not _is_address(entry):
                raise ValueError(f"{entry!r} is no host; write host, host:port, an address, or a network")
        return entries


class BackgroundSettings(_Settings):
    """MCP calls and commands that outlast their deadline go on as background tasks, for at most `limit`
    seconds from their beginning."""

    enabled: bool = True
    limit: float = Field(default=3600.0, gt=0, le=86_400)


class ResultSettings(_Settings):
    """Results longer than a model is given are kept whole in the session's files, where `read` reaches them:
    of each at most `chars` characters (its beginning and end), of a session at most `files` files with
    `bytes` bytes together; the oldest go first."""

    keep: bool = True
    chars: int = Field(default=1_000_000, ge=10_000, le=20_000_000)
    files: int = Field(default=50, ge=1, le=1000)
    bytes: int = Field(default=20_000_000, ge=100_000)


class TrimSettings(_Settings):
    """What models are shown of tools' definitions. `descriptions`: longest description in characters, of a
    tool and of each of its parameters (0: whole). `schemas`: leave out what says nothing that a call needs
    (titles, examples). Arguments are checked against the whole schema all the same."""

    descriptions: int = Field(default=0, ge=0, le=100_000)
    schemas: bool = False

    @field_validator("descriptions")
    @classmethod
    def _enough(cls, chars: int) -> int:
        if 0 < chars < 40:
            raise ValueError("fewer than 40 characters describe nothing; write 0 to leave descriptions whole")
        return chars


class ToolSettings(_Settings):
    """`result_chars`: longest text of a result that a model is given. `file_bytes`: largest text file that
    `read`, `edit` and `search` look into and `write` makes. `image_bytes`: largest picture that `read` shows
    to a model. `send_bytes`: largest file that `send_file` takes. `file_timeout`: deadline of file tools in
    seconds; `timeouts` gives single ones of them another. `policy`: rules about who may use which tool."""

    result_chars: int = Field(default=20_000, ge=1000)
    file_bytes: int = Field(default=5_000_000, ge=1000)
    image_bytes: int = Field(default=3_700_000, ge=1000)
    send_bytes: int = Field(default=50_000_000, ge=1000)
    file_timeout: float = Field(default=10.0, gt=0, le=600)
    timeouts: dict[str, float] = Field(default_factory=dict)
    policy: tuple[PolicyRule, ...] = ()
    results: ResultSettings = ResultSettings()
    trim: TrimSettings = TrimSettings()
    background: BackgroundSettings = BackgroundSettings()
    bash: BashSettings = BashSettings()
    web_fetch: WebFetchSettings = WebFetchSettings()

    @field_validator("timeouts")
    @classmethod
    def _known_tools(cls, timeouts: dict[str, float]) -> dict[str, float]:
        for name, seconds in timeouts.items():
            if name in ("bash", "web_fetch"):
                raise ValueError(f"{name} has a setting of its own: write tools: {name}: timeout")
            if name not in _FILE_TOOLS:
                raise ValueError(
                    f"there is no built-in tool {name!r} here; known are {', '.join(_FILE_TOOLS)}"
                )
            if not 0 < seconds <= 600:
                raise ValueError(f"{name}: the seconds must be above 0 and at most 600")
        return timeouts


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
