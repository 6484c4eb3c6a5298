"""Files, commands and answers that agents read every day: no secret in them is written down, and nothing else is lost.

The secrets are made here, new ones for each test.
"""

# ruff: noqa: E501 - files, commands and URLs have lines of any length

from __future__ import annotations

import base64
import gzip
import json
import random
import string
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from urllib.parse import quote

import pytest

from agent_cache.recording import Redaction
from agent_cache.recording.outcomes import encode
from benchmarks.recorded_runs import RETAIL_SETS, SHELL_SETS, data_directory
from tests.harness.batches import in_batches

ALPHANUMERIC = string.ascii_letters + string.digits


class Secrets:
    """Makes secrets, and remembers them."""

    def __init__(self, seed: str) -> None:
        self._chance = random.Random(seed)
        self.made: list[str] = []

    def word(self, length: int = 24, characters: str = ALPHANUMERIC) -> str:
        made = "".join(self._chance.choices(characters, k=length - 2)) + "a7"
        self.made.append(made)
        return made

    def hexadecimal(self, length: int = 32) -> str:
        return self.word(length, "0123456789abcdef")

    def password(self) -> str:
        """As people choose them: a word and a digit."""
        made = self._chance.choice(["hunter", "swordfish", "correcthorse", "letmein"]) + str(
            self._chance.randrange(1000)
        )
        self.made.append(made)
        return made

    def base64(self, text: str = "") -> str:
        made = base64.b64encode((text or self.word()).encode()).decode()
        self.made.append(made)
        return made


def pem(kind: str, body: str) -> str:
    return f"-----BEGIN {kind}-----\n{body}\n-----END {kind}-----"


