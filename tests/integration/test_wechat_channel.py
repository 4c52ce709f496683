"""The official account channel against the fake platform."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from channels.base import (
    Address,
    Attachment,
    ChannelError,
    Inbound,
    Outbound,
    OutFile,
    Rejected,
    ReplyRef,
    TooLarge,
)
from channels.wechat.passive import Desk, Part, Person
from channels.wechat.plain import plain
from channels.wechat.texts import TEXTS
from tests.fakes.wechat import (
    AES_KEY,
    APP_ID,
    NOTICE,
    OTHER_KEY,
    SECRET,
    TEXT_BYTES,
    TOKEN,
    FakeWechat,
    sign,
)
from tests.integration.wechat_support import House, Opener, paced, until

WAIT, MORE = TEXTS["wechat.wait"][1], TEXTS["wechat.more"][1]
WORKING, GREETING = TEXTS["wechat.working"][1], TEXTS["wechat.greeting"][1]


@pytest.fixture
def opened(tmp_path: Path) -> Opener:
    return Opener(tmp_path)


async def post(fake: FakeWechat, body: bytes, query: dict[str, str] | None = None) -> tuple[int, str]:
    async with aiohttp.ClientSession() as client:
        async with client.post(fake.callback, params=query or signed(fake), data=body) as answer:
            return answer.status, await answer.text()


def signed(fake: FakeWechat, **more: str) -> dict[str, str]:
    timestamp = str(int(fake.now()))
    return {"timestamp": timestamp, "nonce": "n", "signature": sign(TOKEN, timestamp, "n"), **more}


# -- the address is checked ----------------------------------------------------------------------------


@paced
async def test_the_url_check_gets_its_echo_back_only_with_a_good_signature(opened: Opener) -> None:
    fake, _ = await opened()
    async with aiohttp.ClientSession() as client:

        async def check(**more: str) -> tuple[int, str]:
            async with client.get(
                fake.callback, params={**signed(fake), "echostr": "12<34", **more}
            ) as answer:
                return answer.status, await answer.text()

        assert await check() == (200, "12<34")
        assert (await check(signature="0" * 40))[0] == 403
        assert (await check(nonce="other"))[0] == 403
        old = str(int(fake.now()) - 100_000)
        assert (await check(timestamp=old, signature=sign(TOKEN, old, "n")))[0] == 403


@paced
async def test_wx_08_an_encrypted_url_check_of_another_account_is_refused(opened: Opener) -> None:
    fake, _ = await opened(mode="safe")
    async with aiohttp.ClientSession() as client:
        for app_id, status in ((APP_ID, 200), ("wxsomebodyelse", 403)):
            fake.app_id = app_id
            query, body = fake.sealed({"ToUserName": "g", "FromUserName": "u", "MsgType": "text"})
            encrypted = body.decode().split("<Encrypt><![CDATA[")[1].split("]]>")[0]
            async with client.get(fake.callback, params={**query, "echostr": encrypted}) as answer:
                assert answer.status == status
                assert "Traceback" not in await answer.text()


# -- all ways a message can travel ---------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["plain", "compatible", "safe"])
@pytest.mark.parametrize("format", ["xml", "json"])
@paced
async def test_every_mode_and_format_is_read_and_answered(opened: Opener, mode: str, format: str) -> None:
    fake, house = await opened(mode=mode, format=format)
    chat = await fake.say("user", "你好 ]]> 😀")
    assert chat.shown == ["answer to 你好 ]]> 😀"]
    assert [attempt.end for attempt in chat.attempts] == ["200"]
    assert [inbound.text for inbound in house.got] == ["你好 ]]> 😀"]


@paced
async def test_compatible_mode_works_without_a_key_of_ours(opened: Opener) -> None:
    fake, _ = await opened(mode="compatible", settings={"aes_key": None})
    assert (await fake.say("user", "hi")).shown == ["answer to hi"]


@paced
async def test_after_a_key_change_messages_with_the_previous_key_are_answered_with_it(opened: Opener) -> None:
    fake, _ = await opened(mode="safe", settings={"aes_key": AES_KEY, "previous_aes_key": OTHER_KEY})
    fake.aes_key = OTHER_KEY
    assert (await fake.say("user", "old")).shown == ["answer to old"]
    fake.aes_key = AES_KEY
    assert (await fake.say("user", "new")).shown[-1] == "answer to new"


@paced
async def test_wx_02_an_answer_with_the_end_of_cdata_arrives_as_it_is(opened: Opener) -> None:
    fake, house = await opened()
    text = "if m[i[0]]>1 then </xml>"

    async def answer(_: Inbound) -> str:
        return f"`{text}`"

    house.answer = answer
    assert (await fake.say("user", "code")).shown == [text]


# -- what is not genuine -------------------------------------------------------------------------------


@paced
async def test_wx_08_foreign_altered_and_wrongly_signed_messages_are_refused_and_not_handled(
    opened: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    fake, house = await opened(mode="safe")
    message = fake.message("user", "hi")
    query, body = fake.sealed(message)
    at = body.index(b"CDATA[", body.index(b"<Encrypt>")) + 10
    altered = body[:at] + (b"A" if body[at : at + 1] != b"A" else b"B") + body[at + 1 :]
    assert (await post(fake, altered, query))[0] == 403
    wrong = {**query, "msg_signature": query["signature"]}
    assert (await post(fake, body, wrong))[0] == 403
    fake.app_id = "wxsomebodyelse"
    foreign_query, foreign = fake.sealed(message)
    assert (await post(fake, foreign, foreign_query))[0] == 403
    assert house.got == []
    assert "Traceback" not in caplog.text
    fake.app_id = APP_ID
    assert (await fake.push(message)).shown == ["answer to hi"], (
        "msg_signature and signature together are right"
    )


@paced
async def test_with_a_key_set_a_plain_message_is_refused_and_the_cure_is_told(opened: Opener) -> None:
    fake, house = await opened(settings={"aes_key": AES_KEY})
    query, body = fake.sealed(fake.message("user", "forged"))
    assert (await post(fake, body, query))[0] == 403
    assert house.got == []
    assert "安全模式" in house.channel.health().cure


@paced
async def test_without_a_key_an_encrypted_message_is_refused_and_the_cure_is_told(opened: Opener) -> None:
    fake, house = await opened(mode="safe", settings={"aes_key": None})
    query, body = fake.sealed(fake.message("user", "x"))
    assert (await post(fake, body, query))[0] == 403
    assert house.channel.health().cure == "set aes_key"


ENTITY_BOMB = (
    b"<?xml version='1.0'?><!DOCTYPE l [<!ENTITY a 'ha'>"
    + b"".join(b"<!ENTITY a%d '&a;&a;&a;&a;&a;&a;&a;&a;'>" % n for n in range(9))
    + b"]><xml><FromUserName>u</FromUserName><MsgType>text</MsgType><Content>&a8;</Content></xml>"
)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\x01\x02",
        b"<xml>",
        b"<xml></xml>",
        b"<xml><MsgType>text</MsgType></xml>",
        b"<xml><FromUserName>u</FromUserName><MsgType>text</MsgType><Content/></xml>",
        b"<xml><FromUserName>u</FromUserName><FromUserName>v</FromUserName><MsgType>text</MsgType></xml>",
        b"<xml>" + b"<a>" * 20_000,
        b"\xef\xbb\xbf<xml>\xff</xml>",
        b"{}",
        b'{"MsgType": {"a": []}, "FromUserName": 1}',
        b'[{"MsgType": "text"}]',
        ENTITY_BOMB,
    ],
    ids=range(13),
)
@paced
async def test_odd_bodies_with_a_good_signature_are_acknowledged_and_not_handled(
    opened: Opener, body: bytes
) -> None:
    fake, house = await opened()
    assert await post(fake, body) == (200, "success")
    assert (await post(fake, body, {"signature": "x"}))[0] == 403
    assert house.got == []
    assert (await fake.say("user", "still here")).shown == ["answer to still here"]


@paced
async def test_a_huge_body_is_cut_off(opened: Opener) -> None:
    fake, house = await opened()
    status, _ = await post(fake, b"<xml>" + b"x" * 300_000 + b"</xml>")
    assert status == 413
    assert house.got == []


@paced
async def test_control_characters_in_a_message_do_not_hide_it(opened: Opener) -> None:
    fake, _ = await opened()
    assert (await fake.say("user", "a\x08b\x1fc")).shown == ["answer to abc"]


@pytest.mark.parametrize("mode", ["plain", "safe"])
@paced
async def test_a_replayed_request_is_handled_once(opened: Opener, mode: str) -> None:
    fake, house = await opened(mode=mode)
    query, body = fake.sealed(fake.message("user", "pay 5"))
    for _ in range(4):
        assert (await post(fake, body, query))[0] == 200
    assert [inbound.text for inbound in house.got] == ["pay 5"]


# -- passive replies -----------------------------------------------------------------------------------


@paced
async def test_wx_01_a_slow_answer_runs_once_and_arrives_once_and_nobody_reads_the_notice(
    opened: Opener,
) -> None:
    fake, house = await opened()
    house.answer = house.after(12)
    chat = await fake.say("user", "slow")
    assert chat.shown == ["answer to slow"]
    assert [attempt.end for attempt in chat.attempts] == ["cut", "cut", "200"]
    assert len(house.got) == 1


@paced
async def test_a2_a_quick_answer_goes_out_at_once_and_swallows_no_later_question(opened: Opener) -> None:
    fake, house = await opened()
    house.answer = house.after(0.5)
    chat = await fake.say("user", "one")
    assert chat.attempts[0].seconds < 3
    await fake.say("user", "two")
    assert chat.shown == ["answer to one", "answer to two"]


@paced
async def test_a3_l6_a_message_without_an_answer_leaves_nobody_waiting(opened: Opener) -> None:
    fake, house = await opened()

    async def silent(_: Inbound) -> None:
        return None

    house.answer = silent
    chat = await fake.say("user", "no answer to this")
    assert (chat.shown, [attempt.end for attempt in chat.attempts]) == ([], ["200"])
    assert chat.attempts[0].seconds < 3
    house.answer = house.after(0)
    assert (await fake.say("user", "next")).shown == ["answer to next"]


@paced
async def test_l6_an_answer_after_fifteen_seconds_waits_and_a_question_meanwhile_is_answered_too(
    opened: Opener,
) -> None:
    fake, house = await opened()

    async def answer(inbound: Inbound) -> str:
        await asyncio.sleep(20 if inbound.text == "慢的" else 1)
        return f"answer to {inbound.text}"

    house.answer = answer
    async with asyncio.TaskGroup() as group:
        group.create_task(fake.say("user", "慢的"))
        await asyncio.sleep(2)
        group.create_task(fake.say("user", "快的"))
    chat = fake.chat("user")
    assert chat.shown == ["answer to 快的", WAIT]
    await until(lambda: not house.tasks)
    await fake.say("user", "继续")
    assert chat.shown[-1] == "answer to 慢的"
    assert [inbound.text for inbound in house.got] == ["慢的", "快的"], "继续 is no message for the model"


@paced
async def test_a_new_question_brings_what_waits_and_is_answered_next(opened: Opener) -> None:
    fake, house = await opened()
    house.answer = house.after(18)
    chat = await fake.say("user", "今天呢")
    assert chat.shown == [WAIT]
    await until(lambda: not house.tasks)
    house.answer = house.after(1)
    await fake.say("user", "明天呢")
    assert chat.shown[1:] == ["answer to 今天呢" + WORKING]
    await fake.say("user", "好")
    assert chat.shown[2:] == ["answer to 明天呢"]
    assert [inbound.text for inbound in house.got] == ["今天呢", "明天呢"]
    await fake.say("user", "好")
    assert house.got[-1].text == "好", "with nothing waiting it is a message like any other"


@paced
async def test_a_long_answer_is_fetched_piece_by_piece_in_order(opened: Opener) -> None:
    fake, house = await opened()
    text = "\n\n".join(f"第{n}段。" + "这是一句很长的话，" * 30 for n in range(12))

    async def answer(_: Inbound) -> str:
        return text

    house.answer = answer
    chat = await fake.say("user", "讲长一点")
    for _ in range(10):
        if not chat.shown[-1].endswith(MORE):
            break
        await fake.say("user", "继续")
    assert len(chat.shown) > 3
    assert all(len(piece.encode()) <= TEXT_BYTES for piece in chat.shown)
    assert all(piece.endswith(MORE) for piece in chat.shown[:-1])
    assert "".join(piece.removesuffix(MORE) for piece in chat.shown) == plain(text)
    assert len(house.got) == 1


@paced
async def test_two_short_answers_that_wait_come_together(opened: Opener) -> None:
    fake, house = await opened()
    house.answer = house.after(22)
    async with asyncio.TaskGroup() as group:
        group.create_task(fake.say("user", "甲问"))
        group.create_task(fake.say("user", "乙问"))
    chat = fake.chat("user")
    assert chat.shown == [WAIT, WAIT]
    await until(lambda: not house.tasks)
    await fake.say("user", "1")
    first, _, second = chat.shown[-1].partition("\n\n")
    assert {first, second} == {"answer to 甲问", "answer to 乙问"}


@paced
async def test_a_waiting_answer_survives_a_crash(opened: Opener) -> None:
    fake, house = await opened(mode="safe")
    house.answer = house.after(18)
    chat = await fake.say("user", "慢的")
    await until(lambda: not house.tasks)
    await house.crash()
    await house.open()
    await fake.say("user", "继续")
    assert chat.shown == [WAIT, "answer to 慢的"]
    assert len(house.got) == 1


@paced
async def test_a_reply_that_the_platform_did_not_get_is_given_to_its_repetition(opened: Opener) -> None:
    fake, house = await opened()
    message = fake.message("user", "hi")
    lost = await fake.attempt(message)
    assert lost.text == "answer to hi"
    assert (await fake.push(message)).shown == ["answer to hi"]
    chat = await fake.say("user", "next")
    assert chat.shown == ["answer to hi", "answer to next"]
    assert len(house.got) == 2


@paced
async def test_a_part_that_is_posted_again_after_a_crash_is_shown_once(opened: Opener) -> None:
    fake, house = await opened()
    house.answer = house.after(18)
    chat = await fake.say("user", "慢的")
    await until(lambda: not house.tasks)
    await house.crash()
    await house.open()
    await house.show(house.ref(house.got[0]), "answer to 慢的")  # the bridge did not know how it ended
    await fake.say("user", "继续")
    assert chat.shown == [WAIT, "answer to 慢的"]
    assert await house.state.read("parts:user") != []
    await house.show(house.ref(house.got[0]), "answer to 慢的")  # nor whether it was given away
    house.state.leases.clear()
    await fake.say("user", "别的问题")
    assert ["慢的" in text for text in chat.shown] == [False, True, False]


@paced
async def test_a_request_replayed_by_somebody_carries_nothing_off(opened: Opener) -> None:
    fake, house = await opened()
    query, body = fake.sealed(fake.message("user", "你好"))
    assert "answer to 你好" in (await post(fake, body, query))[1]
    house.answer = house.after(18)
    chat = await fake.say("user", "慢的")
    await until(lambda: not house.tasks)
    for _ in range(5):
        assert await post(fake, body, query) == (200, "success")
    await fake.say("user", "继续")
    assert chat.shown == [WAIT, "answer to 慢的"]
    assert len(house.got) == 2


@paced
async def test_two_processes_give_a_waiting_part_to_one_request_only(opened: Opener) -> None:
    _, house = await opened()

    async def person() -> Person:
        desk = Desk(
            house.state, house.fake.now, lambda hint, _: f"<{hint}>"
        )  # its own memory, the same store
        return await desk.person("user")

    one, two = await person(), await person()
    async with one.lock:
        await one.put(Part("r:0", "r", "0", "the answer"))
    now = asyncio.get_running_loop().time()
    given = await asyncio.gather(
        one.hold("1", now + 4, False, lambda: False), two.hold("2", now + 4, False, lambda: False)
    )
    assert sorted(given, key=str) == ["", "the answer"]


@paced
async def test_a_message_that_the_bridge_could_not_keep_is_not_acknowledged(opened: Opener) -> None:
    fake, house = await opened()
    refusals = iter([True, False])
    house.refuse = lambda _: next(refusals, False)
    chat = await fake.say("user", "hi")
    assert chat.shown == ["answer to hi"]
    assert [attempt.end for attempt in chat.attempts] == ["refused", "200"]


@paced
async def test_a_message_that_can_never_be_kept_ends_with_our_words_and_not_the_notice(
    opened: Opener,
) -> None:
    fake, house = await opened()
    house.refuse = lambda _: True
    chat = await fake.say("user", "你好")
    assert chat.shown == [TEXTS["wechat.trouble"][1]]


@paced
async def test_a_held_request_is_left_to_the_next_process_when_this_one_stops(opened: Opener) -> None:
    fake, house = await opened()
    house.answer = house.after(30)
    asking = asyncio.create_task(fake.say("user", "hi"))
    await until(lambda: house.got)
    await house.close()
    inbound = house.got[0]
    await house.open()
    await house.show(house.ref(inbound), "the answer")
    await house.channel.end(house.ref(inbound))
    assert (await asking).shown == ["the answer"]


# -- events --------------------------------------------------------------------------------------------


@paced
async def test_wx_07_following_is_greeted_once_however_often_the_event_comes(opened: Opener) -> None:
    fake, house = await opened()
    event = fake.fields("user", "event", Event="subscribe", EventKey="")
    chat = await fake.push(event)
    await fake.push(event)
    assert chat.shown == [GREETING]
    assert house.got == []


@paced
async def test_wx_07_two_clicks_of_one_second_are_two_turns(opened: Opener) -> None:
    fake, house = await opened()
    one = fake.fields("user", "event", Event="CLICK", EventKey="WEATHER")
    two = {**one, "EventKey": "NEWS"}
    await fake.push(one)
    await fake.push(two)
    await fake.push(one)
    assert [inbound.text for inbound in house.got] == ["WEATHER", "NEWS"]


@pytest.mark.parametrize("event", ["unsubscribe", "VIEW", "LOCATION", "SCAN", "NEVER_HEARD_OF"])
@paced
async def test_l6_other_events_are_acknowledged_at_once(opened: Opener, event: str) -> None:
    fake, house = await opened()
    chat = await fake.push(fake.fields("user", "event", Event=event, EventKey="x", Latitude="1.5"))
    assert (chat.shown, [attempt.end for attempt in chat.attempts]) == ([], ["200"])
    assert chat.attempts[0].seconds < 3
    assert house.got == []


# -- customer service ----------------------------------------------------------------------------------


@paced
async def test_a1_a_late_answer_is_sent_by_itself_and_typing_is_shown(opened: Opener) -> None:
    fake, house = await opened(service=True)
    house.answer = house.after(8)
    asking = asyncio.create_task(fake.say("user", "hi"))
    await until(lambda: house.got)
    await house.channel.typing(house.ref(house.got[0]))
    await house.channel.typing(house.ref(house.got[0]))  # 45081: it is typing already
    chat = await asking
    assert [attempt.end for attempt in chat.attempts] == ["200"], "one request, acknowledged in time"
    await until(lambda: not house.tasks)
    assert (chat.shown, chat.passive, chat.sent, chat.typing) == (["answer to hi"], 0, 1, 2)


@paced
async def test_a_long_answer_stays_within_five_messages_and_the_rest_is_fetched(opened: Opener) -> None:
    fake, house = await opened(service=True)
    text = "\n\n".join(f"第{n}段。" + "这是一句很长的话，" * 60 for n in range(10))

    async def answer(_: Inbound) -> str:
        return text

    house.answer = answer
    chat = await fake.say("user", "讲长一点")
    await until(lambda: not house.tasks)
    assert (chat.passive, chat.sent) == (1, 5)
    assert chat.shown[5].endswith(MORE)
    await fake.say("user", "继续")
    await until(lambda: "".join(chat.shown).replace(MORE, "") == plain(text))
    assert len(house.got) == 1
    assert all(len(piece.encode()) <= TEXT_BYTES for piece in chat.shown)


@pytest.mark.parametrize("code", [45015, 45047, 48001, 45009, 40164, 89503])
@paced
async def test_a_refused_message_waits_for_the_persons_next_words(opened: Opener, code: int) -> None:
    fake, house = await opened(service=True)
    house.answer = house.after(6)
    fake.always["message/custom/send"] = (code, "refused: 203.0.113.7")
    chat = await fake.say("user", "hi")
    await until(lambda: not house.tasks)
    assert chat.shown == []
    del fake.always["message/custom/send"]
    await fake.say("user", "好")
    assert chat.shown == ["answer to hi"]
    assert len(house.got) == 1
    assert house.channel.health().ok == (code in (45015, 45047, 48001))
    if code == 40164:
        assert "203.0.113.7" in house.channel.health().reason
        assert "IP白名单" in house.channel.health().cure


@paced
async def test_an_account_that_cannot_call_now_answers_as_one_without_the_right(opened: Opener) -> None:
    fake, house = await opened(service=True)
    house.answer = house.after(6)
    fake.always["message/custom/send"] = (40164, "invalid ip")
    await fake.say("user", "一问")
    await until(lambda: not house.tasks)
    chat = await fake.say("user", "二问")
    assert chat.shown == ["answer to 一问" + WORKING]
    await until(lambda: not house.tasks)
    chat = await fake.say("user", "三问")
    assert chat.shown[1:] == ["answer to 二问" + WORKING]
    await fake.say("user", "继续")
    assert chat.shown[2:] == ["answer to 三问"]


@paced
async def test_auto_finds_out_the_right_once_and_remembers_it(opened: Opener) -> None:
    fake, house = await opened()
    await until(lambda: "rights" in house.state.values)
    assert len(fake.called("customservice/getkflist")) == 1
    await house.close()
    await house.open()
    house.answer = house.after(7)
    assert (await fake.say("user", "hi")).shown == ["answer to hi"]
    assert len(fake.called("customservice/getkflist")) == 1
    assert fake.called("message/custom/send") == []


@paced
async def test_passive_mode_never_calls_the_api(opened: Opener) -> None:
    fake, house = await opened(service=True, settings={"mode": "passive"})
    house.answer = house.after(7)
    assert (await fake.say("user", "hi")).shown == ["answer to hi"]
    assert fake.calls == []


@paced
async def test_a_message_whose_end_is_unknown_is_not_sent_twice(opened: Opener, monkeypatch: Any) -> None:
    monkeypatch.setattr("channels.wechat.api._READ", 0.3)
    fake, house = await opened(service=True)
    fake.chat("user").until, fake.chat("user").left = fake.now() + 999, 5
    fake.gates["message/custom/send"] = asyncio.Event()
    await house.show(ReplyRef("r1", Address("wx", "user"), "gone"), "hello")
    fake.gates["message/custom/send"].set()
    await until(lambda: fake.chat("user").shown)
    assert fake.chat("user").shown == ["hello"]
    assert len(fake.called("message/custom/send")) == 1


@paced
async def test_a4_a_slow_platform_call_holds_nobody_else_up(opened: Opener) -> None:
    fake, house = await opened(service=True)
    gate = fake.gates["message/custom/send"] = asyncio.Event()
    fake.chat("slow").until, fake.chat("slow").left = fake.now() + 999, 5
    sending = asyncio.create_task(house.show(ReplyRef("r1", Address("wx", "slow"), "gone"), "late"))
    while not fake.called("message/custom/send"):
        await asyncio.sleep(0)  # the loop's clock stands still while a thread waits
    assert (await fake.say("quick", "hi")).shown == ["answer to hi"]
    assert not sending.done()
    gate.set()
    await sending
    assert fake.chat("slow").shown == ["late"]


# -- files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("service", [True, False])
@paced
async def test_a_picture_is_sent_where_that_is_possible_and_else_its_name_is_told(
    opened: Opener, tmp_path: Path, service: bool
) -> None:
    fake, house = await opened(service=service)
    picture, paper = tmp_path / "a.png", tmp_path / "b.pdf"
    picture.write_bytes(b"\x89PNG" + b"0" * 40)
    paper.write_bytes(b"%PDF" + b"0" * 40)

    async def answer(_: Inbound) -> Outbound:
        files = (OutFile(str(picture), "a.png", "image/png", "the *picture*"), OutFile(str(paper), "b.pdf"))
        return Outbound("see", files)

    house.answer = answer
    chat = await fake.say("user", "给我看")
    for _ in range(5):
        await until(lambda: not house.tasks)
        if not chat.shown[-1].endswith(MORE):
            break
        await fake.say("user", "继续")
    text = "\n".join(chat.shown)
    assert "see" in text
    assert "the picture" in text
    assert "[文件] b.pdf" in text
    assert ("<image image-0>" in chat.shown) is service
    assert ("[文件] a.png" in text) is not service


@paced
async def test_pictures_and_voices_of_people_are_fetched(opened: Opener, tmp_path: Path) -> None:
    fake, house = await opened(service=True)
    fake.media |= {"picture/1": b"JPEG" * 10, "voice-1": b"#!AMR" * 10}
    await fake.push(fake.fields("user", "image", PicUrl=f"{fake.url}/picture/1", MediaId="m"))
    await fake.push(fake.fields("user", "voice", MediaId="voice-1", Format="amr"))
    picture, voice = (inbound.attachments[0] for inbound in house.got)
    await house.channel.fetch(picture, tmp_path / "1", 1000)
    assert (tmp_path / "1").read_bytes() == b"JPEG" * 10
    fake.expire_tokens()
    await house.channel.fetch(voice, tmp_path / "2", 1000)
    assert (tmp_path / "2").read_bytes() == b"#!AMR" * 10
    with pytest.raises(TooLarge):
        await house.channel.fetch(voice, tmp_path / "3", 20)
    with pytest.raises(Rejected, match="40007"):
        await house.channel.fetch(Attachment("audio", "nothing|", name="x"), tmp_path / "4", 1000)
    with pytest.raises(Rejected, match="not the platform's"):
        await house.channel.fetch(Attachment("image", "|http://169.254.169.254/x"), tmp_path / "5", 1000)


# -- many at once --------------------------------------------------------------------------------------


@paced
async def test_fifty_people_under_expiring_tokens_and_full_quotas_lose_nothing(opened: Opener) -> None:
    fake, house = await opened(service=True)
    issued = len(fake.called("stable_token"))
    users = [f"user{n}" for n in range(50)]

    async def answer(inbound: Inbound) -> str:
        await asyncio.sleep(6)
        return f"answer to {inbound.text}"

    house.answer = answer

    async def ask(n: int, user: str) -> None:
        await asyncio.sleep(n * 0.01)
        await fake.say(user, f"question of {user}")

    async with asyncio.TaskGroup() as group:
        for n, user in enumerate(users):
            group.create_task(ask(n, user))
        await until(lambda: len(house.got) == 50)
        fake.expire_tokens()  # all answers are still to come
        for user in users[::5]:
            fake.chat(user).left = 0  # another program of the account used their quota
    await until(lambda: not house.tasks)
    assert len(fake.called("stable_token")) == issued + 1, "the token endpoint was asked once for the expiry"
    for user in users[::5]:
        assert fake.chat(user).shown == []
        await fake.say(user, "继续")
    for user in users:
        assert fake.chat(user).shown == [f"answer to question of {user}"], user
    assert len(house.got) == 50


# -- settings and checks -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"aes_key": "short"}, "aes_key"),
        ({"aes_key": AES_KEY, "previous_aes_key": AES_KEY + "="}, "previous_aes_key"),
        ({"previous_aes_key": AES_KEY}, "previous_aes_key"),
        ({"token": " "}, "token"),
        ({"base_url": "api.weixin.qq.com"}, "base_url"),
    ],
)
@paced
async def test_settings_that_cannot_work_are_told_with_their_name(
    tmp_path: Path, settings: dict[str, str], named: str
) -> None:
    house = House(tmp_path, FakeWechat(), **settings)
    with pytest.raises(ChannelError, match=rf"channels\.wx\.{named}"):
        await house.channel.start(house.receive)
    (finding,) = await house.channel.check("zh")
    assert finding.level == "error"
    assert named in finding.what


@paced
async def test_a_check_names_the_address_the_rights_and_what_keeps_it_from_being_reached(
    opened: Opener,
) -> None:
    fake, house = await opened(mode="safe")
    house.public_url = fake.callback.removesuffix("/channels/wx/callback")
    checked = house._make()
    found = await checked.check("zh")
    texts = "\n".join(finding.what for finding in found)
    assert fake.callback in texts
    assert "内网地址" in texts
    assert "端口" in texts
    assert "应答正确" in texts
    assert "48001" in texts
    assert "丢包率 0%" in texts
    house.public_url = "http://127.0.0.1:9"
    unreached = await house._make().check("en")
    assert any("does not answer" in finding.what for finding in unreached)


@pytest.mark.parametrize(
    ("code", "words", "expected"),
    [
        (40164, "invalid ip 203.0.113.7 ipv6 ::ffff:203.0.113.7, not in whitelist", "203.0.113.7"),
        (89503, "need confirm", "管理员"),
        (40125, "invalid appsecret", "40125"),
    ],
)
@paced
async def test_a_check_explains_what_the_account_refuses(
    opened: Opener, code: int, words: str, expected: str
) -> None:
    fake, house = await opened(settings={"mode": "passive"})
    fake.always["stable_token"] = (code, words)
    last = (await house.channel.check("zh"))[-1]
    assert last.level == "error"
    assert expected in last.what
    assert last.cure


@paced
async def test_nothing_secret_is_logged(opened: Opener, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    fake, house = await opened(service=True, mode="safe")
    house.answer = house.after(6)
    fake.errors = [("message/custom/send", 40001), ("message/custom/send", 40001)]
    await fake.say("user", "my private words")
    fake.always["message/custom/send"] = (40164, "invalid ip")
    await fake.say("user", "more private words")
    await until(lambda: not house.tasks)
    await post(fake, b"<xml>private</xml>", {"signature": "x"})
    with pytest.raises(Rejected):
        await house.channel.fetch(Attachment("audio", "nothing|", name="x"), Path("/dev/null"), 1)
    ours = "\n".join(record.getMessage() for record in caplog.records if record.name != "asyncio")
    assert "40164" in ours
    for secret in (SECRET, TOKEN, AES_KEY, "tok_", "private"):
        assert secret not in ours, secret
    assert NOTICE not in fake.chat("user").shown
