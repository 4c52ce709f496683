"""The machine under the bridge: no file descriptors left, a clock that jumps back, faults that repeat."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from agent.tools.base import Caller
from agent.turn import Approval
from bridge.access import Access, AccessRule, Grants
from bridge.approvals import Approvals
from bridge.ledger import Ledger, UseLimits
from bridge.log import LoopFaults, Repeats
from bridge.notes import LONGEST_MOUNT, Notes
from bridge.pairing import SECONDS, Pairing
from bridge.store.sqlite import SqliteStore
from channels.base import Address, Limits, ReplyRef
from channels.wechat.passive import Part, Person
from channels.wechat.tokens import NoToken, Tokens
from channels.wecom.sending import _fit as fit
from channels.wecom_bot.exchanges import Pace
from tests.chaos.faults_support import at_start, echo, limit, page, running, telegram
from tests.fakes.channel import Room, RoomConfig, message
from tests.fakes.llm import ScriptedModel
from tests.fakes.telegram import FakeTelegram

DAY = 86_400.0
WEEK = 7 * DAY


@pytest.fixture
async def fake() -> AsyncIterator[FakeTelegram]:
    async with FakeTelegram() as made:
        yield made


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel(echo).running() as made:
        yield made


# -- file descriptors --------------------------------------------------------------------------------------


async def test_without_file_descriptors_connections_wait_nothing_spins_and_nothing_is_lost(
    tmp_path: Path, fake: FakeTelegram, model: ScriptedModel
) -> None:
    async with running(tmp_path, telegram(fake, model)) as process:
        fake.say(1, "before")
        await fake.wait_for(lambda: fake.chat(1).texts == ["re before"], 20)
        assert (await page(process, "/healthz"))[0] == 200
        used = max(int(line.name) for line in Path(f"/proc/{process.pid}/fd").iterdir())
        limit(process, resource.RLIMIT_NOFILE, used + 1)
        host, port = process.url.removeprefix("http://").split(":")
        lines = [socket.create_connection((host, int(port))) for _ in range(40)]
        asking = asyncio.create_task(page(process, "/healthz"))
        await process.until(lambda: "No file descriptor is left" in process.output)
        me, began = psutil.Process(process.pid), asyncio.get_running_loop().time()
        cpu = sum(me.cpu_times()[:2])
        fake.say(1, "one")
        fake.say(2, "two")
        await fake.wait_for(lambda: not fake.updates or len(fake.called("sendMessage")) > 1, 20)
        for line in lines:
            line.close()
        limit(process, resource.RLIMIT_NOFILE, -1)
        await fake.wait_for(lambda: len(fake.chat(1).texts) == 2 and fake.chat(2).texts, 30)
        spent = sum(me.cpu_times()[:2]) - cpu
        assert spent < 0.5 + 0.3 * (asyncio.get_running_loop().time() - began), "it spins"
        assert (await page(process, "/healthz"))[0] == 200
        await asyncio.wait({asking})
        assert (fake.chat(1).texts, fake.chat(2).texts) == (["re before", "re one"], ["re two"])
        assert process.output.count("No file descriptor is left") == 1
        assert "LimitNOFILE" in process.output
        assert process.output.count("out of system resource") == 0


async def test_the_program_takes_the_descriptors_that_the_system_lets_it_have(
    tmp_path: Path, fake: FakeTelegram, model: ScriptedModel
) -> None:
    few = at_start(
        tmp_path,
        "import resource as r\nr.setrlimit(r.RLIMIT_NOFILE, (64, r.getrlimit(r.RLIMIT_NOFILE)[1]))\n",
    )
    async with running(tmp_path, telegram(fake, model), **few) as process:
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        assert soft == (65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536))


# -- faults that repeat ------------------------------------------------------------------------------------


def test_a_fault_that_repeats_is_printed_a_few_times_a_minute_with_the_number_left_out() -> None:
    now = 0.0
    repeats = Repeats(lambda: now)

    def printed(words: str, level: int = logging.ERROR) -> str:
        record = logging.LogRecord("causeway.x", level, "", 0, "%s", (words,), None)
        return record.getMessage() if repeats.filter(record) else ""

    assert [bool(printed("the disk is full")) for _ in range(100)] == [True] * 5 + [False] * 95
    assert printed("something else") == "something else"
    assert all(printed("received", logging.INFO) for _ in range(100))
    now = 61.0
    assert printed("the disk is full") == "the disk is full (95 more like this before)"
    assert printed("the disk is full") == "the disk is full"


async def test_other_faults_of_the_event_loop_are_told_as_asyncio_tells_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop, now = asyncio.get_running_loop(), 0.0
    faults = LoopFaults(lambda: now)
    for _ in range(100):
        faults(loop, {"message": "accept", "exception": OSError(errno.EMFILE, "Too many open files")})
    assert len(caplog.records) == 1
    now = 61.0
    faults(loop, {"message": "accept", "exception": OSError(errno.EMFILE, "Too many open files")})
    faults(loop, {"message": "Task was destroyed"})
    assert [record.name for record in caplog.records] == ["causeway.app", "causeway.app", "asyncio"]


# -- the clock ---------------------------------------------------------------------------------------------

_CLOCK = """
import time
_real, _file = time.time, {file!r}
def _jumped():
    with open(_file) as file:
        return _real() + float(file.read())
