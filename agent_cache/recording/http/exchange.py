"""One HTTP request and its response, as a call of a recording: what of it is recorded, its identity, its answer.

A *seam* in a client library (`seams`) makes an `Exchange` for each request. It passes through the recordings around the
request, the innermost first, as a call of a wrapped function does. One of them may have the `Answer`. Otherwise the
request is made, and the exchange logs the response while the client reads it.
"""

from __future__ import annotations

import functools
import ipaddress
import logging
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from http import HTTPStatus
from operator import itemgetter
from typing import Any, NoReturn, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit

import msgspec

from agent_cache.engine.interception import INTERCEPTORS
from agent_cache.engine.scope import PLACE
from agent_cache.errors import CassetteError, ConfigurationError, ReplayExhausted
from agent_cache.recording.exceptions import read_error
from agent_cache.recording.functions import CURRENT_CALL, ActiveCall, RecordedFunction, Usage
from agent_cache.recording.http.bodies import (
    Pieces,
    ResponseBody,
    is_stream,
    model_payloads,
    pairs_of,
    request_arguments,
)
from agent_cache.recording.lanes import checkpoint
from agent_cache.recording.player import Player, call_data
from agent_cache.recording.recorder import Recorder
from agent_cache.recording.redaction import Redaction
from agent_cache.recording.results import redact_response
from agent_cache.recording.streams import failure_outcome, leave_call

__all__ = [
    "Answer",
    "Exchange",
    "Http",
    "identity",
    "is_intercepted",
    "open_exchange",
    "response_data",
    "running_call",
]

Pairs: TypeAlias = list[tuple[str, str]]
"""Names and values of headers, in their order."""


_LOG = logging.getLogger("agent_cache")


# What is recorded

_NEVER = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "metadata.azure.internal")
"""Hosts that give credentials to the machine that asks."""
_RUN_OF_LANGSMITH = f"runs/{'-'.join('?' * length for length in (8, 4, 4, 4, 12))}"
_LIVE = (
    "https://api.openai.com/v1/traces/ingest",  # OpenAI Agents SDK
    *(
        f"https://{host}.smith.langchain.com/{path}"
        for host in ("api", "*.api")
        for path in ("info", "runs", "runs/batch", "runs/multipart", _RUN_OF_LANGSMITH, "otel/v1/traces")
    ),
    *(
        f"https://{host}.langfuse.com/api/public/{path}"
        for host in ("cloud", "*.cloud")
        for path in ("ingestion", "otel/v1/traces")
    ),
    "https://us.i.posthog.com/batch/",
    "https://eu.i.posthog.com/batch/",
    "https://app.posthog.com/batch/",
    "https://*.ingest.sentry.io/api/*/envelope/",
    "https://*.ingest.*.sentry.io/api/*/envelope/",
    "https://telemetry.crewai.com:4319/v1/traces",
    "https://raw.githubusercontent.com/BerriAI/litellm/*/model_prices_and_context_window.json",
    "https://openaipublic.blob.core.windows.net/encodings/*.tiktoken",
    "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe",
    "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/encoder.json",
)
"""Where libraries send what they report about themselves, and tables that they load when they are first used: it is no
part of a run, and a run may well have it or not."""


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
            and ``x-http-method-override``. Of one that is a secret, such as ``authorization``, only the
            presence counts.
        ignore_fields: fields of the query and of the body, in JSON or a form, that do not identify a request: a name at
            any depth, or a path of names from the top, as ``metadata.run_id``.
        aliases: other names for hosts, by host or ``host:port``: what is recorded at one is replayed at another.
            Without one, two ports are two servers, also on loopback.
        hurry: a replayed response that asks the client to try again later asks for it at once.
        guard: under ``strict=True``, connections that are made in another way are refused, as those of gRPC and
            WebSockets, unless a recorded call makes them or `ignore` has their host. Threads without a context, and
            other processes, are not guarded.

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
    hurry: bool = True
    guard: bool = False

    def __post_init__(self) -> None:
        for name in ("ignore", "live", "models", "only", "headers", "ignore_fields"):
            given: Any = getattr(self, name)
            if given is None and name == "only":
                continue
            if isinstance(given, str) or not isinstance(given, Iterable):
                raise ConfigurationError(f"Http: {name} takes a list of texts, got {given!r}")
            texts = given if given is _LIVE else (*given,)
            if not all(isinstance(one, str) and one for one in texts):
                raise ConfigurationError(f"Http: {name} takes a list of texts, got {given!r}")
            object.__setattr__(self, name, tuple(map(str.lower, texts)) if name == "headers" else texts)
        for one in self.live:
            if "://" not in one:
                raise ConfigurationError(f"Http: live takes full URLs, got {one!r}; a whole host is for ignore")
        if not isinstance(self.aliases, Mapping) or not all(
            isinstance(one, str) and isinstance(other, str) for one, other in self.aliases.items()
        ):
            raise ConfigurationError(f"Http: aliases maps hosts to hosts, got {self.aliases!r}")
        object.__setattr__(self, "aliases", dict(self.aliases))
        for name in ("hurry", "guard"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(f"Http: {name} must be True or False, got {getattr(self, name)!r}")

    @classmethod
    def of(cls, given: Any, caller: str) -> Http | None:
        """The settings of an ``http=`` argument; None if no HTTP is recorded.

        Raises:
            ConfigurationError: if it is neither a bool nor an `Http`.
        """
        if isinstance(given, Http):
            return given
        if given is None or isinstance(given, bool):
            return cls() if given else None
        raise ConfigurationError(f"{caller}: http must be True, False or Http(...), got {given!r}")

    @classmethod
    def described(cls, data: Mapping[str, Any]) -> Http:
        """The settings that a cassette's header has.

        Raises:
            ConfigurationError: if the file was edited, and these are none.
        """
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
            if (value is not _LIVE if name == "live" else value != getattr(default, name))
        }

    def takes(self, url: str, parts: SplitResult) -> bool:  # noqa: ARG002 - callers have both
        """Whether requests to this URL are recorded."""
        if _is_at((*_NEVER, *self.ignore), parts) or _is_live(self.live, parts):
            return False
        return self.only is None or _is_at(self.only, parts)

    def has_named(self, parts: SplitResult) -> bool:
        """Whether the user has said that requests to this URL are made as if there were no recording."""
        return _is_at(self.ignore, parts) or (self.live is not _LIVE and _is_live(self.live, parts))


