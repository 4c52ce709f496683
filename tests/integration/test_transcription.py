"""Voice messages are written down by a real OpenAI-compatible server, or the agent is told why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.llm import Say, ScriptedModel, aimock_server, free_port
from tests.fakes.telegram import TOKEN, FakeTelegram
from tests.harness import bridge, openai_at

HEARD = [
    {"match": {"endpoint": "transcription"}, "response": {"transcription": {"text": "please feed the cat"}}},
]


async def said_about_a_voice_message(folder: Path, transcription: dict[str, Any] | None) -> str:
    """What the model is sent for a voice message."""
    async with FakeTelegram() as fake, ScriptedModel([Say("ok")]).running() as model:
        more = {"transcription": transcription} if transcription else {}
        settings: dict[str, Any] = {
            "model": openai_at(model.openai_url, **more),
            "channels": {"telegram": {"token": TOKEN, "base_url": fake.url}},
            "access": {"telegram": {"allow": ["5"]}},
        }
        async with bridge(folder, settings):
            voice = {
                "file_id": fake.file(b"OggS" + b"\0" * 60, "v.oga"),
                "file_unique_id": "u",
                "duration": 2,
            }
            fake.say(5, "", voice={**voice, "mime_type": "audio/ogg"})
            await fake.wait_for(lambda: fake.chat(5).texts == ["ok"], 20)
        return model.seen[0].last_user


async def test_a_voice_message_is_written_down(tmp_path: Path) -> None:
    with aimock_server(HEARD) as server:
        words = await said_about_a_voice_message(
            tmp_path, {"base_url": server.openai, "api_key": "sk-transcription-0000"}
        )
    assert "please feed the cat" in words


async def test_without_an_endpoint_the_agent_is_told_that_there_is_one(tmp_path: Path) -> None:
    words = await said_about_a_voice_message(tmp_path, None)
    assert "no transcription is configured" in words
    assert "received/" in words


@pytest.mark.parametrize("fault", ["refused", "unreachable"])
async def test_a_failing_endpoint_costs_the_words_and_nothing_else(tmp_path: Path, fault: str) -> None:
    refused = [
        {"match": {"endpoint": "transcription"}, "response": {"error": {"message": "no"}, "status": 400}}
    ]
    with aimock_server(refused) as server:
        url = server.openai if fault == "refused" else f"http://127.0.0.1:{free_port()}/v1"
        words = await said_about_a_voice_message(tmp_path, {"base_url": url, "timeout": 5})
    assert "Writing it down failed" in words
