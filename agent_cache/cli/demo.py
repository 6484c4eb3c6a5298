"""`agent-cache demo`: five scripted agents share a cache, and every answer is compared with the store.

The agents follow the scripts of five lessons in a small shop. A `Run` holds their calls, an `AnswerChecker` compares
each answer with the shop's own, and a view shows the run as text, as JSON or as a picture drawn by `rich`. With
`--fast` the event loop skips every wait, so that a run takes no time and is the same each time. What is slow to import
is imported by the functions that need it, because every command of `agent-cache` imports this module.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import re
import selectors
import sys
import textwrap
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from inspect import signature
from io import StringIO
from math import ceil
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from agent_cache import AgentLoopDetectedError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from agent_cache import AgentCacheSession
    from agent_cache.testing import FakeClock

__all__ = ["SUMMARY", "add_options", "run"]

SUMMARY = "watch five agents share a cache, with every answer checked"
INSTALL_RICH = 'pip install "agent-cache[cli]"'
OFFER = "To have the same for your own tools:"
EXAMPLE = """\
from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession
@AgentCache("order:{order_id}")             # kept, shared while it loads
async def get_order(order_id: int): return await shop.get(order_id)
@AgentCacheInvalidator("order:{order_id}")  # drops what it makes stale
async def ship_order(order_id: int): return await shop.ship(order_id)
async with AgentCacheSession(): ...         # run your agent in here
"""

# The shop

READS = frozenset({"find_customer", "get_customer", "get_order", "get_product", "list_orders", "list_products"})
READ_SECONDS, WRITE_SECONDS = 0.24, 0.32  # of a call to the store and back, give or take a fifth

Row = dict[str, Any]
Tool = Callable[..., Coroutine[Any, Any, Any]]


class Shop:
    """A shop in memory, without cache and without latency (`make_tools` adds both).

    A change happens at one instant, between two steps of the event loop, and `on_change` is called right after it.
    Answers are copies: what was given once stays as it is.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        customers = (("mia", "Mia Lind", 120), ("noah", "Noah Berg", 310), ("zoe", "Zoe Falk", 75))
        products = (("bag", 59, 12), ("mug", 25, 40), ("lamp", 39, 7), ("radio", 89, 3))
        orders = (("mia", "mug", 25, "pending"), ("mia", "radio", 89, "shipped"), ("noah", "lamp", 39, "pending"),
                  ("zoe", "bag", 59, "pending"))  # fmt: skip
        self._customers: dict[str, Row] = {
            one: {"id": one, "name": name, "email": f"{one}@example.com", "balance": balance}
            for one, name, balance in customers
        }
        self._products: dict[str, Row] = {one: {"id": one, "price": p, "stock": n} for one, p, n in products}
        self._orders: dict[int, Row] = {}
        for order in orders:
            self._add_order(*order)

    def _add_order(self, customer_id: str, product_id: str, paid: int, status: str) -> int:
        number = 1001 + len(self._orders)
        row = {"id": number, "customer_id": customer_id, "product_id": product_id, "paid": paid, "status": status}
        self._orders[number] = row
        return number

    def find_customer(self, email: str) -> Row:
        return next(dict(row) for row in self._customers.values() if row["email"] == email)

    def get_customer(self, customer_id: str) -> Row:
        return dict(self._customers[customer_id])

    def get_product(self, product_id: str) -> Row:
        return dict(self._products[product_id])

    def list_products(self) -> list[Row]:
        return [dict(self._products[one]) for one in sorted(self._products)]

    def get_order(self, order_id: int) -> Row:
        return dict(self._orders[order_id])

    def list_orders(self, customer_id: str) -> list[Row]:
        return [dict(row) for row in self._orders.values() if row["customer_id"] == customer_id]

    def set_price(self, product_id: str, price: int) -> Row:
        self._products[product_id]["price"] = price
        self.on_change()
        return self.get_product(product_id)

    def place_order(self, customer_id: str, product_id: str) -> Row:
        order_id = self._add_order(customer_id, product_id, self._products[product_id]["price"], "pending")
        self._book(order_id, 1)
        return self.get_order(order_id)

    def cancel_order(self, order_id: int) -> Row:
        self._orders[order_id]["status"] = "cancelled"
        self._book(order_id, -1)
        return self.get_order(order_id)

    def _book(self, order_id: int, number: int) -> None:
        """Sell a product, or take it back, with the money of its order."""
        order = self._orders[order_id]
        self._customers[order["customer_id"]]["balance"] -= number * order["paid"]
        self._products[order["product_id"]]["stock"] -= number
        self.on_change()

    def ship_order(self, order_id: int) -> Row:
        self._orders[order_id]["status"] = "shipped"
        self.on_change()
        return self.get_order(order_id)


