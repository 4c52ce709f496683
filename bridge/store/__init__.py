"""What the bridge keeps: see `base.py` for the contract and `open_store` for the choice."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from bridge.store.base import Store, StoreError

_SQLITE = "sqlite:///"
_REDIS = ("redis://", "rediss://", "unix://")


def open_store(
    url: str,
    workspace: Path,
    *,
    synchronous: Literal["normal", "full"] = "normal",
    clock: Callable[[], float] = time.time,
    sole: bool = False,
    worker: str | None = None,
) -> Store:
    """The store that `url` names, not opened yet (await its `open`). Raises StoreError for an unknown url.

    `sole`: no other process works on an SQLite file, so that one found damaged may be set aside. `worker`: in
    Redis, the name of this process among those that run agents (see `Claims`).
    """
    if is_redis(url):
        from bridge.store.redis import RedisStore

        return RedisStore(url, clock=clock, worker=worker)
    from bridge.store.sqlite import SqliteStore

    return SqliteStore(sqlite_path(url, workspace), synchronous=synchronous, clock=clock, sole=sole)


def is_redis(url: str) -> bool:
    """Whether a url names a store in Redis. Pure."""
    return url.startswith(_REDIS)


def check_url(url: str) -> None:
    """Raises StoreError when `url` is no address of a store. Pure: nothing is opened."""
    if is_redis(url):
        from bridge.store.redis_line import place

        place(url)
    else:
        sqlite_path(url, Path())


def sqlite_path(url: str, workspace: Path) -> Path:
    """The file of a `sqlite:///` url: `sqlite:///a.db` lies in the workspace, `sqlite:////a.db` is absolute.

    Pure. Raises StoreError for any other url.
    """
    if is_redis(url):
        raise StoreError("The store is in Redis, which has no file here.")
    name = url.removeprefix(_SQLITE)
    if not url.startswith(_SQLITE) or name in ("", ":memory:") or name.endswith("/") or "?" in name:
        raise StoreError(
            f"{url.split('://')[0]!r} is no address of a store. Write sqlite:/// and a file name, for "
            "example sqlite:///causeway.db (in the workspace) or sqlite:////var/lib/causeway/causeway.db, or "
            "redis://host:6379/0 for a store on a server."
        )
    return workspace / Path(name).expanduser()
