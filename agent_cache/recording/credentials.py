"""Finds credentials in texts and by the names of values.

**Tokens** are known by how they begin. The forms of some 190 services are Betterleaks' rules (`credentials.json`, made
by `tests/harness/credential_rules.py`). Those rules demand the exact length of a token; `_FAMILIES` knows the commonest
ones at any length, because services change it and logs cut texts.

**Assignments** are a name of a secret and what follows it, as in the usual files: ``.env``, ini, TOML, YAML, JSON, XML,
source code, HTTP headers, queries, command lines.

**Encodings**: a text in base64 or percent-encoded inside another text is decoded, searched, and encoded again.

Everything here takes linear time. A token is tried at the beginning of a run of letters and digits, and at most
`_MAX_STARTS` times within it; repetitions that can overlap are possessive.
"""

from __future__ import annotations

import base64
import binascii
import enum
import functools
import math
import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from itertools import islice, pairwise
from urllib.parse import quote, unquote

import msgspec

__all__ = [
    "SECRET_NAMES", "NameKind", "TextSearch", "is_secret_value", "is_suspicious", "kind_of_name", "looks_random",
    "squash",
]  # fmt: skip

# Names

SECRET_NAMES: tuple[str, ...] = (
    "access_key", "access_key_id", "access_token", "api_key", "api_secret", "api_token", "auth_token", "authorization",
    "aws_access_key_id", "aws_secret_access_key", "aws_session_token", "bearer", "bearer_token", "client_assertion",
    "client_secret", "code_verifier", "connection_string", "cookie", "cookies", "credential", "credentials",
    "csrf_token", "database_password", "db_password", "device_code", "encryption_key", "id_token", "id_token_hint",
    "jwt", "mcp_session_id", "oauth_token", "oauth_verifier", "passphrase", "passwd", "password", "private_key",
    "private_token", "proxy_authorization", "pwd", "refresh_token", "saml_response", "secret", "secret_access_key",
    "secret_key", "secret_value", "session_token", "set_cookie", "set_cookie2", "signing_key", "token",
    "webhook_secret",
    "x_amz_credential", "x_amz_security_token", "x_amz_signature", "x_api_key", "x_auth_token", "x_goog_api_key",
    "x_goog_credential", "x_goog_signature",
)  # fmt: skip
"""Names whose values are secrets, whatever the values are."""


class NameKind(enum.IntEnum):
    """How much a name says about its value.

    Attributes:
        NONE: nothing.
        MAYBE: the value is a secret if it looks like one, such as that of ``bot_token`` or ``auth``.
        ENDING: a word is a secret and a number too, a sentence is none: ``smtp_password``.
        SECRET: any value is one.
    """

    NONE = 0
    MAYBE = 1
    ENDING = 2
    SECRET = 3


_LONGEST_NAME = 80
_LONGEST_PATH = 200  # names with dots between them
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ENDINGS = (
    "password", "passwd", "passphrase", "apikey", "apisecret", "apitoken", "secretkey", "accesskey", "accesskeyid",
    "privatekey", "encryptionkey", "signingkey", "masterkey", "authkey", "accountkey", "accesstoken", "authtoken",
    "bearertoken", "refreshtoken", "sessiontoken", "clientsecret", "connectionstring", "clientkeydata",
    "secretkeybase", "webhooksecret", "authorization", "codeverifier", "clientassertion", "authorizationcode",
)  # fmt: skip
# The same, of several secrets. What counts them, such as `max_passwords`, is a number, and stays.
_PLURALS = tuple(f"{ending}s" for ending in _ENDINGS)
# Codes that are typed in once, and those of a card. They have digits: `{"otp": "sms"}` is none.
_CODE_WORDS = frozenset({"cvc", "cvcs", "cvv", "cvvs", "otp", "otps", "passcode", "passcodes", "totp"})
_CODE_ENDINGS = (
    "backupcode", "backupcodes", "mfacode", "onetimecode", "otpcode", "recoverycode", "recoverycodes", "smscode",
    "totpcode", "twofactorcode", "verificationcode",
)  # fmt: skip
_CODE = re.compile(r"[A-Za-z0-9_-]+(?: [A-Za-z0-9_-]+)*\Z")
_SHORTEST_CODE = 3  # digits: CVV
_LAST_WORDS = {
    "secret": NameKind.ENDING,
    "secrets": NameKind.MAYBE,
    "token": NameKind.MAYBE,
    "tokens": NameKind.MAYBE,
    "pass": NameKind.MAYBE,
    "pwd": NameKind.MAYBE,
    "auth": NameKind.MAYBE,
    "credential": NameKind.MAYBE,
    "credentials": NameKind.MAYBE,
    "creds": NameKind.MAYBE,
}
# Words before `token` and `pass` that make something else of it: pages of a result, tokens of a tokenizer or parser.
_HARMLESS = frozenset({
    "after", "all", "another", "any", "backward", "before", "begin", "bos", "by", "bypass", "cls", "compass",
    "completion", "continuation", "control", "count", "current", "cursor", "decode", "each", "end", "eof", "eol",
    "eos", "expected", "expensive", "fast", "fill", "first", "fist", "forward", "image", "input", "invalid", "last",
    "leading", "left", "lexer", "line", "literal", "look", "mask", "max", "min", "multi", "new", "newline", "next",
    "num", "number", "one", "optional", "output", "pad", "page", "pagination", "paging", "parse", "parser", "peek",
    "per", "prefill", "prev", "previous", "prompt", "query", "reserved", "resume", "return", "right", "second",
    "sep", "single", "special", "start", "starting", "stop", "suffix", "sync", "syntax", "test", "tests", "text",
    "total", "trailing", "two", "type", "unexpected", "unk", "unknown", "video", "watermark", "word",
})  # fmt: skip


def kind_of_name(name: str) -> NameKind:
    """What a name of a value says about it, apart from what the user has named.

    Case, dashes, underscores, dots and blanks divide it into words or do not count: `apiKey`, `Api-Key` and `API key`
    are names of secrets. So are names that end in one, such as `DB_PASSWORD`; `input_tokens` and `next_page_token` do
    not.
    """
    is_one = len(name) <= _LONGEST_NAME and _STEM.search(squash(name)) is not None
    return _kind_with_stem(name) if is_one else NameKind.NONE


@functools.lru_cache(4096)
def _kind_with_stem(name: str) -> NameKind:
    squashed = squash(name)
    if squashed in _SQUASHED_NAMES:
        return NameKind.SECRET
    # A number at the end counts names of one kind: API_KEY_2.
    numberless = squashed.rstrip("0123456789")
    if numberless.endswith(_ENDINGS) or numberless.endswith(_PLURALS):
        return NameKind.ENDING
    if names_code(name):
        return NameKind.MAYBE
    words = [word.lower() for word in _WORD.findall(name)]
    kind = _LAST_WORDS.get(words[-1], NameKind.NONE) if words else NameKind.NONE
    if kind is NameKind.MAYBE and not _HARMLESS.isdisjoint(words[:-1]):
        return NameKind.NONE
    return kind


def names_code(name: str) -> bool:
    """Whether a name is that of a code that is typed in once, or of a card: ``otp``, ``cvv``, ``backup_codes``."""
    words = _WORD.findall(name)
    return bool(words) and (words[-1].lower() in _CODE_WORDS or squash(name).endswith(_CODE_ENDINGS))


def names_several(name: str) -> bool:
    """Whether a name is that of several secrets, whose number is none: ``passwords``, ``api_keys``, ``tokens``."""
    return squash(name).endswith((*_PLURALS, "secrets", "tokens", "codes"))


def squash(name: str) -> str:
    """A name without case, dashes, underscores, dots and blanks."""
    return name.lower().replace("-", "").replace("_", "").replace(" ", "").replace(".", "")


_SQUASHED_NAMES = frozenset(map(squash, SECRET_NAMES))
# Values

_SHORTEST_SECRET = 6
_SHORTEST_OF_TOKENS = 10
_PLACEHOLDER = re.compile(
    r"(?:<[^<>]*>[\W_]*)+\Z|urn:|\$\(|\$\{|\$\w+\Z|\$env:|\{\{?|\[|%\(|%[a-z]\Z|%\w+%\Z|\*+\Z|x+\Z|\.{3,}\W*\Z"
    r"|!\w+ |&\w+\Z|@\w+@\Z|\|\Z|>\Z",
    re.IGNORECASE,
)
# What documentation has in the place of a secret, squashed. What somebody might use as one, such as `my-secret` or
# `changeme`, is none of them.
_OF_DOCUMENTATION = frozenset({
    f"{before}{name}{after}"
    for before in ("your", "enteryour", "insertyour", "putyour")
    for name in (
        "accesskey", "accesstoken", "anthropicapikey", "apikey", "apisecret", "apitoken", "authtoken", "bearertoken",
        "clientsecret", "databasepassword", "dbpassword", "githubtoken", "key", "openaiapikey", "openaikey", "password",
        "privatekey", "refreshtoken", "secret", "secretaccesskey", "secretkey", "token",
    )
    for after in ("", "here", "goeshere")
})  # fmt: skip
_NO_VALUES = frozenset({
    "any", "apikey", "auth", "basic", "bearer", "bool", "boolean", "bytes", "default", "digest", "disabled",
    "enabled", "false", "float", "hidden", "input", "int", "integer", "invalid", "key", "missing", "n/a", "na",
    "nil", "no", "none", "not", "ntlm", "null", "number", "oauth", "oauth1", "oauth2", "object", "optional",
    "passwd", "password", "private", "public", "required", "secret", "self", "str", "string", "text", "token",
    "true", "type", "undefined", "unset", "value", "yes",
})  # fmt: skip
# What a variable may be set to that is no secret, also under `password` and the like.
_NOTHING = frozenset({
    "any", "bool", "boolean", "bytes", "false", "float", "int", "integer", "nil", "no", "none", "not", "null",
    "object", "optional", "self", "str", "string", "true", "undefined", "unset", "yes",
})  # fmt: skip
_ALPHABETIC = re.compile(r"[A-Za-z_.]+\Z")
_DOTTED = re.compile(r"[a-z_]\w{0,15}(?:\.[A-Za-z_]\w{0,20})+\Z")
_AUTHORIZATION = re.compile(r"\s*+(?:bearer|basic|token|digest)\s++|(?:bearer|basic) ?\Z", re.IGNORECASE)
_DIGIT = re.compile(r"\d")
_CALL = re.compile(r"[A-Za-z_][\w.]*[(\[{]")
_PATH = re.compile(r"(?:~|\.{1,2})?/|[A-Za-z]:[\\/]")


