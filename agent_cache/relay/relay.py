"""`Relay`: what is done with the messages between an MCP host and an MCP server, whatever carries them.

The hardest case: a host calls a tool that reads, and a second time before the first answer is there. The first request
goes to the server as it came. The second waits for the same run. The host cancels the first: the server is told so, and
the second runs the tool anew, under its own id. Had the server asked the host something meanwhile, the answer would
have been for the first request alone.

A transport makes a `HostRequest` of each request that `Relay.answers`, and gives it to `Relay.start`. All else passes
as it came; notifications that are `observed` are shown to the relay before.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from contextvars import Context, copy_context
from pathlib import Path
from typing import Any, Final, Self

from agent_cache import AgentCacheSession, AgentLoopDetectedError, Read, Toolbox, Write, writing
from agent_cache.core.asker import Apart
from agent_cache.integrations.shared import Answer, Private, fails, is_kept, notice, requested_version
from agent_cache.recording import CassetteError, intercept, record, replay
from agent_cache.relay import messages
from agent_cache.relay.messages import ConnectionLost, Message, RpcError, object_in
from agent_cache.relay.relay_settings import RelaySettings, new_session
from agent_cache.toolbox.box import every_tag

_LOG = logging.getLogger("agent_cache")

_MAX_HOSTS: Final = 10_000
_LIST_PATIENCE: Final = 10.0
"""Seconds that a first call waits for the server's list of tools. Then it goes on without schemas and hints."""
_CONTINUES: Final = frozenset({"requestState", "inputResponses"})
"""Parameters of a request that goes on with an earlier one, which the server had answered by a question."""
_OF_TASKS: Final = frozenset({"tasks/get", "tasks/result", "tasks/cancel"})
_TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})
_UNRECORDED: Final = frozenset({"ping", "subscriptions/listen"})
"""Requests that a recording leaves out: what keeps a connection alive, and what lasts as long as the connection."""

# Since revision 2026-07-28 these are answered with `ttlMs` and `cacheScope`, and a notification ends them
_HINTED: Final = {
    "server/discover": "list:server",
    "tools/list": "list:tools",
    "prompts/list": "list:prompts",
    "resources/list": "list:resources",
    "resources/templates/list": "list:resources",
    "resources/read": "resource:{uri}",
}
_CHANGES: Final = {
    "notifications/tools/list_changed": ("list:tools",),
    "notifications/prompts/list_changed": ("list:prompts",),
    "notifications/resources/list_changed": ("list:resources",),
    "notifications/resources/updated": ("resource:{params[uri]}",),
}
_TELLS_NOTHING: Final = frozenset({"progressToken", "traceparent", "tracestate", "io.modelcontextprotocol/clientInfo"})
"""What the `_meta` of a request says that its answer does not depend on."""

Tools = Mapping[str, Mapping[str, Any]]


class HostSession:
    """One session of a host, over HTTP one of many: its calls run in `context`, and are checked for loops in `session`.
    `tools` lists what the server has for this host. `running` is for a transport.
    """

    def __init__(self, context: Context, session: AgentCacheSession) -> None:
        self.context, self.session = context, session
        self.tools: asyncio.Task[Tools] | None = None
        self.running: set[HostRequest] = set()


class HostRequest(ABC):
    """One request of the host, and the way to the server that is to answer it. A transport implements it.

    `vary` is a hash of what the host has sent beside the message, `host` the session where there are several, and
    `checked` what is checked for loops, if that is less than it. A transport sets `asked_host` if the server makes a
    request of the host while this one is under way, and `rest` if the response has ended and the host asks for its
    answer by another request: the name under which `Relay.note_end` is told of that.
    """

    def __init__(self, message: Message, vary: Any = None, host: HostSession | None = None) -> None:
        self.message, self.vary, self.host = message, vary, host
        self.id, self.method, self.params = message.id, message.method, message.params_by_name
        self.asked_host = self.is_answered = self.is_sent = False
        self.checked, self.rest = host, ""
        self.response: Message | None = None
        self.result: Any = None

    @abstractmethod
    async def forward(self) -> Message:
        """Send the request to the server as it came, and wait for the response. If it is cancelled, the server is told.
        Raises `ConnectionLost` if the server has gone.
        """

    @abstractmethod
    async def ask(self, method: str, params: dict[str, Any]) -> Message:
        """Make a request of the relay's own on the same way, as `forward` does. The host does not see the response."""

    @abstractmethod
    def reply(self, line: bytes) -> None:
        """Send the response to the host. It is called once at most."""

    def answer(self, line: bytes) -> None:
        """The same, unless the host has a response."""
        if not self.is_answered:
            self.is_answered = True
            self.reply(line)


