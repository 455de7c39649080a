"""aider's chat histories: `.aider.chat.history.md` in a project, the sessions one after another.

A line of the person's begins with `####`, one of the program's with `>`; both end in two spaces,
which tells them from headings and quotations in an answer. Answers are written as they are, and the
line with the tokens follows each."""

import re
from collections.abc import Iterable

from msgspec import Struct

from gateway.features.history.log_file import LogFile
from gateway.features.history.session import Session, chat_usage

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
_SCALE = {"k": 1e3, "M": 1e6}


def read(log: LogFile) -> Iterable[Session]:
    """See LogFormat."""
    lines = log.text().splitlines()
    sessions = [_Chat(log, "")]
    for log.seen, line in enumerate(lines, 1):
        if started := _STARTED.match(line):
            sessions.append(_Chat(log, f"{started[1]}T{started[2]}"))
        else:
            sessions[-1].add(line)
    yield from (session for chat in sessions if (session := chat.end()).messages)


class _State(Struct):
    """The state of a file while it is read line by line."""

    waits: bool = False  # a message was sent, and no tokens have been reported since
    stopped: bool = False  # ^C was pressed; an answer was under way if tokens are reported
    prompted: bool = False  # the newest message is the person's
    in_block: bool = False  # inside a text of the program's that has several lines
    counted: bool = False  # the newest answer has its tokens


class _Chat:
    """The lines of one session, in their order."""

    def __init__(self, log: LogFile, stamp: str) -> None:
        folder = log.path.resolve().parent
        name = f"{folder.name}:{stamp}" if stamp else log.stem
        self.session = Session(id=name, agent=AGENT, project=str(folder))
        self.session.at(stamp)
        self._model = ""
        self._typed: list[str] = []  # lines of the message that is being read
        self._answer: list[str] = []
        self._shown: list[str] = []  # lines of the program since the last answer
        self._state = _State()

    def add(self, line: str) -> None:
        """Read one line."""
        ends = line.endswith("  ")
        if self._state.in_block:
            self._shown.append(line.rstrip())
            self._state.in_block = not ends
        elif line.startswith("####") and ends:
            self._finish()
            self._typed.append(line[4:].strip())
        elif line.startswith("> ") and (ends or _TOKENS.match(line, 2)):
            self._program(line[2:].strip())
        elif line.startswith("> ") and not (self._state.waits or any(map(str.strip, self._answer))):
            self._shown.append(line[2:])
            self._state.in_block = True
        elif line.startswith("Cost: $") and self._state.counted:
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

    def _send(self) -> None:
        """Take what the person typed as one message, unless it is a command to aider."""
        text = "\n".join(self._typed).strip()
        self._typed = []
        # A command to aider itself, which no model sees.
        if not text or text == "<blank>" or text.startswith(("/", "!")):
            return
        self._finish()
        self.session.user(text, text)
        self._shown = []
        self._state.waits = True
        self._state.prompted = True
        self._state.counted = self._state.stopped = False

    def _finish(self) -> None:
        """Take the text read so far as an answer."""
        text = "\n".join(self._answer).strip()
        self._answer = []
        session = self.session
        if not text:
            return
        if not self._state.prompted and session.messages:
            # aider sent its own report, of an edit that failed or of a test.
            session.user("\n".join(self._shown).strip())
        session.reply(text, model=self._model)
        self._shown = []
        self._state.prompted = False
        self._state.counted = False

    def _program(self, text: str) -> None:
        """Read a line that aider wrote about itself."""
        self._send()
        session = self.session
        if tokens := _TOKENS.match(text):
            self._finish()
            if self._state.stopped:
                session.did("interrupt")
            self._state.waits = self._state.stopped = False
            if session.calls and not self._state.counted:
                self._state.counted = True
                names = ("sent", "received", "hit", "write")
                usage = chat_usage(*(_number(tokens[name]) for name in names))
                session.calls[-1].usage = usage
                self._price(text)
        elif text.startswith(_INTERRUPTED):
            if self._state.waits:
                session.did("interrupt")
            self._state.stopped = not self._state.waits
            self._state.waits = False
        else:
            if version := _VERSION.match(text):
                session.version = version[1]
            elif model := _MODEL.match(text):
                self._model = model[1]
            self._shown.append(text)

    def _price(self, text: str) -> None:
        if cost := _COST.search(text):
            self.session.calls[-1].cost_usd = float(cost[1])


def _number(text: str | None) -> int:
    """A count such as `1,234`, `5.2k` or `12k`, which is rounded."""
    if not text:
        return 0
    try:
        return round(float(text.rstrip("kM").replace(",", "")) * _SCALE.get(text[-1], 1))
    except ValueError:
        return 0
