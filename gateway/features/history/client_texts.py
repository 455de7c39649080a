"""Texts with the role of the user, of which clients write many: only the rest was typed."""

import re

import orjson

from gateway.data_files import read_toml
from gateway.steering.transcript.user_words import user_words

_TABLE = read_toml(__package__, "client_texts.toml")
_BEGINS = tuple(_TABLE["begins"])
_TAG = re.compile(rf"<(?:{'|'.join(_TABLE['tags'])})(?:\s[^<>]{{0,300}})?>")
_BLOCK = re.compile(r"<([a-z]\w*[-_][\w-]+)(?:\s[^<>]{0,300})?>.*</\1>", re.DOTALL)
"""One block around a whole text. A name of several words is a client's; HTML has none."""


def typed_words(text: str) -> str:
    """The words that a person typed in a text; "" where a client wrote it all, or where it is
    nothing but a value in JSON, as clients send each other."""
    text = text.strip()
    if _TAG.match(text):
        return ""
    words = user_words(text)
    if words.startswith(_BEGINS) or _TAG.match(words) or _BLOCK.fullmatch(words) or _is_json(words):
        return ""
    return words


def _is_json(text: str) -> bool:
    if not text.startswith(("{", "[")):
        return False
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True
