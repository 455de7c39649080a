"""Failures in tool results, and their signatures.

A failure is a line that a shell, compiler, interpreter or test runner prints to report one, or an
error member of a JSON answer; words inside source code, documentation or a count of zero are not.
"""

import json
import re
from collections.abc import Mapping

from gateway.steering.word_lists import word_list
from gateway.text.search import Expressions

HEAD_CHARS = 500
TAIL_CHARS = 1500  # tools report a failure first or last, mostly last
SIGNATURE_CHARS = 160  # longest signature of a failure
_LINE_CHARS = 300
_MAX_LINES = 16  # of suspect lines, which are read from the last one up
_READ_FAILURE_CHARS = 600  # a longer result of reading is content, whatever words are in it
_ESCAPED_CHARS = 2400  # a longer answer is read as it is spelled
# Neither control characters nor surrogate halves, which are not characters by themselves.
_ESCAPE = re.compile(r"\\u(?!00[01]|[dD][89a-fA-F])([0-9a-fA-F]{4})")

_SUSPECT_WORDS = word_list("outcomes", "suspect_words")
_ASCII_SUSPECTS = tuple(word for word in _SUSPECT_WORDS if word.isascii())  # half of them
_SUSPECTS = Expressions(texts=_SUSPECT_WORDS)
_FAILURE_LINE = re.compile(
    r"""(?x)(?:
      Traceback\ \(most\ recent\ call\ last\)
    | (?:[A-Za-z_][\w.]*)?(?:Error|Exception|Fault)(?:\ \[[^\]]*\])?:(?:\ |$)
    | [A-Za-z_][\w.]*(?:Error|Exception|Interrupt)$
    | (?:fatal|FATAL|error|ERROR|Error|panic|PANIC|Fatal)(?:\[\w+\])?(?:\ [\w.-]+)?:\ ?\S
    | \[(?:ERROR|FATAL)\]
    | E\ \ +\S
    | npm\ (?:ERR!|error)
    | (?:/\S*/)?(?:ba|z|da|k|fi)?sh:\ \S
    | \S+:\ (?:\S+:\ )?(?:command\ not\ found|cannot\ \w+|No\ such\ file|Permission\ denied)
    | \S+:\ (?:invalid\ option|unrecognized|illegal\ option) | curl:\ \(\d{1,3}\)\ \S
    | \S+:\d+(?::\d+)?:\ (?:fatal\ )?error: | [gm]?awk:\ cmd\.\ line:\d
    | \S+[:(]\d+[:,]\d+\)?:?\ (?:-\ )?(?:fatal\ )?(?:error\b|undefined:)
    | (?:FAILED|FAIL|ERROR|FAILURE|Failure)(?:\s|:|$|\()
    | (?:ERROR|FATAL|CRITICAL|SEVERE)\b
    | PHP\ (?:Fatal|Parse)\ error
    | BUILD\ FAIL | ---\ FAIL | make:\ \*\*\* | thread\ '[^']*'\ panicked | Segmentation\ fault
    | (?:OCI\ runtime\ )?exec\ failed | Command\ failed
    | No\ replacement\ was\ performed | Invalid\ [`'"\w] | Usage:\ \S
    | (?:Error|HTTP(?:/[\d.]+)?)(?:\ status)?[\ :]+[45]\d\d\b | [45]\d\d\ (?:[A-Z][a-z]+\ ?){1,3}$
    | [\w\ ]{0,40}\b[Ss]tatus(?:\ code)?[\ :=]+[45]\d\d\b | MCP\ error\ -?\d | !\ [A-Z]
    | (?:[45]\d\d\ )?(?:Bad\ Request|Unauthorized|Forbidden|Not\ Found|Too\ Many|Bad\ Gateway)\b
    | [\w.-]{1,40}(?:\ \w{1,20})?\ failed:\ \S | CMake\ Error | --\ Could\ NOT | [EW]:\ \S
    | (?:Cannot|Can't|Could\ not|Couldn't|Unable\ to|Failed\ to)\ [a-z]
    | (?:Unknown|Unrecognized|Unsupported)\ (?:tool|function|command|argument|option|parameter)
    | (?:"""
    + "|".join(word_list("outcomes", "failure_labels"))
    + r""")\b.{0,30}:
    | (?:"""
    + "|".join(re.escape(word) for word in word_list("outcomes", "failure_openings"))
    + r""")
    | (?:"""
    + "|".join(word_list("outcomes", "failures_unspaced"))
    + """)
    )"""
)
_STUCK = re.compile(  # states that a container does not leave by itself
    r"\b(?:ErrImagePull|ImagePullBackOff|CrashLoopBackOff|OOMKilled|CreateContainer\w*Error)\b"
)
_POD = re.compile(r"^([\w.-]{0,60}?)(?:-[0-9a-z]{5,10})?-[0-9a-z]{2,5}\s")  # the rest is drawn
_FAILURE_PART = re.compile(
    r"""(?x)
      \b[1-9]\d*\ (?:\w+\ )?(?:failed|failing|errors?|failures?)\b(?=[\s,.;)]|$)
    | \b(?:Failures|Errors):\ [1-9] | \b(?:failures|errors)=[1-9] | test\ result:\ FAILED
    | (?:\b[Ee]xit(?:ed)?(?:\ with)?(?:\ code|\ status)?|exitcode|return\ ?code)[:=\s]*-?[1-9]
    | returncode>\s*[1-9]
    | """
    + _STUCK.pattern
    + r"""
    | \b[Ss]yntax\ error(?:\ (?:at|near|in)\b|$) | has\ introduced\ new\ syntax\ error
    | did\ not\ appear\ verbatim | [Cc]annot\ overwrite
    | \bhas\ not\ been\ read\ yet\b | \btests\ FAILED\b
    | \((?:[A-Z]\w*)(?:Error|Exception)\)$
    | \b(?:[Ee]xecution\ failed|timed\ out|(?:[Pp]ermission|[Aa]ccess)\ denied
      |[Aa]ccess\ to\ .{1,200}\ is\ denied|[Nn]ot\ authorized)
    | \b[Cc]onnection\b.{0,40}\b(?:refused|terminated|reset|closed)
    | \b(?:exceeded|reached)\b.{0,60}\btime-?out\b | \btime-?out\b.{0,60}\b(?:exceeded|reached)
    | \b(?:Service\ Unavailable|Too\ Many\ Requests|[Rr]ate\ limit)
    | \b(?:[Ss]tring|[Ff]ile|[Pp]ath|[Mm]odule|[Tt]ool|[Ff]unction|old_str\w*|[Ee]lement|[Rr]ef)\b
      .{0,60}\b(?:not\ found|does\ not\ exist|doesn't\ exist)
    | \bis\ (?:a\ )?required\ (?:property|parameter|argument|field) | \b[Ff]ield\ required\b
    | \b(?:is\ not|not\ a)\ (?:a\ )?valid\b
    | """
    + "|".join(re.escape(word) for word in word_list("outcomes", "failure_parts"))
)
_COUNT = re.compile(
    r"\b\d+ (?:failed|failing|errors?|failures?)\b|\b(?:failures|errors)(?:=|: )\d", re.I
)
_SUMMARY = re.compile(  # beginnings of the summary that test runners print after the failures
    r"(?:FAILED|ERROR|FAIL)(?:\s*$|\s+\S+[./:])|FAILURE: Build|make: \*\*\*"
    r"|error: could not compile|npm (?:ERR!|error)|BUILD FAIL|Command failed"
    r"|\[?(?:[Ee]xit|returncode|Process )|COMPILATION (?:ERROR|FAIL)|Failed to execute goal"
    r"|ERROR: failed to (?:solve|build)"
)
_EXIT_ONLY = re.compile(r"(?i)^\W*(?:process |command )?(?:exit|return)[\w ]{0,30}\W{0,4}\d+\W*$")
_BARE = re.compile(  # `FAIL`, `[lint] ERROR task failed`, `exitcode: 1 (execution failed)`
    r"(?:\[[\w:.-]{1,40}\]\s*)?(?:(?i:fail(?:ed|ure)?|error|exit ?code:? ?[\d#]+)\b)"
    r"[\s:]*(?:task failed|\(execution failed\)|\d+)?[.:]?"
)
_TEST_ONLY = re.compile(r"--- FAIL: \S{1,160} \([\d.]{1,12}s?\)")  # a test without its reason
_COMPLAINT = re.compile(  # a place in a file, and words of a complaint
    r"[\w./-]{1,200}\.\w{1,6}:\d{1,6}(?::\d{1,6})?:? .{0,200}?\b(?:[Ee]xpect\w*|want|should|got|not"
    r"|error\w*|cannot|undefined|unexpected|missing|invalid|must|unused|fail\w*|is a|has \d)\b"
)
_BOILERPLATE = re.compile(  # lines a build tool adds to any failure; counters of another thing
    r"[-*] (?:\w+ )?[Cc]onsole\b[^:]{0,20}: \d|"  # a page's console is not the call
    r"Shell cwd was reset|\[Help \d+\]|-> \[Help|To see the full stack trace|Re-run Maven"
    r"|For more information about the|After correcting the problems|\* (?:Try|Get more help)"
)
_LOG_PREFIX = re.compile(  # times, levels, step numbers and frames that log lines begin with
    r"(?:\[(?!Help)[^\]\n]{1,40}\]:?\s*|\d{4}[-/]\d\d[-/]\d\d[T ]\S{5,30}\s+"
    r"|\d\d:\d\d:\d\d\S{0,12}\s+|\d{1,4}\.\d{1,4}\s+|#\d{1,3}\s+|=>\s*|[\u2502|>]\s+){1,5}"
)
_LEVELS = ("[ERROR]", "[FATAL]")
_JSON = re.compile(
    r"""\{\s*["'}]|\[\s*(?:["'{\[\]]|(?:-?[\d.eE+]+|true|false|null)\s*(?:,|\]\s*$))"""
)  # beginnings of JSON, and not of `[INFO]`, `[2024-01-05 10:00]`, `[1/4]` or a block in braces
_ZERO = re.compile(
    r"\b(?:0|no|zero|without)\s+(?:\w+\s+)?(?:errors?|failures?|failed|exceptions?|problems?)\b",
    re.IGNORECASE,
)
_LISTING = re.compile(
    r"Here's the (?:result of running|files and dir)|\[File: |<NOTE>This file|\s*\d+[:|\t]|\s+\d+\s"
)
_GREP_HIT = re.compile(r"[^\s:]+:\d+[:-]")
_JSON_ERROR = re.compile(
    r'"(?:error|errors|error_message)":\s*(?!null|""|\[\]|\{\}|false)\S|"is_?error":\s*true'
    r'|"(?:success|ok)":\s*false|"status":\s*"(?:error|failed|failure)"'
    r'|"(?:status_?code|http_?status|code)":\s*"?[45]\d\d\b'
    r'|"code":\s*"(?:err|invalid|missing|unauthori|forbidden|not_found)',
    re.IGNORECASE,
)
_FLAGGED = re.compile(r'"is_?error":\s*true\b', re.IGNORECASE)
_FLAG_CHARS = 60
# One leading character class lets the search skip from candidate to candidate.
_VOLATILE = re.compile(
    r"[0-9/](?:(?<=/)tmp/\S+|(?<=0)x[0-9a-fA-F]+|(?<=\d)(?:\d\d\d-\d\d-\d\d(?:[T ]\d\d:\d\d\S*)?"
    r"|\d:\d\d:\d\d\S*|\d*(?=:)|\d{8,}|\d*(?:\.\d+)?\s?(?:ms|s|secs?|seconds)\b))"
)
_NUMBER = re.compile(r"\d{3,}")
_FAILED_TEST = re.compile(r"--- FAIL|not ok|FAIL(?:ED)?[\s:]|E   ")
_BARE_TEST = "--- FAIL"  # Go's line for a test that failed; the reason is in the next line
_COLUMN = re.compile(r"[(\[]\d+[,:]\d+[)\]]")  # line and column, as compilers write them
_ID_NUMBER = re.compile(  # A number of two digits is an id, unless it counts something
    r"(?<![\w.])\d{2,}(?![\w.])(?!\s+(?:\w+\s+)?(?:failed|failing|passed|errors?|failures?|problems?))"
    r"|\d{3,}"
)
# Names whose value says what failed: another value is another failure.
_VALUES = re.compile(r"\b(?:assert\w*|expected|actual|got|Failures|Errors)\b|=", re.IGNORECASE)
_DETAIL = re.compile(  # lines of a test's report that say what was asserted
    r"(?im)^[^\w\n]{0,8}((?:(?:expected|actual|received|got|want|left|right|failure/error)[:=]"
    r"|failed asserting|assertion\b)[^\n]{1,120})"
)
_DETAILS = 2  # such lines that make a failure
_PLACE = re.compile(r"^\S+?:#:?(?:\d+:|#:)?\s*")  # place of a compiler's error, with `#` for lines
# Failures that say something of the host or table they name: another one is another question.
_OF_OBJECT = re.compile(
    r"(?i)connect(?:ion)?\b.{0,80}(?:timed out|refused)|unreachable|no route to host"
    r"|could not resolve|name or service not known|no such table|(?:relation|table)\b.{0,80}"
    r"(?:not exist|n't exist)"
)
_RANDOM_ID = re.compile(
    r"(?<![0-9A-Za-z])(?:[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9A-Za-z]{10,}+)"
)
_RANDOM_ID_CHARS = 10
_IDS = Expressions(
    ["-[0-9a-z]{10}", *(f"[a-z]{{{at}}}[0-9][0-9a-z]{{{9 - at}}}" for at in range(10))]
)  # ten letters and digits, at least one of them a digit; or the last part of a UUID
_BETWEEN_WORDS = {code: " " for code in range(128) if not chr(code).isalnum()}
_MEASURED = re.compile(r"[:=]\s*\d[\d.]*")
_TIME_NAMES = ("took", "elapsed", "duration", "latency", "_ms", "time")
_NAME_CHARS = 20
_JSON_MESSAGE = re.compile(
    r'"(?:error|error_?message|message|detail|reason|msg)"\s*+:\s*+"([^"]{1,300})', re.IGNORECASE
)
_SEVERAL = re.compile(r"\d+ x$")
_HEADLINE_CHARS = 60  # A shorter line that ends in a colon announces the next one
_EMPTY_ANSWERS = frozenset(word_list("outcomes", "empty_answers"))
_EMPTY_OPENING = re.compile(
    r"no (?:matches|results|files|output|data)\b|nothing (?:was )?found|0 results"
    r"|your (?:last )?command ran successfully and did|"
    + "|".join(re.escape(words) for words in word_list("outcomes", "empty_openings")),
    re.IGNORECASE,
)


