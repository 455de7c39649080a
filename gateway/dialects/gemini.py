"""Gemini's generateContent: contents of parts, the model and the streaming in the path."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from gateway.core.edits import AppendToResult, Edit, SystemAppend
from gateway.core.placement import GuidanceTarget
from gateway.dialects import own_answers
from gateway.dialects.base import (
    Addressed,
    ChatView,
    Dialect,
    LiteLLMCall,
    SteeredRequest,
    StreamRead,
    WithFirst,
    events_of,
)
from gateway.dialects.own_answers import ANSWER
from gateway.errors import GatewayError
from gateway.steering.transcript.content import json_text, read_result
from gateway.values import FieldDict, Fields
from gateway.wire.body_prefix import MessagesView
from gateway.wire.coerce import (
    as_int,
    as_list,
    as_mapping,
    as_text,
    list_at,
    mapping_at,
    objects,
    text_at,
)
from gateway.wire.parsing import Loads, Span, array_spans, object_spans, scannable
from gateway.wire.request import Splice
from gateway.wire.response_tee import NamedEnd
from gateway.wire.sse import encode_event
from gateway.wire.upstream_errors import Refusal, name_of, refusal_of

_ROLES = {"model": "assistant", "function": "user", "tool": "user"}
# Source: Gemini API reference, `Candidate.finishReason`; others are kept.
_FINISH = {"STOP": "stop", "MAX_TOKENS": "length"} | dict.fromkeys(
    ("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY"),
    "content_filter",
)
# Members of an answer and of a candidate. Source: Gemini API reference.
_MEMBERS = frozenset(
    re.findall(
        r"\w+",
        "candidates usageMetadata promptFeedback modelVersion responseId createTime modelStatus "
        "content finishReason finishMessage index safetyRatings citationMetadata tokenCount error "
        "groundingMetadata groundingAttributions logprobsResult avgLogprobs urlContextMetadata",
    )
)
_TAKEN = [{"type": "text", "text": "Got it. Thanks for the additional context!"}]  # Gemini CLI
_VERBS = ("generateContent", "streamGenerateContent")
_VERTEX = ("projects/{project}/locations/{location}/publishers/google", "publishers/google")
_PLACES = ("v1beta", "v1", "v1alpha", *(f"{v}/{at}" for v in ("v1", "v1beta1") for at in _VERTEX))
_PATH = re.compile(
    rf"(?:(/.+/models/)([^/]+)|/v1internal)((?::|%3[Aa])({'|'.join(_VERBS)}))"  # Code Assist
)
# Members of the schemas with which Gemini CLI asks who speaks next, which model to take, whether
# the agent is in a loop and how to mend an edit. Source: its generateJson calls.
_ASIDE = frozenset(
    {"next_speaker", "model_choice", "complexity_score", "unproductive_state_confidence"}
    | {"noChangesRequired"}
)


def _field(holder: Fields, name: str) -> Any:
    """A member by its name in camel case, or as the API also takes it, in snake case."""
    if name in holder:
        return holder[name]
    return holder.get(re.sub("([A-Z])", lambda found: f"_{found[1].lower()}", name))


class GeminiDialect(Dialect):
    """`POST .../models/{model}:generateContent` and `:streamGenerateContent`. Source: Gemini API
    reference, "Generating content"; Vertex AI's, "generateContent". Also in the envelopes of Code
    Assist."""

    name = "gemini"
    path = "/v1beta/models/{model}:generateContent"
    routes = (
        *(f"/{place}/models/{{model}}:{verb}" for place in _PLACES for verb in _VERBS),
        *(f"/v1internal:{verb}" for verb in _VERBS),
    )
    list_key = "contents"
    foreign = ("session_id",)  # of Code Assist; the Gemini API refuses what it does not know
    route = "generate_content"
    ping = b""  # its SDKs take a comment for a part of the answer
    api = "google"
    stores_answers = False
    end = NamedEnd("finishReason", "blockReason", keys=True)
    always_reports_usage = True
    streams_json = True
    litellm = LiteLLMCall(
        function="agenerate_content",
        fields=frozenset(
            {"contents", "generationConfig", "safetySettings", "systemInstruction", "tools"}
            | {"toolConfig"}
        ),
    )

    def addressed(self, path: str) -> Addressed | None:
        found = _PATH.fullmatch(path)
        if found is None:
            return None
        before, model, after, verb = found.groups("")
        return Addressed(
            before=before or path,
            named=model,
            after=after,
            stream=verb == _VERBS[1],
            elsewhere="/v1beta/models/",
            enveloped=not before,
        )

    def members(self, addressed: Addressed, body: Fields) -> FieldDict:
        """See Dialect. The core asks in the words of the other dialects about the system prompt,
        the tools, the most tokens, the number and the form of answers."""
        instruction = _field(body, "systemInstruction")
        config = as_mapping(_field(body, "generationConfig"))
        tools = map(as_mapping, list_at(body, "tools"))
        declared = [as_list(_field(tool, "functionDeclarations")) for tool in tools]
        words = {
            "system": _blocks(as_mapping(instruction).get("parts")) or instruction,
            "tools": [
                {"type": "function", **t} for each in declared for t in each if isinstance(t, dict)
            ],
            "max_output_tokens": _field(config, "maxOutputTokens"),
            "n": _field(config, "candidateCount"),
        }
        if _schema(config):
            words["response_format"] = {"type": "json_schema"}
        elif _field(config, "responseMimeType") not in (None, "", "text/plain"):
            words["response_format"] = {"type": "json_object"}
        if addressed.agent:
            session = text_at(body, "session_id")
            words["session_id"] = f"{session}/{addressed.agent}"
            words["metadata"] = {"parent_session_id": session}
        return addressed.members() | {key: value for key, value in words.items() if value}

    def wrong_list(self, body: Fields) -> str:
        if isinstance(body.get(self.list_key), dict):
            return ""
        return super().wrong_list(body)

    def history(self, request: SteeredRequest) -> Sequence[Any]:
        single = request.body.get(self.list_key)
        return Contents([single] if isinstance(single, dict) else request.messages, heard=True)

    def placeable(self, request: SteeredRequest) -> Sequence[Any]:
        system = {"role": "system", "content": request.body.get("system")}
        return WithFirst(system, request.own_messages)

    def target(self, given: GuidanceTarget, request: SteeredRequest, model: str) -> GuidanceTarget:
        """See Dialect. There is no system role among the contents."""
        return GuidanceTarget(breakpoints=True)

    def splices(self, request: SteeredRequest, edits: Sequence[Edit]) -> list[Splice]:
        """See Dialect. The cache of Google's hosts has no marks in the request."""
        splices = []
        for edit in edits:
            match edit:
                case SystemAppend():
                    splices += _instruct(request, edit.texts)
                case AppendToResult():
                    # One content may stand without a list.
                    spans = request.message_spans or request.spans(self.list_key)
                    splices += _append(request, spans[edit.index - 1], edit.texts)
        return splices

    def takes(self, parameter: str) -> bool:
        return parameter in ("safetySettings", "toolConfig", "labels")

    def is_side_request(self, request: SteeredRequest) -> bool:
        """See Dialect. Gemini CLI asks about a run in requests of their own."""
        schema = as_mapping(_schema(as_mapping(_field(request.body, "generationConfig"))))
        asked = mapping_at(schema, "properties")
        return bool(asked) and not request.body.get("tools") and not _ASIDE.isdisjoint(asked)

    def read_stream(self, stream: bytes, loads: Loads) -> StreamRead:
        """See Dialect. No mark ends the events: a finish reason does, once the usage is known, or
        the end of the stream. An array of answers ends with its bracket."""
        text = stream.strip()
        chunks = []
        is_array = False
        is_cut = False
        if text[:1] in (b"[", b"{"):
            is_array = True
            try:
                parsed = loads(text)
                if isinstance(parsed, list):
                    chunks = parsed
                else:
                    chunks = [parsed]
            except ValueError:
                is_cut = not text.endswith(b"]")
        else:
            chunks = list(events_of(stream, loads))
        answer = _Joined(chunks)
        finished = answer.finished
        view = chat_view(answer.body)
        return StreamRead(
            completion=view if finished and not answer.failure else None,
            partial=None if finished else view,
            usage=view["usage"],
            began=answer.began or is_cut,
            ended=answer.whole and (is_array or "usageMetadata" in answer.last),
            odd=(is_array and not is_cut) or answer.odd,
            failure=answer.failure,
        )

    def read_answer(self, body: FieldDict) -> ChatView | None:
        answer = _Joined([body])
        if answer.finished:
            return chat_view(answer.body)
        return None

    def own_answer(self, request: SteeredRequest, text: str, number: str, at: int) -> bytes:
        asked = request.addressed
        events = asked is None or b"alt=sse" in asked.query
        enveloped = asked is not None and asked.enveloped
        return own_answers.gemini(request.body, text, number, events=events, enveloped=enveloped)

    def error_body(self, error: GatewayError) -> bytes:
        return json.dumps(_error(error), ensure_ascii=False).encode("utf-8", "replace")

    def error_event(self, error: GatewayError) -> bytes:
        return encode_event(_error(error))


