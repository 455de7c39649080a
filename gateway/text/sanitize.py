"""Sanitizes untrusted text for a terminal and for a page."""

import re

# Source: ECMA-48: CSI, OSC (ended by BEL or ST), and the other escape sequences.
_ESCAPES = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"
    # Only a terminated string is removed: an unterminated one would hide all text after it.
    "|\x1b[\\]PX^_][^\x07\x1b\x9c\n]{0,2000}(?:\x07|\x1b\\\\|\x9c)"
    "|\x1b[ -/]*[0-OQ-WYZ`-~]"
)
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\ud800-\udfff\ufff9-\ufffb\U000e0000-\U000e01ef]"  # the last: tags that spell whole texts
)
_PICTURES = 0x2400  # Unicode's pictures of the 32 control characters


def visible(text: str) -> str:
    """`text` without terminal escape sequences, and with its invisible characters made visible.

    Line ends become "\\n" and tabs stay. A control character becomes its picture. A character that
    changes the writing direction, an invisible one, or half of a surrogate pair becomes `<U+XXXX>`.
    """
    if text.isascii() and text.isprintable():
        return text
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return _INVISIBLE.sub(_picture, _ESCAPES.sub("", lines))


def one_line(text: str, limit: int) -> str:
    """The start of `text` in one line of at most `limit` characters, with single spaces."""
    # Only the start is needed, so the rest of a long text is not sanitized.
    words = " ".join(visible(text[: 4 * limit]).split())
    if len(words) <= limit:
        return words
    return words[: max(0, limit - 1)] + "…"


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(_PICTURES + code)
    if code == 0x7F:
        return "\u2421"
    return f"<U+{code:04X}>"


_FOLDERS = re.compile(r"(?<![\w/:.])(?:/[^\s/'\"]+)*/(?=[^\s/])")


def without_folders(text: str) -> str:
    """`text` with file names in place of whole paths, for people who do not run the machine."""
    return _FOLDERS.sub("", text)
