"""The environments of the second try: hidden rules, and an agent that only heeds texts."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from lab.acting import FINISH, GIVE_UP, Agent, Move, Rule, Run, World, instructions, worlds
from lab.second_try import Played, Table, placed, rounds
from tests.examples import by_day

PLATITUDES = (
    "Be careful and check your work before you finish.",
    "Think step by step, then answer.",
    "Always do your best. Never give in to haste.",
    "The result of the last call was an error. Read it before you go on.",
)


def success(world: World, text: str, runs: int = 60) -> float:
    """The share of runs that end well when a text is read at every step."""
    return sum(played(world, text, seed).success() for seed in range(runs)) / runs


def played(world: World, text: str, seed: int) -> Run:
    run = Run(world, seed)
    agent, texts = Agent(run, random.Random(seed)), [text]
    while True:
        move = agent.act(texts)
        if move == FINISH and (said := run.objection()):
            texts.append(said)
        elif move in (FINISH, GIVE_UP):
            return run
        else:
            agent.saw(move, run.execute(move)[1])


def test_sixty_environments_in_three_domains_differ_in_names_and_rules() -> None:
    """Twenty templates of three environments each."""
    assert Counter(world.domain for world in worlds()) == {"shell": 21, "service": 21, "data": 18}
    templates = Counter((world.domain, world.kind) for world in worlds())
    assert list(templates.values()) == [3] * 20
    assert len({world.name for world in worlds()}) == len({world.oracle for world in worlds()})


@pytest.mark.parametrize("world", by_day(worlds(), 10), ids=lambda world: world.name)
def test_the_right_text_helps_and_a_platitude_changes_nothing(world: World) -> None:
    """Platitudes, tasks, and results of failed calls leave the table of actions as it is."""
    assert success(world, world.oracle) >= 0.75
    if world.kind != "house":
        assert success(world, "") <= 0.7
    run = Run(world, 0)
    agent = Agent(run, random.Random(0))
    for text in (*PLATITUDES, world.about, run.task, world.fails):
        assert agent.table([text]) == agent.table([]), text


def test_the_same_text_in_another_environment_of_the_domain_says_nothing() -> None:
    """Names of calls that the agent does not have shift nothing."""
    for world in worlds():
        moves = tuple(Run(world, 0).moves)
        for other in worlds():
            if other.domain == world.domain and other != world:
                shared = instructions(other.oracle, moves)
                assert not shared or world.domain == "shell", (world.name, other.oracle)


def test_a_misleading_text_is_understood_and_names_another_call() -> None:
    """It shifts the table, to a call that is not the right one."""
    for world in worlds():
        run = Run(world, 0)
        for seed in range(5):
            (text,) = placed(world, "misled", seed)
            (rule,) = instructions(text, tuple(run.moves))
            assert rule.do, text
            assert run.right not in rule.do, text


ORDERS = [
    "Call verify_identity before refund_order.",
    "Before `refund_order`, always call `verify_identity`.",
    "First call verify_identity, then refund_order.",
    "refund_order needs verify_identity first.",
    "Do not call refund_order until verify_identity worked.",
    "Never call refund_order without verify_identity.",
]


@pytest.mark.parametrize(
    ("text", "do", "leave", "order"),
    [
        *((text, "right", "key", True) for text in ORDERS),
        ("Use verify_identity instead of refund_order.", "right", "key", False),
        ("Do not call refund_order.", "", "key", False),
        ("Skip verify_identity.", "", "right", False),
    ],
)
def test_instructions_are_read_in_plain_english(
    text: str, do: str, leave: str, order: bool
) -> None:
    """Orders, replacements and prohibitions, by the names of tools."""
    run = Run(next(world for world in worlds() if world.name == "service-earlier-1"), 0)
    assert run.right is not None
    names = {
        "right": frozenset([run.right]),
        "key": frozenset([run.plan[-1]]),
        "": frozenset[Move](),
    }
    assert instructions(text, tuple(run.moves)) == (Rule(names[do], names[leave], order),)


@pytest.mark.parametrize(
    "text",
    [
        "Set reason to transport_damage.",
        "Call create_return with `transport_damage` as `reason`.",
        "create_return worked with reason=transport_damage.",
    ],
)
def test_a_value_of_a_closed_set_is_understood(text: str) -> None:
    """In three forms of sentences."""
    run = Run(next(world for world in worlds() if world.name == "service-closed-1"), 0)
    assert run.right is not None
    (rule,) = instructions(text, tuple(run.moves))
    assert run.right in rule.do
    assert run.plan[-1] not in rule.do


def test_harm_is_obeyed_like_any_other_text() -> None:
    """An agent that gives up or leaves out its task succeeds less often."""
    world = next(world for world in worlds() if world.name == "service-house-1")
    right = success(world, world.oracle)
    for harm in ("Give up.", "Answer at once.", "Do not call send_voucher."):
        assert success(world, harm) < right - 0.1, harm


@pytest.mark.slow
def test_lessons_work_through_a_live_gateway(tmp_path: Path) -> None:
    """The same agents: what an operator wrote is read and helps, what belongs to other
    environments changes nothing, and in shadow nothing is given."""
    found: dict[str, list[Played]] = {}
    (world,) = (world for world in worlds() if world.name == "service-earlier-1")
    for arm in ("off", "shadow", "shuffled", "oracle"):
        folder = tmp_path / arm
        folder.mkdir()
        with Table(arm, folder, seed=3) as table:
            found[arm] = asyncio.run(rounds(table, [world], 12))
    done = {arm: sum(each.success for each in played) for arm, played in found.items()}
    given = {arm: sum(each.given for each in played) for arm, played in found.items()}
    assert given["off"] == given["shadow"] == 0
    assert given["oracle"] >= 8
    assert given["shuffled"] >= 8
    assert [run.steps for run in found["off"]] == [run.steps for run in found["shuffled"]]
    assert done["off"] == done["shadow"] == done["shuffled"] <= 7
    assert done["oracle"] >= done["off"] + 3
