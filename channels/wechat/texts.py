"""Words of ours that people see: in the chat, and in the findings of a check. Key -> (English, Chinese)."""

from __future__ import annotations

TEXTS: dict[str, tuple[str, str]] = {
    "wechat.greeting": (
        "Hello! Write what you would like to know, or send a voice message or a picture.",
        "你好！有什么问题直接发给我，也可以发语音或图片。",
    ),
    "wechat.wait": (
        "Still working on it. Reply “more” in a moment to see the answer.",
        "还在处理中，请稍后回复“继续”查看答案。",
    ),
    "wechat.more": ("\n\n(Reply “more” for the rest.)", "\n\n（未完，回复“继续”查看下文）"),
    "wechat.working": (
        "\n\n(Another answer is on its way: reply “more” in a moment.)",
        "\n\n（你的另一条消息还在处理，稍后回复“继续”查看）",
    ),
    "wechat.trouble": (
        "Your message could not be taken just now. Please send it again in a minute.",
        "刚才没能收下你的消息，请过一分钟再发一次。",
    ),
    "wechat.file": (
        "[file] {name} (it cannot be sent here)",
        "[文件] {name}（在这里无法发送）",
    ),
    "wechat.check.setting": ("channels.{name}: {fault}", "channels.{name} 设置有误：{fault}"),
    "wechat.check.setting.cure": (
        "Copy the values from 设置与开发 → 开发接口管理 → 基本配置.",
        "请从“设置与开发 → 开发接口管理 → 基本配置”复制这些值。",
    ),
    "wechat.check.plain": (
        "No aes_key: callbacks travel unencrypted (明文模式).",
        "未设置 aes_key：回调以明文传输（明文模式）。",
    ),
    "wechat.check.plain.cure": (
        "Choose 安全模式 in 服务器配置 and set aes_key.",
        "建议在“服务器配置”中选择安全模式，并填写 aes_key。",
    ),
    "wechat.check.url": (
        "Callback URL for 服务器配置 → 服务器地址(URL): {url}",
        "请把回调地址填入“服务器配置 → 服务器地址(URL)”：{url}",
    ),
    "wechat.check.nourl": (
        "The address under which WeChat reaches this server is not known; the path is {path}.",
        "尚不知道微信从外网访问本服务的地址；路径是 {path}。",
    ),
    "wechat.check.nourl.cure": (
        "Set server: public_url to the outside address (http port 80 or https port 443).",
        "请在 server: public_url 中填写外网地址（只能是 80 端口的 http 或 443 端口的 https）。",
    ),
    "wechat.check.port": (
        "WeChat calls only port 80 (http) and 443 (https); the address has port {port}.",
        "微信只访问 80（http）和 443（https）端口，而该地址的端口是 {port}。",
    ),
    "wechat.check.port.cure": (
        "Put a reverse proxy on port 80 or 443 in front.",
        "请用反向代理监听 80 或 443 端口。",
    ),
    "wechat.check.private": (
        "{host} is an address that only this network knows.",
        "{host} 是内网地址，微信无法访问。",
    ),
    "wechat.check.private.cure": (
        "Use a public host name, or a tunnel that gives one.",
        "请使用公网域名，或用内网穿透工具获得一个。",
    ),
    "wechat.check.reached": (
        "The callback URL answers correctly (asked from this machine).",
        "回调地址应答正确（从本机访问）。",
    ),
    "wechat.check.unreached": (
        "The callback URL does not answer as it should: {reason}.",
        "回调地址应答不正确：{reason}。",
    ),
    "wechat.check.unreached.cure": (
        "Start the bridge, and check name, proxy and firewall; it must pass the query string on unchanged.",
        "请启动服务，并检查域名、反向代理和防火墙；查询参数必须原样转发。",
    ),
    "wechat.check.pinged": (
        "WeChat's own servers reach the callback host (packet loss {loss}).",
        "微信服务器可以访问回调主机（丢包率 {loss}）。",
    ),
    "wechat.check.unpinged": (
        "WeChat's own servers lost {loss} of their pings to the callback host.",
        "微信服务器 ping 回调主机的丢包率为 {loss}。",
    ),
    "wechat.check.unpinged.cure": (
        "This is harmless when the host answers no pings; else check firewall and region.",
        "如果主机禁止 ping 可以忽略；否则请检查防火墙和所在地区。",
    ),
    "wechat.check.token": (
        "AppID and AppSecret are right: a token was issued.",
        "AppID 和 AppSecret 正确：已取得令牌。",
    ),
    "wechat.check.token.failed": ("No access token: {reason}", "无法取得 access_token：{reason}"),
    "wechat.check.ip": (
        "The IP {ip} is not on the account's white list (40164).",
        "IP {ip} 不在公众号的 IP 白名单中（40164）。",
    ),
    "wechat.check.ip.cure": (
        "Add {ip} under 设置与开发 → 开发接口管理 → 基本配置 → IP白名单; it works after about a minute.",
        "请在“设置与开发 → 开发接口管理 → 基本配置 → IP白名单”中加入 {ip}，约一分钟后生效。",
    ),
    "wechat.check.admin": (
        "An administrator of the account must confirm calls from this IP (89503).",
        "需要公众号管理员确认来自本机 IP 的调用（89503）。",
    ),
    "wechat.check.admin.cure": (
        "Confirm the message that WeChat sent to the administrator, then run this again.",
        "请管理员在微信中确认收到的提示，然后重新检查。",
    ),
    "wechat.check.service": (
        "The account may send customer-service messages: late answers are sent by themselves.",
        "公众号有客服消息权限：较慢的回答会主动发出。",
    ),
    "wechat.check.passive": (
        "The account has no customer-service permission (48001), like all unverified accounts: answers later "
        "than about 14 s wait until the person writes again.",
        "公众号没有客服消息权限（48001），未认证账号都是如此：超过约 14 秒的回答要等用户再发消息才能送达。",
    ),
    "wechat.check.forced": (
        "mode: customer_service is set, but the account has no such permission (48001).",
        "设置了 mode: customer_service，但公众号没有客服消息权限（48001）。",
    ),
    "wechat.check.forced.cure": ("Set mode: auto.", "请改为 mode: auto。"),
    "wechat.check.rights": (
        "Whether the account may send customer-service messages could not be found out: {reason}",
        "无法确定公众号是否有客服消息权限：{reason}",
    ),
}
