"""Settings of budgets."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import field, fields
from typing import TYPE_CHECKING, Literal, cast

from gateway.config.control import ControlSettings, Ending
from gateway.config.values import above_zero, at_least, duration
from gateway.values import frozen

if TYPE_CHECKING:
    from gateway.config import Settings

# What may be counted together, besides `tag:NAME`; `SUBJECTS` of `rules.py` reads them.
SCOPES = ("run", "tree", "sub_agent", "key", "tenant", "day", "team", "owner", "model", "client")
CALENDAR = ("day", "week", "month")
# Actions of a ladder besides `cheaper`; `ACTIONS` of `rules.py` has a row for each.
StepAction = Literal["warn", "wrap_up", "ask", "stop"]

# The name of the budget that `steering.token_budget` sets.
TOKEN_BUDGET = "token_budget"  # noqa: S105 - not a secret

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PER = re.compile(r"|total|day|week|month|(?=0*[1-9])[0-9]{1,5}[mhd]")
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
    context: int | None = None  # input tokens of one call, cached ones too

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
    sub_agent: bool | None = None  # true: calls of sub-agents only; false: of no sub-agent
    kind: str | None = None  # of the sub-agent, such as `Explore`; main agents have none

    @property
    def of_sub_agents(self) -> bool:
        """True if no call of a main agent fits."""
        return bool(self.sub_agent or self.kind)


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

    # what is counted together; of several, each combination; "" = each sub-agent, with a match of
    # sub-agents
    scope: str | tuple[str, ...] = ""
    # `day`, `week`, `month` or a time such as `6h`, after which it starts from zero; "" = as
    # `period` says
    per: str = ""
    period: Literal["total", "day", "week", "month"] = "total"  # an older name of `per`

    def __post_init__(self) -> None:
        for name in self.scopes or ("",):
            if name not in SCOPES and not _TAG.fullmatch(name):
                known = ", ".join((*SCOPES, "tag:NAME"))
                raise ValueError(f"scope: {name!r} is not one of {known}")
        if not _PER.fullmatch(self.per):
            raise ValueError(
                f"per: expected day, week, month, or a time above 0 such as 6h, got {self.per!r}"
            )

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
        if not self.scope and self.match.of_sub_agents:
            object.__setattr__(self, "scope", "sub_agent")
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


@frozen
class BudgetControl(ControlSettings):
    """Settings of control, with those of keeping budgets."""

    # how long a call waits for the budgets' store before budgets are counted in memory;
    # milliseconds
    store_wait_ms: float = 1000
    # after this time a call whose gateway died counts with its estimate; seconds
    reservation_s: float = 900
    first_output_tokens: int = 500  # output expected of a model's first call
    # what budgets in dollars count for a million tokens, in and out, of a model whose price is
    # unknown; 0 counts none
    unpriced_usd_per_million: float = 3.0
    # such a model under a budget in dollars: warn = counted so, and said; refuse = not called;
    # count_as = counted, and not said
    unpriced: Literal["warn", "refuse", "count_as"] = "warn"
    # with count_as: the model whose price is counted in place of unpriced_usd_per_million
    unpriced_model: str = ""

    def __post_init__(self) -> None:
        ControlSettings.__post_init__(self)
        at_least(self, 0, "first_output_tokens", "unpriced_usd_per_million")
        above_zero(self, "store_wait_ms", "reservation_s")
        if self.unpriced_model and self.unpriced != "count_as":
            raise ValueError("unpriced_model: has an effect with `unpriced: count_as` only")

    @property
    def unpriced_price(self) -> str:
        """The price that budgets in dollars count for a model without a known one."""
        usual = f"${self.unpriced_usd_per_million:.2f} for a million tokens"
        return f"the price of {self.unpriced_model}" if self.unpriced_model else usual


# The section `budgets`.
Budgets = tuple[BudgetSettings, ...]


def control_of(settings: "Settings") -> BudgetControl:
    """The section `control`, with the keys that this feature adds."""
    return cast(BudgetControl, settings.control)


def all_budgets(settings: "Settings") -> Budgets:
    """The budgets, with the one that `steering.token_budget` sets."""
    found = settings.of(Budgets)
    steering = settings.steering
    if steering.token_budget is None:
        return found
    wraps_up = steering.budget_action == "wrap_up"
    return (*found, token_budget(steering.token_budget, wraps_up=wraps_up))


def named_models(settings: "Settings") -> Iterator[tuple[str, str]]:
    """(key path, model name) of every model that a ladder names."""
    for index, budget in enumerate(settings.of(Budgets)):
        for step, each in enumerate(budget.ladder):
            if each.cheaper:
                yield f"budgets[{index}].ladder[{step}].cheaper", each.cheaper


def lost(old: "Settings", new: "Settings") -> list[str]:
    """The key paths of budgets, limits and steps of their ladders that `new` lacks."""
    missing = (_parts(old) - _parts(new)).elements()
    return [f"budgets[{name}]" for name in sorted(missing)]


def _parts(settings: "Settings") -> Counter[str]:
    """Each budget, its limits, and what it does at the end, by name."""
    parts = Counter[str]()
    for budget in settings.of(Budgets):
        what = [*budget.limits.given(), *(step.name for step in budget.ladder)]
        parts.update([budget.name, *(f"{budget.name}.{each}" for each in set(what))])
    return parts


def token_budget(tokens: int, *, wraps_up: bool) -> BudgetSettings:
    """The budget that `steering.token_budget` sets: it never stops a run."""
    step = LadderStep(at=1.0, do="wrap_up" if wraps_up else "warn")
    limits = BudgetLimits(tokens=tokens)
    return BudgetSettings(name=TOKEN_BUDGET, scope="run", limits=limits, ladder=(step,))


def key_budget(name: str, metric: str, most: float, per: str) -> BudgetSettings:
    """The budget of a gateway key with one limit."""
    limits = BudgetLimits(**{metric: most})  # type: ignore[arg-type]
    return BudgetSettings(name=name, scope="key", limits=limits, per=per)


def check(settings: "Settings") -> None:
    """Refuse two budgets of one name. Raises: ValueError."""
    seen = {TOKEN_BUDGET}
    for index, budget in enumerate(settings.of(Budgets)):
        if budget.name in seen:
            raise ValueError(f"budgets[{index}].name: {budget.name!r} is taken")
        seen.add(budget.name)
