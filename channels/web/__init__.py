"""The chat page."""

from channels.web.channel import WebChannel, WebConfig

__all__ = ["WebChannel", "WebConfig"]
