"""Settings of budgets."""

import re
from collections.abc import Sequence
from dataclasses import field, fields
from typing import Literal

from gateway.config.control import Ending
from gateway.config.values import above_zero, duration
from gateway.values import frozen

SCOPES = ("run", "tree", "key", "tenant", "day", "team", "owner", "model", "client")
"""What may be counted together, besides `tag:NAME`; `gateway.budgets.rules.SUBJECTS` reads them."""
CALENDAR = ("day", "week", "month")
StepAction = Literal["warn", "wrap_up", "ask", "stop"]
"""Actions of a ladder besides `cheaper`; `gateway.budgets.rules.ACTIONS` has a row for each."""

# The name of the budget that `steering.token_budget` sets.
TOKEN_BUDGET = "token_budget"  # noqa: S105 - not a secret

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_TAG = re.compile(r"tag:[a-z0-9][a-z0-9_-]{0,39}")
_HIGHEST_SHARE = 100.0
_LONGEST_RATE_S = 3600


@frozen
class BudgetLimits:
    """The most that one subject of a budget may use; None = any amount."""

    usd: float | None = None  # US dollars
    tokens: int | None = None  # input and output together
    input_tokens: int | None = None  # with cached ones
    output_tokens: int | None = None  # with those of reasoning
    calls: int | None = None  # sent upstream
    minutes: float | None = None  # since its first call

    def __post_init__(self) -> None:
        above_zero(self, *self.given())

    def given(self) -> dict[str, float]:
        """The limits that are set, by name."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in found.items() if value is not None}


METRICS = tuple(f.name for f in fields(BudgetLimits))  # the quantities that a budget can limit


@frozen
class BudgetMatch:
    """Calls that count: patterns with `*` and `?`; one that is None fits every call."""

    client: str | None = None  # first word of the user agent (`claude-cli/2.0.1`)
    model: str | None = None  # that the client names
    tenant: str | None = None  # of the gateway key
    key: str | None = None  # name of the gateway key


@frozen
class LadderStep:
    """An action from a share of a budget on: either `do` or `cheaper`."""

    at: float  # share of the limit that is used most, above 0; 1 = all of it
    do: StepAction | None = None  # warn, wrap_up, ask or stop; None with `cheaper`
    cheaper: str | None = None  # model that is used in place of the requested one

    def __post_init__(self) -> None:
        if not 0 < self.at <= _HIGHEST_SHARE:
            raise ValueError(f"at: must be a share above 0, up to {_HIGHEST_SHARE:g}")
        if (self.do is None) == (not self.cheaper):
            raise ValueError("do: a step has either `do` or `cheaper`")

    @property
    def name(self) -> str:
        """The row of `ACTIONS`: `cheaper`, or the value of `do`."""
        return self.do or "cheaper"


_USUAL_LADDER = (LadderStep(at=0.8, do="warn"), LadderStep(at=1.0, do="stop"))


@frozen
class BudgetSpan:
    """Calls that a budget counts together, and for how long."""

    scope: str | tuple[str, ...]  # what is counted together; of several, each combination
    # `day`, `week`, `month` or a time such as `6h`, after which it starts from zero; "" = as
    # `period` says
    per: str = ""
    period: Literal["total", "day"] = "total"  # an older name of `per`

    def __post_init__(self) -> None:
        for name in self.scopes or ("",):
            if name not in SCOPES and not _TAG.fullmatch(name):
                known = ", ".join((*SCOPES, "tag:NAME"))
                raise ValueError(f"scope: {name!r} is not one of {known}")
        if self.per not in ("", "total", *CALENDAR) and not duration("per", self.per):
            raise ValueError("per: must be above 0")

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes whose combination it counts."""
        if isinstance(self.scope, str):
            return (self.scope,)
        return self.scope

    @property
    def window(self) -> str:
        """The time after which it starts from zero; `total`: never."""
        found = self.per or self.period
        if found == "total" and "day" in self.scopes:
            return "day"
        return found

    @property
    def is_rate(self) -> bool:
        """Whether its window is so short that clients wait for the next one."""
        return self.window[0].isdigit() and duration("per", self.window) <= _LONGEST_RATE_S


@frozen
class BudgetSettings(BudgetSpan):
    """One budget: its limits, and the actions when they are reached."""

    name: str  # letters, digits, `_`, `.` and `-`; part of each account's key
    limits: BudgetLimits  # at least one; the one that is used most decides
    match: BudgetMatch = field(default_factory=BudgetMatch)  # which calls count
    ladder: tuple[LadderStep, ...] = _USUAL_LADDER  # lowest share first
    # error = 429 with code `budget_exceeded`; answer = a final answer that says so
    stop_with: Ending = "error"
    # output expected of a call: `usual` = as the model's calls had so far, at most the request's
    # own maximum; `most` = that maximum
    reserve: Literal["usual", "most"] = "usual"
    # refuse calls that the store cannot count while it fails, instead of counting them in memory
    hard: bool = False

    def __post_init__(self) -> None:
        BudgetSpan.__post_init__(self)
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name: 1 to 64 letters, digits, `_`, `.` or `-`, got {self.name!r}")
        if not self.limits.given():
            raise ValueError(f"limits: at least one of {', '.join(METRICS)}")
        shares = [step.at for step in self.ladder]
        if shares != sorted(shares):
            raise ValueError("ladder: the shares must rise")

    @property
    def stop_at(self) -> float | None:
        """The share at which it stops; None for one that never does."""
        return next((step.at for step in self.ladder if step.do == "stop"), None)


def token_budget(tokens: int, *, wraps_up: bool) -> BudgetSettings:
    """The budget that `steering.token_budget` sets: it never stops a run."""
    step = LadderStep(at=1.0, do="wrap_up" if wraps_up else "warn")
    limits = BudgetLimits(tokens=tokens)
    return BudgetSettings(name=TOKEN_BUDGET, scope="run", limits=limits, ladder=(step,))


def check_budgets(budgets: Sequence[BudgetSettings]) -> None:
    """Refuse two budgets of one name. Raises: ValueError."""
    seen = {TOKEN_BUDGET}
    for index, budget in enumerate(budgets):
        if budget.name in seen:
            raise ValueError(f"budgets[{index}].name: {budget.name!r} is taken")
        seen.add(budget.name)
