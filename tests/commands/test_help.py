"""What `--help` says: every command and every argument in words, and the help without a command."""

from __future__ import annotations

import argparse

import pytest

from gateway.cli import build_parser, main, tree

_NAMED_BY_THEMSELVES = (argparse._HelpAction, argparse._SubParsersAction, argparse._VersionAction)


def test_every_command_and_argument_is_explained() -> None:
    """Each has a line of its own; none repeats its name only."""
    silent = [
        f"{' '.join(path)} {', '.join(action.option_strings) or action.dest}"
        for path, parser, _ in tree(build_parser())
        for action in parser._actions
        if not isinstance(action, _NAMED_BY_THEMSELVES) and not action.help
    ]
    assert not silent
    assert all(said for _, _, said in tree(build_parser()))


def test_an_error_names_the_help_that_has_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """That of the verb's own command; a config file without `--config` is recognised."""
    for words, said in (
        (["runs"], "Try `gateway runs --help`."),
        (["runs", "show"], "Try `gateway runs show --help`."),
        (["runs", "show", "a", "b"], "Try `gateway runs show --help`."),
        (["demo", "--quick"], "Try `gateway demo --help`."),
        (["check-config", "mine.yaml"], "mine.yaml; a config file is named with --config"),
    ):
        with pytest.raises(SystemExit):
            main(words)
        assert said in capsys.readouterr().err


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """It says what to begin with; the status is that of a wrong use."""
    assert main([]) == 2
    shown = capsys.readouterr().out
    assert "gateway demo" in shown
    assert "gateway wrap -- COMMAND" in shown


def test_the_list_of_commands_is_that_of_their_parsers(capsys: pytest.CaptureFixture[str]) -> None:
    """`gateway --help` reads names and helps without the modules, and says the same."""
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    build_parser().print_help()
    assert capsys.readouterr().out == shown
