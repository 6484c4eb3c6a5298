"""Logs that look like those of agents with many MCP servers: 30 servers, no word about what reads and what writes.

Each server keeps things that belong to a parent (files of a folder, issues of a project), under names with the server
in front, in one of the usual spellings. An agent works with three of them: it lists, reads, writes, and looks again at
what it wrote. Few calls repeat an earlier one, and most of these answer something new, as in public runs of MCP
benchmarks: about 5 % repeat, of which about a quarter is unchanged.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from agent_cache.advise.calls import LoggedCall

State = dict[str, dict[str, dict[str, Any]]]
Kind = Literal["read", "write"]


_WORDS = ("budget", "draft", "fix", "launch", "login", "report", "review", "sprint")


@dataclass(frozen=True)
class Server:
    """A server: how its tools are named, and what it keeps.

    Attributes:
        before: what stands in front of the names of its tools.
        thing, parent: what it keeps, and to what each thing belongs.
        verbs: for reading one, listing, searching, making, changing, deleting.
        camel: whether names are written as `getIssue`.
        id_name: the argument that names a thing.
    """

    before: str
    thing: str
    parent: str
    verbs: tuple[str, str, str, str, str, str] = ("get", "list", "search", "create", "update", "delete")
    camel: bool = False
    id_name: str = ""

    def tool(self, verb: str, noun: str) -> str:
        """The name of a tool."""
        words = [verb, *noun.split("_")]
        name = words[0] + "".join(word.title() for word in words[1:]) if self.camel else "_".join(words)
        return self.before + (name.replace("_", "-") if self.before.endswith("-") else name)

    @property
    def by(self) -> str:
        """The argument that names a thing."""
        return self.id_name or f"{self.thing}_id"


SERVERS = (
    Server("filesystem-", "file", "directory", ("read", "list", "search", "write", "edit", "delete"), id_name="path"),
    Server("github__", "issue", "repo", ("get", "list", "search", "create", "update", "close")),
    Server("mcp__git__git_", "commit", "branch", ("show", "log", "grep", "add", "amend", "revert"), id_name="revision"),
    Server("canvas_", "assignment", "course", ("get", "list", "find", "create", "update", "delete")),
    Server("notion.", "page", "database", ("retrieve", "query", "search", "create", "update", "archive"), camel=True),
    Server("slack__", "message", "channel", ("get", "list", "search", "post", "edit", "delete")),
    Server("mcp__jira__", "ticket", "project", ("get", "list", "search", "create", "transition", "remove")),
    Server("gitlab-", "merge_request", "project", ("get", "list", "search", "create", "update", "close")),
    Server("calendar_", "event", "calendar", ("get", "list", "find", "create", "move", "cancel")),
    Server("postgres__", "row", "table", ("fetch", "select", "lookup", "insert", "update", "delete"), id_name="key"),
    Server("drive.", "document", "folder", ("read", "list", "search", "upload", "rename", "trash")),
    Server("k8s__", "pod", "namespace", ("describe", "list", "find", "apply", "scale", "delete")),
    Server("stripe_", "invoice", "customer", ("retrieve", "list", "search", "create", "finalize", "void")),
    Server("email-", "mail", "mailbox", ("read", "list", "search", "send", "mark", "delete")),
    Server("todoist__", "task", "section", ("get", "list", "find", "add", "complete", "remove")),
    Server("trello.", "card", "board", ("get", "list", "search", "add", "update", "archive"), camel=True),
    Server("mcp__memory__", "entity", "graph", ("open", "read", "search", "create", "update", "delete")),
    Server("docker-", "container", "network", ("inspect", "list", "find", "run", "restart", "remove")),
    Server("s3__", "object", "bucket", ("head", "list", "search", "put", "copy", "delete"), id_name="key"),
    Server("airtable_", "record", "base", ("get", "list", "search", "create", "update", "delete")),
    Server("linear__", "cycle", "team", ("get", "list", "search", "create", "update", "archive")),
    Server("zendesk.", "case", "queue", ("show", "list", "search", "open", "assign", "close")),
    Server("sheets__", "sheet", "workbook", ("read", "list", "find", "append", "set", "clear")),
    Server("hubspot_", "deal", "company", ("get", "list", "search", "create", "update", "delete")),
    Server("mcp__shop__", "order", "account", ("view", "list", "find", "place", "modify", "cancel")),
    Server("terraform-", "workspace", "organization", ("get", "list", "search", "create", "lock", "destroy")),
    Server("obsidian__", "note", "vault", ("read", "list", "search", "write", "patch", "delete")),
    Server("spotify.", "playlist", "owner", ("get", "list", "search", "create", "rename", "unfollow"), camel=True),
    Server("grafana__", "dashboard", "team", ("get", "list", "search", "create", "update", "delete")),
    Server("excel_", "cell", "worksheet", ("get", "read", "find", "write", "format", "clear"), id_name="cell"),
)


@dataclass(frozen=True)
class LogShape:
    """How a log is made.

    Attributes:
        runs: of agents, one after the other.
        is_fresh: whether each run starts from the same state; else all share one.
        meta: whether the calls are those of one meta-tool, with the real tool as an argument.
    """

    runs: int = 215
    is_fresh: bool = True
    meta: bool = False


def play_servers(seed: int, shape: LogShape | None = None) -> list[LoggedCall]:
    """A log of agents at work with many servers."""
    shape = shape or LogShape()
    chance = random.Random(f"servers:{seed}")
    log: list[LoggedCall] = []
    state = _new_state()
    for run in range(shape.runs):
        if shape.is_fresh:
            state = _new_state()
        for tool, arguments, answer, _kind in _run(state, chance):
            at = float(len(log) * 2)
            name, given = (tool, arguments) if not shape.meta else ("execute-tool", _inside(tool, arguments))
            given = json.loads(json.dumps(given))
            log.append(LoggedCall(name, given, answer, None, at, at + 1, str(run), is_parsed=True))
    return log


def _inside(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"tool_name": tool, "params": arguments}


def _new_state() -> State:
    chance = random.Random("servers")
    return {server.before: dict(_things(server, chance)) for server in SERVERS}


def _things(server: Server, chance: random.Random) -> Iterator[tuple[str, dict[str, Any]]]:
    for number in range(60):
        yield _new_thing(server, number, f"{server.parent}-{number % 8}", chance)


def _new_thing(server: Server, number: int, parent: str, chance: random.Random) -> tuple[str, dict[str, Any]]:
    name = f"/{parent}/{server.thing}{number}.txt" if server.id_name == "path" else f"{server.thing}_{number:03}"
    title = f"{chance.choice(_WORDS)} {chance.randint(1, 40)}"
    return name, {server.by: name, f"{server.parent}_id": parent, "title": title, "state": "open"}


def _run(state: State, chance: random.Random) -> Iterator[tuple[str, dict[str, Any], Any, Kind]]:
    """The calls of one agent: each tool, its arguments, its answer."""
    for server in chance.sample(SERVERS, 3):
        things = state[server.before]
        yield from _visit(server, things, chance)


def _visit(
    server: Server, things: dict[str, dict[str, Any]], chance: random.Random
) -> Iterator[tuple[str, dict[str, Any], Any, Kind]]:
    get, listing, search, create, change, delete = server.verbs
    made: list[tuple[str, dict[str, Any]]] = []

    def read(tool: str, arguments: dict[str, Any]) -> tuple[str, dict[str, Any], Any, Kind]:
        made.append((tool, arguments))
        return tool, arguments, _answer(server, tool, arguments, things), "read"

    def see(parent: str) -> tuple[str, dict[str, Any], Any, Kind]:
        return read(server.tool(listing, f"{server.thing}s"), {f"{server.parent}_id": parent})

    def look(name: str) -> tuple[str, dict[str, Any], Any, Kind]:
        return read(server.tool(get, server.thing), {server.by: name})

    parents = chance.sample(range(8), 4)
    for parent in parents:
        names = [name for name, one in things.items() if one[f"{server.parent}_id"] == f"{server.parent}-{parent}"]
        if chance.random() < 0.5 or not names:
            yield see(f"{server.parent}-{parent}")
        for name in chance.sample(names, min(len(names), chance.randint(1, 3))):
            yield look(name)
    if chance.random() < 0.6:
        yield read(server.tool(search, f"{server.thing}s"), {"query": chance.choice(_WORDS)})
    for _ in range(chance.choice((0, 1, 1, 2, 2))):
        seen = [one for _, asked in made if (one := asked.get(server.by)) in things]
        name = chance.choice(seen or list(things))
        parent = things[name][f"{server.parent}_id"]
        kind = chance.random()
        if kind < 0.55:
            title = f"{chance.choice(_WORDS)} {chance.randint(41, 99)}"
            things[name] = {**things[name], "title": title}
            arguments = {server.by: name, "title": title}
            yield server.tool(change, server.thing), arguments, _text(things[name]), "write"
        elif kind < 0.85:
            name, thing = _new_thing(server, chance.randint(60, 999), parent, chance)
            things[name] = thing
            arguments = {f"{server.parent}_id": parent, "title": thing["title"]}
            yield server.tool(create, server.thing), arguments, _text({server.by: name}), "write"
        else:
            thing = things.pop(name)
            yield server.tool(delete, server.thing), {server.by: name}, _text({"ok": True}), "write"
        if chance.random() < 0.2:
            yield see(parent)
        if kind < 0.85 and chance.random() < 0.5:
            yield look(name)
    if made and chance.random() < 0.14:
        tool, arguments = chance.choice(made)
        yield tool, arguments, _answer(server, tool, arguments, things), "read"


def _answer(server: Server, tool: str, arguments: dict[str, Any], things: dict[str, dict[str, Any]]) -> Any:
    if server.by in arguments:
        return _text(things.get(arguments[server.by]))
    parent = arguments.get(f"{server.parent}_id")
    if parent is None:
        return _text([name for name, one in things.items() if arguments["query"] in one["title"]])
    rows = [
        {server.by: one[server.by], "title": one["title"]}
        for one in things.values()
        if one[f"{server.parent}_id"] == parent
    ]
    return _text({f"{server.thing}s": rows})


def _text(value: Any) -> Any:
    """A value as the reader of logs makes it of a text block of MCP: parsed."""
    return json.loads(json.dumps(value))
