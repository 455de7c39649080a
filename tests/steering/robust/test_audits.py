"""Audits: one query, program or long command for each of many things is no loop."""

from __future__ import annotations

import json

import pytest

from gateway.steering.evidence.arguments import CallArguments, is_formal
from tests.steering.robust.test_forms import NAMES, Call, again, alarms, each

TLS = "echo | openssl s_client -connect {}.test:443 2>/dev/null | openssl x509 -noout -subject"
GRAPH = (
    '{{ repository(owner: "a", name: "{}") {{ vulnerabilityAlerts(first: 5) {{ totalCount }} }} }}'
)

AUDITS: dict[str, list[Call]] = {
    "rows of each table": each(
        "sql", [{"query": f"SELECT count(*) FROM {n} WHERE owner IS NULL"} for n in NAMES], "0"
    ),
    "one column after the other": each(
        "sql",
        [{"query": f"SELECT count(*) FROM orders WHERE {n}_id IS NULL"} for n in NAMES],
        '[{"count": 0}]',
    ),
    "doubles by each column": each(
        "sql",
        [{"query": f"select {n}, count(*) from t group by {n} having count(*) > 1"} for n in NAMES],
        "(0 rows)",
    ),
    "rows put in": each(
        "sql",
        [{"query": f"INSERT INTO tags (name, color) VALUES ('{n}', 'blue')"} for n in NAMES],
        "INSERT 0 1",
    ),
    "a program for each column": each(
        "python", [{"code": f"bad = df[df['{n}'] < 0]\nprint(len(bad))"} for n in NAMES], "0"
    ),
    "documents of each collection": each(
        "db",
        [{"run": f"db.{n}.countDocuments({{ owner: null, deleted: true }})"} for n in NAMES],
        "0",
    ),
    "each repository": each(
        "graphql",
        [{"query": GRAPH.format(n)} for n in NAMES],
        '{"data":{"repository":{"vulnerabilityAlerts":{"totalCount":0}}}}',
    ),
    "each project": each(
        "search_issues",
        [{"jql": f"project = {n} AND status = Open AND priority = Blocker"} for n in NAMES],
        '{"total":0,"issues":[]}',
    ),
    "a long command for each host": each(
        "bash", [{"command": TLS.format(n)} for n in NAMES], "subject=O = Example, CN = example"
    ),
    "advisories for each package": each(
        "check_vulnerability", [{"package": n} for n in NAMES], "No known vulnerabilities."
    ),
    "a yes or no for each customer": each(
        "check_eligibility", [{"user": n} for n in NAMES], '{"eligible": false, "reason": "none"}'
    ),
    "packages by a shell": each(
        "bash", [{"command": f"pip show {n}"} for n in NAMES], "WARNING: Package(s) not found"
    ),
    "names that are taken": each("is_available", [{"name": n} for n in NAMES], "No, taken."),
    "pages with numbers": [
        ("ocr", {"page": at}, f"INVOICE No {2000 + at * 7}\nTotal {at * 31}.50 EUR\nThank you.")
        for at in range(12)
    ],
    "ports of which some are open": [
        (
            "bash",
            {"command": f"nc -zv {n}.internal 5432"},
            f"nc: connect to {n}.internal port 5432 (tcp) failed: Connection refused"
            if at % 4
            else f"Connection to {n}.internal 5432 port [tcp/postgresql] succeeded!",
        )
        for at, n in enumerate(NAMES)
    ],
}
SEARCH = 'grep -rl {} "class PaymentGateway" src tests lib docs scripts bench tools examples'
REWORDED: dict[str, list[Call]] = {
    "another form of one query": again(
        "sql",
        [
            {"query": "SELECT * FROM users WHERE name = 'Bob'"},
            {"query": "SELECT id FROM users WHERE name='Bob'"},
            {"query": "SELECT * FROM users WHERE lower(name) = 'bob'"},
            {"query": "select * from users where name = 'Bob' order by id"},
        ]
        * 2,
        ["(0 rows)"],
    ),
    "other options of a long command": again(
        "bash", [{"command": SEARCH.format(o)} for o in ("-i", "-w", "-E", "-I", "-s", "-H")], [""]
    ),
}


TURNED_DOWN: dict[str, list[Call]] = {
    "content kept back": each(
        "fetch", [{"url": f"https://a.test/{n}"} for n in NAMES], "403 Forbidden."
    ),
    "acts": each("apply_coupon", [{"code": n} for n in NAMES], '{"applied": false}'),
    "acts of a shell": each(
        "bash", [{"command": f"redeem --code {n}"} for n in NAMES], "The code is not valid."
    ),
    "one question again": again("check_stock", [{"item": "lamp"}], ["Not in stock."]),
}


@pytest.mark.parametrize("form", TURNED_DOWN)
def test_what_is_turned_down_is_no_audit(form: str) -> None:
    """Only a no to a question about another thing is what was asked for."""
    assert alarms(TURNED_DOWN[form])


@pytest.mark.parametrize("form", AUDITS)
def test_the_same_check_of_many_things_raises_no_alarm(form: str) -> None:
    """What differs in one name asks for another thing, however long the rest is."""
    assert alarms(AUDITS[form]) == set()


@pytest.mark.parametrize("form", REWORDED)
def test_one_question_in_other_forms_is_a_loop(form: str) -> None:
    """What one of two has more than the other, or its options, do not make another question."""
    assert alarms(REWORDED[form])


FORMAL = [
    "SELECT a, b FROM t",
    "x = load(path)\nprint(x)",
    "{ user(id: 5) { name } }",
    "a = 1 AND b = 2",
]
PROSE = ["largest tidal range in europe", "select a hotel in the centre", "who was he (the king)?"]


@pytest.mark.parametrize(
    ("text", "formal"), [*((text, True) for text in FORMAL), *((text, False) for text in PROSE)]
)
def test_queries_and_programs_are_formal_and_prose_is_not(text: str, *, formal: bool) -> None:
    """Signs or the words of SQL tell; a search in words may be put into any others."""
    assert is_formal(text) is formal


def test_a_question_is_like_one_that_asks_for_more() -> None:
    """Of two queries one may have more words; where both have words of their own, they differ."""
    plain, more, other = (
        CallArguments({"q": text}, json.dumps({"q": text}), None)
        for text in (
            "SELECT * FROM users WHERE name = 'bob'",
            "SELECT * FROM users WHERE lower(name) = 'bob'",
            "SELECT * FROM users WHERE city = 'rome'",
        )
    )
    assert plain.is_like(more)
    assert more.is_like(plain)
    assert not plain.is_like(other)
