"""The completions, evaluated by the shells themselves."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from gateway.cli import build_parser
from gateway.commands.completion import script

# What stands in for the shell's own completion system: the words typed, and how they are offered.
ASK = {
    "bash": """
complete() {{ :; }}
{script}
COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_gateway_complete
printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    "zsh": """
compdef() {{ : }}
compadd() {{ shift; print -rl -- ${{(M)@:#${{words[CURRENT]}}*}} }}
{script}
words=({line}); CURRENT=${{#words}}
_gateway_complete
""",
}


@pytest.mark.parametrize("shell", ASK)
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("gateway check-c", ["check-config"]),
        ("gateway runs li", ["list"]),
        ("gateway runs list --js", ["--json"]),
        ("gateway runs list --tenant a --st", ["--state"]),
        ("gateway completion z", ["zsh"]),
    ],
)
def test_a_shell_completes(shell: str, line: str, offered: list[str]) -> None:
    """Commands, verbs, options and choices, from what stands before."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    asked = ASK[shell].format(script=script(shell, build_parser()), line=line)
    quiet = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"]}[shell]
    ended = subprocess.run(
        [shell, *quiet, "-c", asked], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.stdout.split(), ended.stderr) == (offered, "")