def _schema(config: Fields) -> Any:
    return _field(config, "responseJsonSchema") or _field(config, "responseSchema")


class Contents(MessagesView):
    """Contents as messages of Anthropic's form, each made when it is asked for. `heard`: with the
    model's own words where Gemini CLI has put others behind a summary."""

    def __init__(self, contents: Sequence[Any], heard: bool = False):
        self._contents = contents
        self._heard = heard
        self._made: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._contents)

    def at(self, index: int) -> Any:
        if index not in self._made:
            content = self._contents[index]
            if isinstance(content, dict):
                role = text_at(content, "role") or "user"
                blocks = _blocks(content.get("parts"))
                if self._heard:
                    blocks = self._said(blocks, index)
                content = {"role": _ROLES.get(role, role), "content": blocks}
            self._made[index] = content
        return self._made[index]

    def _said(self, blocks: list[Any], index: int) -> list[Any]:
        """Blocks without results that are there twice: Gemini CLI resumes a session with them."""
        if index and blocks == _TAKEN:  # the model's own words are in the part before
            summary = list_at(as_mapping(self._contents[index - 1]), "parts")[-1:]
            if "<state_snapshot>" in str(summary):
                return _blocks(summary)
            return blocks
        named = [bool(as_mapping(block).get("tool_use_id")) for block in blocks]
        return [b for i, b in enumerate(blocks) if not (named[i] and b in blocks[:i])]


