"""The signed and encrypted envelope of WeChat and WeCom callbacks.

AES-256-CBC with the key base64(EncodingAESKey + "="), iv = key[:16], PKCS#7 to blocks of 32; the plain text
is 16 random bytes, a 4-byte big-endian length, the message, the receive id (app id, corp id; empty for AI
bots). The signature is SHA1 over the sorted and joined token, timestamp, nonce and cipher text. Sources:
developers.weixin.qq.com, message encryption; developer.work.weixin.qq.com, 90968.

The cipher and the signer are wechatpy's. It compares signatures with `!=`, looks at no timestamp, checks no
padding and draws its random bytes from a guessable source: these four are done here.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from channels.webhook import same

_BLOCK = 32
_HEAD = 16 + 4
_AES_KEY = re.compile(r"[A-Za-z0-9+/]{43}")
#: A callback whose timestamp is further from our clock is a replay (or our clock is wrong), in seconds.
MAX_AGE = 600.0


class Refused(Exception):
    """A callback that is not from the platform, not for this account, or not of now. Answer 403."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The message inside an envelope; `key` is the index of the key that opened it, for the reply."""

    text: bytes
    key: int


@dataclass(frozen=True, slots=True)
class Sealed:
    """An encrypted reply: the four values that the platform wants, as XML or JSON."""

    encrypt: str
    signature: str
    timestamp: str
    nonce: str


def key_fault(key: str) -> str:
    """What is wrong with an EncodingAESKey; "" when nothing is."""
    if _AES_KEY.fullmatch(key):
        return ""
    return f"an EncodingAESKey has 43 letters and digits, this one has {len(key)} characters"


class Envelope:
    """Opens and seals callbacks. `keys`: the current EncodingAESKey, then previous ones that still open; none
    for an account in plain mode. `receive_id` may be empty (AI bots). Raises ValueError for an unusable key.

    The constructor imports wechatpy and cryptography (about 50 ms): build it in a thread.
    """

    def __init__(
        self,
        token: str,
        keys: Sequence[str],
        receive_id: str,
        *,
        clock: Callable[[], float] = time.time,
        max_age: float = MAX_AGE,
    ) -> None:
        if not token:
            raise ValueError("the token is empty: anybody could sign")  # SHA1 of public values
        for key in keys:
            if fault := key_fault(key):
                raise ValueError(fault)
        self._token = token
        self._id = receive_id.encode()
        self._clock = clock
        self._max_age = max_age
        self._signer, cipher = _wechatpy()
        self._ciphers: list[Any] = [cipher(base64.b64decode(key + "=")) for key in keys]

    @property
    def encrypts(self) -> bool:
        return bool(self._ciphers)

    def sign(self, *parts: str) -> str:
        signer = self._signer()
        signer.add_data(self._token, *parts)
        return str(signer.signature)

    def verify(self, signature: str, *parts: str) -> bool:
        """Whether `signature` covers the token and `parts`, compared in constant time."""
        return same(signature, self.sign(*parts))

    def check_age(self, timestamp: str) -> None:
        """Raises Refused for a timestamp (Unix seconds) that is too far from now."""
        try:
            age = abs(self._clock() - int(timestamp[:20]))
        except ValueError:
            raise Refused("the timestamp is no number") from None
        if age > self._max_age:
            raise Refused(f"the timestamp is {age:.0f} s from this machine's clock; is the clock right?")

    def open(self, encrypted: str, query: Mapping[str, str]) -> Opened:
        """Decrypt `encrypted` (base64) after checking `msg_signature` over it, the age, and the receive id.
        Raises Refused."""
        timestamp, nonce = query.get("timestamp", ""), query.get("nonce", "")
        if not self.verify(query.get("msg_signature", ""), timestamp, nonce, encrypted):
            raise Refused("msg_signature does not fit")
        self.check_age(timestamp)
        try:
            data = base64.b64decode(encrypted, validate=True)
        except (binascii.Error, ValueError):
            raise Refused("the cipher text is no base64") from None
        if not data or len(data) % 16:
            raise Refused("the cipher text has no whole blocks")
        reason = "no aes_key is set"
        for number, cipher in enumerate(self._ciphers):
            try:
                return Opened(self._unpack(cipher.decrypt(data)), number)
            except Refused as error:
                reason = reason if number else str(error)  # the current key's reason is the telling one
        raise Refused(reason)

    def _unpack(self, plain: bytes) -> bytes:
        padding = plain[-1]
        if not 1 <= padding <= _BLOCK or plain[-padding:] != bytes([padding]) * padding:
            raise Refused("the padding is wrong: encrypted with another key")
        body = plain[:-padding]
        end = _HEAD + int.from_bytes(body[16:_HEAD], "big")
        if len(body) < _HEAD or end > len(body):
            raise Refused("the length inside does not fit: encrypted with another key")
        if body[end:] != self._id:  # no secret: who gets here had the token and the key
            raise Refused("it is meant for another account")
        return body[_HEAD:end]

    def seal(
        self, text: bytes, key: int = 0, *, timestamp: str | None = None, nonce: str | None = None
    ) -> Sealed:
        """Encrypt and sign a reply with the key of that index."""
        timestamp = timestamp or str(int(self._clock()))
        nonce = nonce or secrets.token_hex(8)
        body = secrets.token_bytes(16) + len(text).to_bytes(4, "big") + text + self._id
        padding = _BLOCK - len(body) % _BLOCK
        data = self._ciphers[key].encrypt(body + bytes([padding]) * padding)
        encrypted = base64.b64encode(data).decode()
        return Sealed(encrypted, self.sign(timestamp, nonce, encrypted), timestamp, nonce)


def _wechatpy() -> tuple[Any, Any]:
    from wechatpy.crypto.base import WeChatCipher  # type: ignore[import-untyped]
    from wechatpy.utils import WeChatSigner  # type: ignore[import-untyped]

    return WeChatSigner, WeChatCipher
