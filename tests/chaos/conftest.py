"""The two stores that every storm is weathered on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.redis_server import RedisServer


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store's address: a file in the workspace, or a real server that writes each command to its disk."""
    if request.param == "sqlite":
        yield "sqlite:///causeway.db"
        return
    server = RedisServer(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always").start()
    try:
        yield server.url
    finally:
        server.stop()