def _blocks(parts: Any) -> list[Any]:
    """Parts as blocks; one part alone counts as a list of it."""
    if parts is None:
        return []
    if isinstance(parts, list):
        listed = parts
    else:
        listed = [parts]
    return [_block(part) if isinstance(part, dict) else part for part in listed]


def _block(part: FieldDict) -> FieldDict:
    """One part. Its signature belongs to the provider and is left out."""
    if isinstance(text := part.get("text"), str):
        kind = "text"
        if part.get("thought") is True:
            kind = "thinking"
        return {"type": kind, kind: text}
    if isinstance(call := _field(part, "functionCall"), dict):
        block = {"type": "tool_use", "name": call.get("name"), "input": call.get("args") or {}}
        if call.get("id"):
            return {**block, "id": call["id"]}
        return block
    if isinstance(result := _field(part, "functionResponse"), dict):
        return _result(result)
    if isinstance(held := _field(part, "inlineData") or _field(part, "fileData"), dict):
        kind = as_text(_field(held, "mimeType"), "")
        source = {"data": held.get("data"), "file_id": _field(held, "fileUri"), "media_type": kind}
        return {"type": "image" if kind.startswith("image/") else "document", "source": source}
    for name, key in (("executableCode", "code"), ("codeExecutionResult", "output")):
        if isinstance(ran := _field(part, name), dict):
            return {"type": "text", "text": text_at(ran, key)}
    kept = {key: value for key, value in part.items() if not key.startswith("thought")}
    return {**kept, "type": "part" if kept else "thinking"}


