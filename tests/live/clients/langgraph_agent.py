"""LangGraph's ready-made agent over langchain-openai."""

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from task import API_KEY, BASE_URL, MODEL, prompt, run_both, weather


def converse(traveller: str) -> str:
    @tool
    def look_up(city: str) -> str:
        """The weather of a city."""
        return weather(city, traveller)

    model = ChatOpenAI(model=MODEL, base_url=BASE_URL, api_key=API_KEY)
    agent = create_agent(model, [look_up], system_prompt="You look up the weather.")
    state = agent.invoke({"messages": [("user", prompt(traveller))]})
    return state["messages"][-1].content


run_both(converse)
