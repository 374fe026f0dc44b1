"""JSON answers of a real chat model, SmolLM2-135M-Instruct, to 100 generated schemas: `jsonschema` accepts every answer.

`NTL_SMOLLM2` names the directory of the model."""

import json
import os
import random
from concurrent.futures import ThreadPoolExecutor

import httpx
import jsonschema
import pytest

from conftest import Server

SCHEMAS = 100
# The longest answer has about 400 tokens. Whitespace without a bound would fill the rest.
TOKENS_MAX = 1024
WORDS = ["red", "green", "blue", "small", "large", "yes", "no", "north", "south", "open", "closed", "n/a"]
NAMES = ["name", "size", "colour", "price", "rooms", "tags", "owner", "address", "rating", "state", "items", "year"]


def leaf(chance):
    """A schema of a text, a number, a constant or a few alternatives."""
    low = chance.randint(-50, 50)
    return chance.choice([
        lambda: {"type": "string", "maxLength": chance.randint(1, 30)},
        lambda: {"type": "string", "minLength": 2, "maxLength": 6, "pattern": "^[a-z]+$"},
        lambda: {"enum": chance.sample(WORDS, chance.randint(1, 4))},
        lambda: {"enum": [chance.choice(WORDS), low, None]},
        lambda: {"const": chance.choice([low, *WORDS])},
        lambda: {"type": "integer", "minimum": low, "maximum": low + chance.randint(0, 1000)},
        lambda: {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + 20, "multipleOf": 5},
        lambda: {"type": "number", "minimum": low, "maximum": low + 10, "multipleOf": 0.25},
        lambda: {"type": ["boolean", "null"]},
        lambda: {"type": "string", "format": "date"},
        lambda: {"anyOf": [{"type": "boolean"}, {"type": "integer", "minimum": 1, "maximum": 9}]},
    ])()


def schema(chance, depth):
    kind = chance.random()
    if depth == 0 or kind < 0.3:
        return leaf(chance)
    if kind < 0.55:
        least = chance.randint(0, 2)
        return {"type": "array", "items": schema(chance, depth - 1), "minItems": least, "maxItems": least + chance.randint(0, 2)}
    names = chance.sample(NAMES, chance.randint(1, 4))
    return {
        "type": "object",
        "properties": {name: schema(chance, depth - 1) for name in names},
        "required": chance.sample(names, chance.randint(0, len(names))),
        "additionalProperties": False,
    }


@pytest.fixture(scope="module")
def smollm2():
    folder = os.environ.get("NTL_SMOLLM2")
    if not folder:
        pytest.skip("NTL_SMOLLM2 does not name the directory of SmolLM2-135M-Instruct")
    # On a busy machine, 100 answers need longer than the server allows by default.
    server = Server("--model", f"smollm2={folder}", "--request-timeout", "7200", seconds=300)
    yield server
    server.stop()


def test_a_real_model_answers_every_schema_with_complete_json_of_it(smollm2, report):
    chance = random.Random(0)
    schemas = [schema(chance, 3) for _ in range(SCHEMAS)]

    def answer(wanted):
        question = f"Invent an example. Answer with JSON of this schema: {json.dumps(wanted)}"
        body = {
            "messages": [{"role": "user", "content": question}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "example", "schema": wanted}},
            "temperature": 0,
            "max_completion_tokens": TOKENS_MAX,
        }
        response = httpx.post(f"{smollm2.url}/v1/chat/completions", json=body, timeout=7200)
        assert response.status_code == 200, (wanted, response.text)
        return response.json()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(answer, schemas))
    tokens = []
    for wanted, body in zip(schemas, answers):
        choice = body["choices"][0]
        assert choice["finish_reason"] == "stop", (wanted, choice)
        jsonschema.Draft202012Validator(wanted).validate(json.loads(choice["message"]["content"]))
        tokens.append(body["usage"]["completion_tokens"])
    report(schemas=len(tokens), tokens=sum(tokens), longest=max(tokens))
