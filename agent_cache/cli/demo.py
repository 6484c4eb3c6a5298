"""`agent-cache demo`: five scripted agents share a cache, and every answer is compared with the store.

The agents follow the scripts of five lessons in a small shop. A `Run` holds their calls, an `AnswerChecker` compares
each answer with the shop's own, and a picture shows the run. With `--fast` the event loop skips every wait, so that a
run takes no time and is the same each time.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import functools
import re
import selectors
import sys
import tomllib
from collections.abc import Callable
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.resources import files
from inspect import signature
from io import StringIO
from math import ceil
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, AgentLoopDetectedError, configure
from agent_cache.cli.output import write_file
from agent_cache.testing import FakeClock

try:
    from rich.console import Console, Group, RenderableType
    from rich.live import Live
    from rich.panel import Panel
    from rich.syntax import Syntax
    from rich.table import Table
    from rich.text import Text
except ModuleNotFoundError as error:
    raise ModuleNotFoundError('the demo draws with rich: pip install "agent-cache[cli]"') from error

__all__ = ["add_options", "run"]

# The shop

READ_SECONDS, WRITE_SECONDS = 0.24, 0.32  # of a call to the store and back, give or take a fifth
Row = dict[str, Any]


class Shop:
    """A shop in memory, with the tools that read from it and write to it: of each the tags, and what it does there."""

    def __init__(self) -> None:
        people = (("mia", "Mia Lind", 120), ("noah", "Noah Berg", 310), ("zoe", "Zoe Falk", 75))
        goods = (("bag", 59, 12), ("mug", 25, 40), ("lamp", 39, 7), ("radio", 89, 3))
        customers: dict[str, Row] = {
            one: {"id": one, "name": name, "email": f"{one}@example.com", "balance": sum_} for one, name, sum_ in people
        }
        products: dict[str, Row] = {one: {"id": one, "price": price, "stock": n} for one, price, n in goods}
        orders: dict[int, Row] = {}

        def add_order(customer_id: str, product_id: str, status: str = "pending") -> Row:
            price, number = products[product_id]["price"], 1001 + len(orders)
            orders[number] = {"id": number, "customer_id": customer_id, "product_id": product_id, "paid": price,
                              "status": status}  # fmt: skip
            return orders[number]

        def book(order: Row, number: int, status: str) -> Row:
            """Sell a product, or take it back, with the money of its order."""
            customers[order["customer_id"]]["balance"] -= number * order["paid"]
            products[order["product_id"]]["stock"] -= number
            order["status"] = status
            return order

        def set_price(product_id: str, price: int) -> Row:
            products[product_id]["price"] = price
            return products[product_id]

        add_order("mia", "mug")
        add_order("mia", "radio", "shipped")
        add_order("noah", "lamp")
        add_order("zoe", "bag")
        of_order = ["customer:{customer_id}", "order:{result[][id]}"]
        sells = ["customer:{customer_id}", "product:{product_id}"]
        takes_back = ["order:{order_id}", "customer:{result[customer_id]}", "product:{result[product_id]}"]
        self.reads: dict[str, tuple[Any, Callable[..., Any]]] = {
            "find_customer": (  # only the result shows which customer it is
                "customer:{result[id]}", lambda email: next(one for one in customers.values() if one["email"] == email)
            ),
            "get_customer": ("customer:{customer_id}", lambda customer_id: customers[customer_id]),
            "get_product": ("product:{product_id}", lambda product_id: products[product_id]),
            "list_products": ("product", lambda: [products[one] for one in sorted(products)]),  # of every product
            "get_order": ("order:{order_id}", lambda order_id: orders[order_id]),
            "list_orders": (
                of_order, lambda customer_id: [one for one in orders.values() if one["customer_id"] == customer_id]
            ),
        }  # fmt: skip
        self.writes: dict[str, tuple[Any, Callable[..., Any]]] = {
            "set_price": (["product:{product_id}"], set_price),
            "place_order": (
                sells, lambda customer_id, product_id: book(add_order(customer_id, product_id), 1, "pending")
            ),
            "cancel_order": (takes_back, lambda order_id: book(orders[order_id], -1, "cancelled")),
            "ship_order": (["order:{order_id}"], lambda order_id: book(orders[order_id], 0, "shipped")),
        }  # fmt: skip


# The lessons

AGENTS = ("Ada", "Ben", "Cleo", "Dev", "Eve")


class Lesson(NamedTuple):
    """One thing that a cache may get wrong, and the calls that show it, as in `demo.toml`."""

    name: str
    begins: float
    caption: str
    script: str

    def steps(self, agent: str) -> list[str]:
        """The calls of one agent."""
        lines = (line.split(maxsplit=1) for line in self.script.strip().splitlines())
        return next(steps.split(", ") for name, steps in lines if name in {agent, "All"})


_SCRIPT: dict[str, Any] = tomllib.loads(files(__package__).joinpath("demo.toml").read_text("utf-8"))
LESSONS = [Lesson(**one) for one in _SCRIPT["lessons"]]
EXAMPLE: str = _SCRIPT["example"]
RUN_SECONDS = 7.0  # of all lessons, give or take the latencies


# The run


@dataclass(slots=True)
class Call:
    """One call of one agent. `outcome`, a key of `OUTCOMES`, and what follows are set when it ends: seconds that the
    cache saved, tags that a write invalidated, and whether the store gave this answer at some moment of the call.
    """

    agent: str
    tool: str
    arguments: tuple[object, ...]
    started: float
    ended: float | None = None
    outcome: str = ""
    saved: float = 0.0
    drops: tuple[str, ...] = ()
    is_right: bool | None = None


CURRENT_CALL: ContextVar[Call] = ContextVar("current_call")


class AnswerChecker:
    """Compares the answers of reads with those of the store.

    It keeps every answer that the store has given to each question, with the write that has replaced it: at the instant
    of each change it asks all questions again, past the cache. An answer is right if it was true at some moment of the
    call. Nobody knows of a write that has not returned, so what it replaces counts as true until then.
    """

    def __init__(self, ask: Callable[[str, tuple[object, ...]], object]) -> None:
        self._ask = ask
        self._versions: dict[tuple[str, tuple[object, ...]], list[list[Any]]] = {}

    def watch(self, call: Call) -> None:
        """Keep the answers to the question of a call, which begins."""
        question = call.tool, call.arguments
        if question not in self._versions:
            self._versions[question] = [[self._ask(*question), None]]

    def is_right(self, call: Call, answer: object) -> bool:
        """Whether an answer to a call, which has ended, was true at some moment of it."""
        return any(
            version == answer and (write is None or write.ended is None or write.ended > call.started)
            for version, write in self._versions[call.tool, call.arguments]
        )

    def record_change(self, write: Call) -> None:
        """Ask every question again, at the instant at which `write` has changed the store."""
        for question, versions in self._versions.items():
            answer = self._ask(*question)
            if answer != versions[-1][0]:
                versions[-1][1] = write
                versions.append([answer, None])


class Run:
    """One run of all lessons: the calls of the agents, in the order they began, and their totals.

    With `sabotage`, `set_price` stays undecorated.
    """

    def __init__(self, *, seed: int, is_simulated: bool, sabotage: bool = False) -> None:
        self.seed, self.is_simulated = seed, is_simulated
        self.calls: list[Call] = []
        self.session = AgentCacheSession(session_id="demo", loop_detection=False)
        self.clock: Callable[[], float] = lambda: 0.0  # seconds since it began; at the end, how long it took
        self._chance = Random(seed)  # noqa: S311  # no secret: a seed is there to be repeated
        shop = Shop()
        self._reads, every = shop.reads, {**shop.reads, **shop.writes}
        self._checker = AnswerChecker(lambda tool, arguments: copy.deepcopy(every[tool][1](*arguments)))
        self._tools: dict[str, Any] = {
            name: AgentCache(tags, name=f"demo:{name}")(self._remote(method, READ_SECONDS))
            for name, (tags, method) in shop.reads.items()
        }
        for name, (tags, method) in shop.writes.items():
            self._tools[name] = self._remote(method, WRITE_SECONDS, is_write=True)
            if not (sabotage and name == "set_price"):
                self._tools[name] = AgentCacheInvalidator(tags, name=f"demo:{name}")(self._tools[name])

    def _remote(self, method: Callable[..., Any], latency: float, *, is_write: bool = False) -> Callable[..., Any]:
        """A tool that calls the shop as over a network.

        A call reaches it half-way. So a write takes effect before its caller knows, which is when caches go wrong.
        """

        @functools.wraps(method)
        async def tool(*arguments: object) -> Any:
            request, reply = (latency / 2 * self._chance.uniform(0.8, 1.2) for _ in range(2))
            await asyncio.sleep(request)
            answer = copy.deepcopy(method(*arguments))
            if is_write:
                self._checker.record_change(CURRENT_CALL.get())
            await asyncio.sleep(reply)
            return answer

        return tool

    @property
    def answers(self) -> dict[str, int]:
        """Counts of the answers that were checked, right and stale."""
        verdicts = [call.is_right for call in self.calls if call.is_right is not None]
        return {"checked": len(verdicts), "right": verdicts.count(True), "stale": verdicts.count(False)}

    def play(self) -> None:
        """Run all agents at once, with a cache of their own, until each has finished its script or was stopped."""
        with (
            configure(remote=None, backup=None, enabled=True, max_bytes=None),
            FakeClock(0.0) if self.is_simulated else nullcontext() as clock,
            asyncio.Runner(loop_factory=functools.partial(InstantLoop, clock) if clock else None) as runner,
        ):
            runner.run(self._run_agents())

    async def _run_agents(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.clock = lambda: loop.time() - began
        async with self.session, asyncio.TaskGroup() as group:
            for agent in AGENTS:
                group.create_task(self._run_agent(agent))
        ended = self.clock()
        self.clock = lambda: ended

    async def _run_agent(self, agent: str) -> None:
        with suppress(AgentLoopDetectedError):  # the call that was stopped is in `calls`
            async with AgentCacheSession(session_id=agent, max_tool_repeats=5) as session:
                for lesson in LESSONS:
                    await self._follow(agent, session, lesson.begins, lesson.steps(agent))

    async def _follow(self, agent: str, session: AgentCacheSession, begins: float, steps: list[str]) -> None:
        for step in steps:
            start, tool, *words = step.split()
            await asyncio.sleep(float(start) if start[0] == "+" else max(0.0, begins + float(start) - self.clock()))
            if tool == "browse":
                await self._follow(agent, session, begins, self._chance.sample(_SCRIPT["browsed"], 3))
            else:
                arguments = tuple(int(word) if word.isdigit() else word for word in words)
                await self._call(session, Call(agent, tool, arguments, self.clock()))

    async def _call(self, session: AgentCacheSession, call: Call) -> None:
        self.calls.append(call)
        CURRENT_CALL.set(call)
        tool, saved = self._tools[call.tool], session.metrics.time_saved
        is_read = call.tool in self._reads
        if is_read:
            self._checker.watch(call)
        try:
            answer = await tool(*call.arguments)
            if is_read:
                call.outcome = session.get_execution_trace()[-1].source
                call.is_right = self._checker.is_right(call, answer)
            else:
                named = dict(zip(signature(tool).parameters, call.arguments, strict=False))
                tags = getattr(tool, "resource", ())  # none if it was left undecorated
                call.drops, call.outcome = tuple(one.format(**named, result=answer) for one in tags), "write"
            call.saved = session.metrics.time_saved - saved
        except AgentLoopDetectedError:
            call.outcome = "stopped"
            raise
        finally:
            call.ended = self.clock()


class InstantLoop(asyncio.SelectorEventLoop):
    """An event loop for `--fast`: where it would wait for a timer, its clock jumps to that timer."""

    def __init__(self, clock: FakeClock) -> None:
        class Selector(selectors.SelectSelector):
            def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
                clock.advance(max(0.0, timeout or 0.0))
                return super().select(None if timeout is None else 0)

        self.time = clock  # type: ignore[method-assign]  # its clock
        super().__init__(Selector())


# The picture

GREY, STALE = "bright_black", ("▲", "STALE", "bold white on red")
PANEL = functools.partial(Panel, border_style=GREY, title_align="left", subtitle_align="left")
OUTCOMES: dict[str, list[str]] = _SCRIPT["outcomes"]


def sign_of(call: Call) -> tuple[str, str, str]:
    """Mark, word and style of a call. That its answer was stale comes before anything else."""
    if call.is_right is False:
        return STALE
    mark, style, *_ = OUTCOMES.get(call.outcome, ("─", GREY))
    return mark, call.outcome, style


def save_svg(run: Run, path: Path) -> None:
    """Save the picture of a finished run and its summary: the same bytes for the same run."""
    console = Console(record=True, file=StringIO(), force_terminal=True, color_system="truecolor", no_color=False,
                      width=100, height=31)  # fmt: skip
    console.print(draw(run, console))
    console.print(draw_summary(run))
    picture = console.export_svg(title="agent-cache demo", unique_id="agent-cache-demo")
    # The reader's own fonts, where rich names one to be fetched from a third party.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    write_file(path, [picture.replace("Fira Code, monospace", "Menlo, Consolas, DejaVu Sans Mono, monospace")])


class PipedConsole(Console):
    """A console whose reader may go: of itself Rich would exit with 1, which says that an answer was stale."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def draw(run: Run, console: Console) -> RenderableType:
    """The run at this moment: lanes, the last calls and totals. All pictures of a run are equally high."""
    metrics, answers = run.session.get_metrics(), run.answers
    totals = {
        "hit rate": f"{metrics['hit_rate']:.0%}",
        "time saved": f"{metrics['time_saved']:.1f} s",
        "runs avoided": f"{metrics['hits'] + metrics['shared']}",
        "answers right": f"{answers['right']} of {answers['checked']}",
        "stale": f"{answers['stale']}",
    }
    grid = Table.grid(expand=True)
    for _ in totals:
        grid.add_column(justify="center", ratio=1, no_wrap=True)
    styles = {"stale": STALE[2] if answers["stale"] else "bold green"}
    grid.add_row(*(Text(value, styles.get(label, "bold")) for label, value in totals.items()))
    grid.add_row(*(Text(label, GREY) for label in totals))
    rows = max(3, min(console.height - 1, 30) - 15)  # lines around the log
    return Group(draw_lanes(run, console.width - 4), draw_log(run, rows), PANEL(grid))


