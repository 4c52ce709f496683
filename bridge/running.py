"""The running bridge of a workspace, as other commands of this machine find it and ask it for something."""

from __future__ import annotations

import asyncio
import fcntl
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

# Where the bridge listens and its key are found as `causeway mcp` finds them.
from bridge.cli_mcp import Refused as Unreached
from bridge.cli_mcp import _absent, _base_url, _key
from bridge.config import Config

__all__ = ["Unreached", "ask", "base_url", "runs"]

base_url = _base_url


def runs(config: Config) -> bool:
    """Whether a bridge works in this workspace, by its lock; blocking."""
    with suppress(OSError), (config.workspace / "causeway.lock").open("rb") as lock:
        try:
            # Gateways and workers share the lock, a bridge in one process has it alone.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


async def ask(
    config: Config,
    port: int | None,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    seconds: float = 30.0,
) -> dict[str, Any]:
    """What the bridge answers: a JSON object, also for a refusal (then with `error`). Raises Unreached when
    none answers there, it is another workspace's, or it does not let us in."""
    import aiohttp

    base = await asyncio.to_thread(_base_url, config, port)
    key = await asyncio.to_thread(_key, config)
    limit = aiohttp.ClientTimeout(total=seconds, sock_connect=5)
    try:
        async with (
            aiohttp.ClientSession(
                timeout=limit, headers={"Authorization": f"Bearer {key}"} if key else {}
            ) as client,
            client.request(method, base + path, json=body) as response,
        ):
            text, status = await response.text(), response.status
    except (aiohttp.ClientConnectionError, OSError) as fault:
        raise Unreached(await asyncio.to_thread(_absent, config, base)) from fault
    except TimeoutError as fault:
        raise Unreached(f"The bridge at {base} did not answer in time. Look into its log.") from fault
    if status in (401, 403):
        raise Unreached(f"The bridge at {base} refuses this: {text.strip()[:300]}")
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Unreached(
            f"What answers at {base} is no bridge, or one of another version. Restart the bridge."
        )
    ours = {"workspace": str(config.workspace), "file": str(config.workspace / config.mcp.file)}
    if any(found.get(name, value) != value for name, value in ours.items()):
        raise Unreached(
            f"The bridge at {base} works in another workspace than {config.workspace}. Give its config.yaml "
            "with --config, or the port of this workspace's bridge with --port."
        )
    return found