def make_tools(shop: Shop, chance: Random, *, sabotage: bool) -> dict[str, Tool]:
    """Make the agents' tools of the shop's methods: asynchronous, slow and decorated.

    A call reaches the shop half-way, as over a network. So a write takes effect before its caller knows, which is when
    caches go wrong. With `sabotage`, `set_price` stays undecorated and invalidates nothing.
    """
    from agent_cache import AgentCache, AgentCacheInvalidator, tags_from

    def remote(name: str) -> Tool:
        method = getattr(shop, name)
        latency = READ_SECONDS if name in READS else WRITE_SECONDS

        @functools.wraps(method)
        async def tool(*arguments: object) -> Any:
            request, reply = (latency / 2 * chance.uniform(0.8, 1.2) for _ in range(2))
            await asyncio.sleep(request)
            answer = method(*arguments)
            await asyncio.sleep(reply)
            return answer

        return tool

    listed_orders = tags_from("order", lambda _, result: [order["id"] for order in result])
    of_order = ["order:{order_id}", "customer:{result[customer_id]}", "product:{result[product_id]}"]
    decorators: dict[str, Callable[[Tool], Tool]] = {
        "find_customer": AgentCache("customer:{result[id]}"),  # only the result shows which customer it is
        "get_customer": AgentCache("customer:{customer_id}"),
        "get_product": AgentCache("product:{product_id}"),
        "list_products": AgentCache("product"),  # of every product: a write to any of them invalidates it
        "get_order": AgentCache("order:{order_id}"),
        "list_orders": AgentCache(["customer:{customer_id}", listed_orders]),
        "set_price": AgentCacheInvalidator("product:{product_id}"),
        "place_order": AgentCacheInvalidator(["customer:{customer_id}", "product:{product_id}"]),
        "cancel_order": AgentCacheInvalidator(of_order),
        "ship_order": AgentCacheInvalidator("order:{order_id}"),
    }
    tools = {name: decorate(remote(name)) for name, decorate in decorators.items()}
    return tools | {"set_price": remote("set_price")} if sabotage else tools


def tags_written(tool: Tool, arguments: tuple[object, ...], result: object) -> tuple[str, ...]:
    """Return the tags that this call of a write tool has invalidated; none if the tool is undecorated."""
    resource = getattr(tool, "resource", ())
    templates = (resource,) if isinstance(resource, str) else resource
    values = dict(zip(signature(tool).parameters, arguments, strict=False))
    return tuple(template.format(**values, result=result) for template in templates)


# The lessons

AGENTS = ("Ada", "Ben", "Cleo", "Dev", "Eve")


@dataclass(frozen=True, slots=True)
class Lesson:
    """One thing that a cache may get wrong, and the calls that show it.

    Attributes:
        begins: in seconds since the run began.
        script: the calls of each agent, one after the other: start, tool, arguments. A start is in seconds since the
            lesson began or, with a plus, since the agent's call before. `browse` reads three of `BROWSED`.
    """

    name: str
    begins: float
    caption: str
    script: str

    def steps(self, agent: str) -> list[str]:
        """Return the calls of one agent."""
        lines = (line.split(maxsplit=1) for line in self.script.strip().splitlines())
        return next(steps.split(", ") for name, steps in lines if name in {agent, "All"})


