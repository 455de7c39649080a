"""Settings of access, as far as no gateway keys are needed for it."""

from gateway.config.values import Secret, at_least
from gateway.values import frozen


@frozen
class AuthSettings:
    """The admin key, and how many wrong keys may be tried."""

    # for /api and the dashboard; None = open on loopback, closed elsewhere
    admin_key: Secret | None = None
    # wrong keys that one address may send in a minute before it gets 429; beyond it a right key
    # that is short enough to be guessed is refused, too; 0 = any number
    wrong_keys_per_minute: int = 30

    def __post_init__(self) -> None:
        at_least(self, 0, "wrong_keys_per_minute")

    def secrets(self) -> dict[str, Secret]:
        """The keys that are set, by the part of their key path after `auth`."""
        if self.admin_key:
            return {"admin_key": self.admin_key}
        return {}

    @property
    def names_keys(self) -> bool:
        """Whether it names gateway keys, so that a request must send one."""
        return False
