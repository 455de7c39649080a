"""langchain-openai against one base URL: prints what it got, as JSON."""

import json
import sys

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel


class Weather(BaseModel):
    """A city's weather."""

    city: str
    degrees: float


@tool
def look_up(city: str) -> str:
    """Look a city up."""
    return f"{city}: 21"


def tool_loop(model):
    """Four calls of a tool, then the answer."""
    bound = model.bind_tools([look_up])
    messages = [HumanMessage("what is the weather")]
    names = []
    for _ in range(5):
        answer = bound.invoke(messages)
        messages.append(answer)
        if not answer.tool_calls:
            break
        for call in answer.tool_calls:
            names.append(call["args"]["city"])
            messages.append(ToolMessage(look_up.invoke(call["args"]), tool_call_id=call["id"]))
    return {"cities": names, "final": messages[-1].content}


def failure(model):
    """The class of the exception and its status."""
    try:
        model.invoke("fail")
    except Exception as error:
        return [type(error).__name__, error.status_code, error.response.headers["retry-after"]]
    return None


base_url = sys.argv[1]
model = ChatOpenAI(base_url=base_url, api_key="sk-mine", model="m", max_retries=0)
embeddings = OpenAIEmbeddings(
    base_url=base_url, api_key="sk-mine", model="e", check_embedding_ctx_length=False
)
report = {
    "loop": tool_loop(model),
    "parallel": [c["args"]["city"] for c in model.bind_tools([look_up]).invoke("two").tool_calls],
    "chat": model.invoke("one two").content,
    "stream": "".join(chunk.content for chunk in model.stream("three four")),
    "structured": model.with_structured_output(Weather).invoke("weather").model_dump(),
    "embedding": len(embeddings.embed_query("x")),
    "failure": failure(model),
}
print(json.dumps(report))
