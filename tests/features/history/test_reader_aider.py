"""aider's chat histories: several sessions in one text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.features.history.find import at_home
from gateway.features.history.session import chat_usage
from tests.features.history.logs import PROGRAMS, Counts, counts, read, sessions

LOG = PROGRAMS / "aider-0.86.2.md"
TEXT = LOG.read_text()


def reported(text: str) -> int:
    """The tokens in the reports of a history, by the plainest reading."""
    scale = {"": 1, "k": 1000}
    found = re.findall(r"^> Tokens: ([\d.]+)(k?) sent, ([\d.]+)(k?) received", text, re.M)
    return sum(round(float(a) * scale[b]) + round(float(c) * scale[d]) for a, b, c, d in found)


def test_each_start_begins_a_session() -> None:
    """Each header begins a session; the counts are those of a plain search."""
    found = sessions(LOG)
    assert [counts(each)[:5] for each in found] == [
        Counts(1, 0, 1, 0, 0, 0)[:5],
        Counts(7, 0, 6, 0, 0, 0)[:5],
        Counts(1, 0, 2, 1, 0, 0)[:5],
    ]
    assert sum(counts(each).tokens for each in found) == reported(TEXT)
    assert [each.version for each in found] == ["0.86.2"] * 3
    assert len({each.id for each in found}) == 3
    assert {call.model for each in found for call in each.calls} == {"openai/aid"}
    assert found[0].lines == len(TEXT.splitlines())
    assert not found[0].unread


def test_what_the_person_typed_is_told_from_headings_and_commands() -> None:
    """Only typed messages are said; headings stay in the answers."""
    _, session, _ = sessions(LOG)
    assert [turn.text for turn in session.human] == [
        "count the files",
        "RUN something",
        "why",  # typed as `/ask why`
        "EDIT again please",
        "y",
        "multiline one\n\nline two",
    ]
    answer = session.messages[1]["content"]
    assert answer.startswith("There are two files.")
    assert "#### A heading in the answer\n\n> a quote of mine\n\n# Big heading" in answer


def test_the_report_of_a_failed_edit_is_what_the_model_answers() -> None:
    """A report that aider sent itself comes before the answer to it."""
    _, session, _ = sessions(LOG)
    edit = next(at for at, m in enumerate(session.messages) if m["content"] == "EDIT again please")
    report = session.messages[edit + 2]
    assert report["role"] == "user"
    assert "This SEARCH block failed to exactly match lines in a.txt" in report["content"]
    assert "Are you sure you need this" in report["content"]
    assert session.messages[edit + 3]["content"].startswith("There are two files.")


def test_a_stop_while_nothing_runs_is_no_interruption() -> None:
    """Control-C at the prompt only leaves the program."""
    *_, session = sessions(LOG)
    assert TEXT.count("^C again to exit") == 2
    assert [turn.kind for turn in session.human] == ["message", "interrupt", "message"]


def test_cached_tokens_and_a_price_on_its_own_line(tmp_path: Path) -> None:
    """A report in two lines has all its figures."""
    path = tmp_path / ".aider.chat.history.md"
    path.write_text(
        "\n# aider chat started at 2025-01-02 03:04:05\n\n> Main model: m with diff edit format  \n"
        "\n#### hello  \n\nHi.\n\n"
        "> Tokens: 12k sent, 1.5k cache write, 2.1k cache hit, 1,312 received.\n"
        "Cost: $0.02 message, $0.05 session.  \n"
    )
    (found,) = at_home(tmp_path)
    (session,) = read(found)
    (call,) = session.calls
    assert (call.model, call.cost_usd) == ("m", 0.02)
    details = {"cached_tokens": 2100, "cache_creation_tokens": 1500}
    assert call.usage == chat_usage(12_000, 1312, 2100, 1500)
    assert call.usage["prompt_tokens_details"] == details
    assert session.project == str(tmp_path)


@pytest.mark.parametrize("kept", range(97, len(TEXT), 97))
def test_a_cut_off_history_is_read_to_its_end(tmp_path: Path, kept: int) -> None:
    """A history that begins or ends anywhere is read."""
    path = tmp_path / ".aider.chat.history.md"
    path.write_text(TEXT[:kept])
    assert all(session.messages for session in sessions(tmp_path))
    path.write_text("x" + TEXT[kept:])
    assert all(session.messages for session in sessions(tmp_path))


def test_a_stop_of_aiders_own_retry_is_an_interruption(tmp_path: Path) -> None:
    """Control-C during an answer to aider's own report counts once."""
    path = tmp_path / ".aider.chat.history.md"
    path.write_text(
        "\n# aider chat started at 2024-08-10 11:12:13\n\n#### change it  \n\nI change it.\n\n"
        "> Tokens: 9,000 sent, 1,000 cached, 20 received. Cost: $0.02 message, $0.02 session.  \n"
        "> The edit failed.  \n>  \n>  \n> ^C again to exit  \n"
        "> Tokens: 9,100 sent, 0 received.  \n"
        ">  \n>  \n> ^C again to exit  \n"
    )
    (session,) = sessions(path)
    assert counts(session) == Counts(1, 0, 1, 1, 0, 9020)
    assert session.calls[0].usage["prompt_tokens_details"]["cached_tokens"] == 1000
