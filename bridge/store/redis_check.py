"""Whether a Redis server keeps what it is given: what `causeway doctor` asks about a store in Redis."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from bridge import texts
from bridge.store.base import StoreError
from bridge.store.redis_line import connect, place, store_error
from bridge.store.redis_scripts import Keys
from channels.base import Finding

_DEADLINE = 10.0
_OLDEST = (6, 2)
_FULL = 0.8
_SETTINGS = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy")

TEXTS: dict[str, tuple[str, str]] = {
    "doctor.redis": (
        "Redis {version} at {where} keeps what it is given",
        "Redis {version}({where})会保存数据",
    ),
    "doctor.redis.old": ("Redis is version {version}, too old for the store", "Redis 版本 {version} 过旧"),
    "doctor.redis.old.cure": (
        "Update it to 6.2 or newer, or take Valkey.",
        "请升级到 6.2 或更新版本,或改用 Valkey。",
    ),
    "doctor.redis.replica": ("This Redis is a replica: it may only be read", "这台 Redis 是只读副本"),
    "doctor.redis.replica.cure": ("Name the primary in store: url.", "请在 store: url 中填写主节点。"),
    "doctor.redis.cluster": (
        "This Redis is a node of a Redis Cluster, which the store does not follow",
        "这台 Redis 是 Redis Cluster 的节点,存储不支持跟随集群重定向",
    ),
    "doctor.redis.cluster.cure": (
        "Name a server that holds all keys in store: url.",
        "请在 store: url 中填写保存全部键的单个服务器。",
    ),
    "doctor.redis.memory_only": (
        "Redis keeps nothing on disk: when it restarts, messages that were taken are lost",
        "Redis 没有持久化:重启后已接收的消息会丢失",
    ),
    "doctor.redis.memory_only.cure": (
        "Set appendonly yes in redis.conf (at once: CONFIG SET appendonly yes).",
        "在 redis.conf 中设置 appendonly yes(立即生效:CONFIG SET appendonly yes)。",
    ),
    "doctor.redis.fsync": (
        "appendfsync is {value}: a kill or a power failure may lose what was taken in the last {span} s",
        "appendfsync 为 {value}:进程被杀或断电时,可能丢失最近 {span} 秒接收的消息",
    ),
    "doctor.redis.fsync.cure": ("Set appendfsync always.", "请设置 appendfsync always。"),
    "doctor.redis.failing": (
        "Redis could not write its append-only file the last time",
        "Redis 上一次写入 AOF 文件失败",
    ),
    "doctor.redis.failing.cure": ("Free disk space, and read its log.", "请释放磁盘空间,并查看 Redis 日志。"),
    "doctor.redis.evicts": (
        "maxmemory-policy is {policy}: when its memory is full, Redis throws messages away",
        "maxmemory-policy 为 {policy}:内存写满时 Redis 会丢弃消息",
    ),
    "doctor.redis.evicts.cure": (
        "Set maxmemory-policy noeviction, and give it enough memory.",
        "请设置 maxmemory-policy noeviction,并分配足够的内存。",
    ),
    "doctor.redis.full": (
        "Redis uses {percent} % of its maxmemory; beyond it no message is taken",
        "Redis 已使用 maxmemory 的 {percent}%;写满后将无法接收消息",
    ),
    "doctor.redis.full.cure": ("Give it more memory.", "请增加内存。"),
    "doctor.redis.members": (
        "Gateways running on this store: {gateways}; workers: {workers}",
        "此存储上正在运行:{gateways} 个网关,{workers} 个 worker",
    ),
    "doctor.redis.no_worker": (
        "A gateway is running but no worker: messages are kept and wait",
        "有网关在运行,但没有 worker:消息已保存,正在等待",
    ),
    "doctor.redis.no_worker.cure": (
        "Start one: causeway run --role worker",
        "请启动一个:causeway run --role worker",
    ),
    "doctor.redis.no_gateway": (
        "A worker is running but no gateway: no channel receives or shows anything",
        "有 worker 在运行,但没有网关:没有渠道能收发消息",
    ),
    "doctor.redis.no_gateway.cure": (
        "Start one: causeway run --role gateway",
        "请启动一个:causeway run --role gateway",
    ),
    "doctor.redis.replicas": (
        "{have} replicas are connected, store: url asks for {wanted}: no write will count",
        "已连接 {have} 个副本,而 store: url 要求 {wanted} 个:所有写入都不会被确认",
    ),
    "doctor.redis.replicas.cure": (
        "Start the replicas, or lower ?replicas= in store: url.",
        "请启动副本,或调低 store: url 中的 ?replicas=。",
    ),
}
texts.add(TEXTS)


def judge(
    info: Mapping[str, Any],
    config: Mapping[str, str],
    *,
    where: str = "",
    replicas: int = 0,
    language: str = "",
) -> list[Finding]:
    """What is wrong with a server, from its INFO and CONFIG GET (empty where it tells nobody). Pure."""
    found: list[Finding] = []

    def say(level: Literal["warning", "error"], key: str, **values: object) -> None:
        what = texts.text(f"doctor.redis.{key}", language, **values)
        found.append(Finding(level, what, texts.text(f"doctor.redis.{key}.cure", language, **values)))

    version = str(info.get("redis_version", ""))
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if parts and parts < _OLDEST:
        say("error", "old", version=version)
    if info.get("role") == "slave":
        say("error", "replica")
    if str(info.get("cluster_enabled", "0")) == "1":
        say("error", "cluster")
    if (have := int(info.get("connected_slaves", 0))) < replicas:
        say("error", "replicas", have=have, wanted=replicas)
    _judge_disk(info, config, say)
    policy = config.get("maxmemory-policy") or str(info.get("maxmemory_policy", "noeviction"))
    most = int(config.get("maxmemory") or info.get("maxmemory", 0))
    if policy != "noeviction" and most:
        say("error", "evicts", policy=policy)
    if most and (used := int(info.get("used_memory", 0))) > _FULL * most:
        say("warning", "full", percent=round(100 * used / most))
    return found or [Finding("ok", texts.text("doctor.redis", language, version=version, where=where))]


def _judge_disk(info: Mapping[str, Any], config: Mapping[str, str], say: Any) -> None:
    on = config.get("appendonly") == "yes" or str(info.get("aof_enabled", "0")) == "1"
    if not on:
        say("error", "memory_only")
        return
    flush = config.get("appendfsync", "always")  # one that does not tell is not blamed
    if flush == "no":
        say("warning", "fsync", value=flush, span=30)
    elif flush != "always":
        # While a flush is slow the server answers and holds back what it has yet to write, for 2 s at most.
        say("warning", "fsync", value=flush, span=2)
    if any(
        str(info.get(name, "ok")) != "ok" for name in ("aof_last_write_status", "aof_last_bgrewrite_status")
    ):
        say("error", "failing")


async def look(url: str, *, language: str = "") -> Sequence[Finding]:
    """Ask the server that `url` names and judge it. A fault of the server is reported, never raised."""
    where = "?"
    try:
        at = place(url)
        where = at.shown
        client = await asyncio.to_thread(connect, at)
        try:
            async with asyncio.timeout(_DEADLINE):
                info = await client.info("all")
                config = await _settings(client)
                roles = await _roles(client, Keys(at.prefix))
        finally:
            await client.aclose()
    except StoreError as error:
        return [Finding("error", str(error))]
    except Exception as error:  # noqa: BLE001 - whatever the client raises is what the admin has to see
        return [Finding("error", str(store_error(error, where)))]
    found = judge(info, config, where=where, replicas=at.replicas, language=language)
    return [*found, *judge_roles(roles, language=language)]


def judge_roles(roles: Mapping[str, int], *, language: str = "") -> list[Finding]:
    """What is wrong with the processes that work together; nothing where a bridge is one process. Pure."""
    gateways, workers = roles.get("gateway", 0), roles.get("worker", 0)
    if gateways and workers:
        said = texts.text("doctor.redis.members", language, gateways=gateways, workers=workers)
        return [Finding("ok", said)]
    missing = "worker" if gateways else "gateway" if workers else ""
    if not missing:
        return []
    key = f"doctor.redis.no_{missing}"
    return [Finding("warning", texts.text(key, language), texts.text(f"{key}.cure", language))]


async def _roles(client: Any, keys: Keys) -> Counter[str]:
    names = await client.smembers(keys.members)
    records = [await client.get(keys.member(name)) for name in sorted(names)]
    return Counter(json.loads(record)["role"] for record in records if record)


async def _settings(client: Any) -> dict[str, str]:
    from redis.exceptions import ResponseError

    try:
        found = await client.config_get(*_SETTINGS)
    except ResponseError:
        return {}  # managed servers keep their settings to themselves; INFO tells most of it
    return {str(name): str(value) for name, value in found.items()}
