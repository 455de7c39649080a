"""Tool calls read as an operation, the program that runs, and the files that change."""

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from gateway.core.ledger.entries import quoted
from gateway.core.short_cache import remembered
from gateway.core.step import Effect, FileEdit
from gateway.steering.evidence.arguments import CallArguments, is_noise
from gateway.steering.evidence.results import is_look_up
from gateway.steering.word_lists import word_list
from gateway.values import FieldDict, Fields, Value

_MOST_LABELS = 256  # of the newest calls: a failure is named in several texts
_MAX_JSON_CHARS = 200_000
_JSON_BLANKS = " \t\n\r"
_COMMAND_CHARS = 400
_SUBCOMMAND_CHARS = 24
_SQUEEZED_CHARS = 1000
LABELLED_CHARS = 2000  # of a call's arguments, that are read for its label

SHELL_TOOLS = frozenset(word_list("commands", "shell_tools"))
_SHELL_NAME = re.compile(r"bash|shell|terminal|command|cmd|exec|console", re.IGNORECASE)
PLAN_NAME = re.compile(
    r"(?:todo_?(?:write|list)|(?:write|update|manage)_?(?:todos?|todo_?list|plan))$", re.IGNORECASE
)
_TYPES_NAME = re.compile(r"stdin|send_?(?:keys|input)|terminal_?input", re.IGNORECASE)
_TYPED_KEYS = ("chars", "input", "keys", "text")
_KEY_CHARS = 6  # longer input is a statement
_SED_RANGE = re.compile(r"\bsed\s+-n\s+['\"]?(\d{1,8}),(\d{1,8})p['\"]?\s+([^\s|;&<>]{1,400})")
_DIGITS = re.compile(r"-?\d{1,8}")
_COMMAND_KEYS = ("command", "cmd", "script", "code", "input")
_COMMAND_LINE_KEYS = ("command", "cmd", "commandline")
_RUNS_IN = "workdir"  # an argument that only shells have, whatever their name
_PATH_KEYS = ("file_path", "path", "filePath", "absolute_path", "target_file")
_POINTS = 100
_FIRST_KEYS = ("offset", "start_line", "startLine")
_LAST_KEYS = ("end_line", "endLine")
_READERS = frozenset(word_list("commands", "readers"))
_READER_NAME = re.compile(
    r"(?:read|view|open|show|cat|fetch)[_-]?(?:\w*[_-])?"
    r"(?:file|text|document|page|source|code|lines|notebook)|(?:web|internet)[_-]?(?:search|fetch)"
    r"|(?:fetch|visit|browse|crawl|scrape)(?:[_-]?(?:url|web|site|website))?$",
    re.IGNORECASE,
)
_SERVER = re.compile(r"^(?:mcp__)?\w+?__")  # the server in front of a tool's name, from MCP clients
_WAIT_NAME = re.compile(
    r"(?:^|[_\W])(?:wait|sleep|pause|poll)(?:$|[_\W])|^(?:wait|poll)[A-Z]", re.IGNORECASE
)
_WAIT_COMMAND = re.compile(r"\s*(?:cd\s+\S+\s*(?:&&|;)\s*)?(?:sleep|Start-Sleep)\s")
_SKIPPED_WORDS = frozenset(word_list("commands", "skipped_words"))
_SEGMENT = re.compile(r"&&|\|\||;|\n|\|")
_ASSIGNMENT = re.compile(r"(?:(?<!\w)\w++=\S*+(?:\s++|\Z))+")
_CHANGES_FILES = re.compile(
    r"(?<![0-9&2])>{1,2}\s*(?!&|/dev/null)\S|\bsed\s++(?:-\w++\s++){0,8}-\w*i|\btee\b"
    r"|\b(?:rm|mv|cp|touch|mkdir)\s"
    r"|\bgit\s+(?:apply|bisect|checkout|cherry-pick|merge|pull|rebase|reset|restore|revert|stash"
    r"|switch)\b|\bpatch\b|\binstall\b|\bcreate\b"
)
_CHANGERS = frozenset(word_list("commands", "changers"))
_ASKING_PROGRAMS = frozenset(word_list("commands", "asking_programs"))
_ASKING_WORDS = frozenset(word_list("commands", "asking_words"))
_PROGRAMS = re.compile(
    r"(?:python[\d.]*|node|deno|bun|ruby|perl|php|java|go|cargo|dotnet|mvnw?|gradlew?|make|cmake"
    r"|ctest|npm|npx|yarn|pnpm|pytest|py\.test|tox|nox|jest|vitest|rspec|phpunit|tsc|javac|gcc"
    r"|g\+\+|bash|sh)$"
)
_TEST_NAME = re.compile(r"(?:^|[_\W])tests?(?:$|[_\W])|pytest|run_?tests?")
_TEST_RUNNERS = frozenset(word_list("commands", "test_runners"))
_COMMIT_NAME = re.compile(r"commit|submit", re.IGNORECASE)
# Operations that leave no change by the agent.
_COMMIT_COMMAND = re.compile(r"\bgit\s+(?:commit|restore|reset|stash(?!\s+(?:pop|apply)))\b")
PLUMBING = re.compile(
    r"(?:(?<!\s)\s++|)(?:2>&1|\|\s*+(?:head|tail|grep|less|cat)\b[^|;&]*)"
    r"|^\s*cd\s+\S+\s*(?:&&|;)\s*"
)  # white space is tried once, from its first character on: the search stays linear


