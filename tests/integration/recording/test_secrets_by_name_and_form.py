"""Names, forms and parameters that give a secret away, in every spelling and place; and what only looks like one."""

# ruff: noqa: E501 - texts of files and URLs have lines of any length

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from agent_cache import AgentCacheSession
from agent_cache.cli.main import main
from agent_cache.recording import Cassette, intercept, record, replay
from agent_cache.resume import Journal
from tests.harness.slow import crossed

S = "Zq9x7Kp2Lm4Tv8Wd3"
HEX = "0123456789abcdef" * 4
ALNUM = "k3Jd82mZq0PxR7vT5nWbYc1LsHf9GaUe4oXi6TqB"


@intercept(name="call")
def call(value: object, **more: object) -> object:
    return value


def written(path: Path, value: object, **more: object) -> str:
    with record(path):
        call(value, **more)
    return path.read_text()


def spellings(name: str) -> list[str]:
    """snake_case, kebab-case, camelCase, PascalCase and SCREAMING_CASE."""
    words = name.split("_")
    camel = words[0] + "".join(map(str.capitalize, words[1:]))
    return [name, name.replace("_", "-"), camel, camel[0].upper() + camel[1:], name.upper()]


NAMES = [
    "code_verifier", "client_assertion", "refresh_token", "device_code", "oauth_verifier", "id_token_hint", "saml_response",
    "authorization_code", "xi_api_key", "set_cookie2", "mcp_session_id",
]  # fmt: skip


@pytest.mark.parametrize("given", NAMES)
def test_a_name_of_a_secret_is_known_in_every_spelling(given: str, path: Path) -> None:
    text = written(
        path,
        [
            {"deep": [{name: S}], "pairs": [(name, S)], name: S.encode(), "text": json.dumps({name: S})}
            for name in spellings(given)
        ],
    )
    assert S not in text
    assert base64.b64encode(S.encode()).decode() not in text


SEVERAL = ("passwords", "api_keys", "access_tokens", "secrets", "tokens", "client_secrets")
FORMS = [lambda one: [one, "x"], lambda one: (one,), lambda one: {one}, lambda one: {"prod": one, "count": 3}]


@pytest.mark.parametrize(("name", "several"), crossed((one for name in SEVERAL for one in spellings(name)), FORMS))
def test_several_secrets_under_one_name_are_secrets(name: str, several: Callable[[str], Any], path: Path) -> None:
    assert S not in written(path, {name: several(S)})
    assert S not in written(path, f"read {name}: {several(S)!r} of it")
    assert f'"{name}":3' in written(path, {name: 3}), "their number is none"


@pytest.mark.parametrize("name", ["otp", "OTP", "totp", "otpCode", "cvv", "CVV2", "card_cvc", "mfa_code", "mfaCode", "passcode", "verification-code", "one_time_code"])  # fmt: skip
def test_a_code_that_is_typed_in_once_is_a_secret(name: str, path: Path) -> None:
    text = written(path, {name: "482913", "deep": {name: 482913}}, line=f"{name}=482913", more=f'x "{name}": "482913"')
    assert "482913" not in text


OAUTH = {
    "form": f"client_id=a&code={S}&grant_type=authorization_code",
    "form, redirect": f"code={S}&redirect_uri=https%3A%2F%2Fshop.test",
    "redirect URI": f"https://shop.test/cb?code={S}&state=xyz",
    "redirect URI, state first": f"https://shop.test/cb?state=xyz&code={S}",
    "redirect URI in a fragment": f"https://shop.test/cb#code={S}&state=xyz",
    "redirect URI of Google": f"https://shop.test/cb?code=4%2F0A{S}&scope=email&state=1",
    "redirect URI of JSON with escapes": f'{{"url": "https://shop.test/cb?code={S}\\u0026state=1"',
    "redirect URI in a URL": f"https://shop.test/?next={quote(f'https://other.test/cb?code={S}&state=1', safe='')}",
    "redirect URI in HTML": f'<a href="https://shop.test/cb?code={S}&amp;state=1">',
    "assertion": f"grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion={S}",
    "curl": f"curl -d grant_type=authorization_code -d code={S} https://shop.test/token",
    "curl with quotes": f"curl --data 'grant_type=authorization_code' --data-urlencode 'code={S}' https://shop.test",
    "JSON": json.dumps({"grant_type": "authorization_code", "code": S}),
    "JSON in a text": "POST " + json.dumps({"grant_type": "authorization_code", "code": S}),
    "repr": repr({"code": S, "code_verifier": S}),
    "call": f"client.exchange(code='{S}', redirect_uri='https://shop.test')",
    "bytes": urlencode({"code": S, "grant_type": "authorization_code"}).encode(),
    "dict": {"code": S, "grant_type": "authorization_code"},
    "dict of a query": {"query": {"code": S, "state": "xyz"}},
    "dict of lists": {"code": [S], "state": ["xyz"]},
    "device": {"device_code": S, "user_code": "WDJB-MJHT", "verification_uri": "https://shop.test/device"},
}


@pytest.mark.parametrize("label", OAUTH)
def test_what_oauth_grants_is_a_secret(label: str, path: Path) -> None:
    text = written(path, OAUTH[label], given=[OAUTH[label]])
    assert S not in text
    assert "WDJB" not in text


KEYS = {
    "E2B": f"e2b_{HEX[:40]}", "Firecrawl": f"fc-{HEX[:32]}", "Jina": f"jina_{HEX[:32]}{ALNUM[:28]}", "ElevenLabs": f"sk_{HEX[:48]}",
    "Pinecone": f"pcsk_3aB4c_{ALNUM}{ALNUM[:20]}", "Notion": f"ntn_{ALNUM}abcdef", "Voyage": f"pa-{ALNUM}_-a", "Fireworks": f"fw_{ALNUM[:24]}",
    "Browserbase": f"bb_live_{ALNUM[:27]}", "Composio": f"ak_{ALNUM[:20]}", "Modal": f"as-{ALNUM[:22]}", "Mem0": f"m0-{ALNUM}", "Cartesia": f"sk_car_{ALNUM[:22]}",
    "Mailgun": f"key-{HEX[:32]}", "Resend": f"re_{ALNUM[:8]}_{ALNUM[:24]}", "Airtable": f"pat{ALNUM[:14]}.{HEX}", "New Relic": f"NRAK-{ALNUM[:27].upper()}",
    "Plaid": "access-sandbox-12345678-1234-1234-1234-1234567890ab", "Heroku": f"HRKU-{ALNUM}", "Netlify": f"nfp_{ALNUM[:36]}", "Daytona": f"dtn_{HEX}",
    "Cal": f"cal_live_{HEX[:32]}", "Google's client secret": f"GOCSPX-{ALNUM[:28]}", "Google's refresh token": f"1//0{ALNUM}", "Google's code": f"4/0A{ALNUM}",
    "Google's session": f"g.a000-{ALNUM}", "Telegram": f"7123456789:AA{ALNUM[:33]}", "Discord": f"MTIzNDU2Nzg5MDEyMzQ1Njc4.GaBcDe.{ALNUM[:38]}", "Fly": f"fm2_{ALNUM}{ALNUM}",
}  # fmt: skip


AROUND = ["{}", "use {} now", "a={};b", '{{"k": "{}"}}', "({})", "\\n{}\\n", "a%20{}", "[{}]"]


@pytest.mark.parametrize("service", KEYS)
def test_a_key_of_a_service_is_known_by_its_form(service: str, path: Path) -> None:
    key = KEYS[service]
    text = written(path, [around.format(key) for around in AROUND])
    assert key[-12:] not in text
    assert key[12:24] not in text


