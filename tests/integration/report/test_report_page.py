"""The page of a report in a real browser: what it draws, what is read without seeing it, and that it does no more."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_cache.__main__ import main
from tests.harness.cassettes import TimedRun, shop_run

pytest.importorskip("bokeh", reason='a report needs pip install "agent-cache[report]"')
pytest.importorskip("jinja2", reason='a report needs pip install "agent-cache[report]"')


HIT, MISS, WRITE, MODEL, FUNCTION = "15935a", "3a6ee0", "d2640f", "7a4cc9", "c5cedb"
LOOP, RAISED, DRIFT, SELECTED = "e0a100", "c21f3a", "d6249f", "111827"

PIXELS = """
(figure) => {
  const found = {};
  const visit = (node) => {
    for (const child of node.querySelectorAll("*")) {
      if (child.shadowRoot) visit(child.shadowRoot);
      if (child.tagName !== "CANVAS" || !child.width || !child.height) continue;
      const { data } = child.getContext("2d").getImageData(0, 0, child.width, child.height);
      for (let at = 0; at < data.length; at += 4) {
        if (data[at + 3] !== 255) continue;
        const colour = [data[at], data[at + 1], data[at + 2]].map((one) => one.toString(16).padStart(2, "0")).join("");
        found[colour] = (found[colour] || 0) + 1;
      }
    }
  };
  visit(figure);
  return found;
}
"""
"""How many pixels of the canvases of a figure have each colour."""


def pixels(shown: Any, letter: str = "a", *, least: int = 10, of: Sequence[str] = ()) -> dict[str, int]:
    """How many there are of each colour, as soon as it is more than `least` of these: Bokeh paints when it is idle."""
    for _ in range(100):
        shown.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 20)))")
        found: dict[str, int] = shown.locator(f"#figure-{letter}").evaluate(PIXELS)
        if all(found.get(colour, 0) > least for colour in of):
            break
    return found


def range_of(shown: Any) -> tuple[float, float]:
    return tuple(
        shown.evaluate(
            "() => { const { x_range } = Bokeh.documents[0].roots()[0]; return [x_range.start, x_range.end] }"
        )
    )


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Write the page of some runs."""

    def write(*runs: TimedRun, names: tuple[str, ...] = ("refund.jsonl", "later.jsonl", "third.jsonl")) -> Path:
        path = tmp_path / "report.html"
        saved = [str(run.save(tmp_path / name)) for run, name in zip(runs, names, strict=False)]
        assert main(["report", *saved, "-o", str(path)]) == 0
        return path

    return write


def test_the_timeline_is_drawn(written: Callable[..., Path], show: Callable[..., Any]):
    shown = show(written(shop_run()))
    of_bars, of_marks = (MISS, WRITE, MODEL, FUNCTION), (HIT, LOOP)
    pixels(shown, of=of_marks)
    drawn = pixels(shown, least=200, of=of_bars)
    for colour in of_bars:
        assert drawn.get(colour, 0) > 200, colour
    for colour in of_marks:
        assert drawn.get(colour, 0) > 10, colour
    assert SELECTED not in drawn
    assert drawn[FUNCTION] > drawn[MISS]  # two functions enclose the rest
    assert shown.locator("#loading").is_hidden()
    assert shown.title() == "refund.jsonl - agent-cache"


def test_the_table_has_every_call(written: Callable[..., Path], show: Callable[..., Any]):
    run = shop_run()
    shown = show(written(run))
    rows = shown.locator(".calls tbody tr")
    assert rows.count() == len(run.calls)
    numbers = rows.locator("th").all_text_contents()
    assert [*map(int, numbers)] == [call.id for call in run.calls]  # those of a task together, as in the file
    refunds = rows.filter(has_text="refund")
    assert refunds.count() == 2
    cells = refunds.nth(1).locator("th, td").all_inner_texts()
    assert cells[1].strip() == "write"
    assert "order_id='W2', amount=40" in cells[2]
    assert "raised PermissionError: too much" in cells[3]
    assert cells[4:6] == ["700 ms", "150 ms"]
    assert shown.locator(".calls .badge.loop").all_inner_texts() == [
        "loop repeat: notice",
        "loop repeat: answered by a notice",
    ]


