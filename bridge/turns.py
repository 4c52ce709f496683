"""From a stored message to what the agent reads, and from what it said to what is shown."""

from __future__ import annotations

import asyncio
import logging
import mimetypes
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from agent.events import FileRef, Outcome
from agent.history import Assistant, Entry, ImageRef, User
from agent.models.transcription import NotHeard, Transcriber
from agent.tools.base import Caller
from agent.turn import Part
from bridge.store.base import Waiting
from bridge.texts import text
from channels.base import (
    Attachment,
    Channel,
    ContextMessage,
    Inbound,
    Outbound,
    OutFile,
    SendError,
    TooLarge,
)

log = logging.getLogger("causeway.turns")

#: Largest attachment that is fetched by default, in bytes (what Telegram's own server gives to bots).
MAX_ATTACHMENT = 20 * 1024 * 1024
_FETCH_DEADLINE = 120.0
_LONGEST_QUOTE = 2000


@dataclass(frozen=True, slots=True)
class Intake:
    """What it takes to bring people's messages before the agent. `hear` writes voice messages down (None:
    nothing is configured for that); `max_bytes` is the largest attachment."""

    hear: Transcriber | None = None
    max_bytes: int = MAX_ATTACHMENT


async def build_part(
    batch: Sequence[Waiting], channel: Channel, folder: Path, caller: Caller, intake: Intake
) -> Part:
    """Fetch what came with messages and put them into words, in their order. Never fails for a faulty
    attachment. In a chat with more than one person each message begins with its speaker."""
    images: list[ImageRef] = []
    sections: list[str] = []
    before = ""
    for waiting in batch:
        inbound = waiting.inbound
        lines = []
        for number, attachment in enumerate(inbound.attachments):
            stem = f"r{waiting.seq}-{number}"
            image, line = await _fetch(attachment, stem, channel, folder, inbound.sender.language, intake)
            if image is not None:
                images.append(image)
            lines.append(line)
        shared = inbound.address.kind != "direct"
        said = own_words(inbound.text.strip()) if shared else inbound.text.strip()
        parts = [_quoted(inbound), said, "\n".join(line for line in lines if line)]
        body = "\n\n".join(part for part in parts if part)
        if shared and inbound.sender.id != before:
            body = f"[{speaker(inbound.sender.name, inbound.sender.id)} writes]\n{body}"
        before = inbound.sender.id
        if body:
            sections.append(body)
    return Part(caller, "\n\n".join(sections), tuple(images), tuple(waiting.seq for waiting in batch))


def speaker(name: str, id: str) -> str:
    """A display name that can imitate nothing: no brackets, no line ends, no control characters, bounded."""
    clean = _plain(name)[:64]
    return f"{clean} (id {id})" if clean else f"id {id}"


def _plain(name: str) -> str:
    return "".join(c for c in name if c.isprintable() and _folded(c) not in "[]<>").strip()


def own_words(said: str) -> str:
    """What a person wrote, in a chat of several: a line that begins with a bracket (as only the bridge's own
    lines do, such as who writes) is marked, so that it passes for none of those."""
    if "[" not in unicodedata.normalize("NFKC", said):
        return said
    return "\n".join(f"\\{line}" if _begins_with_bracket(line) else line for line in said.splitlines())


def _begins_with_bracket(line: str) -> bool:
    first = next((c for c in line if not c.isspace() and unicodedata.category(c) not in ("Cf", "Cc")), "")
    return _folded(first).startswith("[")


def _folded(char: str) -> str:
    """A character as it looks: a wide bracket is a bracket."""
    return unicodedata.normalize("NFKC", char) or " "


def seed(context: Sequence[ContextMessage], *, shared: bool = False) -> tuple[Entry, ...]:
    """Earlier talk as history entries; `shared`: of several people. A client's system message is its person's
    wish, not our system."""
    entries: list[Entry] = []
    for message in context:
        if message.role == "assistant":
            entries.append(Assistant("", message.text))
        elif message.role == "system":
            entries.append(User("", f"[Instructions for this conversation]\n{message.text}"))
        elif shared:
            head = f"[{name} wrote]\n" if (name := _plain(message.name)[:64]) else ""
            entries.append(User("", head + own_words(message.text)))
        else:
            entries.append(User("", message.text))
    return tuple(entries)


def _quoted(inbound: Inbound) -> str:
    if inbound.quote is None or not inbound.quote.text.strip():
        return ""
    lines = inbound.quote.text.strip()[:_LONGEST_QUOTE].splitlines()
    who = speaker(inbound.quote.sender, "unknown") if inbound.quote.sender else ""
    head = f"[In reply to{' ' + who if who else ''}:]\n"
    return head + "\n".join(f"> {line}" for line in lines)


