"""The WeCom application on the whole bridge: callbacks in, an agent's answers out, restarts in between."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bridge.app import App
from tests.fakes.llm import Call, Say, ScriptedModel, Seen, free_port
from tests.fakes.wecom import AMR, PNG, FakeWecom
from tests.harness import Process, bridge, openai_at, write_config


def settings(fake: FakeWecom, model: ScriptedModel, **more: Any) -> dict[str, Any]:
    return {
        "model": openai_at(model.openai_url),
        "channels": {"wecom": fake.settings(**more)},
        "access": {"wecom": {"direct": "open"}},
    }


def aim(fake: FakeWecom, app: App) -> None:
    fake.target = f"{app.url}/channels/wecom/callback"


async def test_a_member_asks_and_reads_the_whole_answer(tmp_path: Path) -> None:
    long = "\n\n".join(f"第{number}段:" + "企业微信的长回答。" * 30 for number in range(12))
    async with FakeWecom() as fake, ScriptedModel([Say(long, pieces=5)]).running() as model:
        async with bridge(tmp_path, settings(fake, model)) as app:
            aim(fake, app)
            assert await fake.verify_url() == (200, b"echo-1234")
            assert await fake.say("ZhangSan", "讲一讲")
            await fake.wait_for(lambda: "第11段" in "".join(fake.texts("ZhangSan")))
            pieces = fake.texts("ZhangSan")
            assert "".join(pieces) == long
            assert all(len(piece.encode()) <= 2048 for piece in pieces)


async def test_an_answer_slower_than_wecom_waits_is_given_once(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with FakeWecom(pace=0.2) as fake, ScriptedModel([Say("done", gate=gate)]).running() as model:
        async with bridge(tmp_path, settings(fake, model)) as app:
            aim(fake, app)
            xml = fake.fields("ZhangSan", "text", Content="slow")
            assert await fake.deliver(xml)
            assert await fake.deliver(xml), "the platform may repeat what was taken"
            gate.set()
            await fake.wait_for(lambda: fake.texts("ZhangSan") == ["done"])
            assert len(model.seen) == 1
            assert fake.deliveries == [200, 200]


async def test_a_picture_reaches_the_model_and_a_voice_is_fetched(tmp_path: Path) -> None:
    async with FakeWecom() as fake, ScriptedModel([Say("I see it")]).running() as model:
        async with bridge(tmp_path, settings(fake, model)) as app:
            aim(fake, app)
            await fake.say("ZhangSan", "hello")
            await fake.wait_for(lambda: fake.texts("ZhangSan"))
            channel: Any = app.channels["wecom"]
            picture = await channel._api.upload("image", "a.png", PNG)
            voice = await channel._api.upload("voice", "a.amr", AMR)
            assert await fake.deliver(fake.fields("ZhangSan", "image", PicUrl="https://p", MediaId=picture))
            await fake.wait_for(lambda: len(fake.texts("ZhangSan")) == 2)
            assert await fake.deliver(fake.fields("ZhangSan", "voice", MediaId=voice, Format="amr"))
            await fake.wait_for(lambda: len(fake.texts("ZhangSan")) == 3)
            assert fake.calls["media/get"] == 2


async def test_wx_10_a_reply_whose_send_is_cut_off_is_shown_once_through_the_bridge(tmp_path: Path) -> None:
    async with FakeWecom() as fake, ScriptedModel([Say("only once")]).running() as model:
        async with bridge(tmp_path, settings(fake, model)) as app:
            aim(fake, app)
            fake.faults["message/send"].extend(["cut", "gateway", "cut"])
            await fake.say("ZhangSan", "hello")
            await fake.wait_for(lambda: fake.calls["message/send"] >= 4)
            await app.delivery.stop(5)
            await fake.wait_for(lambda: fake.copies == 3)
            assert fake.texts("ZhangSan") == ["only once"]


async def test_fifty_members_are_each_answered_once_under_expiry_and_busy_errors(tmp_path: Path) -> None:
    def answer(seen: Seen) -> Say:
        return Say(f"answer to {seen.last_user.strip()[-6:]}")

    async with FakeWecom() as fake, ScriptedModel(answer).running() as model:
        fake.members |= {f"user{number}": f"用户{number}" for number in range(50)}
        async with bridge(tmp_path, settings(fake, model)) as app:
            aim(fake, app)
            await fake.say("ZhangSan", "warm 0")
            await fake.wait_for(lambda: fake.texts("ZhangSan"))
            fake.expire_tokens()
            fake.faults["message/send"].extend([-1, "gateway", "cut", -1])
            taken = await asyncio.gather(*(fake.say(f"user{n}", f"ask{n:03}") for n in range(50)))
            assert all(taken)
            await fake.wait_for(lambda: all(fake.texts(f"user{n}") for n in range(50)))
            for number in range(50):
                assert fake.texts(f"user{number}") == [f"answer to ask{number:03}"]
            assert fake.calls["gettoken"] == 2
            assert sum(fake.dropped.values()) == 0


async def test_a_killed_bridge_goes_on_where_it_stopped_and_repeats_nothing(tmp_path: Path) -> None:
    long = "\n\n".join(f"part {number} " + "x" * 1500 for number in range(4))

    def answer(seen: Seen) -> Say:
        return Say(long if "long" in seen.last_user else "later")

    async with FakeWecom() as fake, ScriptedModel(answer).running() as model:
        port = free_port()
        config = write_config(tmp_path, {**settings(fake, model), "server": {"port": port}})
        fake.target = f"http://127.0.0.1:{port}/channels/wecom/callback"
        process = Process(config, tmp_path)
        try:
            await process.start()
            # The third send is taken, but the bridge dies before it hears so.
            fake.faults["message/send"].extend(["", "", "slow"])
            assert await fake.say("ZhangSan", "a long one")
            await fake.wait_for(lambda: len(fake.shown["ZhangSan"]) == 3)
            await process.kill()
            await process.start()
            await fake.wait_for(lambda: "part 3" in "".join(fake.texts("ZhangSan")))
            assert [text[:6] for text in fake.texts("ZhangSan")] == [f"part {n}" for n in range(4)]
            assert fake.copies == 1, "the send in flight was made again, word for word"
            assert await fake.say("ZhangSan", "and then?")
            await fake.wait_for(lambda: fake.texts("ZhangSan")[-1] == "later")
            assert fake.calls["gettoken"] == 1
        finally:
            await process.close()


async def test_bad_callbacks_never_reach_the_model_and_never_fail_the_server(tmp_path: Path) -> None:
    async with FakeWecom() as fake, ScriptedModel([Say("ok")]).running() as model:
        async with bridge(tmp_path, settings(fake, model)) as app:
            aim(fake, app)
            query, body = fake.seal(fake.fields("ZhangSan", "text", Content="hi"))
            wrong: Mapping[str, str] = {**query, "msg_signature": "0" * 40}
            statuses = [
                await fake.request("POST", dict(wrong), body),
                await fake.request("POST", query, "<xml><Encrypt>" + "A" * 300_000),
                await fake.request("POST", query, "\x00\x01"),
                await fake.request("POST", {}, body),
                await fake.request("GET", {}),
            ]
            assert statuses == [403, 413, 400, 403, 403]
            replay = [await fake.request("POST", query, body) for _ in range(3)]
            assert replay == [200, 200, 200]
            await fake.wait_for(lambda: fake.texts("ZhangSan"))
            assert len(model.seen) == 1


async def test_a_dangerous_call_waits_for_a_button_and_the_card_shows_the_outcome(tmp_path: Path) -> None:
    script = [Say(calls=(Call("write", {"path": "plan.txt", "content": "tea at five"}),)), Say("written")]
    async with FakeWecom() as fake, ScriptedModel(script).running() as model:
        careful = {
            **settings(fake, model),
            "access": {"wecom": {"direct": "allowlist", "admins": ["ZhangSan"]}},
            "tools": {"policy": [{"tools": ["write"], "effect": "ask"}]},
        }
        async with bridge(tmp_path, careful) as app:
            aim(fake, app)
            await fake.say("ZhangSan", "make a plan")
            await fake.wait_for(lambda: any(m.kind == "template_card" for m in fake.shown["ZhangSan"]))
            (card,) = (m for m in fake.shown["ZhangSan"] if m.kind == "template_card")
            everything = "\n".join(fake.texts("ZhangSan"))
            assert "tea at five" in everything, "who decides sees the whole call"
            yes = card.body["button_list"][0]["key"]
            await fake.press("ZhangSan", yes)
            await fake.wait_for(lambda: "written" in fake.texts("ZhangSan"))
            await fake.wait_for(lambda: fake.updates)
            assert fake.updates[0]["task"] == card.body["task_id"]
