"""Where the vectors of tool descriptions are kept: a log a model, an entry a text."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping

from channels.base import ChannelState

VECTORS_SCOPE = "~vectors"
_MODELS = "models"
#: Most vectors of one model that are read back.
_MOST = 20_000


class StoredVectors:
    """Implements `agent.tools.retrieval.VectorStore`."""

    def __init__(self, state: ChannelState) -> None:
        self._state = state

    async def load(self, model: str) -> dict[str, bytes]:
        entries = await self._state.read(model, limit=_MOST)
        return {entry.id: base64.b64decode(str(entry.value["v"])) for entry in entries}

    async def save(self, model: str, vectors: Mapping[str, bytes]) -> None:
        await self._state.append(_MODELS, model, {})
        for key, vector in vectors.items():
            await self._state.append(model, key, {"v": base64.b64encode(vector).decode("ascii")})

    async def prune(self, model: str, keep: Collection[str]) -> None:
        """Forget this model's vectors that are not in `keep`, and all of other models."""
        kept = set(keep)
        for entry in await self._state.read(model, limit=_MOST):
            if entry.id not in kept:
                await self._state.remove(model, entry.id)
        for other in await self._state.read(_MODELS):
            if other.id != model:
                newest = await self._state.read(other.id, limit=1)
                if newest:
                    await self._state.trim(other.id, newest[-1].seq)
                await self._state.remove(_MODELS, other.id)
