"""Settings of an official account, and what `causeway init` asks for."""

from __future__ import annotations

from typing import Literal

from pydantic import SecretStr

from channels.base import ChannelConfig, ChannelError, SetupField
from channels.wechat.crypto import key_fault

API_ROOT = "https://api.weixin.qq.com"


class WechatConfig(ChannelConfig):
    """`aes_key`: the EncodingAESKey; with it only encrypted callbacks are taken, without it only plain ones.
    `previous_aes_key` still opens callbacks after a change. `mode`: whether answers may go by
    customer-service messages; auto asks the platform. `base_url`: the part before `/cgi-bin/`."""

    app_id: str
    app_secret: SecretStr
    token: SecretStr
    aes_key: SecretStr | None = None
    previous_aes_key: SecretStr | None = None
    mode: Literal["auto", "passive", "customer_service"] = "auto"
    base_url: str = API_ROOT

    @property
    def keys(self) -> list[str]:
        found = (self.aes_key, self.previous_aes_key)
        return [key.get_secret_value().strip() for key in found if key and key.get_secret_value().strip()]

    @property
    def root(self) -> str:
        return self.base_url.strip().rstrip("/").removesuffix("/cgi-bin")


def refuse_unusable(config: WechatConfig, name: str) -> None:
    """Raises ChannelError for settings with which nothing can work."""
    where = f"channels.{name}"
    if not config.token.get_secret_value().strip():
        raise ChannelError(f"{where}.token is empty; it is the Token of the server configuration")
    for field, key in (("aes_key", config.aes_key), ("previous_aes_key", config.previous_aes_key)):
        if key and (fault := key_fault(key.get_secret_value().strip())):
            raise ChannelError(f"{where}.{field}: {fault}; copy it from the server configuration")
    if config.previous_aes_key and not config.aes_key:
        raise ChannelError(f"{where}.previous_aes_key is set without aes_key; set the current key as well")
    if not config.root.startswith(("http://", "https://")):
        raise ChannelError(f"{where}.base_url must begin with http:// or https://")


_CONSOLE = "mp.weixin.qq.com → 设置与开发 → "

SETUP = (
    SetupField(
        "app_id",
        {
            "en": f"AppID: {_CONSOLE}开发接口管理 → 基本配置 (Settings & development → Basic configuration)",
            "zh": f"AppID（开发者ID）：{_CONSOLE}开发接口管理 → 基本配置",
        },
    ),
    SetupField(
        "app_secret",
        {
            "en": "AppSecret, same page; shown once when it is reset",
            "zh": "AppSecret（开发者密码）：同一页，只在重置时显示一次",
        },
        secret=True,
    ),
    SetupField(
        "token",
        {
            "en": "Token: any 3 to 32 letters and digits, the same as in 服务器配置 (server configuration)",
            "zh": "Token（令牌）：自拟 3 到 32 位字母或数字，与“服务器配置”中填写的一致",
        },
        secret=True,
    ),
    SetupField(
        "aes_key",
        {
            "en": "EncodingAESKey of 服务器配置, 43 characters; empty only for 明文模式 (plain mode)",
            "zh": "EncodingAESKey（消息加解密密钥）：“服务器配置”中的 43 位字符；只有明文模式才可留空",
        },
        secret=True,
        required=False,
    ),
)
