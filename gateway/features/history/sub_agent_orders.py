"""Kinds and tasks of sub-agents: found in the call of the session that started each.

Most clients name it nowhere else: a call such as `Task` has the kind, a few words and the prompt,
and the sub-agent's own log begins with that prompt."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from gateway.features.history.reading import SessionReading
from gateway.steering.sub_agents import Order
from gateway.text.sanitize import one_line

REPEATED = 3  # sub-agents with the same task, from which on the task is a kind of its own
_TASK = 60  # characters of a task's name
_NUMBER = re.compile(r"\d+")
UNNAMED = "sub-agents without a name"


def root_of(reading: SessionReading, parents: Mapping[str, str]) -> str:
    """The id of the session at the root of a session's tree; of ids that name each other in a
    circle the first one by name. `parents`: by id, of all readings."""
    above = [reading.id]
    while name := parents.get(above[-1], ""):
        if name in above:
            return min(above[above.index(name) :])
        above.append(name)
    return above[-1]


def with_orders(readings: Sequence[SessionReading]) -> list[SessionReading]:
    """Returns the readings, a sub-agent's once; sub-agents have the kind and task that their tree's
    calls gave them, where their own logs do not say."""
    fullest = {r.id: r for r in sorted(readings, key=lambda r: (len(r.calls), r.tokens.output))}
    # Its session may tell of one that has a log of its own.
    readings = [r for r in readings if not r.parent or r is fullest[r.id]]
    parents = {reading.id: reading.parent for reading in readings}
    orders: dict[tuple[str, str], Order] = {}
    for reading in readings:
        root = root_of(reading, parents)
        for order in reading.orders:
            orders.setdefault((root, order.prompt), order)
    found = []
    for reading in readings:
        own = reading.order
        asked = orders.get((root_of(reading, parents), own.prompt))
        if reading.parent and asked:
            order = replace(asked, kind=own.kind or asked.kind, task=own.task or asked.task)
            reading = replace(reading, order=order)
        found.append(reading)
    return found


def names_of(readings: Iterable[SessionReading]) -> dict[str, str]:
    """The name of the kind of each sub-agent, by its id: the task that `REPEATED` of its kind had,
    else the kind. Numbers in a task tell no two apart."""
    shapes: dict[str, tuple[str, str]] = {}
    tasks: dict[tuple[str, str], str] = {}  # the first task of each shape
    for reading in readings:
        if reading.parent:
            task = one_line(reading.order.task or reading.title, _TASK)
            shape = (reading.order.kind, _NUMBER.sub("#", task))
            shapes[reading.id] = shape
            tasks.setdefault(shape, task)
    often = Counter(shapes.values())
    names: dict[str, str] = {}
    for name, shape in shapes.items():
        kind = shape[0]
        if often[shape] < REPEATED or not tasks[shape]:
            names[name] = kind or UNNAMED
        elif kind:
            names[name] = f"{tasks[shape]} ({kind})"
        else:
            names[name] = tasks[shape]
    return names
