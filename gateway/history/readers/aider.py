"""aider's chat histories: `.aider.chat.history.md` in a project, the sessions one after another.

A line of the person's begins with `####`, one of the program's with `>`; both end in two spaces,
which tells them from headings and quotations in an answer. Answers are written as they are, and the
line with the tokens follows each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.history.log_file import LogFile
from gateway.history.session import ModelCall, Session

AGENT = "aider"
_STARTED = re.compile(r"# aider chat started at (\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)")
_VERSION = re.compile(r"Aider v(\S+)")
_MODEL = re.compile(r"(?:Main )?[Mm]odels?: (\S+)")
_TOKENS = re.compile(
    r"Tokens: (?P<sent>[\d.,]+[kM]?) sent(?:, (?P<write>[\d.,]+[kM]?) cache write)?"
    r"(?:, (?P<hit>[\d.,]+[kM]?) cache(?: hit|d))?, (?P<received>[\d.,]+[kM]?) received"
)
_COST = re.compile(r"Cost: \$([\d.]*\d) (?:message|request|send)")
_INTERRUPTED = ("^C again to exit", "^C KeyboardInterrupt")
_COMMAND_MARKS = ("/", "!")  # beginnings of commands to aider itself, which no model sees
_SCALE = {"k": 1e3, "M": 1e6}


def matches(head: bytes, name: str) -> bool:
    """See LogFormat."""
    return head.lstrip(b"\xef\xbb\xbf\r\n\t ").startswith(b"# aider chat started at ") or (
        name.endswith(".md") and "aider.chat.history" in name
    )


def read(log: LogFile) -> Iterable[Session]:
    """See LogFormat."""
    lines = log.text().splitlines()
    spaced = any(line.startswith(("#### ", "> ")) and line.endswith("  ") for line in lines)
    chat = _Chat(log, "", spaced=spaced)
    sessions = []
    for log.seen, line in enumerate(lines, 1):
        if started := _STARTED.match(line):
            sessions.append(chat.end())
            stamp = f"{started[1]}T{started[2]}"
            chat = _Chat(log, stamp, spaced=spaced)
            chat.session.at(stamp)
        else:
            chat.add(line)
    sessions.append(chat.end())
    yield from (session for session in sessions if session.messages)


class _Chat:
    """The lines of one session, in their order.

    `spaced`: lines that aider wrote itself end in two spaces; an editor may have cut them off.
    """

    def __init__(self, log: LogFile, stamp: str, *, spaced: bool) -> None:
        folder = log.path.resolve().parent
        self.session = Session(
            id=f"{folder.name}:{stamp}" if stamp else log.stem, agent=AGENT, project=str(folder)
        )
        self._spaced = spaced
        self._model = ""
        self._typed: list[str] = []  # lines of the message that is being read
        self._answer: list[str] = []
        self._shown: list[str] = []  # lines of the program since the last answer
        self._waits = False  # a message was sent, and no tokens have been reported since
        self._stopped = False  # ^C was pressed; an answer was under way if tokens are reported
        self._prompted = False  # the newest message is the person's
        self._in_block = False  # inside a text of the program's that has several lines
        self._counted = False  # the newest answer has its tokens

    def add(self, line: str) -> None:
        """Read one line."""
        ends = line.endswith("  ") or not self._spaced
        if self._in_block:
            self._shown.append(line.rstrip())
            self._in_block = not line.endswith("  ")
        elif line.startswith("####") and ends and (self._spaced or not self._has_answer()):
            self._finish()
            self._typed.append(line[4:].strip())
        elif (line.startswith("> ") or line == ">") and (ends or _TOKENS.match(line, 2)):
            self._program(line[2:].strip())
        elif line.startswith("> ") and self._spaced and not (self._waits or self._has_answer()):
            self._shown.append(line[2:])
            self._in_block = True
        elif line.startswith("Cost: $") and self._counted:
            self._price(line)
        elif not line.strip() and self._typed:
            self._send()
        else:
            self._send()
            self._answer.append(line)

    def end(self) -> Session:
        """The session, with the answer that came last."""
        self._send()
        self._finish()
        return self.session

    def _has_answer(self) -> bool:
        return any(line.strip() for line in self._answer)

    def _send(self) -> None:
        """Take what the person typed as one message, unless it is a command to aider."""
        text, self._typed = "\n".join(self._typed).strip(), []
        if not text or text == "<blank>" or text.startswith(_COMMAND_MARKS):
            return
        self._finish()
        self.session.did("message", text)
        self.session.messages.append({"role": "user", "content": text})
        self._shown, self._waits, self._prompted = [], True, True
        self._counted = self._stopped = False

    def _finish(self) -> None:
        """Take the text read so far as an answer."""
        text, self._answer = "\n".join(self._answer).strip(), []
        session = self.session
        if not text:
            return
        if not self._prompted and session.messages:
            # aider sent its own report, of an edit that failed or of a test.
            session.messages.append({"role": "user", "content": "\n".join(self._shown).strip()})
        session.calls.append(ModelCall(position=len(session.messages), model=self._model))
        session.messages.append({"role": "assistant", "content": text})
        self._shown, self._prompted, self._counted = [], False, False

    def _program(self, text: str) -> None:
        """Read a line that aider wrote about itself."""
        self._send()
        session = self.session
        if tokens := _TOKENS.match(text):
            self._finish()
            if self._stopped:
                session.did("interrupt")
            self._waits = self._stopped = False
            if session.calls and not self._counted:
                self._count(tokens)
                self._price(text)
        elif text.startswith(_INTERRUPTED):
            if self._waits:
                session.did("interrupt")
            self._stopped, self._waits = not self._waits, False
        else:
            if version := _VERSION.match(text):
                session.version = version[1]
            elif model := _MODEL.match(text):
                self._model = model[1]
            self._shown.append(text)

    def _count(self, tokens: re.Match[str]) -> None:
        self._counted = True
        usage = {
            "prompt_tokens": _number(tokens["sent"]),
            "completion_tokens": _number(tokens["received"]),
            "prompt_tokens_details": {
                "cached_tokens": _number(tokens["hit"]),
                "cache_creation_tokens": _number(tokens["write"]),
            },
        }
        self._replace(usage, None)

    def _price(self, text: str) -> None:
        if cost := _COST.search(text):
            self._replace(self.session.calls[-1].usage, float(cost[1]))

    def _replace(self, usage: Mapping[str, Any], cost: float | None) -> None:
        calls = self.session.calls
        last = calls[-1]
        calls[-1] = ModelCall(position=last.position, model=last.model, usage=usage, cost_usd=cost)


def _number(text: str | None) -> int:
    """A count such as `1,234`, `5.2k` or `12k`, which is rounded."""
    if not text:
        return 0
    digits = text.rstrip("kM").replace(",", "")
    try:
        return round(float(digits) * _SCALE.get(text[-1], 1))
    except ValueError:
        return 0
