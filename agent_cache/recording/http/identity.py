"""Requests as calls: which of them are recorded, what they are, and what identifies them, by `requests.toml`."""

from __future__ import annotations

import functools
import hashlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.resources import files
from operator import itemgetter
from typing import Annotated, Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit

import msgspec

from agent_cache.errors import ConfigurationError
from agent_cache.recording.functions import RecordedFunction
from agent_cache.recording.http.bodies import pairs_of, request_arguments
from agent_cache.recording.redaction import Redaction

KNOWN: Final[dict[str, Any]] = tomllib.loads(
    files("agent_cache.recording.http").joinpath("requests.toml").read_text("utf-8")
)
_NEVER, _LIVE = tuple(KNOWN["never"]), tuple(KNOWN["live"])
_Texts = tuple[Annotated[str, msgspec.Meta(min_length=1)], ...]
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("ignore", "models", "headers", "ignore_fields"), _Texts),
    "only": _Texts | None,
    "live": tuple[Annotated[str, msgspec.Meta(pattern="://")], ...],
    "aliases": dict[str, str],
    "guard": bool,
}
"""Of the settings. A whole host is for `ignore`, and no URL for `live`."""


@dataclass(frozen=True, kw_only=True)
class Http:
    """What of a run's HTTP is recorded, and what identifies a request: ``record(path, http=Http(...))``

    Hosts are names as ``api.example.com``, which include the hosts below them, or beginnings of URLs as
    ``https://api.example.com/v1/``.

    Args:
        ignore: hosts whose requests are made as if there were no recording, also in a replay.
        live: full URLs, without a query, to which requests are made likewise: by default, those to which known
            libraries send telemetry, or from which they load their tables. ``*`` and ``?`` stand for characters other
            than a slash. A strict replay does not make requests to the default ones: it answers them by an error. Those
            that are given here it makes: ``live=[*Http().live]`` gives the default ones. ``()`` is none.
        models: hosts that are models, for servers that are not known: POST requests there change nothing. Without it a
            request is one to a model by a known host or a known client, and the path of a call of a model.
        only: the only hosts that are recorded; None is all.
        headers: names of headers that identify a request, in addition to ``x-amz-target``, ``soapaction``, ``range``
            and ``x-http-method-override``. Of one that is a secret, such as ``authorization``, only presence counts.
        ignore_fields: fields of the query and of the body, in JSON or a form, that do not identify a request: a name at
            any depth, or a path of names from the top, as ``metadata.run_id``.
        aliases: other names for hosts, by host or ``host:port``: what is recorded at one is replayed at another.
            Without one, two ports are two servers, also on loopback.
        guard: under ``strict=True``, connections that Python makes in another way are refused, as those of WebSockets,
            unless a recorded call makes them or `ignore` has their host. Threads without a context, other processes,
            and libraries with sockets of their own, as gRPC, are not guarded.

    Raises:
        ConfigurationError: if an argument is of another type.
    """

    ignore: Sequence[str] = ()
    live: Sequence[str] = _LIVE
    models: Sequence[str] = ()
    only: Sequence[str] | None = None
    headers: Sequence[str] = ()
    ignore_fields: Sequence[str] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    guard: bool = False

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            try:
                object.__setattr__(self, name, msgspec.convert(getattr(self, name), kind))
            except msgspec.ValidationError as error:
                raise ConfigurationError(f"Http: {name}: {error}, got {getattr(self, name)!r}") from None
        object.__setattr__(self, "headers", tuple(map(str.lower, self.headers)))

    @classmethod
    def of(cls, given: Any, caller: str) -> Http | None:
        """The settings of an ``http=`` argument; None if no HTTP is recorded.

        Raises:
            ConfigurationError: if it is neither a bool nor an `Http`.
        """
        if given is not None and not isinstance(given, bool | Http):
            raise ConfigurationError(f"{caller}: http must be True, False or Http(...), got {given!r}")
        return given if isinstance(given, Http) else cls() if given else None

    @classmethod
    def described(cls, data: Mapping[str, Any]) -> Http:
        """The settings that a cassette's header has, which may have been edited."""
        try:
            return cls(**data)
        except TypeError as error:
            raise ConfigurationError(f"the header has no settings of http: {error}") from error

    def describe(self, redaction: Redaction) -> dict[str, Any]:
        """The settings that are not the defaults, for a cassette's header.

        The beginning of a URL ends where a secret begins: a replay takes it for more URLs, and never for fewer.
        """
        default = Http()
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        for name in ("ignore", "only"):
            if found[name]:
                found[name] = tuple(redaction.text(one).partition(redaction.replacement)[0] for one in found[name])
        return {
            name: list(value) if isinstance(value, tuple) else value  # as it is read from a file
            for name, value in found.items()
            if value != getattr(default, name)
        }

    def takes(self, parts: SplitResult) -> bool:
        """Whether requests to this URL are recorded."""
        if is_at((*_NEVER, *self.ignore), parts) or _is_live(self.live, parts):
            return False
        return self.only is None or is_at(self.only, parts)

    def refuses(self, parts: SplitResult) -> bool:
        """Whether a strict replay makes no request to this URL, which is not recorded: the user has not named it."""
        is_named = is_at(self.ignore, parts) or (self.live != _LIVE and _is_live(self.live, parts))
        return not is_named and (self.only is None or is_at(self.only, parts))


