"""What mypy --strict and pyright see of decorated tools. Checked, never run.

A line with an ignore must be an error: both checkers complain about an ignore that nothing needs.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, assert_type
from uuid import UUID

from starlette.applications import Starlette
from starlette.requests import Request

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    AgentCacheSession,
    AgentLoopDetectedError,
    LoopHints,
    LoopPolicy,
    Pass,
    Read,
    Recommendation,
    RemotePolicy,
    StaleHit,
    Toolbox,
    ToolCall,
    Watch,
    Write,
    bypass,
    configure,
    get_metrics,
    get_ttl,
    invalidate,
    invalidate_sync,
    otel,
    recommendations,
    recording,
    set_ttl,
    tags_from,
    writing,
)
from agent_cache.integrations import explain, wrap
from agent_cache.recording import (
    Baseline,
    Branch,
    Cassette,
    DriftDetector,
    DriftEvent,
    DriftReport,
    DriftSeverity,
    Http,
    Raised,
    RecordedCall,
    Saved,
    Tape,
    Tolerance,
    cached_llm_call,
    diff_cassettes,
    fork,
    intercept,
    observe,
    record,
    register,
    replay,
)
from agent_cache.remote import FileTier, Tier, from_url
from agent_cache.resume import (
    AutoReplayManager,
    Checkpoint,
    CustomState,
    Journal,
    NotDone,
    ReplayReport,
    idempotency_key,
    register_restore_hook,
    register_state,
    restore,
)
from agent_cache.service import restore_app
from agent_cache.toolbox import ToolTable


@dataclass
class Order:
    order_id: str
    user_id: str


@AgentCache(resource="order:{order_id}", ttl=60)
async def get_order(order_id: str, *, verbose: bool = False) -> Order:
    return Order(order_id, "u1" if verbose else "u2")


@AgentCache("orders", "session", timedelta(minutes=1), 10, 0, None, None, copy="never")
async def list_orders(limit: int = 10) -> list[Order]:
    return [Order(str(n), "u1") for n in range(limit)]


@AgentCache(
    resource=["user:{user_id}", tags_from("order", lambda arguments, result: [order.order_id for order in result])]
)
async def orders_of(user_id: str) -> list[Order]:
    return [Order("7", user_id)]


@AgentCacheInvalidator(resource=["order:{order_id}", "user:{result.user_id}"], settle=2)
async def cancel_order(order_id: str) -> Order:
    return Order(order_id, "u1")


@AgentCache(
    "price:{sku}", ttl=60, remote=RemotePolicy(grace=timedelta(minutes=5), consistency="strong", flight="fleet")
)
async def get_price(sku: str) -> float:
    return float(len(sku))


def life_of(orders: list[Order]) -> timedelta | None:
    return timedelta(seconds=len(orders)) if orders else None


@AgentCache("order", ttl=life_of, jitter=0.1, grace=timedelta(minutes=1), stale_if_error=3600)
async def open_orders() -> list[Order]:
    return []


@AgentCacheInvalidator("price", remote=RemotePolicy(on_unreachable="refuse"))
async def set_prices() -> None: ...


@AgentCacheInvalidator(resource="order", clear_all=False, key_fn=lambda args, kwargs: get_order.cache_key(args[0]))
async def touch_order(order_id: str) -> None:
    del order_id


def owners_of(arguments: Mapping[str, Any], result: Order) -> str | None:
    return result.user_id or str(arguments["order_id"])


@AgentCache(
    resource=[
        tags_from("user", owners_of),
        tags_from("order", lambda arguments: arguments["order_id"]),
    ],
    vary=lambda arguments: arguments["order_id"],
    key=str.upper,
    cache_if=lambda result: bool(result),
    name="detail",
)
async def get_detail(order_id: str) -> Order:
    return Order(order_id, "u1")


@AgentCacheInvalidator(
    tags_from("order", lambda arguments: [arguments["order_id"]]),
    doubt=timedelta(seconds=5),
    in_doubt=[TimeoutError],
    no_effect=(ValueError, KeyError),
    ok=lambda result: bool(result),
)
async def close_order(order_id: str) -> bool:
    return bool(order_id)


@AgentCache("version", vary=lambda: "v1", copy=lambda value: value, maxsize=None)
async def get_version() -> str:
    return "1"


class Shop:
    @AgentCache(resource="stock:{item}")
    async def stock(self, item: str) -> int:
        return len(item)

    @AgentCacheInvalidator(resource="stock:{item}")
    async def take(self, item: str, count: int = 1) -> bool:
        return bool(item) and count > 0

    @classmethod
    @AgentCache("stock:{item}")
    async def stock_of_all(cls, item: str) -> int:
        return len(item)

    @classmethod
    @AgentCacheInvalidator("stock")
    async def close(cls, *, days: int = 1) -> bool:
        return days > 0

    @staticmethod
    @AgentCache("price:{item}")
    async def price(item: str) -> float:
        return float(len(item))

    @staticmethod
    @AgentCacheInvalidator("price")
    async def set_price(price: float) -> None: ...


async def decorated_tools_keep_their_types() -> None:
    assert_type(await get_order("W1"), Order)
    assert_type(await get_order(order_id="W1", verbose=True), Order)
    assert_type(await list_orders(), list[Order])
    assert_type(await orders_of("u1"), list[Order])
    assert_type(await cancel_order("W1"), Order)
    await touch_order("W1")
    assert_type(await get_detail("W1"), Order)
    assert_type(await close_order(order_id="W1"), bool)
    assert_type(await get_version(), str)

    await get_order(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await get_order()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await cancel_order(order=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def methods_lose_their_self_alone(shop: Shop) -> None:
    assert_type(await shop.stock("tea"), int)
    assert_type(await shop.take("tea", count=2), bool)
    assert_type(await Shop.stock(shop, "tea"), int)

    await shop.stock(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def class_methods_and_static_methods_are_called_on_the_class_and_on_the_instance(shop: Shop) -> None:
    assert_type(await Shop.stock_of_all("tea"), int)
    assert_type(await shop.stock_of_all(item="tea"), int)
    assert_type(await Shop.close(days=2), bool)
    assert_type(await shop.close(), bool)
    assert_type(await Shop.price("tea"), float)
    assert_type(await shop.price("tea"), float)
    await Shop.set_price(1.5)
    await shop.set_price(price=1.5)

    await Shop.stock_of_all(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await shop.close(days="2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def the_attributes_of_methods_are_reached_through_the_class(shop: Shop) -> None:
    assert_type(await Shop.stock.invalidate(shop, "tea"), bool)
    assert_type(await Shop.stock.fresh(shop, item="tea"), int)
    assert_type(Shop.stock.contains(shop, "tea"), bool)
    assert_type(Shop.stock.cache_info().maxsize, int | None)
    assert_type(Shop.take.scope, Literal["global", "session"])
    assert_type(await Shop.stock_of_all.fresh(Shop, "tea"), int)
    assert_type(await Shop.price.fresh("tea"), float)
    hash(Shop.stock_of_all.cache_key(Shop, "tea"))

    shop.stock.contains("tea")  # type: ignore[attr-defined]  # pyright: ignore[reportFunctionMemberAccess]
    Shop.stock.contains("tea")  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
    Shop.stock_of_all.contains("tea")  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
    Shop.stock.contains(shop, 7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


P = ParamSpec("P")
R = TypeVar("R")


def cached(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    tool = AgentCache("order")(function)
    assert_type(tool.clear(), int)
    return tool


async def tools_of_unknown_parameters_keep_their_attributes(function: Callable[..., Coroutine[Any, Any, int]]) -> None:
    tool = AgentCache("order")(function)
    assert_type(await tool("7", verbose=True), int)
    assert_type(await tool.fresh("7", verbose=True), int)


async def a_cached_tool_can_be_steered() -> None:
    assert_type(await get_order.invalidate("W1"), bool)
    assert_type(await get_order.refresh("W1", verbose=True), Order)
    assert_type(await get_order.fresh("W1"), Order)
    assert_type(get_order.clear(), int)
    assert_type(get_order.etag("W1"), str | None)
    assert_type(await get_order.set(Order("7", "u1"), "W1", verbose=True), bool)
    assert_type(get_order.contains("W1", verbose=True), bool)
    hits, misses, maxsize, currsize = get_order.cache_info()
    assert_type((hits, misses, maxsize, currsize), tuple[int, int, int | None, int])
    hash(get_order.cache_key("W1"))

    AgentCache("order", ttl=lambda result: result["expires_in"], ignore=("ctx",))
    AgentCache("order", ignore=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    AgentCache("order", ttl="60")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await get_order.set(Order("7", "u1"), order=7)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    get_order.cache_key("W1", extra=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    cancel_order.clear()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


async def a_session_is_typed() -> None:
    async with AgentCacheSession("s1", max_tool_repeats=5, on_loop="raise", tenant="acme") as session:
        assert_type(session, AgentCacheSession)
        assert_type(session.session_id, str)
        session.raise_for_loop()
        with session.attach() as joined:
            assert_type(joined, AgentCacheSession)
        async with session.attach() as joined:
            assert_type(joined, AgentCacheSession)
    assert_type(session.get_metrics(), dict[str, Any])
    AgentCacheSession(on_loop="shout")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def loops_are_typed() -> None:
    def judge(loop: AgentLoopDetectedError) -> Literal["raise", "warn"] | None:
        assert_type(loop.calls, tuple[str, ...])
        return "warn" if loop.kind == "depth" else None

    policy = LoopPolicy(repeat=(4, 8), error=3, cycle=None, max_duration=timedelta(minutes=5), new_turn_after=60)
    session = AgentCacheSession(loop_policy=policy, on_loop=judge, on_notice=print)
    session.new_turn()
    assert_type(session.loop_error, AgentLoopDetectedError | None)
    AgentCacheSession(loop_policy={"repeat": 8}, on_loop="notice")
    LoopPolicy(repeats=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    AgentCache("cart", loop=LoopHints(poll=True, max_unchanged=9, loop_key=lambda arguments: arguments["id"]))
    AgentCacheInvalidator("cart", loop=LoopHints(outcome_key=len, off=True))
    AgentCache("cart", loop="poll")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def writes_that_are_no_tools_are_typed() -> None:
    await invalidate("order:7", "cart")
    async with writing("order:7"):
        pass
    with configure(enabled=False), bypass():
        assert_type(get_metrics(), dict[str, Any])
    configure(remote=None, max_bytes=None)
    configure(enabled=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def ttls_are_typed() -> None:
    set_ttl("shop:price", 60)
    set_ttl(get_order, None)
    set_ttl("shop:price", "60")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(get_ttl(get_order), float | Callable[[Any], Any] | None)
    assert_type(recommendations(max_stale=0.05), list[Recommendation])
    assert_type([each.suggested for each in recommendations()], list[float | None])
    recommendations()[0].action = "keep"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


async def watch(call: ToolCall, proceed: Callable[[], Awaitable[Any]]) -> Any:
    assert_type(call.arguments, Mapping[str, Any])
    assert_type(call.source, str | None)
    assert_type(call.tags, tuple[str, ...])
    call.tool = "other"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    return await proceed()


def note_stale(hit: StaleHit) -> None:
    assert_type(hit.arguments, Mapping[str, Any])


async def still_holds(previous: Order, order_id: str) -> bool:
    return previous.order_id == order_id


def validators_are_typed() -> None:
    AgentCache("cart", ttl=60, validate=still_holds)
    AgentCache("cart", validate=still_holds, validate_after=timedelta(minutes=1))
    AgentCache("cart", ttl=60, validate=True)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Read("cart", ttl=60, validate=still_holds)


def audits_are_typed() -> None:
    configure(audit=0.01, on_stale=note_stale)
    configure(on_stale=None)
    configure(audit=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    AgentCache("cart", audit=0.5)
    Read("cart", audit=0.5)


def middleware_are_typed() -> None:
    configure(middleware=[watch])
    configure(middleware=watch)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def modes_are_checked_where_they_are_written() -> None:
    AgentCache("cart", scope="local")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tags_from("cart", "id")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    AgentCache(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    AgentCache("cart", ttl="60")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# So is a decorator without its resource.
@AgentCache  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
async def get_bare(user_id: str) -> str:
    return user_id


# Tools that are no `async def`


@AgentCache(resource="cart", ttl=60)
def get_cart(user_id: str, *, full: bool = False) -> list[str]:
    return [user_id] if full else []


@AgentCacheInvalidator("cart")
def empty_cart(user_id: str) -> bool:
    return bool(user_id)


def synchronous_tools_keep_their_types() -> None:
    assert_type(get_cart("u1"), list[str])
    assert_type(empty_cart("u1"), bool)
    assert_type(get_cart.__wrapped__("u1"), list[str])

    get_cart(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    empty_cart(user=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# Tools that stream


@AgentCache("page:{url}", max_stream_bytes=100_000)
async def read_page(url: str, *, from_start: bool = True) -> AsyncIterator[str]:
    yield url if from_start else ""


@AgentCache("page:{url}")
def read_lines(url: str) -> Iterator[str]:
    yield url


@AgentCacheInvalidator("page:{url}")
async def write_page(url: str) -> AsyncGenerator[int, str]:
    yield len((yield 1)) + len(url)


async def streaming_tools_keep_their_types() -> None:
    async for text in read_page("/", from_start=False):
        assert_type(text, str)
    for line in read_lines("/"):
        assert_type(line, str)
    stream = write_page("/")
    assert_type(stream, AsyncGenerator[int, str])
    assert_type(await stream.asend("sent"), int)
    assert_type(read_page.fresh("/"), AsyncIterator[str])
    assert_type(await read_page.invalidate("/"), bool)
    assert_type(await read_page.set(["a", "b"], "/"), bool)
    assert_type(read_page.contains("/"), bool)

    read_page(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def synchronous_tools_have_synchronous_attributes() -> None:
    assert_type(get_cart.invalidate("u1"), bool)
    assert_type(get_cart.fresh("u1", full=True), list[str])
    assert_type(get_cart.refresh("u1"), list[str])
    assert_type(get_cart.set(["tea"], "u1"), bool)
    assert_type(get_cart.contains("u1"), bool)
    assert_type(get_cart.clear(), int)

    get_cart.fresh(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    empty_cart.clear()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


async def what_is_synchronous_is_not_awaited() -> None:
    await get_cart("u1")  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]


def what_is_around_tools_is_synchronous_too() -> None:
    with AgentCacheSession("s1") as session, writing("order:7"):
        assert_type(session, AgentCacheSession)
    invalidate_sync("order:7", "cart")


# Recording


@intercept
def double(number: int) -> int:
    return number * 2


@intercept(name="ask", kind="llm")
async def ask(prompt: str) -> str:
    return prompt


@cached_llm_call(cache_key=str.lower, extract_tokens=lambda call, answer: (1, 2))
async def words(prompt: str) -> AsyncIterator[str]:
    yield prompt


@cached_llm_call
async def sentences(prompt: str) -> AsyncIterator[str]:
    yield prompt


@Toolbox({}, namespace="typed").tool()
def length(text: str) -> int:
    return len(text)


@register
class Refused(Exception):
    pass


class Listener:
    def on_start(self, call: RecordedCall) -> None:
        assert_type(call.is_write, bool)

    def on_end(self, call: RecordedCall) -> None:
        assert_type(call.tags, list[str])


def same_order(expected: dict[str, Any], actual: dict[str, Any]) -> bool:
    return bool(expected["order_id"] == actual["order_id"])


async def judge_drift() -> None:
    tolerance = Tolerance(
        ignore=["get_order:result.id"], same_arguments={"cancel": same_order}, tokens=None, fail_on="info"
    )
    assert_type(Tolerance.load("tolerance.toml"), Tolerance)
    baseline = Baseline.load("a.jsonl", "b.jsonl")
    assert_type(baseline, Baseline)
    drifts = baseline.compare("new.jsonl", tolerance)
    assert_type(drifts, list[DriftEvent])
    assert_type(baseline.compare(Cassette.load("new.jsonl")), list[DriftEvent])
    assert_type(drifts[0].severity, DriftSeverity)
    assert_type(tolerance.fails(drifts), bool)
    detector = DriftDetector(baseline, tolerance=tolerance, on_drift=print)
    async with AgentCacheSession(drift=detector):
        assert_type(detector.drifts, list[DriftEvent])
    with observe(detector, Listener()):
        assert_type(detector.report(), DriftReport)
    assert_type(detector.report().worst, DriftSeverity | None)
    DriftDetector("a.jsonl", on_drift=True)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Tolerance(["get_order:result"])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    baseline.compare(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def record_and_replay() -> None:
    with record("run.jsonl", model="m", redact=["card"], mode="once") as recorder:
        assert_type(recorder, Tape)
        assert_type(double(1), int)
        assert_type(await ask("hi"), str)
        assert_type([word async for word in words("hi")], list[str])
        assert_type([one async for one in sentences("hi")], list[str])
        assert_type(length("hi"), int)
    async with replay("run.jsonl", strict=True, policy={"ask": "live"}) as player:
        assert_type(player, Tape)
        assert_type((player.cursor, player.remaining), tuple[int, int])
    with record("run.jsonl", http=Http(ignore=["a.example"], only=None, aliases={"a": "b"})), replay("a", redact=None):
        record("run.jsonl", http=True)
        record("run.jsonl", http="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with fork("a", at=2, to="b", edits={1: Order("a", "b"), 3: Raised(ValueError())}, world="sandbox") as branch:
        assert_type(branch, Branch)
        assert_type(branch.live_from, int | None)
        assert_type(branch.saved, Saved)
        assert_type(branch.cassette, Cassette)
    async with fork(Cassette.load("a"), at=None, to="b"):
        pass
    assert_type(fork.from_env(), fork | None)
    fork("a", at="2", to="b")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    fork("a", at=2, to="b", world="new")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with observe(Listener(), redact=["card"], http=True):
        observe(Refused)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(diff_cassettes("a", Cassette.load("b")).identical, bool)
    assert_type(recording.now(), datetime)
    assert_type(recording.uuid4(), UUID)
    record("run.jsonl", mode="onse")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    replay("run.jsonl", policy={"ask": "maybe"})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    double("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# A journal


def find_out(arguments: dict[str, Any], key: str) -> Any:
    return NotDone if key else arguments


async def journaled() -> None:
    journal = Journal("runs", on_doubt={double: find_out, "shop:pay": "rerun"}, durability="machine", key=b"0" * 32)
    async with AgentCacheSession("run", journal=journal) as session:
        assert_type(session.session_id, str)
    assert_type(idempotency_key(), str | None)
    assert_type(journal.path("run"), Path)
    Journal("runs", on_doubt="notice", redact=["card"], http=True)
    Journal("runs", on_doubt="retry")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Journal("runs", durability="disk")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Journal("runs", key="secret")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# Checkpoints


@register_state
@dataclass
class Plan:
    steps: list[str]


async def go_back(made: Checkpoint, plan: Plan) -> None:
    assert_type(await restore(made, plan, accept_redacted=True), Plan)
    assert_type(Plan(["look"]).steps, list[str])
    remove = register_restore_hook("planner", lambda state, target: None)
    assert_type(remove(), None)
    report = await AutoReplayManager([], after=made, min_importance=0.5, on_event=print).run()
    assert_type(report, ReplayReport)
    assert_type(CustomState({"a": 1}).data, dict[str, Any])
    register_restore_hook("planner", 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await restore(made)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def refuses(request: Request, action: str, session_id: str | None) -> bool:
    return False


def serve() -> None:
    assert_type(restore_app("runs", authorize=lambda request, action, session_id: True), Starlette)
    restore_app(Path("runs"), authorize=refuses)
    restore_app("runs")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    restore_app("runs", authorize=lambda request: True)  # type: ignore[arg-type,misc]  # pyright: ignore[reportArgumentType]


# Toolboxes


async def calls_by_name(box: Toolbox) -> None:
    async def run() -> int:
        return 1

    assert_type(await box.call("get", {"id": "7"}, run, vary="tenant", failed=bool), Any)
    await box.call("get", {"id": "7"}, lambda: 1)  # type: ignore[arg-type,return-value]  # pyright: ignore[reportArgumentType]
    box.forget()


RULES = {"get": Read("a", ttl=1), "put": Write("a", doubt=1), "now": Watch(), "hand": Pass()}
Toolbox(RULES, namespace="x")


@Toolbox(namespace="x").tool
async def named_tool(x: int) -> str:
    return str(x)


async def calls_of_a_named_tool() -> None:
    assert_type(await named_tool(1), str)
    await named_tool("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def wrapped_tools_keep_their_types(box: Toolbox) -> None:
    async def get_order(order_id: str) -> int:
        return 1

    wrapped = wrap(get_order, box=box, vary=lambda given: given["order_id"])
    assert_type(await wrapped("1"), int)
    await wrapped(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    wrap(get_order)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assert_type(explain([wrapped, "now"], box), ToolTable)


def exporters() -> None:
    with otel.instrument(content=True) as made:
        assert_type(made, otel.Instrumentation)
        assert_type(made.is_active, bool)


async def tiers() -> None:
    async with FileTier("tools.db", lease=timedelta(seconds=10)) as tier:
        assert_type(tier, FileTier)
        assert_type(await tier.clear(), int)
        configure(remote=tier)
    assert_type(from_url("sqlite:///tools.db", lease=5), Tier)
