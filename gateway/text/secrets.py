"""The one detector of secrets: what looks like a credential in a text, and the text without it.

It finds tokens by their form and values by the name next to them; the rules are in
`secret_rules.toml`. A secret that has neither, a word said in conversation, is not found."""

import binascii
import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

from gateway.data_files import read_toml
from gateway.text.search import Expressions

MARK = "[masked:"  # the beginning of what replaces a secret; the kind and a bracket follow

# After so many forms of one rule that turned out to be none, all that follow count as secrets: a
# text made to be slow is masked more, and not looked at for longer.
MOST_REFUSED = 1000

# Characters: beyond ASCII a lower-cased letter costs 7 to 14 ns, during which nothing else runs in
# the process; 9.5 million in one piece took 70 to 130 ms.
_LOWERED_AT_ONCE = 2**17


class SecretSpan(NamedTuple):
    """One secret in a text."""

    start: int  # index of its first character
    end: int  # index behind its last one
    kind: str  # such as `github-token`; shown in its place


def find_secrets(text: str) -> list[SecretSpan]:
    """The secrets of a text in their order, without overlaps. Linear in the length of the text."""
    if not may_have_secrets(text):
        return []
    lowered = _lowered(text)
    joined: list[SecretSpan] = []
    for span in sorted(span for rule in _RULES for span in rule.find(text, lowered)):
        if joined and span.start < joined[-1].end:
            last = joined[-1]
            if last.kind == _RULES[-1].kind:
                kind = span.kind
            else:
                kind = last.kind
            joined[-1] = SecretSpan(last.start, max(last.end, span.end), kind)
        else:
            joined.append(span)
    return joined


def mask_secrets(text: str) -> str:
    """The text with `[masked:KIND]` in place of each secret; the same text when there is none.
    Equal secrets of one text and different ones of a kind read alike: what is left says nothing of
    them, not even their length. A masked text is not changed by masking it again."""
    found = find_secrets(text)
    if not found:
        return text
    parts = []
    at = 0
    for span in found:
        parts += [text[at : span.start], MARK, span.kind, "]"]
        at = span.end
    return "".join([*parts, text[at:]])


@lru_cache(maxsize=512)
def mask_repeated(text: str) -> str:
    """`mask_secrets` for texts that come again with every call, such as guidance."""
    return mask_secrets(text)


def may_have_secrets(text: str) -> bool:
    """False only when `find_secrets` finds nothing, and nothing in any part of the text either: one
    search does for several texts that are joined."""
    return _NEEDED.may_be_in(text if text.isascii() else _lowered(text))


def _lowered(text: str) -> str:
    """The text in small letters, each at its place."""
    if text.isascii():
        return text.lower()
    parts = (text[at : at + _LOWERED_AT_ONCE] for at in range(0, len(text), _LOWERED_AT_ONCE))
    # One capital letter becomes two characters.
    return "".join(
        [
            low if len(low := part.lower()) == len(part) else part.replace("\u0130", "I").lower()
            for part in parts
        ]
    )


def _secret_of(match: re.Match[str]) -> tuple[int, int]:
    """Span of a match's secret in the text."""
    for group in ("secret", "quoted", "bare"):
        if group in match.re.groupindex and match.start(group) >= 0:
            return match.span(group)
    return match.span()


_SEEN = 64


def _value(text: str, match: re.Match[str]) -> str:
    """The start of the secret of a match: enough to see what it is."""
    start, end = _secret_of(match)
    return text[start : min(end, start + _SEEN)]


_RANDOM_LENGTH = 16
# Letters alone need to be more: of 20 random ones a fifth are capitals after small letters.
_LETTERS_LENGTH = 20
# For `bytes.translate`: digits are 1, small letters 2, capitals 3, all others 4.
_CLASSES = (b"\4" * 48 + b"\1" * 10 + b"\4" * 7 + b"\3" * 26 + b"\4" * 6 + b"\2" * 26).ljust(
    256, b"\4"
)


def _looks_random(value: str, least: int = _RANDOM_LENGTH) -> bool:
    """Whether a value reads like a generated one: `least` characters or more, that change between
    digits, small and capital letters at every fifth character or more. Words change at their ends
    only (`cancellationTokenSource2`, `test_login_2`), random text of letters and digits at every
    second character."""
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


_DATA = read_toml(__package__, "secret_rules.toml")
_FILLERS = frozenset(_DATA["fillers"].split())
_FILLED = re.compile(
    r"[*.x•-]{3,512}+|<[^<>]{0,512}+>?|\[masked:|\$(?:[{(]|\w{1,64}+$)|%[(s{]|\{\{?"
    r"|your[-_ ]|os\.|process\.|env[.\[]",
    re.IGNORECASE,
)
_PATH = re.compile(r"(?:\.{0,2}|~)/|[A-Za-z]:\\")
# Code that reads an attribute, or calls: `form2.cleaned_data`.
_CODE = re.compile(r"[A-Za-z_]\w{0,64}+(?:\.[A-Za-z_]\w{0,64}+){1,16}+$|\w{1,64}+[\[(]", re.ASCII)
_STRONG = ("pass", "pwd", "secret")
_DIGEST = re.compile(r"[0-9a-f]{32,128}+", re.IGNORECASE)
_NAMES = re.compile(r"pass|pw|secret|token|key|user|hash|name|field|value|self|None", re.IGNORECASE)


