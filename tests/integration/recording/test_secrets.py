"""No secret in what agents read, ask and answer is written down, and nothing else is lost; see `secrets.toml`."""

# ruff: noqa: E501 - texts of files and URLs have lines of any length

from __future__ import annotations

import base64
import gzip
import json
import random
import re
import string
import tomllib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from msgspec.json import encode

from agent_cache import AgentCacheSession
from agent_cache.__main__ import main
from agent_cache.recording import Cassette, Http, Redaction, intercept, record, replay
from agent_cache.resume import Journal
from benchmarks.recorded_runs import RETAIL_SETS, SHELL_SETS, data_directory
from tests.harness.batches import in_batches
from tests.harness.slow import crossed

KNOWN: dict[str, Any] = tomllib.loads(Path(__file__).with_name("secrets.toml").read_text("utf-8"))
S = "Zq9x7Kp2Lm4Tv8Wd3"
UPPER = string.ascii_uppercase + string.digits
LOWER = string.ascii_lowercase + string.digits
CHARACTERS = {"word": string.ascii_letters + string.digits, "hex": "0123456789abcdef", "upper": UPPER, "lower": LOWER}
LENGTHS = {"hex": 32}


def filled(text: str, *, asked: str = "") -> tuple[str, list[str]]:
    """A text with new secrets in it, and these."""
    chance, made = random.Random(text), []

    def secret(slot: re.Match[str]) -> str:
        kind, length = slot[1], int(slot[2] or LENGTHS.get(slot[1], 24))
        if kind in ("password", "base64"):  # as people choose them: a word and a digit
            one = chance.choice(["hunter", "swordfish", "correcthorse", "letmein"]) + str(chance.randrange(1000))
            one = base64.b64encode(f"{one}-{chance.random()}".encode()).decode() if kind == "base64" else one
        else:
            one = "".join(chance.choices(CHARACTERS[kind], k=length - 2)) + ("A7" if kind == "upper" else "a7")
        made.append(one)
        return one

    return re.sub(r"«(\w+)(?: (\d+))?»", secret, asked or text), made


def written(value: object) -> str:
    """What a recording writes of a value."""
    redaction, raw = Redaction(), encode({"result": value})
    return encode(redaction.apply(json.loads(raw))).decode() if redaction.may_change(raw) else raw.decode()


def has_none_of(made: Iterable[str], text: str) -> bool:
    parts = [part for one in made for part in {one, one[:12], one[-12:], quote(one, safe="")}]
    return not [part for part in parts if len(part) > 4 and part in text]


@intercept(name="call")
def call(value: object, **more: object) -> object:
    return value


def recorded(path: Path, value: object, **more: object) -> str:
    with record(path):
        call(value, **more)
    return path.read_text()


# Texts and values with secrets


AROUND: list[Callable[[str], object]] = [
    str, lambda text: json.dumps({"output": text}), lambda text: {"out": text, "n": 0},
    lambda text: [1, [{"a": json.dumps({"arguments": json.dumps({"text": text})})}]], lambda text: {text: 1},
]  # fmt: skip


@pytest.mark.parametrize("around", AROUND)
@in_batches("text", [*KNOWN["files"].values(), *KNOWN["texts"]])
def test_no_secret_of_a_text_is_written_down(text: str, around: Callable[[str], object]) -> None:
    text, made = filled(text)
    assert has_none_of(made, found := written(around(text))), found
    assert "[redacted]" in found


@in_batches("value", KNOWN["values"])
def test_no_secret_of_a_value_is_written_down(value: str) -> None:
    value, made = filled(value)
    assert has_none_of(made, found := written(json.loads(value))), found


def test_a_recording_writes_what_these_rules_leave(path: Path) -> None:
    every = [filled(text) for text in (*KNOWN["texts"], *KNOWN["values"])]
    text = recorded(path, [text for text, _ in every], given=[one.encode() for one, _ in every])
    assert has_none_of([one for _, made in every for one in made if len(one) > 12], text)


WITHIN = ["{}", "before\x01{}", "use {} now", "a={};b", '{{"k": "{}"}}', "x/{}", "({})", "\\n{}\\n", "a%20{}", "[{}]", "at {}\nthere"]  # fmt: skip


