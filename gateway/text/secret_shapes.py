"""The shapes of secrets: tokens known by their form, and values next to a name that gives them
away.

Each shape has *anchors*, plain lower-case texts of which every match contains one, so that a text
without any is searched at the speed of a plain search. A pattern is tried where an anchor begins;
its group `secret`, or the whole match, is the secret. Every repetition has an upper limit and gives
nothing back, so that a text costs linear time whatever it says.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from itertools import pairwise

from msgspec import Struct

Accepts = Callable[[str, re.Match[str]], bool]
"""The whole text and a match in it, or in the same in small letters -> whether it is a secret."""


class Shape(Struct, frozen=True, kw_only=True):
    """One form of secret. `accepts` decides where the form alone is too common.

    `kind`: a word that is no anchor, because masked text contains it. `folded`: the pattern is
    tried on the text in small letters. `narrower`: for an anchor that is a common word, a narrower
    expression for it from its rarest letter on, which every match of the pattern has. `needs`: an
    expression for `Finder` that finds something in every text with a match, in small letters; the
    anchors where it is None.
    """

    kind: str
    anchors: tuple[str, ...]
    pattern: re.Pattern[str]
    accepts: Accepts | None = None
    folded: bool = False
    narrower: Mapping[str, str] = {}
    needs: str | None = None


def secret_in(match: re.Match[str]) -> tuple[int, int]:
    """Span of a match's secret in the text."""
    for group in _GROUPS:
        if group in match.re.groupindex and match.start(group) >= 0:
            return match.span(group)
    return match.span()


def _value(text: str, match: re.Match[str]) -> str:
    """The start of the secret of a match: enough to see what it is."""
    start, end = secret_in(match)
    return text[start : min(end, start + _SEEN)]


_GROUPS = ("secret", "quoted", "bare")

_SEEN = 64
_RANDOM_LENGTH = 16
_LETTERS_LENGTH = 20
"""Letters alone need to be more: of 20 random ones a fifth are capitals after small letters."""
_CLASSES = bytes.maketrans(
    bytes(range(256)),
    bytes(
        1 if 48 <= c <= 57 else 2 if 97 <= c <= 122 else 3 if 65 <= c <= 90 else 4
        for c in range(256)
    ),
)


def looks_random(value: str, least: int = _RANDOM_LENGTH) -> bool:
    """Whether a value reads like a generated one: `least` characters or more, that change between
    digits, small and capital letters at every fifth character or more.

    Words change at their ends only (`cancellationTokenSource2`, `test_login_2`), random text of
    letters and digits at every second character.
    """
    if len(value) < least:
        return False
    classes = value.encode("ascii", "replace").translate(_CLASSES)
    kinds = set(classes) - {4}
    pairs = list(pairwise(classes))
    # A capital followed by a small letter is how a word begins.
    changes = sum(a != b and 4 not in (a, b) and (a, b) != (3, 2) for a, b in pairs)
    if len(kinds) < 2 or (1 not in kinds and len(value) < _LETTERS_LENGTH):
        return False
    return changes * 5 >= len(pairs)


_FILLERS = frozenset(
    (
        *("password", "passwd", "pass", "pwd", "secret", "token", "none", "null", "nil", "true"),
        *("false", "undefined", "empty", "required", "optional", "string", "bytes", "bool", "your"),
        *("example", "changeme", "redacted", "hidden", "omitted", "default", "removed", "value"),
    )
)
_FILLED = re.compile(
    r"[*.x•-]{3,512}+|<[^<>]{0,512}+>?|\[masked:|\$(?:[{(]|\w{1,64}+$)|%[(s{]|\{\{?"
    r"|your[-_ ]|os\.|process\.|env[.\[]",
    re.IGNORECASE,
)
_PATH = re.compile(r"(?:\.{0,2}|~)/|[A-Za-z]:\\")


def is_placeholder(value: str) -> bool:
    """Whether a value stands for a secret and is none: a variable, a mask, a word of documents."""
    bare = value.strip("'\"`<>[](){}")
    return len(bare) < 4 or bare.lower() in _FILLERS or _FILLED.match(value) is not None