BROWSED = ("+0.08 get_product lamp", "+0.08 get_order 1002", "+0.08 list_orders noah", "+0.08 get_customer noah")
RUN_SECONDS = 7.0  # of all lessons, give or take the latencies
LESSONS = (
    Lesson("look around", 0.0, "The first to ask waits for the store; whoever asks later does not.", """
        Ada  0 find_customer mia@example.com, +0.1 list_orders mia, +0.1 get_order 1001, +0 browse
        Ben  0 list_products, +0.1 get_product mug, +0.1 get_product lamp, +0 browse
        Cleo 0.45 list_products, +0.1 get_product mug, +0 browse
        Dev  0.1 get_order 1001, +0.1 get_order 1003, +0.1 list_products, +0 browse
        Eve  0.6 find_customer mia@example.com, +0.1 get_customer zoe, +0 browse
    """),
    Lesson("burst", 1.7, "All five ask for the same product at once: one run, one answer, shared.", """
        All  0 get_product radio, 0.5 get_product radio
    """),
    Lesson("overlap", 2.7, "A price changes while Ben reads it: he may see the old one, nobody later.", """
        Ada  0.55 get_product bag, +0.1 find_customer mia@example.com
        Ben  0 get_product bag, 0.75 get_product bag, +0.1 list_products
        Cleo 0.08 set_price bag 49, +0.05 get_product bag, +0.1 list_products
        Dev  0.2 get_order 1002, 0.9 get_product bag
        Eve  0.15 get_product lamp, 0.95 get_product bag
    """),
    Lesson("result tags", 4.1, "A cancelled order drops what its result names: its customer and its product.", """
        Ada  0 list_orders mia, +0.1 cancel_order 1001, +0.1 list_orders mia, +0.1 get_customer mia
        Ben  0 find_customer mia@example.com, 0.6 find_customer mia@example.com, +0.1 get_customer noah
        Cleo 0.05 get_product mug, 0.65 get_product mug, +0.1 get_product radio
        Dev  0.1 get_order 1001, 0.7 get_order 1001, +0.1 get_order 1003
        Eve  0.7 get_product lamp, +0.1 get_customer zoe
    """),
    Lesson("loop", 5.7, "Eve asks the same again and again: stopped at the fifth equal answer.", """
        Ada  0.05 browse
        Ben  0 place_order noah lamp, +0.1 get_customer noah, +0.1 list_products
        Cleo 0.1 browse
        Dev  0.15 ship_order 1003, +0.1 get_order 1003
        Eve  0 get_order 1004, +0.2 get_order 1004, +0.2 get_order 1004, +0.2 get_order 1004, +0.2 get_order 1004
    """),
)  # fmt: skip


# The run


@dataclass(slots=True)
class Call:
    """One call of one agent. The fields below `started` are set when it ends.

    Attributes:
        outcome: a key of `OUTCOMES`.
        saved: seconds of waiting that the cache has saved.
        drops: tags that a write has invalidated.
        is_right: whether the store gave this answer at some moment of the call. None of a write or a stopped call.
    """

    agent: str
    tool: str
    arguments: tuple[object, ...]
    started: float
    ended: float | None = None
    outcome: str | None = None
    saved: float = 0.0
    drops: tuple[str, ...] = ()
    is_right: bool | None = None

    def __str__(self) -> str:
        return f"{self.tool}({', '.join(map(str, self.arguments))})"

    @property
    def milliseconds(self) -> float:
        return ((self.ended or 0.0) - self.started) * 1000


CURRENT_CALL: ContextVar[Call] = ContextVar("current_call")


