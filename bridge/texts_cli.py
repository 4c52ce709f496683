"""What the commands of the house say in a terminal (`init`, `doctor`, `pair`, `sessions`, `usage`, `audit`), in
English and Chinese."""

from __future__ import annotations

from collections.abc import Mapping


def terminal_language(environ: Mapping[str, str], chosen: str | None = None) -> str:
    """ "en" or "zh": as chosen, else by the locale of the terminal."""
    names = (chosen, environ.get("LC_ALL"), environ.get("LC_MESSAGES"), environ.get("LANG"))
    return "zh" if next((name for name in names if name), "").lower().startswith("zh") else "en"


TEXTS: dict[str, tuple[str, str]] = {
    # -- doctor: titles
    "doctor.title.configuration": ("Configuration", "配置文件"),
    "doctor.title.workspace": ("Workspace", "工作目录"),
    "doctor.title.store": ("Database", "数据库"),
    "doctor.title.bridge": ("Running bridge", "运行中的服务"),
    "doctor.title.server": ("Web server", "网页服务"),
    "doctor.title.model": ("Model", "模型"),
    "doctor.title.channel": ("Channel", "渠道"),
    "doctor.title.access": ("Who may talk", "谁可以对话"),
    "doctor.title.mcp": ("Tool servers (MCP)", "MCP 工具服务器"),
    "doctor.title.skills": ("Skills", "技能"),
    "doctor.title.machine": ("This machine", "本机"),
    "doctor.well": ("Everything is in order.", "一切正常。"),
    "doctor.sum": ("{errors} error(s), {warnings} warning(s).", "{errors} 个错误,{warnings} 个警告。"),
    "doctor.failed": (
        "This check could not be made ({reason}).",
        "此项检查无法完成({reason})。",
    ),
    "doctor.late": ("No answer within {seconds} s.", "{seconds} 秒内没有结果。"),
    "doctor.late.cure": (
        "Check the network and proxy of this machine, then try again.",
        "请检查本机网络和代理,然后重试。",
    ),
    # -- doctor: configuration, workspace, database
    "doctor.config": ("{file} is right.", "{file} 正确。"),
    "doctor.config.none": (
        "There is no config.yaml; the built-in defaults hold (chat page and API on this machine). `causeway init` writes one.",
        "没有 config.yaml,使用内置默认值(仅本机网页和 API)。运行 `causeway init` 可生成。",
    ),
    "doctor.open_file": (
        "{file} holds secrets, and other users of this machine can read it.",
        "{file} 含有密钥,但本机其他用户也能读取。",
    ),
    "doctor.open_file.cure": ("chmod 600 {file}", "chmod 600 {file}"),
    "doctor.workspace": ("{folder} can be written.", "{folder} 可写。"),
    "doctor.workspace.new": (
        "{folder} is made at the first start.",
        "{folder} 将在首次启动时创建。",
    ),
    "doctor.workspace.closed": (
        "The workspace {folder} cannot be used: {there} is no folder that this user may write to.",
        "工作目录 {folder} 无法使用:当前用户不能写入 {there}。",
    ),
    "doctor.workspace.closed.cure": (
        "Give this user the right to write there (chown), or choose another folder with `workspace` in config.yaml.",
        "请授予写入权限(chown),或在 config.yaml 的 workspace 中改用其他目录。",
    ),
    "doctor.disk": ("Only {free} MB are free at {folder}.", "{folder} 只剩 {free} MB 可用空间。"),
    "doctor.disk.cure": (
        "Make room: when the disk is full, messages cannot be kept and are not taken.",
        "请清理空间:磁盘写满后无法保存和接收消息。",
    ),
    "doctor.store": (
        "{file} is sound ({size} MB, format {version}).",
        "{file} 完好({size} MB,格式 {version})。",
    ),
    "doctor.store.answers": ("The {kind} server answers.", "{kind} 服务器可以访问。"),
    "doctor.store.new": ("{file} is made at the first start.", "{file} 将在首次启动时创建。"),
    "doctor.store.large": (
        "{file} opens ({size} MB; too large to be looked through here).",
        "{file} 可以打开({size} MB,过大,未做完整检查)。",
    ),
    "doctor.store.closed": ("{file} cannot be read and written.", "{file} 无法读写。"),
    "doctor.store.closed.cure": (
        "It belongs to another user, mostly because the bridge was once started as that one: chown it to this user.",
        "文件属于其他用户(通常是曾用该用户启动过),请用 chown 改为当前用户。",
    ),
    "doctor.store.foreign": ("{file} is another program's database.", "{file} 是其他程序的数据库。"),
    "doctor.store.foreign.cure": (
        "Set `store: url` to a file of the bridge's own, for example sqlite:///causeway.db.",
        "请在 store: url 中改用专门的文件,例如 sqlite:///causeway.db。",
    ),
    "doctor.store.newer": (
        "{file} was written by a newer Causeway (format {version}; this one knows {known}).",
        "{file} 由更新版本的 Causeway 写入(格式 {version},当前支持 {known})。",
    ),
    "doctor.store.newer.cure": (
        "Install that version again, or restore a backup.",
        "请重新安装新版本,或恢复备份。",
    ),
    "doctor.store.broken": ("{file} is damaged: {reason}.", "{file} 已损坏:{reason}。"),
    "doctor.store.broken.cure": (
        "Stop the bridge, keep a copy of the file with its -wal and -shm, and restore a backup (or move it away to begin anew).",
        "请停止服务,备份该文件及其 -wal、-shm,然后恢复备份(或移走后重新开始)。",
    ),
    # -- doctor: bridge and server
    "doctor.bridge": ("A bridge runs at {base}.", "服务正在 {base} 运行。"),
    "doctor.bridge.none": (
        "No bridge runs in this workspace. `causeway run` starts it.",
        "此工作目录没有服务在运行。用 `causeway run` 启动。",
    ),
    "doctor.bridge.unknown": (
        "A bridge runs, but could not be asked: {reason}",
        "服务正在运行,但无法查询:{reason}",
    ),
    "doctor.bridge.other_channels": (
        "The running bridge has no channel {names}.",
        "运行中的服务没有渠道 {names}。",
    ),
    "doctor.bridge.other_channels.cure": (
        "Its log says why, or it was started before the configuration was changed: start it again.",
        "请查看日志;如果是在修改配置之前启动的,请重新启动。",
    ),
    "doctor.port": (
        "Another program listens on {host}:{port}.",
        "{host}:{port} 已被其他程序占用。",
    ),
    "doctor.port.cure": (
        "Stop it, or set another `server: port` in config.yaml.",
        "请停止该程序,或在 config.yaml 中修改 server: port。",
    ),
    "doctor.server.here": (
        "Chat page, API and callbacks are at {host}:{port}, for this machine only.",
        "网页、API 和回调位于 {host}:{port},仅限本机访问。",
    ),
    "doctor.server.open": (
        "Chat page, API and callbacks are at {host}:{port}; other machines reach them with the key.",
        "网页、API 和回调位于 {host}:{port},其他机器需凭密钥访问。",
    ),
    "doctor.server.no_tls": (
        "The server listens on {host} without TLS: whoever is on the way reads the key and the talk.",
        "服务监听 {host} 且没有 TLS,密钥和对话可能被窃听。",
    ),
    "doctor.server.no_tls.cure": (
        "Put a proxy with a certificate before it (Caddy, nginx), set `server: public_url` to its https address and `server: host` to 127.0.0.1.",
        "请在前面放置带证书的反向代理(Caddy、nginx),把 server: public_url 设为其 https 地址,server: host 设为 127.0.0.1。",
    ),
    "doctor.server.key": (
        "The key for other machines is made by itself and kept in {file}.",
        "供其他机器使用的密钥会自动生成,保存在 {file}。",
    ),
    "doctor.server.http": (
        "`server: public_url` is {url}: without https most platforms send nothing.",
        "server: public_url 为 {url}:没有 https,多数平台不会推送。",
    ),
    "doctor.server.http.cure": (
        "Use a proxy with a certificate and an address that begins with https://.",
        "请使用带证书的代理和 https:// 开头的地址。",
    ),
    # -- doctor: model
    "doctor.model": (
        "{name}. With --probe it is asked for a real answer.",
        "{name}。加 --probe 可实际测试。",
    ),
    "doctor.model.answers": ("{name} answers ({ms} ms).", "{name} 可以回答({ms} 毫秒)。"),
    "doctor.model.demo": (
        "The built-in demo answers; it is no real model.",
        "当前使用内置演示,并非真实模型。",
    ),
    "doctor.model.demo.cure": (
        "Run `causeway init`, or set OPENAI_API_KEY or ANTHROPIC_API_KEY.",
        "运行 `causeway init`,或设置 OPENAI_API_KEY 或 ANTHROPIC_API_KEY。",
    ),
    "doctor.model.setup": ("No model can be had: {reason}", "无法使用模型:{reason}"),
    "doctor.model.unauthorised": (
        "{name}: the key is refused ({reason}).",
        "{name}:密钥被拒绝({reason})。",
    ),
    "doctor.model.unauthorised.cure": (
        "Take a valid key from the provider, and see that it belongs to this `model: base_url`.",
        "请从服务商获取有效密钥,并确认与 model: base_url 对应。",
    ),
    "doctor.model.connection": (
        "{name}: the server cannot be reached ({reason}).",
        "{name}:无法连接服务器({reason})。",
    ),
    "doctor.model.connection.cure": (
        "Check `model: base_url`, the network and the proxy.",
        "请检查 model: base_url、网络和代理。",
    ),
    "doctor.model.fails": ("{name} gives no answer: {reason}", "{name} 没有回答:{reason}"),
    "doctor.model.fails.cure": (
        "Check `model: name` and `model: base_url`, and the balance of the account.",
        "请检查 model: name、model: base_url 以及账户余额。",
    ),
    "doctor.model.silent": ("{name} said nothing for {seconds} s.", "{name} {seconds} 秒内没有回答。"),
    "doctor.model.silent.cure": (
        "Check the network, or whether the server is still loading the model.",
        "请检查网络,或服务器是否仍在加载模型。",
    ),
    # -- doctor: channels and people
    "doctor.channel": ("Its settings are complete.", "设置完整。"),
    "doctor.packages": (
        "It needs what is not installed: {names}.",
        "缺少依赖:{names}。",
    ),
    "doctor.packages.cure": ("pip install 'causeway[{extra}]'", "pip install 'causeway[{extra}]'"),
    "doctor.access.local": (
        "Only the person at this machine, on the chat page, the API and the terminal.",
        "仅限本机用户(网页、API 和终端)。",
    ),
    "doctor.access.unknown": (
        "Not known: the database cannot be read, or is of an older version and is brought up to date at the next start.",
        "未检查:数据库无法读取,或是旧版本(下次启动时升级)。",
    ),
    "doctor.access.admins": ("{channel}: {count} admin(s).", "{channel}:{count} 位管理员。"),
    "doctor.access.no_admin": (
        "{channel}: nobody is admin, so nobody can let people in from the chat or confirm dangerous calls.",
        "{channel}:没有管理员,无法在聊天中批准新用户或确认危险操作。",
    ),
    "doctor.access.no_admin.cure": (
        "causeway pair invite --channel {channel} --role admin (or put your id into `access: {channel}: admins`).",
        "causeway pair invite --channel {channel} --role admin(或把您的 ID 写入 access: {channel}: admins)。",
    ),
    "doctor.access.open": (
        "{channel}: everybody may write to the bot (direct: open).",
        "{channel}:任何人都可以私聊机器人(direct: open)。",
    ),
    "doctor.access.open.cure": (
        "Use `direct: pairing` if that is not meant.",
        "如非本意,请改用 direct: pairing。",
    ),
    "doctor.access.unbounded": (
        "{channel}: everybody may write to the bot (direct: open), and nothing limits what that costs.",
        "{channel}:任何人都可以私聊机器人(direct: open),且没有用量限制。",
    ),
    "doctor.access.unbounded.cure": (
        "Use `direct: pairing`, or set `sessions: limits` (person_messages, person_tokens, total_tokens).",
        "请改用 direct: pairing,或设置 sessions: limits(person_messages、person_tokens、total_tokens)。",
    ),
    "doctor.access.groups": (
        "{channel}: the bot answers in every group that it is put into (groups: open).",
        "{channel}:机器人会在任何拉它进去的群里回答(groups: open)。",
    ),
    "doctor.access.groups.cure": (
        "Use `groups: allowlist` and name the groups in `chats`, if that is not meant.",
        "如非本意,请改用 groups: allowlist 并在 chats 中列出群。",
    ),
    "doctor.access.nobody": (
        "{channel}: nobody may talk (direct: {direct}, and no ids are named).",
        "{channel}:没有人可以对话(direct: {direct},且未列出任何 ID)。",
    ),
    "doctor.access.nobody.cure": (
        "Put ids into `access: {channel}: allow` or `admins`, or use `direct: pairing`.",
        "请把 ID 写入 access: {channel}: allow 或 admins,或改用 direct: pairing。",
    ),
    "doctor.access.waiting": ("{count} wait to be let in.", "{count} 人等待批准。"),
    "doctor.access.waiting.cure": ("causeway pair list", "causeway pair list"),
    # -- doctor: tools, skills, machine
    "doctor.mcp": ("{count} server(s) in {file}.", "{file} 中有 {count} 个服务器。"),
    "doctor.mcp.file": ("{reason}", "{reason}"),
    "doctor.mcp.entry": (
        "{name} cannot be used ({file}:{line}): {reason}",
        "{name} 无法使用({file}:{line}):{reason}",
    ),
    "doctor.mcp.warning": ("{file}: {reason}.", "{file}:{reason}。"),
    "doctor.mcp.server": ("{name} does not work: {reason}", "{name} 无法工作:{reason}"),
    "doctor.mcp.server.cure": ("causeway mcp test {name}", "causeway mcp test {name}"),
    "doctor.store.damaged": (
        "A database was found damaged and set aside: {file}.",
        "发现数据库损坏,已另存为:{file}。",
    ),
    "doctor.store.damaged.cure": (
        "Restore a backup (causeway backup makes them), or delete that file.",
        "用备份恢复(causeway backup 可生成备份),或删除该文件。",
    ),
    "doctor.mcp.confusable": (
        "Tools that a model easily takes for each other: {pairs}.",
        "模型容易混淆的工具:{pairs}。",
    ),
    "doctor.mcp.confusable.cure": (
        "Let their descriptions name each other, or leave one out (excludeTools in mcp.json).",
        "在描述中互相指明区别,或在 mcp.json 中用 excludeTools 去掉其中一个。",
    ),
    "doctor.mcp.dear": (
        "Definitions of {tokens} tokens and more in each request: {names}.",
        "每次请求占用 {tokens} 个以上 token 的工具定义:{names}。",
    ),
    "doctor.mcp.dear.cure": (
        "Leave out what nobody needs, shorten with tools: trim, or switch retrieval on.",
        "去掉不需要的工具,用 tools: trim 精简,或开启 retrieval。",
    ),
    "doctor.mcp.command": (
        "{name}: the program {command} is not found.",
        "{name}:找不到程序 {command}。",
    ),
    "doctor.mcp.command.cure": ("causeway mcp test {name}", "causeway mcp test {name}"),
    "doctor.skills": (
        "{count} can be used, {off} switched off.",
        "{count} 个可用,{off} 个已关闭。",
    ),
    "doctor.skills.lacks": (
        "{name} cannot be used here: missing {missing}.",
        "{name} 在本机不可用:缺少 {missing}。",
    ),
    "doctor.machine": ("Python {python}, SQLite {sqlite}.", "Python {python},SQLite {sqlite}。"),
    "doctor.sqlite": (
        "The SQLite of this Python is {sqlite}; the database needs {least}.",
        "此 Python 自带的 SQLite 为 {sqlite},至少需要 {least}。",
    ),
    "doctor.sqlite.cure": (
        "Use another Python (uv python install 3.11, pyenv, or a container), whose SQLite is newer.",
        "请换用 SQLite 更新的 Python(uv python install 3.11、pyenv 或容器)。",
    ),
    "doctor.clock": (
        "The clock of this machine is {seconds} s away from that of {root}.",
        "本机时钟与 {root} 相差 {seconds} 秒。",
    ),
    "doctor.clock.cure": (
        "Switch time synchronisation on (timedatectl set-ntp true): signed requests are refused after a few minutes.",
        "请开启时间同步(timedatectl set-ntp true),否则带签名的请求会被拒绝。",
    ),
    "doctor.clock.wrong": (
        "The clock of this machine says {now}, which cannot be.",
        "本机时钟为 {now},明显不对。",
    ),
    "doctor.clock.wrong.cure": (
        "Set it, and switch time synchronisation on (timedatectl set-ntp true).",
        "请校准时钟并开启时间同步(timedatectl set-ntp true)。",
    ),
    "doctor.files": (
        "Only {files} files and connections may be open at once.",
        "同时最多只能打开 {files} 个文件和连接。",
    ),
    "doctor.files.cure": (
        "ulimit -n 4096 before the start, or LimitNOFILE=65536 in the systemd unit.",
        "启动前执行 ulimit -n 4096,或在 systemd 中设置 LimitNOFILE=65536。",
    ),
    # -- pair
    "cli.sure": ("Are you sure? [y/N] ", "确定吗?[y/N] "),
    "cli.pair.columns": ("CODE|CHANNEL|ID|NAME|VALID FOR", "代码|渠道|ID|名字|剩余时间"),
    "cli.pair.columns.people": ("CHANNEL|ID|ROLE|BY|SINCE", "渠道|ID|身份|批准人|时间"),
    "cli.pair.none": (
        "Nobody waits to be let in. Who writes to the bot for the first time gets a code, which is listed here then.",
        "没有人等待批准。第一次给机器人发消息的人会收到一个代码,并显示在这里。",
    ),
    "cli.pair.nobody": (
        "Nobody but the person at this machine. `causeway pair invite` makes a code for somebody.",
        "除本机用户外没有其他人。用 `causeway pair invite` 生成邀请码。",
    ),
    "cli.pair.how": (
        "\nLet somebody in: causeway pair approve CODE     Refuse: causeway pair deny CODE",
        "\n批准:causeway pair approve 代码     拒绝:causeway pair deny 代码",
    ),
    "cli.pair.approve": (
        "{name} (id {person}, {channel}) is let in as {role}.",
        "已批准 {name}(ID {person},{channel}),身份:{role}。",
    ),
    "cli.pair.first.approve": (
        "{channel} had no admin, so this is its first one; --role chooses otherwise.",
        "{channel} 之前没有管理员,因此成为首位管理员;可用 --role 指定其他身份。",
    ),
    "cli.pair.first.invite": (
        "{channel} has no admin yet, so the invitation is for its first one; --role chooses otherwise.",
        "{channel} 还没有管理员,因此邀请的是首位管理员;可用 --role 指定其他身份。",
    ),
    "cli.pair.told": ("{name} has been told and can write now.", "已通知 {name},现在可以对话。"),
    "cli.pair.not_told": (
        "{name} is not told by itself: let them know that they can write now.",
        "{name} 不会自动收到通知,请转告对方现在可以对话。",
    ),
    "cli.pair.deny": ("The request of {name} is refused.", "已拒绝 {name} 的申请。"),
    "cli.pair.invite": (
        "Whoever writes this to the bot on {channel}, in a direct chat, within a day, is let in as {role} (once):\n\n  /start {code}\n\nWhere the platform keeps words with a slash for itself (Slack), write !start {code}",
        "一天内在 {channel} 私聊机器人发送以下内容的人,将以{role}身份加入(仅一次):\n\n  /start {code}\n\n如果平台会拦截斜杠命令(如 Slack),请改发 !start {code}",
    ),
    "cli.pair.revoke": (
        "{person} on {channel} is no longer let in.",
        "已撤销 {person}({channel})。",
    ),
    "cli.pair.still": (
        "But the configuration lets them talk all the same, as {role}: see `access: {channel}` in config.yaml.",
        "但配置文件仍允许其以{role}身份对话:见 config.yaml 的 access: {channel}。",
    ),
    "cli.pair.beside": (
        "A bridge runs, but could not be asked, so this is done in its database; it follows within a minute. ({reason})",
        "服务正在运行但无法连接,已直接写入数据库,一分钟内生效。({reason})",
    ),
    "cli.refused.code": (
        "There is no request {code} (any more): codes are valid for an hour. `causeway pair list` shows who waits.",
        "没有申请 {code}(代码一小时内有效)。用 `causeway pair list` 查看等待的人。",
    ),
    "cli.refused.channel": (
        "There is no channel {channel}. There are: {known}.",
        "没有渠道 {channel}。现有:{known}。",
    ),
    "cli.refused.channel.which": (
        "Which channel? Name it with --channel: {known}.",
        "请用 --channel 指定渠道:{known}。",
    ),
    "cli.refused.channel.none": (
        "No chat channel is set up. `causeway init` adds one.",
        "尚未配置聊天渠道。用 `causeway init` 添加。",
    ),
    "cli.refused.role": ("There is no role {role}. There are: {known}.", "没有身份 {role}。可用:{known}。"),
    "cli.refused.person": (
        "Nothing was granted to {person} on {channel}. `causeway pair people` shows who is let in.",
        "{channel} 上的 {person} 没有被批准过。用 `causeway pair people` 查看。",
    ),
    "cli.refused.configured": (
        "{person} is let in by config.yaml: take the id out of `access: {channel}` there, and start the bridge again.",
        "{person} 是由 config.yaml 允许的:请从 access: {channel} 中删除该 ID 并重启服务。",
    ),
    "cli.refused.session": (
        "There is no conversation {session}. `causeway sessions list` shows them.",
        "没有会话 {session}。用 `causeway sessions list` 查看。",
    ),
    "cli.refused.body": ("The bridge did not understand this request.", "服务无法理解该请求。"),
    # -- sessions
    "cli.sessions.columns": ("LAST USED|ENTRIES|WAITING|KEY", "最近使用|条目|排队|会话"),
    "cli.more": (
        "… and {count} more: -n N shows more of them, --json all.",
        "……还有 {count} 个:用 -n N 显示更多,--json 显示全部。",
    ),
    "cli.sessions.none": ("No conversations yet.", "还没有会话。"),
    "cli.sessions.several": (
        "{count} conversations have {key!r} in their key; write more of it:\n  {keys}",
        "有 {count} 个会话包含 {key!r},请写得更完整:\n  {keys}",
    ),
    "cli.sessions.delete": (
        "This deletes {key} for good: {entries} entries and {files} files.",
        "将永久删除 {key}:{entries} 条记录和 {files} 个文件。",
    ),
    "cli.sessions.kept": ("Nothing was deleted.", "未删除任何内容。"),
    "cli.sessions.deleted": ("Deleted: {key}", "已删除:{key}"),
    "cli.sessions.exported": (
        "Written to {file}. Its {files} files lie in {folder}.",
        "已写入 {file}。{files} 个文件位于 {folder}。",
    ),
    "cli.sessions.file": ("{file} cannot be written: {reason}.", "无法写入 {file}:{reason}。"),
    # -- usage and audit
    "cli.usage.columns": (
        "ANSWERS|TOKENS IN|TOKENS OUT|OF IN CACHED|TOOL CALLS|COST",
        "回答|输入 token|输出 token|其中缓存|工具调用|费用",
    ),
    "cli.usage.person": ("PERSON", "用户"),
    "cli.usage.chat": ("CHAT", "聊天"),
    "cli.usage.model": ("MODEL", "模型"),
    "cli.usage.tool": ("TOOL", "工具"),
    "cli.usage.session": ("SESSION", "会话"),
    "cli.usage.total": ("all", "合计"),
    "cli.usage.none": ("Nothing was used in this time.", "这段时间没有用量。"),
    "cli.usage.unpriced": (
        "Without a price, and so without a cost: {names} (`model: prices` in config.yaml).",
        "以下模型未设价格,未计入费用:{names}(见 config.yaml 的 model: prices)。",
    ),
    "cli.audit.none": ("No dangerous call has been decided yet.", "还没有需要确认的操作记录。"),
    "cli.audit.once": ("allowed once", "同意一次"),
    "cli.audit.session": ("allowed for the session", "本会话同意"),
    "cli.audit.always": ("allowed always", "始终同意"),
    "cli.audit.denied": ("denied", "拒绝"),
    "cli.audit.timeout": ("no answer in time", "超时未答复"),
    "cli.audit.refused": ("answer not accepted", "无权决定"),
    # -- init
    "init.hello": (
        "This sets a bridge up: a model, the channels, the first admin. Enter takes what stands in brackets; Ctrl-C leaves without a trace.",
        "现在开始设置:模型、渠道、首位管理员。直接回车采用方括号里的值;按 Ctrl-C 退出,不会留下任何改动。",
    ),
    "init.there": (
        "There is {file} already. What you answer is put into it; a copy is kept as {backup}. (Comments in it are lost.)",
        "已有 {file}。您的回答会合并进去,原文件备份为 {backup}。(其中的注释会丢失。)",
    ),
    "init.change": ("Change it?", "要修改吗?"),
    "init.kept": ("{file} stays as it is.", "{file} 保持不变。"),
    "init.nothing": ("Nothing was written.", "没有写入任何文件。"),
    "init.not_written": ("{file} cannot be written: {reason}.", "无法写入 {file}:{reason}。"),
    "init.yes": (" [Y/n]", " [Y/n]"),
    "init.no": (" [y/N]", " [y/N]"),
    "init.default": (" [{default}]", " [{default}]"),
    "init.keep": (" [as it is]", " [保持不变]"),
    "init.optional": (" [none]", " [不填]"),
    "init.hidden": (" (what you type is not shown)", "(输入不会显示)"),
    "init.ended": (
        "The input has ended before all was answered. With --yes what is not given takes its default.",
        "输入提前结束。加 --yes 可让未提供的项使用默认值。",
    ),
    "init.needed": ("It is needed.", "此项必填。"),
    "init.missing": (
        "There is no answer to: {what}\nGive it with --set {slot}=…",
        "缺少答案:{what}\n请用 --set {slot}=… 提供。",
    ),
    "init.one": ("Choose one.", "请只选一个。"),
    "init.not_there": ("There is no such choice: {words}", "没有这个选项:{words}"),
    "init.no_type": (
        "There is no channel type {kind} to set up. There are: {known}.",
        "没有可设置的渠道类型 {kind}。可用:{known}。",
    ),
    "init.set": ("--set {given}: write KEY=VALUE.", "--set {given}:请写成 KEY=VALUE。"),
    "init.set_which": (
        "--set {given}: of which channel? Write CHANNEL.{given}=VALUE (or model.{given}=VALUE).",
        "--set {given}:属于哪个渠道?请写 渠道.{given}=值(或 model.{given}=值)。",
    ),
    "init.admin_which": (
        "--admin {given}: of which channel? Write CHANNEL:{given}.",
        "--admin {given}:属于哪个渠道?请写 渠道:{given}。",
    ),
    "init.unused": (
        "This belongs to no channel that is set up here: {given}. Name the channel with --channel.",
        "以下参数不属于本次设置的渠道:{given}。请用 --channel 指定渠道。",
    ),
    "init.trying": ("Trying it …", "正在测试……"),
    "init.fault": (
        "What now? Enter: answer again; k: keep it anyway; s: leave this out; NAME=VALUE: another setting, such as mode=http",
        "怎么办?回车:重新填写;k:仍然保留;s:跳过;名称=值:修改其他设置,例如 mode=http",
    ),
    "init.fault_again": (
        "What now? Enter: answer again; s: leave this out; NAME=VALUE: another setting",
        "怎么办?回车:重新填写;s:跳过;名称=值:修改其他设置",
    ),
    "init.stopped": ("With these settings it cannot work.", "这样设置无法工作。"),
    # -- init: model
    "init.model.keep": (
        "A model is set up already. Keep it as it is?",
        "已配置模型,保持不变吗?",
    ),
    "init.model.found": (
        "Model: there is {name} in the environment (it must be set too where the bridge will run). Use it?",
        "模型:环境变量中有 {name}(运行服务的环境里也要设置)。使用它吗?",
    ),
    "init.model.which": ("Which model shall answer? [1]", "由哪个模型回答?[1]"),
    "init.model.which.openai": ("OpenAI", "OpenAI"),
    "init.model.which.anthropic": ("Anthropic (Claude)", "Anthropic(Claude)"),
    "init.model.which.other": (
        "another server with OpenAI's protocol: DeepSeek, Qwen, Kimi, OpenRouter, Ollama, vLLM …",
        "其他兼容 OpenAI 协议的服务:DeepSeek、通义千问、Kimi、OpenRouter、Ollama、vLLM……",
    ),
    "init.model.which.demo": (
        "none yet: a built-in demo, to try everything else",
        "暂不设置:用内置演示先试其他功能",
    ),
    "init.model.url": (
        "Its address, as its documentation gives it for OpenAI clients",
        "服务地址(其文档中给 OpenAI 客户端使用的地址)",
    ),
    "init.model.key": ("Its API key", "API 密钥"),
    "init.model.name": (
        "The model's name (without one the usual model of the provider)",
        "模型名称(不填则用服务商的常用模型)",
    ),
    # -- init: channels
    "init.channels": (
        "Where shall people talk to the bot? Numbers or names; Enter for none. (The chat page of this machine is always on.)",
        "在哪些平台使用?输入编号或名称,可多选;回车跳过。(本机网页始终可用。)",
    ),
    "init.type.telegram": ("Telegram", "Telegram"),
    "init.type.slack": ("Slack", "Slack"),
    "init.type.wechat": ("WeChat official account", "微信公众号"),
    "init.type.wecom": ("WeCom application", "企业微信自建应用"),
    "init.type.wecom_bot": ("WeCom AI bot", "企业微信智能机器人"),
    "init.second": (
        "There is a channel {name} already. Enter changes it; another name adds a second one",
        "已有渠道 {name}。回车修改它;输入新名称则再添加一个",
    ),
    "init.channel": ("\n{name}", "\n{name}"),
    "init.field": ("{name}: {about}", "{name}:{about}"),
    "init.public_url": (
        "public_url: the https address at which the platform reaches this server, such as https://bot.example.org",
        "public_url:平台访问本服务的 https 地址,例如 https://bot.example.org",
    ),
    "init.admin": (
        "Who is the admin of {name}? Your id there (not your name); without one an invitation is made for you",
        "谁是 {name} 的管理员?请填您在该平台的 ID(不是昵称);不填则为您生成邀请码",
    ),
    # -- init: the end
    "init.writes": (
        "\nWriting {file}; everything else lives in {workspace}.",
        "\n正在写入 {file};其他内容保存在 {workspace}。",
    ),
    "init.secrets": (
        "Keys are kept in {file}, which only you can read ({names}).",
        "密钥保存在 {file},仅您可读({names})。",
    ),
    "init.doctor": ("\nWhat the doctor says:", "\n检查结果:"),
    "init.not_yet": (
        "But what was kept although it failed above does not work yet. `causeway doctor` looks again.",
        "但上面测试失败仍保留的设置尚不可用,可用 `causeway doctor` 再次检查。",
    ),
    "init.next": ("\nNext:\n  1. Start it: {command}", "\n下一步:\n  1. 启动:{command}"),
    "init.invited": (
        "  2. Become admin of {name}: once it runs, write this to the bot in a direct chat, within a day:\n      /start {code}\n     (where the platform keeps words with a slash for itself, as Slack does: !start {code})",
        "  2. 成为 {name} 的管理员:启动后,一天内在私聊中给机器人发送:\n      /start {code}\n     (如果平台会拦截斜杠命令,如 Slack,请发 !start {code})",
    ),
}
