"""Pydantic AI over its OpenAI provider."""

import asyncio

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from task import API_KEY, BASE_URL, MODEL, prompt, run_both, weather


def converse(traveller: str) -> str:
    async def look_up(city: str) -> str:
        """The weather of a city."""
        return await asyncio.to_thread(weather, city, traveller)

    async def run() -> str:
        model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE_URL, api_key=API_KEY))
        agent = Agent(model, instructions="You look up the weather.", tools=[look_up])
        return (await agent.run(prompt(traveller))).output

    return asyncio.run(run())


run_both(converse)
