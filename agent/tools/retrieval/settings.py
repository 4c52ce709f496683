"""The `retrieval:` part of config.yaml."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class EmbeddingSettings(BaseModel):
    """A server that speaks OpenAI's embeddings protocol. `base_url` ends where `/embeddings` begins."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: str
    model: str
    api_key: SecretStr | None = None


class RetrievalSettings(BaseModel):
    """With more than `threshold` MCP tools only those that fit are offered: the `top_k` best ranked, those
    that the conversation used, and those found by `find_tools`. Zero means zero in both.

    `embedding`: "none" ranks by words alone, "local" adds the sentence encoder of the extra `embeddings`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = False
    threshold: int = Field(default=20, ge=0, le=10_000)
    top_k: int = Field(default=10, ge=0, le=1000)
    embedding: Literal["none", "local"] | EmbeddingSettings = "none"
