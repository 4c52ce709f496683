"""The order of tools for a query."""

from __future__ import annotations

from typing import Any

import pytest

from agent.tools.base import FunctionTool
from agent.tools.retrieval.lexical import Index, document
from agent.tools.retrieval.query import Query, build_query
from agent.tools.retrieval.rank import rank
from tests.unit.retrieval_support import crowd, nothing, query, ranked, said, tool

WEATHER = tool("meteo", "get_forecast", "The weather of the coming days.", "city")
MAIL = tool("mail", "send_message", "Sends an e-mail.", "recipient", "subject")
CHART = tool("charts", "createPieChart", "Draws a picture of shares.", "values")
CHINESE = tool("bing-cn", "search", "使用必应搜索指定的关键词，并返回搜索结果列表")
ALL = (*crowd(30), WEATHER, MAIL, CHART, CHINESE)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("what will the weather be in Oslo", WEATHER),
        ("forecasts please", WEATHER),
        ("make a pie chart of my expenses", CHART),
        ("write to a recipient with this subject", MAIL),
        ("mail Anna", MAIL),
        ("搜索一下最近的新闻", CHINESE),
        ("send\u00a0messages", MAIL),
    ],
)
def test_name_server_description_and_parameters_are_all_looked_at(text: str, first: FunctionTool) -> None:
    assert ranked(text, *ALL)[0] == first.name


def test_every_tool_is_ranked_whatever_is_asked() -> None:
    for text in ("weather", "nothing of the kind", "!!!"):
        assert sorted(ranked(text, *ALL)) == sorted(tool.name for tool in ALL)


def test_where_nothing_fits_each_server_s_first_comes_before_any_second() -> None:
    tools = [tool(server, f"t{n}", "x") for server in "abc" for n in range(3)]
    assert ranked("quite unrelated", *tools)[:3] == ["a__t0", "b__t0", "c__t0"]


def test_a_server_whose_tools_fit_lifts_its_others() -> None:
    sheet = [tool("excel", f"sheet_{verb}", f"Excel: {verb} cells.") for verb in ("read", "format", "merge")]
    other = [tool(f"s{n}", f"act_{n}", f"Does thing {n}.") for n in range(20)]
    order = ranked("excel sheet: read the cells", *other, *sheet)
    assert set(order[:3]) == {t.name for t in sheet}


def test_a_word_that_one_server_alone_has_counts_though_all_its_tools_have_it() -> None:
    slides = [tool("ppt", f"slide_{n}", f"Changes element {n} of a presentation.") for n in range(25)]
    notes = [tool(f"n{n}", "take_note", "Takes a new note of anything.") for n in range(3)]
    assert ranked("take the presentation", *slides, *notes)[0].startswith(("n", "ppt"))
    assert sum(name.startswith("ppt") for name in ranked("a presentation", *slides, *notes)[:10]) == 10


def test_the_newest_message_counts_more_than_older_ones() -> None:
    entries = [*said("a", "what is the weather"), *said("b", "now draw a pie chart")]
    order = [name for name, _ in rank(build_query(entries), Index(ALL))]
    assert order[:2] == [CHART.name, WEATHER.name]


def test_a_near_vector_wins_where_words_say_nothing() -> None:
    similar = {t.name: 0.1 for t in ALL} | {MAIL.name: 0.9}
    assert ranked("let her know about it", *ALL, similar=similar)[0] == MAIL.name


def test_tools_without_a_vector_are_ranked_by_their_words_among_the_others() -> None:
    """PEERS 2.10: those whose vector was missing were left out without a word."""
    similar = {t.name: 0.3 + n / 1000 for n, t in enumerate(ALL) if t is not WEATHER}
    order = ranked("the weather in Oslo", *ALL, similar=similar)
    assert order[0] == WEATHER.name
    assert len(order) == len(ALL)


def test_a_tool_without_a_vector_does_not_gain_by_that() -> None:
    similar = {t.name: 0.9 if t is MAIL else 0.2 for t in ALL if t.name != "crowd0__lamp_0"}
    order = ranked("send an e-mail", *ALL, similar=similar)
    assert order[0] == MAIL.name
    assert order.index("crowd0__lamp_0") > 0


def test_without_any_usable_vector_words_rank() -> None:
    assert ranked("weather", *ALL, similar={}) == ranked("weather", *ALL)
    assert ranked("weather", *ALL, similar={"gone__tool": 0.9}) == ranked("weather", *ALL)


def test_an_index_of_nothing_ranks_nothing() -> None:
    assert rank(query("weather"), Index([])) == []
    assert rank(Query(), Index([WEATHER]))[0][0] == WEATHER.name


@pytest.mark.parametrize(
    "params", [{}, {"properties": None}, {"properties": ["a"]}, {"properties": {1: 2}}, {"$ref": "#"}, []]
)
def test_odd_schemas_are_no_reason_to_lose_a_tool(params: Any) -> None:
    odd = FunctionTool("s__odd_name", "About.", params, nothing, source="s")
    assert ranked("odd", *crowd(5), odd)[0] == "s__odd_name"


def test_a_known_document_is_not_read_again() -> None:
    first = Index(ALL)
    second = Index((*ALL, tool("new", "t")), first.by_id)
    assert all(one is other for one, other in zip(first.documents, second.documents, strict=False))


def test_a_changed_description_and_a_moved_tool_have_new_keys() -> None:
    """PEERS 2.10: a changed description, or the same name on another server, kept the old vector."""
    keys = {
        document(t).key
        for t in (tool("a", "search", "Web."), tool("a", "search", "Files."), tool("b", "search", "Web."))
    }
    assert len(keys) == 3
    assert document(tool("a", "search", "Web.")).key in keys
