"""The envelope of callbacks, against wechatpy and against the documented algorithm written out here."""

from __future__ import annotations

import base64
import hashlib
import os
import xml.etree.ElementTree as ET

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from wechatpy.crypto import WeChatCrypto

from channels.wechat.crypto import Envelope, Refused, key_fault

TOKEN, APP, NOW = "token", "wx5823bf96d3bd56c7", 1_700_000_000
KEY = "jWmYm7qr5nMoAUwZRjGtBxmz3KA1tkAj3ykkR6q2B2C"
OLD = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG"


def documented_signature(*parts: str) -> str:
    return hashlib.sha1("".join(sorted(parts)).encode()).hexdigest()


def documented_encrypt(text: bytes, key: str, receive_id: str, *, padding: bytes | None = None) -> str:
    raw = base64.b64decode(key + "=")
    body = os.urandom(16) + len(text).to_bytes(4, "big") + text + receive_id.encode()
    count = 32 - len(body) % 32
    body += padding if padding is not None else bytes([count]) * count
    encryptor = Cipher(algorithms.AES(raw), modes.CBC(raw[:16])).encryptor()
    return base64.b64encode(encryptor.update(body) + encryptor.finalize()).decode()


def documented_decrypt(encrypted: str, key: str) -> tuple[bytes, str]:
    raw = base64.b64decode(key + "=")
    decryptor = Cipher(algorithms.AES(raw), modes.CBC(raw[:16])).decryptor()
    body = decryptor.update(base64.b64decode(encrypted)) + decryptor.finalize()
    body = body[: -body[-1]]
    end = 20 + int.from_bytes(body[16:20], "big")
    return body[20:end], body[end:].decode()


def query(encrypted: str, timestamp: str = str(NOW), nonce: str = "n1") -> dict[str, str]:
    signature = documented_signature(TOKEN, timestamp, nonce, encrypted)
    return {"timestamp": timestamp, "nonce": nonce, "msg_signature": signature}


def envelope(*keys: str, receive_id: str = APP) -> Envelope:
    return Envelope(TOKEN, keys or (KEY,), receive_id, clock=lambda: NOW)


TEXTS = [b"", b"x", "你好，世界 ]]> 😀".encode(), b"a" * 31, b"a" * 32, b"b" * 5000]


@pytest.mark.parametrize("text", TEXTS, ids=len)
@pytest.mark.parametrize("receive_id", [APP, ""])
def test_the_documented_algorithm_and_ours_read_each_other(text: bytes, receive_id: str) -> None:
    ours = envelope(receive_id=receive_id)
    encrypted = documented_encrypt(text, KEY, receive_id)
    assert ours.open(encrypted, query(encrypted)).text == text
    sealed = ours.seal(text)
    assert documented_decrypt(sealed.encrypt, KEY) == (text, receive_id)
    assert sealed.signature == documented_signature(TOKEN, sealed.timestamp, sealed.nonce, sealed.encrypt)


@pytest.mark.parametrize("text", [text for text in TEXTS if text], ids=len)
def test_wechatpys_crypto_agrees_with_the_documented_algorithm_and_with_ours(text: bytes) -> None:
    peer = WeChatCrypto(TOKEN, KEY, APP)
    found = ET.fromstring(peer.encrypt_message(text.decode(), "n1", str(NOW)))
    encrypted = found.findtext("Encrypt") or ""
    assert found.findtext("MsgSignature") == documented_signature(TOKEN, str(NOW), "n1", encrypted)
    assert documented_decrypt(encrypted, KEY) == (text, APP)
    assert envelope().open(encrypted, query(encrypted)).text == text
    sealed = envelope().seal(text)
    fields = {"Encrypt": sealed.encrypt}
    assert peer.decrypt_message(fields, sealed.signature, sealed.timestamp, sealed.nonce) == text.decode()


def test_two_replies_are_never_sealed_alike() -> None:
    sealed = {envelope().seal(b"same", timestamp="1", nonce="2").encrypt for _ in range(20)}
    assert len(sealed) == 20


