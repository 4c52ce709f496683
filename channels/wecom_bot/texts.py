"""What people read from this channel, in English and Chinese."""

TEXTS: dict[str, tuple[str, str]] = {
    "wecom_bot.thinking": ("Thinking…", "正在思考…"),
    "wecom_bot.continued": (
        "_(To be continued: the rest follows in a new message.)_",
        "_（未完待续，其余内容稍后以新消息发送）_",
    ),
    "wecom_bot.later": (
        "No answer yet. As soon as there is one, it follows in a new message.",
        "暂时还没有结果，有了结果会另发一条新消息。",
    ),
    "wecom_bot.later_kept": (
        "No answer yet. If you miss it later on, write to me once more and it will be shown.",
        "暂时还没有结果。如果稍后没有收到，再发一条消息即可取回。",
    ),
    "wecom_bot.noted": ("Noted.", "已收到。"),
    "wecom_bot.welcome": (
        "Hello! Write to me in plain words; in a group, mention me with @. /help shows what I can do.",
        "你好！直接用平常的话跟我说就行；在群里请 @ 我。发送 /help 查看我能做什么。",
    ),
    "wecom_bot.quoted_image": ("[picture]", "[图片]"),
    "wecom_bot.quoted_file": ("[file]", "[文件]"),
    "wecom_bot.quoted_video": ("[video]", "[视频]"),
    "wecom_bot.quoted_voice": ("[voice message]", "[语音]"),
    "wecom_bot.too_large": (
        "The file {name} could not be sent: WeCom takes {most} MB at most, and at least 5 bytes.",
        "文件 {name} 无法发送：企业微信最多接收 {most} MB，最少 5 字节。",
    ),
    "wecom_bot.unsent": (
        "The picture {name} could not be sent.",
        "图片 {name} 无法发送。",
    ),
    "wecom_bot.no_files": (
        "The file {name} could not be sent: with a callback URL an AI bot can send only pictures (JPG, PNG).",
        "文件 {name} 无法发送：智能机器人在“接收消息 URL”模式下只能发送图片（JPG、PNG）。",
    ),
    "wecom_bot.received": ("Received: {label}", "已收到：{label}"),
    "wecom_bot.question": ("Please confirm", "请确认"),
    # -- check
    "wecom_bot.check.missing": (
        "channels.{name}.{setting} is empty.",
        "channels.{name}.{setting} 为空。",
    ),
    "wecom_bot.check.missing_cure": (
        "Copy it from the bot's page: admin console > 管理工具 > 智能机器人 > API 模式.",
        "从机器人的配置页复制：企业微信管理后台 > 管理工具 > 智能机器人 > API 模式。",
    ),
    "wecom_bot.check.aes_key": (
        "channels.{name}.{setting} is no EncodingAESKey (43 letters and digits).",
        "channels.{name}.{setting} 不是有效的 EncodingAESKey（应为 43 位字母和数字）。",
    ),
    "wecom_bot.check.ws_url": (
        "channels.{name}.ws_url must begin with wss:// (or ws:// for a server of your own).",
        "channels.{name}.ws_url 必须以 wss:// 开头（自建服务器可用 ws://）。",
    ),
    "wecom_bot.check.subscribed": (
        "WeCom took the bot ID and the secret; the long connection works.",
        "企业微信接受了 Bot ID 和 Secret，长连接可用。",
    ),
    "wecom_bot.check.running": (
        "A running bridge holds the bot's one connection, so the secret was not tried here.",
        "已有运行中的进程占用该机器人唯一的长连接，因此这里没有再次验证 Secret。",
    ),
    "wecom_bot.check.refused": (
        "WeCom refused the bot ID or the secret (code {code}).",
        "企业微信拒绝了 Bot ID 或 Secret（错误码 {code}）。",
    ),
    "wecom_bot.check.refused_cure": (
        "Take both anew from the bot's page (API 模式 > 长连接); an application's secret is another one.",
        "在机器人页面（API 模式 > 使用长连接）重新获取 Bot ID 与 Secret；自建应用的 Secret 不能用于此处。",
    ),
    "wecom_bot.check.unreachable": (
        "{url} cannot be reached ({reason}).",
        "无法连接 {url}（{reason}）。",
    ),
    "wecom_bot.check.unreachable_cure": (
        "Let this machine reach openws.work.weixin.qq.com on port 443 (firewall, proxy, DNS).",
        "请放行本机访问 openws.work.weixin.qq.com 的 443 端口（防火墙、代理、DNS）。",
    ),
    "wecom_bot.check.callback": (
        "The callback URL to enter in the console is {url}",
        "在管理后台填写的 URL 是 {url}",
    ),
    "wecom_bot.check.no_public": (
        "The address of this server is unknown (server.public_url), and WeCom must reach it from outside.",
        "不知道本服务器的公网地址（server.public_url），而企业微信必须能从外网访问它。",
    ),
    "wecom_bot.check.no_public_cure": (
        "Set server.public_url, or use mode: socket, which needs no public address.",
        "请设置 server.public_url，或改用 mode: socket（不需要公网地址）。",
    ),
    "wecom_bot.check.answers": (
        "The callback URL answers a signed request as WeCom sends it.",
        "回调 URL 能正确应答企业微信格式的签名请求。",
    ),
    "wecom_bot.check.no_answer": (
        "The callback URL did not answer a signed request ({reason}).",
        "回调 URL 没有正确应答签名请求（{reason}）。",
    ),
    "wecom_bot.check.no_answer_cure": (
        "Start the bridge; let port 443 of the public address lead to it (reverse proxy, firewall).",
        "请先启动程序，并确认公网地址的 443 端口能转发到它（反向代理、防火墙）。",
    ),
}