FILES: dict[str, Callable[[Secrets], str]] = {
    ".env": lambda s: f"""# production
DEBUG=true
DATABASE_URL=postgres://shop:{s.password()}@db.internal:5432/shop
OPENAI_API_KEY={s.word()}
export STRIPE_SECRET_KEY="{s.word()}"
SMTP_PASS='{s.password()}'
SLACK_BOT_TOKEN={s.word()}
MY_APP_PASSWORD={s.password()} # rotate
AWS_SECRET_ACCESS_KEY={s.word(38)}/+
JWT_SECRET={s.hexadecimal()}
PORT=8080""",
    ".env in a shell line": lambda s: f"PGPASSWORD={s.password()} psql -h db -U shop -c 'select 1'",
    "aws credentials": lambda s: f"""[default]
aws_access_key_id = AKIA{s.word(16, string.ascii_uppercase).upper()}
aws_secret_access_key = {s.word(40)}
aws_session_token={s.word(80)}
region = eu-west-1

[staging]
aws_secret_access_key = {s.word(40)}""",
    "ini": lambda s: f"[database]\nuser = shop\npassword = {s.password()}\nhost = db.internal",
    "settings.py": lambda s: f"""import os

DEBUG = False
SECRET_KEY = "django-insecure-{s.word(50, ALPHANUMERIC + '!@#$%^&*(-_=+)')}"
DATABASES = {{
    'default': {{
        'ENGINE': 'django.db.backends.postgresql',
        'USER': 'shop',
        'PASSWORD': '{s.password()}',
        'HOST': os.environ.get("DB_HOST", "localhost"),
    }}
}}
EMAIL_HOST_PASSWORD = '{s.password()}'
STRIPE_API_KEY: str = "{s.word()}"
TIMEOUT = 30""",
    "TOML": lambda s: f"""[server]
port = 8080
api_key = "{s.word()}"
[database]
password = '{s.password()}'
db-password="{s.password()}"
[tool.x]
token = \"\"\"{s.word()}\"\"\"""",
    "YAML": lambda s: f"""version: "3"
services:
  db:
    image: postgres:16
    environment:
      POSTGRES_USER: shop
      POSTGRES_PASSWORD: {s.password()}
      - MYSQL_ROOT_PASSWORD={s.password()}
  app:
    password: "{s.password()}"
    api-key: '{s.word()}'
    smtp: {{user: shop, password: {s.password()}}}
    token: {s.word()} # of the bot
    tls:
      private_key: |
        {s.word(64)}
        {s.word(64)}
      port: 443""",
    "Kubernetes deployment": lambda s: f"""env:
- name: LOG_LEVEL
  value: info
- name: DB_PASSWORD
  value: {s.password()}
- name: API_KEY
  value: "{s.word()}"
""",
    "Kubernetes secret": lambda s: f"""apiVersion: v1
kind: Secret
metadata:
  name: shop
data:
  db_password: {s.base64()}
  api-key: {s.base64()}
type: Opaque""",
    "kubeconfig": lambda s: f"""users:
- name: admin
  user:
    client-key-data: {s.base64(pem("RSA PRIVATE KEY", s.word(64)))}
    token: {s.word(40)}
contexts:
- name: here""",
    "XML": lambda s: f"""<settings><servers><server>
<id>central</id>
<username>shop</username>
<password>{s.password()}</password>
<ns:apiKey kind="x">{s.word()}</ns:apiKey>
</server></servers>
<appSettings><add key="ApiKey" value="{s.word()}"/><property name="db.password" value="{s.password()}"/></appSettings>
<input type="hidden" name="csrf_token" value="{s.word()}">
</settings>""",
    "properties": lambda s: f"spring.datasource.username=shop\nspring.datasource.password={s.password()}\nserver.port=8080",
    "docker inspect": lambda s: json.dumps(
        [{"Config": {"Env": ["PATH=/usr/bin", f"DB_PASSWORD={s.password()}", f"API_TOKEN={s.word()}"], "Cmd": ["run"]}}],
        indent=2,
    ),
    "kubectl -o json": lambda s: json.dumps(
        {"spec": {"env": [{"name": "PORT", "value": "80"}, {"name": "DB_PASSWORD", "value": s.password()}]}}
    ),
    "kubectl -o json, cut off": lambda s: '..."env": [{"name": "PORT", "value": "80"}, {"name": "API_KEY", "value": "'
    + s.word()
    + '"}, {"na',
    "docker config": lambda s: json.dumps({"auths": {"ghcr.io": {"auth": s.base64()}}}, indent=2),
    "HAR": lambda s: json.dumps({"headers": [{"name": "Accept", "value": "*/*"}, {"name": "X-Auth-Token", "value": s.word()}]}),
    "npmrc": lambda s: f"registry=https://npm.test/\n//npm.test/:_authToken={s.word()}\n//npm.test/:_password={s.base64()}",
    "netrc": lambda s: f"machine api.test login shop password {s.password()}\nmachine b.test\n  login x\n  password {s.password()}",
    "pypirc": lambda s: f"[pypi]\nusername = __token__\npassword = pypi-{s.word(60)}",
    "git credentials": lambda s: f"https://shop:{s.word()}@git.test\nhttps://{s.word(40)}@github.com/a/b.git",
    "PHP": lambda s: f"define('DB_PASSWORD', '{s.password()}');\n$config = ['user' => 'shop', 'password' => '{s.password()}'];",
    "JavaScript": lambda s: f"""const client = new Client({{ host: 'db', password: '{s.password()}', apiKey: "{s.word()}" }});
process.env.API_KEY = '{s.word()}';
const token = `{s.word()}`;""",
    "Go": lambda s: f'password := "{s.password()}"\ncfg := Config{{User: "shop", Password: "{s.password()}"}}',
    "Python": lambda s: f"""client = Client(api_key="{s.word()}", timeout=3)
connect(host='db', password='{s.password()}')
os.environ["API_KEY"] = "{s.word()}"
os.environ.setdefault("GITHUB_TOKEN", "{s.word()}")
headers = [('Authorization', 'Bearer {s.word()}'), (b'cookie', b'session={s.word()}')]""",
    "Dockerfile": lambda s: f"FROM python:3.12\nENV API_KEY={s.word()}\nENV DB_PASSWORD {s.password()}\nARG NPM_TOKEN={s.word()}",
    "PowerShell and cmd": lambda s: f'$env:API_KEY = "{s.word()}"\nset DB_PASSWORD={s.password()}\nsetx API_TOKEN {s.word()}',
    "Terraform": lambda s: f'db_password = "{s.password()}"\nresource "x" "y" {{\n  master_password = "{s.password()}"\n}}',
    "connection string": lambda s: f"Server=db;Database=shop;User Id=shop;Password={s.password()};Encrypt=true",
    "JDBC": lambda s: f"jdbc:postgresql://db/shop?user=shop&password={s.password()}&ssl=true",
    "storage account": lambda s: f"DefaultEndpointsProtocol=https;AccountName=shop;AccountKey={s.word(86)}==;EndpointSuffix=x",
    "curl": lambda s: f"""curl -sS -X POST https://api.test/v1/orders \\
  -H 'Content-Type: application/json' -H 'X-Auth-Token: {s.word()}' -H "Authorization: Bearer {s.word()}" \\
  -H "x-api-key: {s.word()}" -d '{{"password": "{s.password()}"}}'""",
    "curl -u": lambda s: f"curl -u shop:{s.password()} https://a.test; curl --user 'ann:{s.password()}' https://b.test",
    "options": lambda s: f"tool --user shop --password {s.password()} --api-key={s.word()} --token '{s.word()}' --verbose run",
    "commands": lambda s: f"""sshpass -p {s.password()} ssh a
redis-cli -h x -a {s.word()} ping
docker login -u shop -p {s.word()} ghcr.io
mysql -u root -p{s.password()} shop
curl -H X-Auth-Token:{s.word()} https://x.test
openssl enc -aes-256-cbc -password {s.word()} -in x""",
    "Android": lambda s: f'<resources><string name="api_key">{s.word()}</string></resources>',
    "table": lambda s: f"| name | value |\n| --- | --- |\n| user | shop |\n| password | `{s.password()}` |",
    "mail settings": lambda s: json.dumps({"auth": {"user": "shop", "pass": s.password()}}),
    "HTTP": lambda s: f"""GET / HTTP/1.1
Host: api.test
Authorization: Basic {s.base64()}
Cookie: theme=dark; session={s.word()}
X-Api-Key: {s.word()}
Accept: */*

HTTP/1.1 200 OK
Set-Cookie: sid={s.word()}; HttpOnly""",
    "form": lambda s: f"grant_type=password&username=shop&password={s.password()}&client_secret={s.word()}&scope=read",
    "percent-encoded form": lambda s: f"body=%7B%22password%22%3A%22{s.password()}%22%2C%22page%22%3A2%7D&next=%2Fhome",
    "percent-encoded query": lambda s: f"https://x.test/login?next=%2Fcb%3Ftoken%3D{s.word()}%26page%3D2",
    "base64 in a text": lambda s: f"the config is {base64.b64encode(json.dumps({'password': s.base64(), 'a': 1}).encode()).decode()} .",
    "data URL": lambda s: 'src="data:text/plain;base64,'
    + base64.b64encode(f"API_KEY={s.base64()}\nPORT=80".encode()).decode()
    + '" and data:application/json,'
    + quote(json.dumps({"token": s.word()})),
    "PGP": lambda s: "key:\n" + pem("PGP PRIVATE KEY BLOCK", f"Version: 1\n\n{s.word(64)}\n{s.word(64)}") + "\nend",
    "PEM": lambda s: pem("PRIVATE KEY", s.word(64)) + "\n" + pem("OPENSSH PRIVATE KEY", s.word(64)) + "\n",
    "PEM in one line": lambda s: json.dumps({"key": pem("EC PRIVATE KEY", s.word(64))})[:-3],
    "presigned URLs": lambda s: f"""https://b.s3.amazonaws.com/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={s.word(20)}%2F20260101&X-Amz-Date=20260101T000000Z&X-Amz-Expires=3600&X-Amz-Signature={s.hexadecimal(64)}
https://storage.googleapis.com/b/o?X-Goog-Credential={s.word()}&X-Goog-Signature={s.hexadecimal(64)}
https://a.blob.core.windows.net/c/b?sv=2022-11-02&se=2026&sr=b&sp=r&sig={s.word(40)}%3D
https://d.cloudfront.net/x?Expires=1&Signature={s.word(60)}&Key-Pair-Id=K1""",
    "webhooks": lambda s: f"""https://hooks.slack.com/services/T{s.word(8)}/B{s.word(8)}/{s.word()}
https://discord.com/api/webhooks/1234567890/{s.word(68)}
https://acme.webhook.office.com/webhookb2/{s.word(36)}/IncomingWebhook/{s.hexadecimal()}/{s.word(36)}
https://api.telegram.org/bot12345:{s.word(35)}/sendMessage""",
    "names": lambda s: json.dumps(
        {
            "smtp_password": s.password(), "my_api_key": s.word(), "bot_token": s.word(), "db_pass": s.password(),
            "auth": s.word(), "api key": s.word(), "dbPassword": s.password(), "openaiApiKey": s.word(),
            "nested": {"auth": ["shop", s.password()]}, "page": 2,
        }
    ),
    "API key: on a line": lambda s: f"Here you are.\nAPI key: {s.word()}\nAccess Token: {s.word()}\nsecret key = {s.word()}\nBye.",
    "list of arguments": lambda s: f"""Command '['mysql', '--user', 'shop', '--password', '{s.password()}', 'db']' returned non-zero
{json.dumps(["tool", "--api-key", s.word(), "--verbose"])} and ['mysql', '-u', 'root', '-p{s.password()}']
['sshpass', '-p', '{s.password()}', 'ssh', 'a'] ['docker', 'login', '-u', 'x', '-p', '{s.word()}', 'ghcr.io']
('redis-cli', '-h', 'x', '-a', '{s.word()}') ["curl", "-u", "bob:{s.password()}", "https://x.test"]
[b'tool', b'--token', b'{s.word()}']""",
    "split URL": lambda s: f"SplitResult(scheme='https', netloc='bob:{s.password()}@shop.test', path='/x', query='page=2', fragment='')",
    "validation error": lambda s: f"""3 validation errors for Settings
db.password
  Input should be a valid integer, unable to parse string as an integer [type=int_parsing, input_value='{s.password()}', input_type=str]
    For further information visit https://errors.pydantic.dev/2.12/v/int_parsing
port
  Input should be a valid integer [type=int_parsing, input_value='eighty1', input_type=str]
api_keys.0.api_key
  Input should be a valid integer [type=int_parsing, input_value='{s.word()}', input_type=str]""",
    "validation error, cut in the middle": lambda s: f"""1 validation error for Settings
user
  Field required [type=missing, input_value={{'password': '{s.password()}',... '{s.word()}'}}, input_type=dict]""",
    "errors of validation": lambda s: json.dumps(
        [
            {"type": "int_parsing", "loc": ["body", "db", "password"], "msg": "no integer", "input": s.password()},
            {"type": "int_parsing", "loc": ["api_key"], "msg": "no integer", "input": s.word()},
            {"type": "int_parsing", "loc": ["body", "port"], "msg": "no integer", "input": "eighty1"},
        ]
    ),
    "errors of validation as they are printed": lambda s: repr(
        [
            {"type": "int_parsing", "loc": ("body", "db", "password"), "msg": "no integer", "input": s.password(), "url": "https://e.test"},
            {"type": "int_parsing", "loc": ("api_key",), "msg": "no integer", "input": s.word()},
            {"type": "int_parsing", "loc": ("body", "port", 1), "msg": "no integer", "input": "eighty1"},
        ]
    ),
    "sentences": lambda s: f"""The password is {s.password()}. The admin password for the database is `{s.password()}`, I think.
Hello, my api key: {s.word()} and thanks. Your password's {s.password()}! My access token is {s.word()}, use it.
**Password:** `{s.password()}`
**API key:** {s.word()}
I changed the password to "{s.password()}" and the API key {s.word(32)} still works.""",
    "numbered lines": lambda s: f"[File: settings.py]\n1:import os\n2:API_KEY = '{s.word()}'\n3:PASSWORD = \"{s.password()}\"",
}  # fmt: skip

