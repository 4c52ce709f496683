"""Conversations in which nothing happened for longer than `sessions.retention_days` go, with their files."""

from __future__ import annotations

import time
from pathlib import Path

from bridge.app import App
from bridge.config import load_config
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
