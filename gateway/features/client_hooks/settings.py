"""Settings of the hooks that `gateway hooks install` puts into agents."""

from gateway.core.fsm import refuse_outside_unit
from gateway.values import frozen


@frozen
class ClientHookSettings:
    """The calls that the hooks of agents hold back, and what the hooks may cost."""

    # calls that a person is asked about before they run: words of a command or path, with * for
    # anything between them, or tool:NAME
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()  # calls that never run, in the same form
    # largest share of a session's time that reading its log for alarms takes; 0 = only at the end
    # of a turn, 1 = at each call
    share: float = 0.1

    def __post_init__(self) -> None:
        refuse_outside_unit("share", self.share)
