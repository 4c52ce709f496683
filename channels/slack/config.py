"""Settings of a Slack instance (one workspace; several workspaces are several instances)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from channels.base import ChannelConfig, ChannelError


class SlackConfig(ChannelConfig):
    """`base_url` is the part before `/api/`.

    `mode`: `socket` needs `app_token` and no public address; `http` needs `signing_secret` and the address
    of this server in the app's settings. `reply_in`: a mention at a channel's top level is answered in a
    thread, which becomes a session, or in the channel itself. `direct_sessions`: a direct chat is one
    session, or each of its threads is. `threads`: in a thread where the bot has spoken it answers every
    message (`joined`) or only those that mention it. `group_dms`: the same for group direct messages.
    `edits`: an edited message corrects the one that still waits, or is ignored. `streaming`: answers in
    threads are streamed (`auto`, where Slack lets us), or posted and updated (`update`). `acknowledge`: the
    emoji that a message gets as a reaction when it was taken up, without colons; empty for none. `prompts`:
    up to four suggestions in a new assistant thread, in place of the built-in ones.
    """

    bot_token: SecretStr
    app_token: SecretStr | None = None
    signing_secret: SecretStr | None = None
    base_url: str = "https://slack.com"
    mode: Literal["socket", "http"] = "socket"
    reply_in: Literal["thread", "channel"] = "thread"
    direct_sessions: Literal["chat", "thread"] = "chat"
    threads: Literal["joined", "mention"] = "joined"
    group_dms: Literal["all", "mention"] = "all"
    edits: Literal["ignore", "correct"] = "ignore"
    streaming: Literal["auto", "update"] = "auto"
    acknowledge: str = ""
    prompts: list[str] = Field(default_factory=list, max_length=4)

    @property
    def root(self) -> str:
        return self.base_url.strip().rstrip("/").removesuffix("/api").rstrip("/")

    def require(self, name: str) -> None:
        """Raise ChannelError when these settings cannot work, whatever Slack says."""
        where = f"channels.{name}"
        if not self.root.startswith(("http://", "https://")):
            raise ChannelError(f"{where}.base_url must begin with http:// or https://")
        if not secret(self.bot_token).startswith(("xoxb-", "xoxe.xoxb-")):
            raise ChannelError(
                f"{where}.bot_token is no bot token (xoxb-…); take it from your app's page at "
                "api.slack.com/apps, OAuth & Permissions"
            )
        if self.mode == "socket" and not secret(self.app_token).startswith("xapp-"):
            raise ChannelError(
                f"{where}.app_token is no app-level token (xapp-…); make one with the scope "
                "connections:write under Basic Information, App-Level Tokens, or set mode: http"
            )
        if self.mode == "http" and not secret(self.signing_secret):
            raise ChannelError(
                f"{where}.signing_secret is empty, so nobody could tell Slack's requests from forged ones; "
                "take it from Basic Information, App Credentials"
            )


def secret(value: SecretStr | None) -> str:
    """The plain value, without blanks around it; empty when there is none."""
    return value.get_secret_value().strip() if value is not None else ""
