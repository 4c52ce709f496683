"""The MCP project's own conformance suite judges our client, in both eras of the protocol."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conformance.suite import PROGRAMS, Suite, expected, node

_READY = node() is not None and all(program.exists() for program in PROGRAMS.values())
pytestmark = pytest.mark.skipif(
    not _READY and not os.environ.get("CI"),
    reason="the suite or its Node is not installed; `scripts/install dev` brings both",
)


#: Version of the suite, options, and how many scenarios there are at least.
RUNS = {
    "0.1": ("0.1", ["--suite", "all"], 26),
    # Each scenario at the revision that it is for; where that is several, at that of 2025-11-25 ...
    "0.2": ("0.2", ["--suite", "all"], 48),
    # ... and what is for the stateless protocol, at that one.
    "0.2, 2026-07-28": ("0.2", ["--suite", "all", "--spec-version", "2026-07-28"], 30),
}


@pytest.mark.parametrize("run", RUNS)
async def test_each_client_scenario_passes_or_is_listed_with_the_reason(tmp_path: Path, run: str) -> None:
    version, words, least = RUNS[run]
    outcomes = await Suite(version, tmp_path).run(*words)
    assert len(outcomes) >= least, f"the suite ran only {sorted(outcomes)}"
    surprises = []
    for name, faults in outcomes.items():
        known = expected(name, run)
        surprises += [f"{name}: {check}: {faults[check]}" for check in sorted(faults.keys() - known.keys())]
        surprises += [
            f"{name}: {check} is listed, and passes" for check in sorted(known.keys() - faults.keys())
        ]
    assert not surprises, "\n".join(surprises)