class Relay:
    """Answers the tool calls of a host from a cache or from a recording, or lets the server answer them.

    ``async with relay:`` begins the session, and the recording or replay. Its end finishes them.

    `identity`, which the transport sets, is a hash of what this process sends to the server by itself: its address and
    credentials, or the command that starts it. A recording is without it, and so replayed without them. `findings` are
    what was wrong at the end, in sentences.
    """

    def __init__(
        self,
        box: Toolbox,
        settings: RelaySettings | None = None,
        *,
        record_to: str | Path | None = None,
        replay_from: str | Path | None = None,
        strict: bool = False,
    ) -> None:
        self.settings = settings = RelaySettings() if settings is None else settings
        self.box = box
        self.is_replay = replay_from is not None
        self.is_taped = self.is_replay or record_to is not None
        self.identity: str | None = None
        self.findings: list[str] = []
        self.session = new_session(settings)
        self._tape: record | replay | None = None
        if replay_from is not None:
            self._tape = replay(replay_from, strict=strict)
        elif record_to is not None:
            self._tape = record(record_to)
        hinted: dict[str, Any] = {"ttl": lambda kept: kept["result"]["ttlMs"] / 1000}
        hinted |= {} if box.tier is None else {"remote_cache": box.tier}
        lists = {method: Read(tag, **hinted) for method, tag in _HINTED.items()}
        ends = {method: tuple(said.invalidate) for method, said in settings.on.items()}
        changes = {method: _CHANGES.get(method, ()) + ends.get(method, ()) for method in _CHANGES | ends}
        writes = {method: Write(tags) for method, tags in changes.items()}
        self._own = Toolbox({**lists, **writes}, namespace=f"{box.namespace}.mcp")
        self._changes = frozenset(changes)
        self.observed = self._changes | {"notifications/tasks/status"}
        self._every_tag = every_tag(box)
        self.hosts: dict[str, HostSession] = {}  # the last one is the one used last
        self._task_ends: dict[str, asyncio.Future[None]] = {}
        self._blocks = AsyncExitStack()
        self._outside = self._inside = copy_context()
        self._host = HostSession(self._inside, self.session)
        self._request = intercept(
            self._forwarded, name="mcp:request", skip_args=1, vary=lambda one, *_: getattr(one.vary, "who", one.vary)
        )
        self._list = intercept(_all_pages, name="mcp:tools", skip_args=2)

    # Life

    async def __aenter__(self) -> Self:
        self._outside = copy_context()
        async with AsyncExitStack() as blocks:
            if self._tape is not None:
                blocks.enter_context(self._tape)
            await blocks.enter_async_context(self.session)
            self._inside = self._host.context = copy_context()
            self._blocks = blocks.pop_all()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        for key in list(self.hosts):
            self.end_host(key)
        try:
            await self._blocks.__aexit__(*raised)
        except (CassetteError, AgentLoopDetectedError) as error:
            self.findings.append(str(error))
        finally:
            await self.box.aclose()

    def host(self, key: str) -> HostSession:
        """The session of one host among several, begun if it is new. Its calls also count in `session`, which checks
        nothing then.
        """
        host = self.hosts.pop(key, None)
        if host is None:
            if len(self.hosts) >= _MAX_HOSTS:
                self.end_host(next((name for name, each in self.hosts.items() if not each.running), ""))
            host = HostSession(self._inside.copy(), new_session(self.settings))
            host.context.run(host.session.__enter__)
        self.hosts[key] = host
        return host

    def end_host(self, key: str) -> None:
        """End the session of one host, none of whose requests runs."""
        for name in self._task_ends:
            if name.startswith(f"{key} "):
                self.note_end(name)
        host = self.hosts.pop(key, None)
        if host is not None:
            with suppress(AgentLoopDetectedError):  # the host was told
                host.context.run(host.session.__exit__, None, None, None)

    def lose_server(self) -> None:
        """The server has gone: what its tasks have written is in doubt."""
        for end in self._task_ends.values():
            if not end.done():
                end.set_exception(ConnectionLost("the server has gone before its task had ended"))

    # Messages

    def answers(self, message: Message) -> bool:
        """Whether this request is for `start`; any other one is passed on as it came."""
        method = message.method
        if method == "tools/call" or (method in _OF_TASKS and self._task_ends):
            return True
        if self.is_taped:
            return self.is_replay or method not in _UNRECORDED
        return method in _HINTED and bool(messages.envelope_of(message.params_by_name))

    def start(self, request: HostRequest) -> asyncio.Task[None]:
        """Answer a request in a task of its own; to cancel the task is to cancel the request. It may have its response
        long before the task ends, if the server answered by a task of the protocol.
        """
        version = requested_version(object_in(request.params.get("_meta")))
        if version is not None:
            request.vary = [request.vary, version]
        if self.identity is not None:
            request.vary = Apart(request.vary, self.identity)
        context = (request.checked or request.host or self._host).context.copy()
        return asyncio.get_running_loop().create_task(self._answer(request), context=context)

    async def observe(self, method: str, params: Any, host: HostSession | None = None) -> None:
        """Take note of a notification of the server which is `observed`, before the host gets it."""
        if method == "notifications/tools/list_changed":
            if not self.is_taped:  # a replay hears of no change, so both ask for the list once
                (host or self._host).tools = None
            self.box.forget()
        elif method == "notifications/tasks/status":
            self._note_task(params)
        if method in self._changes:
            # The change itself was made elsewhere
            write = self._own.call(method, {"params": params}, functools.partial(asyncio.sleep, 0))
            await asyncio.shield(self._start_outside(write))

    @asynccontextmanager
    async def unjudged(self) -> AsyncIterator[None]:
        """Surrounds the passing of what `is_unjudged`: a write of everything, in doubt, since nobody sees its end."""
        with suppress(ConnectionLost):
            async with writing(*self._every_tag):
                yield
                raise ConnectionLost

    def _start_outside(self, work: Any) -> asyncio.Task[Any]:
        """Run something that is no call of the agent outside of its session."""
        return asyncio.get_running_loop().create_task(work, context=self._outside.copy())

    # Answers

    async def _answer(self, request: HostRequest) -> None:
        try:
            line = await self._line_for(request)
        except AgentLoopDetectedError as loop:
            line = messages.line_of(id=request.id, result=notice(loop))
        except Exception as error:  # noqa: BLE001 - whatever it is, the host waits for a response
            if not (request.is_answered or isinstance(error, RpcError | CassetteError | ConnectionLost)):
                _LOG.exception("%s could not be answered", request.method)
            line = messages.error_line(request.id, error) if request.response is None else request.response.line
        request.answer(line)

    async def _line_for(self, request: HostRequest) -> bytes:
        try:
            if request.method == "tools/call":
                result = await self._call_tool(request)
            elif self.is_taped:
                result = await self._other(request)
            elif request.method in _HINTED:
                result = await self._hinted(request)
            else:
                result = await self._run(request)
        except (RpcError, ConnectionLost):
            if request.is_sent or self.is_taped:
                raise
            result = await self._run(request)  # the run that it has waited for had an end of its own, such as a refusal
        if request.method in _OF_TASKS:
            is_result = request.method == "tasks/result"
            self._note_task({**request.params, "status": "completed"} if is_result else _plain(result))
        if request.response is not None and _plain(result) is _plain(request.result):
            return request.response.line  # as the server sent it
        return messages.line_of(id=request.id, result=_plain(result))

    async def _run(self, request: HostRequest) -> Any:
        """Let the server answer."""
        request.is_sent = True
        try:
            response = request.response = await request.forward()
        except ConnectionLost:
            if request.rest and self.is_write(request):  # it goes on, and its host asks for the answer within an hour
                request.answer(b"")
                await self._end_of_task({"taskId": request.rest, "ttl": 3_600_000})
            raise
        result = response.answer()
        task = _task_of(result)
        if task is not None and task.get("status") not in _TERMINAL and self.is_write(request):
            # The write goes on until then, and its tags stay invalid; the host has to know its task to ask for it
            request.answer(response.line)
            await self._end_of_task(task)
        is_final = isinstance(result, dict) and result.get("resultType", "complete") == "complete"
        if task is not None or request.asked_host or not is_final or not response.is_plain:
            result = Private(result)
        request.result = result
        return result

    async def _call_tool(self, request: HostRequest) -> Any:
        params = request.params
        name, arguments = params.get("name"), params.get("arguments", {})
        if not isinstance(name, str) or not isinstance(arguments, dict) or not request.message.is_plain:
            async with writing(*self._every_tag):  # the server says what is wrong with it, or takes it for something
                return await self._other(request)
        tool = await self._tool(name, request)
        continues = "task" in params or not _CONTINUES.isdisjoint(params)
        if continues or self.is_taped:
            kind = self._rule(request).kind
            if kind == "pass" or (kind != "write" and continues):
                return await self._other(request)
        try:
            return await self.box.call(
                name, arguments, functools.partial(self._run, request), schema=tool.get("inputSchema"),
                annotations=tool.get("annotations"), vary=request.vary, returns=Answer, failed=fails, store_if=is_kept,
                refused=notice,
            )  # fmt: skip
        except (RpcError, ConnectionLost, AgentLoopDetectedError, CassetteError):
            raise
        except Exception as error:
            if request.is_sent or self.is_replay:
                raise
            _LOG.error("%s was not cached: %s", name, error)
            # Nobody knows what it touches
            async with writing(*self._every_tag) if self.is_write(request) else nullcontext():
                return await self._run(request)

    async def _hinted(self, request: HostRequest) -> Any:
        """The answer to a list or a resource: while it is fresh by its own word, from the cache of its asker."""
        if not _CONTINUES.isdisjoint(request.params):
            return await self._run(request)
        meta = {name: said for name, said in request.params.get("_meta", {}).items() if name not in _TELLS_NOTHING}

        async def dated() -> dict[str, Any]:
            return {"at": time.time(), "result": await self._run(request)}

        asked = {**request.params, "_meta": meta}
        call = self._own.call(
            request.method, asked, dated, vary=request.vary, returns=dict[str, Any], store_if=_is_fresh_for_others
        )
        kept = await self._start_outside(call)  # a host may ask as often as it likes
        result = kept["result"]
        if request.response is not None or type(result) is not dict or "ttlMs" not in result:
            return result
        age = max(time.time() - kept["at"], 0.0)
        return {**result, "ttlMs": max(int(result["ttlMs"] - 1000 * age), 0)}

    async def _other(self, request: HostRequest) -> Any:
        """Any other request, which a recording has as it came, but for its ``_meta``."""
        method = request.method
        if self.is_replay and method in _UNRECORDED:
            if method == "ping":
                return {}
            raise RpcError(f"agent-cache: {method} is not recorded")
        # Who asks is no part of what is asked, and another version of the host gets the recorded answer
        params = {} if method == "initialize" else {key: each for key, each in request.params.items() if key != "_meta"}
        return await self._request(request, method, params)

    async def _forwarded(self, request: HostRequest, _method: str, _params: dict[str, Any]) -> Any:
        return _plain(await self._run(request))

    # What the server has

    async def _tool(self, name: str, request: HostRequest) -> Mapping[str, Any]:
        """What the server says of a tool; nothing if it does not list it."""
        host = self._host_of(request)
        if host.tools is None:
            host.tools = asyncio.get_running_loop().create_task(self._listed(request), context=self._inside.copy())
        return (await asyncio.shield(host.tools)).get(name, {})

    def _host_of(self, request: HostRequest) -> HostSession:
        """The session that knows the tools of a request. While a cassette is used, that is one for all hosts."""
        return self._host if self.is_taped else request.host or self._host

    async def _listed(self, request: HostRequest) -> Tools:
        try:
            async with asyncio.timeout(_LIST_PATIENCE):
                found = await self._list(request, messages.envelope_of(request.params))
            return _by_name(json.dumps(found["tools"]))
        except Exception as error:  # noqa: BLE001 - the server may answer anything
            _LOG.warning("the tools of the server are not known (%s), nor their hints", error)
            is_lasting = isinstance(error, RpcError) and error.error.get("code") != messages.INTERNAL_ERROR
            if not (is_lasting or self.is_taped or isinstance(error, TimeoutError)):
                self._host_of(request).tools = None  # the next call asks again
            return {}

    def is_write(self, request: HostRequest) -> bool:
        """Whether a request calls a tool that writes."""
        return request.method == "tools/call" and self._rule(request).kind == "write"

    def _rule(self, request: HostRequest) -> Any:
        """The rule of the tool that a request calls."""
        name, listing = str(request.params.get("name")), self._host_of(request).tools
        hints = listing.result().get(name, {}).get("annotations") if listing is not None and listing.done() else None
        return self.box.rule(name, hints, request.params.get("arguments"))

    # Tasks

    async def _end_of_task(self, task: Mapping[str, Any]) -> None:
        """Wait until a task of the server has come to its terminal status, as long as the server keeps it."""
        name, ttl = task["taskId"], task.get("ttl")
        end = self._task_ends.setdefault(name, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(ttl / 1000 if isinstance(ttl, int | float) else None):
                await asyncio.shield(end)
        finally:
            self._task_ends.pop(name, None)

    def _note_task(self, task: Any) -> None:
        """Take note of the status of a task."""
        if isinstance(task, dict) and task.get("status") in _TERMINAL:
            self.note_end(str(task.get("taskId")))

    def note_end(self, name: str) -> None:
        """Take note of the end of a task, or of a call whose host has asked for the rest."""
        end = self._task_ends.get(name)
        if end is not None and not end.done():
            end.set_result(None)


def _plain(result: Any) -> Any:
    return result.answer if type(result) is Private else result


@functools.lru_cache(100)
def _by_name(tools: str) -> Tools:
    """The tools of a list, given as JSON. The sessions of a server have equal ones, and so one of these."""
    return {tool["name"]: tool for tool in json.loads(tools)}


async def _all_pages(request: HostRequest, envelope: dict[str, Any]) -> dict[str, Any]:
    """The server's list of its tools, as one page."""
    meta = {"_meta": envelope} if envelope else {}

    async def page(params: dict[str, Any]) -> Any:
        return (await request.ask("tools/list", {**meta, **params})).answer()

    return {"tools": await messages.listed(page)}


def _is_fresh_for_others(kept: dict[str, Any]) -> bool:
    result = object_in(kept["result"])
    is_scoped = result.get("cacheScope") in ("public", "private")  # either way it is kept for its asker
    return is_scoped and type(result.get("ttlMs")) in (int, float) and result["ttlMs"] > 0


def _task_of(result: Any) -> Mapping[str, Any] | None:
    """The task of the protocol that a result names in place of an answer."""
    found = object_in(result)
    task = object_in(found.get("task", found if found.get("resultType") == "task" else None))
    return task if isinstance(task.get("taskId"), str) else None