class ReadCall(Value):
    """A tool call, read."""

    operation: str  # the tool with its sub-command; for a shell the program that it starts
    canonical: str  # the arguments' text, equal whatever their order and spacing
    question: CallArguments  # the arguments, read only when another call is compared with this one
    program: str | None  # what is executed; None when nothing is
    effect: Effect  # what the call does to files and to the run
    edits: tuple[FileEdit, ...]  # changes of files that the arguments state
    # (file, first line, last line) that it shows; None when not stated
    span: tuple[str, int, int] | None = None
    command: str = ""  # the command line that a shell runs; "" for another tool


class LabelText(Value):
    """The call as text, from which its label is made when somebody is shown it."""

    tool: str  # the tool's name
    arguments: str  # the first LABELLED_CHARS characters

    @property
    def label(self) -> str:
        """The object of the call: its command line, else the tool with the file, address or
        query."""
        return _label(self.tool, self.arguments)


@lru_cache(maxsize=_MOST_LABELS)
def _label(tool: str, arguments: str) -> str:
    command = shell_command(tool, arguments)
    if command:
        return quoted(command)
    named = named_object(arguments)
    return quoted(f"{tool} {named}" if named else tool)


class _Tool(Value):
    """Facts from a tool's name alone."""

    shell: bool  # it runs command lines
    names_shell: bool  # its name sounds like a shell; the arguments decide
    plans: bool  # it writes a list of what is to be done
    types: bool  # it sends input to a program that already runs
    tests: bool  # it runs tests
    waits: bool  # it lets time pass
    settles: bool  # its success makes the state of the files a good one


@remembered
def _tool(name: str) -> _Tool:
    tests = _names_test(name)
    return _Tool(
        shell=name.lower() in SHELL_TOOLS,
        names_shell=_SHELL_NAME.search(name) is not None,
        plans=PLAN_NAME.search(name) is not None,
        types=_TYPES_NAME.search(name) is not None,
        tests=tests,
        waits=_WAIT_NAME.search(name) is not None,
        settles=tests or _COMMIT_NAME.search(name) is not None,
    )


def read_call(name: str, arguments: str) -> ReadCall:
    """The call as an operation on the world. Never raises; unknown tools give an empty effect."""
    values = parsed(arguments)
    tool = _tool(name)
    waits = tool.waits
    if isinstance(values, dict) and (tool.plans or tool.types):
        values, typed = _plan_or_session(values, plans=tool.plans)
        waits = waits or not typed
    canonical = _canonical(values, arguments)
    command = _shell_command(tool, values, arguments)
    question = CallArguments(values, arguments, command)
    if command is not None:
        return _shell_call(command, canonical, question)
    operation = name
    sub = None
    if isinstance(values, dict):
        sub = values.get("command")
    if isinstance(sub, str) and 0 < len(sub) <= _SUBCOMMAND_CHARS and " " not in sub:
        operation = f"{name}.{sub}"
    edits = edits_of(operation, values, arguments)
    effect = Effect(
        reads=_reads_content(operation),
        changes=bool(edits),
        waits=waits,
        settles=tool.settles,
        looks_up=is_look_up(operation),
        plans=tool.plans,
        acts=not (_reads_content(operation) or is_look_up(operation) or waits or _touches(name)),
    )
    return ReadCall(
        operation=operation,
        canonical=canonical,
        question=question,
        program=f"{operation} {canonical}" if tool.tests else None,
        effect=effect,
        edits=edits,
        span=_span(values) if effect.reads and isinstance(values, dict) else None,
    )