class AnswerChecker:
    """Compares the answers of reads with those of the store.

    It keeps every answer that the store has given to each question: at the instant of each change it asks all
    questions again, past the cache. An answer is right if it was true at some moment of the call. Nobody knows of a
    write that has not returned, so a write that still runs when a read begins overlaps it, even if its effect came
    earlier.

    Args:
        ask: answers a tool's name and arguments from the store as it is now.
    """

    def __init__(self, ask: Callable[[str, tuple[object, ...]], object]) -> None:
        self._ask = ask
        self._versions: dict[tuple[str, tuple[object, ...]], list[tuple[object, Call | None]]] = {}

    def begin_read(self, tool: str, arguments: tuple[object, ...]) -> Callable[[object], bool]:
        """Return a function that decides, once the read has ended, whether an answer to it is right."""
        versions = self._versions.setdefault((tool, arguments), [])
        if not versions:
            versions.append((self._ask(tool, arguments), None))
        oldest = len(versions) - 1
        while (write := versions[oldest][1]) is not None and write.ended is None:
            oldest -= 1
        return lambda answer: any(version == answer for version, _ in versions[oldest:])

    def record_change(self, write: Call) -> None:
        """Ask every question again, at the instant at which `write` has changed the store."""
        for (tool, arguments), versions in self._versions.items():
            answer = self._ask(tool, arguments)
            if answer != versions[-1][0]:
                versions.append((answer, write))


class Run:
    """One run of all lessons: the calls of the agents, in the order they began, and their totals.

    Attributes:
        session: encloses the sessions of all agents, so its metrics are their sums.
        show: called with each lesson that begins and each call that has ended.
    """

    def __init__(self, shop: Shop, *, seed: int, is_simulated: bool, sabotage: bool) -> None:
        from agent_cache import AgentCacheSession

        self.seed = seed
        self.is_simulated = is_simulated
        self.calls: list[Call] = []
        self.session = AgentCacheSession(session_id="demo", loop_detection=False)
        self.show: Callable[[Lesson | Call], None] = lambda _: None
        self._chance = Random(seed)  # noqa: S311  # no secret: a seed is there to be repeated
        self._tools = make_tools(shop, self._chance, sabotage=sabotage)
        self._checker = AnswerChecker(lambda tool, arguments: getattr(shop, tool)(*arguments))
        shop.on_change = lambda: self._checker.record_change(CURRENT_CALL.get())
        self._clock: Callable[[], float] = lambda: 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the run began; of a finished run, how long it took."""
        return self._clock()

    @property
    def answers(self) -> dict[str, int]:
        """Counts of the answers that were checked, right and stale."""
        verdicts = [call.is_right for call in self.calls if call.is_right is not None]
        return {"checked": len(verdicts), "right": verdicts.count(True), "stale": verdicts.count(False)}

    @property
    def stopped(self) -> list[str]:
        """The agents that loop detection has stopped."""
        return [call.agent for call in self.calls if call.outcome == "stopped"]

    async def perform(self, view: View) -> None:
        """Run all agents at once until each has finished its script or was stopped."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._clock = lambda: loop.time() - began
        with view(self):
            async with self.session, asyncio.TaskGroup() as group:
                group.create_task(self._announce_lessons())
                for agent in AGENTS:
                    group.create_task(self._run_agent(agent))
            ended = self.seconds
            self._clock = lambda: ended

    async def _announce_lessons(self) -> None:
        for lesson in LESSONS:
            await self._wait_until(lesson.begins)
            self.show(lesson)

    async def _run_agent(self, agent: str) -> None:
        from agent_cache import AgentCacheSession

        try:
            async with AgentCacheSession(session_id=agent, max_tool_repeats=5) as session:
                for lesson in LESSONS:
                    await self._follow(agent, session, lesson.begins, lesson.steps(agent))
        except AgentLoopDetectedError:
            pass  # the call that was stopped is in `calls`

    async def _follow(self, agent: str, session: AgentCacheSession, begins: float, steps: Sequence[str]) -> None:
        for step in steps:
            start, tool, *words = step.split()
            if start.startswith("+"):
                await asyncio.sleep(float(start))
            else:
                await self._wait_until(begins + float(start))
            if tool == "browse":
                await self._follow(agent, session, begins, self._chance.sample(BROWSED, 3))
            else:
                arguments = tuple(int(word) if word.isdigit() else word for word in words)
                await self._call(session, Call(agent, tool, arguments, self.seconds))

    async def _wait_until(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds - self.seconds))

    async def _call(self, session: AgentCacheSession, call: Call) -> None:
        self.calls.append(call)
        CURRENT_CALL.set(call)
        tool, saved = self._tools[call.tool], session.metrics.time_saved
        is_right = self._checker.begin_read(call.tool, call.arguments) if call.tool in READS else None
        try:
            answer = await tool(*call.arguments)
            if is_right is None:
                call.drops = tags_written(tool, call.arguments, answer)
                call.outcome = "write"
            else:
                call.is_right = is_right(answer)
                call.outcome = session.get_execution_trace()[-1].source
            call.saved = session.metrics.time_saved - saved
        except AgentLoopDetectedError:
            call.outcome = "stopped"
            raise
        finally:
            if call.outcome is not None:
                call.ended = self.seconds
                self.show(call)