@functools.lru_cache(maxsize=1000)
def host_and_server(parts: SplitResult) -> tuple[str, str]:
    """The host of a URL, and its server: the host with the port, if that is not the usual one."""
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    return host, shown if parts.port in (None, usual) else f"{shown}:{parts.port}"


@functools.lru_cache(maxsize=100)
def _matcher(given: tuple[str, ...], *, is_whole: bool) -> re.Pattern[str]:
    """Matches URLs at these hosts, or that begin as these; or whole ones, with wildcards. A host has no case."""
    found = []
    for one in given:
        scheme, is_url, rest = one.rpartition("://")
        server, slash, path = rest.partition("/")
        start = f"{scheme}://{re.escape(server)}".lower()
        if is_whole:
            found.append(f"{start}/{re.escape(path)}".replace(r"\*", "[^/]*").replace(r"\?", "[^/]"))
        elif is_url:  # the name of a host does not go on behind its end
            found.append(f"{start}{f'/{re.escape(path)}' if slash else '[/:]'}.*")
        else:
            found.append(rf"[^/]+://(?:[^/]*\.)?{re.escape(server.lower())}(?::\d+)?/.*")
    return re.compile("|".join(found) or "(?!)", re.DOTALL)


def _url_of(parts: SplitResult, query: str = "") -> str:
    return urlunsplit((parts.scheme, host_and_server(parts)[1], parts.path or "/", query, ""))


def is_at(given: Sequence[str], parts: SplitResult) -> bool:
    """Whether a URL is at one of these hosts, or begins as one of these URLs."""
    return _matcher(tuple(given), is_whole=False).fullmatch(_url_of(parts, parts.query)) is not None


def _is_live(given: Sequence[str], parts: SplitResult) -> bool:
    """Whether a URL is one of these, but for its query."""
    return _matcher(tuple(given), is_whole=True).fullmatch(_url_of(parts)) is not None


@functools.lru_cache(maxsize=1000)
def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    return host in ("localhost", "::1") or re.fullmatch(r".*\.localhost|127(\.\d+){3}", host) is not None


# Identity

_IDENTIFYING = ("range", "soapaction", "x-amz-target", "x-http-method-override")
_KEYS: dict[str, list[str]] = KNOWN["query"]["keys"]
_SIGNED = re.compile(KNOWN["query"]["signed"], re.IGNORECASE)
_SIGNED_BY: dict[str, list[str]] = KNOWN["signed_by"]
_TOKEN_PATH = re.compile(r"/(o?auth2?|v\d|connect|protocol/openid-connect)?/?((oauth|access)_)?token$", re.IGNORECASE)
_MODEL_HOST = re.compile("|".join(KNOWN["model_hosts"]))
_MODEL_PATH = re.compile("|".join(KNOWN["model_paths"]))
_MODEL_CLIENT = re.compile(rf"(?:^|[\s;])(?:{'|'.join(KNOWN['model_clients'])})", re.IGNORECASE)
_IN_BASE64 = re.compile(rb'(?<=[",])[A-Za-z0-9+/_-]{10000,}+={0,2}(?=")')
"""A file in JSON, such as a picture, which a conversation sends again in each turn."""
_SIGNED_FOR_BEDROCK = re.compile(r"Credential=[^,]*/bedrock(-runtime)?/aws4_request", re.IGNORECASE)
_MODEL_IN_PATH = re.compile(r"/(?:models?|deployments)/([^/:]+(?::\d+)?)(?:[/:]|$)")


