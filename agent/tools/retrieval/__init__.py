"""Choosing the tools that fit when there are many, without ever costing a model one that it needs."""

from agent.tools.retrieval.embedding import make_embedder
from agent.tools.retrieval.service import Injected, Retrieval, Selection
from agent.tools.retrieval.settings import EmbeddingSettings, RetrievalSettings
from agent.tools.retrieval.vectors import VectorStore

__all__ = [
    "EmbeddingSettings",
    "Injected",
    "Retrieval",
    "RetrievalSettings",
    "Selection",
    "VectorStore",
    "make_embedder",
]