def draw_lanes(run: Run, width: int) -> RenderableType:
    """A line of cells for each agent, the names of the lessons below, and the counts of outcomes as a legend."""
    margin, now = max(map(len, AGENTS)) + 2, run.clock()
    room, span = max(20, width - margin), max(RUN_SECONDS, now)
    borders = [min(room - 1, int(lesson.begins / span * room)) for lesson in LESSONS]
    current = sum(lesson.begins <= now for lesson in LESSONS[1:])

    def lane(agent: str) -> list[tuple[str, str]]:
        cells = [("┊", GREY) if cell in borders[1:] else (" ", "") for cell in range(room)]
        # A hit is one cell wide, so it is drawn after the bars, and over them.
        points = {"hit", "stopped"}
        for call in sorted((c for c in run.calls if c.agent == agent), key=lambda call: call.outcome in points):
            first = last = min(room - 1, int(call.started / span * room))
            if call.outcome not in points:
                ended = now if call.ended is None else call.ended
                # The cell in which the next bar may begin stays free, so that two bars stay two.
                last = max(first, min(room - 1, ceil(ended / span * room) - 2))
            mark, _, style = sign_of(call)
            cells[first : last + 1] = [(mark, style)] * (last - first + 1)
        return cells

    axis = [(" ", "")] * room
    for number, lesson in enumerate(LESSONS[: current + 1]):
        end = [*(border - 1 for border in borders), room][number + 1]
        for cell, letter in zip(range(borders[number], end), f"{number + 1} {lesson.name}", strict=False):
            axis[cell] = (letter, "bold" if number == current else GREY)
    legend, metrics = Text(), run.session.get_metrics()
    for word, (mark, style, metric, _) in OUTCOMES.items():
        legend.append(mark, style).append(f" {metrics[metric]:>2} {word}  ")
    legend.rstrip()
    clock = f" ─ {now:.1f} s{', simulated' if run.is_simulated else ''}"
    title = f"[bold default]agent-cache demo[/][{GREY}] ─ [/]five agents, one store, seed {run.seed}[{GREY}]{clock}[/]"
    lines = [[(LESSONS[current].caption, "bold")], []]
    lines += [[(agent.ljust(margin), ""), *lane(agent)] for agent in AGENTS]
    lines += [[(" " * margin, ""), *axis]]
    body = Group(*(Text.assemble(*cells, no_wrap=True, overflow="crop") for cells in lines))
    return PANEL(body, title=title, subtitle=legend)


