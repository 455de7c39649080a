"""SpecStory's Markdown of other agents' sessions: `.specstory/history/*.md` in a project.

It has no tokens, and most of these agents keep the same sessions on the machine themselves: only
files that are named are read. Sections of the agent without a result between them are an answer."""

import re
from collections.abc import Iterable

from gateway.features.history.log_file import LogFile
from gateway.features.history.readers.recordings import read_acts
from gateway.features.history.session import Session, add_call, joined

_SESSION = re.compile(r"<!-- [^<>\n]{1,80} Session ([\w-]{8,64}) \(")
_SECTION = re.compile(r"^_\*\*(User|Agent|Assistant)\b([^*\n]{0,200})\*\*_[ \t]*$", re.MULTILINE)
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)?(?:Z|[+-]\d\d:?\d\d)?")
_TOOL = re.compile(
    r'<tool-use\b[^>]*\bdata-tool-name="(?P<name>[^"]*)"[^>]*>(?:\s*<details>)?'
    r"(?:\s*<summary>.*?</summary>)?(?P<asked>.*?)"
    r"(?:\n```\w*\n(?P<result>.*?)\n?```)?\s*(?:</details>\s*)?</tool-use>",
    re.DOTALL,
)
_NUMBER = re.compile(r"\0(\d+)\0")  # in the place of such a block, whose text may quote sections


def read(log: LogFile) -> Iterable[Session]:
    """See LogFormat."""
    text = log.text()
    log.seen = text.count("\n")
    named = _SESSION.search(text)
    session = Session(id=named[1] if named else log.stem, agent="specstory")
    session.project = str(log.path.resolve().parent.parent.parent)
    tools = list(_TOOL.finditer(text))
    numbers = iter(range(len(tools)))
    text = _TOOL.sub(lambda _: f"\0{next(numbers)}\0", text)
    _, *sections = _SECTION.split(text)
    for who, about, body in zip(sections[::3], sections[1::3], sections[2::3], strict=True):
        time = _TIME.search(about)
        at = session.at(time and time[0])
        words = _NUMBER.sub("", body).strip().removesuffix("---").strip()
        if who == "User":
            session.user(words)
            if "sidechain" not in about:
                read_acts(session, session.messages[-1], at)
            continue
        model = _TIME.sub("", about).strip(" ()").partition(",")[0].strip()
        if session.messages and session.messages[-1]["role"] == "assistant":
            answer = session.messages[-1]  # its text and its calls have sections of their own
            answer["content"] = joined(answer["content"], words)
        else:
            answer = session.reply(words, model=model, at=at)
        for number in _NUMBER.findall(body):
            tool = tools[int(number)]
            add_call(answer, number, tool["name"], arguments=tool["asked"].strip())
            session.result(number, tool["result"] or "", at)
    if session.messages:
        yield session
