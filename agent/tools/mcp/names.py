"""Names of MCP tools as models see them: `server__tool`, legal for every provider."""

from __future__ import annotations

import hashlib
import re

LONGEST_NAME = 64
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")


def offered_name(server: str, tool: str) -> str:
    """The name under which `tool` of `server` is offered: `^[A-Za-z0-9_-]{1,64}$`.

    A function of its two arguments alone, so it is the same in any start order and after a restart. A name
    that had to be cut or changed, or that another pair could spell too, ends in a short hash of the pair.
    """
    plain = f"{server}__{tool}"
    legal = _ILLEGAL.sub("_", plain)
    # "a" + "b__c" and "a__b" + "c" both spell a__b__c: only pairs that split in one way go without a hash.
    one_way = bool(server) and "__" not in server and not server.endswith("_") and not tool.startswith("_")
    if legal == plain and one_way and tool and len(legal) <= LONGEST_NAME:
        return legal
    digest = hashlib.sha256(f"{server}\0{tool}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{legal[: LONGEST_NAME - 9]}_{digest}"


def file_stem(name: str) -> str:
    """`name` as a part of a file name: at most 48 characters, no separators, unique by a hash if changed."""
    legal = _ILLEGAL.sub("_", name)
    if legal == name and 0 < len(legal) <= 48:
        return legal
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{legal[:39]}_{digest}"
