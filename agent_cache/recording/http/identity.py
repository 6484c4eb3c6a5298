"""Requests as calls: which of them are recorded, what they are, and what identifies them."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import itemgetter
from typing import Any, NoReturn
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

from agent_cache.errors import ConfigurationError
from agent_cache.recording.functions import RecordedFunction
from agent_cache.recording.http.bodies import pairs_of, request_arguments
from agent_cache.recording.redaction import Redaction

__all__ = [
    "MODEL_IN_PATH", "Http", "endpoint_of", "host_and_server", "identity", "is_at", "is_loopback",
]  # fmt: skip


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
        if is_at((*_NEVER, *self.ignore), parts) or _is_live(self.live, parts):
            return False
        return self.only is None or is_at(self.only, parts)

    def has_named(self, parts: SplitResult) -> bool:
        """Whether the user has said that requests to this URL are made as if there were no recording."""
        return is_at(self.ignore, parts) or (self.live is not _LIVE and _is_live(self.live, parts))


def host_and_server(parts: SplitResult) -> tuple[str, str]:
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


def is_at(given: Sequence[str], parts: SplitResult) -> bool:
    """Whether a URL is at one of these hosts, or begins as one of these URLs."""
    beginnings, hosts = _places(tuple(given))
    host, server = host_and_server(parts)
    if f".{host}".endswith(hosts) or f".{server}".endswith(hosts):
        return True
    return urlunsplit((parts.scheme, server, parts.path or "/", parts.query, "")).startswith(beginnings)


def _is_live(given: Sequence[str], parts: SplitResult) -> bool:
    """Whether a URL is one of these, but for its query."""
    pattern = _any_of(tuple(given))
    return pattern.fullmatch(f"{parts.scheme}://{host_and_server(parts)[1]}{parts.path or '/'}") is not None


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
MODEL_IN_PATH = re.compile(r"/(?:models?|deployments)/([^/:]+(?::\d+)?)(?:[/:]|$)")
_DEFAULT_PORTS = {"http": 80, "https": 443}


@functools.lru_cache(maxsize=1000)
def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
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
    if settings.models and is_at(settings.models, parts):
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
    host, shown = host_and_server(parts)
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


endpoint_of = functools.lru_cache(maxsize=1000)(_Endpoint)