def _shown(parts: SplitResult) -> tuple[str, str]:
    """The host of a URL, and its server: the host with the port, if that is not the usual one."""
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    return host, shown if parts.port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f"{shown}:{parts.port}"


@functools.lru_cache(maxsize=100)
def _places(given: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Beginnings of URLs, and ends of host names behind a dot. Case of a host does not matter."""
    beginnings: list[str] = []
    for one in given:
        scheme, is_url, rest = one.partition("://")
        host, slash, path = rest.partition("/")
        if is_url:
            start = f"{scheme.lower()}://{host.lower()}"
            # The name of a host does not go on behind its end
            beginnings += [f"{start}/{path}"] if slash else [f"{start}/", f"{start}:"]
    return tuple(beginnings), tuple(f".{one.lower()}" for one in given if "://" not in one)


def _is_at(given: Sequence[str], parts: SplitResult) -> bool:
    """Whether a URL is at one of these hosts, or begins as one of these URLs."""
    beginnings, hosts = _places(tuple(given))
    host, server = _shown(parts)
    if f".{host}".endswith(hosts) or f".{server}".endswith(hosts):
        return True
    return urlunsplit((parts.scheme, server, parts.path or "/", parts.query, "")).startswith(beginnings)


def _is_live(given: Sequence[str], parts: SplitResult) -> bool:
    """Whether a URL is one of these, but for its query."""
    pattern = _any_of(tuple(given))
    return pattern.fullmatch(f"{parts.scheme}://{_shown(parts)[1]}{parts.path or '/'}") is not None


@functools.lru_cache(maxsize=100)
def _any_of(given: tuple[str, ...]) -> re.Pattern[str]:
    """Matches each of these URLs, with their wildcards."""
    texts = (f"{start.lower()}/{path}" for start, path in (_start_and_path(one) for one in given))
    escaped = (re.escape(text).replace(r"\*", "[^/]*").replace(r"\?", "[^/]") for text in texts)
    return re.compile("|".join(escaped) or r"(?!)")


def _start_and_path(url: str) -> tuple[str, str]:
    scheme, _, rest = url.partition("://")
    server, _, path = rest.partition("/")
    return f"{scheme}://{server}", path


# Identity

_IDENTIFYING = ("range", "soapaction", "x-amz-target", "x-http-method-override")
_KEYS = frozenset({"access_token", "api-key", "api_key", "apikey"})
_SIGNED = re.compile(
    r"x-(amz|goog)-(algorithm|credential|date|expires|security-token|signature|signedheaders)", re.IGNORECASE
)
_SIGNED_BY = {
    "sig": frozenset({"se", "sig", "ske", "skoid", "sks", "skt", "sktid", "skv", "sp", "spr", "sr", "st", "sv"}),
    "Signature": frozenset({"AWSAccessKeyId", "Expires", "GoogleAccessId", "Key-Pair-Id", "Policy", "Signature"}),
}
"""Parameters of a signed URL, by the one that has the signature: of Azure, of CloudFront and Cloud Storage."""
_TOKEN_PATH = re.compile(r"/(o?auth2?|v\d|connect|protocol/openid-connect)?/?((oauth|access)_)?token$", re.IGNORECASE)
_MODEL_PATH = re.compile(
    r"/(chat/completions|completions|responses|v\d/messages|embeddings|v\d/chat|v\d/rerank|"
    r"model/[^/]+/(converse|converse-stream|invoke|invoke-with-response-stream)|"
    r"api/(chat|generate|embed|embeddings))$|"
    r":(generateContent|streamGenerateContent|embedContent|batchEmbedContents|predict|rawPredict|streamRawPredict)$"
)
_MODEL_HOST = re.compile(
    r"(.*\.)?("
    r"api\.openai\.com|(openai|cognitiveservices|services\.ai)\.azure\.com|models\.inference\.ai\.azure\.com|"
    r"api\.anthropic\.com|generativelanguage\.googleapis\.com|"
    r"bedrock-runtime(-fips)?\.[a-z0-9-]+\.(amazonaws\.com(\.cn)?|api\.aws)|"
    r"api\.(cohere\.(com|ai)|mistral\.ai|groq\.com|together\.(xyz|ai)|deepseek\.com|x\.ai|fireworks\.ai|perplexity\.ai|"
    r"cerebras\.ai|sambanova\.ai|novita\.ai|hyperbolic\.xyz|voyageai\.com|jina\.ai|ai21\.com|moonshot\.(ai|cn)|z\.ai|"
    r"minimaxi?\.(com|io)|studio\.nebius\.(com|ai)|githubcopilot\.com)|codestral\.mistral\.ai|openrouter\.ai|"
    r"(router|api-inference)\.huggingface\.co|open\.bigmodel\.cn|dashscope(-intl)?\.aliyuncs\.com|"
    r"integrate\.api\.nvidia\.com|inference\.baseten\.co|models\.github\.ai|ollama\.com)"
    r"|([a-z0-9-]+-)?aiplatform\.googleapis\.com"
)
"""Hosts of models. A gateway or a server of one's own is named by ``Http(models=)``."""
_MODEL_CLIENT = re.compile(
    r"(?:^|[\s;])((async)?(azure)?(openai|anthropic\w*|groq|together|cerebras)/python|agents/python|pydantic-ai/|"
    r"google-genai-sdk/|mistral-client-python/|cohere/|ollama-python/|hf_hub/|litellm/)",
    re.IGNORECASE,
)
"""How clients of models, and frameworks that use them, name themselves as ``user-agent`` or ``x-goog-api-client``."""
_SIGNED_FOR_BEDROCK = re.compile(r"Credential=[^,]*/bedrock(-runtime)?/aws4_request", re.IGNORECASE)
_MODEL_IN_PATH = re.compile(r"/(?:models?|deployments)/([^/:]+(?::\d+)?)(?:[/:]|$)")
_DEFAULT_PORTS = {"http": 80, "https": 443}


@functools.lru_cache(maxsize=1000)
def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_model(method: str, parts: SplitResult, headers: Mapping[str, str], settings: Http) -> bool:
    """Whether a request is a call of a model, which changes nothing and may be made again.

    Other servers have paths of the same names, by which they send messages and charge cards. So the path alone says
    nothing: the host must be that of a known provider, or the client one of models, or the user must have said so.
    """
    if method.upper() != "POST":
        return False
    if settings.models and _is_at(settings.models, parts):
        return True
    if not _MODEL_PATH.search(parts.path):
        return False
    return _MODEL_HOST.fullmatch(parts.hostname or "") is not None or is_of_model_client(headers)


def is_of_model_client(headers: Mapping[str, str]) -> bool:
    """Whether the client that makes a request is one of models, by what it says of itself.

    Args:
        headers: with names in lower case.
    """
    return (
        any(_MODEL_CLIENT.search(headers.get(name, "")) for name in ("user-agent", "x-goog-api-client"))
        or headers.get("x-fern-sdk-name", "").lower() in ("cohere", "mistralai")
        or _SIGNED_FOR_BEDROCK.search(headers.get("authorization", "")) is not None
    )


def identity(
    method: str, url: str, headers: Mapping[str, str], body: bytes, settings: Http, redaction: Redaction
) -> tuple[str, str, dict[str, Any]]:
    """Kind, name and arguments of a request, as a recorded call has them. The arguments are not redacted.

    Args:
        method, url, body: of the request.
        headers: likewise, with names in lower case.
        settings: of the recording.
        redaction: of the recording; for the path.
    """
    parts = urlsplit(url)
    host, shown = _shown(parts)
    alone = f"[{host}]" if ":" in host else host
    alias = settings.aliases.get(f"{alone}:{parts.port}") or settings.aliases.get(alone)
    path = parts.path or "/"
    if alias is not None:  # the path may be a secret of either host
        shown = alias
        path = _redacted_path(redaction, f"{parts.scheme}://{host}", path)
    name = f"{method.upper()} {_redacted_url(redaction, f'{parts.scheme}://{shown}{path}')}"
    kind = "llm" if _is_model(method, parts, headers, settings) else "http"
    arguments: dict[str, Any] = {}
    if query := _query_of(parts, host):
        arguments["query"] = query
    if identifying := {one: headers[one] for one in (*_IDENTIFYING, *settings.headers) if one in headers}:
        arguments["headers"] = identifying
    body_arguments = request_arguments(headers, body)
    if "grant_type" not in body_arguments.get("form", ()) or not _TOKEN_PATH.search(parts.path):
        arguments |= body_arguments
    for ignored in settings.ignore_fields:
        for part in ("query", "json", "form"):
            if part in arguments:
                arguments[part] = _without(arguments[part], ignored.split("."), is_deep="." not in ignored)
    return kind, name, arguments


@functools.lru_cache(maxsize=1000)
def _redacted_url(redaction: Redaction, url: str) -> str:
    return redaction.request_name(url)


def _redacted_path(redaction: Redaction, origin: str, path: str) -> str:
    """The path of a URL, from which the secrets are removed that are known by the host."""
    cleaned = _redacted_url(redaction, origin + path)
    return cleaned.removeprefix(origin) if cleaned.startswith(origin) else path


def _query_of(parts: SplitResult, host: str) -> dict[str, Any]:
    if not parts.query:
        return {}
    pairs = parse_qsl(parts.query, keep_blank_values=True, errors="backslashreplace")
    names = {name for name, _ in pairs}
    out = set(_KEYS).union(*(those for sign, those in _SIGNED_BY.items() if sign in names))
    if host.endswith((".googleapis.com", "qyapi.weixin.qq.com")):
        out.add("key")
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
    if name in found:
        if rest:
            found[name] = _without(found[name], rest, is_deep=False)
        else:
            del found[name]
    return found


def _request(**arguments: Any) -> NoReturn:
    """Stands for the function that a request would be a call of."""
    raise NotImplementedError(arguments)


class _Endpoint(RecordedFunction):
    """Method and URL of requests, in the place of the function that is called.

    Args:
        kind, name: as in `identity`.
    """

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(_request, name, kind)
        self.parameters = None
        server = urlsplit(name.partition(" ")[2])
        self.names = frozenset({name, server.netloc, server.hostname or server.netloc})


_endpoint = functools.lru_cache(maxsize=1000)(_Endpoint)


# Responses

_DROPPED = frozenset({
    "age", "alt-svc", "cf-cache-status", "cf-ray", "connection", "content-encoding", "content-length", "date",
    "keep-alive", "server", "server-timing", "strict-transport-security", "transfer-encoding", "vary", "via",
    "x-content-type-options", "x-envoy-upstream-service-time",
})  # fmt: skip
"""Headers about the way of a response, which say nothing to the program."""


def _readable(text: str) -> str:
    """A header without the surrogates that aiohttp has for bytes that are not UTF-8: no file can have them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape").decode("latin-1")
    return text


def _by_name(pairs: Pairs) -> dict[str, str]:
    """Headers by name in lower case. Values of one name are joined."""
    found: dict[str, str] = {}
    for given, value in pairs:
        name = given.lower()
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def response_data(
    status: int,
    reason: str,
    headers: Pairs,
    body: ResponseBody,
    redaction: Redaction,
    end: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What a cassette has under ``response``, redacted.

    Args:
        status, reason, headers: of the response.
        body: of the response, as far as it arrived.
        redaction: of the recording.
        end: how the body ended, if it did not arrive as a whole.
    """
    data: dict[str, Any] = {"status": status}
    if reason and reason != _phrase(status):
        data["reason"] = reason
    content = body.data(is_whole=end is None)
    kept: Pairs = []
    is_packed = any(given.lower() == "content-encoding" for given, _ in headers)
    for given, value in headers:
        name = given.lower()
        if name == "content-length" and ((end is not None and not is_packed) or (not body.size and value != "0")):
            kept.append((name, value))  # of a response to HEAD, or one that broke off: else it is known by the body
            continue
        if name == "set-cookie":
            kept.append((name, _cookie_without_value(value, redaction)))
        elif name not in _DROPPED or (name == "content-encoding" and body.is_encoded):
            kept.append((name, value))
    if kept:
        data["headers"] = pairs_of(kept)
    data |= content
    if end is not None:
        data["end"] = end
    return redact_response(data, redaction)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _cookie_without_value(cookie: str, redaction: Redaction) -> str:
    """Its name and attributes are needed by the client's jar."""
    pair, semicolon, attributes = cookie.partition(";")
    return f"{pair.partition('=')[0]}={redaction.replacement}{semicolon}{attributes}"


_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Statuses after which clients wait and try again."""
_HURRY = [("retry-after-ms", "1"), ("retry-after", "0")]
"""The first is known to the clients of OpenAI and Anthropic, which take the second for none."""


class Answer:
    """A recorded response while it is replayed, or a refusal in the place of one.

    Attributes:
        status, reason, headers: of the response.
        is_stream: whether it has several pieces.
    """

    def __init__(
        self,
        exchange: Exchange,
        response: Mapping[str, Any],
        pieces: Pieces,
        *,
        on_end: Callable[[], None],
        raise_end: Callable[[dict[str, Any]], None],
        hurry: bool = False,
    ) -> None:
        self.status: int = response["status"]
        self.reason: str = response.get("reason") or _phrase(self.status)
        self.headers: Pairs = [
            (name, one)
            for name, value in response.get("headers", {}).items()
            for one in (value if isinstance(value, list) else [value])
        ]
        if hurry and self.status in _RETRIED:
            self.headers = [pair for pair in self.headers if pair[0] not in ("retry-after", "retry-after-ms")] + _HURRY
        self.is_stream = is_stream(response)
        self._pieces = pieces
        self._end: dict[str, Any] | None = response.get("end")
        if not self.is_stream and self._end is None and exchange.may_have_body(self.status):
            self.headers = [pair for pair in self.headers if pair[0].lower() != "content-length"]  # of an edited file
            self.headers.append(("content-length", str(sum(map(len, pieces)))))
        self._exchange = exchange
        self._on_end: Callable[[], None] | None = on_end
        self._raise_end = raise_end
        exchange.responded(self.status, self.reason, self.headers)
        if self.is_empty:
            self._finish()
            exchange.ended()

    @property
    def is_empty(self) -> bool:
        """Whether it has a whole body of no bytes."""
        return self._end is None and not self._pieces

    def pieces(self) -> Iterator[bytes]:
        """The body. It has ended when its last piece is handed out: the client may know, and not ask for the end.

        Raises:
            BaseException: what broke the body off.
        """
        count = len(self._pieces)
        try:
            for number, piece in enumerate(self._pieces, 1):
                self._exchange.add(piece, is_decoded=True)
                if number == count and self._end is None:
                    self._finish()
                    self._exchange.ended()
                yield piece
        except GeneratorExit:  # the client has forgotten the response: that ends a recorded one, too
            self.close()
            raise
        if self._end is not None:
            try:
                self._raise_end(self._end)
            except BaseException as error:
                self._exchange.failed(error)
                raise
            finally:
                self._finish()

    async def awaited_pieces(self) -> AsyncIterator[bytes]:
        """The same. Other tasks run between two pieces.

        Raises:
            BaseException: what broke the body off.
        """
        pieces = self.pieces()
        for number in range(len(self._pieces) + 1):
            await checkpoint()
            if number == len(self._pieces):
                await self._wait_for_end()
            for piece in pieces:
                yield piece
                break

    async def _wait_for_end(self) -> None:
        if self._end is not None and ("cancelled" in self._end or "unfinished" in self._end):
            try:
                await self._exchange.wait_until_cancelled(is_for_ever="unfinished" in self._end)
            except BaseException as error:
                self._exchange.failed(error)
                raise
            finally:
                self._finish()

    def close(self) -> None:
        """The client does not read on."""
        self._finish()
        self._exchange.closed()

    def _finish(self) -> None:
        if self._on_end is not None:
            on_end, self._on_end = self._on_end, None
            on_end()


# Exchanges

IS_CONNECTING: ContextVar[bool] = ContextVar("agent_cache_is_connecting", default=False)
"""Whether a seam makes a request in this context, for which a connection may be opened."""


def is_intercepted() -> bool:
    """Whether a request made here may concern a recording. It is asked for every request of the process.

    Outside of all recordings, it does in a thread that may have lost its context: see `report_escape`.
    """
    if PLACE.get().scope.interceptor is not None:
        return True
    return bool(INTERCEPTORS) and threading.get_ident() != threading.main_thread().ident


def open_exchange(method: str, url: str, headers: Mapping[str, str]) -> Exchange | None:
    """The exchange of a request, or None if it is to be made as if there were no recording.

    Args:
        method, url: of the request.
        headers: of the request, with names in lower case.

    Raises:
        CassetteError: if live calls are refused here.
    """
    if headers.get("upgrade", "").lower() == "websocket":
        return None
    parts = urlsplit(url)
    scope = PLACE.get().scope
    recorders: list[Recorder] = []
    learners: list[Usage] = []
    is_guarded = False
    if IS_CONNECTING.get():  # a part of a request that has an exchange
        return None
    if scope.interceptor is None:
        _report_escape(method, url, parts, headers)
        return None
    while scope.interceptor is not None:
        interceptor: Any = scope.interceptor
        settings: Http | None = getattr(interceptor, "http", None)
        if settings is not None and settings.guard:
            is_guarded = True
        if (
            isinstance(interceptor, Recorder)
            and settings is not None
            and interceptor.is_strict_replay
            and not settings.takes(url, parts)
            and not settings.has_named(parts)
            and (settings.only is None or _is_at(settings.only, parts))
        ):
            return _unsent(method, parts)
        if settings is not None and settings.takes(url, parts):
            if not isinstance(interceptor, Recorder):
                if (refusal := _refusal_of(interceptor, settings, method, url, headers)) is not None:
                    return refusal
            elif (call := running_call(interceptor)) is None:
                recorders.append(interceptor)
            elif call.usage is not None and call.exchange is None:
                learners.append(call.usage)
        assert scope.outside is not None  # a scope with an interceptor has an outer one
        scope = scope.outside
    return Exchange(method, url, headers, recorders, learners) if recorders or learners or is_guarded else None


def _unsent(method: str, parts: SplitResult) -> Exchange:
    """An exchange in place of one of telemetry, which a strict replay does not let out. It is no error of the run."""
    url = f"{parts.scheme}://{_shown(parts)[1]}{parts.path}"
    text = (
        f"{method} {url} is not recorded, and a strict replay makes no request; Http(live=[...]) names what it may make"
    )
    if url not in _told:
        _told.add(url)
        _LOG.warning("%s", text)
    return Exchange(method, url, {}, [], [], CassetteError(text))


_told: set[str] = set()


def _refusal_of(blocker: Any, settings: Http, method: str, url: str, headers: Mapping[str, str]) -> Exchange | None:
    """An exchange that refuses a request to a model, where live calls are refused. None if it may be made.

    A server on loopback is one of the test's own, unless it is a model.

    Raises:
        CassetteError: for another request.
    """
    kind, name, _ = identity(method, url, headers, b"", settings, _redaction_of(blocker))
    if kind != "llm" and _is_loopback(urlsplit(url).hostname or ""):
        return None
    try:
        blocker.escaped(_endpoint(kind, name))
    except CassetteError as error:
        if kind != "llm":
            raise
        return Exchange(method, url, {}, [], [], error)
    return None


_DEFAULT_RULES = Redaction()


def _redaction_of(interceptor: Any) -> Redaction:
    """The rules of a recording, or of what refuses live calls outside of one."""
    found = getattr(interceptor, "redaction", None)
    return found if isinstance(found, Redaction) else _DEFAULT_RULES


def running_call(recorder: Recorder) -> ActiveCall | None:
    """The innermost call of this recording that is running here. Nothing inside of it is recorded."""
    call = CURRENT_CALL.get()
    while call is not None and call.owner is not recorder:
        call = call.outer
    return call


def _report_escape(method: str, url: str, parts: SplitResult, headers: Mapping[str, str]) -> None:
    """Report a request in a thread without a context, as `report_escape` does for other calls."""
    thread = threading.get_ident()
    for interceptor in list(INTERCEPTORS):
        settings: Http | None = getattr(interceptor, "http", None)
        if interceptor.thread == thread or settings is None or not settings.takes(url, parts):
            continue
        if isinstance(interceptor, Recorder) or not _is_loopback(parts.hostname or ""):
            kind, name, _ = identity(method, url, headers, b"", settings, _redaction_of(interceptor))
            interceptor.escaped(_endpoint(kind, name))


class Exchange:
    """A request, and its response while it is read.

    A seam calls `start`; then it hands out the `answer` if there is one, else it makes the request inside of `running`,
    and reports the response by `responded`, `add`, and `ended`, `closed` or `failed`.

    Attributes:
        answer: the answer; None if the request is to be made.
    """

    def __init__(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        recorders: list[Recorder],
        learners: list[Usage],
        refusal: CassetteError | None = None,
    ) -> None:
        self.answer: Answer | None = None
        self._method = method
        self._url = url
        self._headers = headers
        self._recorders = recorders
        self._learners = learners
        self._calls: list[tuple[Recorder, ActiveCall]] = []
        self._answering: tuple[Recorder, ActiveCall] | None = None
        self._refusal = refusal
        self._head: tuple[int, str, Pairs] | None = None
        self._body: ResponseBody | None = None
        self._ending: dict[str, Any] | BaseException | None = None
        self._length: int | None = None
        self._is_encoded = False
        self._is_over = False

    @property
    def needs_body(self) -> bool:
        """Whether `start` is to be called, which needs the body of the request."""
        return bool(self._recorders) or self._refusal is not None

    def start(self, body: bytes) -> None:
        """Begin the call in each recording, until one has the answer.

        Args:
            body: of the request.

        Raises:
            CassetteError: if a replay has no answer to the request, and it is not one to a model.
        """
        token = CURRENT_CALL.set(CURRENT_CALL.get())
        try:
            for recorder in self._recorders:
                settings = recorder.http
                assert settings is not None
                kind, name, arguments = identity(
                    self._method, self._url, self._headers, body, settings, recorder.redaction
                )
                try:
                    call = recorder.begin_exchange(_endpoint(kind, name), arguments)
                except CassetteError as error:
                    if kind == "llm" or not _OF_MODEL_CLIENTS.isdisjoint(self._headers):
                        self._refusal = error
                        return
                    self.failed(error)
                    raise
                CURRENT_CALL.set(call)
                if call.recorded is not None:
                    self._answering = recorder, call
                    return
                call.exchange = self
                self._calls.append((recorder, call))
        finally:
            leave_call(token)

    @property
    def is_answered(self) -> bool:
        """Whether the request is not made: `respond` or `respond_async` has the answer."""
        return self._answering is not None or self._refusal is not None

    def respond(self) -> Answer:
        """The answer, in a thread that may wait.

        Raises:
            BaseException: what the recorded request raised.
        """
        if self._refusal is None:
            recorder, call = self._answered_by()
            outcome = self._outcome_of(call)
            if "cancelled" in outcome or "unfinished" in outcome:
                text = f"{call.function.name} had not ended when the recording did"
                error = _player_of(recorder).broken(call.index, text)
                recorder.answered(call)
                self.failed(error)
                raise error
        return self._respond()

    async def respond_async(self) -> Answer:
        """The answer, in a task. Other tasks run before, as they did when the request was recorded.

        Raises:
            BaseException: what the recorded request raised.
        """
        if self._refusal is not None:
            await checkpoint()
            return self._respond()
        recorder, call = self._answered_by()
        player = _player_of(recorder)
        try:
            outcome = self._outcome_of(call)
            response = outcome.get("response")
            if response is not None and (is_stream(response) or "end" in response):
                await checkpoint()
            else:
                await player.turn(call)
            if "cancelled" in outcome or "unfinished" in outcome:
                await player.wait_until_cancelled(call)
        except BaseException as error:
            recorder.answered(call)
            self.failed(error)
            raise
        return self._respond()

    async def wait_until_cancelled(self, *, is_for_ever: bool) -> None:
        """Wait in the middle of a body, as `Player.wait_until_cancelled` does."""
        recorder, call = self._answered_by()
        await _player_of(recorder).wait_until_cancelled(call, is_for_ever=is_for_ever)

    def _answered_by(self) -> tuple[Recorder, ActiveCall]:
        assert self._answering is not None
        return self._answering

    def _outcome_of(self, call: ActiveCall) -> dict[str, Any]:
        assert call.recorded is not None
        return call.recorded.outcome

    def _respond(self) -> Answer:
        if self._refusal is not None:
            response = _refusal(self._refusal)
            self.answer = Answer(self, response, Pieces(response), on_end=_nothing, raise_end=_never)
            return self.answer
        recorder, call = self._answered_by()
        player, outcome = _player_of(recorder), self._outcome_of(call)
        if "error" in outcome:
            error = read_error(outcome["error"])
            recorder.answered(call)
            self.failed(error)
            raise error
        try:
            settings = recorder.http
            self.answer = Answer(
                self,
                *_checked_response(outcome, player, call),
                on_end=functools.partial(recorder.answered, call),
                raise_end=functools.partial(_raise_end, player, call),
                hurry=settings is not None and settings.hurry,
            )
        except BaseException as error:
            recorder.answered(call)
            self.failed(error)
            raise
        return self.answer

    @contextmanager
    def running(self) -> Iterator[None]:
        """While the request is made. What that calls is inside of the recorded call."""
        token = CURRENT_CALL.set(self._calls[-1][1] if self._calls else CURRENT_CALL.get())
        connecting = IS_CONNECTING.set(True)
        try:
            yield
        except BaseException as error:
            self.failed(error)
            raise
        finally:
            IS_CONNECTING.reset(connecting)
            leave_call(token)

    def may_have_body(self, status: int) -> bool:
        """Whether a response with this status has a body, which may be empty."""
        return self._method.upper() != "HEAD" and status not in (204, 304)

    def responded(self, status: int, reason: str, headers: Pairs) -> None:
        """The head of the response has arrived.

        Args:
            status, reason, headers: of the response. What a client could not read as UTF-8 is taken for Latin-1.
        """
        reason = _readable(reason)
        headers = [(name, _readable(value)) for name, value in headers]
        by_name = _by_name(headers)
        self._head = status, reason, headers
        self._body = ResponseBody(by_name)
        self._is_encoded = by_name.get("content-encoding", "identity").lower() != "identity"
        if not self.may_have_body(status):
            self._length = 0
        elif by_name.get("content-length", "").isdecimal():
            self._length = int(by_name["content-length"])
        if not self._length and self._length is not None:
            self._end(None)

    def add(self, data: bytes, *, is_decoded: bool = False) -> None:
        """A part of the body has arrived, as it was sent or with its content-encoding taken off.

        The exchange ends with the last one, if that is known by the length: the client may not ask for the end.
        A stream does not: all of its events may arrive at once, and a replay hands them out one by one.
        """
        if not self._is_over and self._body is not None and (self._calls or self._learners):
            self._body.add(data, is_decoded=is_decoded)
            is_last = self._length == self._body.size and not (is_decoded and self._is_encoded)
            if is_last and not self._body.is_stream:
                self._end(None)

    def ended(self) -> None:
        """The body has arrived."""
        self._end(None)

    def closed(self) -> None:
        """The client does not read on."""
        if not self._is_over and self._body is not None:
            self._end({"closed": True})

    def failed(self, error: BaseException) -> None:
        """The request or the body has raised this. Any other recorded call ends in the same way."""
        if self._is_over:
            return
        if self._head is not None:
            if isinstance(error, GeneratorExit):
                self.closed()
            else:
                self._end(error)
            return
        self._is_over = True
        for recorder, call in self._calls:
            recorder.end_exchange(call, failure_outcome(error, recorder.redaction))

    def unfinished(self, redaction: Redaction) -> dict[str, Any]:
        """The outcome so far, when the recording ends before the exchange."""
        end = {"unfinished": True}
        if self._head is None or self._body is None:
            return end
        return {"response": response_data(*self._head, self._body, redaction, end)}

    def whole_outcome(self, redaction: Redaction) -> dict[str, Any]:
        """The outcome by other rules of redaction, once it has ended with a response."""
        assert self._head is not None
        assert self._body is not None
        end = self._ending
        ended = failure_outcome(end, redaction) if isinstance(end, BaseException) else end
        return {"response": response_data(*self._head, self._body, redaction, ended)}

    def _end(self, end: dict[str, Any] | BaseException | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._ending = end
        head, body = self._head, self._body
        if head is None or body is None:
            return
        for recorder, call in self._calls:
            if not call.id:  # it runs, and nothing is written
                recorder.end_exchange(call, {})
                continue
            ended = failure_outcome(end, recorder.redaction) if isinstance(end, BaseException) else end
            data = response_data(*head, body, recorder.redaction, ended)
            if call.usage is not None:
                _count_tokens(call.usage, data)
                call.usage.complete(call, None)
                if call.usage.model is None and (found := _MODEL_IN_PATH.search(urlsplit(self._url).path)):
                    call.usage.model = unquote(found[1])
            recorder.end_exchange(call, {"response": data})
        if self._learners:
            inside = Usage()
            _count_tokens(inside, body.data(is_whole=end is None))
            for usage in self._learners:
                usage.join(inside)


def _count_tokens(usage: Usage, data: Mapping[str, Any]) -> None:
    for payload in model_payloads(data):
        usage.add(payload)


def _player_of(recorder: Recorder) -> Player:
    assert recorder.player is not None
    return recorder.player


def _checked_response(outcome: Mapping[str, Any], player: Player, call: ActiveCall) -> tuple[Mapping[str, Any], Pieces]:
    """The response of an outcome, and the pieces of its body.

    Raises:
        CassetteError: if the file was edited, and it is none.
    """
    try:
        response: Mapping[str, Any] = outcome["response"]
        return response, Pieces(response)
    except KeyError as error:
        reason = f"has a malformed response: {error} is missing"
    except (msgspec.MsgspecError, TypeError, ValueError, AttributeError) as error:
        reason = f"has a malformed response: {error}"
    raise player.broken(call.index, reason)


def _raise_end(player: Player, call: ActiveCall, end: dict[str, Any]) -> None:
    """Raise what broke a body off.

    Raises:
        BaseException: that.
        ReplayExhausted: if the client did not read on here when it was recorded.
    """
    if "error" in end:
        raise read_error(end["error"])
    shown = call_data(call)
    text = f"the response of {call.function.name} was closed before its end when it was recorded, and is read on now"
    raise player.latch(
        ReplayExhausted(None if call.recorded is None else call.recorded.id, shown, shown, text, player.cassette.path)
    )


_OF_MODEL_CLIENTS = frozenset({"amz-sdk-request", "x-goog-api-client", "x-stainless-lang"})
"""Headers by which the clients of model providers and of AWS are known."""


def _refusal(error: CassetteError) -> dict[str, Any]:
    """A response that no client tries again, with the text where the clients of model providers find it.

    They take any exception of a request for a broken connection, and try again. The replay keeps the error and raises
    it at its end.
    """
    text = str(error)
    return {
        "status": 400,
        "headers": {
            "content-type": "application/json",
            "x-should-retry": "false",
            "x-amzn-errortype": "ValidationException",
        },
        "json": {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": text, "code": 400, "status": "INVALID_ARGUMENT"},
            "message": text,
        },
    }


def _nothing() -> None:
    """A refusal is over at once."""


def _never(end: dict[str, Any]) -> None:
    raise AssertionError(end)
