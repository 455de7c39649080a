"""Settings of what an operator may do to a run that is under way."""

from typing import Literal

from gateway.config.values import above_zero, at_least
from gateway.core.acting import DEFAULT_ACT, ActName
from gateway.values import frozen

Ending = Literal["error", "answer"]


@frozen
class ControlSettings:
    """Settings of acting on trouble, of stopping and pausing runs, and of asking a person about
    them."""

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

    def __post_init__(self) -> None:
        at_least(self, 0, "pause_wait_s", "pause_retry_s")
        above_zero(self, "poll_s", "ask_wait_s")
