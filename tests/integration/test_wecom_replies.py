"""What a WeCom application sends: whole, paced, once; and files both ways."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from channels.base import (
    Attachment,
    Chunk,
    Flooded,
    Gone,
    NotSent,
    OutFile,
    Rejected,
    SendError,
    TooLarge,
    Unknown,
)
from channels.wecom.texts import TEXTS
from tests.fakes.wecom import AMR, KEY, PNG, FakeWecom
from tests.integration.wecom_house import Bridge, ref, show


@pytest.fixture
async def fake() -> AsyncIterator[FakeWecom]:
    async with FakeWecom() as server:
        yield server


@pytest.fixture
async def bridge(tmp_path: Path, fake: FakeWecom) -> AsyncIterator[Bridge]:
    async with AsyncExitStack() as stack:
        yield Bridge(tmp_path, fake, stack)


# -- sending -------------------------------------------------------------------------------------------------


async def test_wx_04_a_long_answer_arrives_whole_and_in_order(fake: FakeWecom, bridge: Bridge) -> None:
    channel = await bridge.open()
    words = "汉" * 700 + "😀" * 10
    await show(channel, ref(), words)
    pieces = fake.texts("ZhangSan")
    assert "".join(pieces) == words
    assert len(pieces) == 2


async def test_markdown_goes_as_markdown_only_where_it_is_switched_on(
    fake: FakeWecom, bridge: Bridge
) -> None:
    words = "# Plan\n\n**one** and `two`"
    await show(await bridge.open(), ref("a"), words)
    await show(await bridge.open(markdown=True), ref("b"), words)
    first, second = fake.shown["ZhangSan"]
    assert (first.kind, first.text) == ("text", "【Plan】\n\none and two")
    assert (second.kind, second.text) == ("markdown", words)


async def test_the_same_answer_twice_is_shown_twice(fake: FakeWecom, bridge: Bridge) -> None:
    channel = await bridge.open()
    for number in range(4):
        await show(channel, ref(f"r{number}"), "好的")
    assert fake.texts("ZhangSan") == ["好的"] * 4
    assert fake.copies == 0


@pytest.mark.parametrize("fault", ["slow", "cut", "gateway"])
async def test_wx_10_a_send_that_arrived_but_was_not_answered_shows_one_copy(
    fake: FakeWecom, bridge: Bridge, fault: Any
) -> None:
    channel = await bridge.open(timeout=0.3)
    fake.faults["message/send"].append(fault)
    (message_id,) = await show(channel, ref(), "很重要")
    assert message_id
    assert fake.texts("ZhangSan") == ["很重要"]
    assert fake.copies == 1


async def test_wx_10_a_gateway_that_stays_slow_is_asked_again_later_and_shows_one_copy(
    fake: FakeWecom, bridge: Bridge
) -> None:
    channel = await bridge.open(timeout=0.2)
    await show(channel, ref("r0"), "同样的话")
    fake.faults["message/send"].extend(["slow", "slow"])
    with pytest.raises(NotSent):
        await show(channel, ref(), "同样的话")
    await channel.stop()
    again = await bridge.open()  # a new process, the same notes
    await show(again, ref(), "同样的话")
    assert fake.texts("ZhangSan") == ["同样的话"] * 2, "one each of r0 and r1"
    assert fake.copies == 2


async def test_wx_10_after_the_window_an_unknown_send_is_reported_and_not_repeated(
    fake: FakeWecom, bridge: Bridge
) -> None:
    now = [1_700_000_000.0]
    fake.clock = lambda: now[0]
    channel = await bridge.open(timeout=0.2)
    fake.faults["message/send"].extend(["slow", "slow"])
    with pytest.raises(NotSent):
        await show(channel, ref(), "一次")
    now[0] += 1790
    sent = fake.calls["message/send"]
    with pytest.raises(Unknown):
        await show(channel, ref(), "一次")
    assert fake.calls["message/send"] == sent


async def test_a_dead_server_means_not_sent_and_the_next_try_delivers(
    fake: FakeWecom, bridge: Bridge
) -> None:
    channel = await bridge.open(base_url="http://127.0.0.1:9")
    with pytest.raises(NotSent):
        await show(channel, ref(), "x")
    await show(await bridge.open(), ref(), "x")
    assert fake.texts("ZhangSan") == ["x"]


async def test_more_than_thirty_a_minute_wait_and_none_is_dropped(fake: FakeWecom, bridge: Bridge) -> None:
    now = [1_700_000_000.0]
    fake.clock = lambda: now[0]
    channel = await bridge.open()
    waits = 0
    for number in range(70):
        try:
            await show(channel, ref(f"r{number}"), f"text {number}")
        except Flooded as error:
            waits += 1
            now[0] += error.retry_after
            await show(channel, ref(f"r{number}"), f"text {number}")
    assert fake.texts("ZhangSan") == [f"text {number}" for number in range(70)]
    assert fake.dropped["ZhangSan"] == 0
    assert waits == 2


async def test_the_fake_does_drop_in_silence(fake: FakeWecom, bridge: Bridge) -> None:
    """The test above would pass against a platform that drops nothing."""
    channel = await bridge.open()
    assert channel._api is not None
    for number in range(35):
        body = {"touser": "ZhangSan", "agentid": 1000002, "msgtype": "text", "text": {"content": str(number)}}
        await channel._api.post("message/send", body)
    assert fake.dropped["ZhangSan"] == 5


async def test_a_token_that_dies_early_is_renewed_once_and_the_message_is_shown(
    fake: FakeWecom, bridge: Bridge
) -> None:
    channel = await bridge.open()
    await show(channel, ref("a"), "one")
    fake.expire_tokens()
    await show(channel, ref("b"), "two")
    assert fake.texts("ZhangSan") == ["one", "two"]
    assert fake.calls["gettoken"] == 2


async def test_the_token_outlives_a_restart(fake: FakeWecom, bridge: Bridge) -> None:
    channel = await bridge.open()
    await show(channel, ref("a"), "one")
    await channel.stop()
    await show(await bridge.open(), ref("b"), "two")
    assert fake.calls["gettoken"] == 1


async def test_a_refused_token_starts_no_loop(fake: FakeWecom, bridge: Bridge) -> None:
    channel = await bridge.open()
    fake.faults["message/send"].extend([42001] * 10)
    with pytest.raises(NotSent):
        await show(channel, ref(), "x")
    assert fake.calls["message/send"] == 2


async def test_an_address_that_is_not_trusted_is_named_and_the_message_waits(
    fake: FakeWecom, bridge: Bridge
) -> None:
    channel = await bridge.open()
    fake.trusted = False
    with pytest.raises(NotSent):
        await show(channel, ref(), "x")
    health = channel.health()
    assert not health.ok
    assert "203.0.113.9" in health.cure
    assert "企业可信IP" in health.cure
    fake.trusted = True
    await show(channel, ref(), "x")
    assert channel.health().ok
    assert fake.texts("ZhangSan") == ["x"]


@pytest.mark.parametrize("polite", [True, False])
async def test_a_member_who_left_gets_nothing_and_the_reply_is_given_up(
    fake: FakeWecom, bridge: Bridge, polite: bool
) -> None:
    channel = await bridge.open()
    fake.polite = polite
    with pytest.raises(Gone):
        await show(channel, ref(member="WangWu"), "x")


async def test_frequency_blocks_hold_all_sends_back_and_last_longer_each_time(
    fake: FakeWecom, bridge: Bridge
) -> None:
    now = [1_700_000_000.0]
    fake.clock = lambda: now[0]
    channel = await bridge.open()
    fake.faults["message/send"].extend([45009, 45009])
    waits = []
    for _ in range(2):
        with pytest.raises(Flooded) as caught:
            await show(channel, ref(), "x")
        waits.append(caught.value.retry_after)
        calls = fake.calls["message/send"]
        with pytest.raises(Flooded):
            await show(channel, ref("other", "LiSi"), "y")
        assert fake.calls["message/send"] == calls, "no call while blocked"
        now[0] += caught.value.retry_after
    assert waits == [60.0, 300.0]
    await show(channel, ref(), "x")
    await show(channel, ref("other", "LiSi"), "y")
    assert (fake.texts("ZhangSan"), fake.texts("LiSi")) == (["x"], ["y"])


async def test_fifty_members_under_token_expiry_and_quota_errors_lose_nothing(
    fake: FakeWecom, bridge: Bridge
) -> None:
    now = [1_700_000_000.0]
    fake.clock = lambda: now[0]
    fake.members |= {f"user{number}": f"用户{number}" for number in range(50)}
    channel = await bridge.open()
    await show(channel, ref("first"), "warm")
    fake.expire_tokens()

    async def answer(number: int) -> None:
        for part in range(3):
            while True:
                try:
                    await channel.post(
                        ref(f"r{number}", f"user{number}"), part, Chunk(f"part {part}"), final=True
                    )
                    break
                except Flooded as error:
                    now[0] += error.retry_after
                except NotSent:
                    await asyncio.sleep(0)

    fake.faults["message/send"].extend([45009, -1, 45033, 45009, "gateway", -1])
    await asyncio.gather(*(answer(number) for number in range(50)))
    for number in range(50):
        assert fake.texts(f"user{number}") == ["part 0", "part 1", "part 2"]
    assert sum(fake.dropped.values()) == 0
    assert fake.calls["gettoken"] == 2, "one at the start, one for the expiry"


async def test_neither_tokens_nor_secrets_nor_words_are_logged(
    fake: FakeWecom, bridge: Bridge, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    channel = await bridge.open(timeout=0.2)
    await fake.say("ZhangSan", "very private words")
    fake.faults["message/send"].extend(["slow", "cut", 42001, 45033, 60020, 44004])
    raised = []
    for number in range(5):
        try:
            await show(channel, ref(f"r{number}"), "very private words")
        except SendError as error:
            raised.append(str(error))
    said = "\n".join((caplog.text, *raised))
    assert raised
    for secret in ("token-1", "agent-secret", "access_token=", "very private", KEY):
        assert secret not in said, secret


# -- files ---------------------------------------------------------------------------------------------------


def a_file(folder: Path, name: str, content: bytes, mime: str = "application/octet-stream") -> OutFile:
    path = folder / "out"
    path.mkdir(exist_ok=True)
    (path / name).write_bytes(content)
    return OutFile(str(path / name), name, mime)


@pytest.mark.parametrize(
    ("name", "content", "mime", "kind"),
    [
        ("a.png", PNG, "image/png", "image"),
        ("a.amr", AMR, "audio/amr", "voice"),
        ("a.mp4", b"0" * 64, "video/mp4", "video"),
        ("季度 报告:终稿.pdf", b"%PDF-1.7 " * 9, "application/pdf", "file"),
        ("lies.png", b"no picture at all", "image/png", "file"),
        ("a.mp3", b"ID3" + b"0" * 64, "audio/mpeg", "file"),
    ],
)
async def test_files_go_as_what_they_are(
    fake: FakeWecom, bridge: Bridge, tmp_path: Path, name: str, content: bytes, mime: str, kind: str
) -> None:
    channel = await bridge.open()
    await show(channel, ref(), "Here:", a_file(tmp_path, name, content, mime))
    words, sent = fake.shown["ZhangSan"]
    assert (words.text, sent.kind) == ("Here:", kind)
    media = fake.media[sent.body["media_id"]]
    assert (media.name, media.content) == (name.replace(":", ""), content)


@pytest.mark.parametrize("size", [5, 20 * 1024 * 1024 + 1])
async def test_a_file_that_wecom_does_not_take_is_named_instead(
    fake: FakeWecom, bridge: Bridge, tmp_path: Path, size: int
) -> None:
    channel = await bridge.open()
    await show(channel, ref(), "", a_file(tmp_path, "big.bin", b"0" * size))
    (words,) = fake.texts("ZhangSan")
    assert "big.bin" in words
    assert str(size) in words
    assert fake.calls["media/upload"] == 0


async def test_a_file_that_is_refused_is_named_instead(
    fake: FakeWecom, bridge: Bridge, tmp_path: Path
) -> None:
    channel = await bridge.open()
    fake.faults["media/upload"].append(41005)
    await show(channel, ref(), "", a_file(tmp_path, "odd.bin", b"0" * 64))
    assert fake.texts("ZhangSan") == [TEXTS["wecom.file_refused"][1].format(name="odd.bin")]


async def test_wx_10_a_file_whose_send_was_not_answered_shows_one_copy_after_a_restart(
    fake: FakeWecom, bridge: Bridge, tmp_path: Path
) -> None:
    channel = await bridge.open(timeout=0.2)
    file = a_file(tmp_path, "a.png", PNG, "image/png")
    fake.faults["message/send"].extend(["slow", "slow"])
    with pytest.raises(NotSent):
        await show(channel, ref(), "", file)
    await channel.stop()
    await show(await bridge.open(), ref(), "", file)
    assert [message.kind for message in fake.shown["ZhangSan"]] == ["image"]
    assert fake.calls["media/upload"] == 1


async def test_a_file_that_must_wait_is_uploaded_once(
    fake: FakeWecom, bridge: Bridge, tmp_path: Path
) -> None:
    now = [1_700_000_000.0]
    fake.clock = lambda: now[0]
    channel = await bridge.open()
    for number in range(30):
        await show(channel, ref(f"r{number}"), "x")
    file = a_file(tmp_path, "a.png", PNG, "image/png")
    with pytest.raises(Flooded) as caught:
        await show(channel, ref(), "", file)
    now[0] += caught.value.retry_after
    await show(channel, ref(), "", file)
    assert fake.calls["media/upload"] == 1
    assert fake.shown["ZhangSan"][-1].kind == "image"


async def test_a_members_file_is_fetched_within_its_bounds(
    fake: FakeWecom, bridge: Bridge, tmp_path: Path
) -> None:
    channel = await bridge.open()
    assert channel._api is not None
    media_id = await channel._api.upload("voice", "a.amr", AMR)
    await fake.deliver(fake.fields("ZhangSan", "voice", MediaId=media_id, Format="amr"))
    (attachment,) = bridge.got[0].attachments
    target = tmp_path / "got.amr"
    fake.expire_tokens()
    await channel.fetch(attachment, target, 1000)
    assert target.read_bytes() == AMR
    with pytest.raises(TooLarge):
        await channel.fetch(attachment, target, 10)
    with pytest.raises(Rejected):
        await channel.fetch(Attachment("image", "gone"), target, 1000)