VALUES = [
    f"my-prod-{S}", f"my_{S}", f"your-{S}", "my-prod-9f8e7d6c", "mysupersecret", "thisismySECRET", "SuperSecret", "MY_TOP_SECRET", "topSECRET",
    "changeme-prod-1", f"<prod>{S}", f"%{S}", f"...{S}", "my_app_secret", "swordfishpassword",
]  # fmt: skip
ENVS = [
    "POSTGRES_PASSWORD={}", "export JWT_SECRET={}", "JWT_SECRET='{}'", '"JWT_SECRET": "{}"', "[db]\npassword = {}\n", "docker run -e DB_PASSWORD={} image",
    "ENV API_SECRET={}", "API_SECRET: {}", "curl -H 'X-Api-Key: {}' x", "server=db;Password={};x=y", "postgres://u:{}@db/x", "https://x.test/?password={}",
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
def test_what_somebody_may_use_as_a_secret_is_no_placeholder(value: str, path: Path) -> None:
    lines = []
    for line in ENVS:
        is_quoted = line.endswith(('"', "'")) or not value.startswith(("<", "%"))
        lines.append(line.format(value if is_quoted else value.strip("<>%").replace(">", "-")))
    found = json.loads(written(path, lines).splitlines()[1])["arguments"]["value"]
    assert [line for line in found if "[redacted]" not in line or value in line] == []


PLACEHOLDERS = [
    "your-api-key", "YOUR_API_KEY", "your_secret_key_here", "<your-api-key>", "<token>", "xxx", "XXXXXXXX", "****", "...", "${TOKEN}", "$TOKEN", "{{ token }}", "%TOKEN%", "None",
]  # fmt: skip


@pytest.mark.parametrize(
    "line", ["API_KEY={}", "export API_KEY='{}'", '"smtp_password": "{}"', "curl -H 'X-Api-Key: {}' x"]
)
def test_a_placeholder_stays(line: str, path: Path) -> None:
    assert "redacted" not in written(path, [line.format(value) for value in PLACEHOLDERS])


OTHER_TEXTS = [
    "tokens = ['The', 'quick', 'brown', 'fox']", '{"tokens": ["hello", "##ization", "2024"], "max_tokens": 5, "passwords": 3}x', "secrets:\n  - db_password\n  - api-key\n",
    "code = 404; state = 'failed'", "https://shop.test/?code=US&state=CA", "country_code=a1b2c3d4e5f6&state=x", "exit code: 0, state=done1234567", "status_code=200 grant_type",
    "assert code == 'print(1)', state", "assertion=True", "Erlang/OTP 27 [erts-15.1]", 'otp: "27.1"', "otp=sms", "footprint: 1234567", "hotp=abc", "postcode=123456", "encoded: a1b2c3d4e5",
    "--pin 1234", "pincode: 560001", "passcode required", "mode my-feature-branch-1", "image: my-app-1.2.3", "path=/v3/abcdef0123456789", "fc-cache -fv", "pa-rt of it", "fw_printenv bootcmd123",
    '"password": {"type": "string", "description": "The password 123abc"}, cut', "key-value-0123 store", "pat.py", "api_org_name", "access-control-allow-origin-123",
    "https://example.io/v2/items/0123456789abcdef0123456789abcdef",
]  # fmt: skip
OTHER_VALUES: list[Any] = [
    {"code": "print('x1y2z3')", "language": "python", "state": "running"}, {"code": "CA", "state": "California"}, {"code": 404, "state": "failed"}, {"code": "ERR_NOT_FOUND_42", "state": "x"},
    {"tokens": ["The", "quick", "tokenizer"], "num_tokens": 3, "passwords": 3, "max_passwords": 4}, {"secrets": ["db_password", "api-key"]}, {"secrets": "inherit"}, {"otp": "sms"}, {"otp": 27},
    {"assertion": "x == y1"}, {"device": "code"}, {"country_code": "US", "zip_code": "94107-1234", "pin": "1234"}, {"sig": "def f(x1: int)", "name": "f"}, {"user_code": "U1234567"},
    {"passwords": {"min_length": 8, "policy": "strict"}}, {"session_id": "run-0123456789ab"},
]  # fmt: skip


@pytest.mark.parametrize("text", OTHER_TEXTS)
def test_a_text_that_only_looks_like_a_secret_stays(text: str, path: Path) -> None:
    assert "redacted" not in written(path, text)


@pytest.mark.parametrize("value", OTHER_VALUES, ids=str)
def test_a_value_that_only_looks_like_a_secret_stays(value: Any, path: Path) -> None:
    with record(path):
        call(value)
    with replay(path):
        assert call(value) == value
    assert "redacted" not in path.read_text()


LISTS = [
    f'"api_keys": ["{S}", "b"] and more', f"passwords:\n  - {S}\n  - b\n", f"tokens = ['{S}', 'x1']", f"auth=('bob', '{S}')", f"API_KEYS=a,{S}", f"requests.get(u, auth=HTTPBasicAuth('bob', '{S}'))",
    f"{{'secret': {{'value': '{S}'}}}} failed", f"secrets: {{'{S}'}}", f'data: {{"passwords": ["{S}"], "n": 1}}\n\n', f"<apiKeys><apiKey>{S}</apiKey></apiKeys>", f"log {{b'secret': [b'{S}']}}",
    f"helm install --set db.password={S}", f"kubectl create secret generic x --from-literal=password={S}", f"Set-Cookie2: sid={S}; Version=1", f"https://a.test/x?sv=1&amp;sig={S}{S}",
    f'{{"u": "https://a.test/x?sv=1\\u0026sig={S}"', quote(quote(f"password={S}", safe=""), safe=""), f"xi-api-key: {S}",
]  # fmt: skip


@pytest.mark.parametrize("text", LISTS)
def test_a_list_or_a_dict_that_is_assigned_in_a_text_has_no_secret(text: str, path: Path) -> None:
    assert S not in written(path, text, raw=text.encode(), inside=[{"log": text}])


P = "Tr0ub4dor"
B64 = base64.b64encode(P.encode()).decode()
PART = 'Content-Disposition: form-data; name="password"'
TYPED: list[Any] = [
    *({"element": f"{one} field", "ref": "e12", "text": P} for one in ("Password", "Passcode input")), {"selector": "input[name=password]", "value": P}, {"selector": "#password", "text": P},
    {"label": "Password", "value": P}, {"id": "password", "value": P}, {"ParameterKey": "DBPassword", "ParameterValue": P}, {"outputs": {"db": {"value": P, "type": "string", "sensitive": True}}},
    {"db_password": {"type": "string", "value": P}}, {"name": "sid", "value": P, "domain": "shop.test", "httpOnly": True}, {"kty": "RSA", "n": "abc", "d": S}, {"SecretString": P}, {"SecretBinary": B64},
    {"columns": ["user", "password"], "rows": [["bob", P], ["ann", f"{P}2"]]}, {"fields": ["id", "api_key", "x"], "data": [[1, S, "y"]]}, {"user[password]": P, "user[password_confirmation]": P, "auth[tokens][]": [S]},
    *(f"--b{end}{PART}{more}{end}{end}{P}{end}--b--" for end in ("\r\n", "\n", "\\r\\n") for more in ("", f"{end}Content-Type: text/plain")), f"a=1&user[password]={P}&b=2", f"user%5Bpassword%5D={P}&b=2",
    f'<input type="password" id="x" value="{P}">', f'<input name="csrf_token" type="hidden" value="{S}">', f'<meta name="csrf-token" content="{S}">', f"{{&quot;password&quot;:&quot;{P}&quot;}}",
    f"<key>api_key</key><string>{S}</string>", f"<member><name>password</name><value><string>{P}</string></value></member>", f'variable "db_password" {{\n  default = "{P}"\n}}', f"{{User:bob Password:{P}}}",
    f"await page.fill('#password', '{P}')", f"await page.getByRole('textbox', {{ name: 'Password' }}).fill('{P}');", f"find_element(By.ID, 'password').send_keys('{P}')", f'password: Some("{P}")', f'#define PASSWORD "{P}"',
    f"CREATE USER bob WITH PASSWORD '{P}'", f"ALTER ROLE bob PASSWORD '{P}'", f"CREATE USER 'bob'@'%' IDENTIFIED BY '{P}'", f"identified with caching_sha2_password by '{P}'", f"jdbc:oracle:thin:scott/{P}@//db:1521/x",
    f"user,password,api_key\nbob,{P},{S}\nann,{P},{S}", f"id\tuser\tpassword\n1\tbob\t{P}\n", f"| user | password |\n|---|---|\n| bob | {P} |\n", f" user | password \n------+----------\n bob  | {P}\n(1 row)", f"+----+\n| a | password  |\n+----+\n| b | {P} |\n+----+",
    f"\x1b[32mpassword\x1b[0m={P}", f"\x1b[33msk-{S}{S}\x1b[0m", f"[password: {P}]", f"(token: {S})", f"password -> {P}", f"password\t{P}", f"Temporary password: {P}", f"Password for bob: {P}", f"Incorrect API key provided: {S}.",
    f"Login failed for user bob with password {P}", f"curl -b 'session={S}' x", f"echo {P} | sudo -S ls", f"echo 'bob:{P}' | chpasswd", f"openssl rsa -passin pass:{P}", f"unzip -P {P} a.zip", f"7z x -p{P} a.7z", f"ldapsearch -D cn=a -w {P}",
    f"smbclient //a/b -U bob%{P}", f"http -a bob:{P} x", ["unzip", "-P", P, "a.zip"], f"keytool -storepass {P}", f"root:$6$salt${ALNUM}{S}:19000:0:", f"bob:$apr1$abcdefgh${S}", f"Private-Lines: 1\n{S}\nPrivate-MAC: {S[::-1]}", f"shop.test\tFALSE\t/\tTRUE\t0\tsid\t{S}",
    f"https://api.openweathermap.org/data/2.5/weather?q=Oslo&appid={S}", f"pi_3MtwBwLkdIwHu7ix28a3_secret_{S}", f"https://shop.test/a;jsessionid={S}?x=1", f"PHPSESSID={S}",
    *({name: S} for name in ("Ocp-Apim-Subscription-Key", "DD-APPLICATION-KEY", "x-functions-key", "NOTION_KEY", "openaiKey", "ssh_key", "session_key", "user_pw", "wpa_psk", "password_hash", "client_secret_value", "private_key_pem", "seed_phrase")),
    {"linear_key": f"1{S}"}, f"OPENAI_KEY={S}",
]  # fmt: skip


@pytest.mark.parametrize("value", TYPED, ids=lambda value: str(value)[:40])
def test_a_secret_that_tools_pages_and_databases_show_is_not_written_down(value: Any, path: Path) -> None:
    text = written(path, value, raw=value.encode() if isinstance(value, str) else None)
    assert not any(one in text for one in (S, P, B64))
    assert "[redacted]" in text


@pytest.mark.parametrize("text", ["Your verification code is 482913", "**Login code:** 482913", "Your OTP is 482913.", "G-482913 is your Google verification code."])  # fmt: skip
def test_a_code_that_a_message_has_is_a_secret(text: str, path: Path) -> None:
    assert "482913" not in written(path, text)


OTHERS: list[Any] = [
    {"element": "Search field", "text": "shoes1"}, {"id": "call_1", "value": "x1"}, {"label": "Quantity", "value": "12a"}, {"sensitive": False, "value": "x1"}, {"columns": ["user", "page"], "rows": [["bob1", "p2"]]},
    [["key", "page"], ["name", "a1"]], {"d": "x1y2z3x1y2z3", "k": "x1y2z3x1y2z3"}, {"primary_key": "a1b2c3d4", "cache_key": "0f9e8d7c6b", "partition_key": "user#12", "public_key": "x1y2z3a4", "sort_key": "date#2024"},
    "user, password, page\nsome prose comes here, x1", "def f(user, password, x1):\n    return g(user, password1, x2)", "| token | str |\n|---|---|\n| password | string |", "\x1b[32mok\x1b[0m 12 passed", "\x1b[2J of a screen", "\x1b[ x", "key -> value1",
    '<input type="password" name="pw">', '<input name="page" value="12a">', '<meta name="viewport" content="width=1024">', "the exit code is 1234, see error code: 5012", "Status code: 404", "items[0]=x1y2", "{User:bob Age:12a}", "error: invalid token: x1",
    "page.fill('#name', 'bob1')", "echo done1 | sudo tee /etc/motd", "zip -r a1.zip b", "{code: E1234}",
]  # fmt: skip


@pytest.mark.parametrize("value", OTHERS, ids=lambda value: str(value)[:40])
def test_what_stands_in_the_same_places_and_is_no_secret_stays(value: Any, path: Path) -> None:
    assert "redacted" not in written(path, value)


# Other places of a recording


def test_the_label_of_a_recording_has_no_secret(path: Path) -> None:
    for label in (f"azure https://u:{S}@models.test/v1?api_key={S}", f"sk-{S}", f"gpt?api-key={S}"):
        with record(path, mode="rewrite", model=label):
            call(1)
        assert S not in path.read_text()
        assert S not in (Cassette.load(path).model or "")
    with record(path, mode="rewrite", model="gpt-5.2-mini"):
        call(1)
    assert Cassette.load(path).model == "gpt-5.2-mini"


def test_the_command_finds_and_removes_the_secret_of_a_label(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with record(path, model="LABEL"):
        call(1)
    path.write_text(path.read_text().replace("LABEL", f"https://u:{S}@models.test"))
    for command in (["redact", "--check"], ["verify"]):
        assert main(["cassette", *command, str(path)]) == 1
    assert main(["cassette", "redact", str(path)]) == 0
    assert S not in path.read_text()
    assert main(["cassette", "redact", "--check", str(path)]) == 0
    assert main(["cassette", "verify", str(path)]) == 0
    assert S not in capsys.readouterr().out


SEVERAL: dict[str, Any] = {
    "passwords": [S], "codeVerifier": S, "hook": f"https://hooks.slack.com/services/T01/B01/{S}", "form": {"code": S, "grant_type": "x"}, "env": f"JWT_SECRET=my-{S}", "url": f"postgres://u:p/{S}@h",
}  # fmt: skip


@pytest.mark.parametrize("key", [None, b"k" * 32])
async def test_no_journal_and_no_checkpoint_has_a_secret(key: bytes | None, tmp_path: Path) -> None:
    if key is not None:
        pytest.importorskip("cryptography", reason="a journal is encrypted by it")

    @intercept(name="pay", kind="write")
    async def pay(value: object) -> object:
        if value == "fail":
            raise ValueError(SEVERAL)
        return value

    async with AgentCacheSession("run", journal=Journal(tmp_path, key=key)) as session:
        await pay(SEVERAL)
        with pytest.raises(ValueError, match="passwords"):
            await pay("fail")
        await session.checkpoint(SEVERAL["hook"], {"codes": SEVERAL})
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert S.encode() not in file.read_bytes(), file