@pytest.mark.parametrize("around", WITHIN)
@in_batches("token", KNOWN["tokens"], size=100)
def test_a_token_is_known_by_its_form(token: str, around: str) -> None:
    if around.startswith("x/") and token.startswith(("1/", "2/", "4/", "1//")):
        return
    token, made = filled(token)
    assert has_none_of(made, found := written(around.format(token))), found


TO_BASE64 = ["{\"password\": \"«base64»\", \"a\": 1}", "API_KEY=«base64»\nPORT=80", "-----BEGIN RSA PRIVATE KEY-----\n«word 64»\n-----END RSA PRIVATE KEY-----"]  # fmt: skip


@pytest.mark.parametrize("text", TO_BASE64)
@pytest.mark.parametrize("packed", [bytes, gzip.compress])
def test_what_is_encoded_is_decoded_before_it_is_searched(
    text: str, packed: Callable[[bytes], bytes], path: Path
) -> None:
    plain, _ = filled(text)
    data = packed(plain.encode())
    encoded = base64.b64encode(data).decode()
    for around in ("the config is {} .", 'src="data:text/plain;base64,{}" x', "client-key: {}"):
        assert encoded[20:60] not in written(around.format(encoded))
    assert encoded[20:60] not in recorded(path, data, given=data, quoted=quote(quote(plain, safe=""), safe=""))


def test_a_secret_that_a_terminal_has_broken_into_lines_is_gone_as_a_whole() -> None:
    text = filled("$ env\nOPENAI_API_KEY=sk-proj-«word 57»\n«word 80»\n«word 27»\nPORT=8080\n$ ")[0]
    assert written(text) == '{"result":"$ env\\nOPENAI_API_KEY=[redacted]\\nPORT=8080\\n$ "}'


@pytest.mark.parametrize("kind", KNOWN["kept"])
def test_what_stands_around_a_secret_stays(kind: str) -> None:
    text = written(filled(KNOWN["files"][kind])[0])
    assert not [part for part in KNOWN["kept"][kind] if part not in text], text


def test_a_text_is_the_same_when_it_is_redacted_again() -> None:
    for text in (*KNOWN["files"].values(), *KNOWN["texts"]):
        once = Redaction().text(filled(text)[0])
        assert Redaction().text(once) == once, text


# What is no secret


@in_batches("text", KNOWN["clean_texts"])
def test_a_text_that_only_looks_like_a_secret_stays(text: str) -> None:
    assert json.loads(written(text)) == {"result": text}


@in_batches("value", KNOWN["clean_values"])
def test_a_value_that_only_looks_like_a_secret_stays(value: str) -> None:
    assert json.loads(written(json.loads(value))) == {"result": json.loads(value)}


def test_a_picture_in_base64_stays() -> None:
    picture = base64.b64encode(random.Random(3).randbytes(30_000)).decode()
    assert json.loads(written(picture)) == {"result": picture}


def test_the_default_of_a_schema_may_be_a_secret() -> None:
    assert S not in written({"properties": {"api_key": {"type": "string", "default": S}}})


def recorded_calls() -> Iterator[dict[str, object]]:
    for name in (*RETAIL_SETS, *SHELL_SETS):
        with gzip.open(Path(data_directory(), f"{name}.jsonl.gz"), "rt", encoding="utf-8") as file:
            for line in file:
                yield from json.loads(line)["calls"]


# In tasks of "capture the flag" the passwords of programs are the subject, and secrets of course.
PASSWORDS_IN_TASKS = ("jU5t_a_sna_3lpm1dg347_u_4_m0r846", "A:4@r%uL`M-^M0c0AbcM-MFE07b34c`_6N")


@pytest.mark.parametrize("every", [24, pytest.param(1, marks=pytest.mark.slow)])
def test_nothing_of_recorded_runs_of_agents_is_redacted(every: int) -> None:
    redaction, changed = Redaction(), []
    for one in islice(recorded_calls(), 0, None, every):
        for part in (one["args"], one["result"]):
            if redaction.may_change(encode(part)) and redaction.apply(part) != part:
                changed.append(json.dumps(part))
    assert len(changed) < 10
    assert not [text for text in changed if not any(json.dumps(one)[1:-1] in text for one in PASSWORDS_IN_TASKS)]


