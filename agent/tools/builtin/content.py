"""What a file's bytes are: a picture, text in some encoding, or something that is no text."""

from __future__ import annotations

from dataclasses import dataclass

_SNIFFED = 8192


def picture_type(data: bytes) -> str:
    """The MIME type of a picture that models can look at, by its first bytes; empty for anything else."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return ""


@dataclass(frozen=True, slots=True)
class Text:
    """A text and how it was written, so that it can be written back the same way."""

    text: str
    encoding: str
    mark: bytes = b""

    def encode(self, text: str) -> bytes:
        """Raises UnicodeEncodeError for a character that the encoding lacks."""
        return self.mark + text.encode(self.encoding)


_MARKS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))


def decode(data: bytes, *, cut: bool = False) -> Text | None:
    """The text of a file: by its byte-order mark, else UTF-8, else Latin-1. None when it is no text.

    `cut`: the data are the beginning of something longer, so the last character may be incomplete.
    """
    mark, encoding = next((known for known in _MARKS if data.startswith(known[0])), (b"", "utf-8"))
    body = data[len(mark) :]
    if mark or b"\0" not in data[:_SNIFFED]:
        try:
            return Text(body.decode(encoding), encoding, mark)
        except UnicodeDecodeError as error:
            if cut and error.start >= len(body) - 4:
                return Text(body[: error.start].decode(encoding), encoding, mark)
    if b"\0" in data[:_SNIFFED]:
        return None
    controls = sum(byte < 32 and byte not in b"\t\n\r\f\x1b" for byte in data[:_SNIFFED])
    if controls * 20 > min(len(data), _SNIFFED):
        return None
    return Text(data.decode("latin-1"), "latin-1")
