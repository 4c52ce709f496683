"""`causeway backup`: a copy of the database while the bridge runs, and a database made small again."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.tools.masking import Masker
from bridge import texts
from bridge.cli_terminal import Terminal
from bridge.config import Config
from bridge.running import runs
from bridge.store import is_redis, sqlite_path
from bridge.store.base import StoreError

TEXTS: dict[str, tuple[str, str]] = {
    "cli.backup.done": (
        "Backup: {file} ({size} MiB). To restore it: stop the bridge, copy it to {path}, start again.",
        "备份:{file}({size} MiB)。恢复方法:停止服务,把它复制到 {path},再重新启动。",
    ),
    "cli.backup.compacted": ("{path}: {before} MiB, now {after} MiB", "{path}:{before} MiB → {after} MiB"),
    "cli.backup.running": (
        "The bridge works in {workspace}. A backup can be made meanwhile (without --compact); stop the "
        "bridge to make the database small.",
        "服务正在使用 {workspace}。备份可以随时进行(不加 --compact);压缩数据库前请先停止服务。",
    ),
    "cli.backup.redis": (
        "The store is in Redis. Back it up there: copy its append-only files, or run BGSAVE and copy "
        "dump.rdb.",
        "数据保存在 Redis 中,请在 Redis 一侧备份:复制 AOF 文件,或执行 BGSAVE 后复制 dump.rdb。",
    ),
}
texts.add(TEXTS)
_MIB = 1024 * 1024


def add_parser(commands: Any, parents: Sequence[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    backup = commands.add_parser(
        "backup", parents=list(parents), help="copy the database, also while the bridge runs"
    )
    backup.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help="where to (default: backups/ in the workspace)"
    )
    backup.add_argument(
        "--compact", action="store_true", help="then make the database small (the bridge must not run)"
    )


async def run(config: Config, options: argparse.Namespace, masker: Masker) -> int:
    """Carry it out; the exit code."""
    terminal = Terminal(getattr(options, "language", None), os.environ, masker)
    if is_redis(config.store.url):
        terminal.complain(terminal.text("cli.backup.redis"))
        return 1
    if options.compact and await asyncio.to_thread(runs, config):
        terminal.complain(terminal.text("cli.backup.running", workspace=config.workspace))
        return 1
    try:
        await asyncio.to_thread(_copy, config, options, terminal)
    except StoreError as error:
        terminal.complain(str(error))
        return 1
    return 0


def _copy(config: Config, options: argparse.Namespace, terminal: Terminal) -> None:
    from bridge.store.sqlite_upkeep import backup, compact

    path = sqlite_path(config.store.url, config.workspace)
    name = f"{path.stem}-{time.strftime('%Y%m%d-%H%M%S')}.db"
    file = options.file or config.workspace / "backups" / name
    size = backup(path, file)
    terminal.say("cli.backup.done", file=file, size=f"{size / _MIB:.1f}", path=path)
    if options.compact:
        before, after = (f"{one / _MIB:.1f}" for one in compact(path))
        terminal.say("cli.backup.compacted", path=path, before=before, after=after)
