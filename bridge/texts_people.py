"""The texts about people, permissions and how a chat behaves, in English and Chinese."""

from __future__ import annotations

TEXTS: dict[str, tuple[str, str]] = {
    # -- commands
    "command.model": ("which model answers", "查看当前模型"),
    "command.mount": (
        "put a writing tool server into this chat for a time",
        "在本会话临时挂载可写的工具服务器",
    ),
    "command.queue": ("what happens to messages while I work", "设置我忙碌时新消息的处理方式"),
    "command.activation": ("when I answer in this group", "设置我在本群何时回答"),
    "command.approve": ("say yes to a waiting call: /approve CODE", "同意等待确认的操作:/approve 代码"),
    "command.deny": ("say no to a waiting call: /deny CODE why", "拒绝等待确认的操作:/deny 代码 原因"),
    "command.pair": ("who asks to be let in; let them in", "查看并批准新的用户"),
    "command.usage": ("what has been used", "查看用量"),
    "command.forget": ("delete this conversation and its files", "删除本会话的记录和文件"),
    "command.cut_off": (
        "I was restarted while I carried out `/{name}`, so it may or may not have been done. Please look, and send it again if it was not.",
        "执行 `/{name}` 时服务重启了,不确定是否已完成。请检查一下,如未生效请重新发送。",
    ),
    "command.near": (
        "I do not know that command. Did you mean `/{name}`?",
        "没有这个命令。您是不是想输入 `/{name}`?",
    ),
    "model": ("The model is {model}.", "当前模型:{model}。"),
    "admins.only": ("Only an admin may do that here.", "只有管理员可以在这里这样做。"),
    "notes.full": (
        "Too many chats have a setting of this kind. Nothing was changed.",
        "此类设置过多,未作更改。",
    ),
    "role.guest": ("guest", "访客"),
    "tools.asks": ("(asks first)", "(需先确认)"),
    "stop.others": (
        "This answer is for somebody else. They or an admin can stop it.",
        "这条回答属于其他人,只有提问者或管理员可以停止。",
    ),
    "stop.others_dropped": (
        "Your {count} waiting message(s) were dropped. The answer under way is for somebody else; they or an admin can stop it.",
        "您排队的 {count} 条消息已取消。正在进行的回答属于其他人,只有提问者或管理员可以停止。",
    ),
    # -- while busy
    "busy.steer": ("↪ I take this into what I am doing.", "↪ 已加入当前任务。"),
    "busy.collect": ("⏳ I answer this together with what else waits.", "⏳ 会和其他排队消息一起回答。"),
    "busy.interrupt": ("⏹ I stop and turn to this.", "⏹ 已停下,先处理这条。"),
    "queue.now": (
        "While I work, messages are handled by: **{mode}**. Change it with `/queue` and one of: {modes}.",
        "我忙碌时的处理方式:**{mode}**。可用 `/queue` 加以下之一更改:{modes}。",
    ),
    "queue.unknown": ("There is no way {mode!r}. Known: {modes}.", "没有 {mode!r} 这种方式。可用:{modes}。"),
    "queue.queue": ("From now on messages wait and are answered one by one.", "之后的消息将排队,逐条回答。"),
    "queue.steer": (
        "From now on messages go into the answer under way.",
        "之后的消息会直接加入正在进行的任务。",
    ),
    "queue.collect": (
        "From now on messages that wait are answered together.",
        "之后排队的消息会合在一起回答。",
    ),
    "queue.interrupt": (
        "From now on a new message stops the answer under way.",
        "之后的新消息会打断当前回答。",
    ),
    "activation.direct": ("In a direct chat I answer everything.", "私聊中我会回答所有消息。"),
    "activation.now": (
        "The setting of this chat: {value}. Values: mention, always, never, default.",
        "本群设置:{value}。可用值:mention、always、never、default。",
    ),
    "activation.unknown": ("Write one of: {values}.", "请填写以下之一:{values}。"),
    "activation.mention": ("I answer here when I am meant.", "在这里只有被提到时我才回答。"),
    "activation.always": ("I read and answer everything here.", "在这里我会回答所有消息。"),
    "activation.never": ("I say nothing here but to commands.", "在这里我只响应命令。"),
    "activation.default": ("The configuration decides again.", "已恢复为配置文件的设置。"),
    # -- limits
    "limit.messages.person": (
        "You can send me {limit} messages a minute. What you send in the next {wait} s is not taken; send this again then.",
        "您每分钟最多发送 {limit} 条消息。接下来 {wait} 秒内的消息不会处理,请稍后重发。",
    ),
    "limit.messages.chat": (
        "This chat can send me {limit} messages a minute. What comes in the next {wait} s is not taken; send it again then.",
        "本会话每分钟最多 {limit} 条消息。接下来 {wait} 秒内的消息不会处理,请稍后重发。",
    ),
    "limit.messages.total": (
        "I take {limit} messages a minute in all, and they are used up. Send this again in {wait} s.",
        "我每分钟总共处理 {limit} 条消息,现已用完。请在 {wait} 秒后重发。",
    ),
    "limit.tokens.person": (
        "Your {limit} tokens of today are used up. In about {wait} h there are new ones.",
        "您今天的 {limit} 个 token 已用完,约 {wait} 小时后恢复。",
    ),
    "limit.tokens.chat": (
        "This chat's {limit} tokens of today are used up. In about {wait} h there are new ones.",
        "本会话今天的 {limit} 个 token 已用完,约 {wait} 小时后恢复。",
    ),
    "limit.tokens.total": (
        "Today's {limit} tokens of this bot are used up. In about {wait} h there are new ones.",
        "本机器人今天的 {limit} 个 token 已用完,约 {wait} 小时后恢复。",
    ),
    # -- confirmations
    "approval.question": (
        "🔐 May I run **{tool}** ({where})?\n\n```\n{arguments}\n```\n\n{who} Without an answer within {minutes} min it is a no.",
        "🔐 可以运行 **{tool}**({where})吗?\n\n```\n{arguments}\n```\n\n{who} {minutes} 分钟内没有答复视为拒绝。",
    ),
    "approval.builtin": ("built in", "内置"),
    "approval.admins": ("An admin has to say yes.", "需要管理员同意。"),
    "approval.you": ("You or an admin can say yes.", "您或管理员可以同意。"),
    "approval.words": (
        "Answer with `/approve {code}`, `/approve {code} session` (for this conversation), `/approve {code} always`, or `/deny {code}` and why.",
        "请回复 `/approve {code}`、`/approve {code} session`(本次对话内)、`/approve {code} always`(始终),或 `/deny {code}` 加原因。",
    ),
    "approval.once": ("Yes, once", "同意一次"),
    "approval.session": ("Yes, in this conversation", "本次对话都同意"),
    "approval.always": ("Yes, always here", "此会话始终同意"),
    "approval.no": ("No", "拒绝"),
    "approval.gone": ("This question is no longer open.", "这个确认已经结束。"),
    "press.later": (
        "The bot cannot be asked just now. Press again in a moment.",
        "暂时联系不上机器人,请稍后再按一次。",
    ),
    "approval.not_you": ("You may not decide this.", "您无权决定此事。"),
    "approval.always_admin": ("Only an admin may allow it for always.", "只有管理员可以始终允许。"),
    "approval.late": ("This was decided already.", "此事已有决定。"),
    "approval.which": ("Several questions wait: {codes}. Name one.", "有多个等待确认:{codes}。请注明代码。"),
    "approval.how": (
        "Write `/approve CODE`, with `session` or `always` behind it if you like.",
        "请写 `/approve 代码`,后面可加 `session` 或 `always`。",
    ),
    "approval.none": ("Nothing waits under that code.", "没有使用该代码的等待项。"),
    "approval.did.yes": ("Allowed: {tool}.", "已同意:{tool}。"),
    "approval.did.no": ("Denied: {tool}.", "已拒绝:{tool}。"),
    "approval.was.yes": ("✅ **{tool}**: allowed by {by}", "✅ **{tool}**:{by} 已同意"),
    "approval.was.no": ("🚫 **{tool}**: denied {by}", "🚫 **{tool}**:已拒绝 {by}"),
    "approval.was.late": ("⌛ **{tool}**: nobody answered in time", "⌛ **{tool}**:无人及时答复"),
    # -- letting people in
    "pairing.code": (
        "I do not know you yet, so I cannot answer here. Your id is {id} and your code is **{code}**. Give the code to the person who runs this bot; it is valid for an hour. They let you in with `/approve {code}` or `causeway pair approve {code}`. What you wrote was not read; send it again then.",
        "我还不认识您。您的配对码是 **{code}**(ID {id}),一小时内有效。请交给管理员,由其使用 `/approve {code}` 或 `causeway pair approve {code}` 批准。刚才的消息没有处理,通过后请重新发送。",
    ),
    "pairing.full": (
        "I do not know you yet, and too many people wait to be let in just now. Your id is {id}. Try again in an hour, or ask the person who runs this bot to add it under access: {channel}: allow.",
        "我还不认识您,而且目前等待批准的人太多。您的 ID 是 {id}。请一小时后再试,或请管理员把它加入 access: {channel}: allow。",
    ),
    "pairing.welcome": (
        "You are let in (as {role}). Write to me in plain words; /help shows what I understand.",
        "已通过批准(身份:{role})。直接说话即可,/help 查看命令。",
    ),
    "pairing.approved": ("{name} is let in as {role}.", "已批准 {name},身份:{role}。"),
    "pairing.denied": ("The request {code} is refused.", "已拒绝申请 {code}。"),
    "pairing.unknown": ("There is no request {code} (any more).", "没有申请 {code},可能已过期。"),
    "pairing.none": ("Nobody waits to be let in.", "没有等待批准的人。"),
    "pairing.waiting": (
        "These people ask to be let in (`/pair approve CODE`, `/pair deny CODE`):",
        "以下用户等待批准(`/pair approve 代码`、`/pair deny 代码`):",
    ),
    "pairing.invite": (
        "Whoever writes `/start {code}` to me within a day is let in as {role}. It works once.",
        "一天内对我发送 `/start {code}` 的人将以{role}身份加入,仅可使用一次。",
    ),
    "doorbell.asks": (
        "🔔 {name} (id {id}) asks to talk to me. Let them in? (`/approve {code}` or `/deny {code}` do the same.)",
        "🔔 {name}(ID {id})请求使用我。是否批准?(也可用 `/approve {code}` 或 `/deny {code}`)",
    ),
    "doorbell.member": ("As a member", "批准为成员"),
    "doorbell.guest": ("As a guest", "批准为访客"),
    "doorbell.deny": ("No", "拒绝"),
    # -- mounting
    "mount.now": ("Servers that can be mounted here: {names}.", "可挂载的服务器:{names}。"),
    "mount.left": ("mounted, {minutes} min left", "已挂载,剩余 {minutes} 分钟"),
    "mount.unknown": ("{name} cannot be mounted. There are: {names}.", "无法挂载 {name}。可用:{names}。"),
    "mount.on": (
        "{name} is mounted in this conversation for {minutes} min.",
        "{name} 已在本会话挂载 {minutes} 分钟。",
    ),
    "mount.off": ("{name} is no longer mounted here.", "已卸载 {name}。"),
    # -- use and privacy
    "usage.title": ("Use in the last {days} days:", "最近 {days} 天的用量:"),
    "usage.you": ("you", "您"),
    "usage.today": ("you, on the last day of use", "您(最近使用当天)"),
    "usage.all": ("everybody", "全部"),
    "usage.by.person": ("by person", "按用户"),
    "usage.by.chat": ("by chat", "按会话"),
    "usage.by.model": ("by model", "按模型"),
    "usage.by.tool": ("by tool", "按工具"),
    "usage.sum": (
        "{answers} answers, {input} + {output} tokens, {tools} tool calls",
        "{answers} 次回答,{input} + {output} token,{tools} 次工具调用",
    ),
    "forget.sure": (
        "This deletes the conversation and all its files for good. Write `/forget yes` if you are sure.",
        "这会永久删除本会话的记录和全部文件。确定请发送 `/forget yes`。",
    ),
    "forget.done": ("Deleted: this conversation and its files.", "已删除本会话的记录和文件。"),
}
