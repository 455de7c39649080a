"""Checks of KeyStore."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import structs

from gateway.backends import Stores
from gateway.features.keys.records import KeyRecord, KeyTerms
from gateway.features.keys.store import KeyStore
from gateway.stores.protocols import StoreError
from steering_gateway_testing.store_conformance.check import Check, kept_by, raises
from steering_gateway_testing.store_conformance.records import START, TENANT


def a_key(id: str = "k1", **changes: Any) -> KeyRecord:
    """A valid key; the digest follows from the id."""
    values: dict[str, Any] = {
        "id": id,
        "tenant": TENANT,
        "name": "laptop",
        "hint": f"gw-{id}",
        "digest": id.encode().rjust(32, b"\x00"),
        "created_at": START,
    }
    return KeyRecord(**(values | changes))


def kept_keys(stores: Stores) -> KeyStore:
    """The store of keys."""
    return kept_by(stores, KeyStore)


async def lists_keys_in_the_order_they_were_added(stores: Stores) -> None:
    """Every field comes back equal; the order is that of the additions, not of the times."""
    keys = [a_key("b", name=""), a_key("a", tenant="other", created_at=START - 5), a_key("c")]
    assert list(await kept_keys(stores).list_keys()) == []
    for key in keys:
        await kept_keys(stores).add_key(key)
    assert list(await kept_keys(stores).list_keys()) == keys


async def revokes_a_key_once(stores: Stores) -> None:
    """The first revocation sets the time; a second one, or an unknown id, changes nothing."""
    await kept_keys(stores).add_key(a_key("k1"))
    await kept_keys(stores).add_key(a_key("k2"))
    assert await kept_keys(stores).revoke_key("k1", START + 1)
    assert not await kept_keys(stores).revoke_key("k1", START + 2)
    assert not await kept_keys(stores).revoke_key("k3", START + 2)
    expected = [replace(a_key("k1"), revoked_at=START + 1), a_key("k2")]
    assert list(await kept_keys(stores).list_keys()) == expected


async def refuses_a_second_key_of_one_id(stores: Stores) -> None:
    """An id or a digest that exists is an error, and the first key stays."""
    await kept_keys(stores).add_key(a_key("k1"))
    for second in (a_key("k1", digest=b"other"), a_key("k2", digest=a_key("k1").digest)):
        with raises(StoreError):
            await kept_keys(stores).add_key(second)
    assert list(await kept_keys(stores).list_keys()) == [a_key("k1")]


async def deletes_all_keys(stores: Stores) -> None:
    """Valid and revoked ones are gone, the valid ones are counted, and new ones can be added."""
    assert await kept_keys(stores).delete_keys() == 0
    for id in ("k1", "k2", "k3"):
        await kept_keys(stores).add_key(a_key(id))
    await kept_keys(stores).revoke_key("k2", START + 1)
    assert await kept_keys(stores).delete_keys() == 2
    assert list(await kept_keys(stores).list_keys()) == []
    await kept_keys(stores).add_key(a_key("k1"))
    assert list(await kept_keys(stores).list_keys()) == [a_key("k1")]


async def changes_the_terms_of_a_valid_key(stores: Stores) -> None:
    """Fields that are not named stay; a revoked or an unknown key is not changed."""
    terms = KeyTerms(owner="ada", team="web", tags={"env": "ci"}, models=("a*",), usd=2.5)
    await kept_keys(stores).add_key(a_key("k1", terms=terms))
    await kept_keys(stores).add_key(a_key("k2"))
    assert list(await kept_keys(stores).list_keys()) == [a_key("k1", terms=terms), a_key("k2")]
    wanted = structs.replace(terms, models=("b",), usd=None, expires_at=START + 9.5)
    changes = {"models": ("b",), "usd": None, "expires_at": START + 9.5}
    assert await kept_keys(stores).change_key("k1", changes) == a_key("k1", terms=wanted)
    with raises(ValueError):
        await kept_keys(stores).change_key("k1", {"usd": -1.0})
    await kept_keys(stores).revoke_key("k2", START)
    assert await kept_keys(stores).change_key("k2", changes) is None
    assert await kept_keys(stores).change_key("k3", changes) is None
    expected = [a_key("k1", terms=wanted), a_key("k2", revoked_at=START)]
    assert list(await kept_keys(stores).list_keys()) == expected


CHECKS: tuple[Check, ...] = (
    lists_keys_in_the_order_they_were_added,
    revokes_a_key_once,
    refuses_a_second_key_of_one_id,
    deletes_all_keys,
    changes_the_terms_of_a_valid_key,
)