def test_after_a_key_change_the_previous_key_opens_and_the_reply_takes_the_same() -> None:
    both = envelope(KEY, OLD)
    encrypted = documented_encrypt(b"late", OLD, APP)
    opened = both.open(encrypted, query(encrypted))
    assert (opened.text, opened.key) == (b"late", 1)
    assert documented_decrypt(both.seal(b"reply", opened.key).encrypt, OLD) == (b"reply", APP)
    assert documented_decrypt(both.seal(b"reply").encrypt, KEY) == (b"reply", APP)


def test_wx_08_msg_signature_decides_and_not_the_other_signature() -> None:
    encrypted = documented_encrypt(b"hi", KEY, APP)
    good = query(encrypted)
    plain = documented_signature(TOKEN, good["timestamp"], good["nonce"])
    assert envelope().open(encrypted, good | {"signature": "of something else"}).text == b"hi"
    with pytest.raises(Refused, match="msg_signature"):
        envelope().open(encrypted, good | {"msg_signature": plain, "signature": plain})


def test_wx_08_a_foreign_receive_id_an_altered_byte_and_a_foreign_key_are_refused() -> None:
    foreign = documented_encrypt(b"hi", KEY, "wxsomebodyelse")
    with pytest.raises(Refused, match="another account"):
        envelope().open(foreign, query(foreign))
    own = documented_encrypt(b"hi", KEY, APP)
    altered = ("B" if own[0] == "A" else "A") + own[1:]
    with pytest.raises(Refused, match="msg_signature"):
        envelope().open(altered, query(own))
    other = documented_encrypt(b"hi", OLD, APP)
    with pytest.raises(Refused):
        envelope().open(other, query(other))


@pytest.mark.parametrize("padding", [b"\x00" * 32, b"\x21" * 32, b"\x02" * 31 + b"\x03", b"\x20" * 16])
def test_bad_padding_is_refused_and_never_an_error_of_another_kind(padding: bytes) -> None:
    body_length = 20 + len(b"hi") + len(APP)
    fill = padding[: 32 - body_length % 32].rjust(32 - body_length % 32, b"\x07")
    encrypted = documented_encrypt(b"hi", KEY, APP, padding=fill)
    with pytest.raises(Refused):
        envelope().open(encrypted, query(encrypted))


@pytest.mark.parametrize(
    "encrypted", ["", "a", "====", "AAAA", "AAAAAAAAAAAAAAAAAAAAAA==", "不是", "A" * 4000]
)
def test_what_is_no_cipher_text_is_refused(encrypted: str) -> None:
    with pytest.raises(Refused):
        envelope().open(encrypted, query(encrypted))


@pytest.mark.parametrize("timestamp", ["", "soon", "0", str(NOW - 601), str(NOW + 601), "9" * 400])
def test_a_timestamp_that_is_not_of_now_is_refused(timestamp: str) -> None:
    encrypted = documented_encrypt(b"hi", KEY, APP)
    with pytest.raises(Refused, match="timestamp"):
        envelope().open(encrypted, query(encrypted, timestamp))
    assert envelope().open(encrypted, query(encrypted, str(NOW - 599))).text == b"hi"


def test_an_empty_token_and_a_wrong_key_are_told_at_once() -> None:
    with pytest.raises(ValueError, match="token"):
        Envelope("", (KEY,), APP)
    with pytest.raises(ValueError, match="42 characters"):
        Envelope(TOKEN, (KEY[:-1],), APP)
    assert key_fault(KEY) == ""
    assert "43" in key_fault(KEY + "=")


def test_without_keys_only_signatures_are_checked() -> None:
    plain = Envelope(TOKEN, (), APP, clock=lambda: NOW)
    assert not plain.encrypts
    assert plain.verify(documented_signature(TOKEN, "1", "2"), "1", "2")
    assert not plain.verify(documented_signature(TOKEN, "1", "3"), "1", "2")
    assert not plain.verify("", "1", "2")
    encrypted = documented_encrypt(b"hi", KEY, APP)
    with pytest.raises(Refused):
        plain.open(encrypted, query(encrypted))
