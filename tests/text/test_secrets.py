"""What counts as a secret, what does not, and what is left of a text without its secrets."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from gateway.text.secrets import find_secrets, mask_secrets
from steering_gateway_testing.secrets import planted_secrets

SAMPLE = Path(__file__).parents[1] / "replays" / "sample.jsonl.gz"

ORDINARY = """
commit 4a5d1fe2c9b3a7d8e6f0123456789abcdef01234
image sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
request 550e8400-e29b-41d4-a716-446655440000 done, order W2378156, build 20250511
<img src="data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAUAAAAFCAYAAACNbyblAAAAHElEQVQI12P4">
<div class="sk-toggleable__content sk-container-id-12">
integrity sha512-9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08Zx==
token = parser.next_token()
self.token: Optional[str] = None
cancellationToken = cancellationTokenSource2.Token
max_tokens: 4096, "prompt_tokens": 1234, tokens=[1, 2, 3]
def login(username, password=None, token="", secret=os.environ["SECRET"]): pass
client.login(user=user, password=password)
client.login(username=name, password=form2.cleaned_data["password"])
password: required, at least 8 characters
Enter your password: the password is wrong
DB_PASSWORD=${DB_PASSWORD}
api_key: <your api key>, API_KEY=$API_KEY, api_key=YOUR_API_KEY
https://user:${TOKEN}@example.com http://localhost:8080/@scope/package
Authorization: Basic authentication is required; bearer of good news
key = "cancellation", primary_key=True, foreign_key: "orders.id"
-----BEGIN CERTIFICATE----- is not "-----BEGIN PRIVATE KEY-----"
tests pass = 5, pass: all, 3 passed
npm_config_cache=/root/.npm ghp_ hf_hub_download sk-learn
docker run -u 1000:1000 image
"""


@pytest.mark.parametrize("seed", range(5))
def test_every_shape_is_masked(seed: int) -> None:
    """A credential of any shape is gone, wherever it stands, and masking again changes nothing."""
    for shape, secret, text in planted_secrets(seed):
        for place in (text, f"run it: {text} then", f"> {text}\n2 lines", f"escaped\\n{text}"):
            masked = mask_secrets(place)
            assert secret not in masked, shape
            assert mask_secrets(masked) == masked, shape
            assert find_secrets(place), shape


def test_json_stays_json() -> None:
    """Arguments of a call can still be parsed, and keep everything that is no secret."""
    for shape, secret, text in planted_secrets(7):
        arguments = json.dumps({"command": f"echo {text}", "lines": 3})
        masked = mask_secrets(arguments)
        assert json.dumps(secret)[1:-1] not in masked, shape
        assert json.loads(masked)["lines"] == 3, shape


def test_names_stay() -> None:
    """What tells of a secret stays readable; only its value is gone."""
    assert mask_secrets("PGPASSWORD=hunter2 psql") == "PGPASSWORD=[masked:assigned] psql"
    assert mask_secrets("redis://:s3cr3tX@cache:6379/0") == "redis://:[masked:url]@cache:6379/0"


MADE_UP = (
    *("password=SuperSecret123!", "password: Passw0rd!", "password=hunter2", "DB_PASS=abc123"),
    *("api_key=1234567890abcdef", "token: abcdefghijklmnopqrstuvwxyz123456"),
    *("sk-abcdefghijklmnopqrstuvwxyz123456", "password=correct-horse-battery-staple"),
    *("redis://:p4ss@cache:6379/0", "client_secret=abc~DEF.123-ghi_456"),
)


@pytest.mark.parametrize("text", MADE_UP)
def test_what_people_make_up_is_a_secret_too(text: str) -> None:
    """Passwords with words in them, and keys that are typed in order."""
    (span,) = find_secrets(text)
    assert len(mask_secrets(text)) < len(text) + len("[masked:assigned]")
    assert span.end >= len(text) - len("@cache:6379/0")


def test_ordinary_text_is_left_alone() -> None:
    """Hashes, ids, images, code and prose about secrets hold none."""
    for line in ORDINARY.splitlines():
        assert mask_secrets(line) == line
    assert mask_secrets(ORDINARY) is ORDINARY


def test_recorded_runs_are_left_alone() -> None:
    """In recorded runs only the tokens of a browser's settings are taken for secrets."""
    with gzip.open(SAMPLE, "rt", encoding="utf-8") as lines:
        runs = [json.loads(line) for line in lines]
    texts = [str(message.get("content") or "") for run in runs for message in run["messages"]]
    found = {text[s.start - 9 : s.start] for text in texts for s in find_secrets(text)}
    assert sum(map(len, texts)) > 100_000
    assert found <= {'Token": "'}


def test_letters_that_change_their_length() -> None:
    """Places are those of the text itself, though one capital letter becomes two small ones."""
    text = "\u0130\u0130 password='hunter2'"
    (span,) = find_secrets(text)
    assert text[span.start : span.end] == "hunter2"


class _Finds:
    def may_be_in(self, text: str) -> bool:
        return True


def test_what_is_searched_first_is_in_every_text_with_a_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The quick search misses no secret that the thorough one finds, whatever is around it."""
    frames = (
        "{}",
        "\u00e9t\u00e9 {}",
        "\u212a \u0130 \ud800 {}",
        "{}\u00a0",
        "\u200b{}",
        "a: {} b",
    )
    planted = [text for seed in range(3) for _, _, text in planted_secrets(seed)]
    texts = [frame.format(text) for text in planted for frame in frames]
    texts += [text.replace(" ", "\u2003").upper() for text in planted] + ORDINARY.split("\n")
    found = [find_secrets(text) for text in texts]
    monkeypatch.setattr("gateway.text.secrets._NEEDED", _Finds())
    assert [find_secrets(text) for text in texts] == found


@pytest.mark.parametrize("letters", ["\u0130", "\u03a3", "\U0001f600", "\u00c9 "])
def test_a_long_text_beyond_ascii_is_searched_in_parts(letters: str) -> None:
    """A secret is found where it is, also across the end of a part."""
    secret = "password='hunter2'"
    for before in (0, 2**17 - len(secret) // 2, 2**17 + 1):
        text = (letters * (before // len(letters) + 1))[:before] + f" {secret} {letters}"
        (span,) = find_secrets(text)
        assert text[span.start : span.end] == "hunter2"