SHAPES = {
    "xai-": 80, "tvly-": 32, "hvs.": 90, "ya29.": 120, "whsec_": 32, "r8_": 37, "pplx-": 48, "lsv2_pt_": 43, "sk-": 48,
    "sk-ant-api03-": 95, "sk-proj-": 120, "sk_live_": 24, "rk_test_": 24, "AIza": 35, "ghp_": 36, "github_pat_": 82,
    "glpat-": 20, "xoxb-": 40, "hf_": 34, "gsk_": 52, "npm_": 36, "pypi-": 80, "dckr_pat_": 27, "shpat_": 0, "glsa_": 0,
    "dop_v1_": 0, "nvapi-": 64, "lin_api_": 40, "figd_": 40, "PMAK-": 0, "sbp_": 0, "tskey-api-": 30,
}  # fmt: skip
FIXED = {"glsa_": (32, 8), "dop_v1_": (64,), "PMAK-": (24, 34), "sbp_": (40,), "shpat_": (32,)}


def token_of(prefix: str, secrets: Secrets) -> str:
    if prefix in FIXED:
        joined = "-" if prefix.endswith("-") else "_"
        return prefix + joined.join(secrets.hexadecimal(length) for length in FIXED[prefix])
    return prefix + secrets.word(SHAPES[prefix])