def draw_log(run: Run, lines: int) -> RenderableType:
    """A table of the last calls, `lines` rows high."""
    ended = sorted((call for call in run.calls if call.ended is not None), key=lambda call: call.ended or 0.0)
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style=GREY, show_edge=False)
    for name, width in (("sec", 5), ("agent", 5), ("call", 30), ("outcome", 9), ("ms", 4)):
        table.add_column(name, justify="right" if name in ("sec", "ms") else "left", width=width, no_wrap=True)
    table.add_column("", ratio=1, no_wrap=True, overflow="ellipsis")
    for call in ended[-lines:]:
        mark, word, style = sign_of(call)
        saved = f", saved {call.saved * 1000:.0f} ms" if call.saved else ""
        unchecked = "the same answer again" if word == "stopped" else f"drops {' '.join(call.drops) or 'nothing'}"
        remark = {
            True: Text(f"✓ true{saved}", "green"),
            False: Text("✗ differs from the store", "red"),
            None: Text(unchecked, style),
        }[call.is_right]
        text, took = f"{call.tool}({', '.join(map(str, call.arguments))})", ((call.ended or 0.0) - call.started) * 1000
        table.add_row(f"{call.ended:.2f}", call.agent, text, Text(f"{mark} {word}", style), f"{took:.0f}", remark)
    for _ in range(lines - len(ended)):
        table.add_row()
    return table


