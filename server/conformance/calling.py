"""A checkpoint that calls functions, for clients of that kind.

It has random weights, so that only the server's grammars make its calls valid."""

import json
import shutil
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

CHECKPOINT = Path(__file__).parents[2] / "models" / "tests" / "data" / "tiny" / "llama-ntl"

TEMPLATE = """{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{% for message in messages %}{{ message.role }}: {{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""


class Weather(BaseModel):
    """The weather in a city."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Rome", "Oslo"]
    unit: Literal["C", "F"]


WEATHER = {
    "type": "function",
    "function": {"name": "Weather", "description": "The weather.", "parameters": Weather.model_json_schema()},
}
ASKED = [{"role": "user", "content": "How is the weather in Rome?"}]


def write(folder):
    """Writes the checkpoint into a folder, which it returns."""
    for file in CHECKPOINT.glob("*.*"):
        shutil.copy(file, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder
