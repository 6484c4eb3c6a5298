"""A URL is redacted as a whole before a part of it is written: the host says what a path is."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from agent_cache.recording import Cassette, Http, intercept, record, replay

httpx = pytest.importorskip("httpx")

S = "x7Kp2Lm4Tv8Zq9bCdEfGhIjK"
GUID = "0a1b2c3d-1111-2222-3333-444455556666"
URLS = {
    "Slack": f"https://hooks.slack.com/services/T01ABCDEFGH/B01ABCDEFGH/{S}",
    "Slack workflow": f"https://hooks.slack.com/triggers/T01/123/{S}",
    "Slack, another host of it": f"https://hooks.slack-gov.com/services/T01/B01/{S}",
    "Discord": f"https://discord.com/api/webhooks/1234567890123456789/{S}-{S}",
    "Discord, a version": f"https://canary.discord.com/api/v10/webhooks/1234567890/{S}/messages/@original",
    "Discord interaction": f"https://discord.com/api/v10/interactions/1234567890/{S}/callback",
    "Teams": f"https://acme.webhook.office.com/webhookb2/{GUID}@{GUID}/IncomingWebhook/{S}/{GUID}",
    "Teams, once": f"https://outlook.office.com/webhook/{GUID}@{GUID}/IncomingWebhook/{S}/{GUID}",
    "Power Automate": f"https://prod-12.westus.logic.azure.com:443/workflows/ab/triggers/manual/paths/invoke?sp=r&sig={S}",
    "Power Platform": f"https://d.1.environment.api.powerplatform.com/powerautomate/x?sv=1.0&sig={S}",
    "Telegram": f"https://api.telegram.org/bot7123456789:AA{S}-0123456/sendMessage",
    "Telegram file": f"https://api.telegram.org/file/bot7123456789:AA{S}-0123456/photos/1.jpg",
    "Zapier": f"https://hooks.zapier.com/hooks/catch/123456/{S}/",
    "IFTTT": f"https://maker.ifttt.com/trigger/door/with/key/{S}",
    "Make": f"https://hook.eu1.make.com/{S}",
    "Feishu": f"https://open.feishu.cn/open-apis/bot/v2/hook/{S}",
    "WeCom": f"https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key={S}",
    "PagerDuty": f"https://events.pagerduty.com/integration/{S}/enqueue",
    "Webex": f"https://webexapis.com/v1/webhooks/incoming/{S}",
    "Infura": f"https://mainnet.infura.io/v3/{S}",
    "Alchemy": f"https://eth-mainnet.g.alchemy.com/v2/{S}",
    "OAuth code": f"https://shop.test/cb?code={S}&state=af0ifjsldkj",
    "password": f"https://ann:{S}@shop.test/orders",
    "token of a path": f"https://shop.test/v1/sk-{S}/orders",
}


@intercept(name="call")
def call(value: object) -> object:
    return value


@pytest.fixture(autouse=True)
def net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every server answers with the URL that it was asked for; of one that refuses, it stands in the error."""

    def answer(self: object, request: httpx.Request) -> httpx.Response:
        if request.headers.get("x-mode") == "refuse":
            raise httpx.ConnectError(f"cannot reach {request.url}", request=request)
        body = httpx.ByteStream(json.dumps({"asked": str(request.url)}).encode())
        return httpx.Response(200, headers={"content-type": "application/json"}, stream=body)

    async def answer_task(self: object, request: httpx.Request) -> httpx.Response:
        return answer(self, request)

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", answer)
    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", answer_task)


@pytest.mark.parametrize("label", URLS)
def test_a_request_has_a_name_without_the_secret_of_its_url(label: str, path: Path) -> None:
    def ask() -> int:
        with httpx.Client() as client:
            return client.post(URLS[label], json={"text": "hi"}).status_code

    with record(path, http=True):
        assert ask() == 200
    assert S not in path.read_text()
    with replay(path, strict=True):
        assert ask() == 200


@pytest.mark.parametrize("label", URLS)
@pytest.mark.parametrize(
    "spelled",
    [
        str,
        lambda url: f"POST {url} failed",
        lambda url: f"https://shop.test/?next={quote(url, safe='')}",
        lambda url: {"urls": [url]},
        lambda url: json.dumps({"url": url}).replace("/", "\\/"),
        lambda url: "cut off: " + json.dumps({"url": url}).replace("/", "\\/")[:-1],
        lambda url: url.encode(),
    ],
    ids=["itself", "a sentence", "percent-encoded", "inside", "JSON with escapes", "a part of it", "bytes"],
)
def test_a_url_among_arguments_and_results_has_no_secret(label: str, spelled: object, path: Path) -> None:
    with record(path):
        call(spelled(URLS[label]))  # type: ignore[operator]
    assert S not in path.read_text()


def test_a_request_that_fails_is_told_without_the_secret_of_its_url(path: Path) -> None:
    with record(path, http=True), httpx.Client(headers={"x-mode": "refuse"}) as client:
        for url in URLS.values():
            with pytest.raises(httpx.ConnectError):
                client.post(url)
    assert S not in path.read_text()


def test_a_rotated_webhook_finds_its_recording(path: Path) -> None:
    with httpx.Client() as client:
        with record(path, http=True):
            client.post(URLS["Slack"], json={"text": "hi"})
        with replay(path, strict=True):
            client.post(URLS["Slack"].replace(S, S[::-1]), json={"text": "hi"})


def test_an_alias_hides_no_secret_of_the_host_that_it_stands_for(path: Path) -> None:
    aliases = Http(aliases={"hooks.slack.com": "hooks.test"})
    with record(path, http=aliases), httpx.Client() as client:
        client.post(URLS["Slack"])
    assert S not in path.read_text()
    assert "https://hooks.test/services/" in path.read_text()
    there = Http(aliases={"localhost:8080": "hooks.slack.com"})
    with record(path, mode="rewrite", http=there), httpx.Client() as client:
        client.post(f"http://localhost:8080/services/T01/B01/{S}")
    assert S not in Cassette.load(path)[0].name


def test_the_settings_of_http_are_written_without_secrets_and_hold_in_the_replay(path: Path) -> None:
    with httpx.Client() as client:
        with record(path, http=Http(ignore=[URLS["Slack"]])):
            client.post(URLS["Slack"])
            client.get("https://shop.test/orders")
        assert S not in path.read_text()
        assert len(Cassette.load(path)) == 1
        with replay(path, strict=True):
            client.post(URLS["Slack"])
            client.get("https://shop.test/orders")


@pytest.mark.parametrize(
    "url",
    [
        "postgres://u:p/w9x8y7@h", f"postgresql+asyncpg://u:{S}/x@db:5432/app", f"redis://:a/{S}@h:6379/0",
        f"mysql://u:a@{S}@h/db", f"amqp://u:{S}?x@h/", f"redis://:{S}#x@h:6379/0", f"https://u:a1/{S}@shop.test/",
    ],
)  # fmt: skip
def test_a_password_may_have_any_character_in_it(url: str, path: Path) -> None:
    with record(path):
        call(url)
        call(f"cannot connect to {url} now")
    text = path.read_text()
    assert S not in text
    assert "w9x8y7" not in text
    assert ":[redacted]@" in text


@pytest.mark.parametrize(
    "url",
    [
        "https://shop.test:8443/orders/@me", "http://localhost:8080/npm/@scope/package@1.0", "http://localhost:$PORT/@me",
        "http://localhost:PORT/users/@me", "https://shop.test/a:b/c@d", "https://shop.test/cb?code=404&state=failed",
        "https://shop.test/?country=CA&code=US&state=NY", "https://shop.test/run?code=print%281%29&state=1",
        "https://discord.com/channels/12345678901234567/12345678901234567", "https://shop.test/hook.html",
        "https://api.telegram.org/docs", "https://hooks.slack.com/services", "https://shop.test/?status_code=a1b2c3d4e5f6&state=x",
    ],
)  # fmt: skip
def test_a_url_without_a_secret_stays(url: str, path: Path) -> None:
    with record(path):
        call(url)
    assert "redacted" not in path.read_text()