def excerpt(text: str) -> str:
    """The head and the tail of a result, at most 2,001 characters: where tools put the verdict."""
    short = len(text) <= HEAD_CHARS + TAIL_CHARS
    if short:
        return text
    return f"{text[:HEAD_CHARS]}\n{text[-TAIL_CHARS:]}"


# What an exec tool writes above the output, and the keys of programs' results in JSON.
_EXEC_HEADER = re.compile(
    r"(?:(?:Chunk ID|Wall time|Original token count|Total output lines): [^\n]{0,80}\n"
    r"|Process (?:exited with code (-?\d+)|running with session ID \S{1,40})\n){1,6}Output:\n?"
)
_EXIT_CODES = ("returncode", "exit_code", "exitCode", "exitcode", "return_code")
_OUTPUTS = ("output", "stdout", "stderr", "aggregated_output", "error")
_CODE_CHARS = 200
_MAX_JSON_CHARS = 200_000


def _program_output(result: str) -> str | None:
    """The output of a program without what its client put around it, with the exit code behind it
    if that is not 0; None for another result."""
    if result.startswith(("Chunk ID:", "Wall time:", "Process ")):
        header = _EXEC_HEADER.match(result)
        if header:
            return _with_code(result[header.end() :], header[1])
        return None
    if result.startswith(("Command: ", "Output: ")):
        return _reported_output(result)
    if result[:1] != "{" or len(result) > _MAX_JSON_CHARS:
        return None
    ends = result[:_CODE_CHARS] + result[-_CODE_CHARS:]
    if not [key for key in _EXIT_CODES if key in ends]:
        return None
    try:
        found = json.loads(result)
    except (ValueError, RecursionError):
        return None
    inner = found.get("metadata")
    values = found
    if isinstance(inner, Mapping):
        values = {**inner, **found}
    codes = [str(values.get(key)) for key in _EXIT_CODES]
    code = next((each for each in codes if each.lstrip("-").isdigit()), None)
    texts = [values[key] for key in _OUTPUTS if isinstance(values.get(key), str)]
    if texts:
        return _with_code("\n".join(filter(None, texts)), code)
    return None


