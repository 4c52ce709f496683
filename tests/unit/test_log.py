"""The log: one id a message, no message texts, no secrets, tracebacks included."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from agent.tools.masking import Masker
from bridge.log import current_message, message_id, set_up
from tests.fakes.channel import message


@pytest.fixture(autouse=True)
def _keep_loggers() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("causeway")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], root.level = before[0], before[1]
    ours.setLevel(before[2])


@pytest.mark.parametrize("form", ["text", "json"])
def test_lines_carry_the_message_s_id_and_mask_secrets_also_in_tracebacks(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up("info", form, Masker(["topsecretvalue"]))
    token = current_message.set(message_id(message("hello", id="m1")))
    try:
        raise ValueError("no topsecretvalue here")
    except ValueError:
        logging.getLogger("causeway.test").exception("failed with %s", "topsecretvalue")
    finally:
        current_message.reset(token)
    printed = capsys.readouterr().err
    assert "topsecretvalue" not in printed
    assert "Traceback" in printed
    assert "ValueError" in printed
    assert message_id(message("other words", id="m1")) in printed
    if form == "json":
        assert json.loads(printed)["part"] == "causeway.test"


def test_two_chats_with_the_same_platform_id_have_two_ids() -> None:
    one, two = message("x", "c1", id="5"), message("x", "c2", id="5")
    assert message_id(one) != message_id(two)


def test_libraries_stay_quiet_below_warnings_and_below_info_with_debug(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_up("info", "text", Masker([]))
    logging.getLogger("somelib").info("chatter")
    logging.getLogger("causeway.x").info("ours")
    set_up("debug", "text", Masker([]))
    logging.getLogger("somelib").debug("a whole message")
    logging.getLogger("causeway.x").debug("ours in detail")
    printed = capsys.readouterr().err
    assert "chatter" not in printed
    assert "a whole message" not in printed
    assert "ours in detail" in printed
