"""What people read from the Slack channel: key -> (English, Chinese)."""

from __future__ import annotations

TEXTS: dict[str, tuple[str, str]] = {
    "slack.status": ("is thinking…", "正在思考…"),
    "slack.asked": ("{name} asks about this message: {question}", "{name} 就这条消息提问：{question}"),
    "slack.not_here": (
        "I am not in this conversation. Invite me with /invite, then ask again.",
        "我不在这个会话里。请先用 /invite 邀请我，然后再提问。",
    ),
    "slack.home.title": ("Causeway", "Causeway"),
    "slack.home.ok": ("✅ Connected and listening.", "✅ 已连接，可以使用。"),
    "slack.home.trouble": ("⚠️ {reason}", "⚠️ {reason}"),
    "slack.home.help": (
        "*How to talk to me*\n"
        "• Write to me under *Messages*.\n"
        "• In a channel, invite me and mention {mention}; I answer in a thread and stay in it.\n"
        "• On any message, choose *More actions → Ask about this*.",
        "*怎样和我对话*\n"
        "• 在 *消息* 标签页直接给我写消息。\n"
        "• 在频道里邀请我并提及 {mention}；我会在消息列里回答，并继续参与。\n"
        "• 在任意消息上选择 *更多操作 → Ask about this*。",
    ),
    "slack.home.commands": (
        "*Commands*: `/causeway help` lists them all; in a thread write `!help`.",
        "*命令*：`/causeway help` 列出全部命令；在消息列里请写 `!help`。",
    ),
    "slack.dialog.title": ("Ask about this", "询问这条消息"),
    "slack.dialog.submit": ("Ask", "提问"),
    "slack.dialog.close": ("Cancel", "取消"),
    "slack.dialog.label": ("Your question", "你的问题"),
    "slack.dialog.start": ("What does this mean?", "这是什么意思？"),
    "slack.prompts": ("What can I do for you?", "我能帮你做什么？"),
    "slack.prompt.1": ("What can you do?", "你能做什么？"),
    "slack.prompt.2": ("Draft a reply to a message that I paste", "帮我起草对一条消息的回复"),
    "slack.prompt.3": ("Explain something in simple words", "用简单的话解释一件事"),
    "slack.check.slow": ("Slack did not answer in 20 s.", "Slack 在 20 秒内没有应答。"),
    "slack.check.slow.cure": (
        "Try again; check the network and base_url.",
        "请重试，并检查网络和 base_url。",
    ),
    "slack.check.unreachable": ("Slack cannot be reached: {error}.", "无法连接 Slack：{error}。"),
    "slack.check.unreachable.cure": (
        "Check the network, a proxy (HTTPS_PROXY) and base_url.",
        "请检查网络、代理（HTTPS_PROXY）和 base_url。",
    ),
    "slack.check.token": ("Slack refuses bot_token: {error}.", "Slack 拒绝了 bot_token：{error}。"),
    "slack.check.token.cure": (
        "Install the app in the workspace and copy the Bot User OAuth Token from OAuth & Permissions.",
        "请把应用安装到工作区，并从 OAuth & Permissions 复制 Bot User OAuth Token。",
    ),
    "slack.check.token_ok": ("bot_token is valid: {bot} in {team}.", "bot_token 有效：{team} 中的 {bot}。"),
    "slack.check.scopes": ("The app lacks scopes: {scopes}.", "应用缺少权限：{scopes}。"),
    "slack.check.scopes.cure": (
        "Paste docs/slack-manifest.yaml under App Manifest, save, and reinstall the app.",
        "请在 App Manifest 中粘贴 docs/slack-manifest.yaml，保存后重新安装应用。",
    ),
    "slack.check.scopes_ok": ("The app has all {count} scopes.", "应用具有全部 {count} 项权限。"),
    "slack.check.socket": ("Socket Mode cannot be used: {error}.", "无法使用 Socket 模式：{error}。"),
    "slack.check.socket.cure": (
        "Switch Socket Mode on, and take app_token from Basic Information, App-Level Tokens, with the scope "
        "connections:write.",
        "请打开 Socket Mode，并在 Basic Information 的 App-Level Tokens 中取得带有 connections:write 权限的 "
        "app_token。",
    ),
    "slack.check.socket_ok": ("Socket Mode can be used.", "可以使用 Socket 模式。"),
    "slack.check.no_url": (
        "mode: http needs an address that Slack can reach, and server.public_url is not set.",
        "mode: http 需要 Slack 能访问的地址，但没有设置 server.public_url。",
    ),
    "slack.check.no_url.cure": (
        "Set server.public_url to the https address, and in the app's settings use it with {path}.",
        "请把 server.public_url 设为 https 地址，并在应用设置中填写该地址加 {path}。",
    ),
    "slack.check.no_tls": (
        "server.public_url ({url}) is no https address.",
        "server.public_url（{url}）不是 https 地址。",
    ),
    "slack.check.no_tls.cure": (
        "Slack sends events to https addresses only.",
        "Slack 只向 https 地址发送事件。",
    ),
    "slack.check.url_ok": ("Request URL in the app's settings: {url}", "应用设置中的 Request URL：{url}"),
    "slack.check.no_channel": ("The bot is in no channel yet.", "机器人还不在任何频道中。"),
    "slack.check.no_channel.cure": (
        "In a channel write: /invite @{bot} (direct messages work without).",
        "在频道中输入：/invite @{bot}（私聊不需要）。",
    ),
    "slack.check.channels_ok": ("The bot is in {count} channels.", "机器人在 {count} 个频道中。"),
    "slack.check.channels_unknown": ("The channels cannot be listed: {error}.", "无法列出频道：{error}。"),
    "slack.check.channels_unknown.cure": (
        "Give the app the scopes channels:read and groups:read.",
        "请给应用添加 channels:read 和 groups:read 权限。",
    ),
}
