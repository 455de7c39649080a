"""The completions, read by the shells themselves."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from gateway.cli import main

# What stands in for the shell's own completion system: the words typed, and how they are offered.
ASK = """
complete() {{ :; }}
{script}
COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_shtab_gateway gateway "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD - 1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("gateway check-c", ["check-config"]),
        ("gateway runs li", ["list"]),
        ("gateway runs list --js", ["--json"]),
        ("gateway runs list --tenant a --sta", ["--state"]),
        ("gateway completion z", ["zsh"]),
        ("gateway check-config --config pypro", ["pyproject.toml"]),
    ],
)
def test_bash_completes(line: str, offered: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Commands, verbs, options, choices and files, from what comes before."""
    assert main(["completion", "bash"]) == 0
    asked = ASK.format(script=capsys.readouterr().out, line=line)
    quiet = ["bash", "--norc", "--noprofile", "-c", asked]
    ended = subprocess.run(quiet, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.stdout.split(), ended.stderr) == (offered, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_reads_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without an error of syntax; both names of the program are completed."""
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "steering-gateway" in script.splitlines()[-1]
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n"], input=script, text=True, timeout=120, check=True)