def _reported_output(result: str) -> str | None:
    """The output in a report of Gemini CLI's shell, whose parts have labels."""
    output, found, after = result.partition("Output: ")[2].rpartition("\nExit Code: ")
    if not found:
        return None
    code = after.split("\n", 1)[0]
    output = output.removesuffix("\nError: (none)").removeprefix("(empty)")
    return _with_code(output, code if code.lstrip("-").isdigit() else None)


_EXITED = re.compile(
    r"Process exited with code (-?\d+)|\"(?:returncode|exit_?code|return_code)\":\s*\"?(-?\d+)"
    r"|<(?:returncode|exit_?code)>\s*(-?\d+)|[Ee]xit [Cc]ode:? (-?\d+)|exit code (-?\d+)",
    re.IGNORECASE,
)
_STATUS = re.compile(r"HTTP/[\d.]+ [45]\d\d|\b[45]\d\d [A-Z][a-z]+")


def ended_well(result: str, command: str) -> bool:
    """True if the client says that a program ended with code 0; not where another program behind
    a pipe or a semicolon gave that code, nor for an HTTP status that says otherwise."""
    ends = result[:_CODE_CHARS] + result[-_CODE_CHARS:]
    found = _EXITED.search(ends)
    if found is None or any(sign in command for sign in "|;\n"):
        return False
    code = next(each for each in found.groups() if each is not None)
    return code == "0" and _STATUS.search(ends) is None