View = Callable[[Run], AbstractContextManager[None]]
"""Encloses a run and shows it."""


class InstantSelector(selectors.SelectSelector):
    """Advances a clock instead of waiting."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.clock.advance(max(0.0, timeout or 0.0))
        return super().select(None if timeout is None else 0)


class InstantLoop(asyncio.SelectorEventLoop):
    """An event loop for `--fast`: where it would wait for a timer, its clock jumps to that timer."""

    def __init__(self, clock: FakeClock) -> None:
        self._fake_clock = clock
        super().__init__(InstantSelector(clock))

    def time(self) -> float:
        return self._fake_clock()


def play(view: View, *, seed: int, is_fast: bool, sabotage: bool = False) -> Run:
    """Run all lessons once, with a cache of their own.

    Args:
        view: shows the run.
        seed: of the latencies and of what is browsed.
        is_fast: skip every wait; the cache measures on the same simulated clock.
        sabotage: leave the decorator off one write.
    """
    from agent_cache import configure
    from agent_cache.testing import FakeClock

    with (
        configure(remote=None, backup=None, enabled=True, max_bytes=None),
        FakeClock(0.0) if is_fast else nullcontext() as clock,
        asyncio.Runner(loop_factory=functools.partial(InstantLoop, clock) if clock else None) as runner,
    ):
        run = Run(Shop(), seed=seed, is_simulated=is_fast, sabotage=sabotage)
        try:
            runner.run(run.perform(view))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors  # the error of one agent, which has ended the others
    return run


# Parts of every view


@dataclass(frozen=True, slots=True)
class Outcome:
    """How calls ended, and how that is shown.

    Attributes:
        mark: what stands for such a call where there are no colours.
        metric: the session's metric that counts them.
    """

    mark: str
    style: str
    metric: str
    plural: str
    meaning: str


OUTCOMES = {
    "miss": Outcome("━", "yellow", "misses", "misses", "asked the store; kept, unless a write was under way"),
    "hit": Outcome("●", "bold green", "hits", "hits", "asked again later: answered from the cache, at once"),
    "shared": Outcome("┅", "cyan", "shared", "shared", "asked at the same time: waited for the run that was under way"),
    "write": Outcome("▆", "magenta", "invalidations", "writes", "dropped the answers they made stale, and no others"),
    "stopped": Outcome(
        "✗", "bold red", "loop_detections", "stopped", "got the same answer five times and learned nothing: {agents}"
    ),
}
STALE = ("▲", "STALE", "bold white on red")


def sign_of(call: Call) -> tuple[str, str, str]:
    """Return mark, word and style of a call. That its answer was stale comes before anything else."""
    if call.is_right is False:
        return STALE
    if call.outcome is None:
        return "─", "", "bright_black"
    return OUTCOMES[call.outcome].mark, call.outcome, OUTCOMES[call.outcome].style


def summarize(run: Run) -> list[tuple[Outcome, int, str]]:
    """Return the outcomes, each with its count and its meaning."""
    metrics, agents = run.session.get_metrics(), ", ".join(run.stopped) or "nobody"
    return [(each, metrics[each.metric], each.meaning.format(agents=agents)) for each in OUTCOMES.values()]


def conclude(run: Run) -> str:
    """Return one sentence about how many answers were right."""
    checked, stale = run.answers["checked"], run.answers["stale"]
    verdict = f"{stale} STALE, true at no moment of the call" if stale else "none was stale"
    return f"{checked} of {checked} answers were compared with the store: {verdict}"


# JSON and text


@contextmanager
def show_json(run: Run) -> Iterator[None]:
    """Print the finished run as one JSON document. Times are in seconds."""
    yield
    document = {
        "seed": run.seed,
        "is_simulated": run.is_simulated,
        "seconds": run.seconds,
        "answers": run.answers,
        "stopped": run.stopped,
        "metrics": run.session.get_metrics(),
        "calls": [asdict(call) for call in run.calls],
    }
    print(json.dumps(document, indent=2), flush=True)


@contextmanager
def show_text(run: Run) -> Iterator[None]:
    """Print a line of ASCII for each call, and a summary: for pipes, logs, and where `rich` is not installed."""
    print(f"agent-cache demo: {len(AGENTS)} agents, one store, seed {run.seed}", flush=True)
    run.show = print_event
    yield
    metrics = run.session.get_metrics()
    print("\nWhat happened")
    for outcome, count, meaning in summarize(run):
        print(f"{count:5} {outcome.plural:<8} {meaning}")
    avoided = metrics["hits"] + metrics["shared"]
    print(f"\nHit rate {metrics['hit_rate']:.0%}, {avoided} tool runs avoided, {metrics['time_saved']:.1f} s saved.")
    print(f"{conclude(run)}.\n\n{OFFER}\n\n{textwrap.indent(EXAMPLE, '    ')}", end="", flush=True)


def print_event(event: Lesson | Call) -> None:
    """Print the caption of a lesson that begins, or the line of a call that has ended."""
    if isinstance(event, Lesson):
        print(f"\n{LESSONS.index(event) + 1}. {event.caption}", flush=True)
        return
    if event.is_right is None:
        remark = f"drops {', '.join(event.drops)}" if event.drops else ""
    else:
        saved = f", saved {event.saved * 1000:.0f} ms" if event.saved else ""
        remark = f"true{saved}" if event.is_right else "differs from the store"
    _, word, _ = sign_of(event)
    took = f"{event.milliseconds:.0f} ms"
    line = f"{event.ended:6.2f} s  {event.agent:<5}{event!s:<31} {word:<8}{took:>7}  {remark}"
    print(line.rstrip(), flush=True)


# The picture

GREY = "bright_black"
SMALLEST = (80, 20)  # columns and lines of a terminal that has room for the picture
LINES_AROUND_THE_LOG = 15
FRAMES_PER_SECOND = 12


@contextmanager
def show_picture(console: Console, run: Run, *, is_live: bool) -> Iterator[None]:
    """Draw the run, again and again in place if `is_live`, else once at its end, and a summary below it."""
    from rich.live import Live

    def picture() -> RenderableType:
        columns, lines = console.size
        return draw(run, width=columns, height=min(lines - 1, 30))

    async def draw_frames() -> None:
        while True:
            live.update(picture(), refresh=True)
            await asyncio.sleep(1 / FRAMES_PER_SECOND)

    if is_live:
        with Live(picture(), console=console, auto_refresh=False) as live:
            drawing = asyncio.create_task(draw_frames())
            try:
                yield
            finally:
                drawing.cancel()
                live.update(picture(), refresh=True)
    else:
        yield
        console.print(picture())
    console.print(draw_summary(run))


def save_svg(run: Run, path: Path) -> None:
    """Save the picture of a finished run and its summary: the same bytes for the same run."""
    from rich.console import Console

    console = Console(
        record=True,
        file=StringIO(),
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
        width=100,
        height=31,
    )
    with show_picture(console, run, is_live=False):
        pass
    picture = console.export_svg(title="agent-cache demo", unique_id="agent-cache-demo")
    # The reader's own fonts, where rich names one to be fetched from a third party.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    picture = picture.replace("Fira Code, monospace", "Menlo, Consolas, DejaVu Sans Mono, monospace")
    path.write_text(picture, "utf-8")


def draw(run: Run, *, width: int, height: int) -> RenderableType:
    """Draw the run at this moment: lanes, the last calls and totals. All pictures of a run are equally high."""
    from rich.console import Group

    ended = sorted((call for call in run.calls if call.ended is not None), key=lambda call: call.ended or 0.0)
    return Group(draw_lanes(run, width - 4), draw_log(ended, max(3, height - LINES_AROUND_THE_LOG)), draw_totals(run))


def draw_lanes(run: Run, width: int) -> RenderableType:
    """Draw a line of cells for each agent, the names of the lessons below, and the counts of outcomes as a legend."""
    from rich import console, text

    margin = max(map(len, AGENTS)) + 2
    room, span = width - margin, max(RUN_SECONDS, run.seconds)
    borders = [min(room - 1, int(lesson.begins / span * room)) for lesson in LESSONS]
    current = sum(lesson.begins <= run.seconds for lesson in LESSONS[1:])

    def lane(agent: str) -> list[tuple[str, str]]:
        cells = [(" ", "")] * room
        for border in borders[1:]:
            cells[border] = ("┊", GREY)
        # A hit is one cell wide, so it is drawn after the bars, and over them.
        points = {"hit", "stopped"}
        for call in sorted((c for c in run.calls if c.agent == agent), key=lambda call: call.outcome in points):
            first = last = min(room - 1, int(call.started / span * room))
            if call.outcome not in points:
                ended = run.seconds if call.ended is None else call.ended
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

    legend = text.Text()
    metrics = run.session.get_metrics()
    for word, outcome in OUTCOMES.items():
        legend.append(outcome.mark, outcome.style).append(f" {metrics[outcome.metric]:>2} {word}  ")
    legend.rstrip()
    clock = f" ─ {run.seconds:.1f} s{', simulated' if run.is_simulated else ''}"
    title = f"[bold default]agent-cache demo[/][{GREY}] ─ [/]five agents, one store, seed {run.seed}[{GREY}]{clock}[/]"
    lines = [[(LESSONS[current].caption, "bold")], []]
    lines += [[(agent.ljust(margin), ""), *lane(agent)] for agent in AGENTS]
    lines += [[(" " * margin, ""), *axis]]
    body = console.Group(*(text.Text.assemble(*cells, no_wrap=True, overflow="crop") for cells in lines))
    return draw_border(body, title=title, legend=legend)


def draw_log(ended: list[Call], lines: int) -> RenderableType:
    """Draw a table of the last calls, `lines` rows high."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style=GREY, show_edge=False)
    table.add_column("sec", justify="right", width=5, no_wrap=True)
    table.add_column("agent", width=5, no_wrap=True)
    table.add_column("call", width=30, no_wrap=True)
    table.add_column("outcome", width=9, no_wrap=True)
    table.add_column("ms", justify="right", width=4, no_wrap=True)
    table.add_column("", ratio=1, no_wrap=True, overflow="ellipsis")
    for call in ended[-lines:]:
        mark, word, style = sign_of(call)
        if call.is_right is False:
            remark = Text("✗ differs from the store", "red")
        elif call.outcome == "write":
            remark = Text(f"drops {' '.join(call.drops) or 'nothing'}", "magenta")
        elif call.outcome == "stopped":
            remark = Text("the same answer again", "red")
        else:
            saved = f", saved {call.saved * 1000:.0f} ms" if call.saved else ""
            remark = Text("✓ true", "green").append(saved, GREY)
        outcome = Text(f"{mark} {word}", style)
        table.add_row(f"{call.ended:.2f}", call.agent, str(call), outcome, f"{call.milliseconds:.0f}", remark)
    for _ in range(lines - len(ended)):
        table.add_row()
    return table


