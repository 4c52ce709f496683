"""What a failed call means for a reply: wait, go on, post anew, give up (docs.slack.dev, chat.* methods)."""

from __future__ import annotations

from channels.base import Flooded, Gone, Lost, NotSent, Rejected, SendError, Unknown
from channels.slack.api import CURES, ApiError

#: The chat is not there for this bot any more.
_GONE = frozenset(
    {
        "channel_not_found",
        "is_archived",
        "not_in_channel",
        "user_not_found",
        "user_disabled",
        "cannot_dm_bot",
        "messages_tab_disabled",
        "user_not_in_channel",
        "thread_not_found",
        "cannot_reply_to_message",
        "is_inactive",
        "slack_connect_blocked",
    }
)
#: The account is not as it should be: no fault of the message, and a person can mend it.
ACCOUNT = CURES.keys() | {
    "missing_scope",
    "org_login_required",
    "ekm_access_denied",
    "team_access_not_granted",
    "no_permission",
    "two_factor_setup_required",
    "accesslimited",
}
#: Errors of a method that this workspace, or this app, will go on to give.
NEVER = ACCOUNT | {"unknown_method", "method_deprecated", "feature_not_enabled", "not_allowed"}
_LOST = frozenset({"message_not_found", "cant_update_message", "edit_window_closed", "cant_edit"})
_LATER = ACCOUNT | {"service_unavailable", "request_timeout", "team_added_to_org", "http_503"}
#: This form of the message is not taken; a plainer or shorter one may be.
FORM = frozenset(
    {
        "msg_too_long",
        "msg_blocks_too_long",
        "invalid_blocks",
        "invalid_blocks_format",
        "markdown_text_conflict",
        "invalid_arguments",
        "too_many_attachments",
        "invalid_markdown_text",
        "markdown_text_too_long",
        "block_mismatch",
    }
)

#: Chats of which a refusal is remembered; with more of them all are asked again.
_MOST_REFUSED = 2000


def refuse(places: set[str], chat: str, error: ApiError) -> str:
    """Remember where a method is refused: in this chat, or ("*") everywhere. Returns the place."""
    place = "*" if error.error in NEVER else chat
    if len(places) >= _MOST_REFUSED:
        places.clear()
    places.add(place)
    return place


def send_error(error: ApiError) -> SendError:
    """The SendError that says what the bridge does next."""
    if error.error == "ratelimited":
        return Flooded(str(error), max(error.retry_after, 1.0))
    if error.taken == "no" or error.error in _LATER:
        return NotSent(str(error))
    if error.taken == "maybe":
        return Unknown(str(error))
    if error.error in _GONE or error.error.startswith("restricted_action"):
        return Gone(str(error))
    return Lost(str(error)) if error.error in _LOST else Rejected(str(error))