def _plan_or_session(values: FieldDict, *, plans: bool) -> tuple[FieldDict, bool]:
    """The arguments that count of a plan, how far each of its points is, whatever their words; and
    of input to a program, without a few keys. And whether anything is written or typed."""
    if plans:
        points = next((each for each in values.values() if isinstance(each, list)), [])
        states = [str(each.get("status")) for each in points[:_POINTS] if isinstance(each, dict)]
        begun = sorted([state for state in states if state != "pending"])
        return {"states": " ".join(begun)}, True
    typed = next((str(values[key]) for key in _TYPED_KEYS if key in values), "")
    if len(typed.strip()) > _KEY_CHARS:
        return values, True
    return {k: v for k, v in values.items() if k not in _TYPED_KEYS}, bool(typed)


def _span(values: FieldDict) -> tuple[str, int, int] | None:
    """File, first and last line that a reading tool is asked for; agents that write their calls as
    text give numbers as text."""
    path = next((values[key] for key in _PATH_KEYS if isinstance(values.get(key), str)), None)
    asked = (_FIRST_KEYS, _LAST_KEYS, ("limit",))
    given = [next((values[key] for key in keys if key in values), None) for keys in asked]
    first, last, lines = [int(str(each)) if str(each).isdigit() else None for each in given]
    view = _DIGITS.findall(str(values.get("view_range", ""))[:_SUBCOMMAND_CHARS])
    if len(view) == 2:
        first, last = map(int, view)
    if last is None and first is not None and lines is not None:
        last = first + lines - 1
    if path is None or first is None or last is None or last < first:
        return None
    return path, first, last


def shell_command(name: str, arguments: str) -> str:
    """The command line that a call of a shell runs; "" for another tool."""
    return _shell_command(_tool(name), parsed(arguments), arguments) or ""


_NAMING = word_list("commands", "naming_keys")
_NAMED_CHARS = 200
_SEARCHES = re.compile(  # the name or the pattern that a command looks for
    r"-i?name\s+(\S+)|\b(?:[ef]?grep|rg|ag)\s+(?:-\S+\s+(?:\d+\s+)?)*(\\?[\"'][^\"']+|\S+)"
)
_TERMS = word_list("commands", "term_keys")


def named_object(arguments: str) -> str:
    """Returns the value among a call's arguments that names its object: a file, an address, a
    query; "" without one."""
    values = parsed(arguments)
    if not isinstance(values, dict):
        if isinstance(values, list):
            return ""
        return arguments[:_NAMED_CHARS]
    texts = {key: value for key, value in values.items() if isinstance(value, str | int | float)}
    for key in _NAMING:
        if key in texts:
            return str(texts[key])[:_NAMED_CHARS]
    return next((str(value)[:_NAMED_CHARS] for value in texts.values()), "")


_TOUCHES = re.compile(
    r"click|tap|press|key|type|scroll|hover|swipe|mouse|drag|navigat|screenshot|computer|browser"
    r"|think|plan|todo|task|agent|test|calc|python|interpreter|notebook|repl",
    re.IGNORECASE,
)


def sought(arguments: str) -> str:
    """The term that a search is for, its letters and digits in lower case; "" for another call."""
    values = parsed(arguments)
    term = ""
    if isinstance(values, dict):
        term = next((values[key] for key in _TERMS if isinstance(values.get(key), str)), "")
    if found := _SEARCHES.search(arguments[:_COMMAND_CHARS]):
        term = found[1] or found[2]
    return "".join([sign for sign in term[:_NAMED_CHARS].lower() if sign.isalnum()])


@remembered
def _touches(name: str) -> bool:
    """True for a tool that handles a screen, thinks, computes or asks a helper."""
    return _TOUCHES.search(name) is not None


@remembered
def _reads_content(operation: str) -> bool:
    tool = _SERVER.sub("", operation).rsplit(".", 1)[-1]
    return tool.lower() in _READERS or _READER_NAME.match(tool) is not None


# The function inside `json.loads`, without the four calls around it.
_scan: Callable[[str, int], tuple[Any, int]] = vars(json.JSONDecoder())["scan_once"]


