"""Short ways to write the JSON Schemas of built-in tools."""

from __future__ import annotations

from typing import Any


def arguments(required: tuple[str, ...] = (), **properties: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object with these properties and no others."""
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = list(required)
    return schema


def text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, **more}


def integer(description: str, default: int, minimum: int, maximum: int | None = None) -> dict[str, Any]:
    schema = {"type": "integer", "description": description, "default": default, "minimum": minimum}
    return schema if maximum is None else {**schema, "maximum": maximum}


def flag(description: str, default: bool = False) -> dict[str, Any]:
    return {"type": "boolean", "description": description, "default": default}
