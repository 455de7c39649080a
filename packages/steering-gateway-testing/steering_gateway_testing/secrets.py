"""Made-up credentials in every shape that the detector knows, to be planted in tests."""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable
from typing import NamedTuple

Word = Callable[..., str]
"""Length and name of an alphabet -> random characters."""

_ALPHABETS = {
    "mixed": string.ascii_letters + string.digits,
    "capital": string.ascii_uppercase + string.digits,
    "small": string.ascii_lowercase + string.digits,
    "hex": "0123456789abcdef",
    "url": string.ascii_letters + string.digits + "-_",
    "base64": string.ascii_letters + string.digits + "+/",
}


class Planted(NamedTuple):
    """A credential: the part that may not be found anywhere, and the text that contains it."""

    shape: str
    secret: str
    text: str


def planted_secrets(seed: int) -> list[Planted]:
    """One credential of each shape, equal for equal seeds."""
    draw = random.Random(seed)

    def word(length: int, alphabet: str = "mixed") -> str:
        # A digit at each end: a generated value without any is too rare to plan for.
        inner = "".join(draw.choices(_ALPHABETS[alphabet], k=length - 4))
        return f"4x{inner}7b".upper() if alphabet == "capital" else f"4x{inner}7b"

    shapes = _prefixed(word) + _named(word, draw)
    return [
        Planted(shape, secret, before + secret + after) for shape, before, secret, after in shapes
    ]


def _prefixed(word: Word) -> list[tuple[str, str, str, str]]:
    slack = f"{word(12, 'small')}-{word(24)}"
    return [
        ("openai", "sk-", word(48), ""),
        ("openai project", "sk-proj-", word(80, "url"), ""),
        ("anthropic", "sk-ant-api03-", word(93, "url"), ""),
        ("aws access key", "AKIA", word(16, "capital"), ""),
        ("aws pair", "AKIAIOSFODNN7EXAMPLE, ", word(40, "base64"), ""),
        ("github", "ghp_", word(36), ""),
        ("github fine-grained", "github_pat_", f"{word(22)}_{word(59)}", ""),
        ("gitlab", "glpat-", word(20, "url"), ""),
        ("slack", "xoxb-", slack, ""),
        (
            "slack webhook",
            "https://hooks.slack.com/services/",
            f"T0{word(8)}/B0{word(8)}/{word(24)}",
            "",
        ),
        ("google", "AIza", word(35, "url"), ""),
        ("stripe", "sk_live_", word(24), ""),
        ("npm", "//registry.npmjs.org/:_authToken=npm_", word(36), ""),
        ("pypi", "pypi-AgEIcHlwaS5vcmc", word(60, "url"), ""),
        ("hugging face", "hf_", word(34), ""),
        ("sendgrid", "SG.", f"{word(22)}.{word(43)}", ""),
        ("telegram", "bot 712345678:AA", word(33, "url"), ""),
    ]


def _named(word: Word, draw: random.Random) -> list[tuple[str, str, str, str]]:
    line = base64.b64encode(draw.randbytes(48)).decode()
    coded = base64.b64encode(f"admin:{word(10)}".encode()).decode()
    token = base64.urlsafe_b64encode(draw.randbytes(60)).decode().rstrip("=")
    azure = base64.b64encode(draw.randbytes(64)).decode()
    key = json.dumps("-----BEGIN PRIVATE KEY-----\n")[1:-1]
    return [
        ("jwt", "cookie: ", f"eyJhbGciOiJIUzI1NiJ9.eyJ{token}.{word(43, 'url')}", "; path=/"),
        ("pem", "-----BEGIN RSA PRIVATE KEY-----\n", line, "\n-----END RSA PRIVATE KEY-----"),
        ("pem in json", f'"private_key": "{key}', line, '\\n-----END PRIVATE KEY-----\\n"'),
        ("bearer", "Authorization: Bearer ", word(32), ""),
        ("basic", "Authorization: Basic ", coded, ""),
        ("curl user", "curl -s -u admin:", word(12), " https://db.internal/"),
        ("aws secret", "aws_secret_access_key = ", word(40, "base64"), ""),
        ("environment", "DB_PASSWORD=", word(10, "small"), "\n"),
        ("password in json", '"password": "', word(10) + "!q", '"'),
        ("option", "deploy --db-password ", word(12), " --yes"),
        ("said", "the password is ", word(12), ""),
        ("api key", "api_key: ", word(32, "hex"), ""),
        ("header", '-H "x-api-key: ', word(32, "hex"), '"'),
        ("query", "https://api.internal/v1?access_token=", word(30), "&page=2"),
        ("client secret", "client_secret='", word(30), "'"),
        ("connection url", "postgres://app:", word(16), "@db.internal:5432/prod"),
        ("connection string", "Server=db;User Id=sa;Password=", word(14), ";Encrypt=true"),
        ("azure", "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=", azure, ";"),
        ("azure sas", "https://a.blob.core.windows.net/c?sv=2020&sig=", word(44, "base64"), "%3D"),
    ]