def written(text: object) -> str:
    """What a recording writes of a value."""
    redaction = Redaction()
    raw = encode({"result": text})
    return encode(redaction.apply({"result": text})).decode() if redaction.may_change(raw) else raw.decode()


@pytest.mark.parametrize(
    "around", [str, lambda text: json.dumps({"output": text}), lambda text: {"stdout": text, "code": 0}]
)
@in_batches("kind", FILES)
def test_no_secret_of_a_file_is_written_down(kind, around):
    secrets = Secrets(kind)
    text = written(around(FILES[kind](secrets)))
    assert secrets.made
    left = [secret for secret in secrets.made if secret in text or quote(secret, safe="") in text]
    assert not left, f"{left} in {text}"


@pytest.mark.parametrize(
    "around", ["{}", "use {} now", "a={};b", '{{"k": "{}"}}', "x/{}", "({})", "\\n{}\\n", "a%20{}"]
)
@in_batches("prefix", SHAPES)
def test_no_token_of_a_known_form_is_written_down(prefix, around):
    secrets = Secrets(prefix)
    text = written(around.format(token_of(prefix, secrets)))
    assert not any(secret in text for secret in secrets.made), text


KEPT = {
    ".env": ["DEBUG=true", "PORT=8080", "DATABASE_URL=postgres://shop:", "@db.internal:5432/shop", "# production"],
    "aws credentials": ["[default]", "region = eu-west-1", "[staging]"],
    "settings.py": ["import os", "'USER': 'shop'", 'os.environ.get(\\"DB_HOST\\", \\"localhost\\")', "TIMEOUT = 30"],
    "YAML": ["POSTGRES_USER: shop", "image: postgres:16", "port: 443", "user: shop"],
    "Kubernetes deployment": ["value: info", "name: API_KEY"],
    "XML": ["<username>shop</username>", "<id>central</id>", "</server></servers>"],
    "docker inspect": ["PATH=/usr/bin", "run"],
    "curl": ["Content-Type: application/json", "https://api.test/v1/orders", "-d '"],
    "options": ["--user shop", "--verbose run"],
    "HTTP": ["Host: api.test", "Accept: */*", "200 OK"],
    "percent-encoded form": ["%22page%22", "next=%2Fhome"],
    "presigned URLs": ["X-Amz-Expires=3600", "X-Amz-Date=20260101T000000Z", "sp=r", "Key-Pair-Id=K1"],
    "names": ["page"],
    "list of arguments": ["'--user', 'shop'", "'db'", "--verbose", "'ssh', 'a'", "ghcr.io", "https://x.test"],
    "split URL": ["bob:", "@shop.test", "page=2"],
    "validation error": ["db.password", "eighty1", "int_parsing"],
    "errors of validation": ["eighty1"],
    "errors of validation as they are printed": ["eighty1", "https://e.test"],
    "sentences": ["The admin password for the database is", "I think.", "and thanks.", "use it.", "still works."],
}


