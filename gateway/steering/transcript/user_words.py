"""The user's words in a message, without what the client put around them: reminders, the state of
the editor, file listings and instructions of the project, in tags or in separate messages."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from gateway.wire.coerce import objects, text_at
from gateway.wire.message_identity import content_text

MAX_CHARACTERS = 256 * 1024  # of a longer message only the beginning is read

_OPENING_TAG = re.compile(r"<([A-Za-z][\w:-]{0,63})(?:\s[^<>]{0,300})?>")
# Names of tags that Claude Code, Codex, Cline, Cursor, Copilot and others put around such text.
_ADDED = re.compile(
    r"(?i)reminder|environment|context|instructions|permissions|skills|details|metadata|workspace"
    r"|memory|memories|caveat|attachment|stdout|stderr|git_?status|directory|(?:^|[_-])(?:ide|system|open|current|env)"
    r"(?:[_-]|$)|_info$|^info$|^files?$|^rules$"
)
_WORDS_TAG = re.compile(
    r"(?i)<(task|user_query|user_message|user_request|user_input|userrequest|query|request|prompt"
    r"|message|feedback|answer|command-args)>"
)
# Some clients write this line above the user's words, after what they added.
_MARKER = re.compile(r"^## My request for \w+:\s*$", re.MULTILINE)
_ADDED_MESSAGES = (
    "# AGENTS.md instructions for",
    "# Context from my IDE setup",
    "Here are summaries of some files present in my git repo",
    "I have *added these files to the chat*",
    "I am not sharing any files",
)
# Tags and headings inside a text behind which the task is, and lines that only lead to it.
_TASK_TAG = re.compile(
    r"(?i)<((?:pr|issue|task)_description|problem_statement|issue|task|user_query|question)>"
)
_TASK_HEADING = re.compile(
    r"(?im)^[#* ]{0,8}(?:(?:issue|task|question|request|problem)(?: text| description| statement)?"
    r"[:* ]{0,8}$|(?:current task|task|question):[* ]{1,4})"
)
_LEAD = re.compile(
    r"(?i)^(?:you are (?:an?\b|given|now|working)|we're currently|i've uploaded|consider the"
    r"|here(?:'s| is| are)\b|(?=.*:$).*\b(?:following|below)\b"
    r"|\[(?:image|request interrupted)[^\]]*\]$|\[\[ ## \w+ ## \]\]$"
    r"|(?:hi|hello|hey)\W*$"
    r"|(?:context|background|overview|description|instructions?|summary|title)\W*$)"
)
_ASKED = re.compile(r"(?i)^please (?:solve|fix|resolve) (?:this|the following) \w+: (?=\S)")
_NOT_SHOWN = re.compile(r"<command-message>[^<]*</command-message>|<[^<>]*>")
_LINE_CHARACTERS = 300  # of a line that is searched for such words
_TITLE_LINES = 40
_SETTING_UP = "setting up the context for our chat"
_HEAD_CHARACTERS = 200
_MAX_UNCLOSED = 8  # tags without an end, after which the rest of a text is taken as it is
_MAX_TAGS = 2000  # tags that are read: a text with more is a document, and each takes 1.5 us
_MAX_PARTS = 256  # parts of a message that are read: clients send a few, and each takes 10 us
_MAX_PASSED_OVER = 64  # messages searched for the user's words: each of thousands may begin a run


def task_of(
    transcript: Sequence[Any],
    start: int,
    read: Callable[[str], str] | None = None,
    *,
    or_else: bool = True,
) -> str:
    """The user's task in the messages from `start` on; empty if there is none. Messages without a
    word of the user are passed over, with the model's answers to them. If the first
    `_MAX_PASSED_OVER` are, the first one counts as it is, with `or_else`. `read`: gives the user's
    words in a text, by default `user_words`."""
    first = ""
    for message in transcript[start : start + _MAX_PASSED_OVER]:
        if not isinstance(message, dict):
            continue
        if message.get("role") == "user":
            if words := words_of(message.get("content"), read or user_words):
                return words
            first = first or content_text(message.get("content"))
        elif message.get("tool_calls") or str(message.get("type")).endswith("_call"):
            break
    if or_else:
        return first
    return ""


def title_of(text: str) -> str:
    """The task from its first telling line on, for a list: without the tags, headings and sentences
    of a client that lead to it. The text as it is where nothing else is left."""
    said = user_words(text)
    if tag := _TASK_TAG.search(said):
        end = said.find(f"</{tag[1]}>", tag.end())
        said = said[tag.end() : end if end >= 0 else None].strip() or said
    elif heading := _TASK_HEADING.search(said):
        said = said[heading.end() :].strip() or said
    lines = said.strip().split("\n", _TITLE_LINES)
    code = False
    for at, line in enumerate(lines):
        if fence := line.startswith("```"):
            code = not code
        head = _NOT_SHOWN.sub("", line[:_LINE_CHARACTERS]).strip(" \t\r#>*-")
        if _LEAD.match(head):  # the task may be in the same line
            head = head.partition(". ")[2]
        head = _ASKED.sub("", head)
        if not (fence or code or len(head) <= 3 or _LEAD.match(head) or head.startswith("You ")):
            return "\n".join([head + line[_LINE_CHARACTERS:], *lines[at + 1 :]])
    return said.strip() or text


def words_of(content: object, read: Callable[[str], str]) -> str:
    """The user's words in a message's content, as `read` gives those of a text; empty when a client
    wrote all of it."""
    if not isinstance(content, list):
        return read(content_text(content))
    texts = [text_at(part, "text") for part in objects(content)[:_MAX_PARTS]]
    return "\n".join(filter(None, map(read, texts)))


def user_words(text: str) -> str:
    """A text without the blocks that a client added, and without the tags around the rest."""
    text = _without_added(text[:MAX_CHARACTERS]).strip()
    if marker := _MARKER.search(text):
        return text[marker.end() :].strip()
    if text.startswith(_ADDED_MESSAGES) or _SETTING_UP in text[:_HEAD_CHARACTERS]:
        return ""
    tag = _WORDS_TAG.match(text)
    if tag is None:
        return text
    end = text.find(f"</{tag[1]}>", tag.end())
    if end >= 0:
        return text[tag.end() : end].strip()
    return text


def _without_added(text: str) -> str:
    kept = []
    at = 0
    unclosed = set[str]()
    for _ in range(_MAX_TAGS):
        tag = None
        if len(unclosed) < _MAX_UNCLOSED:
            tag = _OPENING_TAG.search(text, at)
        if tag is None:
            break
        name = tag[1]
        closing = f"</{tag[1]}>"
        added = _ADDED.search(name) and name not in unclosed
        if added:
            end = text.find(closing, tag.end())
        else:
            end = -1
        if added and end < 0:
            unclosed.add(name)
        kept.append(text[at : tag.start() if end >= 0 else tag.end()])
        if end >= 0:
            at = end + len(closing)
        else:
            at = tag.end()
    return "".join([*kept, text[at:]])
