"""Calls that start a sub-agent, by which the sub-agent's own log is known again."""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from gateway.features.history.log_file import LogFile
from gateway.steering.sub_agents import Order, orders_in
from gateway.text.secrets import mask_repeated
from gateway.values import Fields
from gateway.wire.coerce import as_mapping, text_at


def order_beside(log: LogFile) -> Order:
    """The order that newer versions of some clients write into a file beside a sub-agent's log."""
    path = log.path.with_name(f"{log.stem}.meta.json")
    if not path.is_file():
        return Order()
    noted = as_mapping(LogFile(path).document())
    return Order(
        kind=text_at(noted, "agentType"), task=mask_repeated(text_at(noted, "description"))
    )


def orders_of(messages: Iterable[Fields]) -> Iterator[Order]:
    """The calls in these messages that may have started a sub-agent, without secrets."""
    for order in orders_in(messages):
        yield replace(order, task=mask_repeated(order.task))
