"""Settings of what an operator may do to a run that is under way."""

from typing import Literal

from gateway.config.values import above_zero, at_least
from gateway.core.trouble import DEFAULT_ACT, ActName
from gateway.values import frozen

Ending = Literal["error", "answer"]


@frozen
class ControlSettings:
    """Settings of acting on trouble, of stopping and pausing runs, of asking a person about
    them, and of keeping budgets."""

    # strongest act on a failure that is repeated in spite of advice, in this order: tell (the log
    # and the run's page), advise, route (SLOW's model, if one is mapped), ask (a person), hand_over
    # (the agent is asked to stop and report), end
    on_trouble: ActName = DEFAULT_ACT
    stop_with: Ending = "error"  # how a call of a stopped run is answered: error = 429, or answer
    # status of an error that stops a run, or that a budget does; 401 for clients that retry after
    # any other status (mini-swe-agent)
    stop_status: Literal[429, 401] = 429
    pause_wait_s: float = 60  # how long a call of a paused run waits before it gets 429; seconds
    pause_retry_s: float = 10  # its retry-after; seconds
    # how long a call waits while a person is asked about its run; seconds, less than clients wait
    ask_wait_s: float = 240
    ask_default: Literal["stop", "go_on"] = "stop"  # what happens without an answer: stop, or go_on
    # how often a gateway looks for what another one stopped, paused or resumed; seconds
    poll_s: float = 0.5
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
        names = ("pause_wait_s", "pause_retry_s", "first_output_tokens", "unpriced_usd_per_million")
        at_least(self, 0, *names)
        above_zero(self, "poll_s", "store_wait_ms", "reservation_s", "ask_wait_s")
        if self.unpriced_model and self.unpriced != "count_as":
            raise ValueError("unpriced_model: has an effect with `unpriced: count_as` only")

    @property
    def unpriced_price(self) -> str:
        """The price that budgets in dollars count for a model without a known one."""
        usual = f"${self.unpriced_usd_per_million:.2f} for a million tokens"
        if self.unpriced_model:
            return f"the price of {self.unpriced_model}"
        return usual
