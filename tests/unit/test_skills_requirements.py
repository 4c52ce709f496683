from __future__ import annotations

from typing import Any

import pytest

from agent.skills.requirements import Host, Requirements, flag, operating_system, parse_requirements


def needs(metadata: dict[str, Any], top: dict[str, Any] | None = None) -> Requirements:
    found, faults = parse_requirements(metadata, top or {}, 5)
    assert not any(fault.fatal for fault in faults), faults
    return found


def host(platform: str = "Linux", env: dict[str, str] | None = None, programs: tuple[str, ...] = ()) -> Host:
    return Host(platform, env or {}, lambda name: name if name in programs else None)


@pytest.mark.parametrize(
    ("spelling", "platform", "fits"),
    [
        ("windows", "Windows", True),
        ("win32", "Windows", True),
        ("Windows", "win32", True),
        ("macos", "Darwin", True),
        ("macOS", "darwin", True),
        ("Mac OS X", "Darwin", True),
        ("osx", "Darwin", True),
        ("Linux", "Linux", True),
        ("linux", "Linux", True),
        ("unix", "Darwin", True),
        ("unix", "Windows", False),
        ("any", "Windows", True),
        ("freebsd", "FreeBSD", True),
        ("macos", "Linux", False),
        ("linux", "Darwin", False),
        ("amiga", "Linux", False),
    ],
)
def test_operating_systems_fit_in_all_usual_spellings(spelling: str, platform: str, fits: bool) -> None:
    missing = host(platform).missing(needs({"os": [spelling]}))
    assert bool(missing) is not fits
    assert missing.os == (() if fits else (spelling,))


def test_one_of_several_systems_is_enough_and_a_string_is_a_list() -> None:
    assert not host("Darwin").missing(needs({"os": "linux, macos"}))
    assert host("Windows").missing(needs({"os": "linux, macos"}))


def test_everything_missing_is_told_by_kind() -> None:
    found = needs(
        {"requires": {"bins": ["git", "jq"], "anyBins": "rg, ag", "env": ["A", "B"], "anyEnv": ["C", "D"]}}
    )
    missing = host(env={"A": "x", "B": "  "}, programs=("git",)).missing(found)
    assert str(missing) == "bins: jq; anyBins: rg, ag; env: B; anyEnv: C, D"
    assert not host(env={"A": "x", "B": "y", "D": "z"}, programs=("git", "jq", "ag")).missing(found)


def test_always_skips_programs_and_variables_but_never_the_system() -> None:
    assert not host().missing(needs({"always": True, "requires": {"bins": ["git"]}}))
    missing = host().missing(needs({"always": True, "os": ["darwin"], "requires": {"bins": ["git"]}}))
    assert missing.os
    assert not missing.bins


@pytest.mark.parametrize("word", ["false", "no", "off", "0", "False", False, 0, "maybe"])
def test_always_as_a_word_that_means_no_is_no(word: Any) -> None:
    found, _ = parse_requirements({"always": word, "requires": {"bins": ["git"]}}, {}, 5)
    assert host().missing(found)


@pytest.mark.parametrize(
    "requires",
    [
        "git",
        ["git"],
        3,
        {"bins": {"git": "x"}},
        {"bins": [None]},
        {"env": [["A"]]},
        {"bins": True},
        {"bims": ["git"]},
    ],
)
def test_requirements_that_cannot_be_understood_are_fatal(requires: Any) -> None:
    _, faults = parse_requirements({"requires": requires}, {}, 5)
    assert any(fault.fatal and fault.line == 5 and fault.cure for fault in faults)


@pytest.mark.parametrize(
    "metadata",
    [
        {"requires": {"bin": ["git"]}},
        {"requires": {"Bins": "git"}},
        {"Requires": {"any_bins": "git"}},
        {"openclaw": {"requires": {"bins": ["git"]}}, "author": "x"},
        {"nanobot": {"os": ["darwin"]}, "version": 1},
    ],
)
def test_sk_07_requirements_count_in_every_spelling(metadata: dict[str, Any]) -> None:
    assert host().missing(needs(metadata))


def test_sk_07_requirements_at_the_top_level_count() -> None:
    assert host().missing(needs({}, {"requires": {"env": "KEY"}}))
    assert host().missing(needs({}, {"os": ["windows"]}))


def test_unknown_requirements_are_told_and_ignored() -> None:
    found, faults = parse_requirements({"requires": {"weather": ["sun"]}}, {}, 5)
    assert not host().missing(found)
    assert [fault.fatal for fault in faults] == [False]


def test_a_program_is_looked_for_once_a_pass() -> None:
    asked: list[str] = []

    def which(name: str) -> str | None:
        asked.append(name)
        return None

    machine = Host("Linux", {}, which)
    for _ in range(3):
        machine.missing(needs({"requires": {"bins": ["git"], "anyBins": ["git", "hg"]}}))
    assert asked == ["git", "hg"]


def test_a_program_that_cannot_be_looked_for_is_missing() -> None:
    def which(name: str) -> str | None:
        raise ValueError("embedded null byte")

    assert Host("Linux", {}, which).missing(needs({"requires": {"bins": ["a\0b"]}}))


def test_switches_are_read_as_words() -> None:
    assert [flag(word) for word in (True, "True", "yes", 1, "off", "", None, 2, [])] == [
        True, True, True, True, False, None, None, None, None,
    ]  # fmt: skip
    assert operating_system(" Win-32 ") == "win32"
