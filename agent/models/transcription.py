"""Speech to text at an OpenAI-compatible endpoint, through the official SDK."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr

log = logging.getLogger("causeway.models")

_LONGEST = 20_000


class TranscriptionSettings(BaseModel):
    """`model.transcription`: where voice messages are written down. `timeout` in seconds, for one message."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: str = "https://api.openai.com/v1"
    model: str = "whisper-1"
    api_key: SecretStr | None = None
    timeout: float = Field(default=60.0, gt=0, le=600)


class NotHeard(Exception):
    """The endpoint gave no text. The message says why, without secrets."""


class Transcriber:
    """One endpoint. The SDK is loaded with the first voice message."""

    def __init__(self, settings: TranscriptionSettings) -> None:
        self._settings = settings
        self._client: Any = None

    async def text(self, path: Path, language: str = "") -> str:
        """The words of an audio file. `language` is a BCP-47 tag or empty. Raises NotHeard."""
        try:
            client = await self._connected()
            from openai import OpenAIError

            data = await asyncio.to_thread(path.read_bytes)
            hint = {"language": language.split("-")[0].lower()} if language else {}
            async with asyncio.timeout(self._settings.timeout):
                heard = await client.audio.transcriptions.create(
                    model=self._settings.model, file=(path.name, data), **hint
                )
        except TimeoutError:
            raise NotHeard(f"no answer within {self._settings.timeout:g} s") from None
        except OSError as error:
            raise NotHeard(f"the file cannot be read ({error.strerror})") from None
        except OpenAIError as error:
            status = getattr(error, "status_code", None)
            raise NotHeard(f"{type(error).__name__}" + (f" (HTTP {status})" if status else "")) from None
        words = str(getattr(heard, "text", "") or "").strip()
        if not words:
            raise NotHeard("no words were recognised")
        return words[:_LONGEST]

    async def _connected(self) -> Any:
        if self._client is None:
            self._client = await asyncio.to_thread(self._make)
        return self._client

    def _make(self) -> Any:
        from openai import AsyncOpenAI

        key = self._settings.api_key.get_secret_value() if self._settings.api_key else ""
        return AsyncOpenAI(
            api_key=key or "none",  # local servers want none, the SDK wants some
            base_url=self._settings.base_url,
            max_retries=1,
            timeout=self._settings.timeout,
        )

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
