"""Edits inside commands and patches: what is found, and where one form is broken or cut."""

from __future__ import annotations

import pytest

from gateway.steering.evidence.commands import (
    here_documents,
    search_replace_blocks,
    sed_substitutions,
)


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("sed -i 's/a/b/' f", [("f", "a", "b")]),
        ("sed -n -i -e 's#a/b#c#g' x.py; ls", [("x.py", "a/b", "c")]),
        ("sed -i '' \"s/a/b/\" f", [("f", "a", "b")]),
        (r"sed -i 's/a\/b/c/' f", [("f", r"a\/b", "c")]),
        ("sed -i 's/a/b/;s/c/d/' f", [("f", "a", "b/;s/c/d")]),
        ("sed -i 's/a/b' x; sed -i 's/c/d/' y", [("y", "a", "b' x; sed -i 's/c/d")]),
        ("sed -i 's/a/b/' f && sed -ni 's|c|d|' g", [("f", "a", "b"), ("g", "c", "d")]),
        ("sed -n 's/a/b/' f", []),
        ("sed -i 's/a\n/b/' f", []),
        ("sed -i 's/a/b/'", []),
    ],
)
def test_sed(command: str, found: list[tuple[str, str, str]]) -> None:
    """Substitutions in place are edits of the named file."""
    assert list(sed_substitutions(command)) == found


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("cat > f.py <<'EOF'\nx\ny\nEOF\n", [("f.py", "x\ny")]),
        ("cat <<EOF > f.py\nx\nEOF", [("f.py", "x")]),
        ('sudo tee -a /etc/f <<-"E"\nx\nE', [("/etc/f", "x")]),
        ("cat <<E\nx\nE", [("", "x")]),
        ("cat > a <<E\n1\nE\ncat > b <<F\n2\nEE\nF", [("a", "1"), ("b", "2\nEE")]),
        ("cat > a <<E\nx\nEnd", []),
        ("python <<E\nx\nE", []),
        ("cat >> a <<E\nx\nE", []),
        ("echo x > cat <<E\nx\nE", [("", "x")]),
        ("cat > a <<E\ncat > b <<F\nx\nF", [("b", "x")]),
    ],
)
def test_here_documents(command: str, found: list[tuple[str, str]]) -> None:
    """A here-document written to a file is an edit of it."""
    assert list(here_documents(command)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE", [("a", "b")]),
        ("<<<<<<< SEARCH\n=======\nb\n>>>>>>> REPLACE", [("", "b")]),
        (
            "x\n<<<<< SEARCH \n a\n=====\nb\n>>>>> REPLACE\n<<<<< SEARCH\nc\n=====\n>>>>> REPLACE",
            [(" a", "b"), ("c", "")],
        ),
        ("<<<<<<< SEARCH\na\n=======\nb\n", []),
        ("<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE", []),
    ],
)
def test_search_replace_blocks(text: str, found: list[tuple[str, str]]) -> None:
    """SEARCH/REPLACE blocks are pairs of texts."""
    assert list(search_replace_blocks(text)) == found