def parsed(arguments: str) -> Any:
    """The arguments of a call as JSON values; None for anything else, and for very long ones."""
    if arguments[:1] not in ("{", "[") or len(arguments) > _MAX_JSON_CHARS:
        return None
    try:
        values, end = _scan(arguments, 0)
    except (ValueError, RecursionError, StopIteration):
        return None
    if end == len(arguments) or not arguments[end:].strip(_JSON_BLANKS):
        return values
    return None


def _canonical(values: Any, arguments: str) -> str:
    if not isinstance(values, dict):
        return " ".join(arguments.split())
    return " ".join([f"{key}={_plain(values[key])}" for key in sorted(values) if not is_noise(key)])


_serialise = json.JSONEncoder(sort_keys=True).encode


def _plain(value: Any) -> str:
    if type(value) is int:  # no bool
        return repr(value)
    if isinstance(value, str):
        text = value
    else:
        text = _serialise(value)
    if len(text) > _SQUEEZED_CHARS:
        return text
    return " ".join(text.split())


def _shell_command(tool: _Tool, values: Any, arguments: str) -> str | None:
    named = tool.names_shell or (isinstance(values, dict) and _RUNS_IN in values)
    if not (tool.shell or (named and isinstance(values, dict))):
        return None
    if not isinstance(values, dict):
        if values is None:
            return arguments
        return None
    for key in _COMMAND_KEYS if tool.shell else _COMMAND_LINE_KEYS:
        value = values.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            parts = [str(part) for part in value]
            runs_script = len(parts) == 3 and parts[1] in ("-c", "-lc", "/c", "-Command")
            if runs_script:
                return parts[2]
            return " ".join(parts)
    return None


def _shell_call(command: str, canonical: str, question: CallArguments) -> ReadCall:
    head = command[:_COMMAND_CHARS]
    word = _first_program(head)
    may_change = ">" in head or not _CHANGERS.isdisjoint(head.split())
    changes = may_change and _CHANGES_FILES.search(head) is not None
    executes = _PROGRAMS.match(word) is not None or _names_test(head)
    edits = command_edits(command)
    if "<<" in head and len(command.rstrip().rsplit("\n", 1)[-1].split()) > 1:
        # Written for the program that runs behind it: a set-up is made again for each test.
        edits = tuple([edit for edit in edits if edit.old])
    reads = word in _READERS and not changes and not edits
    program = None
    if executes and not reads:
        program = PLUMBING.sub("", head).strip()
    if word == "git":
        settles = _COMMIT_COMMAND.search(head) is not None
    else:
        settles = word in _TEST_RUNNERS or (executes and _names_test(head))
    shown = None
    if word == "sed" and reads:
        shown = _SED_RANGE.search(head)
    effect = Effect(
        reads=reads,
        changes=changes or bool(edits),
        waits=not executes and _WAIT_COMMAND.match(head) is not None,
        settles=settles and not reads,
        looks_up=_only_asks(word, head),
    )
    return ReadCall(
        operation=f"${word}",
        canonical=canonical,
        question=question,
        program=program,
        effect=effect,
        edits=edits,
        span=(shown[3], int(shown[1]), int(shown[2])) if shown else None,
        command=command,
    )


def _only_asks(word: str, command: str) -> bool:
    """True if a program only asks, by its name or its first argument: `which`, `pip show`."""
    if not word or word in _ASKING_PROGRAMS:
        return bool(word)  # `/` names no program
    after = command.partition(word)[2][:_SUBCOMMAND_CHARS].split()
    return bool(after) and after[0] in _ASKING_WORDS


def _names_test(text: str) -> bool:
    lowered = text.lower()
    return "test" in lowered and _TEST_NAME.search(lowered) is not None


def _first_program(command: str) -> str:
    """The first word that does something: past `cd`, assignments and wrappers."""
    for segment in _SEGMENT.split(command):
        if "=" in segment:
            segment = _ASSIGNMENT.sub("", segment.strip() + " ")
        words = segment.split()
        while words and (words[0] in _SKIPPED_WORDS or words[0].isdigit()):
            if words[0] == "command" and words[1:2] in (["-v"], ["-V"]):
                break  # it says where a program is
            if words[0] in ("cd", "export", "source", ".", "set"):
                words = []
            else:
                words = words[1:]
        if words and not words[0].startswith("#"):
            return words[0].rsplit("/", 1)[-1]
    return "sh"


