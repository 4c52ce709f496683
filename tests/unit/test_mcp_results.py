"""Replies of tools in the form that a model and a person can use."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from agent.tools.base import ToolResult
from agent.tools.mcp.results import MOST_FILES, render_reply

PNG = b"\x89PNG" + bytes(range(256)) * 1200


def render(
    folder: Path, *parts: dict[str, Any], structured: Any = None, is_error: bool = False
) -> ToolResult:
    return render_reply(parts, structured, is_error, folder=folder, stem="s__t")


def picture(data: bytes = PNG, mime: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "data": base64.b64encode(data).decode(), "mimeType": mime}


def test_mc_17_structured_content_is_shown_when_there_is_no_text(tmp_path: Path) -> None:
    assert render(tmp_path, structured={"n": 1, "s": "é"}).text == '{"n": 1, "s": "é"}'
    assert render(tmp_path, {"type": "text", "text": "one"}, structured={"n": 1}).text == "one"


def test_mc_17_a_picture_is_a_file_and_never_base64_in_the_text(tmp_path: Path) -> None:
    result = render(tmp_path, {"type": "text", "text": "look"}, picture())
    assert result.text.startswith("look\n[image (image/png, ")
    assert len(result.text) < 200
    (file,), (image,) = result.files, result.images
    assert (tmp_path / file.path).read_bytes() == PNG
    assert image.path == file.path
    assert file.path.startswith("mcp/s__t-")
    assert file.path.endswith(".png")


def test_mc_17_an_error_is_marked(tmp_path: Path) -> None:
    assert render(tmp_path, {"type": "text", "text": "no"}, is_error=True) == ToolResult("no", is_error=True)
    assert "did not say" in render(tmp_path, is_error=True).text


def test_mc_17_a_resource_shows_its_text_or_says_what_was_left_out(tmp_path: Path) -> None:
    note = {"type": "resource", "resource": {"uri": "note://1", "text": "the note"}}
    assert render(tmp_path, note).text == "[resource note://1]\nthe note"
    blob = {"uri": "x://y", "mimeType": "application/pdf", "blob": base64.b64encode(b"%PDF").decode()}
    result = render(tmp_path, {"type": "resource", "resource": blob})
    assert "saved as mcp/s__t-" in result.text
    assert result.files == ()
    broken = {"type": "resource", "resource": {"uri": "x://z", "blob": "!"}}
    assert "x://z" in render(tmp_path, broken).text
    assert "left out" in render(tmp_path, broken).text
    assert "https://e" in render(tmp_path, {"type": "resource_link", "uri": "https://e", "name": "n"}).text


def test_sounds_are_files_but_not_pictures(tmp_path: Path) -> None:
    result = render(
        tmp_path, {"type": "audio", "data": base64.b64encode(b"RIFF").decode(), "mimeType": "audio/wav"}
    )
    assert [file.mime for file in result.files] == ["audio/wav"]
    assert result.images == ()


def test_an_empty_reply_says_so(tmp_path: Path) -> None:
    assert render(tmp_path).text == "(the tool returned nothing)"


def test_more_files_than_the_limit_are_left_out_with_a_line(tmp_path: Path) -> None:
    result = render(tmp_path, *(picture(bytes([n]) * 40) for n in range(MOST_FILES + 2)))
    assert len(result.files) == MOST_FILES
    assert result.text.count("left out") == 2


def test_a_link_in_place_of_the_folder_does_not_lead_the_write_outside(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "session"
    outside.mkdir()
    folder.mkdir()
    (folder / "mcp").symlink_to(outside)
    result = render(folder, picture())
    assert list(outside.iterdir()) == []
    assert "left out" in result.text
    assert result.files == ()
