"""mini-swe-agent by its own configs: with a shell as a tool, or (second argument) in its text."""

import sys
from pathlib import Path

import yaml
from minisweagent import package_dir
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel
from task import API_KEY, BASE_URL, MODEL, prompt, run_both, together

TEXTUAL = sys.argv[2:] == ["text"]
CONFIG = Path(package_dir) / "config" / ("mini_textbased.yaml" if TEXTUAL else "mini.yaml")


class Shell(LocalEnvironment):
    """The local shell, which waits for the other conversation before each command."""

    def execute(self, *args, **kwargs):
        together()
        return super().execute(*args, **kwargs)


def converse(traveller: str) -> str:
    config = yaml.safe_load(CONFIG.read_text())
    templates = {k: v for k, v in config["model"].items() if k.endswith("_template")}
    kind = LitellmTextbasedModel if TEXTUAL else LitellmModel
    model = kind(
        model_name=f"openai/{MODEL}",
        model_kwargs={"api_base": BASE_URL, "api_key": API_KEY},
        cost_tracking="ignore_errors",
        **templates,
    )
    agent_config = {k: v for k, v in config["agent"].items() if k.endswith("_template")}
    agent = DefaultAgent(model, Shell(), **agent_config)
    return agent.run(prompt(traveller))["submission"]


run_both(converse)
