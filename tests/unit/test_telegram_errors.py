"""What a refusal of the Bot API means for a reply."""

from __future__ import annotations

import pytest

from channels.base import Flooded, Gone, NotSent, Rejected, SendError, Unknown
from channels.telegram.api import ApiError, Taken
from channels.telegram.errors import bad_entities, not_modified, send_error
from tests.fakes.telegram import NOT_MODIFIED


@pytest.mark.parametrize(
    ("code", "reason", "taken", "kind"),
    [
        (0, "cannot connect", "no", NotSent),
        (0, "ReadTimeout", "maybe", Unknown),
        (429, "Too Many Requests: retry after 30", "refused", Flooded),
        (500, "Internal Server Error", "refused", NotSent),
        (502, "Bad Gateway", "refused", NotSent),
        (504, "no reason given", "maybe", Unknown),
        (401, "Unauthorized", "refused", NotSent),
        (404, "Not Found", "refused", NotSent),
        (403, "Forbidden: bot was blocked by the user", "refused", Gone),
        (403, "Forbidden: user is deactivated", "refused", Gone),
        (400, "Bad Request: chat not found", "refused", Gone),
        (400, "Bad Request: message thread not found", "refused", Gone),
        (400, "Bad Request: not enough rights to send text messages to the chat", "refused", Gone),
        (400, "Bad Request: not enough rights to send documents to the chat", "refused", Rejected),
        (400, "Bad Request: message is too long", "refused", Rejected),
        (400, "Bad Request: message to edit not found", "refused", Rejected),
        (413, "Request Entity Too Large", "refused", Rejected),
    ],
)
def test_each_failure_says_what_to_do_next(
    code: int, reason: str, taken: Taken, kind: type[SendError]
) -> None:
    assert type(send_error(ApiError("sendMessage", code, reason, taken))) is kind


def test_a_flood_says_how_long_to_wait() -> None:
    error = send_error(ApiError("sendMessage", 429, "Too Many Requests", "refused", {"retry_after": 30}))
    assert isinstance(error, Flooded)
    assert error.retry_after == 30


def test_only_the_two_special_refusals_are_taken_as_such() -> None:
    same = ApiError("editMessageText", 400, f"Bad Request: {NOT_MODIFIED}", "refused")
    parse = ApiError("sendMessage", 400, "Bad Request: can't parse entities: Unexpected end", "refused")
    large = ApiError("sendDocument", 413, "Request Entity Too Large", "refused")
    assert [not_modified(e) for e in (same, parse, large)] == [True, False, False]
    assert [bad_entities(e) for e in (same, parse, large)] == [False, True, False]