@pytest.mark.parametrize("kind", KEPT)
def test_what_stands_around_a_secret_stays(kind):
    text = written(FILES[kind](Secrets(kind)))
    assert not [part for part in KEPT[kind] if part not in text], text


def test_a_file_is_the_same_when_it_is_redacted_again():
    for kind, make in FILES.items():
        once = Redaction().text(make(Secrets(kind)))
        assert Redaction().text(once) == once, kind


# What is no secret


TOP = [{"token": "Hi!7", "logprob": -1.3, "bytes": None}]
LOGPROBS = {"logprobs": {"content": [{"token": "Hello", "logprob": -0.31, "bytes": [72], "top_logprobs": TOP}]}}
PROPERTIES = {
    "password": {"type": "string", "description": "The user's password", "minLength": 8},
    "api_key": {"type": ["string", "null"], "description": "a key"},
    "token": {"anyOf": [{"type": "string"}, {"type": "null"}], "title": "Token"},
    "auth": {"$ref": "#/$defs/Auth"},
    "secret": {"type": "object", "properties": {"value": {"type": "string"}}},
}
PARAMETERS = {"type": "object", "properties": PROPERTIES, "required": ["password", "token"]}
SCHEMA = {"type": "function", "function": {"name": "login", "parameters": PARAMETERS}}
INNOCENT = {
    "logprobs": LOGPROBS,
    "logprobs as a text": json.dumps(LOGPROBS),
    "logprobs in an event stream": f"data: {json.dumps(LOGPROBS)}\n\ndata: [DONE]\n\n",
    "tool schema": SCHEMA,
    "tool schema as a text": json.dumps(SCHEMA, indent=2),
    "usage": {"input_tokens": 3, "cost_per_token": 0.5, "max_token": 5, "eos_token": "</s>", "pad_token": "<pad>"},
    "pages": {"next_page_token": "CAUQAA7", "continuation_token": "abcDEF123456", "nextToken": "abcDEF123456"},
    "types": "def login(user: str, password: str, token: str | None = None) -> bool: ...",
    "program": """password = getpass.getpass()
token = request.headers.get("Authorization")
api_key = os.environ["OPENAI_API_KEY"]
client = Client(api_key=api_key, token=self.token, password=password)
if token == "x" or password != other:
    raise ValueError("password: wrong")
self.secret = secret
token = self.token2
tokens = text.split()
token = tokens[0]
for token in tokenizer: pass
TOKEN = "token"
""",
    "placeholders": """API_KEY=
API_KEY=<your-api-key>
API_KEY=${API_KEY}
password: ${DB_PASSWORD}
api_key: "{{ vault_key }}"
curl -u $USER:$PASS https://x.test
--token <TOKEN>
Authorization: $HEADER
""",
    "help": """  --password PASSWORD  the password to use
  --token TOKEN        a token; use --token to set it
  -u, --user NAME:PASSWORD""",
    "prose": "The basic authentication scheme and bearer authentication need a password. Forgot password? Reset your password: "
    "click here. A secret: be kind. Your token is valid. The author: Ann. Passing tests: 5. compass: north",
    "sentences": """The password is base64-encoded, and the token is sha256 hashed. Your password is too short: 8 characters.
The password is case-sensitive. The API key is invalid. My token is null. The secret is out. The password is required
The password for user1 is wrong. Set the password to something else. The token for the next page is page-token-2.
The password was changed on 2026-01-01. The api key is 12 months old. The password is utf-8. The token is 550e8400-e29b-41d4-a716-446655440000
The password is /run/secrets/db1. My password: ${DB_PASSWORD1}. the password: ann@x1.example""",
    "addresses": ["mailto:ann1@example.org", "from:ann1@example.org", "npm:react18@18.2.0", "nginx:1.25@sha256:ab12", "ann@example.org",
                  "see bob:x1@example.org there", "shop.test:8080"],
    "arguments": [["mkdir", "-p", "dir1"], ["mysql", "-p", "shop1"], ["tool", "--token"], ["tool", "--password", "-v1"], ["-u", "bob:x1"],
                  ["tool", "-p", "--password", "PASSWORD"], ["ssh", "-p", "2222", "host1"]],
    "options in a program": """@click.option("--token", "github_token")
@click.option("--api-key", "api_key", help="the key1")
parser.add_argument("-p", "--password", "-w", help="the password1")""",
    "validation error": """1 validation error for Settings
port
  Input should be a valid integer [type=int_parsing, input_value='eighty1', input_type=str]
password
  Field required [type=missing, input_value={'port': 80, 'n... 'x'}, input_type=dict]""",
    "dig": "; COOKIE: 69c2ac40fcdaba3c (echoed)",
    "env": "PWD=/\nOLDPWD=/home/ann\nHOME=/root\nSHLVL=0",
    "shell": 'pwd=$(dirname $(which python)) && cd "$pwd"',
    "terminfo": "rxvt-basic\n./usr/lib/terminfo/r/rxvt-unicode",
    "identifiers": "sk-learn-based-model task-12345678901234567890 hf_transformers_version pk_fields EXOTIC basic-auth-plugin",
    "hashes": "d41d8cd98f00b204e9800998ecf8427e 0b9c2625dc21ef05f6ad4ddf47c5f203837aa32c sha256:" + "ab12" * 16,
    "ids": {"id": "call_abc123DEF456ghi789JKL012", "request": "req_011CQ8vS7wQkCxZzzzzzzzzz", "uuid": "123e4567-e89b-12d3-a456-426614174000"},
    "messages": {"forgot_password": "Forgot your password?", "reset_password": "Reset it here", "has_token": True, "tests_pass": 12},
    "base64 of a picture": base64.b64encode(bytes(random.Random(3).randbytes(30_000))).decode(),
    "percent-encoded text": "https://x.test/?q=a%20b&r=%C3%A9t%C3%A9&page=2",
    "key and value": [{"name": "color", "value": "blue"}, {"key": "Environment", "value": "prod"}],
    "commands": "mysql -u root -p\nmysql -u root -h db shop\nredis-cli -h x -p 6379 ping\ngcloud auth login -q | tee -p a1",
    "tables": "| token | str |\n| password | string | the password |\n| pass | 12/14 |",
    "docker run": "docker run -u 1000:1000 -e MODE=fast image",
}  # fmt: skip