def is_placeholder(value: str) -> bool:
    """Whether a value stands for another one, or for none: ``${TOKEN}``, ``<your key>``, ``None``, a type's name."""
    return not value or stands_for_another(value) or squash(value) in _NO_VALUES


def stands_for_another(value: str) -> bool:
    """Whether a value is written in the place of another: ``${TOKEN}``, ``<your key>``, ``YOUR_API_KEY``."""
    return _PLACEHOLDER.match(value) is not None or squash(value) in _OF_DOCUMENTATION


def is_code(name: str, value: str) -> bool:
    """Whether this is a code under the name of one."""
    digits = sum(map(str.isdigit, value))
    least = _SHORTEST_CODE if "cv" in name.lower() else _SHORTEST_CODE + 1
    is_long = digits > 0 and len(value) >= 8 and " " not in value
    return len(value) <= 64 and (digits >= least or is_long) and _CODE.match(value) is not None


def is_secret_value(kind: NameKind, name: str, value: str) -> bool:
    """Whether this text under a name of this kind is a secret."""
    if kind is NameKind.SECRET:
        return bool(value) and not (name.lower() in ("pwd", "oldpwd") and _PATH.match(value))
    if kind is NameKind.MAYBE and names_code(name):
        return is_code(name, value)
    if kind is NameKind.NONE or is_placeholder(value) or any(map(str.isspace, value)):
        return False
    if kind is NameKind.ENDING:
        return True
    low = name.lower()
    if _PATH.match(value):
        return False
    if low.endswith("tokens"):  # of a text, or several of these
        return len(value) >= _SHORTEST_OF_TOKENS and _MIXED.match(value) is not None
    if low.endswith(("pass", "pwd")) and low != "pass":
        return True
    if low.endswith("token"):
        return len(value) >= _SHORTEST_SECRET
    return len(value) >= _SHORTEST_SECRET and looks_random(value) and not value[0].isdigit()


def is_granted(value: str, *, is_certain: bool) -> bool:
    """Whether a value of ``code`` may be one that an authorization server has granted, and not a word or a status.

    Args:
        is_certain: whether parameters that only OAuth has stand beside it.
    """
    if stands_for_another(value) or not _GRANTED.match(value):
        return False
    least = _SHORTEST_GRANTED if is_certain else _SHORTEST_WITH_STATE
    return len(value) >= least and looks_random(value) and (is_certain or not _SCREAMING.match(value))


def names_command(word: str) -> bool:
    """Whether this is a command that takes a secret as the value of an option without a name, such as ``-p``."""
    return word.rpartition("/")[2] in _COMMAND_NAMES


def looks_random(value: str) -> bool:
    """Whether a word may be a token rather than a word of a language or a name in a program."""
    return _RANDOM.search(value) is not None


_RANDOM = re.compile(r"\d|[A-Za-z0-9]{16}|[a-z][A-Z]{2}|[^\w.:/ -]")

# Tokens