def still_runs(result: str) -> bool:
    """True if an exec tool says that the program has not ended yet."""
    return result.startswith("Chunk ID:") and "\nProcess running with" in result[:_CODE_CHARS]


def _with_code(output: str, code: str | None) -> str:
    output = output.strip()
    if code in (None, "0"):
        return output
    return f"{output}\nexit code {code}".lstrip()


def readable(result: str) -> str:
    """The output of a program, and a short JSON answer with the escapes that spell other scripts
    in it as letters."""
    output = _program_output(result)
    if output is not None:
        return output
    if len(result) > _ESCAPED_CHARS or result[:1] not in ("{", "[") or "\\u" not in result:
        return result
    return _ESCAPE.sub(lambda escape: chr(int(escape.group(1), 16)), result)


def without_volatile(text: str) -> str:
    """The text with times, random ids, addresses, temporary paths and line numbers as one mark."""
    if _IDS.may_be_in(text):  # in most texts no word can be an id, and this is much quicker
        words = [w for w in text.translate(_BETWEEN_WORDS).split() if len(w) >= _RANDOM_ID_CHARS]
        # The last part of a UUID may consist of letters only.
        if any(not word.isalpha() or f"-{word}" in text for word in words):
            text = _RANDOM_ID.sub(_random_id, text)
    return _VOLATILE.sub("#", _MEASURED.sub(_measured, text))


