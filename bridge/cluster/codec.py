"""What crosses from worker to gateway and back, as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bridge.delivery import ref_from_json, ref_to_json
from channels.base import (
    Address,
    Attachment,
    Chunk,
    ContextMessage,
    Flooded,
    Gone,
    Lost,
    NotSent,
    OutFile,
    Press,
    Rejected,
    Sender,
    SendError,
    TooLarge,
    Unknown,
)

__all__ = ["ref_from_json", "ref_to_json"]

_ERRORS: Mapping[str, type[SendError]] = {
    kind.__name__: kind for kind in (NotSent, Unknown, Rejected, Lost, Gone)
}


def chunk_to_json(chunk: Chunk, workspace: Path) -> dict[str, Any]:
    if chunk.file is not None:
        chunk = replace(chunk, file=replace(chunk.file, path=outward(Path(chunk.file.path), workspace)))
    return asdict(chunk)


def chunk_from_json(data: Mapping[str, Any], workspace: Path) -> Chunk:
    file = OutFile(**data["file"]) if data["file"] else None
    if file is not None:
        file = replace(file, path=str(workspace / file.path))
    return Chunk(data["text"], data["data"], file)


def outward(path: Path, workspace: Path) -> str:
    """A path as another process finds it, which may have the workspace elsewhere."""
    return str(path.relative_to(workspace)) if path.is_relative_to(workspace) else str(path)


def press_from_json(data: Mapping[str, Any]) -> Press:
    address, sender = Address(**data["address"]), Sender(**data["sender"])
    return Press(address, sender, data["choice"], data["message_id"])


def attachment_from_json(data: Mapping[str, Any]) -> Attachment:
    return Attachment(**data)


def context_from_json(rows: list[Mapping[str, Any]]) -> tuple[ContextMessage, ...]:
    return tuple(ContextMessage(**row) for row in rows)


def error_to_json(error: SendError | TooLarge) -> tuple[str, str, float]:
    """Kind, message, and the number that belongs to it."""
    extra = error.retry_after if isinstance(error, Flooded) else getattr(error, "limit", 0)
    return type(error).__name__, str(error), extra


def error_from_json(kind: str, message: str, extra: Any) -> Exception | None:
    """The error that a channel raised; None for one that it may not raise."""
    if kind == "Flooded":
        return Flooded(message, float(extra))
    if kind == "TooLarge":
        return TooLarge(message, int(extra))
    known = _ERRORS.get(kind)
    return known(message) if known is not None else None