# The commonest forms at any length. `start` is the first three characters in lower case.
_FAMILIES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("sk-",), r"(?i:sk-[a-z0-9_-]{16,})"),
    (("sk_", "rk_", "pk_"), r"(?i:[rsp]k_(?:live|test)_[a-z0-9]{8,})"),
    (("aiz",), r"(?i:AIza[0-9a-z_-]{30,})"),
    (("ghp", "gho", "ghu", "ghs", "ghr"), r"(?i:gh[opsur]_[a-z0-9]{20,})"),
    (("git",), r"(?i:github_pat_[a-z0-9_]{20,})"),
    (("glp",), r"(?i:glpat-[a-z0-9_-]{16,})"),
    (("xox",), r"(?i:xox[abeoprs]-[a-z0-9-]{10,})"),
    (("aki", "asi"), r"(?:AKIA|ASIA)[0-9A-Z]{16}(?![A-Za-z0-9])"),
    (("hf_",), r"(?i:hf_[a-z0-9]{20,})"),
    (("gsk",), r"(?i:gsk_[a-z0-9]{20,})"),
    (("npm",), r"(?i:npm_[a-z0-9]{30,})"),
    (("pyp",), r"(?i:pypi-[a-z0-9_-]{30,})"),
    (("sg.",), r"(?i:SG\.[a-z0-9_-]{16,}\.[a-z0-9_-]{16,})"),
    (("eyj",), r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{4,}"),
    (("xai", "tvl", "ppl"), r"(?i:(?:xai|tvly|pplx)-[a-z0-9_-]{16,})"),
    (("hvs", "hvb"), r"hv[sb]\.[\w-]{16,}"),
    (("ya2",), r"ya29\.[\w.-]{16,}"),
    (("whs",), r"whsec_[\w+/=-]{16,}"),
    (("r8_",), r"(?i:r8_[a-z0-9]{16,})"),
    (("lsv",), r"(?i:lsv2_(?:pt|sk)_[a-z0-9_]{16,})"),
    (("ntn",), r"(?i:ntn_[a-z0-9]{40,})"),
    (("e2b",), r"(?i:e2b_[0-9a-f]{32,})"),
    (("fc-",), r"fc-[0-9a-f]{32}(?![\w-])"),
    (("jin",), r"(?i:jina_[a-z0-9]{32,})"),
    (("sk_",), r"sk_(?:[0-9a-f]{48}(?![\w-])|car_[A-Za-z0-9]{20,})"),
    (("pcs",), r"(?i:pcsk_[a-z0-9_]{30,})"),
    (("pa-",), r"pa-[\w-]{43}(?![\w-])"),
    (("fw_",), r"fw_(?=[A-Za-z]*\d)[A-Za-z0-9]{22,24}(?![\w-])"),
    (("bb_",), r"bb_(?:live|test)_[\w-]{20,}"),
    (("ak_",), r"ak_(?=[A-Za-z]*\d)(?=\w*[A-Z])[A-Za-z0-9]{20,22}(?![\w-])"),
    (("ak-", "as-"), r"a[ks]-(?=[A-Za-z]*\d)(?=\w*[A-Z])[A-Za-z0-9]{22}(?![\w-])"),
    (("key",), r"key-[0-9a-f]{32}(?![\w-])"),
    (("ese",), r"esecret_[A-Za-z0-9]{20,}"),
    (("re_",), r"re_[A-Za-z0-9]{8}_[A-Za-z0-9]{20,}"),
    (("pat",), r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}"),
    (("pk_",), r"pk_\d{6,}_[A-Z0-9]{32}(?![\w-])"),
    (("acc",), r"access-(?:sandbox|development|production)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    (("nra",), r"NRAK-[A-Z0-9]{20,}"),
    (("fm2", "fo1"), r"f(?:m2|o1)_[\w-]{40,}"),
    (("hrk",), r"HRKU-[\w-]{36,}"),
    (("nfp",), r"nfp_[A-Za-z0-9]{30,}"),
    (("m0-",), r"m0-(?=[A-Za-z]*\d)[A-Za-z0-9]{40}(?![\w-])"),
    (("dtn",), r"dtn_[0-9a-f]{64}"),
    (("cal",), r"cal_live_[0-9a-f]{32}"),
    (("goc",), r"GOCSPX-[\w-]{20,}"),
    (("api",), r"api_org_[A-Za-z]{30,}"),
    (("g.a",), r"g\.a000[\w-]{30,}"),
    # A bot of Discord: its number in base64, the time, and the rest.
    (
        tuple({base64.b64encode(b"%d" % number).decode()[:3].lower() for number in range(100, 1000)}),
        r"[MNO][A-Za-z0-9]{23,25}\.[\w-]{6}\.[\w-]{27,}",
    ),
)
_SHORTEST_TOKEN = 15
_SHORTEST_FORM = 14  # "basic", a blank and eight more
_MAX_STARTS = 32
# Three letters and letters after them, which is what a picture in base64 has in it now and then.
_IN_BASE64 = frozenset({"BSA", "EXO"})

_TOKEN_CHARACTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"


def _table(characters: bytes) -> bytes:
    """A table that translates these characters to ``a``, and others to a blank."""
    return bytes(97 if one in characters else 32 for one in range(256))


# `bytes.translate` and a search for one byte string find texts without any token 20 times as fast as a pattern does.
_AS_TOKENS = _table(_TOKEN_CHARACTERS + b".")
_TOKEN_RUN = re.compile(rb"a{%d,}" % _SHORTEST_TOKEN)
_ANY_TOKEN = b"a" * _SHORTEST_TOKEN
_START = re.compile(r"[-._](?=[A-Za-z0-9])")

_SHORTEST_BASE64 = 20
_AS_BASE64 = _table(_TOKEN_CHARACTERS + b"+/")
_BASE64_RUN = re.compile(rb"a{%d,}" % _SHORTEST_BASE64)
_ANY_BASE64 = b"a" * _SHORTEST_BASE64
_WHOLE_BASE64 = re.compile(r"[A-Za-z0-9+/]{12,}={0,2}\Z")
_SHORTEST_WHOLE_BASE64 = 12
_FIRST_DIGITS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef"
_CONTROLS = bytes(range(9)) + bytes((11, 12)) + bytes(range(14, 32)) + b"\x7f"
_STANDARD = bytes.maketrans(b"-_", b"+/")
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


class _Rules(msgspec.Struct):
    forms: dict[str, _Form]
    words: list[str]


class _Form(msgspec.Struct):
    starts: list[str]
    pattern: str
    is_mixed: bool = False


@functools.cache
def _rules() -> _Rules:
    return msgspec.json.decode(files("agent_cache.recording").joinpath("credentials.json").read_bytes(), type=_Rules)


@functools.cache
def _forms() -> dict[str, list[str]]:
    """Patterns of tokens by their first three characters, in lower case."""
    found: dict[str, list[str]] = {}
    for starts, pattern in _FAMILIES:
        for start in starts:
            found.setdefault(start, []).append(pattern)
    for form in _rules().forms.values():
        if not form.is_mixed:
            for start in dict.fromkeys(start[:3] for start in form.starts):
                found.setdefault(start, []).append(form.pattern)
    return found


@functools.cache
def _mixed_forms() -> list[tuple[bytes, str]]:
    """Beginnings and patterns of tokens whose characters need not stand in a run, such as base64."""
    return [
        (start.encode(), rf"(?<![\w-]){form.pattern}")
        for form in _rules().forms.values()
        if form.is_mixed
        for start in form.starts
    ]


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


def _end_of_token(text: str, at: int) -> int:
    """Where the token ends that begins here; -1 if none does."""
    for pattern in _forms().get(text[at : at + 3].lower(), ()):
        match = _compiled(pattern).match(text, at)
        if match is not None and looks_random(text[at + 3 : match.end()]):
            return match.end()
    return -1


def _starts(text: str, begin: int, end: int) -> list[int]:
    """Where a token may begin in a run of its characters."""
    found = [begin]
    if begin and text[begin - 1] == "\\" and text[begin] in "nrt":  # a line break that is written as an escape
        found.append(begin + 1)
    found += (match.end() for match in islice(_START.finditer(text, begin, end), _MAX_STARTS))
    return found


# Assignments

_SHORTEST_NUMBER = 4
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?\Z")
_ASSIGNING = re.compile(r"[=:<(|]|--| -|ENV|ARG|setx|machine")
_TOKENISH = re.compile(r"(?=.*(?:\d|[a-z][A-Z]|[A-Za-z0-9]{16}|[A-Za-z]{3}=))|(?=[A-Za-z]*[._~+/=-])[\w.~+/=-]{8,}\Z")
_HEADERS = frozenset({"authorization", "proxyauthorization", "cookie", "setcookie", "setcookie2", "xapikey", "apikey"})
# Each name of a secret has one of these in it. Looking for them and not for names is four times as fast.
_STEMS = (b"amz", b"assertion", b"auth", b"bearer", b"code", b"connection", b"cookie", b"cred", b"cvc", b"cvv", b"goog",
          b"jwt", b"key", b"mcp", b"otp", b"pass", b"pwd", b"saml", b"secret", b"sig", b"token")  # fmt: skip
_STEM = re.compile(b"|".join(_STEMS).decode())
_NAME_CHARACTERS = frozenset(_TOKEN_CHARACTERS.decode() + ".$")
_NAME = re.compile(r"(?<![\w.$-])[\w$.-]++")
_TWO_WORDS = re.compile(
    r"(?<![\w.$-])(?:api|access|secret|private|auth|client|bearer|refresh|session) \Z", re.IGNORECASE
)
_SIGN = re.compile(
    r"\\*[\"'`]\]?+\s*+(?:=>|[:=](?!=))\s*+(?P<quoted>)(?P<quote>(?:\b[rbuf])?\\*(?:\"\"\"|'''|[\"'`]))?+"
    r"|(?:[ \t]*+:[ \t]*+[\w.\[\]|, ]{1,80}+(?<=[ ])(?==[ ]))?+"  # an annotation
    r"(?P<before>[ \t]*+)(?P<sign>:=|=>|\?=|=(?!=)|:)(?P<blank>[ \t]*+)"
    r"(?P<quote_2>(?:\b[rbuf])?\\*(?:\"\"\"|'''|[\"'`]))?+",
    re.IGNORECASE,
)
_CELL_AFTER = re.compile(r"[ \t`]*+\|[ \t`]*+(?P<value>[^\s|`]++)[ \t`]*+\|")
_ATTRIBUTE_AFTER = re.compile(r"[\"'][^<>]*+>(?P<value>[^<>]++)(?=</)")
_PAIR_BEFORE = re.compile(r"(?:(?<!\w)|define|environ|setdefault|env|header)\(\s*+b?\\*[\"']\Z")
_PAIR_AFTER = re.compile(r"\\*[\"']\s*+,\s*+b?(?P<quote>\\*[\"'])(?P<value>[^\"'\\]++)\\*[\"'],?\s*+\)")
_NAMED_BEFORE = re.compile(r"\b(?:name|key)\\*[\"']?\s*+[:=]\s*+\\*[\"']?\Z", re.IGNORECASE)
_NAMED_AFTER = re.compile(
    r"\\*[\"']?\s*+,?\s*+\\*[\"']?value\b\\*[\"']?[ \t]*+[:=][ \t]*+(?P<quote>\\*[\"'])?+", re.IGNORECASE
)
_ELEMENT_AFTER = re.compile(r"(?:\s[^<>]*+)?>(?:<!\[CDATA\[)?+(?P<value>[^<>\]]++)(?=</|\]\]>)")
_ELEMENT_BEFORE = re.compile(r"<(?:\w++:)?\Z")
_ARGUMENT = re.compile(r"[ \t]++(?P<quote>\\*[\"'])?+(?P<value>(?!-)[^\s\"'\\]++)(?P<after>[ \t]*+[\w(]?)")
# The beginning of a list, a tuple or a dict of strings that is assigned to a name.
_SIGN_OF_SEVERAL = re.compile(r"(?:\\*[\"'`]\]?+)?+[ \t]*+(?:=>|:=|[:=](?!=))\s*+[(\[{]{1,2}+(?=\s*+b?\\*[\"'])")
_ITEMS = re.compile(r"[ \t]*+:[ \t]*+\r?\n(?P<items>(?:[ \t]*+-[ \t]++[^\r\n]*+(?:\r?\n|\Z))++)")  # of YAML
_ITEM = re.compile(r"^[ \t]*+-[ \t]++[\"']?(?P<word>[^\s\"':]++)[\"']?[ \t]*+\r?$", re.MULTILINE)
_MARK_IN_LIST = re.compile(r"(?P<quote>\\*[\"'])|[()\[\]{}]")
_COLON_AFTER = re.compile(r"\s*+(?::|=>)")
_SCHEMA_AFTER = re.compile(r"\s*+\\*[\"'](?:type|anyOf|allOf|oneOf|\$ref|title|description|loc|msg)\\*[\"']\s*+:")
_LONGEST_LIST = 4_000
_NEXT_IN_LIST = re.compile(r"\\*[\"']\s*+,\s*+b?(?P<quote>\\*[\"'])(?!-)")
_ENV_BEFORE = re.compile(r"(?:^|\n)[ \t]*+(?:ENV|ARG|setx)[ \t]++\Z")
_LOGIN = re.compile(
    r"(?<![\w-])(?:-u|--user|-U|--proxy-user)(?:\\*[\"']\s*+,\s*+b?|[= \t]++)?+(?:\\*[\"'])?+"
    r"[^\s:\"'\\]++:(?P<value>[^\s\"'\\]++)"
)
_LOGIN_BEFORE = re.compile(r"\b(?:login|user)\s++\S++\s++\Z")
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*\Z")
_SCREAMING = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\Z")
_SNAKE = re.compile(r"[a-z]+(?:_[a-z]+)+\Z")
_SECTION = re.compile(r"^\[[\w. :\"'-]++\][ \t]*+\r?$", re.MULTILINE)
_INTRODUCTION = re.compile(
    r"[ \t>+-]*+(?:(?:export|set|declare|local|readonly|const|let|var|env|ENV|ARG|public|private|static|final)[ \t]++"
    r"(?:-\w++[ \t]++)?+)*+(?:\$env:|\d+[:|][ \t]*+)?\Z"
)
_IN_A_QUERY = re.compile(r"[^\s\"'`&,;<>\\#]++")
_ALONE = re.compile(r"[^\s\"'`<>\\]++")
_IN_CODE = re.compile(r"[^\s\"'`&,;<>\\)}\]]++")
_AND_MORE_CODE = re.compile(r"[ \t]++(?:or|if|and|else|for|in|is|not)\b|[ \t]*+[+*%]")
_LINE = re.compile(r"[^\r\n\"'\\]++")
_FIRST_WORD = re.compile(r"[^\s\"'\\]*[^\s\"'\\.,;]")
# The rest of a line after a name, if it is neither a word of a sentence nor a type.
_ONE_WORD = re.compile(
    r"(?P<word>(?=\S*[^\sa-z]|\S{16})[^\s\"'\\,;(){}<>\[\]]{6,})[ \t]*+(?:#[^\r\n]*+)?(?=[\r\n]|\Z)", re.IGNORECASE
)
_ANY_WORD = re.compile(r"(?P<word>[^\s\"'\\]++)[ \t]*+(?:#[^\r\n]*+)?(?=[\r\n]|\Z)")
_NEXT_LINE = re.compile(r"\s++(?P<value>\S++)")
_BLOCK = re.compile(r"[|>][+-]?[ \t]*+\r?\n(?P<indent>[ \t]++)(?P<word>[^\r\n]*+(?:\r?\n(?P=indent)[^\r\n]*+)*+)")

# What people write about a secret: "the password for the database is x", "my API key: x".
_SAID = re.compile(
    r"(?:(?P<mark>[*_`]{0,3}+)(?:[ ](?:for|of|on)(?:[ ][\w.@-]{1,30}){1,4}?)?"
    r"(?P<sign>'s|[ ](?:is|was)(?:[ ](?:now|set[ ]to))?:?"
    r"|[ ](?:(?:changed|reset|set|updated)[ ])?to:?|(?P<dash>[ ]?[:-][*_]{0,2}+)))?"
    r"[ ]{1,2}+(?P<quote>[`\"'*]{0,3}+)(?P<value>[^\s`\"'*]{6,200}+)(?P<after>[`\"'*]?)"
)
_OWNER_BEFORE = re.compile(
    r"(?:\b(?:my|our|your|his|her|their|the)[ ](?:[\w-]{1,20}[ ]){0,2}|[*_]{2})\Z", re.IGNORECASE
)
_DERIVED_BEFORE = re.compile(r"\b(?:encoded|encrypted|hashed)[ ]\Z", re.IGNORECASE)
_MIXED = re.compile(r"(?=[^a-z]*[a-z])(?=\D*\d)[\w.!?@#$%^&+~/=-]++\Z", re.IGNORECASE)
# Words with digits that are said of a password, and are none: how it is written, what type it has.
_OF_SECRETS = re.compile(
    r"(?:aes|argon|base|bcrypt|char|ed|es|float|hs|http|int|md|oauth|pbkdf|rs|rsa|scrypt|sha|str|tls|u|uint|utf|v|varchar|x)"
    r"[-_]?\d|\d[\d.,:/-]*[a-z-]{1,12}\Z|[\w.-]+@[\w-]+\.",
    re.IGNORECASE,
)
_SAID_SHORT = frozenset({"passcode", "passphrase", "passwd", "password", "pwd"})
_SHORTEST_SAID = 16

# Texts around what no name introduces

_BLOCKS = re.compile(
    r"-----BEGIN [A-Z0-9 ]*+(?:(?<=PRIVATE KEY)|(?<=PRIVATE KEY BLOCK))-----[\s\S]*?(?:-----END [A-Z0-9 ]*+-----|\Z)"
)
_SCHEME = re.compile(r"(?P<kept>\b(?:bearer|basic)[ \t]++)(?P<value>[a-z0-9._~+/=-]{8,})", re.IGNORECASE)
# A password with a slash is one that somebody forgot to encode. A number before the slash is a port.
_PASSWORD_IN_URL = re.compile(
    r"(?P<kept>:\\*/\\*/[^\s/:@\"'\\<>]*+:)(?:(?P<value>[^\s/\"'\\<>]*[^\s/\"'\\<>@])(?=@)"
    r"|(?P<slashed>(?!\d{0,5}/)[^\s/@\"'\\<>?#]*+/[^\s@\"'\\<>?#]{0,100}+)(?=@[\w\[.-]))"
)
_ORIGINS = (b"://", b":\\")
_WEB_BEFORE = re.compile(r"(?:http|ws)s?\Z", re.IGNORECASE)
_TOKEN_IN_URL = re.compile(r"(?P<kept>:\\*/\\*/)(?P<value>[\w~.-]{20,})(?=@)")
# An address of a server without a scheme: alone, or in quotes. What people search mail by looks like it.
_LOGIN_AT = re.compile(
    r"(?:(?<=[\"'])|\A)(?P<kept>(?!(?:acct|from|to|b?cc|e?-?mail(?:to)?|npm|jsr|sips?|xmpp|workspace):)[A-Za-z][\w.+-]{0,63}+:)"
    r"(?P<value>[^\s/@\"'\\<>]{1,128}+)(?=@(?:localhost|[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}|\[[0-9a-f:.]{2,45}\])(?::\d{1,5})?(?:[\"'\\]|\Z))",
    re.IGNORECASE,
)
_NETLOC_BEFORE = re.compile(r"\bnetloc\\*[\"']?[ ]?[=:][ ]?b?\\*[\"']\Z")
# Of a URL with one of these beginnings, the rest of the path is a secret. JSON may have its slashes with an escape.
_HOOK = re.compile(
    (
        r"(?P<kept>hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/"
        r"|webhook\.office\.com/webhookb2/|outlook\.office(?:365)?\.com/webhook/|hooks\.zapier\.com/hooks/catch/"
        r"|hook\.(?:\w+\.)?(?:make|integromat)\.com/|webexapis\.com/v1/webhooks/incoming/|hooks\.glip\.com/webhook/"
        r")(?P<value>"
    ).replace("/", r"\\*/")
    + r"(?:[^\s\"'<>\\?#]|\\++/)++)",
    re.IGNORECASE,
)
# Of these, the next part of the path is, and what comes then says what is asked for.
_KEY_IN_PATH = re.compile(
    (
        r"(?P<kept>discord(?:app)?\.com/api/(?:v\d+/)?(?:webhooks|interactions)/\d+/|api\.telegram\.org/(?:file/)?bot"
        r"|maker\.ifttt\.com/trigger/[\w-]+/(?:json/)?with/key/|events\.pagerduty\.com/integration/"
        r"|open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/(?:v2/)?hook/|\.infura\.io/(?:ws/)?v3/|\.alchemy\.com/v2/"
        r"|\.quiknode\.pro/|qyapi\.weixin\.qq\.com/cgi-bin/webhook/send\?key=)"
    ).replace("/", r"\\*/")
    + r"(?P<value>[^\s\"'<>\\?#/&]++)",
    re.IGNORECASE,
)
_TELEGRAM = re.compile(r"(?P<kept>(?<=\d):)(?P<value>AA[\w-]{31,}+)")
_BASIC_AUTH = re.compile(
    r"(?P<kept>(?:basic|digest)auth\(\s*+\\*[\"'][^\"'\\\n]*+\\*[\"']\s*+,\s*+\\*[\"'])(?P<value>[^\"'\\\n]++)(?=\\*[\"'])",
    re.IGNORECASE,
)
_GOOGLE_CODE = re.compile(r"(?:(?<![\w/])|(?<=\\[nrt]))(?:4/0A|1//0)[\w-]{30,}+")
# What pydantic writes of a value that it refuses, and the line before that has its place.
_INPUT = re.compile(r"input_value=(?P<value>[^\n]{1,400}?)(?=, input_type=)")
_REFUSED = re.compile(r"(?:^|\n|\\n)(?P<place>[^\s\\][^\n\\]*)(?:\r?\n|\\n)[ ]{2}[^\n]*\[type=\w+, \Z")
_CUT = re.compile(r"(?P<begin>\.\.\.(?:\s*[\"'])?)(?P<value>[^\s\"']{6,}+)(?P<end>[\"'][}\])]*)\Z")
_LONGEST_PLACE = 1_000
# The same in the list of its errors: ``{'type': ..., 'loc': ('db', 'password'), 'msg': ..., 'input': 'x'}``.
_INPUT_BESIDE = re.compile(r"[\"']input\\*[\"']: ?\\*(?P<quote>[\"'])(?P<value>[^\"'\\\n]++)")
_PLACE_BEFORE = re.compile(r"[\"']loc\\*[\"']: ?[(\[](?P<place>[^()\[\]\n]{1,300})[)\]]")
# OAuth: what an authorization server grants. `code` has many other meanings, so other parameters must stand beside it.
OAUTH_PARAMETERS = frozenset({"grant_type", "redirect_uri", "code_verifier", "client_secret", "client_assertion"})
_OAUTH_MARKS = tuple(name.encode() for name in sorted(OAUTH_PARAMETERS))
_OAUTH_AROUND = re.compile(rf"(?<![\w-])(?:{'|'.join(sorted(OAUTH_PARAMETERS))})\\*[\"']?\s*+[=:,]")
_STATE_AROUND = re.compile(r"(?:\A|[?&#;]|\\u0026)(?:state|session_state|client_id)=")
_CODE_OF_OAUTH = re.compile(
    r"(?<![\w.$-])(?:code|assertion)(?:\\*[\"'])?+\s*+(?P<sign>[=:,])\s*+(?P<quote>b?\\*[\"'])?+"
    r"(?P<value>[^\s\"'`&,;<>\\#()\[\]{}]++)"
)
_NAMES_OF_CODES = (b"assertion", b"code")
_PARAMETERS_BEFORE = re.compile(r"[^\s\"'`<>]*\Z")
_PARAMETERS_AFTER = re.compile(r"[^\s\"'`<>]*+")
_AROUND_CODE = 300
_GRANTED = re.compile(r"[\w.~/+=*!:|-]++\Z")
_SHORTEST_GRANTED = 6
_SHORTEST_WITH_STATE = 10
_DELIMITERS = " \t\r\n\"'<>\\"
_REST_OF_WORD = re.compile(r"[^ \t\r\n\"'<>\\]*+")
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
_SHORTEST_HOOK = 12
# What stands between two arguments: blanks, or what a list of them is written with.
_GAP = r"(?:[ \t]++|\\*[\"']\s*+,\s*+b?\\*[\"'])"
_BETWEEN = r"[^\n|;&]{0,120}?"
_COMMAND = re.compile(
    rf"(?:sshpass{_GAP}-p{_GAP}?+|(?:redis|valkey)-cli\b{_BETWEEN}(?<=[ \"'])-a{_GAP}"
    rf"|login\b{_BETWEEN}(?<=[ \"'])-p{_GAP}"
    rf"|mongo(?:sh|dump|restore|export|import)?\b{_BETWEEN}(?<=[ \"'])-p{_GAP}|sqlcmd\b{_BETWEEN}(?<=[ \"'])-P{_GAP}"
    rf"|(?:mysql|mariadb)(?:dump|admin)?{_GAP}(?:{_BETWEEN}(?<=[ \"']))?-p)(?:\\*[\"'])?+(?P<value>[^\s\"'\\]++)"
)
_COMMANDS = (b"sshpass", b"redis-cli", b"valkey-cli", b"login", b"mysql", b"mariadb", b"mongo", b"sqlcmd")
_COMMAND_NAMES = frozenset({
    "curl", "login", "mariadb", "mariadb-admin", "mariadb-dump", "mongo", "mongodump", "mongoexport", "mongoimport",
    "mongorestore", "mongosh", "mysql", "mysqladmin", "mysqldump", "redis-cli", "sqlcmd", "sshpass", "valkey-cli",
})  # fmt: skip
_BLANKS = str.maketrans(dict.fromkeys(" \t\r\n\"'\\", "\x00"))
_HOOKS = (b"hook.", b"hooks.glip.com", b"hooks.slack", b"hooks.zapier.com", b"outlook.office", b"webexapis.com",
          b"webhook.office.com")  # fmt: skip
_DOMAINS_OF_HOOKS = (b".com", b".cn", b".io", b".pro")
_KEYS_IN_PATHS = (b".alchemy.com", b".infura.io", b".quiknode.pro", b"api.telegram.org", b"discord",
                  b"events.pagerduty.com", b"maker.ifttt.com", b"open.feishu.cn", b"open.larksuite.com",
                  b"qyapi.weixin.qq.com")  # fmt: skip
_EXAMPLES = frozenset({"pass", "passwd", "password", "pwd"})
_CHARACTER = re.compile(r"%[0-9A-Fa-f]{2}|[\s\S]")
_MAX_DEPTH = 4
_LONGEST_PROMPT = 300


class TextSearch:
    """Replaces the credentials in texts.

    Args:
        replacement: the text that stands for a secret.
        kind_of: what a name says about its value.
        inner: searches a text that was found in another, with all rules.
        parts: substrings of squashed names, one of which each name of a secret has in it.
    """

    def __init__(
        self,
        replacement: str,
        kind_of: Callable[[str], NameKind],
        inner: Callable[[str, int], str],
        parts: tuple[str, ...],
        *,
        has_forms: bool,
    ) -> None:
        self._replacement = replacement
        self._kind_of = kind_of
        self._inner = inner
        self._parts = parts
        self._has_forms = has_forms

        self._marked: list[tuple[tuple[bytes, ...], re.Pattern[str], Callable[[re.Match[str]], str]]] = [
            ((b"basicauth(", b"digestauth("), _BASIC_AUTH, self._replace_random),
            ((b":aa",), _TELEGRAM, self._replace_random),
            ((b"4/0a", b"1//0"), _GOOGLE_CODE, self._replacement_of),
            ((b"-----begin",), _BLOCKS, self._replacement_of),
            (_COMMANDS, _COMMAND, self._replace_argument),
            ((b"input_value=",), _INPUT, self._replace_input),
            ((b"'input", b'"input'), _INPUT_BESIDE, self._replace_input_beside),
            ((b"bearer", b"basic"), _SCHEME, self._replace_random),
            *(((start,), _compiled(pattern), self._replacement_of) for start, pattern in _mixed_forms()),
        ]

    def without_credentials(self, text: str, depth: int) -> str:
        """The same text without known forms of credentials, values of names of secrets, and encoded ones of both."""
        if " " in text or _ASSIGNING.search(text):  # a name and its value, or a sentence about them
            text = self._without_assigned(text)
        if self._has_forms:
            text = self._without_forms(text)
        if depth < _MAX_DEPTH:
            if "%" in text and _ESCAPE.search(text):
                text = self._without_percent_encoded(text, depth)
            if len(text) >= _SHORTEST_WHOLE_BASE64:
                text = self._without_base64(text, depth)
        return text

    def without_arguments(self, words: list[str]) -> list[str]:
        """The same command, given as the list of its arguments, without the values of options that have secrets."""
        cleaned = words.copy()
        for at, (option, value) in enumerate(pairwise(words)):
            if option[:1] == "-" and value[:1] != "-" and not (value.isalpha() and value.isupper()):
                kind = self._kind_of(option.lstrip("-")) if _OPTION.match(option) else NameKind.NONE
                if kind is not NameKind.NONE and is_secret_value(kind, option, value):
                    cleaned[at + 1] = self._replacement
        if self._has_forms and any(names_command(word) for word in words):
            line = " ".join(word.translate(_BLANKS) for word in cleaned)
            found = _LOGIN.sub(self._replace_login, line) if "curl" in line else line
            found = _replaced(found, _lowered(found), _COMMANDS, _COMMAND, self._replace_argument)
            if found != line:
                for at, (before, after) in enumerate(zip(line.split(" "), found.split(" "), strict=True)):
                    if before != after:
                        cleaned[at] = after.replace("\x00", " ")
        return cleaned

    def without_login(self, text: str) -> str:
        """The same address of a server, ``user:password@host``, without the password."""
        user, colon, password = text.rpartition("@")[0].partition(":")
        is_one = bool(colon and password) and not stands_for_another(password)
        return f"{user}:{self._replacement}{text[len(user) + 1 + len(password) :]}" if is_one else text

    def suspects(self, text: str) -> Iterator[str]:
        """Names in a text whose values may be secrets."""
        for begin, end in self._names(text):
            sign = _SIGN.match(text, end)
            value = None if sign is None else _SUSPECT.match(text, sign.end())
            if value is not None and is_suspicious(text[begin:end], value[0]):
                yield text[begin:end]

    # Tokens and other forms

    def _without_forms(self, text: str) -> str:
        if "@" in text and ("://" in text or ":\\" in text):
            text = _replaced(text, _lowered(text), _ORIGINS, _PASSWORD_IN_URL, self._replace_password)
            text = _replaced(text, _lowered(text), _ORIGINS, _TOKEN_IN_URL, self._replace_random)
        if "@" in text and ":" in text:
            text = _LOGIN_AT.sub(self._replace_login_at, text)
        if len(text) < _SHORTEST_FORM:
            return text
        low = _lowered(text)
        if any(domain in low for domain in _DOMAINS_OF_HOOKS):
            text = _replaced(text, low, _HOOKS, _HOOK, self._replace_hook)
            text = _replaced(text, _lowered(text), _KEYS_IN_PATHS, _KEY_IN_PATH, self._replace_hook)
            low = _lowered(text)
        for marks, pattern, replace in self._marked:
            for mark in marks:
                if mark in low:
                    text = _replaced(text, low, marks, pattern, replace)
                    low = _lowered(text)
                    break
        if b"code" in low or b"assertion" in low:
            text = self._without_codes(text, low)
            low = _lowered(text)
        letters = low.translate(_AS_TOKENS)
        return self._without_tokens(text, letters) if _ANY_TOKEN in letters else text

    def _without_codes(self, text: str, low: bytes) -> str:
        """The same text without codes and assertions of OAuth, which other parameters beside them give away.

        These are parameters of a query or a form, entries of a dict, or arguments of a call.
        """
        has_state = b"state=" in low or b"client_id=" in low
        if not has_state and not any(mark in low for mark in _OAUTH_MARKS):
            return text
        parts: list[str] = []
        done = 0
        for at in _places(low, _NAMES_OF_CODES):
            match = _CODE_OF_OAUTH.match(text, at)
            if match is None:
                continue
            begin, end = match.span("value")
            around = text[max(0, match.start() - _AROUND_CODE) : match.start()] + text[end : end + _AROUND_CODE]
            value = unquote(match["value"])
            is_one = _OAUTH_AROUND.search(around) is not None and is_granted(value, is_certain=True)
            if not is_one and has_state and match["sign"] == "=" and not match["quote"]:
                before = _PARAMETERS_BEFORE.search(text, max(0, match.start() - _AROUND_CODE), match.start())
                after = _PARAMETERS_AFTER.match(text, end, end + _AROUND_CODE)
                beside = f"{before[0] if before else ''}{after[0] if after else ''}"
                is_one = _STATE_AROUND.search(beside) is not None and is_granted(value, is_certain=False)
            if is_one and match["value"] != self._replacement:
                parts += (text[done:begin], self._replacement)
                done = end
        return "".join((*parts, text[done:])) if parts else text

    def _without_tokens(self, text: str, letters: bytes) -> str:
        parts: list[str] = []
        done = 0
        forms = _forms()
        for run in _TOKEN_RUN.finditer(letters):
            begin, last = run.span()
            for at in _starts(text, begin, last):
                if at < done or text[at : at + 3].lower() not in forms:
                    continue
                if at and text[at - 1] in "+/" and text[at : at + 3] in _IN_BASE64:
                    continue
                end = _end_of_token(text, at)
                if end > at:
                    parts += (text[done:at], self._replacement)
                    done = end
        return "".join((*parts, text[done:])) if parts else text

    def _replace_hook(self, match: re.Match[str]) -> str:
        is_one = len(match["value"]) >= _SHORTEST_HOOK and looks_random(match["value"])
        return f"{match['kept']}{self._replacement}" if is_one else match[0]

    def _replacement_of(self, _match: re.Match[str]) -> str:
        return self._replacement

    def _replace_input(self, match: re.Match[str]) -> str:
        value, begin = match["value"], match.start()
        place = _REFUSED.search(match.string[max(0, begin - _LONGEST_PLACE) : begin])
        names = () if place is None else [name for name in place["place"].split(".") if not name.isdigit()]
        if names and self._kind_of(names[-1]):
            bare = value[1:-1] if value[0] in "\"'" else value
            is_one = value[0] not in "{[(" and is_secret_value(self._kind_of(names[-1]), names[-1], bare)
            if is_one and bare not in ("", "None", "True", "False"):
                return match[0].replace(bare, self._replacement)
        # What it leaves out in the middle may be the name of what stands at the end.
        cut = _CUT.search(value)
        if cut is not None and looks_random(cut["value"]):
            return match[0][: len("input_value=") + cut.start("value")] + self._replacement + cut["end"]
        return match[0]

    def _replace_input_beside(self, match: re.Match[str]) -> str:
        before = match.string[max(0, match.start() - _LONGEST_PLACE) : match.start()]
        begin = max(before.rfind("'loc"), before.rfind('"loc'))
        place = _PLACE_BEFORE.match(before, begin) if begin >= 0 else None
        names = re.findall(r"[\"']([^\"'\\]++)", place["place"]) if place is not None else []
        name = next((one for one in reversed(names) if one.strip(", ")), "")
        kind = self._kind_of(name)
        is_one = kind is not NameKind.NONE and is_secret_value(kind, name, match["value"])
        return match[0][: -len(match["value"])] + self._replacement if is_one else match[0]

    def _replace_password(self, match: re.Match[str]) -> str:
        value = match["value"] or match["slashed"]
        if match["slashed"] and _WEB_BEFORE.search(match.string[max(0, match.start() - 6) : match.start()]):
            is_one = value[0] not in "$%" and looks_random(value.partition("/")[0])  # else it is a name of a port
            return f"{match['kept']}{self._replacement}" if is_one else match[0]
        is_example = stands_for_another(value) or value.lower() in _EXAMPLES
        return match[0] if is_example else f"{match['kept']}{self._replacement}"

    def _replace_login_at(self, match: re.Match[str]) -> str:
        value, before = match["value"], match.string[max(0, match.start() - 20) : match.start()]
        is_one = looks_random(value) or _NETLOC_BEFORE.search(before) is not None
        is_one = is_one and not stands_for_another(value)
        return f"{match['kept']}{self._replacement}" if is_one else match[0]

    def _replace_random(self, match: re.Match[str]) -> str:
        value = match["value"]
        is_word = not looks_random(value) or _PATH.match(value) is not None
        return match[0] if is_word else f"{match['kept']}{self._replacement}"

    # Assignments

    def _without_assigned(self, text: str) -> str:
        """The same text without values that are assigned to the name of a secret."""
        parts: list[str] = []
        done = 0
        for first, end in self._names(text):
            if end <= done:
                continue
            # Of two words, the first one may have been part of a value.
            begin = first if first >= done else end - len(text[done:end].lstrip())
            name = text[begin:end]
            kind = self._kind_in_text(name, text, begin)
            if kind is not NameKind.NONE:
                span = self._value_span(text, begin, end, name, kind)
                for first_of, last_of in self._spans_inside(text, end, name, kind) if span is None else (span,):
                    if first_of >= done:
                        parts += (text[done:first_of], self._replacement)
                        done = last_of
        text = "".join((*parts, text[done:])) if parts else text
        if self._has_forms and "curl" in text:
            text = _LOGIN.sub(self._replace_login, text)
        return text

    def _names(self, text: str) -> Iterator[tuple[int, int]]:
        """Where names stand that may be names of secrets, from left to right."""
        if self._parts:
            squashed = squash(text)
            if any(part in squashed for part in self._parts):
                yield from ((_first_word(text, match.start()), match.end()) for match in _NAME.finditer(text))
                return
        if not self._has_forms:
            return
        low = _lowered(text)
        last = -1
        for at in _places(low, _STEMS):
            if at < last:
                continue
            begin, least = at, max(0, at - _LONGEST_PATH)
            while begin > least and (text[begin - 1] in _NAME_CHARACTERS or text[begin - 1].isalnum()):
                begin -= 1
            name = _NAME.match(text, begin)
            if name is None:
                continue
            last = name.end()
            yield _first_word(text, begin), last

    def _value_span(self, text: str, begin: int, end: int, name: str, kind: NameKind) -> tuple[int, int] | None:
        """Where the value stands that is assigned to the name of a secret, or said of it; None if it is none."""
        span = self._written_span(text, begin, end, name, kind)
        return self._said_span(text, begin, end, name) if span is None and kind is NameKind.SECRET else span

    def _spans_inside(self, text: str, end: int, name: str, kind: NameKind) -> Iterator[tuple[int, int]]:
        """The strings in a list, a tuple or a dict that is assigned to the name of a secret.

        A dict may as well describe the value, or be a part of a program: in it, words of a language are left alone.
        """
        lines = _ITEMS.match(text, end)
        if lines is not None:
            for item in _ITEM.finditer(text, *lines.span("items")):
                if self._is_secret(kind, name, item["word"]) and looks_random(item["word"]):
                    yield item.span("word")
            return
        sign = _SIGN_OF_SEVERAL.match(text, end)
        if sign is None:
            return
        is_dict = text[sign.end() - 1] == "{"
        if is_dict and ((kind is NameKind.MAYBE and not names_several(name)) or _SCHEMA_AFTER.match(text, sign.end())):
            return
        depth, at, last = 1, sign.end(), sign.end() + _LONGEST_LIST
        while depth and (mark := _MARK_IN_LIST.search(text, at, last)) is not None:
            at = mark.end()
            if not mark["quote"]:
                depth += 1 if mark[0] in "([{" else -1
                continue
            stop = _closing(text, at, mark["quote"])
            value = text[at:stop]
            is_name = _COLON_AFTER.match(text, stop + len(mark["quote"])) is not None
            is_word = is_dict or kind is NameKind.MAYBE or len(value) < _SHORTEST_SECRET
            if not is_name and (looks_random(value) or not is_word) and self._is_secret(kind, name, value):
                yield at, stop
            at = stop + len(mark["quote"])

    def _said_span(self, text: str, begin: int, end: int, name: str) -> tuple[int, int] | None:
        """The value in a sentence about a secret. It has letters and digits; a sentence has other words, too."""
        match = _SAID.match(text, end)
        if match is None or not self._has_forms or "cookie" in name.lower():
            return None
        before = text[max(0, begin - 40) : begin]
        if _DERIVED_BEFORE.search(before) or (match["dash"] and not (match["mark"] or _OWNER_BEFORE.search(before))):
            return None
        value = match["value"].rstrip(".,;:!?)")
        is_short = squash(name) in _SAID_SHORT and match["sign"] is not None
        if len(value) < (_SHORTEST_SECRET if is_short else _SHORTEST_SAID) or not _MIXED.match(value):
            return None
        if _OF_SECRETS.match(value) or _PATH.match(value) or _UUID.match(value) or is_placeholder(value):
            return None
        if match["sign"] is None and entropy(value) <= _LEAST_ENTROPY:
            return None
        return match.start("value"), match.start("value") + len(value)

    def _written_span(self, text: str, begin: int, end: int, name: str, kind: NameKind) -> tuple[int, int] | None:
        """The same in a file, a program or a command."""
        before = text[max(0, begin - 40) : begin]
        if before[-1:] in ("'", '"') and "(" in before:
            match = _PAIR_AFTER.match(text, end) if _PAIR_BEFORE.search(before) else None
            if match is not None and looks_random(match["value"]) and not _is_type(match["value"]):
                return self._span_if(kind, name, match, "value")
        if ":" in before or "=" in before:
            is_named = _NAMED_BEFORE.search(before) is not None
            match = _NAMED_AFTER.match(text, end) if is_named else None
            if match is not None:
                return self._beside_span(text, match, name, kind)
            match = _ATTRIBUTE_AFTER.match(text, end) if is_named else None
            if match is not None:
                return self._span_if(kind, name, match, "value")
        sign = _SIGN.match(text, end)
        if sign is not None:
            return self._assigned_span(text, begin, sign, name, kind)
        if before[-1:] in ("<", ":"):
            match = _ELEMENT_AFTER.match(text, end) if _ELEMENT_BEFORE.search(before) else None
            return None if match is None else self._span_if(kind, name, match, "value")
        if name.startswith("--") or (name[0] == "-" and kind is not NameKind.MAYBE):
            return self._argument_span(text, end, name, kind)
        if before.rstrip(" \t`").endswith("|"):
            match = _CELL_AFTER.match(text, end)
            is_one = match is not None and looks_random(match["value"]) and not _is_type(match["value"])
            return self._span_if(kind, name, match, "value") if match is not None and is_one else None
        if _ENV_BEFORE.search(before):
            match = _ARGUMENT.match(text, end)
            return None if match is None else self._span_if(kind, name, match, "value")
        if name.lower() == "password" and _LOGIN_BEFORE.search(before):
            match = _ARGUMENT.match(text, end) or _NEXT_LINE.match(text, end)
            return None if match is None else match.span("value")
        return None

    def _argument_span(self, text: str, end: int, name: str, kind: NameKind) -> tuple[int, int] | None:
        """The argument of an option of a command, unless a sentence is about the option."""
        match = _NEXT_IN_LIST.match(text, end)
        if match is not None:
            span = self._quoted_span(text, match.end(), match["quote"], name, kind)
            word = "" if span is None else text[slice(*span)]
            return None if _SNAKE.match(word) and self._kind_of(word) else span  # the name of a parameter
        match = _ARGUMENT.match(text, end)
        if match is None:
            return None
        if match["quote"]:
            return self._quoted_span(text, match.start("value"), match["quote"], name, kind)
        is_word = _ALPHABETIC.match(match["value"]) is not None
        if is_word and (match["after"].strip() or match["value"].isupper()):
            return None
        return self._span_if(kind, name, match, "value")

    def _beside_span(self, text: str, match: re.Match[str], name: str, kind: NameKind) -> tuple[int, int] | None:
        """The value of a name that stands beside it: ``name: DB_PASSWORD`` above ``value: x``."""
        if match["quote"]:
            return self._quoted_span(text, match.end(), match["quote"], name, kind)
        word = _ANY_WORD.match(text, match.end())
        return None if word is None else self._span_if(kind, name, word, "word")

    def _replace_argument(self, match: re.Match[str]) -> str:
        value = match["value"]
        is_other = not _DIGIT.search(value) or _PATH.match(value) or stands_for_another(value)
        return match[0] if is_other else match[0][: match.start("value") - match.start()] + self._replacement

    def _replace_login(self, match: re.Match[str]) -> str:
        value = match["value"]
        if value.isdigit() or stands_for_another(value):
            return match[0]
        return match[0][: match.start("value") - match.start()] + self._replacement

    def _kind_in_text(self, name: str, text: str, begin: int) -> NameKind:
        if len(name) > _LONGEST_PATH:
            return NameKind.NONE
        kind = self._kind_of(name)
        if kind is NameKind.NONE and "." in name:
            kind = self._kind_of(name.rstrip(".").rpartition(".")[2])
        if name.startswith("u0026") and text[begin - 1 : begin] == "\\":  # JSON that escapes `&`
            begin, name = begin + 5, name[5:]
            kind = self._kind_of(name)
        if kind is NameKind.NONE and name.lower() in ("sig", "signature") and _begins_parameter(text, begin):
            return NameKind.SECRET
        return kind

    def _assigned_span(
        self, text: str, start: int, match: re.Match[str], name: str, kind: NameKind
    ) -> tuple[int, int] | None:
        begin = match.end()
        before = text[start - 1] if start else ""
        quote = match["quote"] or match["quote_2"]
        if quote:
            if match["sign"] and (match["sign"] == ":" or before == quote) and _closes(text, start, quote):
                return None  # a text that ends with a colon, such as a prompt
            return self._quoted_span(text, begin, quote, name, kind)
        if match["quoted"] is not None:  # a name in quotes and a value without, as numbers in JSON
            value = _IN_CODE.match(text, begin)
            if value is None or not _NUMBER.match(value[0]) or names_several(name):
                return None
            return value.span() if kind is not NameKind.MAYBE or is_secret_value(kind, name, value[0]) else None
        if match["sign"] == ":":
            return self._after_colon(text, start, match, name, kind, before)
        if _begins_parameter(text, start):
            value = _IN_A_QUERY.match(text, begin)
            return None if value is None else self._span_if(kind, name, value)
        if _introduced(text, start) or name.startswith("--"):
            return self._in_line(text, match, name, kind)
        value = _IN_CODE.match(text, begin)
        if value is None or match["blank"] or value[0][0] in "([{" or _CALL.match(text, begin):
            return None
        after = text[value.end() : value.end() + 1]
        if _ALPHABETIC.match(value[0]) and ((after in (",", ")", "]", "}") and after) or "." in value[0]):
            return None  # an argument in a program
        return self._span_if(kind, name, value)

    def _span_if(self, kind: NameKind, name: str, match: re.Match[str], group: str | int = 0) -> tuple[int, int] | None:
        return match.span(group) if self._is_secret(kind, name, match[group]) else None

    def _is_secret(self, kind: NameKind, name: str, value: str) -> bool:
        """Whether this value that is assigned in a text is a secret, and nothing that stands for one."""
        if value == self._replacement:
            return True
        if stands_for_another(value):
            return False
        value = _AUTHORIZATION.sub("", value)
        if stands_for_another(value) or squash(value.strip("-,;)]")) in _NOTHING or squash(value) == squash(name):
            return False
        if _DOTTED.match(value) or (_ALPHABETIC.match(value) and squash(value) in _SQUASHED_NAMES):
            return False  # a name in a program, or that of another secret
        return is_secret_value(kind, name, value)

    def _quoted_span(self, text: str, begin: int, quote: str, name: str, kind: NameKind) -> tuple[int, int] | None:
        if quote[0] in "rR":
            return None  # a regular expression
        end = _closing(text, begin, quote.lstrip("bBuUfF"))
        if squash(name) == "token" and text[end : end + 40].lstrip("\\\"', ").startswith("logprob"):
            return None  # a token of a text, and how probable it was
        return (begin, end) if self._is_secret(kind, name, text[begin:end]) else None

    def _after_colon(
        self, text: str, start: int, match: re.Match[str], name: str, kind: NameKind, before: str
    ) -> tuple[int, int] | None:
        """The value in a header of HTTP, in YAML, or after a name on a line of its own."""
        begin = match.end()
        squashed = squash(name)
        if squashed in _HEADERS:
            value = _LINE.match(text, begin)
            if squashed == "xapikey" and (before in ("'", '"') or text[max(0, start - 3) : start] == "-H "):
                word = _IN_CODE.match(text, begin)
                if word is not None and not is_placeholder(word[0]) and not _CALL.match(text, begin):
                    return word.span()
            if value is None or ("cookie" in squashed and "=" not in value[0].partition(" ")[0]):
                return None
            if "apikey" in squashed:  # one word, also where a sentence goes on
                value = _FIRST_WORD.match(text, begin) or value
            first = _AUTHORIZATION.sub("", value[0]).strip().partition(" ")[0]
            if first == self._replacement:
                return value.span()
            is_other = stands_for_another(first) or ("apikey" in squashed and _is_type(first))
            return value.span() if not is_other and ("cookie" in squashed or _TOKENISH.match(first)) else None
        is_quoted = before in ("'", '"') and before != ""
        is_argument = text[max(0, start - 3) : start] == "-H "
        if is_quoted or is_argument or text[max(0, start - 2) : start].strip()[-1:] in ("{", ","):
            value = _IN_CODE.match(text, begin)
            if value is None or _CALL.match(text, begin) or _ALPHABETIC.match(value[0]):
                return None
            if len(value[0]) < _SHORTEST_NUMBER:
                return None
            if is_quoted and text[value.end() : value.end() + 1] not in (before, "\\"):
                return None
            return self._span_if(kind, name, value)
        if not _introduced(text, start):
            return None
        block = _BLOCK.match(text, begin)
        if block is not None and kind is not NameKind.MAYBE:
            return block.span("word")
        is_variable = _SCREAMING.match(name) is not None or names_code(name)
        value = (_ANY_WORD if is_variable else _ONE_WORD).match(text, begin)
        if value is None or _CALL.match(text, begin) or (not is_variable and _is_type(value["word"])):
            return None
        return self._span_if(kind, name, value, "word")

    def _in_line(self, text: str, match: re.Match[str], name: str, kind: NameKind) -> tuple[int, int] | None:
        """The value on a line of its own: in a shell, in ``.env``, in an ini file, in a program."""
        begin = match.end()
        value = _ALONE.match(text, begin)
        if value is None or _CALL.match(text, begin):
            return None
        word = value[0].rstrip(",;)") or value[0]
        is_code = match["blank"] or match["before"] or "." in name
        if word[0] == "(" or (is_code and word.lstrip("-").isdigit() and len(word) < _SHORTEST_NUMBER):
            return None
        if _AND_MORE_CODE.match(text, value.end()) and re.match(r"[A-Za-z_][\w.]*\Z", word):
            return None
        is_listed = word != value[0]
        if _ALPHABETIC.match(word) and (is_listed or (is_code and ("." in word or not _SECTION.search(text)))):
            return None  # a name in a program
        return self._span_if(kind, name, value)

    # Encodings

    def _without_percent_encoded(self, text: str, depth: int) -> str:
        parts: list[str] = []
        done = end = 0
        at = text.find("%")
        while at >= 0:
            begin = max(text.rfind(one, end, at) for one in _DELIMITERS) + 1 or end
            end = _REST_OF_WORD.match(text, at).end()  # type: ignore[union-attr]  # it matches an empty text, too
            word = text[begin:end]
            cleaned = self._percent_encoded(word, depth)
            if cleaned != word:
                parts += (text[done:begin], cleaned)
                done = end
            at = text.find("%", end)
        return "".join((*parts, text[done:])) if parts else text

    def _percent_encoded(self, word: str, depth: int) -> str:
        plain = unquote(word)
        if plain == word or "\ufffd" in plain:
            return word
        cleaned = self._inner(plain, depth + 1)
        if cleaned == plain:
            return word
        kept = _kept_escapes(word, plain, cleaned.split(self._replacement))
        if kept is None:
            kept = [quote(piece, safe="=&?/:#;,+@!$'()*~") for piece in cleaned.split(self._replacement)]
        return self._replacement.join(kept)

    def _without_base64(self, text: str, depth: int) -> str:
        if len(text) % 4 == 0 and _WHOLE_BASE64.match(text):
            return self._decoded(text.encode(), depth, "latin-1")
        raw = text.encode("ascii", "replace")
        letters = raw.translate(_AS_BASE64)
        if _ANY_BASE64 not in letters:
            return text
        parts: list[str] = []
        done = 0
        for run in _BASE64_RUN.finditer(letters):
            begin, end = run.span()
            # Every fourth digit has the first bits of a byte, and those of most letters begin with 0.
            if raw[begin : begin + 40 : 4].translate(None, _FIRST_DIGITS):
                continue
            while end < len(text) and text[end] == "=" and end - run.end() < 2:
                end += 1
            cleaned = self._decoded(raw[begin:end], depth, "utf-8")
            if cleaned != text[begin:end]:
                parts += (text[done:begin], cleaned)
                done = end
        return "".join((*parts, text[done:])) if parts else text

    def _decoded(self, encoded: bytes, depth: int, encoding: str) -> str:
        """A text in base64 without secrets. In UTF-8, only what has no control characters is a text."""
        digits = encoded.rstrip(b"=").translate(_STANDARD)
        if len(digits) % 4 == 1:
            return encoded.decode()
        try:
            plain = binascii.a2b_base64(digits + b"=" * (-len(digits) % 4))
            text = plain.decode(encoding)
        except ValueError:
            return encoded.decode()
        if encoding == "utf-8" and len(plain.translate(None, _CONTROLS)) != len(plain):
            return encoded.decode()
        cleaned = self._inner(text, depth + 1)
        if cleaned == text:
            return encoded.decode()
        again = base64.b64encode(cleaned.encode(encoding, "replace"))
        if b"-" in encoded or b"_" in encoded:
            again = again.translate(_URL_SAFE)
        return (again if encoded.endswith(b"=") or len(encoded) % 4 == 0 else again.rstrip(b"=")).decode()


def _kept_escapes(word: str, plain: str, pieces: list[str]) -> list[str] | None:
    """The parts of a percent-encoded word that stand for these pieces of it; None if they are no pieces of it."""
    if not plain.isascii():
        return None
    where = [match.start() for match in _CHARACTER.finditer(word)] + [len(word)]
    found, at = [], 0
    for number, piece in enumerate(pieces):
        is_last = number == len(pieces) - 1
        begin = len(plain) - len(piece) if is_last else plain.find(piece, at)
        if begin < at or (number == 0 and begin > 0) or not plain.startswith(piece, begin):
            return None
        at = begin + len(piece)
        found.append(word[where[begin] : where[at]])
    return found


def _closes(text: str, at: int, quote: str) -> bool:
    """Whether a quote after this place ends a text that begins before it on the same line."""
    begin = max(text.rfind("\n", 0, at) + 1, at - _LONGEST_PROMPT)
    opened = [match for match in re.finditer(re.escape(quote), text[begin:at]) if not _is_apostrophe(match)]
    return len(opened) % 2 == 1


def _is_apostrophe(match: re.Match[str]) -> bool:
    around = match.string[match.start() - 1 : match.start()] + match.string[match.end() : match.end() + 1]
    return match[0] == "'" and len(around) == 2 and around.isalpha()


def _lowered(text: str) -> bytes:
    """The text in lower case, in which each character has its place, and those that are not ASCII do not count."""
    return text.encode("ascii", "replace").lower()


def _places(low: bytes, marks: tuple[bytes, ...]) -> list[int]:
    """Where one of these stands, from left to right."""
    found: list[int] = []
    for mark in marks:
        at = low.find(mark)
        while at >= 0:
            found.append(at)
            at = low.find(mark, at + len(mark))
    found.sort()
    return found


def _replaced(
    text: str, low: bytes, marks: tuple[bytes, ...], pattern: re.Pattern[str], replace: Callable[[re.Match[str]], str]
) -> str:
    """The same text with what the pattern matches where one of the marks stands.

    To look for the marks and not for the pattern is ten times as fast.
    """
    parts: list[str] = []
    done = 0
    for at in _places(low, marks):
        match = None if at < done else pattern.match(text, at)
        if match is not None:
            parts += (text[done:at], replace(match))
            done = match.end()
    return "".join((*parts, text[done:])) if parts else text


def _first_word(text: str, begin: int) -> int:
    """Where a name begins whose last word begins here: ``API key`` is one."""
    two = _TWO_WORDS.search(text[max(0, begin - 10) : begin])
    return begin - len(two[0]) if two else begin


def _begins_parameter(text: str, at: int) -> bool:
    """Whether a name begins a parameter of a query, or a part of a connection string."""
    return at > 0 and (text[at - 1] in "?&;" or text[max(0, at - 6) : at] == "\\u0026")


def _introduced(text: str, at: int) -> bool:
    """Whether a name is the first on its line, but for words such as ``export``."""
    begin = text.rfind("\n", 0, at) + 1
    return at - begin <= 60 and _INTRODUCTION.match(text[begin:at]) is not None


def _is_type(word: str) -> bool:
    """Whether this is the name of a type, or of something in a program."""
    word = word.rstrip(",;)")
    return _ALPHABETIC.match(word) is not None and (len(word) < 16 or not word.islower() or "_" in word or "." in word)


def _closing(text: str, at: int, quote: str) -> int:
    """Where the text ends that `quote` has opened; the end of the whole text if it is never closed."""
    while True:
        end = text.find(quote, at)
        if end < 0:
            return len(text)
        escapes = 0
        while text[end - 1 - escapes] == "\\" and end - 1 - escapes >= at:
            escapes += 1
        if not escapes:
            return end
        at = end + len(quote)


# What is reported, and not redacted: values that no form gives away, under names that may be those of secrets

_SUSPECT = re.compile(r"[\w.=+/-]{16,200}(?![\w.=+/-])", re.ASCII)
_SUSPICIOUS = re.compile(r"access|auth|api|cred|key|secret|token|pass|pwd", re.IGNORECASE)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", re.IGNORECASE)
_MIXTURE = re.compile(r"(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{12}")
_LEAST_ENTROPY = 3.5  # bits a character, as Betterleaks' rule for keys of any service has it


def is_suspicious(name: str, value: str) -> bool:
    """Whether a value may be a secret, because it looks random and its name may be that of one.

    It has letters and digits side by side, more than 3.5 bits a character (Shannon's entropy), and none of 1,400 words
    in it, which are those of Betterleaks' rule for keys of any service.
    """
    if _SUSPICIOUS.search(name) is None or not _HARMLESS.isdisjoint(word.lower() for word in _WORD.findall(name)):
        return False
    if _SUSPECT.fullmatch(value) is None or _PATH.match(value) or _UUID.match(value) or not _DIGIT.search(value):
        return False
    if entropy(value) <= _LEAST_ENTROPY or not _MIXTURE.search(value):
        return False
    low = value.lower()
    return not any(word in low for word in _rules().words)


def entropy(text: str) -> float:
    """Shannon's entropy of the characters, in bits a character."""
    counts = [text.count(one) for one in set(text)]
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)
