"""What the Telegram channel says to people, in English and Chinese."""

from __future__ import annotations

TEXTS: dict[str, tuple[str, str]] = {
    # -- files on their way out
    "telegram.file_too_large": (
        "“{name}” has {size} MB; a Telegram bot can send {limit} MB. Ask me to make it smaller or to "
        "split it.",
        "“{name}”有 {size} MB，Telegram 机器人最多只能发送 {limit} MB。可以让我压缩或拆分后再发。",
    ),
    "telegram.file_unreadable": (
        "“{name}” could not be sent: the file cannot be read any more.",
        "“{name}”发送失败：文件已无法读取。",
    ),
    "telegram.file_refused": (
        "“{name}” could not be sent: Telegram refused it ({reason}).",
        "“{name}”发送失败：Telegram 拒绝了该文件（{reason}）。",
    ),
    # -- what doctor and init find
    "telegram.check.token": ("The token is that of @{bot}.", "token 有效，机器人是 @{bot}。"),
    "telegram.check.bad_token": (
        "Telegram does not know this token ({reason}).",
        "Telegram 不认识这个 token（{reason}）。",
    ),
    "telegram.check.bad_token.cure": (
        "Open @BotFather, send /mybots, choose the bot, “API Token”, and put the token into "
        "channels.{channel}.token.",
        "打开 @BotFather，发送 /mybots，选择机器人，点 “API Token”，把 token 填入 channels.{channel}.token。",
    ),
    "telegram.check.unreached": (
        "Telegram's server {server} cannot be reached ({reason}).",
        "无法连接 Telegram 服务器 {server}（{reason}）。",
    ),
    "telegram.check.unreached.cure": (
        "Check the network, channels.{channel}.proxy and channels.{channel}.base_url.",
        "请检查网络，以及 channels.{channel}.proxy 和 channels.{channel}.base_url。",
    ),
    "telegram.check.failed": ("{method} was refused: {reason}.", "{method} 被拒绝：{reason}。"),
    "telegram.check.privacy_on": (
        "Privacy mode is on: in groups @{bot} sees only commands, mentions and replies to it (all messages "
        "where it is an admin). Wake words and quiet listening do not work so.",
        "隐私模式已开启：在群里 @{bot} 只能看到命令、@它的消息和对它的回复（它是管理员的群除外），"
        "唤醒词不可用。",
    ),
    "telegram.check.privacy_on.cure": (
        "If it shall see all messages: send /setprivacy to @BotFather, choose @{bot}, “Disable”, then remove "
        "the bot from each group and add it again (or make it an admin there).",
        "如需看到全部消息：向 @BotFather 发送 /setprivacy，选择 @{bot}，点 “Disable”，"
        "然后把机器人移出群再重新加入（或设为管理员）。",
    ),
    "telegram.check.privacy_off": (
        "Privacy mode is off: the bot sees all messages of its groups.",
        "隐私模式已关闭：机器人能看到所在群的全部消息。",
    ),
    "telegram.check.no_groups": ("The bot cannot be added to groups.", "机器人不能被加入群。"),
    "telegram.check.no_groups.cure": (
        "If it shall work in groups: send /setjoingroups to @BotFather, choose @{bot}, “Enable”.",
        "如需在群里使用：向 @BotFather 发送 /setjoingroups，选择 @{bot}，点 “Enable”。",
    ),
    "telegram.check.topics": (
        "Private chats with the bot have topics: each topic is a conversation of its own.",
        "与机器人的私聊启用了话题：每个话题是一个独立的对话。",
    ),
    "telegram.check.polling": (
        "Polling is possible; {pending} message(s) wait for the bridge.",
        "可以轮询，有 {pending} 条消息等待处理。",
    ),
    "telegram.check.webhook_in_the_way": (
        "mode is polling, but a webhook is set ({url}); messages go there.",
        "mode 为 polling，但已设置 webhook（{url}），消息会发到那里。",
    ),
    "telegram.check.webhook_in_the_way.cure": (
        "Stop the program that set it and remove it (open "
        "https://api.telegram.org/bot<token>/deleteWebhook), or set channels.{channel}.mode: webhook.",
        "停掉设置它的程序并删除 webhook（打开 https://api.telegram.org/bot<token>/deleteWebhook），"
        "或设置 channels.{channel}.mode: webhook。",
    ),
    "telegram.check.no_address": (
        "mode is webhook, but the https address at which Telegram reaches this server is not known.",
        "mode 为 webhook，但不知道 Telegram 访问本服务器的 https 地址。",
    ),
    "telegram.check.no_address.cure": (
        "Set server.public_url, or use mode: polling, which needs no address.",
        "设置 server.public_url，或使用 mode: polling（无需地址）。",
    ),
    "telegram.check.no_webhook": (
        "mode is webhook, and no webhook is set yet; the bridge sets it when it starts.",
        "mode 为 webhook，但尚未设置 webhook；程序启动时会自动设置。",
    ),
    "telegram.check.other_webhook": (
        "The webhook points to {url}, not to {wanted}.",
        "webhook 指向 {url}，而不是 {wanted}。",
    ),
    "telegram.check.other_webhook.cure": (
        "Start the bridge (it sets its own address), or stop the other program that uses this bot.",
        "启动本程序（会自动设置自己的地址），或停掉使用同一机器人的其他程序。",
    ),
    "telegram.check.webhook": (
        "The webhook is set; {pending} message(s) wait.",
        "webhook 已设置，有 {pending} 条消息等待投递。",
    ),
    "telegram.check.webhook_error": (
        "Telegram could not deliver to the webhook {minutes} minute(s) ago: {reason}; {pending} message(s) "
        "wait.",
        "{minutes} 分钟前 Telegram 投递到 webhook 失败：{reason}；有 {pending} 条消息等待。",
    ),
    "telegram.check.webhook_error.cure": (
        "Look at the reverse proxy and its certificate; Telegram takes the ports 443, 80, 88 and 8443 only.",
        "请检查反向代理和证书；Telegram 只支持 443、80、88、8443 端口。",
    ),
    "telegram.check.group_ok": (
        "{group}: the bot may read and write ({role}).",
        "{group}：机器人可以读写（{role}）。",
    ),
    "telegram.check.group_blind": (
        "{group}: the bot may write, but privacy mode hides ordinary messages from it.",
        "{group}：机器人可以发言，但隐私模式使它看不到普通消息。",
    ),
    "telegram.check.group_out": (
        "{group}: the bot is not there ({reason}).",
        "{group}：机器人不在那里（{reason}）。",
    ),
    "telegram.check.group_out.cure": (
        "Add @{bot} to it, or take {id} out of the access settings.",
        "把 @{bot} 加入，或从 access 设置中去掉 {id}。",
    ),
    "telegram.check.group_mute": (
        "{group}: the bot may not send messages there.",
        "{group}：机器人不能在那里发言。",
    ),
    "telegram.check.group_no_files": (
        "{group}: the bot may not send files and pictures there.",
        "{group}：机器人不能在那里发送文件和图片。",
    ),
    "telegram.check.group_mute.cure": (
        "Let an admin of the group permit it (its settings, Permissions), or make @{bot} an admin.",
        "请管理员在群权限设置中允许，或把 @{bot} 设为管理员。",
    ),
    "telegram.check.group_moved": (
        "{group}: the group became a supergroup; its id is now {new}.",
        "{group}：该群已升级为超级群，新的 ID 是 {new}。",
    ),
    "telegram.check.group_moved.cure": (
        "Put {new} in place of {id} in the access settings.",
        "把 access 设置中的 {id} 换成 {new}。",
    ),
}
