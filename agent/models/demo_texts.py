"""What the demo model says, in English and Chinese."""

from __future__ import annotations

from typing import Literal, TypeAlias

Language: TypeAlias = Literal["en", "zh"]

_EN = {
    "hello": "Hello! I am Causeway's demo model: a few fixed rules, no real language model. "
    'I can show how things work here: ask "what can you do".',
    "who": "I am Causeway's demo model. There is no language model behind me, only a few fixed rules, "
    "so that you can see tools and skills work before you have a key.",
    "thanks": "You are welcome. (I am only the demo model.)",
    "configure": "For real answers set OPENAI_API_KEY or ANTHROPIC_API_KEY in the environment and start "
    "again, or write provider, name and api_key under `model:` in config.yaml. A local Ollama is found "
    "by itself.",
    "cannot": "I cannot answer that: I am only a demo with fixed rules, not a real language model.",
    "can": "What I understand:\n{examples}",
    "tools": "Tools that I can call:",
    "no_tools": "No tools are available to me here.",
    "skills": "Skills that I can read:",
    "no_skills": "No skills are installed.",
    "more": "… and {count} more.",
    "no_tool": "There is no tool called {name} here. {offer}",
    "tool_names": "There are: {names}.",
    "needs": "{tool} needs {missing}. For example: call {tool} {example}",
    "no_json": "What follows {tool} is no JSON object: {reason}. Write for example: call {tool} {example}",
    "no_skill": "There is no skill called {name} here. {offer}",
    "no_reader": "I have no tool to read files with, so I cannot open the skill {name}.",
    "calling": "I call {tool}.",
    "reading": "I read the skill {name}.",
    "result": "{tool} answered:",
    "failed": "{tool} failed:",
    "skill_says": "The skill {name} says:",
    "skill_parts": "Its parts: {parts}.",
    "skill_real": "A real language model would now follow it; I only show that it is read.",
    "cut": "(shortened)",
    "picture": "You sent a picture; I cannot see it, for I am only a demo.",
    "no_match": "I have no tool for that here.",
}
_ZH = {
    "hello": "你好！我是 Causeway 的演示模型：只有几条固定规则，不是真正的语言模型。"
    "我可以演示这里的用法：试试问“你能做什么”。",
    "who": "我是 Causeway 的演示模型。我背后没有语言模型，只有几条固定规则，"
    "让你在拿到密钥之前就能看到工具和技能如何工作。",
    "thanks": "不客气。（我只是演示模型。）",
    "configure": "想要真正的回答，请在环境变量中设置 OPENAI_API_KEY 或 ANTHROPIC_API_KEY 后重新启动，"
    "或在 config.yaml 的 `model:` 下填写 provider、name 和 api_key。本机的 Ollama 会被自动发现。",
    "cannot": "这个我回答不了：我只是按固定规则工作的演示，不是真正的语言模型。",
    "can": "我能听懂：\n{examples}",
    "tools": "我可以调用的工具：",
    "no_tools": "这里没有可用的工具。",
    "skills": "我可以阅读的技能：",
    "no_skills": "没有安装技能。",
    "more": "……还有 {count} 个。",
    "no_tool": "这里没有名为 {name} 的工具。{offer}",
    "tool_names": "可用的有：{names}。",
    "needs": "{tool} 需要 {missing}。例如：调用 {tool} {example}",
    "no_json": "{tool} 后面的内容不是 JSON 对象：{reason}。例如这样写：调用 {tool} {example}",
    "no_skill": "这里没有名为 {name} 的技能。{offer}",
    "no_reader": "我没有读取文件的工具，打不开技能 {name}。",
    "calling": "我来调用 {tool}。",
    "reading": "我来阅读技能 {name}。",
    "result": "{tool} 的结果：",
    "failed": "{tool} 失败了：",
    "skill_says": "技能 {name} 的内容：",
    "skill_parts": "它包括：{parts}。",
    "skill_real": "真正的语言模型接下来会照着做；我只演示它已被读取。",
    "cut": "（已缩短）",
    "picture": "你发来了一张图片；我看不见它，因为我只是演示。",
    "no_match": "这里没有能做这件事的工具。",
}
_TEXTS: dict[Language, dict[str, str]] = {"en": _EN, "zh": _ZH}

EXAMPLES: dict[Language, tuple[str, ...]] = {
    "en": (
        "what can you do",
        "call TOOL key=value (or a JSON object)",
        "use skill NAME",
        "list files; read FILE; write FILE: text; search WORDS",
        "fetch URL",
        "what time is it in Tokyo",
    ),
    "zh": (
        "你能做什么",
        "调用 TOOL 键=值（或一个 JSON 对象）",
        "使用技能 NAME",
        "列出文件；读取 FILE；写入 FILE：内容；搜索 关键词",
        "抓取 URL",
        "东京现在几点",
    ),
}


def say(language: Language, key: str, **values: object) -> str:
    return _TEXTS[language][key].format(**values)


#: City to time zone; lower case. What people ask first.
ZONES: dict[str, str] = {
    "tokyo": "Asia/Tokyo", "东京": "Asia/Tokyo", "osaka": "Asia/Tokyo", "大阪": "Asia/Tokyo",
    "beijing": "Asia/Shanghai", "北京": "Asia/Shanghai", "shanghai": "Asia/Shanghai", "上海": "Asia/Shanghai",
    "shenzhen": "Asia/Shanghai", "深圳": "Asia/Shanghai",
    "guangzhou": "Asia/Shanghai", "广州": "Asia/Shanghai",
    "china": "Asia/Shanghai", "中国": "Asia/Shanghai",
    "hong kong": "Asia/Hong_Kong", "香港": "Asia/Hong_Kong",
    "taipei": "Asia/Taipei", "台北": "Asia/Taipei", "singapore": "Asia/Singapore", "新加坡": "Asia/Singapore",
    "seoul": "Asia/Seoul", "首尔": "Asia/Seoul", "delhi": "Asia/Kolkata", "mumbai": "Asia/Kolkata",
    "india": "Asia/Kolkata", "印度": "Asia/Kolkata", "dubai": "Asia/Dubai", "迪拜": "Asia/Dubai",
    "moscow": "Europe/Moscow", "莫斯科": "Europe/Moscow", "berlin": "Europe/Berlin", "柏林": "Europe/Berlin",
    "vienna": "Europe/Vienna", "zurich": "Europe/Zurich", "paris": "Europe/Paris", "巴黎": "Europe/Paris",
    "madrid": "Europe/Madrid", "rome": "Europe/Rome", "罗马": "Europe/Rome", "amsterdam": "Europe/Amsterdam",
    "london": "Europe/London", "伦敦": "Europe/London", "lisbon": "Europe/Lisbon", "cairo": "Africa/Cairo",
    "nairobi": "Africa/Nairobi", "lagos": "Africa/Lagos", "sao paulo": "America/Sao_Paulo",
    "new york": "America/New_York", "纽约": "America/New_York", "boston": "America/New_York",
    "chicago": "America/Chicago", "芝加哥": "America/Chicago", "denver": "America/Denver",
    "san francisco": "America/Los_Angeles", "旧金山": "America/Los_Angeles",
    "los angeles": "America/Los_Angeles", "洛杉矶": "America/Los_Angeles", "seattle": "America/Los_Angeles",
    "toronto": "America/Toronto", "多伦多": "America/Toronto", "sydney": "Australia/Sydney",
    "悉尼": "Australia/Sydney", "auckland": "Pacific/Auckland", "utc": "UTC", "gmt": "UTC",
}  # fmt: skip
