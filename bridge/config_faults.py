"""Turning what pydantic says about settings into sentences that a person can act on."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from bridge.config_source import KeyPath, Source

#: Names of settings and variables whose values must not be shown.
SECRET_NAME = re.compile(r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD)$", re.IGNORECASE)

_KINDS = {
    "string_type": "text",
    "int_type": "a whole number, for example 30",
    "int_parsing": "a whole number, for example 30",
    "int_from_float": "a whole number, for example 30",
    "float_type": "a number, for example 2.5",
    "float_parsing": "a number, for example 2.5",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list, for example [a, b]",
    "tuple_type": "a list, for example [a, b]",
    "set_type": "a list, for example [a, b]",
    "dict_type": "keys and values, each on a line of its own below it",
    "model_type": "keys and values, each on a line of its own below it",
    "model_attributes_type": "keys and values, each on a line of its own below it",
}
_BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def validate(source: Source, path: KeyPath, model: type[BaseModel], data: Any) -> BaseModel | None:
    """Make settings of `data`, which stands at `path`; None after adding faults to `source`.

    Numbers where text is wanted are taken as they are written (an id such as 123456).
    """
    try:
        return model.model_validate(data)
    except ValidationError as first:
        error = first
    for detail in error.errors(include_url=False):
        if detail["type"] == "string_type" and isinstance(detail["input"], (bool, int, float)):
            _put(data, _real(detail, data), source.written, path)
    try:
        return model.model_validate(data)
    except ValidationError as second:
        details = second.errors(include_url=False)
    told: set[KeyPath] = set()
    for detail in details:
        where = _real(detail, data)
        if where in told or (detail["type"] == "literal_error" and isinstance(detail["input"], (dict, list))):
            continue  # one member of a union; what is said about the other member is nearer to what was meant
        told.add(where)
        source.fault((*path, *where), _sentence(detail, where, model, source.written.get((*path, *where))))
    if not told:
        source.fault(path, f"{details[0]['msg']}.")
    return None


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant: other case or signs count as equal."""
    plain = {name.lower().replace("_", "").replace("-", ""): name for name in known}
    meant = word.lower().replace("_", "").replace("-", "")
    found = difflib.get_close_matches(meant, plain, n=1, cutoff=0.65)
    return plain[found[0]] if found else None


def unknown_key(word: str, known: Iterable[str], elsewhere: str | None = None) -> str:
    """The sentence for a key that does not exist here."""
    names = list(known)
    meant = nearest(word, names) or elsewhere
    hint = f'Did you mean "{meant}"? ' if meant else ""
    return f"there is no such setting. {hint}Known here: {', '.join(names)}."


def secret_values(value: Any) -> Iterator[str]:
    """Every secret within settings."""
    if isinstance(value, SecretStr):
        if secret := value.get_secret_value():
            yield secret
    elif isinstance(value, BaseModel):
        for _, inner in value:
            yield from secret_values(inner)
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from secret_values(inner)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            yield from secret_values(inner)


def inner_models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that a field's annotation names, also inside a union, list or mapping."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from inner_models(part)


def _sentence(error: ErrorDetails, where: KeyPath, model: type[BaseModel], written: str | None) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return unknown_key(str(where[-1]), _fields(model, where[:-1]))
    if kind == "missing":
        return f'it is missing. Add "{where[-1]}: …" here.'
    # Only what stands in the file is shown: a value that came from the environment may be a secret.
    secret = bool(where) and SECRET_NAME.search(str(where[-1])) is not None
    shown = "" if written is None or secret else f'"{written}" does not fit. '
    if kind == "value_error":
        return f"{context.get('error', error['msg'])}"
    if kind in ("literal_error", "enum"):
        return f"{shown}Write one of: {str(context['expected']).replace(' or ', ', ')}."
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"{shown}Write a number of {words} {context[key]}."
    if kind in _KINDS:
        return f"{shown}Write {_KINDS[kind]}."
    return f"{shown}{error['msg']}."


def _fields(model: type[BaseModel], path: KeyPath) -> list[str]:
    """The settings known at a path below a model; a union's members together."""
    models = [model]
    for part in path:
        if isinstance(part, int):
            continue
        annotations = [m.model_fields[part].annotation for m in models if part in m.model_fields]
        models = [inner for annotation in annotations for inner in inner_models(annotation)]
    return list(dict.fromkeys(name for m in models for name in m.model_fields))


def _real(error: ErrorDetails, data: Any) -> KeyPath:
    """pydantic's place without the names of union members, which nobody wrote."""
    path: list[str | int] = []
    loc = error["loc"]
    for index, part in enumerate(loc):
        if isinstance(data, dict):
            inside = part in data
        else:
            inside = isinstance(data, list) and isinstance(part, int) and part < len(data)
        if inside:
            path.append(part)
            data = data[part]
        elif error["type"] == "missing" and index == len(loc) - 1:
            path.append(part)  # missing: named where it should be
    return tuple(path)


def _put(data: Any, where: KeyPath, written: Mapping[KeyPath, str], path: KeyPath) -> None:
    """Replace a value by the text that stands for it in the file."""
    text = written.get((*path, *where))
    if not where or text is None:
        return
    for part in where[:-1]:
        data = data[part]
    data[where[-1]] = text