def _result(result: Fields) -> FieldDict:
    """A result; an object with one text is that text."""
    given = result.get("response")
    response = as_mapping(given)
    shown = given
    if len(response) == 1:
        shown = next(iter(response.values()))
    if isinstance(shown, str):
        text = shown
    else:
        text = json_text(given)
    text = text.removeprefix("<untrusted_context>").lstrip()  # of Gemini CLI
    block = {"type": "tool_result", "name": result.get("name"), "content": text}
    if pictures := _blocks(result.get("parts")):
        block["content"] = [{"type": "text", "text": text}, *pictures]
    if response.get("error"):
        block["is_error"] = True
    if result.get("id"):
        return {**block, "tool_use_id": result["id"]}
    return block


def chat_messages(contents: Sequence[Any], system: Any = None) -> list[FieldDict]:
    """Contents as messages of chat completions. Calls get ids that are used once, and their results
    come right behind them."""
    texts = [text_at(as_mapping(b), "text") for b in _blocks(as_mapping(system).get("parts"))]
    made: list[FieldDict] = []
    if any(texts):
        made.append({"role": "system", "content": "\n\n".join(texts)})
    waiting: list[tuple[Any, str]] = []
    for message in map(as_mapping, Contents(contents)):
        blocks = [as_mapping(block) for block in list_at(message, "content")]
        said = [part for block in blocks for part in _chat_part(block)]
        if message.get("role") == "assistant":
            calls = [block for block in blocks if block.get("type") == "tool_use"]
            waiting = [(call.get("id"), f"call_{len(made)}_{i}") for i, call in enumerate(calls)]
            listed = []
            for (_, name), call in zip(waiting, calls, strict=True):
                function = {"name": call["name"], "arguments": json.dumps(call["input"])}
                listed.append({"id": name, "type": "function", "function": function})
            text = "".join([part.get("text", "") for part in said])
            reply: FieldDict = {"role": "assistant", "content": text or None}
            made.append({**reply, "tool_calls": listed} if listed else reply)
            continue
        for block in blocks:
            if block.get("type") == "tool_result":
                same = (w for w in waiting if w[0] == block.get("tool_use_id"))
                answered = next(same, (None, "call_unknown"))
                waiting = [w for w in waiting if w is not answered]
                shown = read_result(block, None).text
                made.append({"role": "tool", "tool_call_id": answered[1], "content": shown})
        if said:
            made.append({"role": "user", "content": said})
    return made


def _chat_part(block: Fields) -> list[FieldDict]:
    if block.get("type") == "text":
        return [{"type": "text", "text": block["text"]}]
    source = mapping_at(block, "source")
    if block.get("type") != "image" or not source.get("data"):
        return []
    url = f"data:{source['media_type']};base64,{source['data']}"
    return [{"type": "image_url", "image_url": {"url": url}}]


def _instruct(request: SteeredRequest, texts: Sequence[str]) -> list[Splice]:
    """Append `texts` as further parts of the system instruction, unless the upstream refuses
    one."""
    names = ("systemInstruction", "system_instruction")
    key = next((name for name in names if request.spans(name)), names[0])
    given = request.body.get(key)
    if isinstance(given, dict):
        return _append(request, request.spans(key)[-1], texts)
    if given:
        return []
    return request.set_value(key, {"parts": [{"text": text} for text in texts]})


