"""The JSON forms of the OpenAI chat completions API, as its official clients read them.

Source: platform.openai.com/docs/api-reference/chat. A delta costs one `json.dumps` of its text: the rest of
the chunk is bytes made once a request.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from aiohttp import web

MODEL = "causeway"
#: The models list wants a date of creation; this is the day of the first release.
MODEL_CREATED = 1_796_083_200
USAGE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": still working\n\n"


@dataclass(frozen=True, slots=True)
class Fault:
    """An error as this API tells it. `kind` is its `type`, `param` the field at fault."""

    status: int
    message: str
    kind: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


class RequestError(Exception):
    """A request that is answered with an error. `headers` go along with it."""

    def __init__(self, fault: Fault, headers: dict[str, str] | None = None) -> None:
        super().__init__(fault.message)
        self.fault = fault
        self.headers = headers

    def response(self) -> web.Response:
        return fault_response(self.fault, self.headers)


def invalid(message: str, param: str | None = None, code: str | None = None) -> RequestError:
    """A 400: what is wrong with which field, and what would be right."""
    return RequestError(Fault(400, message, param=param, code=code))


def fault_response(fault: Fault, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response(fault.body(), status=fault.status, headers=headers)


def error_response(
    status: int,
    message: str,
    *,
    kind: str = "invalid_request_error",
    param: str | None = None,
    code: str | None = None,
    headers: dict[str, str] | None = None,
) -> web.Response:
    """An error in this API's form, for the server in front (401 wrong key, 403 foreign origin)."""
    return fault_response(Fault(status, message, kind, param, code), headers)


def completion(id: str, created: int, text: str) -> dict[str, Any]:
    """A whole answer. Token counts are zero: the bridge's own models are not the caller's to pay."""
    return {
        "id": id,
        "object": "chat.completion",
        "created": created,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
    }


class ChunkForm:
    """The chunks of one streamed answer as bytes."""

    __slots__ = ("_head", "_tail", "_usage")

    def __init__(self, id: str, created: int, *, include_usage: bool) -> None:
        common = (
            f'{{"id":{json.dumps(id)},"object":"chat.completion.chunk","created":{created},"model":"{MODEL}"'
        )
        # With `include_usage` each chunk carries "usage": null, and a last one the figures.
        usage = ',"usage":null' if include_usage else ""
        self._head = f'data: {common}{usage},"choices":[{{"index":0,"delta":'
        self._tail = ',"logprobs":null,"finish_reason":null}]}\n\n'
        self._usage = (
            f'data: {common},"choices":[],"usage":{json.dumps(USAGE)}}}\n\n' if include_usage else ""
        )

    def first(self) -> bytes:
        return f'{self._head}{{"role":"assistant","content":""}}{self._tail}'.encode()

    def delta(self, text: str) -> bytes:
        return f'{self._head}{{"content":{json.dumps(text)}}}{self._tail}'.encode()

    def last(self) -> bytes:
        stop = f'{self._head}{{}},"logprobs":null,"finish_reason":"stop"}}]}}\n\n'
        return f"{stop}{self._usage}".encode() + DONE


def stream_fault(fault: Fault) -> bytes:
    """An error after the answer has begun: its official clients raise it as an APIError."""
    return f"data: {json.dumps(fault.body())}\n\n".encode() + DONE


def models() -> dict[str, Any]:
    return {"object": "list", "data": [model()]}


def model() -> dict[str, Any]:
    return {"id": MODEL, "object": "model", "created": MODEL_CREATED, "owned_by": "causeway"}
