"""Slack's places besides the chat: the home tab, the shortcut's dialog, an assistant thread's prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from channels.base import Translate
from channels.slack.blocks import section
from channels.slack.inbound import Identity

Data: TypeAlias = dict[str, Any]

#: block_id and action_id of the dialog's field.
QUESTION = "question"
_PROMPTS = ("slack.prompt.1", "slack.prompt.2", "slack.prompt.3")
_MAX_TITLE = 75


def tab(text: Translate, language: str, me: Identity, trouble: str) -> Data:
    """The home tab: whether all is well, and how to talk to the bot."""
    status = (
        text("slack.home.trouble", language, reason=trouble) if trouble else text("slack.home.ok", language)
    )
    mention = f"<@{me.user}>" if me.user else "@causeway"
    return {
        "type": "home",
        "blocks": [
            {"type": "header", "text": {"type": "plain_text", "text": text("slack.home.title", language)}},
            section(status),
            {"type": "divider"},
            section(text("slack.home.help", language, mention=mention)),
            section(text("slack.home.commands", language)),
        ],
    }


def dialog(text: Translate, language: str, metadata: str, callback: str) -> Data:
    """Asks for the question about a message."""

    def plain(key: str) -> Data:
        return {"type": "plain_text", "text": text(key, language)}

    return {
        "type": "modal",
        "callback_id": callback,
        "private_metadata": metadata,
        "title": plain("slack.dialog.title"),
        "submit": plain("slack.dialog.submit"),
        "close": plain("slack.dialog.close"),
        "blocks": [
            {
                "type": "input",
                "block_id": QUESTION,
                "label": plain("slack.dialog.label"),
                "element": {
                    "type": "plain_text_input",
                    "action_id": QUESTION,
                    "multiline": True,
                    "max_length": 2500,
                    "initial_value": text("slack.dialog.start", language),
                },
            }
        ],
    }


def prompts(text: Translate, language: str, own: Sequence[str]) -> tuple[str, list[Data]]:
    """The title over the suggestions, and up to four of them."""
    words = own or [text(key, language) for key in _PROMPTS]
    found = [{"title": word[:_MAX_TITLE], "message": word} for word in words if word.strip()]
    return text("slack.prompts", language), found
