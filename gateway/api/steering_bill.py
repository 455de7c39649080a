"""Steering's own bill on a session: its texts and their frames, lost cache, and the reader.

An estimate at list prices. A text is fresh input at the first call with it; at each later call of
its run it is read from the provider's cache, if anything was. Cache counts as lost by steering only
where it certainly was: at a call for which steering changed the model, or put a text into the head
of a prompt that was sent before, and of which the provider then read less from its cache than of
the call before; that difference is the least that was lost."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from gateway.core.guidance_text import frame
from gateway.runtime import Runtime
from gateway.stores.records import CallRow, InjectionRow
from gateway.stores.redact import OMITTED
from gateway.stores.sessions import SessionCalls
from gateway.stores.totals import plus
from gateway.upstream.token_estimates import BYTES_PER_TOKEN
from gateway.values import Value


class SteeringBill(Value):
    """The part of a session's cost that steering itself added. Dollars are None where there are no
    tokens, or no price is known."""

    text_tokens: int  # estimated, of its texts, once for each call that read them
    text_usd: float | None  # US dollars of these
    lost_cache_tokens: int  # at least, no longer read from the provider's cache
    lost_cache_usd: float | None  # US dollars more for these
    reader_tokens: int  # used by `reader.model` for the session's runs
    reader_usd: float  # US dollars of these


def steering_bill(calls: SessionCalls, runtime: Runtime) -> SteeringBill:
    """The bill of a session."""
    lasts = runtime.settings.injection.lifetime == "run"
    texts: dict[tuple[str, int], list[InjectionRow]] = defaultdict(list)
    for text in calls.texts:
        texts[text.run_id, text.step_index].append(text)
    standing: Counter[str] = Counter()
    before: dict[str, CallRow] = {}
    tokens = Counter[str]()
    text_usd = None
    lost_usd = None
    for step in calls.steps:
        call = step.call
        if call is None:
            continue
        run_id = step.run_id
        new = texts[run_id, step.step_index]
        kept = _framed([t for t in new if t.source != "skip"], prefaced=bool(standing[run_id]))
        # The directive is for one call.
        once = _framed(
            [t for t in new if t.source == "skip"], prefaced=bool(standing[run_id] + kept)
        )
        read = standing[run_id] + kept + once
        cached = 0
        if call.cached_tokens:
            cached = standing[run_id]
        tokens["text"] += read
        text_usd = plus(text_usd, _cost(runtime, call, read, cached=cached))
        if lasts:
            standing[run_id] += kept
        if call.failed:
            continue
        if run_id in before:
            lost = _lost(before[run_id], call, new)
            tokens["lost"] += lost
            whole = _cost(runtime, call, lost, cached=0)
            if whole is not None:
                lost_usd = plus(lost_usd, whole - (_cost(runtime, call, lost, cached=lost) or 0.0))
        before[run_id] = call
    return SteeringBill(
        text_tokens=tokens["text"],
        text_usd=text_usd,
        lost_cache_tokens=tokens["lost"],
        lost_cache_usd=lost_usd,
        reader_tokens=calls.reader_tokens,
        reader_usd=calls.reader_usd,
    )


def _framed(texts: Sequence[InjectionRow], *, prefaced: bool) -> int:
    """Tokens of new texts with their frame. `prefaced`: one before says already what it is."""
    if not texts:
        return 0
    characters = len(frame((), preface=not prefaced))
    return round(characters / BYTES_PER_TOKEN) + sum(map(_tokens, texts))


def _tokens(text: InjectionRow) -> int:
    characters = len(text.text)
    if omitted := OMITTED.fullmatch(text.text):
        characters = int(omitted[1])
    return round(characters / BYTES_PER_TOKEN)


def _lost(before: CallRow, call: CallRow, new: Sequence[InjectionRow]) -> int:
    """Tokens that steering lost of what the provider had in its cache."""
    routed = call.model_asked != before.model_asked
    # A client that asks for another model loses its cache by itself.
    own = call.model_requested != before.model_requested
    if (routed and not own) or any(text.placement == "system" for text in new):
        return max(0, (before.cached_tokens or 0) - (call.cached_tokens or 0))
    return 0


def _cost(runtime: Runtime, call: CallRow, tokens: int, *, cached: int) -> float | None:
    """US dollars of input tokens; None for none."""
    if not tokens:
        return None
    usage = {"prompt_tokens": tokens, "prompt_tokens_details": {"cached_tokens": cached}}
    return runtime.services.catalogue.cost(call.model_asked, usage)