@pytest.mark.parametrize("kind", INNOCENT)
def test_what_is_no_secret_stays_as_it_is(kind):
    assert json.loads(written(INNOCENT[kind])) == {"result": INNOCENT[kind]}


def test_the_default_of_a_schema_may_be_a_secret():
    secret = Secrets("schema").word()
    schema = {"properties": {"api_key": {"type": "string", "default": secret}}}
    assert secret not in written(schema)


def recorded_calls() -> Iterator[dict[str, object]]:
    for name in (*RETAIL_SETS, *SHELL_SETS):
        with gzip.open(Path(data_directory(), f"{name}.jsonl.gz"), "rt", encoding="utf-8") as file:
            for line in file:
                yield from json.loads(line)["calls"]


# In tasks of "capture the flag" the passwords of programs are the subject, and secrets of course.
PASSWORDS_IN_TASKS = ("jU5t_a_sna_3lpm1dg347_u_4_m0r846", "A:4@r%uL`M-^M0c0AbcM-MFE07b34c`_6N")


def test_nothing_of_one_in_twenty_four_recorded_calls_of_agents_is_redacted():
    nothing_is_redacted(islice(recorded_calls(), 0, None, 24))


@pytest.mark.slow
def test_nothing_of_recorded_runs_of_agents_is_redacted():
    nothing_is_redacted(recorded_calls())


