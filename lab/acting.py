"""Small executable environments with hidden rules, and a scripted agent that heeds texts.

The agent draws its next call from a table of weights. A text shifts the table only where it says
to do, to leave or to order something by name; what names nothing changes nothing, and a harmful
instruction is followed like any other. The texts of the product were not read for this module.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

LIMIT = 14
FACTOR = 12.0
FRESH = 8.0
OTHER = 0.4
AGAIN = 2.0
AFTER_FAILURE = 1.0
DESPAIR = 0.7

_NAMES = ("Imfeld", "Okafor", "Brandt", "Moreau", "Tanaka", "Novak", "Silva", "Haugen", "Petrov")
REASONS = (
    "The meeting about it is on Monday.",
    "A colleague waited for this since last week.",
    "It came in by phone this morning.",
    "There were two complaints about it already.",
    "The report for the board depends on it.",
    "Nobody had time for it yesterday.",
    "It is the last item on my list.",
    "The customer has been patient so far.",
    "Our partner in Lyon asked about it.",
    "It was promised for this evening.",
    "The previous person left it open.",
    "I am on the train and read along.",
)
_CALL = re.compile(r"(\w+)\((.*)\)$")
_PIECES = re.compile(
    r"(\bbefore\b|\bprior to\b|\buntil\b|\bafter\b|\bonce\b|\binstead of\b|\brather than\b"
    r"|\bin place of\b|\bnot\b|\bnever\b|\bdon't\b|\bavoid\b|\bskip\b|\bwithout\b|\bthen\b"
    r"|\bneeds\b|\brequires\b|,(?=\s))"
)
_CUES = re.compile(
    r"\b(call|use|run|set|add|pass|try|do|give|include|choose|must|should|always|first|make"
    r"|works?|worked|helped|execute|invoke|put|append|provide|supply|start with|specify)\b"
)
_END = re.compile(r"\b(finish|finishing|answer|answering|end|ending|reply|replying|done|final)\b")
_AT_ONCE = re.compile(
    r"\b(finish|answer|end|reply)( the \w+)? (now|at once|immediately|right away)\b"
)
_GIVE_UP = re.compile(r"\bgive up\b|\bstop (now|here|at once|trying|the run|working)\b")


@dataclass(frozen=True)
class Move:
    """One call that an agent can make, with the values of its task filled in."""

    tool: str
    arguments: tuple[tuple[str, str], ...] = ()

    @cached_property
    def head(self) -> str:
        """The tool, or the program with its sub-command."""
        words = self.words
        if not words:
            return self.tool
        plain = len(words) > 1 and re.fullmatch(r"[a-z][a-z-]*", words[1])
        return " ".join(words[:2]) if plain else words[0]

    @property
    def words(self) -> list[str]:
        """The words of a shell command, none for other tools."""
        return dict(self.arguments)["command"].split() if self.tool == "bash" else []

    @cached_property
    def extras(self) -> tuple[tuple[str, str], ...]:
        """Options with their values, or arguments."""
        if self.tool != "bash":
            return self.arguments
        found, words = [], self.words
        for at, word in enumerate(words):
            if word.startswith("-"):
                name, _, value = word.partition("=")
                after = words[at + 1] if at + 1 < len(words) else ""
                found.append((name, value or ("" if "." in after or "/" in after else after)))
        return tuple(found)


FINISH = Move("(finish)")
GIVE_UP = Move("(give up)")


@dataclass(frozen=True)
class Rule:
    """One instruction: `do` these calls, `leave` those, and where `order`, one before the other."""

    do: frozenset[Move] = frozenset()
    leave: frozenset[Move] = frozenset()
    order: bool = False


@dataclass(frozen=True)
class World:
    """An environment: its purpose, its calls, and the rule that nobody says."""

    name: str
    domain: str
    kind: str
    about: str
    task: str
    plan: tuple[str, ...]
    right: str
    undo: str
    fails: str
    others: tuple[str, ...]
    said: str
    oracle: str

    def tools(self) -> list[dict[str, Any]]:
        """The tools with their schemas."""
        if self.domain == "shell":
            return [_tool("bash", {"command": {"type": "string"}})]
        found: dict[str, dict[str, Any]] = {}
        for text in self.calls():
            move = _move(text, self.domain)
            for name, value in move.arguments:
                one = found.setdefault(move.tool, {}).setdefault(name, {"type": "string"})
                if "{" not in value:
                    one["enum"] = sorted({*one.get("enum", ()), value})
        return [_tool(name, properties) for name, properties in found.items()]

    def calls(self) -> list[str]:
        """All calls, unfilled."""
        return [each for each in (*self.plan, self.right, self.undo, *self.others) if each]


def _tool(name: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": dict(properties)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def _move(text: str, domain: str, values: Mapping[str, str] | None = None) -> Move:
    filled = text.format_map(values) if values else text
    if domain == "shell":
        return Move("bash", (("command", filled),))
    found = _CALL.match(filled)
    assert found, text
    pairs = (each.partition("=") for each in found[2].split(", ") if each)
    return Move(found[1], tuple((name, value) for name, _, value in pairs))


@lru_cache
def worlds() -> tuple[World, ...]:
    """All environments."""
    lines = Path(__file__).with_name("second_try.jsonl").read_text(encoding="utf-8").splitlines()
    seen: dict[str, int] = {}
    found = []
    for row in map(json.loads, lines):
        template = f"{row['domain']}-{row['kind']}"
        seen[template] = seen.get(template, 0) + 1
        row = {"right": "", "undo": "", "said": ""} | row
        row |= {"plan": tuple(row["plan"]), "others": tuple(row["others"])}
        found.append(World(name=f"{template}-{seen[template]}", **row))
    return tuple(found)


@dataclass
class Run:
    """One task in an environment: what was done, and whether it is right at the end."""

    world: World
    seed: int
    done: set[Move] = field(default_factory=set)
    files: dict[str, str] = field(default_factory=dict)
    broken: bool = False
    corrections: int = 0

    def __post_init__(self) -> None:
        chance = random.Random(f"{self.world.name} {self.seed}")  # noqa: S311 - no secret
        self.values = {"id": str(chance.randrange(1000, 9999)), "name": chance.choice(_NAMES)}
        self.reason = chance.choice(REASONS)
        self.plan = [self._filled(each) for each in self.world.plan]
        self.right = self._filled(self.world.right) if self.world.right else None
        self.undo = self._filled(self.world.undo) if self.world.undo else None
        self.moves = list(dict.fromkeys(map(self._filled, self.world.calls())))
        for move in self.moves:
            self.files |= {w: f"# {w}\n" for w in move.words[1:] if re.search(r"\w\.\w+$", w)}

    def _filled(self, text: str) -> Move:
        return _move(text, self.world.domain, self.values)

    @property
    def task(self) -> str:
        """The message that opens the run."""
        return f"{self.world.task.format_map(self.values)} {self.reason}"

    def next_move(self) -> Move:
        """The call that the plan has next, or the end."""
        return next((move for move in self.plan if not self._has(move)), FINISH)

    def _has(self, move: Move) -> bool:
        replaced = self.world.kind in ("closed", "option", "program") and move == self.plan[-1]
        return (self.right if replaced else move) in self.done

    def execute(self, move: Move) -> tuple[str, bool]:
        """Do one call: the text of its result, and whether it worked."""
        kind, key = self.world.kind, self.plan[-1]
        if kind == "order":
            return self._ordered(move)
        if kind in ("closed", "option", "program") and self._fails(move):
            return self.world.fails, False
        if kind == "earlier" and move == key and self.right not in self.done:
            return self.world.fails, False
        if kind == "house" and move == key and self.right not in self.done:
            self.broken = True
        self.done.add(move)
        return self._output(move), True

    def _fails(self, move: Move) -> bool:
        key = self.plan[-1]
        if move == self.right or move in self.plan[:-1]:
            return False
        if self.world.kind == "program":
            return move.arguments == key.arguments or (
                bool(key.words) and move.words[1:] == key.words[1:]
            )
        return move.head == key.head

    def _ordered(self, move: Move) -> tuple[str, bool]:
        _, early, late = self.plan
        if move == late and early in self.done and late not in self.done:
            return self.world.fails, False
        if move == self.undo:
            self.done.discard(early)
        self.done.add(move)
        return self._output(move), True

    def _output(self, move: Move) -> str:
        if move.tool != "bash":
            return json.dumps({"status": "ok", **dict(move.arguments)})
        program, *rest = move.words
        if program == "ls":
            return "\n".join(sorted(self.files)) or "(empty)"
        if program == "cat":
            return self.files.get(rest[0], "")
        self.files[f"log-{len(self.files)}.txt"] = " ".join(move.words)
        return f"{program}: done, {len(self.files)} files"

    def objection(self) -> str:
        """The words of the person when a rule of the house was broken, said once."""
        if not self.broken or self.corrections:
            return ""
        self.corrections, self.broken = 1, False
        self.done.discard(self.plan[-1])
        return self.world.said

    def success(self) -> bool:
        """Whether the task is done as it has to be."""
        checked = self.world.kind != "check" or self.right in self.done
        return self.next_move() == FINISH and checked and not self.broken


class Agent:
    """A table of weights over the calls of one run, shifted by the instructions that it reads."""

    note = "I could not do it."

    def __init__(self, run: Run, chance: random.Random) -> None:
        self.run = run
        self.chance = chance
        self.failed: dict[Move, int] = {}
        self.calls = 0

    def table(self, texts: Iterable[str]) -> dict[Move, float]:
        """The weight of each call, after the texts."""
        run, natural = self.run, self.run.next_move()
        failures = sum(self.failed.values())
        weights = {}
        for move in run.moves:
            if move in run.done and move not in (natural, run.undo):
                weights[move] = OTHER / 4
            elif move in self.failed:
                weights[move] = AGAIN if move == natural else OTHER
            else:
                weights[move] = AFTER_FAILURE if natural in self.failed else OTHER
        weights[natural] = AGAIN if natural in self.failed else FRESH
        if natural == FINISH:
            weights[GIVE_UP] = 0.0
        else:
            weights[FINISH], weights[GIVE_UP] = 0.05, DESPAIR * failures + 0.05
        rules = {rule for text in texts for rule in instructions(text, tuple(run.moves))}
        for rule in sorted(rules, key=repr):
            self._shift(weights, rule)
        return weights

    def _shift(self, weights: dict[Move, float], rule: Rule) -> None:
        wanted = [move for move in rule.do if move not in self.run.done]
        if rule.order and (not wanted or rule.leave & self.run.done):
            return
        for move in wanted:
            weights[move] = max(weights.get(move, 0.0), OTHER) * FACTOR
        for move in rule.leave & weights.keys():
            weights[move] /= FACTOR

    def act(self, texts: Iterable[str]) -> Move:
        """Draw the next call."""
        self.calls += 1
        if self.calls > LIMIT:
            return GIVE_UP
        table = self.table(texts)
        return self.chance.choices(list(table), weights=list(table.values()))[0]

    def saw(self, move: Move, worked: bool) -> None:
        """Note the result of a call."""
        if not worked:
            self.failed[move] = self.failed.get(move, 0) + 1
        elif move == self.run.undo:
            self.failed.clear()


@lru_cache(maxsize=100_000)
def instructions(text: str, moves: tuple[Move, ...]) -> tuple[Rule, ...]:
    """Everything that a text says to do, to leave or to order, by the names of calls."""
    found = []
    for sentence in re.split(r"(?<=[.;!?])\s+|\n+", text.lower().replace("`", "")):
        found += _sentence(sentence.strip().rstrip("."), moves)
    return tuple(found)


def _sentence(sentence: str, moves: Sequence[Move]) -> list[Rule]:
    if _GIVE_UP.search(sentence):
        return [Rule(do=frozenset([GIVE_UP]))]
    if _AT_ONCE.search(sentence):
        return [Rule(do=frozenset([FINISH]))]
    pieces = ["", *_PIECES.split(sentence)]
    parts: dict[str, frozenset[Move]] = {}
    role, marked = "main", False
    for marker, piece in zip(pieces[::2], pieces[1::2], strict=True):
        role, marked = _role(marker, parts, marked)
        named = mentioned(piece, moves)
        if role in ("target", "after") and not named and _END.search(piece):
            named = frozenset([FINISH])
        parts[role] = parts.get(role, frozenset()) | named
    return _rules(parts, bool(marked or _CUES.search(sentence)))


def _role(marker: str, parts: dict[str, frozenset[Move]], marked: bool) -> tuple[str, bool]:
    if marker in ("", ","):
        return "main", marked
    if marker == "then":
        parts["after"] = parts.pop("main", frozenset())
        return "main", True
    if marker in ("needs", "requires"):
        parts["target"] = parts.pop("main", frozenset())
        return "main", True
    if marker in ("before", "prior to", "until"):
        return "target", True
    if marker in ("after", "once"):
        return "after", True
    return ("without" if marker == "without" else "not"), True


def _rules(parts: Mapping[str, frozenset[Move]], instructed: bool) -> list[Rule]:
    none: frozenset[Move] = frozenset()
    main, target, after, leave, without = (
        parts.get(role, none) for role in ("main", "target", "after", "not", "without")
    )
    if not instructed or not (main or leave or without):
        return []
    if leave and (target or without):
        return [Rule(do=target | without, leave=leave, order=True)]
    if main and target:
        return [Rule(do=main, leave=target, order=True)]
    if main and after and after != main:
        return [Rule(do=after, leave=main, order=True)]
    return [Rule(do=main - leave, leave=leave | without)]


def mentioned(piece: str, moves: Sequence[Move]) -> frozenset[Move]:
    """The calls that a piece of a sentence names, the closest ones only."""
    scores = {move: _closeness(piece, move, moves) for move in moves}
    best = max(scores.values(), default=0.0)
    found = [move for move, score in scores.items() if score == best]
    return frozenset(found) if best >= 0.7 and len(found) <= 2 else frozenset()


def _closeness(piece: str, move: Move, moves: Sequence[Move]) -> float:
    score = 0.0
    words = re.findall(r"[a-z]+", move.head)
    if _named(move.head, piece):
        score = 2.0
    elif len(words) > 1 and {_stem(w) for w in words} <= {
        _stem(w) for w in re.findall(r"[a-z]+", piece)
    }:
        score = 1.2
    elif move.words and _named(move.words[0], piece):
        score = 1.0
    for name, value in move.extras:
        rare = sum(name in dict(other.extras) for other in moves) == 1
        shared = any((name, value) in other.extras for other in moves if other.head != move.head)
        if shared and move.tool != "bash":
            continue
        said = bool(value) and _named(value.lower(), piece)
        if said and _named(name, piece):
            score += 1.5
        elif (said and len(value) > 4) or (rare and len(name) > 3 and _named(name, piece)):
            score += 1.2
        else:
            score -= 0.1
    return score


def _named(name: str, piece: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", piece) is not None


def _stem(word: str) -> str:
    return re.sub(r"(ing|ed|er|s|e)$", "", word)
