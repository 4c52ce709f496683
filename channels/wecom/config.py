"""Settings of a WeCom application, and what can be told about them without asking anybody."""

from __future__ import annotations

from pydantic import SecretStr

from channels.base import ChannelConfig, ChannelError, SetupField
from channels.wechat.crypto import key_fault


class WecomConfig(ChannelConfig):
    """One instance is one application (agent); a company with several has several instances.

    `base_url` is the API server's root, the part before `/cgi-bin/`. `markdown`: answers go in WeCom's own
    Markdown. Members who read in WeChat (微信插件) then see nothing of them, and no callback tells where a
    member reads, so it is off unless all use WeCom itself. `cards`: questions have buttons (not in WeChat).
    `greeting`: who opens the application for the first time is greeted (needs 上报进入应用 in the console).
    `language`: of hints and errors, since WeCom does not tell a member's; empty goes by each message.
    """

    corp_id: str
    agent_id: int
    secret: SecretStr
    token: SecretStr
    aes_key: SecretStr
    previous_aes_key: SecretStr | None = None
    base_url: str = "https://qyapi.weixin.qq.com"
    markdown: bool = False
    cards: bool = True
    greeting: bool = True
    language: str = "zh"

    @property
    def keys(self) -> list[str]:
        """The EncodingAESKeys that callbacks may be sealed with, the current one first."""
        given = [self.aes_key, self.previous_aes_key]
        return [key.get_secret_value().strip() for key in given if key is not None]

    @property
    def root(self) -> str:
        return self.base_url.strip().rstrip("/").removesuffix("/cgi-bin").rstrip("/")


def verify(config: WecomConfig, where: str) -> None:
    """Raise ChannelError for settings that can never work; `where` names them in the file."""
    if not config.corp_id.strip():
        raise ChannelError(f"{where}.corp_id is empty; it is on 我的企业 → 企业信息 → 企业ID")
    if not config.secret.get_secret_value().strip():
        raise ChannelError(f"{where}.secret is empty; it is on 应用管理 → 自建 → the application → Secret")
    if not config.token.get_secret_value().strip():
        raise ChannelError(
            f"{where}.token is empty; anybody could then send callbacks. Take it from 设置API接收"
        )
    for number, key in enumerate(config.keys):
        if fault := key_fault(key):
            name = "previous_aes_key" if number else "aes_key"
            raise ChannelError(f"{where}.{name}: {fault}; copy it from 接收消息 → 设置API接收")
    if not config.root.startswith(("http://", "https://")):
        raise ChannelError(f"{where}.base_url must begin with http:// or https://")


SETUP = (
    SetupField(
        "corp_id",
        {
            "en": "The company's id (企业ID): work.weixin.qq.com → 我的企业 → 企业信息, at the bottom",
            "zh": "企业ID:管理后台 work.weixin.qq.com → 我的企业 → 企业信息,页面最下方",
        },
    ),
    SetupField(
        "agent_id",
        {
            "en": "AgentId: 应用管理 → 自建 → your application",
            "zh": "AgentId:应用管理 → 自建 → 你的应用",
        },
    ),
    SetupField(
        "secret",
        {
            "en": "Secret: on the same page, 查看 (it is sent to the administrator's WeCom)",
            "zh": "Secret:同一页面点「查看」,会发到管理员的企业微信里",
        },
        secret=True,
    ),
    SetupField(
        "token",
        {
            "en": "Token: the application → 接收消息 → 设置API接收 → 随机获取. Leave that page open: "
            "it is saved when the bridge runs",
            "zh": "Token:应用 → 接收消息 → 设置API接收 → 随机获取。先不要关闭该页面,等程序运行后再点保存",
        },
        secret=True,
    ),
    SetupField(
        "aes_key",
        {
            "en": "EncodingAESKey: on the same page, 随机获取 (43 characters)",
            "zh": "EncodingAESKey:同一页面随机获取(43 个字符)",
        },
        secret=True,
    ),
)
