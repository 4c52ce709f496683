"""Files inside texts never reach a prompt as base64; deadlines of single tools in `mcp.json`."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest

from agent.tools.base import ToolResult
from agent.tools.mcp.config import McpConfig, parse_config
from agent.tools.mcp.results import MOST_FILES, render_reply

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
DATA = base64.b64encode(PNG).decode()
URI = f"data:image/png;base64,{DATA}"


def render(folder: Path, *parts: dict[str, Any], structured: Any = None) -> ToolResult:
    return render_reply(parts, structured, False, folder=folder, stem="s__t")


@pytest.mark.parametrize("where", ["text", "structured", "resource"])
def test_mc_17_a_picture_inside_a_text_is_a_file_and_no_base64(tmp_path: Path, where: str) -> None:
    if where == "text":
        result = render(tmp_path, {"type": "text", "text": f"![shot]({URI}) done"})
        assert result.text.startswith("![shot]([data (image/png, 10,248 bytes) saved as mcp/s__t-")
        assert result.text.endswith(") done")
    elif where == "structured":
        result = render(tmp_path, structured={"shot": URI, "n": 1})
        assert json.loads(result.text)["n"] == 1
    else:
        result = render(tmp_path, {"type": "resource", "resource": {"uri": "x://y", "text": URI}})
    assert DATA[:40] not in result.text
    (file,), (image,) = result.files, result.images
    assert (tmp_path / file.path).read_bytes() == PNG
    assert image.path == file.path


def test_short_data_addresses_and_other_long_words_stay(tmp_path: Path) -> None:
    text = f"data:image/gif;base64,R0lGODlh {'A' * 5_000} data:text/plain,hello"
    assert render(tmp_path, {"type": "text", "text": text}) == ToolResult(text)


def test_the_same_picture_twice_is_shown_once(tmp_path: Path) -> None:
    part = {"type": "image", "data": DATA, "mimeType": "image/png"}
    result = render(tmp_path, part, {"type": "text", "text": URI}, part)
    assert len(result.files) == len(result.images) == 1
    assert result.text.count("saved as") == 3


def test_many_pictures_in_one_text_are_bounded(tmp_path: Path) -> None:
    uris = [f"data:image/png;base64,{base64.b64encode(PNG + bytes([n])).decode()}" for n in range(30)]
    result = render(tmp_path, {"type": "text", "text": " ".join(uris)})
    assert len(result.files) == MOST_FILES
    assert "base64" not in result.text


def test_looking_for_files_in_a_long_text_takes_time_in_proportion(tmp_path: Path) -> None:
    began = time.process_time()
    render(tmp_path, {"type": "text", "text": "data:image/png;base64," * 100_000 + "a" * 1_000_000})
    assert time.process_time() - began < 2.0


def parsed(entry: dict[str, Any]) -> McpConfig:
    data = json.dumps({"mcpServers": {"s": {"command": "x", **entry}}}).encode()
    return parse_config(data, environ={})


def test_deadlines_of_single_tools_are_read_and_change_no_process() -> None:
    config = parsed({"toolTimeouts": {"search": 90, "get_*": 5_000, "none": None}})
    assert config.warnings == ()
    (spec,) = config.servers
    assert dict(spec.tool_timeouts) == {"search": 90.0, "get_*": 5.0}
    assert spec.fingerprint == parsed({}).servers[0].fingerprint


@pytest.mark.parametrize("value", [5, ["search"], {"search": 0}, {"search": "soon"}, {"search": True}])
def test_deadlines_that_cannot_be_are_refused_with_the_reason(value: Any) -> None:
    (bad,) = parsed({"toolTimeouts": value}).bad
    assert "toolTimeouts" in bad.reason
