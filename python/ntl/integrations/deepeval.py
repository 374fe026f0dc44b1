"""deepeval judges on ntl-server. The score of G-Eval is the mean of the distribution of all scores that the model could write.

`NtlJudge` is the model. `NtlGEval` is the metric, which requests scores in its own range."""

import copy
import json

from deepeval.metrics import GEval
from deepeval.models import DeepEvalBaseLLM
from openai import AsyncOpenAI, OpenAI

# deepeval requests {"reason": .., "score": ..}. The model writes up to this marker, and the number is read
# after it.
MARKER = '"score":'
# The longest answer. Without a limit, a model that does not end its answer writes until its context is full.
MAX_TOKENS = 512


class NoScore(ValueError):
    """The model wrote no score; the message is the server's reason."""


class NtlJudge(DeepEvalBaseLLM):
    """A chat model of ntl-server. `scale` is the range of scores that metrics request, 0 to 10 by default in deepeval.
    `number` has further fields of the server's `number` object, and `options` has further request fields. `max_tokens` is
    512 unless given. A score is conditional on the scale: `distribution["reason"]` reports if less than half of the
    probability is on it, and number={"mass_min": 0.5} makes such an answer an error."""

    def __init__(self, model, base_url="http://127.0.0.1:8000/v1", api_key="-", scale=(0, 10), number=None, **options):
        self.served, self.scale, self.options = model, tuple(scale), {"temperature": 0, "max_tokens": MAX_TOKENS, **options}
        self.number = {"after": MARKER, "interval": 0.9, **(number or {})}
        # The number object of the latest score.
        self.distribution = None
        access = {"base_url": base_url, "api_key": api_key}
        self.client, self.async_client = OpenAI(**access), AsyncOpenAI(**access)
        super().__init__(model)

    def load_model(self):
        return self.client

    def get_model_name(self):
        return f"{self.served} (ntl-server)"

    def supports_multimodal(self):
        return False

    def on_scale(self, scale):
        """Returns the same judge with a different scale and separate distributions."""
        judge = copy.copy(self)
        judge.scale, judge.distribution = tuple(scale), None
        return judge

    def generate(self, prompt, schema=None):
        return self._read(self.client.chat.completions.create(**self._request(prompt, schema)), schema)

    async def a_generate(self, prompt, schema=None):
        return self._read(await self.async_client.chat.completions.create(**self._request(prompt, schema)), schema)

    def _request(self, prompt, schema):
        request = {"model": self.served, "messages": [{"role": "user", "content": prompt}], **self.options}
        if asks_for_a_score(schema):
            request["extra_body"] = {"number": {**self.number, "scale": list(self.scale)}}
        elif schema:
            described = {"name": schema.__name__, "schema": schema.model_json_schema()}
            request["response_format"] = {"type": "json_schema", "json_schema": described}
        return request

    def _read(self, completion, schema):
        choice = completion.choices[0]
        if not asks_for_a_score(schema):
            return schema.model_validate_json(choice.message.content) if schema else choice.message.content
        number = choice.model_extra["number"]
        if number["value"] is None:
            raise NoScore(f"{self.served} wrote no score from {self.scale[0]} to {self.scale[1]}: {number['reason']}")
        self.distribution = number
        return schema(score=number["value"], reason=reason_before(choice.message.content))


def asks_for_a_score(schema):
    return schema is not None and set(schema.model_fields) == {"reason", "score"}


def reason_before(content):
    """Returns the reason in `{"reason": "..", "score": 7.5`, or an empty string if the model wrote the score first."""
    written = content.rpartition(MARKER)[0].rstrip().rstrip(",")
    start = written.find("{")
    try:
        return str(json.loads(f"{written[start:]}}}").get("reason", ""))
    except ValueError:
        return written


class NtlGEval(GEval):
    """G-Eval with an `NtlJudge`, on the range of the metric's rubric. `distribution` is the number object of the score."""

    def __init__(self, *args, model, **options):
        super().__init__(*args, model=model, **options)
        self.model = model.on_scale(self.score_range)

    @property
    def distribution(self):
        return self.model.distribution