def _random_id(found: re.Match[str]) -> str:
    word = found.group()
    return word if word.isalpha() or word.isdigit() else "#"


def _measured(found: re.Match[str]) -> str:
    name = found.string[max(found.start() - _NAME_CHARS, 0) : found.start()].lower()
    return ":#" if any(mark in name for mark in _TIME_NAMES) else found.group()


def failure_line(result: str, *, reads_content: bool = False) -> str | None:
    """The line in which a result reports a failure, or None. Never raises. `reads_content`: the
    tool shows files or search hits; then only a short answer whose first line is the tool's
    complaint counts."""
    if not result:
        return None
    if result[0] in "{[" and _JSON.match(result):
        head = result[:HEAD_CHARS]
        failed = _JSON_ERROR.search(head) or _FLAGGED.search(result[-_FLAG_CHARS:])
        if failed:
            return head[:SIGNATURE_CHARS]
        return None
    if _LISTING.match(result) or (reads_content and len(result) > _READ_FAILURE_CHARS):
        return None
    text = excerpt(result)
    lowered = text.lower()
    if not _SUSPECTS.may_be_in(lowered):
        return None
    possible = _SUSPECT_WORDS
    if lowered.isascii():
        possible = _ASCII_SUSPECTS
    suspects = [word for word in possible if word in lowered]
    if not reads_content:
        if suspects:
            return _last_failure(text, lowered, suspects)
        return None
    first = text.split("\n", 1)[0][:_LINE_CHARS]
    complains = suspects and not _GREP_HIT.match(first) and _is_failure(first.strip())
    if complains:
        return first
    return None


