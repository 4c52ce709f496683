"""Keys, access, texts and turns: pure pieces of the bridge."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.events import FileRef, Outcome
from bridge import texts
from bridge.commands import NAMES, parse
from bridge.keys import channel_of, session_key
from bridge.turns import compose, local_media, speaker, within
from channels.base import Address

addresses = st.builds(
    Address,
    channel=st.text(min_size=1, max_size=8),
    chat=st.text(min_size=1, max_size=200),
    kind=st.sampled_from(["direct", "group", "channel"]),
    thread=st.none() | st.text(max_size=8),
)


@given(addresses, addresses)
def test_no_two_addresses_share_a_session(one: Address, two: Address) -> None:
    assert (session_key(one) == session_key(two)) == (one == two)


@given(addresses)
def test_a_session_key_is_a_safe_folder_name(address: Address) -> None:
    key = session_key(address)
    assert len(key.encode()) < 255
    assert set(key) <= set(string.ascii_letters + string.digits + "%-._~:#")
    assert key not in (".", "..")
    assert channel_of(key) == channel_of(session_key(Address(address.channel, "other")))


@pytest.mark.parametrize("key", texts.keys())
def test_every_text_stands_in_both_languages_with_the_same_values(key: str) -> None:
    def fields(template: str) -> set[str]:
        return {name for _, name, _, _ in string.Formatter().parse(template) if name}

    english, chinese = texts._TEXTS[key]
    assert english.strip()
    assert chinese.strip()
    assert fields(english) == fields(chinese)


def test_every_command_and_failure_has_its_text() -> None:
    for name in NAMES:
        assert texts.text(f"command.{name}")
    kinds = ("rate_limited", "overloaded", "connection", "context", "unauthorised", "refused", "bad_request")
    for failure in (*kinds, "empty", "cut_off", "steps", "loop", "internal"):
        assert texts.text(f"failure.{failure}", "zh-CN")


def test_known_commands_are_recognised_and_unknown_words_go_to_the_model() -> None:
    for said, name in (("/help", "help"), ("!STOP", "stop"), (" /new ", "new"), ("/tools all", "tools")):
        command = parse(said)
        assert command is not None
        assert command.name == name
    for said in ("/imagine a cat", "help", "/", "", "what does /help do", "/helpme"):
        assert parse(said) is None


@given(st.text())
def test_a_display_name_can_imitate_nothing(name: str) -> None:
    shown = speaker(name, "7")
    assert not set(shown) & set("[]<>\n\r\x00\u2028")
    assert shown.endswith("id 7)") or shown == "id 7"


def test_sc_07_local_paths_in_an_answer_are_not_read_and_a_note_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "session" / "files"
    folder.mkdir(parents=True)
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    (folder / "link.png").symlink_to(secret)
    (folder / "made.png").write_bytes(b"png")
    said = (
        "See ![one](../../secret.txt), ![two](" + str(secret) + "), ![three](link.png), "
        "![four](file:///etc/passwd), ![five](%2e%2e/%2e%2e/secret.txt) and ![six](made.png).\n"
        "```\n![code](../../secret.txt)\n```\n![web](https://example.org/x.png)"
    )
    shown = compose(Outcome(said), folder, "en")
    assert [Path(file.path) for file in shown.files] == [(folder / "made.png").resolve()]
    assert shown.files[0].caption == "six"
    assert "See one, two, three, four, five and six." in shown.text
    assert shown.text.count("cannot be sent from here") == 5
    assert "![code](../../secret.txt)" in shown.text  # code stays as it is
    assert "![web](https://example.org/x.png)" in shown.text


def test_sc_07_a_file_that_left_the_folder_after_the_tool_ran_is_not_sent(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.txt").symlink_to("/etc/hostname")
    outcome = Outcome(
        "here", (FileRef("a.txt", "a.txt"), FileRef("/etc/hostname", "b"), FileRef("../x", "c"))
    )
    assert compose(outcome, folder, "en").files == ()


@pytest.mark.parametrize("path", ["", "..", "../x", "/etc/hostname", "a\0b", ".", "missing"])
def test_only_regular_files_inside_the_folder_are_found(tmp_path: Path, path: str) -> None:
    assert within(tmp_path, path) is None


def test_text_without_pictures_stays_letter_for_letter(tmp_path: Path) -> None:
    said = "a [link](x.txt) and `![x](y)`-like ~~~ text\n~~~\n![x](y)\n~~~"
    assert local_media("a [link](x.txt)", tmp_path)[0] == "a [link](x.txt)"
    assert local_media(said, tmp_path)[0].endswith("~~~\n![x](y)\n~~~")