async def _fetch(
    attachment: Attachment, name: str, channel: Channel, folder: Path, language: str, intake: Intake
) -> tuple[ImageRef | None, str]:
    suffix = Path(attachment.name).suffix or mimetypes.guess_extension(attachment.mime or "") or ""
    stem = _for_file(Path(attachment.name).stem)[:60] or attachment.kind
    relative = f"received/{name}-{stem}{_for_file(suffix)[:12]}"
    target = folder / relative
    label = _plain(attachment.name)[:100] or attachment.kind
    try:
        await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
        async with asyncio.timeout(_FETCH_DEADLINE):
            await channel.fetch(attachment, target, intake.max_bytes)
    except TooLarge as error:
        limit = max(1, (error.limit or intake.max_bytes) // (1024 * 1024))
        return None, text("attachment.too_large", language, name=label, limit=limit)
    except (SendError, TimeoutError, OSError) as error:
        log.warning("attachment %s not fetched: %s", name, error)
        return None, text("attachment.failed", language, name=label)
    mime = await asyncio.to_thread(_picture, target) if attachment.kind == "image" else ""
    if mime:
        return ImageRef(relative, mime), ""
    if attachment.kind == "audio":
        return None, await _heard(target, relative, language, intake)
    return None, text("attachment.file", language, path=relative)


def _for_file(name: str) -> str:
    """A part of a name that is safe on every disk, and in a line that the model reads."""
    return re.sub(r"[^\w.-]+", "_", name)


_HEADS = ((b"\x89PNG", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))


def _picture(path: Path) -> str:
    """The type of a picture that models take, by its first bytes: platforms name it wrongly or not at all."""
    with path.open("rb") as file:
        head = file.read(12)
    if head.startswith(b"RIFF") and head.endswith(b"WEBP"):
        return "image/webp"
    return next((mime for start, mime in _HEADS if head.startswith(start)), "")


async def _heard(path: Path, relative: str, language: str, intake: Intake) -> str:
    """A voice message in words; or why there are none."""
    if intake.hear is None:
        return text("attachment.not_heard", language, path=relative)
    try:
        words = await intake.hear.text(path, language)
    except NotHeard as error:
        log.warning("a voice message was not written down: %s", error)
        return text("attachment.hearing_failed", language, path=relative)
    return text("attachment.heard", language, path=relative, words=" / ".join(words.splitlines()))


# -- what is shown -------------------------------------------------------------------------------------


def compose(outcome: Outcome, folder: Path, language: str) -> Outbound:
    """The reply as it is shown: the text, a sentence about a fault, and the files that may be sent."""
    said, found, refused = local_media(outcome.text, folder)
    notes = [text("file.not_sent", language, name=name) for name in refused]
    if outcome.failure == "stopped":
        notes.append(text("stopped.note", language))
    elif outcome.failure:
        notes.append(text(f"failure.{outcome.failure}", language))
    files = [sendable(ref, folder) for ref in (*outcome.files, *found)]
    unique = {file.path: file for file in files if file is not None}
    body = "\n\n".join(part for part in (said.strip(), *notes) if part)
    return Outbound(body, tuple(unique.values()))


def sendable(ref: FileRef, folder: Path) -> OutFile | None:
    """A file of the session's folder as the channel gets it; None when it is gone or lies outside."""
    path = within(folder, ref.path)
    if path is None:
        return None
    return OutFile(str(path), ref.name, ref.mime, ref.caption)


def within(folder: Path, relative: str) -> Path | None:
    """The real path of a regular file in `folder` (links followed), or None."""
    if not relative or "\0" in relative or Path(relative).is_absolute():
        return None
    try:
        root = folder.resolve(strict=True)
        path = (root / relative).resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    return path if path.is_relative_to(root) and path.is_file() else None


_IMAGE = re.compile(r"!\[([^\]\n]*)\]\(\s*<?([^)>\s]+)>?(?:\s+\"[^\"\n]*\")?\s*\)")
_FENCE = re.compile(r"^\s{0,3}(`{3,}|~{3,})")
_REMOTE = re.compile(r"^(?:https?|mailto|tg):", re.IGNORECASE)


def local_media(said: str, folder: Path) -> tuple[str, list[FileRef], list[str]]:
    """Pictures that the text embeds by a local path: those of the session's folder become files of the reply,
    all others are left out and named. Code blocks stay as they are."""
    if "![" not in said:
        return said, [], []
    files: list[FileRef] = []
    refused: list[str] = []

    def replace(match: re.Match[str]) -> str:
        label, target = match.group(1), match.group(2)
        if _REMOTE.match(target):
            return match.group(0)
        name = Path(unquote(target)).name or target
        if within(folder, unquote(target)) is not None:
            mime = mimetypes.guess_type(name)[0] or "application/octet-stream"
            files.append(FileRef(unquote(target), name, mime, label[:1000]))
        else:
            refused.append(name[:80])
        return label

    lines: list[str] = []
    fence = ""
    for line in said.split("\n"):
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark.group(1)
        elif fence and mark and mark.group(1).startswith(fence) and not line.strip(" `~"):
            fence = ""
        lines.append(line if fence or mark else _IMAGE.sub(replace, line))
    return "\n".join(lines), files, refused
