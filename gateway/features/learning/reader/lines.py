"""Lines for a project's instruction file, which `reader.model` chooses among sentences that people
typed. A line that says something else than its sentence is left out."""

import re
import time
from collections.abc import Mapping, Sequence
from difflib import unified_diff
from io import StringIO
from secrets import token_hex

from gateway.auth.keys import DEFAULT_TENANT
from gateway.backends import Stores
from gateway.budget_interface import Accounting, Amounts
from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.features.learning.gate import MOST_CHARS
from gateway.features.learning.reader.own_calls import NoAnswer, PaidModel
from gateway.features.learning.reader.questions import DATA, Question
from gateway.features.learning.reader.reader import day_start
from gateway.features.learning.settings import ReaderSettings
from gateway.hooks import given
from gateway.observability.live_events import EventHub
from gateway.observability.metrics import Metrics
from gateway.services import KnownRefusals, UpstreamServices
from gateway.stores.learning import JOBS, ReaderJob
from gateway.text.formatting import counted, iso, money
from gateway.text.sanitize import one_line
from gateway.text.secrets import mask_secrets
from gateway.text.sentences import says_the_same
from gateway.upstream.dispatch import Messages
from gateway.values import FieldDict

_MOST_FILE = 40_000  # characters of the instruction file that are shown
# Up to what would hide words of it: a comment, an element or a stroke through them.
_LINE = re.compile(r"^\s*(?:[-*]\s+)?(\d{1,3})[.:)]\s+((?:(?!~~)[^<\n])*(?<=\S))", re.MULTILINE)

# The chapter that has the rules, up to the next one; a comment in a block of code begins none.
_CHAPTER = re.compile(r"(?ms)^## Rules[ \t]*\r?$(?:^```.*?^```|(?!^#{1,2} ).)*")

LINES = Question(
    name="lines",
    version=1,
    instruction=f"{DATA} `typed` are sentences that people typed to coding agents, with numbers; "
    "`file` is their project's instruction file. For each sentence that says how work is to be "
    "done beyond one task, and that the file does not say yet, answer with one line: the number, a "
    "colon, and the sentence as a line of that file. Keep its words and their order: leave out "
    "only greetings, articles and the reason behind it, and add no word of your own. What forbids "
    "stays forbidden. Skip questions, tasks, facts of one day, and where you are not sure. Answer "
    "with these lines and nothing else; if there is none, with the word none.",
    read=str.strip,
)


async def suggested(
    rules: Mapping[str, FieldDict], content: str, stores: Stores, settings: Settings
) -> tuple[list[str], str]:
    """(lines for a file with this content, notes for the person). `rules`: sentences as `exported`
    takes them, by number. Raises: ConfigError: no model has answered."""
    typed = "\n".join(f"{number}: {rule['said']}" for number, rule in rules.items())
    shown = {"typed": typed, "file": mask_secrets(content)[:_MOST_FILE]}
    text, notes = await _asked(LINES.messages(shown), stores, settings)
    lines: list[str] = []
    for number, line in _LINE.findall(text):
        rule = rules.get(number, {"said": number})
        if says_the_same(line, rule["said"]):
            lines.append(exported(rule | {"advice": line}))
        else:
            notes += f"\nleft out, it is not what was typed: {line} ({rule['said']})"
    return lines, notes


async def _asked(question: Messages, stores: Stores, settings: Settings) -> tuple[str, str]:
    """(text of `reader.model`, what was paid). The call goes out without a gateway, and counts on
    the same budgets and limits of the day. Raises: ConfigError: there is no answer."""
    reader = settings.of(ReaderSettings)
    now = time.time()
    tokens, usd = await stores.learning.spent(JOBS, DEFAULT_TENANT, day_start(now))
    if not reader.model or tokens >= reader.tokens_per_day or usd >= reader.usd_per_day:
        reason = "or it may use no more today (UTC); your own agent can do it: docs/history.md"
        raise ConfigError(f"reader.model is not set, {reason}")
    metrics = Metrics()
    accounting = next(given("accounting"), Accounting)(
        stores=stores, settings=lambda: settings, events=EventHub(), metrics=metrics, of_keys={}
    )
    services = UpstreamServices(settings, accounting, metrics, refusals=KnownRefusals())
    model = PaidModel(lambda: services, metrics)
    text = problem = ""
    try:
        text, used = await model.ask(
            reader.model, question, tenant=DEFAULT_TENANT, timeout_s=reader.timeout_s
        )
    except NoAnswer as error:
        used = error.used
        problem = f"; no answer: {error}"
    used = used or Amounts(input_tokens=len(str(question)))  # more than it has
    job = ReaderJob(
        kind=JOBS,
        key=token_hex(16),
        tenant=DEFAULT_TENANT,
        state="done",
        lease_until=now,
        created_at=now,
        tokens=int(used.of("tokens")),
        cost_usd=used.usd,
    )
    await stores.learning.enqueue(job)
    await accounting.close()
    await services.aclose()
    paid = f"asked {reader.model}: {counted(job.tokens, 'token')}, {money(used.usd)}"
    if not text:
        raise ConfigError(paid + problem)
    return text, paid


def added_to(name: str, text: str, lines: Sequence[str]) -> tuple[str, str]:
    """(a diff that adds lines to a file with this text, the text with them): at the end of its
    chapter `## Rules`, or of the file under that heading; no lines add nothing."""
    if not lines:
        return "", text
    end = "\r\n" if "\r\n" in text else "\n"
    added = end.join([*(f"- {line}" for line in lines), ""])
    chapter = _CHAPTER.search(text)
    if chapter is None:
        added = end.join(["", "## Rules", "", added])
    head = text[: chapter and chapter.end()].rstrip("\r\n")
    rest = text[len(head) :].removeprefix(end)
    new = f"{head}{end}{added}{rest}" if head else added.removeprefix(end)
    old, made = (StringIO(each, newline="\n").readlines() for each in (text, new))
    diff = unified_diff(old, made, f"a/{name}" if text else "/dev/null", f"b/{name}")
    marked = (x if x.endswith("\n") else f"{x}\n\\ No newline at end of file\n" for x in diff)
    return "".join(marked), new


def exported(rule: FieldDict) -> str:
    """A rule as a line of an instruction file: behind it a comment with the day, the author where
    one is known, and the words as they were typed."""
    text = one_line(rule["advice"], MOST_CHARS)
    day = f" {iso(rule['since'])[:10]}" if rule["since"] else ""
    who = f" by {one_line(rule['author'], 80)}" if rule["author"] else ""
    said = one_line(rule["said"] or rule["advice"], MOST_CHARS)
    # Words that would end the comment cannot stand in it as they are.
    beside = f'typed{day}{who}: "{said}"'.replace("--", "- -")
    return f"{text} <!-- {beside} -->"