def _is_placeholder(value: str) -> bool:
    """Whether a value stands for a secret and is none: a variable, a mask, a word of documents."""
    bare = value.strip("'\"`<>[](){}")
    return len(bare) < 4 or bare.lower() in _FILLERS or _FILLED.match(value) is not None


def _is_dense(value: str) -> bool:
    """Whether a value of letters and digits has more digits than the names of programs have."""
    digits = sum(map(str.isdigit, value))
    return len(value) >= _RANDOM_LENGTH and value.isalnum() and 3 <= digits < len(value)


def _holds_credentials(text: str, match: re.Match[str]) -> bool:
    """Whether the base64 of a Basic header decodes to `user:password`."""
    coded = text[slice(*_secret_of(match))]
    try:
        plain = b64decode(coded + "=" * (-len(coded) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False
    return b":" in plain and all(byte >= 32 for byte in plain)


def _is_bearer(text: str, match: re.Match[str]) -> bool:
    value = _value(text, match)
    return not _is_placeholder(value) and (len(value) >= 24 or any(map(str.isdigit, value)))


def _is_user_info(text: str, match: re.Match[str]) -> bool:
    value = _value(text, match)
    if match["secret"] is None:
        return _looks_random(value)
    return not _is_placeholder(value)


def _is_prefixed_key(_: str, match: re.Match[str]) -> bool:
    """Names of style classes begin like OpenAI's keys: `sk-toggleable__content-2`."""
    value = match[0][:_SEEN]
    return "ant-" in value[:8] or _looks_random(value) or any(map(_is_dense, value.split("-")))


def _is_assigned(text: str, match: re.Match[str]) -> bool:
    """Whether what is assigned to a name like `password` or `api_token` is a secret. A name that
    can only be a secret's takes any quoted text, and bare text that is no code; any other takes
    what reads like a generated value."""
    value = _value(text, match)
    if _is_placeholder(value) or (_PATH.match(value) and not _looks_random(value, 32)):
        return False
    random = _DIGEST.fullmatch(value) or _looks_random(value) or _is_dense(value)
    if random and not _CODE.match(value):
        return True
    if not match[0].startswith(_STRONG):
        return False
    apart = match["sep"].isspace()
    if match["quoted"] is not None:
        return not apart and (" " not in value or match[0].startswith("passphrase"))
    before = text[max(0, match.start() - 40) : match.start()]
    if before.rpartition(" ")[2].startswith("--"):  # an option of a command: `--db-password`
        return not value.isalpha() or not value.islower()
    return not apart and (_is_setting(text, match) or _is_chosen(value))


def _is_setting(text: str, match: re.Match[str]) -> bool:
    """Whether this is a line of an environment file, `DB_PASSWORD=swordfish`, or a part of a
    connection string, `Password=swordfish;`."""
    start, end = match.span()
    between = ";" in (text[end : end + 1], text[start - 1 : start])
    return match["sep"] == "=" and (text[start : start + 3].isupper() or between)


def _is_chosen(value: str) -> bool:
    """Whether a bare value is a password that a person made up, and no name in a program."""
    if _CODE.match(value) or not any(map(str.isalpha, value)):
        return False
    digits = sum(map(str.isdigit, value))
    if digits >= 3 or any(sign in value for sign in "!@#$%^&*+?~"):
        return True
    return not _NAMES.search(value) and ((digits > 0 and "_" not in value) or value.count("-") > 1)


# The whole text and a match in it, or in the same in small letters -> whether it is a secret.
Check = Callable[[str, re.Match[str]], bool]
_CHECKS = {
    "assigned": _is_assigned,
    "bearer": _is_bearer,
    "credentials": _holds_credentials,
    "prefixed key": _is_prefixed_key,
    "user info": _is_user_info,
}
# Start of a token: not in a word, but after an escaped line end or a terminal's colour.
_START = r"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrt])|(?<=[0-9]m))"


class _Rule:
    """One rule of `secret_rules.toml`, which says what the keys mean."""

    def __init__(
        self,
        *,
        kind: str,
        anchors: list[str],
        pattern: list[str],
        folded: bool = False,
        check: str | None = None,
        needs: str | None = None,
    ):
        self.kind = kind
        self.anchors = anchors
        self.needs = needs
        self._pattern = "".join(pattern).replace("{start}", _START)
        self._check = _CHECKS[check] if check else None
        self._folded = folded

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Compiled at the first text that needs it, which few commands have."""
        return re.compile(self._pattern)

    def find(self, text: str, lowered: str) -> Iterator[SecretSpan]:
        """The secrets of this kind, in their order."""
        end = refused = 0
        for at in sorted(at for anchor in self.anchors for at in _places(lowered, anchor)):
            if at < end:
                continue
            match = self.pattern.match(lowered if self._folded else text, at)
            if match is None:
                continue
            if self._check and refused < MOST_REFUSED and not self._check(text, match):
                refused += 1
                continue
            end = match.end()
            yield SecretSpan(*_secret_of(match), self.kind)


def _places(lowered: str, anchor: str) -> Iterator[int]:
    at = lowered.find(anchor)
    while at >= 0:
        yield at
        at = lowered.find(anchor, at + len(anchor))


_RULES = [_Rule(**rule) for rule in _DATA["rule"]]
# Most texts have nothing of this, and are not searched further.
_NEEDED = Expressions(
    [rule.needs for rule in _RULES if rule.needs],
    texts=[anchor for rule in _RULES if not rule.needs for anchor in rule.anchors],
)
