"""smolagents: the agent that calls tools, and with the argument `code` the one that writes code."""

import sys

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool
from task import API_KEY, BASE_URL, MODEL, prompt, run_both, weather

KIND = CodeAgent if sys.argv[2:] == ["code"] else ToolCallingAgent


def converse(traveller: str) -> str:
    @tool
    def look_up(city: str) -> str:
        """The weather of a city.

        Args:
            city: its name
        """
        return weather(city, traveller)

    model = OpenAIModel(MODEL, api_base=BASE_URL, api_key=API_KEY)
    agent = KIND(tools=[look_up], model=model, verbosity_level=0)
    return str(agent.run(prompt(traveller)))


run_both(converse)