def _is_model(method: str, parts: SplitResult, headers: Mapping[str, str], settings: Http) -> bool:
    """Whether a request is a call of a model, which changes nothing and may be made again.

    Other servers have paths of the same names, by which they send messages and charge cards. So the path alone says
    nothing: the host must be that of a known provider, or the client one of models, or the user must have said so.
    """
    if method.upper() != "POST":
        return False
    if settings.models and is_at(settings.models, parts):
        return True
    if not _MODEL_PATH.search(parts.path):
        return False
    return (
        _MODEL_HOST.fullmatch(parts.hostname or "") is not None
        or any(_MODEL_CLIENT.search(headers.get(name, "")) for name in ("user-agent", "x-goog-api-client"))
        or headers.get("x-fern-sdk-name", "").lower() in ("cohere", "mistralai")
        or _SIGNED_FOR_BEDROCK.search(headers.get("authorization", "")) is not None
    )


def model_in(url: str) -> str | None:
    """The model that the path of a URL names."""
    return next(map(unquote, _MODEL_IN_PATH.findall(urlsplit(url).path)), None)


def identity(
    method: str, url: str, headers: Mapping[str, str], body: bytes, settings: Http, redaction: Redaction
) -> tuple[str, str, dict[str, Any]]:
    """Kind, name and arguments of a request, as a recorded call has them. The arguments are not redacted."""
    parts = urlsplit(url)
    host, shown = host_and_server(parts)
    alone = f"[{host}]" if ":" in host else host
    alias = settings.aliases.get(f"{alone}:{parts.port}") or settings.aliases.get(alone)
    path = parts.path or "/"
    if alias is not None:  # the path may be a secret of either host
        origin, shown = f"{parts.scheme}://{host}", alias
        cleaned = _redacted_url(redaction, origin + path)
        path = cleaned.removeprefix(origin) if cleaned.startswith(origin) else path
    name = f"{method.upper()} {_redacted_url(redaction, f'{parts.scheme}://{shown}{path}')}"
    kind = "llm" if _is_model(method, parts, headers, settings) else "http"
    arguments: dict[str, Any] = {}
    if query := _query_of(parts, host):
        arguments["query"] = query
    if identifying := {one: headers[one] for one in (*_IDENTIFYING, *settings.headers) if one in headers}:
        arguments["headers"] = identifying
    body = _IN_BASE64.sub(
        lambda found: f"sha256:{hashlib.sha256(redaction.text(found[0].decode()).encode()).hexdigest()}".encode(), body
    )
    body_arguments = request_arguments(headers, body)
    body_arguments.get("form", {}).pop("RoleSessionName", None)  # of AWS STS: botocore makes it of the time
    if "grant_type" not in body_arguments.get("form", ()) or not _TOKEN_PATH.search(parts.path):
        arguments |= body_arguments
    for ignored in settings.ignore_fields:
        for part in arguments.keys() & {"query", "json", "form"}:
            arguments[part] = _without(arguments[part], ignored.split("."), is_deep="." not in ignored)
    if "multipart" in arguments:  # a form that uploads to S3 is signed, and so is its policy, which ends at some time
        signed = set(filter(_SIGNED.fullmatch, (one.get("name", "") for one in arguments["multipart"])))
        out = signed.union(settings.ignore_fields, ["policy"] if signed else [])
        arguments["multipart"] = [one for one in arguments["multipart"] if one.get("name") not in out]
    return kind, name, arguments


@functools.lru_cache(maxsize=1000)
def _redacted_url(redaction: Redaction, url: str) -> str:
    return redaction.request_name(url)


def _query_of(parts: SplitResult, host: str) -> dict[str, Any]:
    if not parts.query:
        return {}
    pairs = parse_qsl(parts.query, keep_blank_values=True, errors="backslashreplace")
    out = set[str]().union(*(those for sign, those in _SIGNED_BY.items() if sign in dict(pairs)))
    out = out.union(*(those for end, those in _KEYS.items() if host.endswith(end)))
    kept = [pair for pair in pairs if pair[0] not in out and not _SIGNED.fullmatch(pair[0])]
    return pairs_of(sorted(kept, key=itemgetter(0)))  # the order of values of one name may matter


def _without(data: Any, path: list[str], *, is_deep: bool) -> Any:
    """The same data without the field at this path, in lists too."""
    if isinstance(data, list):
        return [_without(one, path, is_deep=is_deep) for one in data]
    if not isinstance(data, dict):
        return data
    name, *rest = path
    found = {key: _without(value, path, is_deep=True) if is_deep else value for key, value in data.items()}
    if rest and name in found:
        found[name] = _without(found[name], rest, is_deep=False)
    elif not rest:
        found.pop(name, None)
    return found


class _Endpoint(RecordedFunction):
    """Method and URL of requests, in the place of the function that is called."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(lambda **_: None, name, kind)
        self.parameters = None
        server = urlsplit(name.partition(" ")[2])
        self.names = frozenset({name, server.netloc, server.hostname or server.netloc})


endpoint_of = functools.lru_cache(maxsize=1000)(_Endpoint)