def test_it_says_what_the_run_took_and_saved(written: Callable[..., Path], show: Callable[..., Any]):
    pytest.importorskip("genai_prices")
    shown = show(written(shop_run()))
    summary = shown.locator("#summary").inner_text()
    assert re.search(r"3,000 tokens sent, 300 received", summary)
    assert "$0.0135" in summary
    assert "4 tool runs not made: 3 cached, 1 shared" in summary
    assert "57%" in summary  # 4 of 7 reads
    assert "1 raised, 2 in loops" in summary


def test_everything_is_done_with_keys(written: Callable[..., Path], show: Callable[..., Any]):
    shown = show(written(shop_run()))
    whole = range_of(shown)
    focused = []
    for _ in range(9):
        shown.keyboard.press("Tab")
        focused.append(shown.evaluate("() => document.activeElement.id || document.activeElement.className"))
    assert focused[:7] == ["skip", "zoom-in", "zoom-out", "earlier", "later", "whole", "figure-a"]
    shown.locator("#figure-a").focus()
    shown.keyboard.press("+")
    zoomed = range_of(shown)
    assert zoomed[1] - zoomed[0] == pytest.approx((whole[1] - whole[0]) / 2)
    shown.keyboard.press("ArrowRight")
    assert range_of(shown)[0] > zoomed[0]
    shown.keyboard.press("0")
    assert range_of(shown) == pytest.approx(whole)
    shown.locator("#zoom-in").focus()
    shown.keyboard.press("Enter")
    assert range_of(shown) == pytest.approx(zoomed)
    shown.keyboard.press("Tab")

    rows = shown.locator(".calls tbody tr")
    rows.first.focus()
    shown.keyboard.press("ArrowDown")
    assert shown.evaluate("() => document.activeElement.id") == "a1"
    assert SELECTED not in pixels(shown)
    shown.keyboard.press("Enter")
    assert rows.nth(1).get_attribute("aria-current") == "true"
    assert pixels(shown, least=100, of=[SELECTED])[SELECTED] > 100
    assert shown.evaluate("() => getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_bar_leads_to_its_row_and_says_what_it_is(written: Callable[..., Path], show: Callable[..., Any]):
    run = TimedRun()
    run.add("shop:get_order", 0, 100, source="miss", arguments={"order_id": "<b>W1</b>"})
    shown = show(written(run))
    box = shown.locator("#figure-a").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + 26
    shown.mouse.move(x, y)
    shown.wait_for_selector("#tip:not([hidden])")
    tip = shown.locator("#tip").inner_text()
    assert tip.splitlines()[0] == "get_order"
    assert "order_id='<b>W1</b>'" in tip
    assert shown.locator("#tip *").evaluate_all("(all) => all.map((one) => one.tagName)") == ["B", *["SPAN"] * 3]
    shown.mouse.click(x, y)
    shown.wait_for_selector("#a0[aria-current=true]")
    assert shown.evaluate("() => document.activeElement.id") == "a0"


def test_rows_are_searched_and_chosen(written: Callable[..., Path], show: Callable[..., Any]):
    shown = show(written(shop_run()))
    visible = shown.locator(".calls tbody tr:visible")
    shown.get_by_label("Search").fill("REFUND w2")
    assert visible.count() == 1
    assert shown.locator("#found").inner_text() == "1 of 15 rows"
    shown.get_by_label("Search").fill("")
    shown.get_by_label("Show").select_option("hit")
    assert visible.count() == 3
    shown.get_by_label("Show").select_option("trouble and drift")
    assert visible.count() == 3
    shown.get_by_label("Show").select_option("all calls")
    assert visible.count() == 15


HOSTILE = (
    "<script>window.pwned=1</script>",
    "</script><script>window.pwned=1</script>",
    "<img src=x onerror='window.pwned=1'>",
    '"><svg onload=window.pwned=1>',
    "' autofocus onfocus='window.pwned=1",
    "javascript:window.pwned=1",
    "{{ 7 * 7 }}{% raw %}",
    "<!--",
    "]]>&lt;b&gt;",
    "$$\\href{javascript:pwned=1}{x}$$",
    "@{n}$index${window.pwned=1}",
    "\u202egnirts\u2066 \x1b[31m\x00",
    "<style>*{display:none}</style>",
    "<base href=//evil.example><link rel=stylesheet href=//evil.example/x.css>",
)


def hostile_run(value: int = 1) -> TimedRun:
    run = TimedRun(model=HOSTILE[0], recorded_at=HOSTILE[2])
    for number, text in enumerate(HOSTILE):
        error = {"error": {"type": text, "message": text, "args": [text]}}
        loops = {"value": {text: [text]}, "instead": [text, text], "loops": [[text, text, 0]]}
        for outcome in (error, loops):
            run.add(
                text, number * 10, 5, source="write", arguments={"text": text, "x": [text, value]}, outcome=outcome,
                tags=[text],
            )  # fmt: skip
        run.add(text, number * 10, 9, kind="llm", model=text, input_tokens=5, output_tokens=value)
    return run


@pytest.mark.parametrize("several", [False, True], ids=["one", "two"])
def test_hostile_text_is_text(several: bool, written: Callable[..., Path], show: Callable[..., Any]):
    runs = [hostile_run(), hostile_run(2)] if several else [hostile_run()]
    names = ("<img src=x onerror=pwned=1>.jsonl", "'\"><script>pwned=1<.jsonl")
    shown = show(written(*runs, names=names))
    assert shown.evaluate("() => window.pwned") is None
    number = {
        selector: shown.evaluate("(selector) => document.querySelectorAll(selector).length", selector)
        for selector in (
            "img, svg, base, link, object, embed, iframe",
            "[onerror], [onload], [onfocus], [autofocus]",
            "body style",
            "script",
        )
    }
    assert list(number.values()) == [0, 0, 0, 4]  # Bokeh's program and the data as text, ours, and Bokeh's that runs
    text = shown.locator("#calls").text_content()
    for one in HOSTILE:
        if one.isprintable():
            assert one in text
    assert r"\u202egnirts\u2066 \x1b[31m\x00" in text
    assert "\u202e" not in shown.content()
    assert "49{% raw %}" not in text
    assert names[0] in shown.locator("h1").inner_text()
    box = shown.locator("#figure-a").bounding_box()
    for part in range(1, 20):
        shown.mouse.move(box["x"] + 60 + (box["width"] - 60) * part / 20, box["y"] + 26)
    assert shown.evaluate("() => window.pwned") is None


def test_the_policy_of_the_page_lets_no_other_script_run(
    written: Callable[..., Path], browser: Any, show: Callable[..., Any]
):
    """Should a text become an element one day, it is still no program, and nothing is fetched for it."""
    path = written(shop_run())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', path.read_text("utf-8"))[1]
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert re.fullmatch(r".*script-src( 'sha256-[^']+'){2}", policy)
    context = browser.new_context(offline=True)
    shown = context.new_page()
    shown.goto(path.as_uri())
    shown.wait_for_selector("html[data-ready=yes]", state="attached")
    shown.evaluate("""() => {
      const script = document.createElement("script");
      script.textContent = "window.pwned = 1";
      document.body.append(script);
      const holder = document.createElement("div");
      holder.innerHTML = "<img src=x onerror='window.pwned = 1'><a id=link href='javascript:window.pwned = 1'>x</a>";
      document.body.append(holder);
      document.getElementById("link").click();
    }""")
    assert shown.evaluate("() => fetch('https://example.com').then(() => 'sent', () => 'refused')") == "refused"
    assert shown.evaluate("() => window.pwned") is None
    context.close()


def test_without_scripts_the_table_is_there(written: Callable[..., Path], show: Callable[..., Any]):
    shown = show(written(shop_run()), waits=False, java_script_enabled=False)
    assert shown.get_by_text("needs scripts, which are switched off").is_visible()
    assert shown.get_by_role("row").filter(has_text="refund").count() == 3  # two calls, and the sums of the tool


def test_two_runs_are_side_by_side_with_their_drifts(written: Callable[..., Path], show: Callable[..., Any]):
    shown = show(written(shop_run(), shop_run(amount=45, writes=False)))
    boxes = [shown.locator(f"#figure-{letter}").bounding_box() for letter in "ab"]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    assert all(pixels(shown, letter, of=[DRIFT]).get(DRIFT, 0) > 10 for letter in "ab")
    drifts = shown.locator(".drifts tbody tr")
    assert drifts.count() == 2
    assert drifts.nth(0).locator("td").all_inner_texts()[:2] == ["critical", "arguments"]
    assert "amount: 40 -> 45" in drifts.nth(0).inner_text()
    assert shown.locator(".calls tbody tr").count() == 15  # one of which only the first run has
    alone = shown.locator(".calls tr.alone")
    assert alone.count() == 1
    assert "not made" in alone.inner_text()
    assert shown.locator(".calls tr.drifted").count() == 2
    shown.locator("#zoom-in").click()
    ranges = shown.evaluate("() => Bokeh.documents.map((one) => one.roots()[0].x_range.end)")
    assert ranges[0] == ranges[1]
    drifts.nth(0).get_by_role("link").click()
    assert shown.evaluate("() => document.activeElement.getAttribute('aria-current')") == "true"
    for letter in "ba":  # the same call of the other run, too
        assert pixels(shown, letter, least=50, of=[SELECTED]).get(SELECTED, 0) > 50
    shown.set_viewport_size({"width": 500, "height": 900})
    first, second = shown.evaluate(
        "() => [...document.querySelectorAll('.figure')].map(({ offsetTop: y, offsetHeight: h }) => [y, y + h])"
    )
    assert first[1] <= second[0]


def test_the_marks_of_a_call_do_not_hide_each_other(written: Callable[..., Path], show: Callable[..., Any]):
    """One that raised, was in a loop and has drifted, beside runs in which it had but one of these."""

    def run(amount: int, *, outcome: dict[str, Any]) -> TimedRun:
        made = TimedRun()
        made.add("shop:get", 0, 1, source="miss")
        made.add("shop:refund", 5, 100, source="write", arguments={"amount": amount}, outcome=outcome)
        return made

    error = {"error": {"type": "PermissionError", "message": "too much", "args": []}}
    loop = {"loops": [["repeat", "notice", 0]]}
    alone = [
        pixels(show(written(run(1, outcome=one))), of=[colour]).get(colour, 0)
        for one, colour in ((error, RAISED), ({"value": 1, **loop}, LOOP))
    ]
    shown = show(written(run(1, outcome={"value": 1}), run(2, outcome=error | loop)))
    drawn = pixels(shown, "b", of=[RAISED, LOOP, DRIFT])
    assert min(*alone, drawn[DRIFT]) > 10
    assert [drawn[RAISED], drawn[LOOP]] == [pytest.approx(one, rel=0.3) for one in alone]


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_ten_thousand_calls_are_a_small_page(written: Callable[..., Path], show: Callable[..., Any]):
    run = TimedRun(model="claude-sonnet-4-5")
    for number in range(2500):
        start, lane = number * 25, number + 1
        outer = run.add("shop:handle", start, 100, arguments={"order_id": f"W{number}"}, lane=lane)
        inside = {"parent": outer, "lane": lane}
        order = {"value": {"id": f"W{number}", "status": "late", "price": 40, "customer": "C7"}}
        run.add(
            "shop:get_order", start, 40, source="miss", arguments={"order_id": f"W{number}"}, outcome=order, **inside
        )
        run.add("shop:get_order", start + 41, 0.1, source="hit", arguments={"order_id": f"W{number}"}, **inside)
        run.add("shop:refund", start + 50, 40, source="write", arguments={"order_id": f"W{number}"}, **inside)
    path = written(run)
    assert path.stat().st_size < 2_600_000
    shown = show(path)
    assert shown.locator(".calls tbody tr").count() == 10_000
    assert sum(pixels(shown, of=[FUNCTION]).values()) > 20_000  # bars of a pixel each, and mixed colours
    for _ in range(9):
        shown.locator("#zoom-in").click()
    drawn = pixels(shown, least=200, of=[MISS, WRITE, FUNCTION])
    assert min(drawn[MISS], drawn[WRITE], drawn[FUNCTION]) > 200
    assert drawn[HIT] > 10
    shown.get_by_label("Search").fill("W2499'")
    assert shown.locator(".calls tbody tr:visible").count() == 4
