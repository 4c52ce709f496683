"""A reply cut into messages, and the Block Kit payloads that show them.

Each message fits in both dialects, so that any of them can still be sent as mrkdwn when Slack refuses the
`markdown` block. Limits (docs.slack.dev, and measured by others): `text` of chat.update 4,000 characters; a
message about 13,200, in 50 blocks as Slack cuts a `markdown` block up; a table 100 rows; an actions block
25 buttons; a button's text 75 characters, its value 2,000.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from channels.base import Choice, Chunk, Outbound
from channels.slack.dialects import escape, pings, write
from channels.slack.format import Atom, Block, parse, visible
from channels.text import good_cut, grapheme_cut, split_plain

#: Longest message in characters, escapes included.
MAX_TEXT = 3800
_MAX_ROWS = 100
#: Headings, tables and rules become blocks of their own, each with one more for the text behind it.
_MOST_SPECIAL = 20
_MAX_BUTTON = 75
_BUTTONS_A_BLOCK = 25
_MAX_SECTION = 3000
#: Beginning of the `action_id` of our answers.
ACTION = "choice:"
_Json: TypeAlias = dict[str, Any]
Form: TypeAlias = Literal["markdown", "mrkdwn"]


# -- chunks ------------------------------------------------------------------------------------------


def render(outbound: Outbound) -> list[Chunk]:
    """A reply as chunks: the text, then each file with as much of its caption as one message holds."""
    chunks = text_chunks(outbound.text)
    for file in outbound.files:
        head, *rest = text_chunks(file.caption) or [Chunk("")]
        chunks.append(replace(head, file=file))
        chunks += rest
    return chunks


def text_chunks(text: str, limit: int = MAX_TEXT) -> list[Chunk]:
    """Chunks of at most `limit` characters in either dialect. `text` is standard Markdown without the end of
    a fence that is still open (`close`); `steady` of its characters stay when the source only grows."""
    blocks = parse(text)
    if not blocks and text.strip():
        blocks = [Block("text", atoms=(Atom("text", text.strip()),))]
    chunks = []
    for page in pages(blocks, limit):
        shown, plain = write(page, "markdown"), write(page, "mrkdwn")
        form: Form = "mrkdwn" if pings(page) else "markdown"
        data = {
            "mrkdwn": plain.text + plain.close,
            "form": form,
            "steady": shown.steady,
            "close": shown.close,
        }
        chunks.append(Chunk(shown.text, data))
    for chunk in chunks[:-1]:
        chunk.data["steady"] = len(chunk.text)
    return chunks


def pages(blocks: Sequence[Block], limit: int) -> list[list[Block]]:
    """The blocks in groups that fit into `limit`. A block that does not fit is cut where it stands while a
    quarter of the message is free, so that a message does not change any more once it is full."""
    found: list[list[Block]] = []
    page: list[Block] = []
    used = special = 0
    queue = deque(blocks)

    def turn() -> None:
        nonlocal used, special
        carried: list[Block] = []
        while len(page) > 1 and page[-1].kind == "heading":
            carried.append(page.pop())
        queue.extendleft(carried)
        if page:
            found.append(page.copy())
        page.clear()
        used = special = 0

    while queue:
        block = queue.popleft()
        counts = block.kind in ("heading", "table", "rule")
        room = limit - used
        size = _size(block) + 2 if _least(block) <= room else limit + 1
        if size <= room and len(block.rows) <= _MAX_ROWS and special + counts <= _MOST_SPECIAL:
            page.append(block)
            used += size
            special += counts
            continue
        if special + counts <= _MOST_SPECIAL and (not page or room >= limit // 4):
            pieces = _split(block, room - 2, sure=not page)
            queue.extendleft(reversed(pieces[1:]))
            if pieces[0] is not None:
                page.append(pieces[0])
                used, special = used + _size(pieces[0]) + 2, special + counts
                continue
        else:
            queue.appendleft(block)
        turn()
    return [*found, page] if page else found


def _size(block: Block) -> int:
    written = (write([block], "markdown", hide=False), write([block], "mrkdwn", hide=False))
    return max(len(one.text) + len(one.close) for one in written)


def _least(block: Block) -> int:
    """A size that is quickly known and not too large."""
    return len(block.code) + sum(len(atom.text) for atom in block.atoms if atom.kind in ("text", "code"))


def _split(block: Block, room: int, *, sure: bool) -> list[Any]:
    """[what fits into `room` or None, the rest …]. `sure`: a whole message is free, so something must fit."""
    if block.kind == "code":
        return _split_code(block, room, sure=sure)
    if block.kind == "table":
        return _split_table(block, room, sure=sure)
    return _split_text(block, room, sure=sure)


def _later(block: Block, **changes: Any) -> Block:
    """What follows of a block: its list items have their markers already."""
    lead = tuple(mark._replace(first=False) for mark in block.lead)
    return replace(block, lead=lead, gap=1, **changes)


def _most(high: int, room: int, cut: Callable[[int], Block]) -> int:
    """The largest n up to `high` for which `cut(n)` fits into `room`; 0 when none does."""
    return bisect_left(range(1, high + 1), True, key=lambda n: _size(cut(n)) > room)


def _split_code(block: Block, room: int, *, sure: bool) -> list[Any]:
    lines = block.code.split("\n")
    most, left = 0, room  # more lines cannot fit
    while most < len(lines) - 1 and left >= len(lines[most]):
        left -= len(lines[most]) + 1
        most += 1
    fits = _most(most, room, lambda n: replace(block, code="\n".join(lines[:n]), open=False))
    if fits:
        head, rest = "\n".join(lines[:fits]), "\n".join(lines[fits:])
    elif not sure:
        return [None, block]
    else:  # one line is longer than a message
        at = min(len(lines[0]), room)
        while at > 1 and _size(replace(block, code=block.code[:at], open=False)) > room:
            at = at * 3 // 4
        at = grapheme_cut(block.code, 0, at)
        head, rest = block.code[:at], block.code[at:].removeprefix("\n")
    return [replace(block, code=head, open=False), _later(block, code=rest)]


def _split_table(block: Block, room: int, *, sure: bool) -> list[Any]:
    head, *rows = block.rows
    fits = _most(min(len(rows), _MAX_ROWS - 1), room, lambda n: replace(block, rows=(head, *rows[:n])))
    if fits:
        first = replace(block, rows=(head, *rows[:fits]))
        return [first, _later(block, rows=(head, *rows[fits:]))] if rows[fits:] else [first]
    if not sure:
        return [None, block]
    # A row fills more than a message: no table any more.
    lines = [
        replace(block, kind="text", rows=(), align=(), gap=1, atoms=_row_line(row)) for row in block.rows
    ]
    return [None, *lines]


def _row_line(row: Sequence[tuple[Atom, ...]]) -> tuple[Atom, ...]:
    line: list[Atom] = []
    for number, cell in enumerate(row):
        line += [Atom("text", " — "), *cell] if number else cell
    return tuple(line)


def _split_text(block: Block, room: int, *, sure: bool) -> list[Any]:
    text = visible(block.atoms)
    at = min(len(text), room)
    while at > 1 and _size(replace(block, kind="text", atoms=_cut(block.atoms, at)[0])) > room:
        at = at * 4 // 5
    at = max(at, 1)
    if at < len(text):
        at = good_cut(text, 0, at)
    head, rest = (replace(block, kind="text", atoms=part) for part in _cut(block.atoms, at))
    if _size(head) > room:
        # Not even a beginning fits; in an empty message that is a link whose target is too long to be one.
        return [None, replace(block, kind="text", atoms=tuple(_unlinked(block.atoms))) if sure else block]
    return [head, _later(rest)] if visible(rest.atoms).strip() else [head]


def _unlinked(atoms: Sequence[Atom]) -> Iterator[Atom]:
    for atom in atoms:
        if atom.text != "link" or atom.kind not in ("open", "close"):
            yield atom
        elif atom.kind == "close":
            yield Atom("text", f" ({atom.source})")


def _cut(atoms: Sequence[Atom], at: int) -> tuple[tuple[Atom, ...], tuple[Atom, ...]]:
    """A line in two, after `at` visible characters; what is open there is closed and opened again. Blanks
    beside the cut go: the border between two messages stands for them."""
    open_: list[Atom] = []
    head: list[Atom] = []
    rest: list[Atom] = []
    for index, atom in enumerate(atoms):
        if atom.kind == "open":
            open_.append(atom)
        elif atom.kind == "close":
            open_.pop()
        elif len(atom.text) > at:
            rest = [atom._replace(text=atom.text[at:], source=""), *atoms[index + 1 :]]
            head += [atom._replace(text=atom.text[:at], source="")] if at else []
            break
        else:
            at -= len(atom.text)
        head.append(atom)
    else:
        return tuple(head), ()
    closing = open_.copy()
    while head and (
        head[-1].kind == "open" or (head[-1].kind in ("text", "break") and not head[-1].text.rstrip())
    ):
        if head.pop().kind == "open":
            closing.pop()
    if head and head[-1].kind == "text":
        head[-1] = head[-1]._replace(text=head[-1].text.rstrip(), source=head[-1].source.rstrip())
    while rest and rest[0].kind in ("text", "break") and not rest[0].text.lstrip():
        rest.pop(0)
    if rest and rest[0].kind == "text":
        rest[0] = rest[0]._replace(text=rest[0].text.lstrip(), source=rest[0].source.lstrip())
    return (*head, *(atom._replace(kind="close") for atom in reversed(closing))), (*open_, *rest)


# -- payloads ----------------------------------------------------------------------------------------


def payload(chunk: Chunk, *, plain: bool = False) -> _Json:
    """What shows a chunk: a `markdown` block with mrkdwn for notifications, or mrkdwn alone (`plain`, and
    where code could ping in Markdown)."""
    mrkdwn = str(chunk.data.get("mrkdwn") or chunk.text)
    if plain or chunk.data.get("form") == "mrkdwn":
        return {"text": mrkdwn, "blocks": []}
    text = chunk.text + str(chunk.data.get("close") or "")
    return {"text": mrkdwn, "blocks": [{"type": "markdown", "text": text}]}


def question(chunk: Chunk, choices: Sequence[Choice], *, plain: bool = False) -> _Json:
    """A question with its answers as buttons. Labels that a button cannot hold stand in the text as well."""
    shown = payload(chunk, plain=plain)
    long = "\n".join(f"• {escape(choice.label)}" for choice in choices if len(choice.label) > _MAX_BUTTON)
    parts = [] if shown["blocks"] else split_plain(shown["text"], _MAX_SECTION)
    blocks = [*shown["blocks"], *map(section, parts + split_plain(long, _MAX_SECTION))]
    for start in range(0, len(choices), _BUTTONS_A_BLOCK):
        buttons = [_button(choice) for choice in choices[start : start + _BUTTONS_A_BLOCK]]
        blocks.append({"type": "actions", "elements": buttons})
    return {"text": shown["text"], "blocks": blocks}


def _button(choice: Choice) -> _Json:
    label = choice.label if len(choice.label) <= _MAX_BUTTON else choice.label[: _MAX_BUTTON - 1] + "…"
    button: _Json = {
        "type": "button",
        "action_id": f"{ACTION}{choice.id}",
        "value": choice.id,
        "text": {"type": "plain_text", "text": label, "emoji": True},
    }
    return button | ({"style": choice.style} if choice.style else {})


def section(mrkdwn: str) -> _Json:
    return {"type": "section", "text": {"type": "mrkdwn", "text": mrkdwn}}
