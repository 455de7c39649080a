"""An answer that repeats its request repeats the client's own instructions."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.echo import EchoFilter

TEXT = st.text(alphabet='ab"\\\n\u201c\U0001f600', max_size=12)


@given(own=TEXT, put=TEXT, at=st.integers(0, 12))
def test_what_was_put_in_is_taken_out_anywhere(own: str, put: str, at: int) -> None:
    """Also by the filter that another gateway makes of it, which has no word of the texts."""
    sent = own[:at] + put + own[at:]
    answer = {"id": "resp_1", "instructions": sent, "output": [{"instructions": f"{sent}."}]}
    expected = json.dumps({**answer, "instructions": own}).encode()
    made = EchoFilter(sent, own)
    for each in (made, made.fresh(), EchoFilter.from_json(made.to_json())):
        assert each.whole(json.dumps(answer).encode()) == expected


def test_instructions_that_the_client_did_not_send() -> None:
    """Become null; what is no insertion into the client's own is not for other gateways."""
    made = EchoFilter("Guidance.", None)
    for each in (made, EchoFilter.from_json(made.to_json())):
        assert each.whole(b'{"instructions": "Guidance."}') == b'{"instructions": null}'
    other = EchoFilter("One.", "Another.")
    assert other.to_json() == ""
    assert other.whole(b'{"instructions": "One."}') == b'{"instructions": "Another."}'
