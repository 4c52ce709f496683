"""The fields of one entry of `mcp.json`: JSON values in, plain data or an EntryError out."""

from __future__ import annotations

import json
from typing import Any

from agent.tools.mcp.variables import Expander


class EntryError(ValueError):
    """One server's entry cannot be used; the others can."""


def one_of(entry: dict[str, Any], keys: tuple[str, ...]) -> Any:
    return next((entry[key] for key in keys if entry.get(key) is not None), None)


def kind_name(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true/false", type(None): "null"}
    return names.get(type(value), "a number")


def strings(key: str, value: Any) -> tuple[str, ...]:
    """A list of words; numbers and true/false are taken as written, since people write ports as numbers."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise EntryError(f"{key!r} must be a list, not {kind_name(value)}")
    words = []
    for item in value:
        if not isinstance(item, str | int | float):
            raise EntryError(f"{key!r} must hold text, not {kind_name(item)}")
        words.append(item if isinstance(item, str) else json.dumps(item))
    return tuple(words)


def pairs(key: str, value: Any, expander: Expander) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise EntryError(f"{key!r} must be an object, not {kind_name(value)}")
    given = {str(name): item for name, item in value.items() if item is not None}
    texts = dict(zip(given, strings(key, list(given.values())), strict=True))
    if any("\0" in text or ("=" in name and key == "env") for name, text in texts.items()):
        raise EntryError(f"{key!r} holds a name with '=' or a value with a NUL character")
    return tuple(sorted((name, expander.expand(text)) for name, text in texts.items()))


def flag(key: str, value: Any, default: bool) -> bool:
    if value is None:
        return default
    if not isinstance(value, bool):
        raise EntryError(f"{key!r} must be true or false, not {kind_name(value)}")
    return value


def seconds(key: str, value: Any, *, milliseconds: bool = True) -> float | None:
    """A time; with `milliseconds` a number that is too large for seconds is taken as such."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise EntryError(f"{key!r} must be a number of seconds above 0")
    seconds = float(value)
    return min(seconds / 1000 if milliseconds and seconds > 3600 else seconds, 86_400.0)


def tool_seconds(key: str, value: Any) -> tuple[tuple[str, float], ...]:
    """Deadlines of single tools, by the server's own names for them or by patterns such as `search_*`."""
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise EntryError(f'{key!r} must be an object such as {{"search": 60}}, not {kind_name(value)}')
    times = {str(name): seconds(f"{key}: {name}", item) for name, item in value.items()}
    return tuple((name, time) for name, time in times.items() if time is not None)


def included_tools(value: Any) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Which tools to offer (None: all) and which are switched off, from a list or `{name: true/false}`."""
    if isinstance(value, dict):
        return None, tuple(str(name) for name, setting in value.items() if _is_off(setting))
    if value is None:
        return None, ()
    names = strings("tools", value)
    return (None if "*" in names else names), ()


def _is_off(setting: Any) -> bool:
    if isinstance(setting, dict):
        return setting.get("enabled") is False or setting.get("disabled") is True
    return setting is False


def allowed_tools(value: Any) -> tuple[str, ...]:
    if isinstance(value, bool):
        return ("*",) if value else ()
    return strings("alwaysAllow", value)


def stop_first(value: Any) -> bool:
    if value not in (None, "new-first", "stop-first"):
        raise EntryError('\'restart\' must be "new-first" or "stop-first"')
    return bool(value == "stop-first")