def draw_summary(run: Run) -> RenderableType:
    """A line for each outcome with its count, the verdict, and an example to copy."""
    grid, metrics = Table.grid(padding=(0, 1)), run.session.get_metrics()
    for _ in range(4):
        grid.add_column(no_wrap=True, overflow="ellipsis")
    stopped = ", ".join(call.agent for call in run.calls if call.outcome == "stopped")
    for word, (mark, style, metric, meaning) in OUTCOMES.items():
        grid.add_row(Text(mark, style), f"{metrics[metric]:3}", Text(word, style), meaning.format(agents=stopped))
    checked, stale = run.answers["checked"], run.answers["stale"]
    found = f"{stale} STALE, true at no moment of the call" if stale else "none was stale"
    verdict = Text(*(("✗ ", "bold red") if stale else ("✓ ", "bold green")))
    verdict.append(f"{checked} of {checked} answers were compared with the store: {found}", "bold")
    code = Syntax(EXAMPLE.rstrip(), "python", theme="ansi_dark", background_color="default")
    offer = Text("To have the same for your own tools:", GREY)
    return PANEL(Group(grid, verdict, Text(), offer, code), title="[bold default]What happened[/]")


# The command


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `agent-cache demo`."""
    parser.description = (
        "Runs five scripted agents at once against a small store in memory, shows what the cache "
        "does, and compares every answer with the store. Exit code 0: all answers were right; 1: one was stale."
    )
    add = parser.add_argument
    add("--fast", action="store_true", help="no waiting: the same run on a simulated clock")
    add("--seed", type=int, default=0, metavar="N", help="of latencies and of what is browsed (default 0)")
    add("--svg", type=Path, metavar="PATH", help="also save the last picture")
    caught = "leave the decorator off one write, to see the check catch it (exit code 1)"
    add("--sabotage", action="store_true", help=caught)


def run(options: argparse.Namespace) -> int:
    """Run the demo and return the exit code: 0 all answers were right, 1 one was stale, 2 usage."""
    console = PipedConsole(highlight=False)
    played = Run(seed=options.seed, is_simulated=options.fast, sabotage=options.sabotage)
    if console.is_terminal and not options.fast:
        with Live(console=console, get_renderable=lambda: draw(played, console), refresh_per_second=12):
            played.play()
    else:
        played.play()
        console.print(draw(played, console))
    console.print(draw_summary(played))
    if options.svg is not None:
        save_svg(played, options.svg)
        print(f"saved {options.svg}", file=sys.stderr)
    return 1 if played.answers["stale"] else 0
