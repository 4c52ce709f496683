"""What people read, in English and Chinese."""

from __future__ import annotations

TEXTS: dict[str, tuple[str, str]] = {
    "wecom.greeting": (
        "Hello! Write to me in plain words; I answer here. /help shows what else I understand.",
        "你好!直接用平常的话发消息给我,我会在这里回答。发送 /help 可以查看更多用法。",
    ),
    "wecom.location": (
        "[Location] {label} (latitude {latitude}, longitude {longitude})",
        "[位置] {label}(纬度 {latitude},经度 {longitude})",
    ),
    "wecom.choose": ("Please choose:", "请选择:"),
    "wecom.file_size": (
        "[File not sent: {name} has {size} bytes; WeCom takes from 6 bytes to 20 MB]",
        "[文件未能发送:{name} 大小为 {size} 字节,企业微信支持 6 字节到 20 MB]",
    ),
    "wecom.file_refused": (
        "[File not sent: WeCom refused {name}]",
        "[文件未能发送:企业微信拒收 {name}]",
    ),
    "wecom.check.url": (
        "Callback URL: {url}",
        "回调地址 URL:{url}",
    ),
    "wecom.check.url_cure": (
        "Enter it in the console: 应用管理 → 自建 → the application → 接收消息 → 设置API接收, and press 保存 "
        "while the bridge runs.",
        "在管理后台填写:应用管理 → 自建 → 你的应用 → 接收消息 → 设置API接收。程序运行时再点「保存」。",
    ),
    "wecom.check.no_url": (
        "server.public_url is not set, so WeCom's way to this server is unknown. The callback path is {path}",
        "没有设置 server.public_url,无法得知企业微信访问本服务的地址。回调路径是 {path}",
    ),
    "wecom.check.no_url_cure": (
        "Set server.public_url to the address that the internet reaches this server by (https://…).",
        "把 server.public_url 设为公网访问本服务的地址(https://…)。",
    ),
    "wecom.check.reached": (
        "The callback URL answers a signed test request correctly.",
        "回调地址能正确应答带签名的测试请求。",
    ),
    "wecom.check.not_reached": (
        "The callback URL does not answer as it should ({reason}).",
        "回调地址没有正确应答({reason})。",
    ),
    "wecom.check.not_reached_cure": (
        "Start the bridge, then check the domain, the reverse proxy and the firewall. token and aes_key of "
        "the running bridge must be the ones configured here.",
        "先启动程序,再检查域名、反向代理和防火墙;运行中的程序的 token 和 aes_key 必须与这里的配置一致。",
    ),
    "wecom.check.settings": ("{what}", "配置有误:{what}"),
    "wecom.check.token": (
        "corp_id and secret are right: an access token was issued.",
        "corp_id 和 secret 正确,已取得 access_token。",
    ),
    "wecom.check.corp_id": ("corp_id is wrong ({code}).", "corp_id 不正确({code})。"),
    "wecom.check.corp_id_cure": (
        "Copy it again from 我的企业 → 企业信息 → 企业ID.",
        "从「我的企业 → 企业信息 → 企业ID」重新复制。",
    ),
    "wecom.check.secret": ("secret is wrong ({code}).", "secret 不正确({code})。"),
    "wecom.check.secret_cure": (
        "Copy it again from 应用管理 → 自建 → the application → Secret. Each application has its own.",
        "从「应用管理 → 自建 → 你的应用 → Secret」重新复制。每个应用的 Secret 各不相同。",
    ),
    "wecom.check.ip": (
        "WeCom refuses calls from this server's address {ip} (60020).",
        "企业微信拒绝来自本服务器 IP {ip} 的调用(60020)。",
    ),
    "wecom.check.ip_cure": (
        "Add {ip} under 应用管理 → 自建 → the application → 企业可信IP. It can be added once "
        "设置API接收 or 可信域名 is set.",
        "在「应用管理 → 自建 → 你的应用 → 企业可信IP」中添加 {ip}。"
        "需先设置「接收消息服务器URL」或「可信域名」才能添加。",
    ),
    "wecom.check.agent": (
        "Application {name}: {users} members, {departments} departments, {tags} tags may use it (可见范围).",
        "应用「{name}」:可见范围包括 {users} 名成员、{departments} 个部门、{tags} 个标签。",
    ),
    "wecom.check.nobody": (
        "Nobody is in the application's 可见范围, so nobody can write to it.",
        "应用的「可见范围」为空,没有人能给它发消息。",
    ),
    "wecom.check.nobody_cure": (
        "Add members or departments under 应用管理 → 自建 → the application → 可见范围.",
        "在「应用管理 → 自建 → 你的应用 → 可见范围」中添加成员或部门。",
    ),
    "wecom.check.closed": ("The application is switched off (已停用).", "应用已停用。"),
    "wecom.check.closed_cure": (
        "Switch it on: 应用管理 → 自建 → the application → 启用.",
        "在「应用管理 → 自建 → 你的应用」中启用。",
    ),
    "wecom.check.agent_id": (
        "agent_id {agent} is not the application that the secret belongs to ({code}).",
        "agent_id {agent} 与 secret 不属于同一个应用({code})。",
    ),
    "wecom.check.agent_id_cure": (
        "Take AgentId and Secret from the same page: 应用管理 → 自建 → the application.",
        "从同一个页面「应用管理 → 自建 → 你的应用」复制 AgentId 和 Secret。",
    ),
    "wecom.check.unreachable": (
        "WeCom's API at {url} cannot be reached now ({reason}).",
        "现在无法访问企业微信接口 {url}({reason})。",
    ),
    "wecom.check.unreachable_cure": (
        "Check this machine's way to the internet and base_url.",
        "检查本机网络和 base_url。",
    ),
    "wecom.check.other": (
        "WeCom answers {call} with an error: {reason}",
        "企业微信接口 {call} 返回错误:{reason}",
    ),
}
