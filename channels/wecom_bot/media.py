"""Files both ways: fetched from WeCom's links and decrypted, uploaded in parts, and pictures inside a stream.

Incoming files lie encrypted (AES-256-CBC, iv = the key's first 16 bytes, PKCS#7 to 32) behind links that work
for five minutes; on a long connection each has its own key, else it is the EncodingAESKey.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import aiohttp

from channels.base import Attachment, NotSent, OutFile, Rejected, TooLarge
from channels.wecom_bot.api import UPLOAD_FINISH, UPLOAD_INIT, UPLOAD_PART, Data
from channels.wecom_bot.config import MAX_PICTURE, MAX_UPLOAD, MIB, MIN_FILE
from channels.wecom_bot.config import UPLOAD_PART as PART

_DOWNLOAD = aiohttp.ClientTimeout(total=90, sock_connect=10, sock_read=30)
#: Decryption goes block by block, so a large file never lies in memory whole.
_BLOCK = 256 * 1024
_PADDING = 32
Call = Callable[[str, Data], Awaitable[Data]]


async def fetch(
    http: aiohttp.ClientSession, attachment: Attachment, keys: Sequence[str], target: Path, max_bytes: int
) -> None:
    """Download and decrypt to `target`. `keys`: those to try when the attachment has none of its own. Raises
    TooLarge, NotSent or Rejected."""
    try:
        ref = json.loads(attachment.ref)
        url, own = str(ref["url"]), str(ref["key"])
    except (ValueError, KeyError, TypeError):
        raise Rejected("the note of this attachment cannot be read") from None
    sealed = target.with_name(target.name + ".sealed")
    try:
        await _download(http, url, sealed, max_bytes + _PADDING)
        await asyncio.to_thread(_decrypt, sealed, target, [own] if own else list(keys))
    finally:
        await asyncio.to_thread(sealed.unlink, missing_ok=True)


async def _download(http: aiohttp.ClientSession, url: str, target: Path, limit: int) -> None:
    try:
        async with http.get(url, timeout=_DOWNLOAD) as response:
            if response.status in (403, 404, 410):
                raise Rejected(
                    "WeCom's link to this file no longer works (it does for 5 minutes); send it again"
                )
            if response.status >= 500:
                raise NotSent(f"WeCom's file server answered {response.status}")
            if response.status != 200:
                raise Rejected(f"WeCom's file server answered {response.status}")
            if (response.content_length or 0) > limit:
                raise TooLarge(f"the file has {response.content_length} bytes; {limit} can be fetched")
            size = 0
            with await asyncio.to_thread(target.open, "wb") as file:
                async for block in response.content.iter_chunked(_BLOCK):
                    size += len(block)
                    if size > limit:
                        raise TooLarge(f"the file has more than {limit} bytes")
                    await asyncio.to_thread(file.write, block)
    except (aiohttp.ClientError, TimeoutError) as error:
        # Not the error's own words: they hold the link, which is all that it takes to read the file.
        raise NotSent(f"the file could not be fetched ({type(error).__name__})") from None


def _decrypt(sealed: Path, target: Path, keys: Sequence[str]) -> None:
    if not keys:
        raise Rejected("WeCom sent no key for this file")
    size = sealed.stat().st_size
    if not size or size % 16:
        raise Rejected("the file arrived damaged (no whole cipher blocks); send it again")
    for number, key in enumerate(keys):
        try:
            _decrypt_with(sealed, target, key)
        except ValueError:
            target.unlink(missing_ok=True)
            if number == len(keys) - 1:
                raise Rejected("the file cannot be decrypted: another key or a damaged file") from None
        else:
            return


def _decrypt_with(sealed: Path, target: Path, text: str) -> None:
    """Raises ValueError when the key does not fit."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        raise ValueError("the key is no base64") from None
    if len(key) != 32:
        key = text.encode()
    decryptor = Cipher(algorithms.AES(key), modes.CBC(key[:16])).decryptor()
    with sealed.open("rb") as source, target.open("wb") as out:
        last = b""
        while block := source.read(_BLOCK):
            plain = last + decryptor.update(block)
            out.write(plain[:-_PADDING])
            last = plain[-_PADDING:]
        last += decryptor.finalize()
        padding = last[-1]
        if not 1 <= padding <= _PADDING or last[-padding:] != bytes([padding]) * padding:
            raise ValueError("the padding is wrong")
        out.write(last[:-padding])


# -- out -----------------------------------------------------------------------------------------------


def kind_of(file: OutFile) -> str:
    """How WeCom shows a file: image (JPG, PNG), video (MP4), voice (AMR) or file."""
    name = file.name.lower()
    if is_picture(file):
        return "image"
    if file.mime == "video/mp4" or name.endswith(".mp4"):
        return "video"
    return "voice" if name.endswith(".amr") else "file"


def is_picture(file: OutFile) -> bool:
    return file.mime in ("image/png", "image/jpeg") or file.name.lower().endswith((".png", ".jpg", ".jpeg"))


def read(file: OutFile) -> tuple[str, bytes] | None:
    """(kind, bytes); None for a file that WeCom does not take. Blocks: call it in a thread."""
    try:
        size = Path(file.path).stat().st_size
        if not MIN_FILE <= size <= MAX_UPLOAD["file"]:
            return None
        kind = kind_of(file)
        return (kind if size <= MAX_UPLOAD[kind] else "file"), Path(file.path).read_bytes()
    except OSError as error:
        raise Rejected(f"{file.name} cannot be read: {error.strerror}") from None


async def upload(call: Call, kind: str, name: str, data: bytes) -> str:
    """Upload in parts; returns the media id (valid for 3 days). Nothing is shown by it, so it may be
    repeated."""
    parts = [data[at : at + PART] for at in range(0, len(data), PART)]
    opened = await call(
        UPLOAD_INIT,
        {
            "type": kind,
            "filename": name,
            "total_size": len(data),
            "total_chunks": len(parts),
            "md5": hashlib.md5(data, usedforsecurity=False).hexdigest(),
        },
    )
    upload_id = opened.get("upload_id")
    for number, part in enumerate(parts):
        encoded = (await asyncio.to_thread(base64.b64encode, part)).decode()
        await call(UPLOAD_PART, {"upload_id": upload_id, "chunk_index": number, "base64_data": encoded})
    media_id = (await call(UPLOAD_FINISH, {"upload_id": upload_id})).get("media_id")
    if not media_id:
        raise NotSent("WeCom gave no media id for an uploaded file")
    return str(media_id)


def picture(file: OutFile) -> Data | None:
    """A picture for a stream's last packet; None when it cannot be one. Blocks: call it in a thread."""
    with suppress(OSError):
        if MIN_FILE <= Path(file.path).stat().st_size <= MAX_PICTURE:
            data = Path(file.path).read_bytes()
            digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
            return {
                "msgtype": "image",
                "image": {"base64": base64.b64encode(data).decode(), "md5": digest},
            }
    return None


def size_in_mb(kind: str) -> int:
    return MAX_UPLOAD[kind] // MIB