def nothing_is_redacted(calls: Iterable[dict[str, object]]) -> None:
    redaction = Redaction()
    changed = []
    for call in calls:
        for part in (call["args"], call["result"]):
            if redaction.may_change(encode(part)) and redaction.apply(part) != part:
                changed.append(json.dumps(part))
    assert len(changed) < 10
    assert not [text for text in changed if not any(json.dumps(one)[1:-1] in text for one in PASSWORDS_IN_TASKS)]


# Time


REPEATED = [
    "eyJ-", "sk-", "eyJ.", "://", "a:", "password=", "password: ", "<token>", "-----BEGIN PRIVATE KEY", "%25", "bearer ", "=", " ",
    "name: token value: ", "--password ", "('token', ", "\\", '"', "ATAT=", "api key ", "curl -u a", "token: |\n ",
    "password is ", "password for a ", "the password's ", "'--token', ", "sshpass', '-p', ", "mysql -p", "'a:b@", "'netloc=a:1@c.",
    "input_value=", "a\n  b [type=c, input_value=", "\\n  [type=a, input_value=1, input_type=",
    "password,a\n", "a|password\n", "\x1b[1mpassword\n", "user[password]=", "<input name=password ", 'form-data; name="password"\r\n',
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("part", REPEATED)
def test_no_long_text_takes_long(part):
    """A pattern that took quadratic time would need minutes here, and the limit of the test ends it."""
    search_text_of(400_000, part)


def search_text_of(length, part):
    redaction = Redaction()
    for text in (part * (length // len(part)), "a" + part * (length // 2 // len(part)) + "a" * (length // 2)):
        redaction.text(text)
