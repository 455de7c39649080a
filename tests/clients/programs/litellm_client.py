"""The LiteLLM SDK against one base URL: prints what it got, as JSON."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

litellm.suppress_debug_info = True
BASE = {"api_base": sys.argv[1], "api_key": "sk-mine", "model": "openai/m", "num_retries": 0}
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def ask(text, **more):
    """One completion."""
    messages = text if isinstance(text, list) else [{"role": "user", "content": text}]
    return litellm.completion(messages=messages, **BASE, **more)


def tool_loop():
    """Four calls of a tool, then the answer."""
    messages = [{"role": "user", "content": "what is the weather"}]
    names = []
    for _ in range(5):
        message = ask(messages, tools=[TOOL]).choices[0].message
        messages.append(message.model_dump())
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            city = json.loads(call.function.arguments)["city"]
            names.append(city)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"{city}: 21"})
    return {"cities": names, "final": messages[-1]["content"]}


def cities(message):
    """The arguments of the calls."""
    return [json.loads(call.function.arguments)["city"] for call in message.tool_calls]


def structured():
    """An object by a schema."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "w", "schema": schema}}
    return json.loads(ask("weather", response_format=wanted).choices[0].message.content)


def failure():
    """The class of the exception and its status."""
    try:
        ask("fail", max_retries=0)
    except Exception as error:
        # LiteLLM keeps the provider's headers beside the response it makes up for its errors.
        headers = getattr(error, "litellm_response_headers", None) or error.response.headers
        return [type(error).__name__, error.status_code, headers.get("retry-after")]
    return None


report = {
    "loop": tool_loop(),
    "parallel": cities(ask("two", tools=[TOOL]).choices[0].message),
    "chat": ask("one two").choices[0].message.content,
    "stream": "".join(
        c.choices[0].delta.content or "" for c in ask("three four", stream=True) if c.choices
    ),
    "structured": structured(),
    "embedding": len(
        litellm.embedding(
            model="openai/e", input=["x"], api_base=BASE["api_base"], api_key="sk-mine"
        ).data[0]["embedding"]
    ),
    "failure": failure(),
}
print(json.dumps(report))
