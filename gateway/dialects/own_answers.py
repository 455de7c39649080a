"""Answers of the gateway's own: one final text in each dialect, as a body or as a stream.

Clients take them for a model's: they end the run, call no tool, and used no token."""

import json
import re
from collections.abc import Iterable
from typing import Any

from gateway.data_files import read_text
from gateway.values import Fields
from gateway.wire.coerce import as_int, as_mapping, mapping_at
from gateway.wire.sse import encode_event

Body = Fields

_MOST_CHOICES = 128  # Source: OpenAI API reference, `n`

_TEMPLATES: Fields = json.loads(read_text(__package__, "own_answers.json"))
_PLACE = re.compile(r'"\$(\w+)"')


def whole(value: Any) -> bytes:
    """A body."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def chat(body: Body, text: str, number: str, at: int) -> bytes:
    """A chat completion; `number` is its id's, `at` its time in seconds of the epoch."""
    made = filled("chat", id=f"chatcmpl-{number}", at=at, model=body.get("model"), text=text)
    choices = range(min(max(1, as_int(body.get("n"), 1)), _MOST_CHOICES))
    if body.get("stream") is not True:
        return whole(_chosen(made["whole"], choices))
    sent = [_chosen(event, [index]) for index in choices for event in made["events"]]
    if mapping_at(body, "stream_options").get("include_usage") is True:
        sent.append(made["usage"])
    return b"".join([*map(encode_event, sent), b"data: [DONE]\n\n"])


def _chosen(answer: Fields, indexes: Iterable[int]) -> Fields:
    """The answer with its only choice under each of these numbers."""
    [choice] = answer["choices"]
    return {**answer, "choices": [{**choice, "index": index} for index in indexes]}


def messages(body: Body, text: str, number: str) -> bytes:
    """An Anthropic message."""
    made = filled("messages", id=f"msg_{number}", model=body.get("model"), text=text)
    if body.get("stream") is not True:
        return whole(made["whole"])
    return _named(made["events"])


# Member of an answer of Code Assist that is one of the Gemini API. Source: Gemini CLI.
ANSWER = "response"


def gemini(body: Body, text: str, number: str, *, events: bool, enveloped: bool) -> bytes:
    """A generated content; of a stream its only event, or the array of it. `enveloped`: as Code
    Assist answers."""
    answer = filled("gemini", id=number, model=body.get("model"), text=text)
    if enveloped:
        answer = {ANSWER: answer}
    if body.get("stream") is not True:
        return whole(answer)
    if events:
        return encode_event(answer)
    return whole([answer])


def responses(body: Body, text: str, number: str, at: int) -> bytes:
    """A response; it is not stored, so that no later request can continue it by its id."""
    values = {"id": f"resp_{number}", "item": f"msg_{number}", "text": text}
    made = filled("responses", at=at, model=body.get("model"), **values)
    response = made["whole"]
    response |= {name: body[name] for name in made["echoed"] if name in body}
    if body.get("stream") is not True:
        return whole(response)
    for event in made["events"]:
        if "response" in event:
            event["response"] = {**response, **event["response"]}
    return _named(made["events"])


def filled(name: str, **values: Any) -> Any:
    """A template with values in the places that are named by `$` and their names."""
    template = json.dumps(_TEMPLATES[name])
    return json.loads(_PLACE.sub(lambda found: json.dumps(values[found[1]]), template))


def _named(events: Iterable[Fields]) -> bytes:
    return b"".join(encode_event(event, event=str(event["type"])) for event in events)


def answer_formats(body: Body) -> list[Fields]:
    """The formats that a request demands of its answer, in the words of each dialect."""
    formats = (
        body.get("response_format"),
        mapping_at(body, "text").get("format"),
        mapping_at(body, "output_config").get("format"),
        body.get("output_format"),
    )
    return [as_mapping(form) for form in formats]


def is_structured(body: Body) -> bool:
    """Whether a request demands an answer of a given form, in any dialect: a text is none."""
    return any(form.get("type", "text") != "text" for form in answer_formats(body))
