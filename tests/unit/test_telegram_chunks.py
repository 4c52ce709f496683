"""Where Telegram messages are cut: never inside what is seen as one character, nor inside an entity."""

from __future__ import annotations

import pytest

from channels.base import OutFile
from channels.telegram.chunks import split
from channels.telegram.format import markdown
from channels.telegram.media import file_chunks
from tests.fakes.telegram_judge import judge, units

FAMILY = "👩\u200d👩\u200d👧\u200d👦"
SCOTLAND = "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"


@pytest.mark.parametrize("sign", [FAMILY, "🇩🇪", "👍🏽", "e\u0301", "❤\ufe0f", SCOTLAND])
@pytest.mark.parametrize("shift", range(12))
def test_a_sign_made_of_several_characters_is_never_torn(sign: str, shift: int) -> None:
    pieces = split(markdown("x" * shift + sign * 2500))
    assert len(pieces) > 1
    for text, _ in pieces:
        assert units(text) <= 4096
        assert text.removeprefix("x" * shift).replace(sign, "") == ""


@pytest.mark.parametrize("source", ["**{}**", "> {}", "[{}](https://example.org)", "```py\n{}\n```", "`{}`"])
def test_an_entity_over_a_cut_is_closed_and_opened_again(source: str) -> None:
    pieces = split(markdown(source.format("word " * 1200 + "end")))
    assert len(pieces) == 2
    for text, entities in pieces:
        assert [(e["offset"], e["length"]) for e in entities] == [(0, units(text))]
        assert judge(text, entities).entities == entities
    assert len({(e["type"], e.get("url"), e.get("language")) for _, es in pieces for e in es}) == 1


def test_a_caption_keeps_to_1024_units_and_goes_on_as_text_with_its_formatting() -> None:
    caption = "😀 **bold** " * 200
    head, *rest = file_chunks([OutFile("/a.png", "a.png", "image/png", caption)])
    assert head.file is not None
    assert 700 < units(head.text) <= 1024
    assert rest
    assert " ".join([head.text, *(chunk.text for chunk in rest)]).split() == ["😀", "bold"] * 200
    assert all(chunk.data["entities"] for chunk in (head, *rest))


def test_files_that_may_not_share_an_album_stand_alone_and_keep_their_order() -> None:
    def file(name: str, mime: str) -> OutFile:
        return OutFile(f"/{name}", name, mime)

    files = [file("1.png", "image/png"), file("2.mp4", "video/mp4"), file("3.ogg", "audio/ogg")]
    files += [file("4.ogg", "audio/ogg"), file("5.gif", "image/gif"), file("6.pdf", "application/pdf")]
    files += [file("7.zip", ""), file("8.mp3", "audio/mpeg"), file("9.mp3", "audio/mpeg")]
    files += [file(f"p{n}.jpg", "image/jpeg") for n in range(12)]
    groups = []
    for chunk in file_chunks(files):
        assert chunk.file is not None
        groups.append([chunk.file.name, *(more["file"]["name"] for more in chunk.data.get("album", ()))])
    assert groups[:6] == [
        ["1.png", "2.mp4"],
        ["3.ogg"],
        ["4.ogg"],
        ["5.gif"],
        ["6.pdf", "7.zip"],
        ["8.mp3", "9.mp3"],
    ]
    assert [len(group) for group in groups[6:]] == [10, 2]
