"""`/healthz`, `/readyz` and `/metrics`."""

from datetime import UTC, datetime

from gateway import __version__
from gateway.endpoints.body import Receive, Scope, Send, send_bytes, send_json
from gateway.endpoints.edge import EXCHANGE
from gateway.observability.metrics import CONTENT_TYPE
from gateway.runtime import Runtime
from gateway.stores.watched import Incident, StoreHealth
from gateway.text.sanitize import without_folders
from gateway.values import FieldDict


class HealthEndpoints:
    """Liveness, readiness and metrics of one gateway."""

    def __init__(self, runtime: Runtime):
        self._runtime = runtime

    async def healthz(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Liveness: the process answers."""
        scope[EXCHANGE].route = "healthz"
        await send_json(send, 200, {"status": "ok", "version": __version__})

    async def hello(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The probe that Claude Code sends before its first call."""
        scope[EXCHANGE].route = "healthz"
        await send_json(send, 200, {"message": "hello"})

    async def readyz(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Readiness: 503 lists the problems. A store that is unavailable makes it `degraded`, with
        200: requests are answered. Anybody may ask, so folders are left out; the log has them."""
        scope[EXCHANGE].route = "readyz"
        problems = [without_folders(problem) for problem in self._runtime.problems()]
        body = {"status": "unready" if problems else "ready", "problems": problems}
        if not problems and (health := self._runtime.store_health()):
            if incident := health.incident:
                body |= _degraded(health, incident)
            if health.damaged:
                body["damaged"] = [without_folders(name) for name in health.damaged]
        await send_json(send, 503 if problems else 200, body)

    async def metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The metrics in Prometheus' text format; of several workers each with its number."""
        scope[EXCHANGE].route = "metrics"
        shared = self._runtime.shared_metrics
        if shared is None:
            text = self._runtime.metrics.render()
        else:
            text = await shared.collect()
        await send_bytes(send, 200, text, content_type=CONTENT_TYPE.encode())


def _degraded(health: StoreHealth, incident: Incident) -> FieldDict:
    return {
        "status": "degraded",
        "problems": [f"store: {without_folders(incident.reason)}"],
        "kind": incident.kind,
        "since": datetime.fromtimestamp(incident.since, UTC).isoformat(timespec="seconds"),
        "waiting": health.waiting,
        "waiting_on_disk": health.waiting_on_disk,
        "dropped": incident.dropped,
        "room_lasts_s": None if health.lasts_s is None else round(health.lasts_s),
    }
