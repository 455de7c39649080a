"""`gateway completion SHELL`: a script that completes the commands and their options."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any

PROGRAMS = ("gateway", "steering-gateway")
SHELLS = ("bash", "zsh", "fish")

Known = dict[tuple[str, ...], list[str]]
"""By command and verb: what may follow."""


def add_parser(commands: Any, parser: Callable[[], argparse.ArgumentParser]) -> None:
    """Declare the command; `parser` gives the parser of all commands."""
    completion = commands.add_parser(
        "completion", help='print the completions of a shell: eval "$(gateway completion bash)"'
    )
    completion.add_argument("shell", choices=SHELLS, help="your shell")
    completion.set_defaults(run=lambda args: _print(script(args.shell, parser())))


def tree(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser, str]]:
    """(words, parser, help) of each command and verb, in order; the whole program comes first."""
    yield path, parser, parser.description or ""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            for name, child in action.choices.items():
                for words, below, said in tree(child, (*path, name)):
                    yield words, below, said or helps.get(words[-1], "")


def words_after(parser: argparse.ArgumentParser) -> list[str]:
    """What may follow: verbs, options, and the choices of arguments."""
    found: list[str] = []
    for action in parser._actions:
        if action.option_strings:
            found += [option for option in action.option_strings if option.startswith("--")]
        elif action.choices is not None:
            found += [str(choice) for choice in action.choices]
    return found


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The completions of a shell as text for it to evaluate."""
    known = {path: words_after(each) for path, each, _ in tree(parser)}
    if shell == "fish":
        return "\n".join(_fish(known)) + "\n"
    return (_zsh if shell == "zsh" else _bash)(known)


def _bash(known: Known) -> str:
    return f"""_gateway_complete() {{
{_words_of_place(known, '"${COMP_WORDS[@]:1:COMP_CWORD-1}"')}
  COMPREPLY=($(compgen -W "$found" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _gateway_complete {" ".join(PROGRAMS)}
"""


def _zsh(known: Known) -> str:
    return f"""_gateway_complete() {{
{_words_of_place(known, '"${(@)words[2,CURRENT-1]}"')}
  compadd -- ${{=found}} || _files
}}
(( $+functions[compdef] )) || {{ autoload -U compinit && compinit }}
compdef _gateway_complete {" ".join(PROGRAMS)}
"""


def _words_of_place(known: Known, before: str) -> str:
    """Shell code that finds the words which may follow; `before`: those before the cursor."""
    longer = "|".join(f'"{" ".join(path)}"' for path in known if path)
    cases = "\n".join(
        f'    "{" ".join(path)}") found="{" ".join(words)}" ;;' for path, words in known.items()
    )
    return f"""  local word place="" next="" found=""
  for word in {before}; do
    next="${{place:+$place }}$word"
    case "$next" in
      {longer}) place="$next" ;;
    esac
  done
  case "$place" in
{cases}
  esac"""


def _fish(known: Known) -> Iterator[str]:
    for program in PROGRAMS:
        for path, words in known.items():
            if len(path) > 1:
                condition = "; and ".join(f"__fish_seen_subcommand_from {name}" for name in path)
            elif path:
                condition = f"__fish_seen_subcommand_from {path[0]}"
            else:
                condition = "__fish_use_subcommand"
            for word in words:
                kind = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
                yield f"complete -c {program} -n '{condition}' {kind}"


def _print(text: str) -> int:
    sys.stdout.write(text)
    return 0