def decisive_line(result: str, *, reads_content: bool) -> str:
    """The line of a failed result that a person would read first, "" when it is blank. A headline
    is followed by what it announces; the number of failures is left out."""
    text = readable(result.strip())
    if text[:1] in ("{", "[") and (found := _JSON_MESSAGE.search(text[:HEAD_CHARS])):
        return found.group(1).strip()
    line = failure_line(text, reads_content=reads_content)
    if line is None:
        return text[:_LINE_CHARS].split("\n", 1)[0].strip()
    if line.startswith(("Usage:", "usage:")):  # what is wrong may be in the line below
        line = next((each for each in text.split("\n") if each.startswith("Error: ")), line)
    last = line.rpartition(" / ")[2]
    named = _TEST_ONLY.match(last) is not None
    if named or is_bare(line):
        lines = [each.strip() for each in excerpt(text).split("\n") if each.strip()]
        places = [each for each in lines if _COMPLAINT.match(each)]
        named_at = places or [each for each in reversed(lines) if not (named or is_bare(each))]
        return (named_at or [last])[0][:_LINE_CHARS]
    parts = line.split(" / ")
    while len(parts) > 1 and (_SEVERAL.match(parts[0]) or _COUNT.search(parts[0])):
        del parts[0]
    return _announced(excerpt(text), " / ".join(parts))


def is_bare(failure: str) -> bool:
    """True for a line that says that something failed, but not what."""
    return _BARE.fullmatch(failure.rpartition(" / ")[2].strip()) is not None


def _announced(text: str, line: str) -> str:
    """`line`, with the text after it that says what it only announces."""
    at = text.rfind(line)
    after = [each for each in text[at + len(line) :].split("\n")[1:] if each.strip()]
    if at < 0 or not after:
        return line
    if line.startswith("Traceback"):
        plain = [each for each in after if not each[:1].isspace()]
        return (plain[0] if plain else after[-1]).strip()[:_LINE_CHARS]
    if line.endswith(":") and len(line) < _HEADLINE_CHARS:
        return f"{line} {after[0].strip()}"[:_LINE_CHARS]
    points = [each.strip() for each in after[:3] if each.lstrip().startswith("- ")]
    if points:
        return f"{line.partition('. ')[0]} {points[0]}"[:_LINE_CHARS]
    return line