# `sed -n -i -e 's/`: the limits keep the search linear, real commands have one or two flags.
_SED = re.compile(
    r"\bsed\s++(?:-\w++\s++){0,8}-(?=\w*i)\w++(?:\s++(?:-e|''|\"\")){0,8}+\s++"
    r"(['\"])s([/|#,@])"
)
_SED_DIVIDER = {mark: re.compile(rf"(?<!\\){re.escape(mark)}") for mark in "/|#,@"}
_SED_END = {
    (quote, mark): re.compile(rf"(?<!\\){re.escape(mark)}\w*+{quote}\s++([^\s;&|]++)")
    for quote in "'\""
    for mark in "/|#,@"
}

_HEREDOC_MARK = re.compile(
    r"<<-?\s*+(['\"]?)(\w++)\1[ \t]*+(?:>\s*+([^\s<]++)[ \t]*+)?\n", re.DOTALL
)
_HEREDOC_PROGRAM = re.compile(r"\b(?:cat|tee)\b")
_LINE_WORD = re.compile(r"\n(\w++)")
_FILE_NAME_END = re.compile(r"[\s<>]")

_BLOCK_OPENING = re.compile(r"(?<!<)<{5,}+\s*+SEARCH\s*\n")
_BLOCK_DIVIDER = re.compile(r"(?<!=)={5,}+\s*\n")
_BLOCK_END = re.compile(r"(?<!>)>{5,}+\s*+REPLACE")


def sed_substitutions(command: str) -> Iterator[tuple[str, str, str]]:
    """(file, old, new) of each `sed -i 's/old/new/' file`, whose expression is on one line."""
    ends: dict[tuple[str, str], re.Match[str] | None] = {}
    at = 0
    line_end = -1
    while head := _SED.search(command, at):
        at = start = head.end()
        if line_end < start:
            line_end = command.find("\n", start)
            if line_end < 0:
                line_end = len(command)
        divider = _SED_DIVIDER[head[2]].search(command, start, line_end)
        if divider is None:
            continue
        key = (head[1], head[2])
        end = ends.get(key)
        if key not in ends or (end is not None and end.start() < divider.end()):
            end = ends[key] = _SED_END[key].search(command, divider.end())
        if end is not None and end.start() < line_end:
            yield end[1], command[start : divider.start()], command[divider.end() : end.start()]
            at = end.end()


def here_documents(command: str) -> Iterator[tuple[str, str]]:
    """(file, body) of each here-document that `cat` or `tee` gets; a file may be empty."""
    ends: dict[str, list[int]] | None = None
    at = least = 0
    while mark := _HEREDOC_MARK.search(command, at):
        at = mark.end()
        name = _heredoc_file(command, least, mark.start())
        if name is None:
            continue
        if ends is None:  # the line ends before each word that begins a line
            ends = {}
            for word in _LINE_WORD.finditer(command):
                ends.setdefault(word[1], []).append(word.start())
        positions = ends.get(mark[2], [])
        found = bisect_left(positions, at)
        if found < len(positions):
            end = positions[found]
            yield name or mark[3] or "", command[at:end]
            at = least = end + 1 + len(mark[2])


def _heredoc_file(command: str, least: int, mark: int) -> str | None:
    """The file before the `<<` at `mark`, "" without one; None when `cat` or `tee` is not there.
    Reads backwards to `least`: blanks, a name, perhaps `>`, and the line of the program."""
    start = max(least, command.rfind("<", least, mark) + 1)
    before = command[start:mark].rstrip()
    name_start = len(before)
    while name_start > 0 and _FILE_NAME_END.match(before[name_start - 1]) is None:
        name_start -= 1
    line = before[:name_start]
    stripped = line.rstrip()
    if stripped.endswith(">"):
        first = _line_start(stripped[:-1])
        if _HEREDOC_PROGRAM.search(command, start + first, start + len(stripped) - 1):
            return before[name_start:]
        first = name_start
    else:
        first = _line_start(line)
    program = _HEREDOC_PROGRAM.search(command, start + first, start + len(before))
    if program is None:
        return None
    return before[max(name_start, program.end() - start) :]


def _line_start(text: str) -> int:
    return max(text.rfind("\n"), text.rfind(">")) + 1


def search_replace_blocks(text: str) -> Iterator[tuple[str, str]]:
    """(old, new) of each SEARCH/REPLACE block."""
    at = 0
    while opening := _BLOCK_OPENING.search(text, at):
        divider = _BLOCK_DIVIDER.search(text, opening.end())
        end = None
        if divider:
            end = _BLOCK_END.search(text, divider.end())
        if divider is None or end is None:
            return
        old = text[opening.end() : divider.start()].removesuffix("\n")
        yield old, text[divider.end() : end.start()].removesuffix("\n")
        at = end.end()


