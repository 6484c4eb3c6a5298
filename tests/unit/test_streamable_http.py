"""Headers and events of Streamable HTTP, as the relay reads them."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("httpx2", reason="the relay over HTTP needs it")
pytest.importorskip("uvicorn", reason="the relay over HTTP needs it")

import httpx2
from hypothesis import strategies as st

from tests.harness.mcp_http_host import end_to_end, event_data, parts_of
from tests.harness.searches import searched

LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
LINES = st.sampled_from(
    [b"data: {}", b"data:{}", b"data", b"id: 7", b"id", b": ping", b"event: message", b"retry: 5", b"x: y"]
)


@searched(
    15,
    100,
    st.lists(st.tuples(LINE_ENDS, st.lists(LINES, min_size=1, max_size=4)), max_size=5),
    st.lists(st.integers(1, 9), min_size=1, max_size=9),
)
def test_events_are_cut_where_they_end_however_they_arrive(events, sizes):
    whole = [end.join(lines) + end + end for end, lines in events]
    body = b"".join(whole)
    found = asyncio.run(parts(body, sizes))
    assert b"".join(found) == body
    found = [each for each in found if each.strip(b"\r\n")]
    assert [event_data(each) for each in found] == [event_data(each) for each in whole]


def test_what_a_large_event_costs_is_in_proportion_to_its_size():
    body = b"data: " + b"x" * 6_000_000 + b"\n\n"
    assert asyncio.run(parts(body, [64])) == [body]  # 94,000 parts: hours, were each joined to a copy


async def parts(body, sizes):
    async def arriving():
        at, number = 0, 0
        while at < len(body):
            size = sizes[number % len(sizes)]
            yield body[at : at + size]
            at, number = at + size, number + 1

    response = httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=arriving())
    return [part async for part, _ in parts_of(response)]


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: {}\n\n", b"{}"),
        (b"event: message\r\ndata: {}\r\n\r\n", b"{}"),
        (b"id: 1\ndata: \n\n", b""),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"data:a\rdata: b\r\r", b"a\nb"),
        (b"data: {}\nid: a\0b\n\n", b"{}"),
    ],
)
def test_data_of_an_event(event, data):
    assert event_data(event) == data


def test_what_is_between_two_neighbours_goes_no_further():
    headers = [(b"connection", b"close, X-Mine"), (b"x-mine", b"1"), (b"te", b"trailers"), (b"a", b"1"), (b"a", b"2")]
    assert end_to_end(headers) == [(b"a", b"1"), (b"a", b"2")]
