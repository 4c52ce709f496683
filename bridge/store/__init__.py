"""What the bridge keeps: see `base.py` for the contract and `open_store` for the choice."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from bridge.store.base import Store, StoreError

_SQLITE = "sqlite:///"


def open_store(
    url: str,
    workspace: Path,
    *,
    synchronous: Literal["normal", "full"] = "normal",
    clock: Callable[[], float] = time.time,
) -> Store:
    """The store that `url` names, not opened yet (await its `open`). Raises StoreError for an unknown url."""
    from bridge.store.sqlite import SqliteStore

    return SqliteStore(sqlite_path(url, workspace), synchronous=synchronous, clock=clock)


def sqlite_path(url: str, workspace: Path) -> Path:
    """The file of a `sqlite:///` url: `sqlite:///a.db` lies in the workspace, `sqlite:////a.db` is absolute.

    Pure. Raises StoreError for any other url.
    """
    if url.startswith(("redis://", "rediss://", "unix://")):
        raise StoreError(
            "Redis comes in a later version of Causeway. Use sqlite:///causeway.db, the default."
        )
    name = url.removeprefix(_SQLITE)
    if not url.startswith(_SQLITE) or name in ("", ":memory:") or name.endswith("/") or "?" in name:
        raise StoreError(
            f"{url.split('://')[0]!r} is no address of a store. Write sqlite:/// and a file name, "
            "for example sqlite:///causeway.db (in the workspace) or sqlite:////var/lib/causeway/causeway.db."
        )
    return workspace / Path(name).expanduser()