# Argument names in lower case without underscores; the first that is present counts.
_FILE_KEYS = word_list("commands", "file_keys")
_OLD_KEYS = word_list("commands", "old_text_keys")
_NEW_KEYS = word_list("commands", "new_text_keys")
_PATCH_KEYS = ("patch", "diff", "input", "changes")

_EDIT_NAME = re.compile(
    r"edit|write|replace|patch|create|insert|overwrite|append|diff|update|modify|save", re.I
)
_PATCH_FILE = re.compile(r"(?m)^(?:\*\*\* (?:Update|Add|Delete) File: |\+\+\+ (?:b/)?)(\S+)")
# Characters in which edits are looked for. A longer command is data written to a file, which would
# take 0.5 s of CPU for 1 MB; a model writes no longer patch in one reply.
EDIT_COMMAND_CHARS = 65_536
PATCH_CHARS = 262_144


def _edit(path: str, old: str, new: str) -> FileEdit:
    """Returns the edit with the digests of both texts, blanks at their ends removed; the digests
    hold within one process."""
    before, after = (hash(text) if (text := side.strip()) else 0 for side in (old, new))
    return FileEdit(path=path, old=before, new=after, is_line="\n" not in new.strip())


def edits_of(operation: str, values: Any, arguments: str) -> tuple[FileEdit, ...]:
    """The edits that a call of an editing tool asks for; `values` are its parsed arguments."""
    if not _may_edit(operation):
        return ()
    if not isinstance(values, dict):
        return _patch_edits(arguments)
    given = _squeezed(values)
    path = _first_text(given, _FILE_KEYS)
    for key in _PATCH_KEYS:
        if not isinstance(patch := given.get(key), str):
            continue
        if edits := _patch_edits(patch):
            return edits
        if blocks := list(search_replace_blocks(patch[:PATCH_CHARS])):
            old, new = ("\n".join(side) for side in zip(*blocks, strict=True))
            return (_edit(path, old, new),)
        if path and patch:
            return (_edit(path, "", patch[:PATCH_CHARS]),)
    old, new = _old_and_new(given)
    region = given.get("lines") or given.get("insertline")
    if region and not old:
        path = f"{path}:{region}"
    if (path and new) or old:
        return (_edit(path, old, new),)
    return ()


@remembered
def _may_edit(operation: str) -> bool:
    return not operation.endswith(".view") and _EDIT_NAME.search(operation) is not None


def _old_and_new(given: Fields) -> tuple[str, str]:
    several = given.get("edits")
    if not isinstance(several, list):
        return _first_text(given, _OLD_KEYS), _first_text(given, _NEW_KEYS)
    parts = [_old_and_new(_squeezed(each)) for each in several if isinstance(each, dict)]
    return "\n".join([old for old, _ in parts]), "\n".join([new for _, new in parts])


def command_edits(command: str) -> tuple[FileEdit, ...]:
    """The edits of a command that contains its file and content: patch, `sed s`, here-document."""
    command = command[:EDIT_COMMAND_CHARS]
    if "*** Begin Patch" in command:
        return _patch_edits(command)
    if "<<" in command:
        return tuple(_edit(file, "", body) for file, body in here_documents(command) if file)
    if "sed" in command:
        return tuple(_edit(*edit) for edit in sed_substitutions(command))
    return ()


def _patch_edits(patch: str) -> tuple[FileEdit, ...]:
    parts = _PATCH_FILE.split(patch[:PATCH_CHARS])
    edits = []
    for path, body in zip(parts[1::2], parts[2::2], strict=False):
        lines = body.split("\n")
        old = "\n".join(line[1:] for line in lines if line.startswith("-") and line[:3] != "---")
        new = "\n".join(line[1:] for line in lines if line.startswith("+"))
        edits.append(_edit(path, old, new))
    return tuple(edits)


def _squeezed(values: Fields) -> FieldDict:
    return {_bare(key): value for key, value in values.items()}


@remembered
def _bare(key: str) -> str:
    return key.replace("_", "").lower()


def _first_text(values: Fields, keys: tuple[str, ...]) -> str:
    for key in keys:
        if isinstance(value := values.get(key), str) and value:
            return value
    return ""