def _last_failure(text: str, lowered: str, suspects: list[str]) -> str | None:
    """The last line that names what failed, else a summary; with the number of failures, because
    one failure less under the same last message is progress."""
    if len(lowered) != len(text):  # a few letters change length with their case
        text = lowered
    count = summary = headline = last = ""
    different = set()
    end = len(text)
    for _ in range(_MAX_LINES):
        position = max([lowered.rfind(word, 0, end) for word in suspects])
        if position < 0:
            break
        position += lowered[position] == "\n"
        start = text.rfind("\n", 0, position) + 1
        line = text[start : start + _LINE_CHARS].split("\n", 1)[0].strip()
        end = start
        prefix = _LOG_PREFIX.match(line)
        plain = line
        if prefix:
            plain = line[prefix.end() :] or line
        if not _is_failure(plain, line) or _BOILERPLATE.match(plain) is not None:
            continue
        if plain.startswith("Traceback"):
            headline = line
        elif _COUNT.search(line) is not None:
            count = count or plain.strip("= ")
        elif _SUMMARY.match(plain):
            if _EXIT_ONLY.search(summary):
                summary = plain
            else:
                summary = summary or plain
        else:
            last = last or plain
            # Each failing test counts; an error that is logged once more is the same error.
            different.add(str(start) if _FAILED_TEST.match(plain) else signature(plain))
    if last.startswith(_BARE_TEST):
        after = text[text.rfind(last) + len(last) :].split("\n", 2)[1:2]
        if after and after[0][:1].isspace():  # one test can fail in many ways
            last = f"{last} {after[0].strip()}"
    if headline and not last:
        last = _announced(text, headline)
    elif last.endswith(":"):
        last = _announced(text, last)
    summary = last or summary
    if _EXIT_ONLY.search(summary):
        summary = _with_reason(text, summary)
    if (summary or count or headline) and _VALUES.search(summary) is None:
        details = [found.strip() for found in _DETAIL.findall(text)[:_DETAILS]]
        if summary:
            summary = " / ".join([summary, *details])
        else:
            summary = " / ".join(details)
    several = ""
    if len(different) > 1:
        several = f"{len(different)} x"
    parts = filter(None, (several, count, summary or headline))
    return " / ".join(parts)[:_LINE_CHARS] or None


def _with_reason(text: str, code: str) -> str:
    """An exit code, which many failures share, behind the last line that says more."""
    lines = [line.strip() for line in text.split("\n")]
    said = [
        line for line in lines if line and not (_EXIT_ONLY.search(line) or _BOILERPLATE.match(line))
    ]
    if said:
        return f"{said[-1][:SIGNATURE_CHARS]} ({code})"
    return code


def _is_failure(line: str, logged: str = "") -> bool:
    """True if a line reports a failure; `logged`: the line with the prefix of a log."""
    if logged.startswith(_LEVELS):
        return _ZERO.search(line) is None
    if _FAILURE_LINE.match(line) is None and _FAILURE_PART.search(line) is None:
        return False
    return _ZERO.search(line) is None or _FAILURE_PART.search(_ZERO.sub("", line)) is not None


def signature(line: str) -> str:
    """Stable part of a failure line: the line without its volatile parts."""
    if stuck := _STUCK.search(line):
        pod = _POD.match(line)
        return f"{pod[1] if pod else ''} {stuck.group()}"
    if is_of_object(line):
        return " ".join(without_volatile(line).split())[:SIGNATURE_CHARS]
    line = _PLACE.sub("", _COLUMN.sub("", without_volatile(line)))
    line = (_NUMBER if _VALUES.search(line) else _ID_NUMBER).sub("#", line)
    return " ".join(line.split())[:SIGNATURE_CHARS]


def is_of_object(failure: str) -> bool:
    """True for a failure that says something of the host or table which it names."""
    return _OF_OBJECT.search(failure) is not None


def is_empty(result: str) -> bool:
    """True for an answer that carries nothing: blank, an empty list, "no matches found"."""
    text = result[:80].strip()
    return text.lower() in _EMPTY_ANSWERS or _EMPTY_OPENING.match(text) is not None