def draw_totals(run: Run) -> RenderableType:
    """Draw the totals side by side."""
    from rich import table, text

    metrics, answers = run.session.get_metrics(), run.answers
    totals = {
        "hit rate": (f"{metrics['hit_rate']:.0%}", "bold"),
        "time saved": (f"{metrics['time_saved']:.1f} s", "bold"),
        "runs avoided": (f"{metrics['hits'] + metrics['shared']}", "bold"),
        "answers right": (f"{answers['right']} of {answers['checked']}", "bold"),
        "stale": (f"{answers['stale']}", STALE[2] if answers["stale"] else "bold green"),
    }
    grid = table.Table.grid(expand=True)
    for _ in totals:
        grid.add_column(justify="center", ratio=1, no_wrap=True)
    grid.add_row(*(text.Text(value, style) for value, style in totals.values()))
    grid.add_row(*(text.Text(label, GREY) for label in totals))
    return draw_border(grid)


def draw_summary(run: Run) -> RenderableType:
    """Draw a line for each outcome with its count, the verdict, and an example to copy."""
    from rich import console, syntax, table, text

    grid = table.Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for outcome, count, meaning in summarize(run):
        style = outcome.style
        grid.add_row(text.Text(outcome.mark, style), str(count), text.Text(outcome.plural, style), meaning)
    mark = ("✗ ", "bold red") if run.answers["stale"] else ("✓ ", "bold green")
    verdict = text.Text(*mark).append(conclude(run), "bold")
    offer = text.Text(OFFER, GREY)
    code = syntax.Syntax(EXAMPLE.rstrip(), "python", theme="ansi_dark", background_color="default")
    body = console.Group(grid, verdict, text.Text(), offer, code)
    return draw_border(body, title="[bold default]What happened[/]")


