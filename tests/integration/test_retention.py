"""Conversations in which nothing happened for longer than `sessions.retention_days` go, with their files."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from bridge.app import App
from bridge.config import load_config
from bridge.house_admin import alone
from bridge.keys import address_of, session_key
from channels.base import Address, Chunk, Inbound, OutFile, ReplyRef, Sender
from tests.harness import clean_environ, say_by_api, write_config

_DAY = 24 * 3600.0


async def test_an_old_conversation_is_deleted_with_its_files_and_a_young_one_stays(tmp_path: Path) -> None:
    ahead = [0.0]
    settings = {"channels": {"api": {}}, "sessions": {"retention_days": 30}}
    config = load_config(write_config(tmp_path, settings), clean_environ(tmp_path))
    app = App(config, clock=lambda: time.time() + ahead[0])
    await app.start()
    try:
        await say_by_api(app, "hello", session="old")
        ahead[0] = 20 * _DAY
        await say_by_api(app, "hello", session="young")
        keys = {one.key for one in await app.store.sessions()}
        old, young = (next(key for key in keys if name in key) for name in ("old", "young"))
        for key in (old, young):
            folder = app.session_folder(key)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "note.txt").write_text("kept")
        ahead[0] = 31 * _DAY
        await app.forget()
        assert {one.key for one in await app.store.sessions()} == {young}
        assert not app.session_folder(old).exists()
        assert (app.session_folder(young) / "note.txt").read_text() == "kept"
    finally:
        await app.stop(grace=1)


PAGE, CHAT = Address("web", "visitor"), "web:direct:visitor"


async def _talk(app: App, folder: Path, id: str) -> Path:
    """A conversation on the page, with a file in the answer; where the page's copy of that file lies."""
    await app.receive(Inbound(id, PAGE, Sender("local"), "hello"))
    async with asyncio.timeout(20):
        while not await app.store.channel_state("web").read("chat:visitor"):
            await asyncio.sleep(0.01)
    picture = folder / "picture.png"
    picture.write_bytes(b"\x89PNG")
    ref = ReplyRef("r9", PAGE, "1")
    await app.channels["web"].post(ref, 0, Chunk("", file=OutFile(str(picture), "picture.png")), final=True)
    [copy] = (app.workspace / "channels" / "web" / "files").iterdir()
    return copy


async def test_what_the_page_keeps_of_a_conversation_goes_with_it(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path, {"channels": {"web": {}}}), clean_environ(tmp_path))
    app = App(config)
    await app.start()
    try:
        copy = await _talk(app, tmp_path, "1")
        state = app.store.channel_state("web")
        await app.forget_session(CHAT)
        assert await state.read("chat:visitor") == []
        assert not copy.exists()
        assert await state.get(f"file:{copy.name}") is None
        assert await app.store.history.load(CHAT) == []
        copy = await _talk(app, tmp_path, "2")
    finally:
        await app.stop(grace=1)
    # The same without a bridge, as `causeway sessions delete` does it.
    async with alone(config, time.time) as desk:
        await desk.forget(CHAT)
        assert await desk.store.channel_state("web").read("chat:visitor") == []
        assert not copy.exists()


def test_a_sessions_place_is_read_from_its_key() -> None:
    for address in (
        Address("telegram", "7"),
        Address("my slack", "C:1", "channel", "17.5:a"),
        Address("wecom", "群", "group"),
    ):
        assert address_of(session_key(address)) == address
        by_person = session_key(address, "p", "person_in_chat")
        assert address_of(by_person) == address
    assert address_of(session_key(Address("t", "7"), "p", "person")) is None
    assert address_of(session_key(Address("t", "7" * 300))) is None