def _holds_credentials(text: str, match: re.Match[str]) -> bool:
    """Whether the base64 of a Basic header decodes to `user:password`."""
    coded = text[slice(*secret_in(match))]
    try:
        plain = base64.b64decode(coded + "=" * (-len(coded) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False
    return b":" in plain and all(byte >= 32 for byte in plain)


def _is_bearer(text: str, match: re.Match[str]) -> bool:
    value = _value(text, match)
    return not is_placeholder(value) and (len(value) >= 24 or any(map(str.isdigit, value)))


def _is_user_info(text: str, match: re.Match[str]) -> bool:
    value = _value(text, match)
    return looks_random(value) if match["secret"] is None else not is_placeholder(value)


def _is_prefixed_key(_: str, match: re.Match[str]) -> bool:
    """Names of style classes begin like OpenAI's keys: `sk-toggleable__content-2`."""
    value = match[0][:_SEEN]
    return "ant-" in value[:8] or looks_random(value) or any(map(_is_dense, value.split("-")))


def _is_assigned(text: str, match: re.Match[str]) -> bool:
    """Whether what is assigned to a name like `password` or `api_token` is a secret.

    A name that can only be a secret's takes any quoted text, and bare text that is no code; any
    other takes what reads like a generated value.
    """
    value = _value(text, match)
    if is_placeholder(value) or (_PATH.match(value) and not looks_random(value, 32)):
        return False
    random = _DIGEST.fullmatch(value) or looks_random(value) or _is_dense(value)
    if random and not _is_attribute(value):
        return True
    if not match[0].startswith(_STRONG):
        return False
    if match["quoted"] is not None:
        apart = match["sep"].isspace()
        return not apart and (" " not in value or match[0].startswith("passphrase"))
    if _is_option(text, match.start()):
        return not value.isalpha() or not value.islower()
    if match["sep"].isspace():
        return False
    return _is_setting(text, match) or _is_chosen(value)


def _is_option(text: str, at: int) -> bool:
    """Whether the name at `at` is, or ends, an option of a command: `--db-password`."""
    before = text[max(0, at - 40) : at]
    return before.rpartition(" ")[2].startswith("--")


def _is_setting(text: str, match: re.Match[str]) -> bool:
    """Whether this is a line of an environment file, `DB_PASSWORD=swordfish`, or a part of a
    connection string, `Password=swordfish;`."""
    between = (
        text[match.end() : match.end() + 1] == ";" or text[match.start() - 1 : match.start()] == ";"
    )
    name = text[match.start() : match.start() + 3]
    return match["sep"] == "=" and (name.isupper() or between)


def _is_attribute(value: str) -> bool:
    """Whether a value is code that reads an attribute, or calls: `form2.cleaned_data`."""
    return _CODE.match(value) is not None


def _is_chosen(value: str) -> bool:
    """Whether a bare value is a password that a person made up, and no name in a program."""
    if _is_attribute(value) or not any(map(str.isalpha, value)):
        return False
    digits = sum(map(str.isdigit, value))
    if digits >= 3 or any(sign in value for sign in "!@#$%^&*+?~"):
        return True
    return not _NAMES.search(value) and ((digits > 0 and "_" not in value) or value.count("-") > 1)


def _is_dense(value: str) -> bool:
    """Whether a value of letters and digits has more digits than the names of programs have."""
    digits = sum(map(str.isdigit, value))
    return len(value) >= _RANDOM_LENGTH and value.isalnum() and 3 <= digits < len(value)


_CODE = re.compile(r"[A-Za-z_]\w{0,64}+(?:\.[A-Za-z_]\w{0,64}+){1,16}+$|\w{1,64}+[\[(]", re.ASCII)


_STRONG = ("pass", "pwd", "secret")
_DIGEST = re.compile(r"[0-9a-f]{32,128}+", re.IGNORECASE)
_NAMES = re.compile(r"pass|pw|secret|token|key|user|hash|name|field|value|self|None", re.IGNORECASE)

_START = r"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrt])|(?<=[0-9]m))"
"""Start of a token: not in a word, but after an escaped line end or a terminal's colour."""

_AFTER_K = (
    r"(?:(?<=apik)|(?<=api[ _-]k)|(?<=accessk)|(?<=access[_-]k)|(?<=privatek)|(?<=private[_-]k)"
    r"|(?<=accountk)|(?<=account[_-]k)|(?<=authk)|(?<=auth[_-]k)|(?<=master[_-]k)"
    r"|(?<=signing[_-]k)|(?<=encryption[_-]k))ey"
)
"""Characters around the k of a name that ends in `key`: any other key opens nothing."""

ASSIGNED = Shape(
    kind="assigned",
    anchors=("pass", "pwd", "secret", "token", "key", "authorization"),
    pattern=re.compile(
        r"(?:pass(?:word|wd|phrase|code)?|pwd|secret|token|authorization"
        rf"|k{_AFTER_K})"
        # The rest of a name and its closing quotes: `SECRET_KEY_BASE"]`.
        r"(?:[_-]?(?:access|key|value|base|id|token|string|text|[0-9]{1,3}+)){0,3}+"
        r"\\{0,3}+[\"'`]?+\]?+"
        r"(?P<sep>[ \t]{0,4}+(?::=|=>|==?|:)[ \t]{0,4}+"
        r"|[ \t]{1,4}+(?:is|was)[ \t]{1,4}+|[ \t]{1,2}+)"
        r"(?:[bruf]{1,2}(?=[\"']))?+"
        r"(?:(?:token|key)[ \t]{1,4}+)?+"
        r"(?:\\{0,3}+(?P<mark>[\"'`])(?P<quoted>[^\"'`\n\\]{4,512}+)(?=\\{0,3}+(?P=mark))"
        r"|(?P<bare>[^\s\"'`,;&<>\\|]{6,512}+))"
    ),
    accepts=_is_assigned,
    folded=True,
    narrower={"key": _AFTER_K},
    needs=(
        r"(?:pass(?:word|wd|phrase|code)?|pwd|secret|token|authorization"
        r"|(?:api|access|private|account|auth|master|signing|encryption)[ _-]?key)"
        r"(?:[_-]?(?:access|key|value|base|id|token|string|text|[0-9]))*"
        r"\\*[\"'`]?\]?(?:[ \t]*[:=]=?>?[ \t]*|[ \t]+(?:(?:is|was)[ \t]+)?)"
        r"(?:[bruf]{1,2})?(?:(?:token|key)[ \t]+)?(?:\\*[\"'`]|[^\s\"'`,;&<>\\|]{6})"
    ),
)

SHAPES: tuple[Shape, ...] = (
    Shape(
        kind="pem",
        anchors=("-----begin",),
        pattern=re.compile(
            r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,3}?PRIVATE KEY(?: BLOCK)?-----"
            r"(?=[\s\\nrt]{0,16}+[A-Za-z0-9+/=:., -]{16})"
            r"(?:[A-Za-z0-9+/=\s\\:.,()]|-(?!----)){16,20000}+"
            r"(?:-----END [A-Z0-9 ]{1,60}+-----)?"
        ),
    ),
    Shape(
        kind="jwt",
        anchors=("eyj",),
        pattern=re.compile(
            _START + r"eyJ[A-Za-z0-9_-]{8,4000}+(?:\.[A-Za-z0-9_-]{0,12000}+){2,4}+"
        ),
        needs=r"eyj[a-z0-9_-]{8}",
    ),
    Shape(
        kind="openai",
        anchors=("sk-",),
        pattern=re.compile(_START + r"sk-[A-Za-z0-9_-]{16,300}+"),
        accepts=_is_prefixed_key,
        needs=r"sk-[a-z0-9_-]{16}",
    ),
    Shape(
        kind="aws",
        anchors=("akia", "asia"),
        # Often followed by its secret, which has no form of its own.
        pattern=re.compile(
            _START + r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"
            r"(?:[\s,;:|\"']{1,4}+[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=]))?"
        ),
        needs=r"a[ks]ia[a-z0-9]{16}",
    ),
    Shape(
        kind="github",
        anchors=("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        pattern=re.compile(r"(?:gh[pousr]_[A-Za-z0-9]{20,255}+|github_pat_[A-Za-z0-9_]{20,255}+)"),
    ),
    Shape(
        kind="gitlab",
        anchors=("glpat-", "gldt-", "glrt-", "glcbt-", "glptt-", "glft-", "glsoat-", "glagent-"),
        pattern=re.compile(r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent)-[A-Za-z0-9_.-]{16,300}+"),
    ),
    Shape(
        kind="slack",
        anchors=("xox", "xapp-"),
        pattern=re.compile(
            r"(?:xox[a-z](?:\.xox[a-z])?-[A-Za-z0-9-]{10,300}+|xapp-[A-Za-z0-9-]{10,300}+)"
        ),
    ),
    Shape(
        kind="webhook",
        anchors=("hooks.slack.com/", "api/webhooks/"),
        pattern=re.compile(
            r"(?:hooks\.slack\.com|api/webhooks)/(?P<secret>[\w/-]{20,300}+)", re.ASCII
        ),
    ),
    Shape(
        kind="google",
        anchors=("aiza", "ya29.", "gocspx-"),
        pattern=re.compile(
            r"AIza[A-Za-z0-9_-]{30,60}+|ya29\.[A-Za-z0-9_.-]{20,512}+|GOCSPX-[A-Za-z0-9_-]{16,100}+"
        ),
    ),
    Shape(
        kind="stripe",
        anchors=("sk_live_", "sk_test_", "rk_live_", "rk_test_", "whsec_"),
        pattern=re.compile(
            r"(?:[sr]k_(?:live|test)_[A-Za-z0-9]{10,300}+|whsec_[A-Za-z0-9+/=]{16,300}+)"
        ),
    ),
    Shape(
        kind="registry",
        anchors=("npm_", "pypi-", "rubygems_", "dckr_pat_"),
        pattern=re.compile(
            r"npm_[A-Za-z0-9]{30,100}+|pypi-[A-Za-z0-9_-]{40,512}+|rubygems_[a-f0-9]{40,64}+"
            r"|dckr_pat_[A-Za-z0-9_-]{20,100}+"
        ),
    ),
    Shape(
        kind="service",
        anchors=(
            *("hf_", "gsk_", "xai-", "sg.", "dop_v1_", "shpat_", "hvs.", "pplx-", "lin_api_"),
            *("nvapi-", "age-secret-key-1", "tvly-"),
        ),
        pattern=re.compile(
            _START + r"(?:hf_[A-Za-z0-9]{28,100}+|gsk_[A-Za-z0-9]{30,100}+"
            r"|xai-[A-Za-z0-9]{30,200}+|SG\.[A-Za-z0-9_-]{16,64}+\.[A-Za-z0-9_-]{16,100}+"
            r"|dop_v1_[a-f0-9]{40,80}+|shpat_[a-fA-F0-9]{30,64}+|hvs\.[A-Za-z0-9_-]{20,200}+"
            r"|pplx-[A-Za-z0-9]{30,100}+|lin_api_[A-Za-z0-9]{30,100}+|nvapi-[A-Za-z0-9_-]{30,100}+"
            r"|AGE-SECRET-KEY-1[A-Z0-9]{40,80}+|tvly-[A-Za-z0-9-]{20,80}+)"
        ),
        needs=(
            r"hf_[a-z0-9]{28}|gsk_|xai-|sg\.[a-z0-9_-]{16}|dop_v1_|shpat_|hvs\.|pplx-|lin_api_"
            r"|nvapi-|age-secret-key-1|tvly-"
        ),
    ),
    Shape(
        kind="bot",
        anchors=(":aa",),
        pattern=re.compile(r"(?<=\d):(?P<secret>AA[A-Za-z0-9_-]{30,40}+)(?![A-Za-z0-9_-])"),
        needs=r"[0-9?]:aa[a-z0-9_-]{30}",
    ),
    Shape(
        kind="azure",
        anchors=("key=", "sig="),
        pattern=re.compile(
            r"(?:(?<=Account)Key|(?<=Access)Key|(?<=[?&;])sig)=(?P<secret>[\w+/%=-]{20,512}+)",
            re.ASCII,
        ),
        needs=r"(?:(?:account|access)key|[?&;]sig)=[a-z0-9_+/%=-]{20}",
    ),
    Shape(
        kind="bearer",
        anchors=("bearer",),
        pattern=re.compile(r"bearer\s{1,4}+(?P<secret>[a-z0-9._~+/=-]{8,4096}+)"),
        accepts=_is_bearer,
        folded=True,
        needs=r"bearer[\s?]+[a-z0-9._~+/=-]{8}",
    ),
    Shape(
        kind="basic",
        anchors=("basic ",),
        pattern=re.compile(r"basic {1,4}+(?P<secret>[a-z0-9+/]{6,1024}+={0,2})"),
        accepts=_holds_credentials,
        folded=True,
        needs=r"basic +[a-z0-9+/]{6}",
    ),
    Shape(
        kind="url",
        anchors=("://",),
        pattern=re.compile(
            r"://(?:[^\s:/@\[\"'<>`]{0,128}+:(?P<secret>[^\s/\"'<>`]{1,256})@"
            r"|(?P<bare>[A-Za-z0-9_-]{20,256}+)@)"
        ),
        accepts=_is_user_info,
        needs=r"://[^\s/]*@",
    ),
    Shape(
        kind="curl",
        anchors=("curl ",),
        pattern=re.compile(
            r"curl [^\n;|]{0,120}?(?:-u|--user)[ =]?\\?[\"']?"
            r"[^\s:\"'\\]{1,64}+:(?P<secret>[^\s\"'\\]{3,128}+)"
        ),
        accepts=_is_user_info,
        needs=r"curl [^\n;|]*(?:-u|--user)",
    ),
    ASSIGNED,
)