def draw_border(body: RenderableType, *, title: str | None = None, legend: Text | None = None) -> RenderableType:
    """Draw a border around a part of the picture."""
    from rich import box, panel

    options: dict[str, Any] = {"title": title, "title_align": "left", "subtitle": legend, "subtitle_align": "left"}
    return panel.Panel(body, box=box.ROUNDED, border_style=GREY, **options)


# The command


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `agent-cache demo`."""
    parser.description = (
        "Runs five scripted agents at once against a small store in memory, shows what the cache "
        "does, and compares every answer with the store. Exit code 0: all answers were right; 1: one was stale."
    )
    parser.add_argument("--fast", action="store_true", help="no waiting: the same run on a simulated clock")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of latencies and of what is browsed (default 0)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of pictures")
    parser.add_argument("--svg", type=Path, metavar="PATH", help="also save the last picture (needs rich)")
    parser.add_argument(
        "--sabotage",
        action="store_true",
        help="leave the decorator off one write, to see the check catch it (exit code 1)",
    )


def run(options: argparse.Namespace) -> int:
    """Run the demo and return the exit code: 0 all answers were right, 1 one was stale, 2 usage."""
    if problem := find_problem(options):
        print(problem, file=sys.stderr)
        return 2
    played = play(choose_view(options), seed=options.seed, is_fast=options.fast, sabotage=options.sabotage)
    if options.svg is not None:
        try:
            save_svg(played, options.svg)
        except OSError as error:
            print(f"--svg: {error}", file=sys.stderr)
            return 2
        print(f"saved {options.svg}", file=sys.stderr)
    return 1 if played.answers["stale"] else 0


def find_problem(options: argparse.Namespace) -> str | None:
    """Return why the demo cannot run with these options, if so."""
    from agent_cache import configure
    from agent_cache.config import CURRENT

    if options.svg is not None:
        try:
            import rich  # noqa: F401  # only whether it is installed
        except ImportError:
            return f"--svg draws with rich: {INSTALL_RICH}"
        if not options.svg.parent.is_dir():
            return f"--svg: there is no folder {str(options.svg.parent)!r}"
    with configure(enabled=True):
        if not CURRENT.value.enabled:
            return "AGENT_CACHE_ENABLED switches caching off, so there is nothing to see; unset it."
    return None


def choose_view(options: argparse.Namespace) -> View:
    """Choose JSON if asked for, the picture on a terminal that has room for it, else text."""
    if options.json:
        return show_json
    if not sys.stdout.isatty():
        return show_text
    try:
        from rich.console import Console
    except ImportError:
        print(f"For colours and a live picture: {INSTALL_RICH}", file=sys.stderr)
        return show_text
    console = Console(highlight=False)
    return functools.partial(show_picture, console, is_live=not options.fast) if has_room(console) else show_text


def has_room(console: Console) -> bool:
    """Whether this is a terminal that can be drawn on."""
    columns, lines = console.size
    can_draw = console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf")
    return can_draw and columns >= SMALLEST[0] and lines >= SMALLEST[1]
