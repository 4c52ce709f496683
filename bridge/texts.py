"""The one catalogue of texts that people read, in English and Chinese."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.texts_cli import TEXTS as _CLI
from bridge.texts_people import TEXTS as _PEOPLE

_TEXTS: dict[str, tuple[str, str]] = {
    # -- access
    "access.denied": (
        "I do not know you yet, so I cannot answer here. Your id is {id}. Ask the person who runs this bot to add it "
        "under access: {channel}: allow in config.yaml.",
        "我还不认识你,暂时不能在这里回答。你的 ID 是 {id}。请让管理员把它加入 config.yaml 的 access: {channel}: allow。",
    ),
    # -- commands
    "help": (
        "Write to me in plain words. Commands:\n\n{commands}",
        "直接用平常的话跟我说就行。命令:\n\n{commands}",
    ),
    "command.help": ("what I understand", "查看可用命令"),
    "command.new": ("start afresh: forget this conversation", "重新开始,忘掉当前对话"),
    "command.stop": ("stop what I am doing", "停止当前任务"),
    "command.status": ("how things stand", "查看运行状态"),
    "command.mcp": ("tool servers and their state", "查看 MCP 服务器状态"),
    "command.tools": ("tools I can use", "查看可用工具"),
    "command.skills": ("skills I have", "查看技能"),
    "command.whoami": ("your id and rights here", "查看你的 ID 和权限"),
    "new.done": ("Done. This is a new conversation.", "好的,已开始新的对话。"),
    "stop.done": ("Stopped.", "已停止。"),
    "stop.dropped": (
        "Stopped. {count} waiting message(s) of this conversation were dropped; send them again if you still want an answer.",
        "已停止。这个对话里还有 {count} 条排队的消息也被取消了;需要的话请重新发送。",
    ),
    "stop.idle": ("There is nothing to stop.", "当前没有正在进行的任务。"),
    "stopped.note": ("_(stopped)_", "_(已停止)_"),
    "status": (
        "- **Model:** {model}\n- **Conversation:** {messages} messages, {waiting} waiting, {state}\n"
        "- **Tools:** {tools} ({mcp})\n- **Skills:** {skills} available\n- **Channels:** {channels}\n"
        "- **Next request:** {request}\n- **Up since:** {since}",
        "- **模型:** {model}\n- **对话:** {messages} 条消息,{waiting} 条排队,{state}\n"
        "- **工具:** {tools} 个({mcp})\n- **技能:** {skills} 个可用\n- **渠道:** {channels}\n"
        "- **下次请求:** {request}\n- **启动时间:** {since}",
    ),
    "status.request": (
        "about {all} tokens (system {system}, skills {skills}, tools {tools}, history {history}; dearest: {names})",
        "约 {all} token(系统 {system},技能 {skills},工具 {tools},历史 {history};最大:{names})",
    ),
    "status.busy": ("working", "正在处理"),
    "status.idle": ("idle", "空闲"),
    "mcp.none": (
        "No tool servers are set up. An admin adds them in {file}.",
        "还没有配置 MCP 服务器。管理员可以在 {file} 里添加。",
    ),
    "mcp.line": (
        "- **{name}**: {state}, {tools} tools{reason}",
        "- **{name}**:{state},{tools} 个工具{reason}",
    ),
    "mcp.summary": ("{ready} of {all} servers ready", "{ready}/{all} 个服务器就绪"),
    "mcp.nothing": ("no servers", "无服务器"),
    "mcp.problems": ("Problems:", "问题:"),
    "tools.title": ("I can use these tools:", "我可以使用这些工具:"),
    "tools.used": (
        "({calls} calls, {failures} failed, {ms} ms)",
        "(调用 {calls} 次,失败 {failures} 次,{ms} 毫秒)",
    ),
    "tools.off_now": ("Switched off: {names}", "已关闭:{names}"),
    "tools.off": ("{name} is switched off for everybody.", "{name} 已对所有人关闭。"),
    "tools.on": ("{name} is switched on.", "{name} 已打开。"),
    "tools.unknown": (
        "There is no tool {name}. Did you mean {near}?",
        "没有名为 {name} 的工具。是不是 {near}?",
    ),
    "skills.title": ("I have these skills:", "我有这些技能:"),
    "skills.none": ("No skills are available.", "没有可用的技能。"),
    "skills.unavailable": ("Installed, but something is missing:", "已安装,但缺少依赖:"),
    "skills.problems": ("Not loaded:", "未能加载:"),
    "whoami": (
        "You are {name} (id `{id}`) on {channel}. Rights here: {role}.",
        "你是 {name}(ID `{id}`),渠道 {channel}。权限:{role}。",
    ),
    "role.admin": ("admin", "管理员"),
    "role.member": ("member", "成员"),
    "role.none": ("none: an admin has to allow your id first", "无:需要管理员先允许你的 ID"),
    # -- a full inbox
    "inbox.full": (
        "I still have {cap} messages of this conversation to answer, so I did not take this one. Send it again in a while.",
        "这个对话还有 {cap} 条消息没有处理完,这一条没有收下。请稍后再发。",
    ),
    # -- failures of a run
    "failure.rate_limited": (
        "The model service asks me to slow down, and waiting did not help. Please try again in a few minutes.",
        "模型服务要求降低频率,等待后仍未恢复。请过几分钟再试。",
    ),
    "failure.overloaded": (
        "The model service is overloaded right now. I tried several times; please try again in a few minutes.",
        "模型服务目前过载,我已重试多次。请过几分钟再试。",
    ),
    "failure.connection": (
        "I could not reach the model service. I tried several times; please try again in a few minutes.",
        "无法连接到模型服务,我已重试多次。请过几分钟再试。",
    ),
    "failure.context": (
        "This conversation has grown too long for the model. Send /new to start afresh.",
        "这个对话对模型来说太长了。请发送 /new 重新开始。",
    ),
    "failure.unauthorised": (
        "The model service does not accept my key. The person who runs this bot has to check it (model: api_key).",
        "模型服务拒绝了我的密钥。请管理员检查配置(model: api_key)。",
    ),
    "failure.refused": ("The model declined to answer this.", "模型拒绝回答这个问题。"),
    "failure.bad_request": (
        "The model service refused the request. The reason is in the log of the person who runs this bot.",
        "模型服务拒绝了这个请求,原因已写入管理员的日志。",
    ),
    "failure.empty": (
        "The model gave no answer, even when asked again. Please put it in other words.",
        "模型多次没有给出回答。请换一种说法再试。",
    ),
    "failure.cut_off": (
        "The answer was cut off at the model's output limit. Say “continue”, or ask for a smaller piece.",
        "回答达到模型的输出上限被截断了。可以说“继续”,或者把问题拆小一些。",
    ),
    "failure.steps": (
        "I used all the steps I am allowed for one message without getting done. Tell me how to go on.",
        "单条消息允许的步骤已用完,仍未完成。请告诉我接下来怎么做。",
    ),
    "failure.loop": (
        "I kept getting the same result from the same tool, so I stopped. Tell me what to try instead.",
        "同一个工具反复返回相同的结果,我先停下来了。请告诉我换什么办法。",
    ),
    "failure.internal": (
        "Something went wrong on my side; it is in the log. Please try again.",
        "我这边出错了,已写入日志。请再试一次。",
    ),
    # -- HTTP
    "gateway.no_worker": (
        "No worker is running. Start one: causeway run --role worker",
        "没有正在运行的 worker。请启动一个:causeway run --role worker",
    ),
    "http.host": (
        "This address is not one of mine. Open http://127.0.0.1 with my port, or add the name to server: allowed_hosts.",
        "这个访问地址不在允许范围内。请用 http://127.0.0.1 加端口访问,或把域名加入 server: allowed_hosts。",
    ),
    "http.origin": ("Requests from other web sites are not allowed.", "不允许来自其他网站的请求。"),
    "http.key": (
        "A key is needed: open the page with ?key=…, or send it as a bearer token. It is in the bridge's start-up output.",
        "需要密钥:请用 ?key=… 打开页面,或作为 Bearer 令牌发送。密钥见启动时的输出。",
    ),
    "http.no_key": (
        "From other machines a key is needed. Set server: key in config.yaml.",
        "从其他机器访问需要密钥,请在 config.yaml 里设置 server: key。",
    ),
    # -- questions of a tool
    "question.head": ("**{source}** asks: {text}", "**{source}** 询问:{text}"),
    "question.yes": ("yes", "是"),
    "question.no": ("no", "否"),
    "question.confirm": ("Answer yes or no.", "请回答“是”或“否”。"),
    "question.field": ("({number}/{count}) **{label}** {about}", "({number}/{count}) **{label}** {about}"),
    "question.default": ("(“-” for {default}; /deny refuses)", "(回复“-”使用 {default};/deny 表示拒绝)"),
    "question.optional": ("(“-” leaves it out; /deny refuses)", "(回复“-”跳过;/deny 表示拒绝)"),
    "question.again": (
        "That does not fit **{name}**. Once more, please:",
        "**{name}** 的内容不符合要求,请再回答一次:",
    ),
    "question.late": (
        "That question is closed by now. Write it again if it was meant for me.",
        "这个问题已经结束了。如果是发给我的内容,请重新发送。",
    ),
    # -- resources and prompts
    "command.resource": ("documents of tool servers: list, or attach one", "查看或附加 MCP 服务器的资源"),
    "command.prompt": (
        "ready-made requests of tool servers: list, or run one",
        "查看或运行 MCP 服务器的提示模板",
    ),
    "resource.none": ("The tool servers offer no resources.", "MCP 服务器没有提供资源。"),
    "resource.title": ("Attach one with `/resource` and its name:", "用 `/resource` 加名称来附加:"),
    "resource.unknown": (
        "I know no resource “{name}”. Send /resource for the list.",
        "没有名为“{name}”的资源。发送 /resource 查看列表。",
    ),
    "resource.attached": (
        "**{name}** is attached ({size} characters). Ask about it.",
        "已附加 **{name}**({size} 个字符),可以开始提问。",
    ),
    "resource.failed": ("**{name}** could not be read: {reason}", "**{name}** 读取失败:{reason}"),
    "prompt.none": ("The tool servers offer no prompts.", "MCP 服务器没有提供提示模板。"),
    "prompt.title": ("Run one with `/prompt` and its name:", "用 `/prompt` 加名称来运行:"),
    "prompt.unknown": (
        "I know no prompt “{name}”. Send /prompt for the list.",
        "没有名为“{name}”的提示模板。发送 /prompt 查看列表。",
    ),
    "prompt.failed": (
        "The prompt **{name}** could not be had: {reason}",
        "提示模板 **{name}** 获取失败:{reason}",
    ),
    "prompt.cancelled": ("The prompt was not run.", "提示模板没有运行。"),
    "prompt.arguments": ("It needs a few words from you.", "需要你补充一些内容。"),
    "mcp.restarted": ("{name} is being restarted.", "正在重启 {name}。"),
    "mcp.unknown": ("There is no tool server “{name}”.", "没有名为“{name}”的 MCP 服务器。"),
    "mcp.login.done": (
        "You are logged in. This page can be closed; the server is connected in a moment.",
        "登录成功。可以关闭此页面,服务器马上就会连接。",
    ),
    "mcp.login.failed": (
        "The login did not work, and nothing was stored. The reason is in the log of the bot. Ask for a new link with /mcp login and try again.",
        "登录没有成功,未保存任何内容。原因见机器人的日志。请用 /mcp login 重新获取链接再试。",
    ),
    "mcp.login.unknown": (
        "No login waits for this. The link was used already, or its 10 minutes are over. Ask for a new one with /mcp login.",
        "没有等待中的登录:链接已使用过,或已超过 10 分钟。请用 /mcp login 获取新链接。",
    ),
    "mcp.login.link": (
        "Open this address in a browser and log in to {name}; it is valid for 10 minutes:\n\n{link}\n\n"
        "If the page at the end cannot be opened, send its address: `/mcp login {name} ADDRESS`",
        "请在浏览器中打开以下地址登录 {name},10 分钟内有效:\n\n{link}\n\n"
        "如果最后的页面打不开,请把它的地址发给我:`/mcp login {name} 地址`",
    ),
    "mcp.login.not": ("{name}: {reason}", "{name}:{reason}"),
    "mcp.admins": ("Only an admin may do that.", "只有管理员可以这样做。"),
    # -- skills by name
    "command.skill": (
        "use a skill by its name: /skill NAME words",
        "按名称使用技能:/skill 名称 内容",
    ),
    "skill.usage": (
        "Write `/skill NAME` and what you want. `/skills` lists the names.",
        "请写 `/skill 名称` 和你的要求。`/skills` 可以查看名称。",
    ),
    "skill.unknown": (
        "There is no skill called {name}. `/skills` lists them.",
        "没有名为 {name} 的技能。用 `/skills` 查看。",
    ),
    "skill.unknown_near": (
        "There is no skill called {name}. Did you mean {detail}?",
        "没有名为 {name} 的技能。是不是 {detail}?",
    ),
    "skill.disabled": (
        "The skill {name} is switched off. An admin can switch it on with `causeway skills enable {name}`.",
        "技能 {name} 已关闭。管理员可以用 `causeway skills enable {name}` 打开。",
    ),
    "skill.missing": (
        "The skill {name} cannot be used yet. Missing: {detail}.",
        "技能 {name} 暂时不能使用,缺少:{detail}。",
    ),
    "skill.not_for_people": (
        "The skill {name} is not meant to be called by name; just say what you need.",
        "技能 {name} 不能按名称调用,直接说出你的需要即可。",
    ),
    "skills.counts": (
        "offered {offered}, read {read}, used {used}",
        "展示 {offered} 次,读取 {read} 次,使用 {used} 次",
    ),
    # -- attachments
    "attachment.too_large": (
        "[The file {name} is larger than {limit} MB and was not fetched.]",
        "[文件 {name} 超过 {limit} MB,没有下载。]",
    ),
    "attachment.failed": ("[The file {name} could not be fetched.]", "[文件 {name} 下载失败。]"),
    "attachment.heard": ("[Voice message, written down: {words}]", "[语音消息,转写内容: {words}]"),
    "attachment.not_heard": (
        "[A voice or audio message: {path}. It could not be listened to: no transcription is configured.]",
        "[语音或音频消息: {path}。没有配置语音转写,无法听取内容。]",
    ),
    "attachment.hearing_failed": (
        "[A voice or audio message: {path}. Writing it down failed.]",
        "[语音或音频消息: {path}。转写失败。]",
    ),
    "attachment.file": ("[Attached file: {path}]", "[附件:{path}]"),
    "file.not_sent": ("_(The file {name} cannot be sent from here.)_", "_(文件 {name} 不能从这里发送。)_"),
    # -- the web page, the API and the terminal
    "api.file": (
        "[File: {name}]",
        "[文件:{name}]",
    ),
    "web.connecting": (
        "Connecting…",
        "正在连接…",
    ),
    "web.online": (
        "Connected",
        "已连接",
    ),
    "web.offline": (
        "No connection, trying again…",
        "连接已断开,正在重试…",
    ),
    "web.new": (
        "New chat",
        "新对话",
    ),
    "web.new_conversation": (
        "New conversation",
        "新的对话",
    ),
    "web.earlier": (
        "Show earlier messages",
        "显示更早的消息",
    ),
    "web.empty.title": (
        "What can I do for you?",
        "有什么可以帮你?",
    ),
    "web.empty.text": (
        "Write in plain words. I can use tools and skills, and you see what I am doing.",
        "直接说就行。我会使用工具和技能,过程都会显示出来。",
    ),
    "web.suggest.hello": (
        "hello",
        "你好",
    ),
    "web.suggest.what": (
        "what can you do",
        "你能做什么",
    ),
    "web.suggest.tool": (
        "list files",
        "列出文件",
    ),
    "web.suggest.help": (
        "/help",
        "/help",
    ),
    "web.conversation": (
        "Conversation",
        "对话",
    ),
    "web.working": (
        "Working…",
        "正在处理…",
    ),
    "web.noscript": (
        "This page needs JavaScript. Switch it on and reload.",
        "此页面需要 JavaScript,请启用后刷新。",
    ),
    "web.latest": (
        "Go to the latest message",
        "跳到最新消息",
    ),
    "web.message": (
        "Message",
        "消息",
    ),
    "web.placeholder": (
        "Write a message",
        "输入消息",
    ),
    "web.send": (
        "Send",
        "发送",
    ),
    "web.stop": (
        "Stop",
        "停止",
    ),
    "web.hint": (
        "Enter sends, Shift+Enter starts a new line",
        "Enter 发送,Shift+Enter 换行",
    ),
    "web.waiting": (
        "Waiting for the connection…",
        "等待连接后发送…",
    ),
    "web.not_sent": (
        "Not sent:",
        "发送失败:",
    ),
    "web.retry": (
        "Try again",
        "重试",
    ),
    "web.copy": (
        "Copy",
        "复制",
    ),
    "web.copied": (
        "Copied",
        "已复制",
    ),
    "web.tool.running": (
        "running…",
        "运行中…",
    ),
    "web.tool.done": (
        "done",
        "完成",
    ),
    "web.tool.failed": (
        "failed",
        "失败",
    ),
    "web.tool.input": (
        "Input",
        "输入",
    ),
    "web.tool.output": (
        "Result",
        "结果",
    ),
    "web.you": (
        "You",
        "你",
    ),
    "web.bot": (
        "Reply",
        "回复",
    ),
    "web.file": (
        "Download",
        "下载",
    ),
    "terminal.welcome": (
        "Write a message and press Enter. Ctrl-C stops a running answer, /exit or Ctrl-D leaves.",
        "输入消息后按回车。Ctrl-C 停止正在进行的回答,/exit 或 Ctrl-D 退出。",
    ),
    "terminal.interrupt": (
        "Nothing is running. Press Ctrl-C again or Ctrl-D to leave.",
        "当前没有任务。再按一次 Ctrl-C 或按 Ctrl-D 退出。",
    ),
    "terminal.no_answer": (
        "No answer has come for {seconds} s; leaving.",
        "{seconds} 秒内没有收到回答,退出。",
    ),
    "terminal.running": (
        "{name} is running",
        "{name} 运行中",
    ),
    "terminal.done": (
        "{name} is done",
        "{name} 已完成",
    ),
    "terminal.failed": (
        "{name} failed",
        "{name} 失败",
    ),
    "terminal.file": (
        "[File: {path}]",
        "[文件:{path}]",
    ),
}


_TEXTS.update(_PEOPLE)
_TEXTS.update(_CLI)


def language_of(tag: str, text: str = "") -> str:
    """The catalogue's language for a BCP-47 tag; without one, by the writing of `text`."""
    if tag:
        return "zh" if tag.lower().startswith("zh") else "en"
    return "zh" if any("\u4e00" <= char <= "\u9fff" for char in text) else "en"


def text(key: str, language: str = "", /, **values: object) -> str:
    """The text for `key` in a language ("" is English), with values filled in. KeyError for an unknown key."""
    english, chinese = _TEXTS[key]
    template = chinese if language_of(language) == "zh" else english
    return template.format(**values) if values else template


def add(texts: Mapping[str, tuple[str, str]]) -> None:
    """Take the texts of a channel type into the catalogue. Adding them again changes nothing."""
    _TEXTS.update(texts)


def keys() -> tuple[str, ...]:
    return tuple(_TEXTS)
