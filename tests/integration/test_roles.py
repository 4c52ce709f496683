"""Gateways and workers: what they do together that one process does alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bridge.cluster.worker import Worker
from channels.base import Address, Chunk, Inbound, ReplyRef, Sender
from tests.fakes.fleet import Fleet, ask, fleet
from tests.fakes.llm import Call, Say, ScriptedModel, Seen
from tests.fakes.telegram import TOKEN, FakeTelegram
from tests.harness import openai_at


@pytest.fixture
async def telegram() -> AsyncIterator[FakeTelegram]:
    async with FakeTelegram() as fake:
        yield fake


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    made = ScriptedModel()
    made.script = lambda seen: Say(f"answer to {seen.last_user.splitlines()[-1]}", pieces=5)
    async with made.running():
        yield made


@pytest.fixture
async def house(tmp_path: Path, telegram: FakeTelegram, model: ScriptedModel) -> AsyncIterator[Fleet]:
    settings = {
        "model": openai_at(model.openai_url),
        "channels": {"telegram": {"token": TOKEN, "base_url": telegram.url}, "api": {}, "web": {}},
        "access": {"telegram": {"admins": ["1", "2"], "direct": "open", "groups": "open"}},
        "tools": {"bash": {"enabled": True}},
    }
    async with fleet(tmp_path, settings) as made:
        yield made


async def test_a_message_goes_in_at_a_gateway_and_is_answered_by_a_worker(
    house: Fleet, telegram: FakeTelegram
) -> None:
    gateway = await house.gateway()
    await house.worker()
    assert await ask(gateway, "hello") == "answer to hello"
    telegram.say(5, "ahoy")
    await telegram.wait_for(lambda: "answer to ahoy" in telegram.chats[5].text)
    telegram.say(5, "/whoami")
    await telegram.wait_for(lambda: len(telegram.chats[5].texts) == 2)


async def until(look: object, timeout: float = 15.0) -> None:
    async with asyncio.timeout(timeout):
        while not look():  # type: ignore[operator]
            await asyncio.sleep(0.02)


def texts(telegram: FakeTelegram, chat: int) -> list[str]:
    return telegram.chats[chat].texts


async def test_sessions_spread_over_workers_and_each_is_one_workers(
    house: Fleet, telegram: FakeTelegram
) -> None:
    await house.gateway()
    one, other = await house.worker(), await house.worker()
    chats = range(100, 130)
    for chat in chats:
        telegram.say(chat, f"hello {chat}")
    await telegram.wait_for(lambda: all(f"answer to hello {c}" in telegram.chats[c].text for c in chats))
    mine = {s for w in (one, other) for s in w.usher.sessions}
    assert len(mine) == 30
    assert min(len(one.usher.sessions), len(other.usher.sessions)) > 3
    assert len(one.usher.sessions) + len(other.usher.sessions) == 30
    holders = await one._shared.arrivals.holders(sorted(mine))
    assert set(holders) == {one.name, other.name}


async def test_stop_reaches_the_run_wherever_it_is(
    house: Fleet, telegram: FakeTelegram, model: ScriptedModel
) -> None:
    asked = asyncio.Event()

    async def hang(seen: Seen) -> Say:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    model.script = hang
    await house.gateway()
    await house.gateway()
    await house.worker()
    await house.worker()
    telegram.say(7, "think long")
    await asyncio.wait_for(asked.wait(), 10)
    telegram.say(7, "/stop")
    await telegram.wait_for(lambda: any("topped" in text for text in texts(telegram, 7)))


async def _card(telegram: FakeTelegram, chat: int) -> tuple[int, str]:
    """The message with buttons, and what its first button says."""

    def find() -> tuple[int, str] | None:
        for message in telegram.chats[chat].shown:
            rows = message.get("reply_markup", {}).get("inline_keyboard", [])
            if rows:
                return message["message_id"], rows[0][0]["callback_data"]
        return None

    await telegram.wait_for(find)
    found = find()
    assert found is not None
    return found


def _tool(seen: Seen) -> Say:
    if seen.results:
        return Say(f"done: {seen.results[-1]}")
    return Say("wait", calls=(Call("bash", {"command": "echo carried-out"}, id="c1"),))


async def test_a_button_is_taken_by_the_worker_that_asked(
    house: Fleet, telegram: FakeTelegram, model: ScriptedModel
) -> None:
    model.script = _tool
    await house.gateway()
    await house.worker()
    await house.worker()
    telegram.say(1, "run it")
    message, data = await _card(telegram, 1)
    telegram.press(1, message, data, user=1)
    await telegram.wait_for(lambda: "carried-out" in telegram.chats[1].text)


async def _worker_of(workers: list[Worker], chat: int, person: int) -> Worker:
    def find() -> list[Worker]:
        ends = f":by={person}"
        return [w for w in workers if any(str(chat) in s and s.endswith(ends) for s in w.usher.sessions)]

    await until(find)
    return find()[0]


async def test_an_admin_decides_from_a_session_that_another_worker_has(
    house: Fleet, telegram: FakeTelegram, model: ScriptedModel
) -> None:
    """In a group with a session for each person the card and the answer belong to two sessions."""
    model.script = _tool
    rule = {"effect": "ask", "tools": ["bash"]}
    tools = {"bash": {"enabled": True}, "policy": [rule]}
    house.change(sessions={"scope": {"group": "person_in_chat"}}, tools=tools)
    await house.gateway()
    workers = [await house.worker() for _ in range(2)]

    for chat in range(-140, -100):
        telegram.chat(chat, "supergroup")
        telegram.say(chat, "@TheBot run it", user=1)
        await _card(telegram, chat)
        telegram.say(chat, "@TheBot /whoami", user=2)
        await telegram.wait_for(lambda chat=chat: len(telegram.chats[chat].texts) == 2)  # type: ignore[misc]
        if await _worker_of(workers, chat, 1) is not await _worker_of(workers, chat, 2):
            break
    else:
        raise AssertionError("they always were at one worker")
    telegram.say(chat, "@TheBot /approve", user=2)
    await telegram.wait_for(lambda: "carried-out" in telegram.chats[chat].text)


async def test_what_one_worker_is_told_all_know(house: Fleet, telegram: FakeTelegram) -> None:
    gateway, other = await house.gateway(), await house.gateway()
    workers = [await house.worker() for _ in range(3)]
    telegram.chat(-50, "supergroup")
    telegram.say(-50, "@TheBot /activation always", user=1)
    await telegram.wait_for(lambda: telegram.chats[-50].texts)
    key = "telegram\0-50\0"
    await until(lambda: all(p.notes.get("activation", key) == "always" for p in (gateway, other, *workers)))
    await workers[0].pairing.grant("telegram", "77", "guest", "here")
    await until(lambda: all(w.access.grants.role("telegram", "77") == "guest" for w in workers))
    await workers[1].tools.switch("bash", on=False)
    for worker in workers:
        worker.maintenance.trigger()
    await until(lambda: all("bash" in w.tools.switched_off for w in workers))
    await gateway.notes.moved("telegram", "-50", "-100050")
    await until(lambda: all(p.notes.homes.get(("telegram", "-100050")) == "-50" for p in (other, *workers)))


async def test_a_worker_that_stops_hands_its_sessions_over_and_its_run_ends_first(
    house: Fleet, telegram: FakeTelegram, model: ScriptedModel
) -> None:
    held = asyncio.Event()

    async def slow(seen: Seen) -> Say:
        if "slow" in seen.last_user:
            await held.wait()
        return Say(f"answer to {seen.last_user}")

    model.script = slow
    await house.gateway()
    first = await house.worker()
    telegram.say(1, "slow")
    telegram.say(2, "quick")
    await telegram.wait_for(lambda: "answer to quick" in telegram.chats[2].text)
    await until(lambda: len(model.seen) == 2)
    second = await house.worker()
    stopping = asyncio.create_task(first.stop(grace=10))
    telegram.say(2, "quick again")  # its session is free: the other one takes it while the first still drains
    await telegram.wait_for(lambda: "answer to quick again" in telegram.chats[2].text)
    assert not stopping.done()
    telegram.say(1, "behind it")
    held.set()
    await telegram.wait_for(lambda: "answer to behind it" in telegram.chats[1].text)
    await stopping
    house.workers.remove(first)
    assert telegram.chats[1].texts == ["answer to slow", "answer to behind it"]
    assert {s.rsplit(":", 1)[-1] for s in second.usher.sessions} == {"1", "2"}


async def test_a_gateway_that_stops_answers_the_requests_it_holds(house: Fleet, model: ScriptedModel) -> None:
    held = asyncio.Event()

    async def slow(seen: Seen) -> Say:
        await held.wait()
        return Say("at last")

    model.script = slow
    gateway = await house.gateway()
    await house.worker()
    asked = asyncio.create_task(ask(gateway, "wait for it"))
    await until(lambda: model.seen)
    stopping = asyncio.create_task(gateway.stop(grace=10))
    held.set()
    assert await asked == "at last"
    await stopping
    house.gateways.remove(gateway)


async def test_without_a_worker_messages_wait_and_pages_say_so(house: Fleet, telegram: FakeTelegram) -> None:
    import aiohttp

    gateway = await house.gateway()
    telegram.say(1, "early")
    telegram.say(1, "bird")
    async with aiohttp.ClientSession() as client:
        async with client.get(f"{gateway.url}/console") as response:
            assert response.status == 503
            assert "causeway run --role worker" in await response.text()
        await house.worker()
        await telegram.wait_for(lambda: "answer to bird" in telegram.chats[1].text)
        assert texts(telegram, 1) == ["answer to early", "answer to bird"]
        async with client.get(f"{gateway.url}/console") as response:
            assert response.status == 200
            assert "frame-ancestors" in response.headers["Content-Security-Policy"]
        async with client.get(f"{gateway.url}/console/state") as response:
            assert {"telegram", "api", "web"} <= {c["name"] for c in (await response.json())["channels"]}
        async with client.get(f"{gateway.url}/mcp/servers") as response:
            assert (await response.json())["servers"] == []
        async with client.get(f"{gateway.url}/console", headers={"Host": "evil.example"}) as response:
            assert response.status == 403, "the gateway's own guard"


async def test_more_than_so_many_unseen_messages_are_left_with_their_platform(
    house: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.cluster.gateway.MOST_ARRIVED", 1)
    gateway = await house.gateway()
    first = asyncio.create_task(ask(gateway, "one"))
    await until(lambda: gateway._open)
    assert "could not store" in await ask(gateway, "two")
    await house.worker()
    assert await first == "answer to one"


async def test_files_go_both_ways_through_the_shared_workspace(
    house: Fleet, telegram: FakeTelegram, model: ScriptedModel
) -> None:
    def answer(seen: Seen) -> Say:
        if seen.results:
            return Say("here ![it](copy.txt)")
        path = seen.last_user.split("received/")[1].split()[0].rstrip(".:,`)]")
        return Say("", calls=(Call("bash", {"command": f"cp received/{path} copy.txt"}, id="c"),))

    house.change(tools={"bash": {"enabled": True}, "policy": [{"effect": "allow", "tools": ["bash"]}]})
    model.script = answer
    await house.gateway()
    await house.worker()
    file = telegram.file(b"some bytes", "notes.txt")
    telegram.say(1, "", document={"file_id": file, "file_unique_id": "u", "file_name": "notes.txt"})
    await telegram.wait_for(lambda: telegram.called("sendDocument"))


async def test_a_worker_that_lost_a_session_shows_nothing_more(
    house: Fleet, telegram: FakeTelegram, model: ScriptedModel
) -> None:
    held, asked = asyncio.Event(), asyncio.Event()

    async def slow(seen: Seen) -> Say:
        asked.set()
        await held.wait()
        return Say("the stale answer")

    model.script = slow
    await house.gateway()
    stale = await house.worker()
    telegram.say(1, "hello")
    await asyncio.wait_for(asked.wait(), 10)
    [session] = stale.usher.sessions
    # As after a pause longer than the lease: it does not know yet that the other one has the session.
    stale.usher._keeper.cancel()  # type: ignore[union-attr]
    await stale._shared._writer.one(("HSET", *stale._shared._keys.of_session(session, "lease"), "until", "1"))
    model.script = lambda seen: Say("the heir's answer")
    heir = await house.worker()
    await telegram.wait_for(lambda: "the heir's answer" in telegram.chats[1].text)
    held.set()
    await until(lambda: not stale.sessions.works_on(session))
    assert texts(telegram, 1) == ["the heir's answer"]
    assert heir.usher.has(session)


async def test_a_conversation_is_deleted_wherever_it_is(house: Fleet, telegram: FakeTelegram) -> None:
    gateway = await house.gateway()
    one, other = await house.worker(), await house.worker()
    telegram.say(1, "hello")
    await telegram.wait_for(lambda: telegram.chats[1].texts)
    [session] = one.usher.sessions + other.usher.sessions
    for number, worker in enumerate((one, other), 2):
        telegram.say(1, "hello")
        await telegram.wait_for(lambda number=number: len(texts(telegram, 1)) == number)  # type: ignore[misc]
        assert await worker.store.history.load(session) != []
        await worker.forget_session(session)
        assert await worker.store.history.load(session) == []
    page = Address("web", "visitor")
    await gateway.receive(Inbound("1", page, Sender("local"), "hello"))
    state = gateway.store.channel_state("web")
    async with asyncio.timeout(15):
        while not await state.read("chat:visitor"):
            await asyncio.sleep(0.02)
    await one.forget_session("web:direct:visitor")
    assert await state.read("chat:visitor") == []


async def test_somebody_let_in_from_elsewhere_is_told_in_their_chat(
    house: Fleet, telegram: FakeTelegram
) -> None:
    house.change(access={"telegram": {"admins": ["1"], "direct": "pairing"}})
    await house.gateway()
    one, other = await house.worker(), await house.worker()
    telegram.say(9, "let me in", user=9)
    await telegram.wait_for(lambda: telegram.chats[9].texts)
    [request] = await one.pairing.waiting()
    for worker in (one, other):
        await worker.welcome(request, "member")  # the same notice: it is shown once
    await telegram.wait_for(lambda: len(telegram.chats[9].texts) == 2)
    done = await other.pairing.approve(request.code, "here")
    assert done is not None
    telegram.say(9, "hello", user=9)
    await telegram.wait_for(lambda: "answer to hello" in telegram.chats[9].text)
    assert len(telegram.chats[9].texts) == 3


async def test_roles_need_a_store_on_a_server_and_no_bridge_beside_them(house: Fleet, tmp_path: Path) -> None:
    from bridge.app import App, StartError
    from bridge.cluster.gateway import Gateway
    from bridge.cluster.worker import Worker

    await house.gateway()
    with pytest.raises(StartError, match="Another bridge already works in"):
        await App(house.config()).start()
    elsewhere = Fleet(tmp_path / "elsewhere", house.server, {})
    with pytest.raises(StartError, match="cannot work beside"):
        await App(elsewhere.config()).start()
    alone = Fleet(tmp_path / "alone", house.server, {"store": {"url": "sqlite:///causeway.db"}})
    for kind in (Gateway, Worker):
        with pytest.raises(StartError, match="share a store on a server"):
            await kind(alone.config()).start()


async def test_doctor_says_which_processes_work_on_the_store(house: Fleet) -> None:
    from bridge.store.redis_check import look

    async def said() -> list[str]:
        return [finding.what for finding in await look(house.server.url)][1:]

    assert await said() == []
    gateway = await house.gateway()
    assert await said() == ["A gateway is running but no worker: messages are kept and wait"]
    await house.worker()
    await house.worker()
    assert await said() == ["Gateways running on this store: 1; workers: 2"]
    await gateway.stop(grace=0)
    house.gateways.clear()
    assert await said() == ["A worker is running but no gateway: no channel receives or shows anything"]


async def test_a_slow_gateway_gets_the_newest_text_and_in_the_end_the_whole_one(
    house: Fleet, telegram: FakeTelegram, model: ScriptedModel
) -> None:
    words = " ".join(f"word{n}" for n in range(400))
    model.script = lambda seen: Say(words, pieces=200, between=0.01)
    gateway = await house.gateway()
    await house.worker()
    web, shown = gateway.channels["web"], list[str]()
    post, edit = web.post, web.edit

    async def slow_post(ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        shown.append(chunk.text)
        await asyncio.sleep(0.4)
        return await post(ref, n, chunk, final=final)

    async def slow_edit(ref: ReplyRef, n: int, message: str, chunk: Chunk, *, final: bool) -> None:
        shown.append(chunk.text)
        await asyncio.sleep(0.4)
        await edit(ref, n, message, chunk, final=final)

    web.post, web.edit = slow_post, slow_edit  # type: ignore[method-assign, assignment]
    address = Address("web", "visitor")
    await gateway.receive(Inbound("1", address, Sender("local"), "tell me"))
    await until(lambda: shown and shown[-1] == words)
    assert 2 <= len(shown) < 20, "no piece of its own for each of 200"
    assert all(words.startswith(text) for text in shown)


async def test_a_command_that_takes_longer_than_a_lease_is_not_taken_for_cut_off(
    house: Fleet, telegram: FakeTelegram, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.gateway()
    worker = await house.worker()
    telegram.say(1, "hello")
    await telegram.wait_for(lambda: telegram.chats[1].texts)
    run, looked = worker.router._commands.run, asyncio.Event()

    async def slow(*args: Any) -> Any:
        await looked.wait()
        return await run(*args)

    monkeypatch.setattr(worker.router._commands, "run", slow)
    telegram.say(1, "/stop")
    await until(lambda: worker.delivery.preparing)
    worker.usher._lease = 0.0  # each reply counts as owed for long enough
    await worker.usher._owed()
    looked.set()
    await telegram.wait_for(lambda: len(telegram.chats[1].texts) == 2)
    assert "restarted" not in telegram.chats[1].text
    assert not worker.delivery.preparing
