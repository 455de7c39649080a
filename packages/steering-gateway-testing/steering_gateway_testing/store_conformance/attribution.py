"""Checks of AttributionStore, and of the tags and keys of runs."""

from __future__ import annotations

from msgspec.structs import replace

from gateway.backends import Stores
from gateway.stores.filters import RunFilter
from gateway.stores.lists import PageRequest
from gateway.stores.records import CallRecord
from gateway.stores.sql.usage import AttributionStore
from steering_gateway_testing.store_conformance import records
from steering_gateway_testing.store_conformance.check import Check, raises

DAY = 86_400


def _sums(stores: Stores) -> AttributionStore:
    assert stores.attribution is not None
    return stores.attribution


def below(call: CallRecord, parent: str | None, root: str | None) -> CallRecord:
    """The same call in a conversation with others above it."""
    return replace(call, conversation=replace(call.conversation, parent_id=parent, root_id=root))


async def keeps_the_first_value_of_each_tag(stores: Stores) -> None:
    """A later call adds tags of new names and changes none; the key is that of the first call."""
    await stores.states.commit(
        records.one_run(1, tags={"team": "red", "env": "prod"}, key_name="web")
    )
    again = records.one_run(1, tags={"team": "blue", "ticket": "T-1"}, key_name="batch")
    version = replace(again.conversation, version=1)
    await stores.states.commit(replace(again, conversation=version))
    (run,) = (await stores.runs.list_runs(RunFilter(), PageRequest())).runs
    assert dict(run.tags) == {"team": "red", "env": "prod", "ticket": "T-1"}
    assert run.key_name == "web"


async def filters_runs_by_tag_and_key(stores: Stores) -> None:
    """By name and value, by name alone, by several at once; names and values are no patterns."""
    await stores.states.commit(
        records.one_run(1, tags={"team": "red", "env": "prod"}, key_name="web")
    )
    await stores.states.commit(records.one_run(2, tags={"team": "50% 'off'"}))
    await stores.states.commit(records.one_run(3))

    async def found(**wanted: object) -> list[str]:
        page = PageRequest(descending=False)
        runs = RunFilter(**wanted)  # type: ignore[arg-type]
        assert await stores.runs.count_runs(runs) == len(
            (await stores.runs.list_runs(runs, page)).runs
        )
        return [run.id for run in (await stores.runs.list_runs(runs, page)).runs]

    assert await found(tags=(("team", "red"),)) == ["r0001"]
    assert await found(tags=(("team", None),)) == ["r0001", "r0002"]
    assert await found(tags=(("team", "red"), ("env", "test"))) == []
    assert await found(tags=(("team", "50% 'off'"),)) == ["r0002"]
    assert await found(tags=(("te%", None),)) == []
    assert await found(key_name="web") == ["r0001"]


async def groups_runs(stores: Stores) -> None:
    """By a tag, a key, a day, the costliest first; an unknown price stays unknown."""
    free = records.a_step(
        0, call=records.a_chat(cost_usd=None, cost_unsteered_usd=None, usage_estimated=True)
    )
    await stores.states.commit(records.one_run(1, tags={"team": "red"}, key_name="web"))
    await stores.states.commit(
        records.one_run(2, tags={"team": "red"}, started_at=records.START + DAY)
    )
    await stores.states.commit(records.one_run(3, tags={"team": "blue"}, steps=(free,)))
    await stores.states.commit(records.one_run(4, tenant="initech"))
    store, mine = _sums(stores), RunFilter(tenant=records.TENANT)
    groups = await store.groups(mine, "tag:team")
    assert [(g.value, g.sums.runs, g.sums.cost_usd) for g in groups] == [
        ("red", 2, 1.0),
        ("blue", 1, None),
    ]
    assert groups[1].sums.unpriced_calls == 1
    assert [(g.sums.estimated_calls, g.sums.estimated_tokens) for g in groups] == [(0, 0), (1, 120)]
    assert [g.value for g in await store.groups(mine, "tag:none")] == [""]
    by_key = {g.value: g.sums.calls for g in await store.groups(mine, "key")}
    assert by_key == {"web": 2, "": 3}
    days = sorted(g.value for g in await store.groups(mine, "day"))
    assert days == ["2023-11-14", "2023-11-15"]
    assert len(await store.groups(RunFilter(), "tenant")) == 2
    for wrong in ("mood", "tag:", "tags"):
        with raises(ValueError, "by:"):
            await store.groups(mine, wrong)


ATTRIBUTION_CHECKS: tuple[Check, ...] = (
    keeps_the_first_value_of_each_tag,
    filters_runs_by_tag_and_key,
    groups_runs,
)
