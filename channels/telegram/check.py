"""What `causeway init` and `doctor` find out about a bot from outside. Only asks; changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from channels.base import ChannelError, Env, Finding, SetupField
from channels.telegram.api import Api, ApiError
from channels.telegram.config import account
from channels.telegram.webhook import path

if TYPE_CHECKING:
    from channels.telegram.config import TelegramConfig

Data: TypeAlias = dict[str, Any]

SETUP = (
    SetupField(
        "token",
        {
            "en": "the bot's token: open @BotFather in Telegram, send /newbot (or /mybots), copy the token",
            "zh": "机器人的 token：在 Telegram 中打开 @BotFather，发送 /newbot（或 /mybots），复制 token",
        },
        secret=True,
    ),
)
_DEADLINE = 15.0
#: Most groups looked at in one check.
MAX_GROUPS = 50


async def check(name: str, config: TelegramConfig, env: Env, language: str = "") -> list[Finding]:
    """Look at the token, the account and the way messages come. Never raises for a fault of the settings."""
    try:
        bot = account(name, config)
        api = await Api.connect(bot.token, bot.root, bot.proxy)
    except ChannelError as error:
        return [Finding("error", str(error))]
    try:
        say = _Words(env, language, {"channel": name, "server": bot.root})
        try:
            me = await api.call("getMe", _DEADLINE)
        except ApiError as error:
            return [_unreached(error, say)]
        say = _Words(env, language, say.values | {"bot": str(me.get("username", ""))})
        findings = [say.ok("token"), *_account(me, say)]
        try:
            info = await api.call("getWebhookInfo", _DEADLINE)
        except ApiError as error:
            return [*findings, say.warning("failed", method="getWebhookInfo", reason=error.reason)]
        if config.mode == "polling":
            return [*findings, *_polling(info, say)]
        return [
            *findings,
            *_webhook(info, f"{env.public_url}{path(name)}" if env.public_url else "", env, say),
        ]
    finally:
        await api.close()


async def check_groups(
    name: str, config: TelegramConfig, env: Env, groups: Sequence[str], language: str = ""
) -> list[Finding]:
    """Whether the bot is in these groups (ids) and may write there; at most `MAX_GROUPS` are looked at."""
    try:
        bot = account(name, config)
        api = await Api.connect(bot.token, bot.root, bot.proxy)
    except ChannelError as error:
        return [Finding("error", str(error))]
    say = _Words(env, language, {"channel": name, "server": bot.root})
    try:
        me = await api.call("getMe", _DEADLINE)
        say = _Words(env, language, say.values | {"bot": str(me.get("username", ""))})
        return [await _group(api, me, group, say) for group in groups[:MAX_GROUPS]]
    except ApiError as error:
        return [_unreached(error, say)]
    finally:
        await api.close()


@dataclass(frozen=True, slots=True)
class _Words:
    """Findings from the catalogue: `telegram.check.<key>`, with its cure at `.cure`."""

    env: Env
    language: str
    values: dict[str, object]

    def ok(self, key: str, **values: object) -> Finding:
        return Finding("ok", self._text(key, values))

    def warning(self, key: str, *, cure: str = "", **values: object) -> Finding:
        return Finding("warning", self._text(key, values), self._text(cure, values) if cure else "")

    def error(self, key: str, *, cure: str = "", **values: object) -> Finding:
        return Finding("error", self._text(key, values), self._text(cure, values) if cure else "")

    def _text(self, key: str, values: dict[str, object]) -> str:
        return self.env.text(f"telegram.check.{key}", self.language, **self.values | values)


def _unreached(error: ApiError, say: _Words) -> Finding:
    # A malformed token is answered with 404, one that nobody has with 401.
    if error.code in (401, 404):
        return say.error("bad_token", cure="bad_token.cure", reason=error.reason)
    if error.code == 0:
        return say.error("unreached", cure="unreached.cure", reason=error.reason)
    return say.error("failed", method="getMe", reason=error.reason)


def _account(me: Data, say: _Words) -> list[Finding]:
    findings = []
    if not me.get("can_join_groups"):
        findings.append(say.warning("no_groups", cure="no_groups.cure"))
    elif me.get("can_read_all_group_messages"):
        findings.append(say.ok("privacy_off"))
    else:
        findings.append(say.warning("privacy_on", cure="privacy_on.cure"))
    if me.get("has_topics_enabled"):
        findings.append(say.ok("topics"))
    return findings


def _polling(info: Data, say: _Words) -> list[Finding]:
    if info.get("url"):
        return [say.error("webhook_in_the_way", cure="webhook_in_the_way.cure", url=info["url"])]
    return [say.ok("polling", pending=info.get("pending_update_count", 0))]


def _webhook(info: Data, wanted: str, env: Env, say: _Words) -> list[Finding]:
    url, pending = str(info.get("url") or ""), int(info.get("pending_update_count") or 0)
    findings = []
    if not wanted.startswith("https://"):
        findings.append(say.error("no_address", cure="no_address.cure"))
    if not url:
        return [*findings, say.warning("no_webhook")]
    if wanted.startswith("https://") and url != wanted:
        findings.append(say.error("other_webhook", cure="other_webhook.cure", url=url, wanted=wanted))
    if info.get("last_error_message") and pending:
        minutes = max(0, int((env.clock() - float(info.get("last_error_date") or 0)) // 60))
        reason = info["last_error_message"]
        cure = "webhook_error.cure"
        return [
            *findings,
            say.error("webhook_error", cure=cure, minutes=minutes, reason=reason, pending=pending),
        ]
    return [*findings, say.ok("webhook", pending=pending)]


async def _group(api: Api, me: Data, group: str, say: _Words) -> Finding:
    try:
        chat = await api.call("getChat", _DEADLINE, chat_id=group)
        member = await api.call("getChatMember", _DEADLINE, chat_id=group, user_id=me["id"])
    except ApiError as error:
        if error.migrate_to:
            moved = {"group": group, "id": group, "new": error.migrate_to}
            return say.error("group_moved", cure="group_moved.cure", **moved)
        if error.code in (400, 403):
            reason = error.reason
            return say.error("group_out", cure="group_out.cure", group=group, id=group, reason=reason)
        return say.warning("failed", method="getChat", reason=error.reason)
    title = f"{chat.get('title') or group} ({group})"
    role = str(member.get("status", ""))
    admin = role in ("administrator", "creator")
    mute = partial(say.error, cure="group_mute.cure", group=title)
    if role in ("left", "kicked"):
        return say.error("group_out", cure="group_out.cure", group=title, id=group, reason=role)
    allowed = chat.get("permissions") or {}
    if role == "restricted":
        allowed = {key: allowed.get(key, True) and member.get(key, True) for key in {*allowed, *member}}
    if not admin and not allowed.get("can_send_messages", True):
        return mute("group_mute")
    if not admin and not (allowed.get("can_send_documents", True) and allowed.get("can_send_photos", True)):
        return say.warning("group_no_files", cure="group_mute.cure", group=title)
    if chat.get("type") == "channel" and not member.get("can_post_messages"):
        return mute("group_mute")
    if not admin and not me.get("can_read_all_group_messages"):
        return say.warning("group_blind", cure="privacy_on.cure", group=title)
    return say.ok("group_ok", group=title, role=role)
