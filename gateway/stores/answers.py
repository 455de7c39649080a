"""What a store keeps of answers that later requests name by their ids, for every gateway on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRecord:
    """One answer of a provider that stores its answers.

    `place`: the deployment that stores it (`gateway/upstream/deployments.py`), empty for the
    default upstream. `echo`: how the client's own instructions follow from those that were sent, as
    JSON without their texts (`gateway/wire/echo.py`); empty when they are the same. `call`: the
    call it answers, as JSON, while the answer is made in the background and is not on record; else
    empty. `at`: seconds of the epoch.
    """

    tenant: str
    id: str
    at: float
    place: str = ""
    echo: str = ""
    call: str = ""


class AnswerStore(Protocol):
    """Every method may raise StoreError. Retention removes what is older than the runs it keeps."""

    async def keep_answer(self, answer: AnswerRecord) -> None:
        """Keep an answer, in place of one with the same tenant and id."""

    async def find_answer(self, tenant: str, id: str) -> AnswerRecord | None:
        """The answer with this id; None when there is none, or it is another tenant's."""

    async def take_call(self, tenant: str, id: str) -> bool:
        """Take the call of an answer, to record it: True for one caller only, of all gateways."""
