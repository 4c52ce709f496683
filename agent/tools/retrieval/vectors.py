"""The vectors of tools and queries: kept by model and text, computed in upkeep, never on a reply's way.

A failing service costs one query its deadline. Then it rests, and only upkeep, for which nobody waits, looks
whether it is back; until then words alone rank.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from agent.tools.retrieval.embedding import Embedder, EmbeddingFailed, import_numpy
from agent.tools.retrieval.lexical import Document, Index
from agent.tools.retrieval.query import Query

if TYPE_CHECKING:
    from agent.tools.retrieval.embedding import Matrix

log = logging.getLogger("causeway.retrieval")

#: Texts of one request.
BATCH = 32
#: Seconds a batch may take, and upkeep in all before it leaves the rest for its next pass.
_BATCH_DEADLINE, _PASS = 30.0, 20.0
#: Seconds of rest after a failure: the first, and the longest; it doubles in between.
_FIRST_REST, _LONGEST_REST = 60.0, 900.0
#: Texts of queries whose vectors are kept.
_QUERIES = 512
#: Vectors kept beyond those in use, for servers that are down for a while.
_SPARE = 1000
#: Texts that may be refused in one pass before the service counts as failing.
_MOST_REFUSED = 8
_PROBE = "search"


class VectorStore(Protocol):
    """Where vectors are kept. A key is a text's hash, a value 32-bit floats of this machine in a row.

    Raises whatever the store raises; vectors are then computed again after the next start.
    """

    async def load(self, model: str) -> Mapping[str, bytes]:
        """All vectors of the model."""
        ...

    async def save(self, model: str, vectors: Mapping[str, bytes]) -> None:
        """Add or replace."""
        ...

    async def prune(self, model: str, keep: frozenset[str]) -> None:
        """Delete all vectors but these of this model, those of other models too."""
        ...


class Vectors:
    """Used from one event loop. `query_deadline`: the longest in seconds that a reply waits for a vector."""

    def __init__(
        self,
        embedder: Embedder,
        store: VectorStore | None,
        *,
        query_deadline: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._embedder = embedder
        self._store = store
        self._query_deadline = query_deadline
        self._clock = clock
        self._model = ""
        self._known: dict[str, Matrix] = {}
        self._queries: OrderedDict[str, Matrix] = OrderedDict()
        self._refused: set[str] = set()
        self._refused_now = 0
        self._width = 0  # of the newest vector; those of another width are of no use
        self._rest = 0.0
        self._rests_until: float | None = None
        self._fault = ""
        self._version = 0
        self._stacked: tuple[int, Index, list[int], Matrix | None] | None = None
        self._busy = asyncio.Lock()

    @property
    def works(self) -> bool:
        """Whether the embedding service answered when it was last asked."""
        return self._rests_until is None

    @property
    def fault(self) -> str | None:
        """What is wrong with the embedding service, and what to do; None when nothing is."""
        return None if self.works else self._fault

    # -- on the way of a reply ------------------------------------------------------------------------

    async def similar(self, query: Query, index: Index) -> dict[str, float]:
        """How near each tool is to the query, by name; tools without a vector are left out. Empty when there
        are no vectors or the service does not answer in time."""
        if not query or self._rests_until is not None or self._embedder.model != self._model:
            return {}
        rows, matrix = self._matrix(index)
        if matrix is None:
            return {}
        texts = [*(text for text, _ in query.texts), *query.clauses]
        try:
            async with asyncio.timeout(self._query_deadline):
                vectors = await self._query_vectors(texts)
        except (TimeoutError, EmbeddingFailed) as error:
            if not (isinstance(error, EmbeddingFailed) and error.texts_at_fault):
                self._failed(error)
            return {}
        if vectors.shape[1] != matrix.shape[1]:
            return {}  # another model under the same name; upkeep computes the tools' vectors anew
        nearness = matrix @ vectors.T
        weights = [weight for _, weight in query.texts]
        near = nearness[:, : len(weights)] @ weights / sum(weights)
        if query.clauses:
            near = (near + nearness[:, len(weights) :].max(axis=1)) / 2
        return {index.names[row]: value for row, value in zip(rows, near.tolist(), strict=True)}

    async def _query_vectors(self, texts: Sequence[str]) -> Matrix:
        import numpy as np

        missing = [text for text in dict.fromkeys(texts) if text not in self._queries]
        found: dict[str, Matrix] = {text: self._queries[text] for text in texts if text in self._queries}
        if missing:
            made = await self._embed(missing)
            if any(len(vector) != self._width for vector in found.values()):
                found, missing = {}, list(dict.fromkeys(texts))
                made = await self._embed(missing)
            found.update(zip(missing, made, strict=True))
        for text in found:
            self._queries[text] = found[text]
            self._queries.move_to_end(text)
        while len(self._queries) > _QUERIES:
            self._queries.popitem(last=False)
        return np.stack([found[text] for text in texts])

    def _matrix(self, index: Index) -> tuple[list[int], Matrix | None]:
        """The places of tools that have a vector, and those vectors; made once an index."""
        kept = self._stacked
        if kept is not None and kept[0] == self._version and kept[1] is index:
            return kept[2], kept[3]
        if not self._known:
            return [], None
        import numpy as np

        rows = [at for at, doc in enumerate(index.documents) if self._usable(doc)]
        matrix = np.stack([self._known[index.documents[at].key] for at in rows]) if rows else None
        self._stacked = (self._version, index, rows, matrix)
        return rows, matrix

    def _usable(self, doc: Document) -> bool:
        vector = self._known.get(doc.key)
        return vector is not None and len(vector) == self._width

    # -- upkeep ---------------------------------------------------------------------------------------

    async def refresh(self, documents: Sequence[Document]) -> int:
        """Compute what is missing for these tools, for about 20 s at most; store it; drop what is long gone.

        How many of the tools are without a vector now. Raises the store's errors; what was computed is used
        all the same.
        """
        async with self._busy:
            model = self._embedder.model
            if model != self._model:
                await self._change(model)
            needed = {doc.key: doc.text for doc in documents}
            if self._rests_until is None or self._clock() >= self._rests_until:
                await self._compute(model, needed)
            if len(self._known) > 2 * len(needed) + _SPARE:
                self._known = {key: self._known[key] for key in needed if key in self._known}
                self._version += 1
                if self._store is not None:
                    await self._store.prune(model, frozenset(self._known))
            return sum(not self._usable(doc) for doc in documents)

    async def _change(self, model: str) -> None:
        """Begin with a model: forget the vectors of another, take up those that are stored."""
        self._queries.clear()
        self._known, self._refused = {}, set()
        self._width, self._rest, self._rests_until, self._fault = 0, 0.0, None, ""
        self._version += 1
        self._model = model
        stored = await self._store.load(model) if self._store is not None else {}
        self._known = await asyncio.to_thread(_read, stored) if stored else {}

    async def _compute(self, model: str, needed: Mapping[str, str]) -> None:
        began = self._clock()
        if needed and (not self.works or not self._width) and not await self._probe():
            return
        self._refused_now = 0
        missing = [
            (key, text)
            for key, text in needed.items()
            if key not in self._refused and (key not in self._known or len(self._known[key]) != self._width)
        ]
        for start in range(0, len(missing), BATCH):
            if not self.works or self._clock() - began > _PASS:
                return
            await self._batch(model, dict(missing[start : start + BATCH]))
        if self._refused_now:
            log.warning("%d tools are ranked by words alone: their texts were refused", self._refused_now)

    async def _probe(self) -> bool:
        """Whether the service answers. Also tells the width of its vectors, by which stored ones that the
        same name made otherwise are found; and has the local encoder load."""
        try:
            async with asyncio.timeout(_BATCH_DEADLINE):
                await self._embed([_PROBE])
        except (TimeoutError, EmbeddingFailed) as error:
            self._failed(error)
            return False
        self._answered()
        return True

    async def _batch(self, model: str, texts: Mapping[str, str]) -> None:
        """Compute and keep the vectors of some texts. A text that is refused by itself is left to words."""
        try:
            async with asyncio.timeout(_BATCH_DEADLINE):
                made = await self._embed(list(texts.values()))
        except (TimeoutError, EmbeddingFailed) as error:
            if not (isinstance(error, EmbeddingFailed) and error.texts_at_fault):
                self._failed(error)
                return
            if len(texts) == 1:
                self._refused.update(texts)
                self._refused_now += 1
                if self._refused_now >= _MOST_REFUSED:
                    self._failed(error)
                return
            items, half = list(texts.items()), len(texts) // 2
            await self._batch(model, dict(items[:half]))
            if self.works:
                await self._batch(model, dict(items[half:]))
            return
        vectors = dict(zip(texts, made, strict=True))
        self._known.update(vectors)
        self._version += 1
        if self._store is not None:
            await self._store.save(model, {key: vector.tobytes() for key, vector in vectors.items()})

    # -- the service ----------------------------------------------------------------------------------

    async def _embed(self, texts: Sequence[str]) -> Matrix:
        try:
            made = await self._embedder.embed(texts)
        except (EmbeddingFailed, asyncio.CancelledError):
            raise
        except Exception as error:
            # Whatever an encoder raises, tools are still ranked by their words.
            log.warning("the encoder raised %s", type(error).__name__, exc_info=True)
            raise EmbeddingFailed(f"The encoder failed ({type(error).__name__}).") from error
        if len(made) != len(texts):
            raise EmbeddingFailed(f"{len(made)} vectors came for {len(texts)} texts.")
        if made.shape[1] != self._width:
            self._width = made.shape[1]
            self._queries.clear()
            self._version += 1
        return made

    def _failed(self, error: Exception) -> None:
        if self._rests_until is not None and self._clock() < self._rests_until:
            return  # several queries found the same outage
        for_good = isinstance(error, EmbeddingFailed) and error.for_good
        self._rest = _LONGEST_REST if for_good else min(max(_FIRST_REST, self._rest * 2), _LONGEST_REST)
        self._rests_until = self._clock() + self._rest
        level = logging.DEBUG if self._fault else logging.WARNING  # once an outage
        self._fault = str(error) or "The embedding service did not answer in time."
        log.log(level, "tools are ranked by words alone for %.0f s at least. %s", self._rest, self._fault)

    def _answered(self) -> None:
        if self._fault:
            log.info("the embedding service answers again")
        self._fault, self._rest, self._rests_until = "", 0.0, None


def _read(stored: Mapping[str, bytes]) -> dict[str, Matrix]:
    """Stored vectors; those that are no vectors are left out."""
    import_numpy()
    import numpy as np

    return {
        key: np.frombuffer(data, dtype=np.float32)
        for key, data in stored.items()
        if data and not len(data) % 4
    }