def _append(request: SteeredRequest, span: Span, texts: Sequence[str]) -> list[Splice]:
    """`texts` as further parts of the content in `span`."""
    start, end = span
    text = scannable(request.raw[start:end])
    added = ", ".join(json.dumps({"text": each}) for each in texts)
    members = list(object_spans(text))
    found = [(s, e) for key, s, e in members if key == "parts"]
    if not found:
        added = f'"parts": [{added}]' + (", " if members else "")
        return [Splice(start=start + 1, end=start + 1, text=added)]
    s, e = found[-1]
    if text[s] == "{":  # one part alone
        head = Splice(start=start + s, end=start + s, text="[")
        return [head, Splice(start=start + e, end=start + e, text=f", {added}]")]
    if text[s] != "[":
        return [Splice(start=start + s, end=start + e, text=f"[{added}]")]
    spans = array_spans(text, s)
    if spans:
        added = ", " + added
    at = start + (spans[-1][1] if spans else s + 1)
    return [Splice(start=at, end=at, text=added)]


class _Joined:
    """The chunks of one answer put together; malformed ones are left out."""

    def __init__(self, chunks: Iterable[Any]):
        self.body: FieldDict = {}
        self.failure: Refusal | None = None
        self.odd = False
        self.last: Fields = {}
        candidates: dict[int, FieldDict] = {}
        for chunk in map(as_mapping, chunks):
            chunk = self.last = as_mapping(chunk.get(ANSWER, chunk))
            self.failure = refusal_of(chunk) or self.failure
            self.odd = self.odd or not chunk or not _MEMBERS.issuperset(chunk)
            self.body |= {key: chunk[key] for key in chunk if key != "candidates"}
            for given in map(as_mapping, list_at(chunk, "candidates")):
                self.odd = self.odd or not _MEMBERS.issuperset(given)
                joined = candidates.setdefault(as_int(given.get("index"), 0), {"parts": []})
                joined["parts"] += list_at(mapping_at(given, "content"), "parts")
                if given.get("finishReason") not in (None, "", "FINISH_REASON_UNSPECIFIED"):
                    joined["finishReason"] = given["finishReason"]
        if mapping_at(self.body, "promptFeedback").get("blockReason"):
            candidates.setdefault(0, {"parts": []})["finishReason"] = "SAFETY"
        self.body["candidates"] = [candidates[index] for index in sorted(candidates)]
        self.began = bool(candidates)
        reasons = ["finishReason" in each for each in candidates.values()]
        self.finished = any(reasons)
        self.whole = self.finished and all(reasons)


def chat_view(body: Fields) -> ChatView:
    """A joined answer in the shape of a chat completion. Calls are separate from the content."""
    choices = [_choice(index, candidate) for index, candidate in enumerate(body["candidates"])]
    return {"model": body.get("modelVersion"), "choices": choices, "usage": usage_of(body)}


def _choice(index: int, candidate: Fields) -> FieldDict:
    content = []
    calls = []
    for block in objects(_blocks(candidate["parts"])):
        if block.get("type") == "tool_use":
            function = {"name": block["name"], "arguments": json_text(block["input"])}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        else:
            content.append(block)
    reply = {"role": "assistant", "content": content}
    given = candidate.get("finishReason")
    finish = _FINISH.get(str(given), given)
    if calls:
        reply["tool_calls"] = calls
        if finish == "stop":
            finish = "tool_calls"
    return {"index": index, "message": reply, "finish_reason": finish}


def usage_of(body: Fields) -> FieldDict | None:
    """The usage of an answer, thoughts among the output; None for the zeros that LiteLLM writes.
    Source: Gemini API reference, `UsageMetadata`."""
    given = mapping_at(body, "usageMetadata")
    count = {key: max(0, as_int(value, 0)) for key, value in given.items()}
    thoughts = count.get("thoughtsTokenCount", 0)
    prompt = count.get("promptTokenCount", 0) + count.get("toolUsePromptTokenCount", 0)
    output = count.get("candidatesTokenCount", 0) + thoughts
    if not prompt + output:
        return None
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": count.get("cachedContentTokenCount", 0)},
        "completion_tokens_details": {"reasoning_tokens": thoughts},
    }


def _error(error: GatewayError) -> FieldDict:
    status = name_of("google", error.status)
    return {"error": {"code": error.status, "message": error.message, "status": status}}


GEMINI = GeminiDialect()
