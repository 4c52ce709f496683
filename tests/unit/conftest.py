"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.hall import Hall


@pytest.fixture
async def halls(tmp_path: Path) -> AsyncIterator[Callable[..., Hall]]:
    made: list[Hall] = []

    def build(script: Any, **values: Any) -> Hall:
        hall = Hall(tmp_path, script)
        for name, value in values.items():
            setattr(hall, name, value)
        made.append(hall)
        return hall

    yield build
    for hall in made:
        if hasattr(hall, "sessions") and not hall.sessions.stopping:
            await hall.stop()