PLACEHOLDERS = [
    "your-api-key", "YOUR_API_KEY", "your_secret_key_here", "<your-api-key>", "<token>", "xxx", "XXXXXXXX", "****", "...", "${TOKEN}", "$TOKEN", "{{ token }}", "%TOKEN%", "None",
]  # fmt: skip


@pytest.mark.parametrize(
    "line", ["API_KEY={}", "export API_KEY='{}'", '"smtp_password": "{}"', "curl -H 'X-Api-Key: {}' x"]
)
def test_a_placeholder_stays(line: str) -> None:
    assert "redacted" not in written([line.format(value) for value in PLACEHOLDERS])


VALUES = [
    f"my-prod-{S}", f"my_{S}", f"your-{S}", "my-prod-9f8e7d6c", "mysupersecret", "thisismySECRET", "SuperSecret", "MY_TOP_SECRET", "topSECRET",
    "changeme-prod-1", f"<prod>{S}", f"%{S}", f"...{S}", "my_app_secret", "swordfishpassword",
]  # fmt: skip
ENVS = [
    "POSTGRES_PASSWORD={}", "export JWT_SECRET={}", "JWT_SECRET='{}'", '"JWT_SECRET": "{}"', "[db]\npassword = {}\n", "docker run -e DB_PASSWORD={} image",
    "ENV API_SECRET={}", "API_SECRET: {}", "curl -H 'X-Api-Key: {}' x", "server=db;Password={};x=y", "postgres://u:{}@db/x", "https://x.test/?password={}",
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
def test_what_somebody_may_use_as_a_secret_is_no_placeholder(value: str) -> None:
    for line in ENVS:
        is_quoted = line.endswith(('"', "'")) or not value.startswith(("<", "%"))
        given = value if is_quoted else value.strip("<>%").replace(">", "-")
        found = written(line.format(given))
        assert "[redacted]" in found, line
        assert given not in found


# Names


NAMES = [
    "code_verifier", "client_assertion", "refresh_token", "device_code", "oauth_verifier", "id_token_hint", "saml_response",
    "authorization_code", "xi_api_key", "set_cookie2", "mcp_session_id", "oob_code",
]  # fmt: skip


def spellings(name: str) -> list[str]:
    """snake_case, kebab-case, camelCase, PascalCase and SCREAMING_CASE."""
    words = name.split("_")
    camel = words[0] + "".join(map(str.capitalize, words[1:]))
    return [name, name.replace("_", "-"), camel, camel[0].upper() + camel[1:], name.upper()]


@pytest.mark.parametrize("given", NAMES)
def test_a_name_of_a_secret_is_known_in_every_spelling(given: str, path: Path) -> None:
    values = [
        {"deep": [{name: S}], "pairs": [(name, S)], name: S.encode(), "text": json.dumps({name: S})}
        for name in spellings(given)
    ]
    text = recorded(path, values)
    assert S not in text
    assert base64.b64encode(S.encode()).decode() not in text


SEVERAL = ("passwords", "api_keys", "access_tokens", "secrets", "tokens", "client_secrets")
FORMS = [lambda one: [one, "x"], lambda one: (one,), lambda one: {one}, lambda one: {"prod": one, "count": 3}]


@pytest.mark.parametrize(("name", "several"), crossed((one for name in SEVERAL for one in spellings(name)), FORMS))
def test_several_secrets_under_one_name_are_secrets(name: str, several: Callable[[str], Any], path: Path) -> None:
    assert S not in recorded(path, {name: several(S)}, text=f"read {name}: {several(S)!r} of it", number={name: 3})
    assert f'"{name}":3' in path.read_text(), "their number is none"


CODES = ["otp", "OTP", "totp", "otpCode", "cvv", "CVV2", "card_cvc", "mfa_code", "mfaCode", "passcode", "verification-code", "one_time_code"]  # fmt: skip
TOLD = [
    "Your verification code is {}",
    "**Login code:** {}",
    "Your OTP is {}.",
    "G-{} is your Google verification code.",
]


def test_a_code_that_is_typed_in_once_is_a_secret() -> None:
    for name in CODES:
        for one in ({name: "482913", "deep": {name: 482913}}, f"{name}=482913", f'x "{name}": "482913"'):
            assert "482913" not in written(one), name
    assert not [text for text in TOLD if "482913" in written(text.format("482913"))]


# URLs, and other places of a recording


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Every server answers with the URL that it was asked for; of one that refuses, it stands in the error."""
    httpx = pytest.importorskip("httpx")

    def answer(self: object, request: Any) -> Any:
        if request.headers.get("x-mode") == "refuse":
            raise httpx.ConnectError(f"cannot reach {request.url}", request=request)
        body = httpx.ByteStream(json.dumps({"asked": str(request.url)}).encode())
        return httpx.Response(200, headers={"content-type": "application/json"}, stream=body)

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", answer)
    return httpx


def test_a_request_has_a_name_without_the_secret_of_its_url(net: Any, path: Path) -> None:
    asked = [filled(url) for url in KNOWN["urls"]]
    with net.Client() as client:
        with record(path, http=True):
            for url, _ in asked:
                assert client.post(url, json={"text": "hi"}).status_code == 200
                with pytest.raises(net.ConnectError):
                    client.post(url, headers={"x-mode": "refuse"})
        with replay(path, strict=True):
            for url in KNOWN["urls"]:  # a rotated secret finds the recording, too
                assert client.post(filled("x" + url, asked=url)[0], json={"text": "hi"}).status_code == 200
                with pytest.raises(net.ConnectError):
                    client.post(filled("y" + url, asked=url)[0], headers={"x-mode": "refuse"})
    assert has_none_of([one for _, made in asked for one in made], path.read_text())


SPELLED: list[Callable[[str], object]] = [
    str, lambda url: f"POST {url} failed", lambda url: f"https://shop.test/?next={quote(url, safe='')}",
    lambda url: {"urls": [url]}, lambda url: json.dumps({"url": url}).replace("/", "\\/"),
    lambda url: "cut off: " + json.dumps({"url": url}).replace("/", "\\/")[:-1],
]  # fmt: skip


@pytest.mark.parametrize("spelled", SPELLED)
@in_batches("url", KNOWN["urls"], size=100)
def test_a_url_among_arguments_and_results_has_no_secret(url: str, spelled: Callable[[str], object]) -> None:
    url, made = filled(url)
    assert has_none_of(made, found := written(spelled(url))), found


def test_aliases_and_settings_of_http_have_no_secret(net: Any, path: Path) -> None:
    slack = f"https://hooks.slack.com/services/T01ABCDEFGH/B01ABCDEFGH/{S}"
    with net.Client() as client:
        with record(path, http=Http(aliases={"hooks.slack.com": "hooks.test"})):
            client.post(slack)
        assert S not in path.read_text()
        assert "https://hooks.test/services/" in path.read_text()
        with record(path, mode="rewrite", http=Http(aliases={"localhost:8080": "hooks.slack.com"})):
            client.post(f"http://localhost:8080/services/T01/B01/{S}")
        assert S not in Cassette.load(path)[0].name
        with record(path, mode="rewrite", http=Http(ignore=[slack])):
            client.post(slack)
            client.get("https://shop.test/orders")
        assert S not in path.read_text()
        assert len(Cassette.load(path)) == 1
        with replay(path, strict=True):
            client.post(slack)
            client.get("https://shop.test/orders")


PASSWORDS = [
    "postgres://u:p/w9x8y7@h", f"postgresql+asyncpg://u:{S}/x@db:5432/app", f"redis://:a/{S}@h:6379/0",
    f"mysql://u:a@{S}@h/db", f"amqp://u:{S}?x@h/", f"redis://:{S}#x@h:6379/0", f"https://u:a1/{S}@shop.test/",
]  # fmt: skip


@pytest.mark.parametrize("url", PASSWORDS)
def test_a_password_in_a_url_may_have_any_character_in_it(url: str) -> None:
    text = written([url, f"cannot connect to {url} now"])
    assert S not in text
    assert "w9x8y7" not in text
    assert ":[redacted]@" in text


def test_the_label_of_a_recording_has_no_secret(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label in (f"azure https://u:{S}@models.test/v1?api_key={S}", f"sk-{S}", f"gpt?api-key={S}"):
        with record(path, mode="rewrite", model=label):
            call(1)
        assert S not in path.read_text()
        assert S not in (Cassette.load(path).model or "")
    with record(path, mode="rewrite", model="LABEL"):
        call(1)
    assert Cassette.load(path).model == "LABEL"
    path.write_text(path.read_text().replace("LABEL", f"https://u:{S}@models.test"))
    for command in (["redact", "--check"], ["verify"]):
        assert main(["cassette", *command, str(path)]) == 1
    assert main(["cassette", "redact", str(path)]) == 0
    assert S not in path.read_text()
    assert main(["cassette", "redact", "--check", str(path)]) == 0
    assert main(["cassette", "verify", str(path)]) == 0
    assert S not in capsys.readouterr().out


MIXED: dict[str, Any] = {
    "passwords": [S], "codeVerifier": S, "hook": f"https://hooks.slack.com/services/T01/B01/{S}", "form": {"code": S, "grant_type": "x"}, "env": f"JWT_SECRET=my-{S}", "url": f"postgres://u:p/{S}@h",
}  # fmt: skip


@pytest.mark.parametrize("key", [None, b"k" * 32])
async def test_no_journal_and_no_checkpoint_has_a_secret(key: bytes | None, tmp_path: Path) -> None:
    if key is not None:
        pytest.importorskip("cryptography", reason="a journal is encrypted by it")

    @intercept(name="pay", kind="write")
    async def pay(value: object) -> object:
        if value == "fail":
            raise ValueError(MIXED)
        return value

    async with AgentCacheSession("run", journal=Journal(tmp_path, key=key)) as session:
        await pay(MIXED)
        with pytest.raises(ValueError, match="passwords"):
            await pay("fail")
        await session.checkpoint(MIXED["hook"], {"codes": MIXED})
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert S.encode() not in file.read_bytes(), file


# Time


REPEATED = [
    "eyJ-", "sk-", "eyJ.", "://", "a:", "password=", "password: ", "<token>", "-----BEGIN PRIVATE KEY", "%25", "bearer ", "=", " ",
    "name: token value: ", "--password ", "('token', ", "\\", '"', "ATAT=", "api key ", "curl -u a", "token: |\n ",
    "password is ", "password for a ", "the password's ", "'--token', ", "sshpass', '-p', ", "mysql -p", "'a:b@", "'netloc=a:1@c.",
    "input_value=", "a\n  b [type=c, input_value=", "\\n  [type=a, input_value=1, input_type=",
    "password,a\n", "a|password\n", "\x1b[1mpassword\n", "user[password]=", "<input name=password ", 'form-data; name="password"\r\n',
    "password={", "password=$(", "token=${", "password=%(", "my_token=/", "my_token:/a,", "sessionid=", "/reset/", "INSERT INTO a (password) VALUES (", "CREATE TABLE a (password",
    "a  password\n", "map[password:", "{password, ", ":password ", "=3D=\n", "\\u0022password", "\\npassword: x", "1\tpassword: ", 'textbox "password" [a]', "<b>password</b> ", "AUTH ", "USER a\nPASS", "a:1:b:c:", "a" * 24 + "\n-----END PRIVATE KEY",
    "<tr><td>", "</td><tr><td>token", "kind: Secret\n", "data:\n a: kind: Secret\n", "['password', ", "hset a b ", "eyJabcdefghi.abcdefghijkl\n",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("part", REPEATED)
def test_no_long_text_takes_long(part: str) -> None:
    """A pattern that took quadratic time would need minutes here, and the limit of the test ends it."""
    redaction, length = Redaction(), 400_000
    for text in (part * (length // len(part)), "a" + part * (length // 2 // len(part)) + "a" * (length // 2)):
        redaction.text(text)
