"""The settings of a WeCom AI bot, and the limits and times of the platform.

Sources: developer.work.weixin.qq.com, documents 100719 (receiving), 101027 (events), 101031 (replies), 101032
(cards), 101138 (response_url) and 101463 (long connection), read as of 2026-03.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import SecretStr, field_validator

from channels.base import ChannelConfig, SetupField

MIB = 1024 * 1024
WS_URL = "wss://openws.work.weixin.qq.com"
#: Most UTF-8 bytes of a stream's or a Markdown message's content.
MAX_CONTENT = 20_480
#: An uploaded file, by kind (bytes); every file has at least 5 bytes and goes in parts of 512 KB.
MAX_UPLOAD = {"image": 10 * MIB, "voice": 2 * MIB, "video": 10 * MIB, "file": 20 * MIB}
MIN_FILE, UPLOAD_PART = 5, 512 * 1024
#: Pictures in the last packet of a polled stream.
MAX_PICTURES, MAX_PICTURE = 10, 10 * MIB


class WecomBotConfig(ChannelConfig):
    """`socket` needs bot_id and secret, `webhook` token and aes_key. `previous_aes_key` still opens what
    comes in while a new key is being rolled out. `bot_name`: the name that people write after @ in groups;
    guessed when empty. `welcome`: said when someone opens the chat for the first time on a day ("" for
    nothing)."""

    mode: Literal["socket", "webhook"] = "socket"
    bot_id: str = ""
    secret: SecretStr = SecretStr("")
    ws_url: str = WS_URL
    token: SecretStr = SecretStr("")
    aes_key: SecretStr = SecretStr("")
    previous_aes_key: SecretStr = SecretStr("")
    bot_name: str = ""
    welcome: str | None = None

    @field_validator("bot_id", "ws_url", "bot_name", mode="after")
    @classmethod
    def _trimmed(cls, value: str) -> str:
        return value.strip()


@dataclass(frozen=True, slots=True)
class Times:
    """All waits, in seconds. Tests run them faster.

    A stream lives 6 minutes (from its first packet on a long connection, from the person's message when it is
    polled); after `hand_over` it is closed and the rest follows as a message of its own, and a final text
    that comes in between may still close it until `last_finish`.
    """

    ping: float = 30.0
    ack: float = 10.0
    connect: float = 20.0
    first_pause: float = 1.0
    longest_pause: float = 30.0
    refused_pause: float = 60.0
    kicked_pause: float = 300.0
    longest_rest: float = 3600.0
    lease: float = 45.0
    resend: float = 8.0
    hand_over: float = 300.0
    last_finish: float = 345.0
    poll_wait: float = 8.0
    stream_life: float = 360.0
    reply_life: float = 86_400.0
    url_life: float = 3_500.0
    press: float = 3.0
    settle: float = 1.0


SETUP = (
    SetupField(
        "bot_id",
        {
            "en": "Bot ID: WeCom admin console > 管理工具 > 智能机器人 > your bot > API 模式 > 长连接",
            "zh": "Bot ID:企业微信管理后台 > 管理工具 > 智能机器人 > 你的机器人 > API 模式 > 使用长连接",
        },
    ),
    SetupField(
        "secret",
        {
            "en": "Secret of the long connection, on the same page (not the secret of an application)",
            "zh": "长连接专用 Secret,在同一页面获取(不是自建应用的 Secret)",
        },
        secret=True,
    ),
)
