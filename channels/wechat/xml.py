"""The XML (and JSON) of callbacks and passive replies. Pure.

Rendering is wechatpy's, which puts text into CDATA as it is: `]]>` in an answer would break the reply.
Parsing is done with the parser below it (xmltodict): wechatpy's own knows no envelope and no JSON, and lets
every kind of error through.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeAlias

from channels.wechat.crypto import Sealed
from channels.wechat.plain import clean

Data: TypeAlias = dict[str, Any]


_ENCRYPT = re.compile(
    rb"<Encrypt>\s*(?:<!\[CDATA\[)?\s*([A-Za-z0-9+/=]+)\s*(?:\]\]>)?\s*</Encrypt>"
    rb"|[\"\x27]Encrypt[\"\x27]\s*:\s*\"([A-Za-z0-9+/=\\]+)\"",
    re.IGNORECASE,
)


class Malformed(Exception):
    """A body that is no message. The text says why, and holds nothing of the body."""


def encrypted_part(body: bytes) -> str:
    """The cipher text of an envelope in XML or JSON, "" when there is none. No parser sees a stranger's body:
    only with this text can the signature be checked."""
    found = _ENCRYPT.search(body)
    return (found[1] or found[2]).replace(b"\\", b"").decode("ascii") if found else ""


def parse(body: bytes) -> Data:
    """The fields of a callback's body in XML or JSON. Raises Malformed, for entities and deep nesting too."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Malformed("the body is no UTF-8") from None
    found = _json(text) if text.lstrip()[:1] == "{" else _xml(text)
    if not isinstance(found, dict):
        raise Malformed("the body holds no fields")
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text, strict=False)  # raw control characters inside strings do occur
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the body is no JSON ({type(error).__name__})") from None


def _xml(text: str) -> Any:
    import xmltodict  # type: ignore[import-untyped]

    try:
        # People can type control characters that XML does not allow; the platform passes them on.
        return xmltodict.parse(clean(text), disable_entities=True)["xml"]
    except Exception as error:  # noqa: BLE001
        # expat, xmltodict and Python each raise their own kinds; the body is a stranger's, so none of them
        # is our fault. The message of the error may quote the body: only its kind is told.
        raise Malformed(f"the body is no XML ({type(error).__name__})") from None


def text_of(data: Data, name: str) -> str:
    """A field as text; "" when it is missing or holds no single value."""
    value = data.get(name)
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


def text_reply(to: str, sender: str, content: str, at: float) -> str:
    """A passive text reply in XML, whatever the content holds."""
    from wechatpy.replies import TextReply  # type: ignore[import-untyped]

    safe = clean(content).replace("]]>", "]]]]><![CDATA[>")
    return str(TextReply(target=to, source=sender, content=safe, time=int(at)).render())


def json_reply(to: str, sender: str, content: str, at: float) -> str:
    """The same for accounts whose callbacks are JSON."""
    fields = {"ToUserName": to, "FromUserName": sender, "CreateTime": int(at), "MsgType": "text"}
    return json.dumps({**fields, "Content": clean(content)}, ensure_ascii=False)


def sealed_reply(sealed: Sealed, *, as_json: bool = False) -> str:
    """An encrypted reply as the platform wants it."""
    if as_json:
        return json.dumps(
            {
                "Encrypt": sealed.encrypt,
                "MsgSignature": sealed.signature,
                "TimeStamp": int(sealed.timestamp),
                "Nonce": sealed.nonce,
            }
        )
    return (
        f"<xml><Encrypt><![CDATA[{sealed.encrypt}]]></Encrypt>"
        f"<MsgSignature><![CDATA[{sealed.signature}]]></MsgSignature>"
        f"<TimeStamp>{sealed.timestamp}</TimeStamp><Nonce><![CDATA[{sealed.nonce}]]></Nonce></xml>"
    )