time.time = _jumped
"""


async def test_a_clock_set_back_by_a_week_holds_nobody_up_also_after_kill_9(
    tmp_path: Path, fake: FakeTelegram, model: ScriptedModel
) -> None:
    offset = tmp_path / "offset"

    def jump(seconds: float) -> None:
        new = offset.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(offset)  # whole at every moment: the program reads it all the time

    jump(0)
    environ = at_start(tmp_path, _CLOCK.format(file=str(offset)))
    limits = {"sessions": {"limits": {"person_messages": 3}, "reset": {"when": "daily"}}}
    async with running(tmp_path, telegram(fake, model, **limits), **environ) as process:

        async def say(words: str) -> None:
            before = len(fake.chat(1).texts)
            fake.say(1, words)
            await fake.wait_for(lambda: len(fake.chat(1).texts) > before, 20)

        for words in ("one", "two"):
            await say(words)
        jump(-WEEK)
        for words in ("three", "four"):
            await say(words)
        await process.until(lambda: process.output.count("answered") == 4)
        await process.kill()
        await process.start()
        await say("five")
        assert fake.chat(1).texts == [f"re {word}" for word in ("one", "two", "three", "four", "five")]
        # A day that is another one because the clock went back begins no new conversation.
        said = [m["content"] for m in model.seen[-1].body["messages"] if m["role"] == "user"]
        assert [word for word in ("one", "two", "three", "four", "five") if word in str(said)] == [
            "one", "two", "three", "four", "five",
        ]  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[tuple[SqliteStore, Clock]]:
    clock = Clock()
    store = SqliteStore(tmp_path / "test.db", clock=clock)
    await store.open()
    yield store, clock
    await store.close()


async def test_marks_and_replies_dated_ahead_of_the_clock_hold_up_no_others_and_go_in_their_turn(
    kept: tuple[SqliteStore, Clock],
) -> None:
    store, clock = kept
    clock.now += 365 * DAY
    for n in range(6):
        assert await store.mark_seen(message("x", id=f"ahead {n}"))
    clock.now -= 365 * DAY
    for n in range(6):
        assert await store.mark_seen(message("x", id=f"true {n}"))

    async def forget() -> int:
        return await store.forget_before(clock.now - 14 * DAY, clock.now - 2 * DAY, limit=6)

    assert await forget() == 0
    assert not await store.mark_seen(message("x", id="ahead 0"))  # its platform may still repeat it
    clock.now += 15 * DAY
    assert [await forget(), await forget(), await forget()] == [6, 6, 0]


async def test_the_lease_of_a_holder_that_died_before_the_clock_was_set_back_ends_all_the_same(
    kept: tuple[SqliteStore, Clock],
) -> None:
    store, clock = kept
    state = store.channel_state("bot")
    assert await state.claim("poll", "dead", 30)
    clock.now -= 20
    assert not await state.claim("poll", "next", 30)  # so little may be a clock that is only corrected
    clock.now -= WEEK
    assert await state.claim("poll", "next", 30)
    assert not await state.claim("poll", "dead", 30)


async def test_codes_tries_and_mounts_last_no_longer_when_the_clock_is_set_back(
    kept: tuple[SqliteStore, Clock],
) -> None:
    store, clock = kept
    pairing, notes = Pairing(store, Grants(), clock), Notes(store)
    _, code = await pairing.ask(message("hello"))
    for _ in range(20):
        await pairing.accept("ABCDEFGH", message("x"))
    invitation = await pairing.invite("room", "member")
    await notes.put("mount", "s1", {"files": clock.now + LONGEST_MOUNT * 60})
    assert notes.mounted("s1", clock.now) == {"files"}
    clock.now -= WEEK
    assert await pairing.request(code) is None
    assert notes.mounted("s1", clock.now) == frozenset()
    assert await pairing.accept(invitation, message("x")) is None  # no longer good, and the way to it is open
    again = await pairing.invite("room", "member")
    assert await pairing.accept(again, message("x")) == "member"
    assert SECONDS < WEEK


async def test_pauses_of_channels_are_not_stretched_by_a_clock_set_back(
    kept: tuple[SqliteStore, Clock],
) -> None:
    store, clock = kept
    working = False

    async def request(force: bool) -> tuple[str, float]:
        if not working:
            raise OSError("the endpoint is away")
        return "token", 7200.0

    tokens = Tokens(store.channel_state("wechat"), "token", request, clock)
    with pytest.raises(OSError, match="away"):
        await tokens.get()
    with pytest.raises(NoToken):
        await tokens.get()
    clock.now -= WEEK
    working = True
    assert await tokens.get() == "token"
    pace = Pace(clock)
    for _ in range(Pace.MINUTE):
        pace.take("chat")
    clock.now -= WEEK
    pace.take("chat")
    pace.hold("chat", 60)
    clock.now -= WEEK
    pace.take("chat")


async def test_a_card_from_before_the_clock_was_set_back_waits_no_longer_than_any(
    kept: tuple[SqliteStore, Clock],
) -> None:
    store, clock = kept
    room = Room("room", RoomConfig(), None, Limits())
    ref = ReplyRef("r1", Address("room", "c1"), "m1", "en", "u1")
    asked = Approval("r1", "call-1", "sell", "shop", {}, Caller("u1", "U", channel="room", chat="c1"))

    def approvals() -> Approvals:
        access = Access({"room": AccessRule(direct="open")}, frozenset())
        return Approvals(store, {"room": room}, access, clock, str, wait=0.3)

    before = asyncio.create_task(approvals().ask("s1", ref, asked))
    await room.until(lambda: bool(room.seen))
    before.cancel()  # the process ends
    await asyncio.wait({before})
    clock.now -= WEEK
    later = approvals()
    await later.load()
    async with asyncio.timeout(10):
        assert (await later.ask("s1", ref, asked)).why == "timeout"


async def test_limits_and_what_was_told_of_them_are_not_stretched_by_a_clock_set_back(
    kept: tuple[SqliteStore, Clock],
) -> None:
    store, clock = kept
    ledger = Ledger(store, clock, UseLimits(person_messages=1))

    async def told(id: str) -> bool | None:
        over = await ledger.admit("room", "c1", "u1", id)
        return None if over is None else over.told

    assert [await told(id) for id in "abc"] == [None, False, True]
    clock.now -= WEEK
    assert [await told(id) for id in "def"] == [None, False, True]
    fit([[clock.now + WEEK, "", "", 0, ""]] * 100, clock.now)  # WeCom's limits; raises Flooded


async def test_what_waits_for_a_wechat_user_keeps_its_order_over_a_restart_with_the_clock_set_back(
    kept: tuple[SqliteStore, Clock],
) -> None:
    store, clock = kept
    for words in ("first", "second"):
        person = Person("u1", store.channel_state("wechat"), clock, lambda hint, language: hint)
        await person.put(Part(words, "r1", "m1", words))
        clock.now -= WEEK
    assert [part.text for part in await person.waiting()] == ["first", "second"]
