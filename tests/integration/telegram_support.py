"""Stands where the bridge does: for tests that drive a Telegram channel against the fake Bot API."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from channels.base import Env, Inbound, Press
from channels.telegram.channel import TelegramChannel, TelegramConfig
from tests.fakes.channel_env import MemoryState
from tests.fakes.telegram import TOKEN


class Bridge:
    """Takes messages in; makes channels that share the notes, as processes of one bridge do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = MemoryState()
        self.got: list[Inbound] = []
        self.presses: list[Press] = []
        self.moves: list[tuple[str, str]] = []
        self.answer = ""
        self.refuse: Callable[[Inbound], bool] = lambda _: False
        self.channels: list[TelegramChannel] = []
        self.public_url = ""

    def text(self, key: str, language: str = "", /, **values: object) -> str:
        return key

    async def receive(self, inbound: Inbound) -> None:
        if self.refuse(inbound):
            raise RuntimeError("the store is full")
        self.got.append(inbound)

    async def press(self, press: Press) -> str:
        self.presses.append(press)
        return self.answer

    async def moved(self, old: str, new: str) -> None:
        self.moves.append((old, new))

    def env(self, gateway: str = "one") -> Env:
        return Env(
            self.state,
            self.text,
            self.folder / gateway,
            time.time,
            self.press,
            self.moved,
            self.public_url,
        )

    def make(
        self, url: str, token: str = TOKEN, name: str = "tg", gateway: str = "one", **settings: Any
    ) -> TelegramChannel:
        config = TelegramConfig.model_validate({"token": token, "base_url": url, **settings})
        return TelegramChannel(name, config, self.env(gateway))

    async def open(
        self, url: str, token: str = TOKEN, name: str = "tg", gateway: str = "one", **settings: Any
    ) -> TelegramChannel:
        channel = self.make(url, token, name, gateway, **settings)
        await channel.start(self.receive)
        self.channels.append(channel)
        return channel

    async def close(self) -> None:
        for channel in self.channels:
            await channel.stop()

    @property
    def texts(self) -> list[str]:
        return [inbound.text for inbound in self.got]


def shorten_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses between failed polls, and after a conflict."""
    monkeypatch.setattr("channels.telegram.condition._FIRST_PAUSE", 0.02)
    monkeypatch.setattr("channels.telegram.condition._LONGEST_PAUSE", 0.1)
    monkeypatch.setattr("channels.telegram.condition._REFUSED_PAUSE", 0.05)
    monkeypatch.setattr("channels.telegram.condition.PEACE", 1.0)
    monkeypatch.setattr("channels.telegram.polling.PEACE", 1.0)
