"""Each case of issue 8 is named by a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def names() -> str:
    files = [file for folder in ("unit", "integration", "chaos") for file in (TESTS / folder).glob("*.py")]
    found = [name for file in files for name in re.findall(r"def (test_\w+)", file.read_text("utf-8"))]
    return "\n".join(found)


@pytest.mark.parametrize("case", ["ag_02", "ag_07", "sc_01", "sc_02", "sc_04", "sc_05", "sc_07"])
def test_a_case_is_named(names: str, case: str) -> None:
    assert re.search(rf"_{case}(_|$)", names, re.MULTILINE)
