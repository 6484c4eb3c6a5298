"""Reads what other recorders have written, as cassettes: those of VCR and of betamax.

These files have requests and their responses, and nothing of what happened at the same time: their calls are in one
lane, one after the other. Read are the YAML and JSON of vcrpy, also with ``parsed_body`` in the place of a body, as
pydantic-ai writes it; the YAML of cassetter; and the JSON of betamax. What becomes of a request and its response is the
same as in a recording of HTTP (`http.exchange`): secrets are removed, and cookies have no values.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agent_cache.errors import CassetteError, ConfigurationError
from agent_cache.recording.cassette import Cassette
from agent_cache.recording.file import RecordedCall, digest_of, read_bytes
from agent_cache.recording.http.bodies import ResponseBody, model_payloads, unpacked
from agent_cache.recording.http.exchange import response_data
from agent_cache.recording.http.identity import Http, identity, model_in
from agent_cache.recording.prices import Usage, asked_model
from agent_cache.recording.redaction import Redaction

_LISTS = ("interactions", "http_interactions")
_OTHERS = ("ws_interactions", "grpc_interactions")


def is_foreign(path: Path) -> bool:
    """Whether a file may be a cassette of another recorder: YAML, or JSON with interactions."""
    if path.suffix.lower() in (".yaml", ".yml"):
        return True
    try:
        with path.open("rb") as file:
            start = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    except (OSError, ValueError):
        return False
    return start[:1] == b"{" and any(b'"%b"' % name.encode() in start for name in _LISTS)


def read_foreign(path: Path) -> Cassette:
    """The cassette with the requests of a file of vcrpy, cassetter or betamax, redacted by the default rules.

    Raises:
        CassetteNotFound: if there is no such file.
        CassetteError: if it cannot be read or is none, with the number of the interaction.
        ConfigurationError: for YAML, if PyYAML is not installed.
    """
    rules = Redaction()
    document = _document(path)
    calls = []
    interactions = _interactions(document, path)
    for number, interaction in enumerate(interactions, 1):
        try:
            calls.append(_call(number, interaction, rules))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CassetteError(f"interaction {number} is broken: {type(error).__name__}: {error}", path) from error
    first = interactions[0].get("recorded_at") if interactions else None
    cassette = Cassette(calls, path=path)
    cassette.header = msgspec.structs.replace(
        cassette.header, recorded_at=None if first is None else str(first), redact=rules.describe(), http={}
    )
    return cassette


def _document(path: Path) -> Any:
    content = read_bytes(path).removeprefix(b"\xef\xbb\xbf")
    try:
        if content.lstrip()[:1] == b"{":
            return json.loads(content)
        document = msgspec.yaml.decode(content)
    except ImportError:
        raise ConfigurationError(f'{path} is YAML, which needs PyYAML: pip install "agent-cache[yaml]"') from None
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise CassetteError(f"cannot be read as YAML or JSON: {error}", path) from error
    size, waiting = 0, [document]
    while waiting:  # each part as often as an alias of YAML repeats it, of which a small file may have billions
        size += 16 + (len(one) if isinstance(one := waiting.pop(), str | bytes) else 0)  # of two bytes or more
        if size > max(10 * len(content), 1 << 24):
            raise CassetteError("its aliases (*name) repeat its parts so often that it would fill the memory", path)
        if isinstance(one, list | Mapping):
            waiting += [*one, *one.values()] if isinstance(one, Mapping) else one
    return document


def _interactions(document: Any, path: Path) -> Sequence[Any]:
    """The interactions in the order in which they were recorded; cassetter sorts them by their URLs."""
    found = document if isinstance(document, Mapping) else {}
    for name in _OTHERS:
        if found.get(name):
            raise CassetteError(f"has {name}, and only HTTP can be converted", path)
    listed: Any = next((found[name] for name in _LISTS if isinstance(found.get(name), list)), None)
    if listed is None:
        raise CassetteError("has no list of interactions: it is no cassette of vcrpy, cassetter or betamax", path)
    if all(isinstance(one, Mapping) and one.get("recorded_at") for one in listed):
        return sorted(listed, key=lambda one: str(one["recorded_at"]))
    return list(listed)


def _call(number: int, interaction: Any, rules: Redaction) -> RecordedCall:
    request, response = interaction["request"], interaction["response"]
    headers = {name: ", ".join(values) for name, values in _headers(request)}
    content, _ = _content(request)
    url = request.get("uri") or request["url"]
    kind, name, arguments = identity(request["method"], url, headers, content, Http(), rules)
    arguments = rules.apply(arguments)
    data = _response(response, rules)
    usage = Usage()
    if kind == "llm":
        usage.add(model_payloads(data))
        usage.model = usage.model or asked_model(arguments) or model_in(url)
    counted: dict[str, Any] = usage.tokens.fields()
    return RecordedCall(
        id=number, kind=kind, name=name, arguments=arguments, digest=digest_of(name, arguments).hex(),
        outcome={"response": data}, model=usage.model, **counted,
    )  # fmt: skip


def _response(response: Any, rules: Redaction) -> dict[str, Any]:
    given = response.get("status", response.get("status_code"))
    status, reason = (given["code"], given.get("message") or "") if isinstance(given, Mapping) else (given, "")
    if type(status) is not int:
        raise TypeError(f"expected a status, got {status!r}")
    pairs = [(name, value) for name, values in _headers(response) for value in values]
    content, is_decoded = _content(response)
    try:
        unpacked(dict(pairs), content)
    except LookupError:  # an encoding that is not known here
        pass
    except Exception:  # noqa: BLE001 - each package has its own errors
        is_decoded = True
    if is_decoded:  # the recorder has taken the encoding off, and left the header
        pairs = [pair for pair in pairs if pair[0] != "content-encoding"]
    body = ResponseBody(dict(pairs))
    body.add(content)
    return response_data(status, reason, pairs, body, rules)


def _headers(holder: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Headers with names in lower case, and all values of each."""
    for name, given in (holder.get("headers") or {}).items():
        values = given if isinstance(given, list) else [given]
        yield name.lower(), [one.decode("latin-1") if isinstance(one, bytes) else str(one) for one in values]


def _content(holder: Mapping[str, Any]) -> tuple[bytes, bool]:
    """The body of a request or response, in any of the spellings, and whether its content-encoding is off, as it is no
    bytes.
    """
    if "parsed_body" in holder:
        return msgspec.json.encode(holder["parsed_body"]), True
    body, encoding = holder.get("body", holder.get("content")), "utf-8"
    if isinstance(body, Mapping):
        content = body.get("string", body.get("content"))
        if "base64_string" in body:
            return base64.b64decode(body["base64_string"]), False
        if body.get("type") == "json":
            return msgspec.json.encode(content), True
        if body.get("type") == "binary":
            is_base64 = body.get("encoding") == "base64"
            return base64.b64decode(content or "") if is_base64 else bytes.fromhex(content or ""), False
        body, encoding = content, body.get("encoding") or encoding
    if isinstance(body, bytes):
        return body, False
    return ("" if body is None else str(body)).encode(encoding, "surrogateescape"), True
