"""The outside of a callback: whether it is genuine, what it holds, and how its reply must be dressed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from channels.base import Health
from channels.wechat import xml
from channels.wechat.crypto import Envelope, Refused
from channels.wechat.inbound import Callback, read_callback


@dataclass(frozen=True, slots=True)
class Verified:
    """A genuine callback. `elapsed`: seconds since its message by the platform's own clock. `key`: of the
    envelope that held it (None: plain); the reply goes back the same way, in the same format."""

    callback: Callback
    elapsed: float
    key: int | None
    as_json: bool


class Door:
    """Takes callbacks in and dresses replies. `health`: whether the console's mode fits the settings."""

    def __init__(self, envelope: Envelope, channel: str) -> None:
        self._envelope = envelope
        self._channel = channel
        self.health = Health(True)

    def url_check(self, query: Mapping[str, str]) -> bytes:
        """The answer to the platform's check of our address. Raises Refused."""
        echo = query.get("echostr", "")
        if query.get("msg_signature"):
            return self._envelope.open(echo, query).text
        self._verify_plain(query)
        return echo.encode()

    def open(self, body: bytes, query: Mapping[str, str]) -> Verified:
        """Raises Refused for what is not genuine, Malformed or ValueError for what cannot be read."""
        encrypted = xml.encrypted_part(body) if query.get("encrypt_type", "raw") != "raw" else ""
        key = None
        if self._envelope.encrypts:
            if not encrypted:
                self._refuse_plain(query)
            # msg_signature decides: it covers the cipher text. The other signature covers no body.
            opened = self._envelope.open(encrypted, query)
            body, key = opened.text, opened.key
        else:
            self._verify_plain(query)
        data = xml.parse(body)
        if key is None and "Encrypt" in data and "MsgType" not in data:
            self.health = Health(False, "callbacks are encrypted, but aes_key is not set", "set aes_key")
            raise Refused("it is encrypted and no aes_key is set")
        callback = read_callback(data, self._channel)
        self.health = Health(True)
        elapsed = int(query.get("timestamp", "0")) - callback.sent_at if callback.sent_at else 0
        return Verified(callback, float(elapsed), key, body.lstrip()[:1] == b"{")

    def _verify_plain(self, query: Mapping[str, str]) -> None:
        timestamp = query.get("timestamp", "")
        if not self._envelope.verify(query.get("signature", ""), timestamp, query.get("nonce", "")):
            raise Refused("the signature does not fit; is token the same as in the console?")
        self._envelope.check_age(timestamp)

    def _refuse_plain(self, query: Mapping[str, str]) -> None:
        """No signature covers a plain body: with a key set, taking one would let in everybody who once saw
        the query of a genuine request. Raises Refused."""
        self._verify_plain(query)  # strangers do not change our health
        self.health = Health(
            False,
            "callbacks arrive in plain text although aes_key is set",
            "choose 安全模式 (or 兼容模式) in 服务器配置, or remove aes_key",
        )
        raise Refused("it is not encrypted although aes_key is set")

    def dress(self, verified: Verified, text: str, at: float) -> tuple[str, str]:
        """(body, content type) of a passive reply; `success` for an empty text."""
        if not text:
            return "success", "text/plain"
        callback = verified.callback
        reply = xml.json_reply if verified.as_json else xml.text_reply
        body = reply(callback.user, callback.account, text, at)
        if verified.key is not None:
            sealed = self._envelope.seal(body.encode(), verified.key)
            body = xml.sealed_reply(sealed, as_json=verified.as_json)
        return body, "application/json" if verified.as_json else "application/xml"
