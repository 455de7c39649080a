"""The routes, models and stored things that a caller may use, as endpoints ask for them."""

from functools import cache

from gateway.auth.keys import Principal
from gateway.hooks import given
from gateway.runtime import Runtime
from gateway.services import Services
from gateway.upstream.dispatch import UpstreamCall
from gateway.values import Fields
from gateway.wire.request import ChatRequest


class Rights:
    """The rights of a caller. This class limits nothing: only gateway keys are limited."""

    def require_route(self, services: Services, principal: Principal, path: str) -> None:
        """Refuse a route that the caller may not use. Raises: Forbidden."""

    def may_use_model(self, services: Services, principal: Principal, name: str) -> bool:
        """Whether the caller may use a model."""
        return True

    def require_models(self, services: Services, principal: Principal, body: Fields | None) -> None:
        """Refuse a body that asks for a model which the caller may not use; None: cannot be read.
        Raises: Forbidden."""

    async def require_right(
        self, runtime: Runtime, services: Services, principal: Principal, call: UpstreamCall
    ) -> None:
        """Refuse a route that the caller may not use, now or where the operator's key would be
        spent. Raises: Forbidden."""

    async def require_own(
        self,
        runtime: Runtime,
        services: Services,
        principal: Principal,
        call: UpstreamCall,
        request: ChatRequest | None,
    ) -> None:
        """Refuse a body that asks for a model or names stored things that are not the caller's.
        `request`: None for a body that cannot be read. Raises: Forbidden; BadRequest: two members
        have one name."""


@cache
def rights() -> Rights:
    """The rights that endpoints ask for."""
    found: Rights = next(given("rights"), Rights)()
    return found
