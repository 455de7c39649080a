"""Accounts of budgets in memory: what counts while the store fails, or when it keeps none."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gateway.stores.budgets import (
    NOTHING,
    Account,
    AccountKey,
    Amounts,
    Claim,
    Reserved,
    Settlement,
    Wanted,
    decide,
    opened,
    settled,
)

_MOST_ACCOUNTS = 20_000
"""The accounts last used; one costs about 1 kB."""


class MemoryBudgets:
    """`BudgetStore` without a store. Reservations never expire: they end with the process."""

    def __init__(self) -> None:
        self._accounts: OrderedDict[AccountKey, Account] = OrderedDict()
        self._ends: dict[AccountKey, bool] = {}
        self._claims: dict[AccountKey, dict[str, Amounts]] = {}

    async def reserve(self, claim: Claim) -> Reserved:
        """See BudgetStore."""
        found = [self.find(wanted.key) or opened(wanted, claim.at) for wanted in claim.accounts]
        outcome = decide(found, claim)
        if not (outcome.refusals and claim.binding):
            self.keep(outcome.accounts, claim)
        return outcome

    def keep(self, accounts: Sequence[Account], claim: Claim) -> None:
        """Take over accounts as they are in the store, and the claim that was made on them."""
        for account, wanted in zip(accounts, claim.accounts, strict=True):
            self._put(account, wanted)
            self._claims.setdefault(wanted.key, {})[claim.id] = claim.estimate

    async def settle(self, settlement: Settlement) -> tuple[Account, ...]:
        """See BudgetStore."""
        after = []
        for wanted in settlement.claim.accounts:
            self.release(wanted.key, settlement.claim.id)
            account = self.find(wanted.key) or opened(wanted, settlement.claim.at)
            account = settled(account, settlement, found=True)
            self._put(account, wanted)
            after.append(replace(account, reserved=self._reserved(wanted.key)))
        return tuple(after)

    def took(self, settlement: Settlement, after: Sequence[Account]) -> None:
        """Take over accounts as the store has them after a claim ended."""
        for account, wanted in zip(after, settlement.claim.accounts, strict=True):
            self.release(wanted.key, settlement.claim.id)
            self._put(account, wanted)

    def release(self, key: AccountKey, claim: str) -> None:
        """Forget a reservation."""
        claims = self._claims.get(key, {})
        claims.pop(claim, None)
        if not claims:
            self._claims.pop(key, None)

    async def accounts(self, keys: Sequence[AccountKey]) -> tuple[Account, ...]:
        """See BudgetStore."""
        found = (self.find(key) for key in keys)
        return tuple(account for account in found if account is not None)

    async def list_accounts(
        self, *, budget: str | None = None, tenant: str | None = None, limit: int = 200
    ) -> tuple[Account, ...]:
        """See BudgetStore."""
        found = [
            account
            for key in reversed(self._accounts)
            if (account := self.find(key)) is not None
            and budget in (None, account.budget)
            and tenant in (None, account.tenant)
        ]
        return tuple(found[:limit])

    async def allow(
        self, key: AccountKey, *, at: float, limits: Mapping[str, float], lifted: bool
    ) -> Account:
        """See BudgetStore."""
        account = self.find(key) or Account(budget=key.budget, subject=key.subject, started_at=at)
        account = replace(account, limits=dict(limits), lifted=lifted, updated_at=at)
        self._accounts[key] = account
        return account

    async def reset(self, key: AccountKey, *, at: float) -> bool:
        """See BudgetStore."""
        account = self.find(key)
        if account is not None:
            fresh = Account(budget=key.budget, subject=key.subject, tenant=account.tenant)
            self._accounts[key] = replace(fresh, started_at=at, updated_at=at)
        return account is not None

    async def prune(self, older_than: float) -> int:
        """See BudgetStore."""
        old = [
            key
            for key, account in self._accounts.items()
            if self._ends.get(key) and account.updated_at < older_than and key not in self._claims
        ]
        for key in old:
            del self._accounts[key], self._ends[key]
        return len(old)

    def find(self, key: AccountKey) -> Account | None:
        """The account, with what is reserved here."""
        account = self._accounts.get(key)
        return None if account is None else replace(account, reserved=self._reserved(key))

    def _put(self, account: Account, wanted: Wanted) -> None:
        self._accounts[wanted.key] = account
        self._accounts.move_to_end(wanted.key)
        self._ends[wanted.key] = wanted.ends
        while len(self._accounts) > _MOST_ACCOUNTS:
            self._ends.pop(self._accounts.popitem(last=False)[0], None)

    def _reserved(self, key: AccountKey) -> Amounts:
        return sum(self._claims.get(key, {}).values(), NOTHING)
