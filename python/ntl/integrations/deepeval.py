"""deepeval judges on ntl-server. The score of G-Eval is the mean of the distribution of all scores that the model could write.

`NtlJudge` is the model. `NtlGEval` is the metric, which requests scores in its own range."""
# pyright: reportMissingImports=false

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

try:
    from deepeval.metrics import GEval
    from deepeval.models import DeepEvalBaseLLM
    from openai import AsyncOpenAI, OpenAI
except ImportError as error:
    raise ImportError("ntl.integrations.deepeval needs two packages: pip install deepeval openai") from error

# deepeval requests {"reason": .., "score": ..}. The model writes up to this marker, and the number is read
# after it.
MARKER = '"score":'
# The longest answer. Without a limit, a model that does not end its answer writes until its context is full.
MAX_TOKENS = 512


class NoScore(ValueError):
    """The model wrote no score; the message is the server's reason."""


class NtlJudge(DeepEvalBaseLLM):
    """A chat model of ntl-server for the metrics of deepeval.

    A score is conditional on the scale: `distribution["reason"]` reports if less than half of the probability is on
    it, and number={"mass_min": 0.5} makes such an answer an error.

    Parameters
    ----------
    model: the name of the served model.
    base_url: the server's address with `/v1`.
    api_key: the key that the server requires, if it requires one.
    scale: the range of scores that metrics request; deepeval's default is 0 to 10.
    number: further fields of the request's `number` object.
    options: further fields of the request. `max_tokens` is 512 unless given.
    """

    def __init__(
        self,
        model: str,
        base_url: str = "http://127.0.0.1:8000/v1",
        api_key: str = "-",
        scale: Sequence[float] = (0, 10),
        number: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.served = model
        self.scale = tuple(scale)
        self.options: dict[str, Any] = {"temperature": 0, "max_tokens": MAX_TOKENS, **options}
        self.number: dict[str, Any] = {"after": MARKER, "interval": 0.9, **(number or {})}
        # The number object of the latest score.
        self.distribution: Mapping[str, Any] | None = None
        self.client = OpenAI(base_url=base_url, api_key=api_key)
        self.async_client = AsyncOpenAI(base_url=base_url, api_key=api_key)
        super().__init__(model)

    def load_model(self) -> OpenAI:
        return self.client

    def get_model_name(self) -> str:
        return f"{self.served} (ntl-server)"

    def supports_multimodal(self) -> bool:
        return False

    def on_scale(self, scale: Sequence[float]) -> NtlJudge:
        """The same judge with a different scale and separate distributions."""
        judge = copy.copy(self)
        judge.scale, judge.distribution = tuple(scale), None
        return judge

    def generate(self, prompt: str, schema: Any = None) -> Any:
        return self._read(self.client.chat.completions.create(**self._request(prompt, schema)), schema)

    async def a_generate(self, prompt: str, schema: Any = None) -> Any:
        return self._read(await self.async_client.chat.completions.create(**self._request(prompt, schema)), schema)

    def _request(self, prompt: str, schema: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": prompt}]
        request: dict[str, Any] = {"model": self.served, "messages": messages, **self.options}
        if requests_score(schema):
            request["extra_body"] = {"number": {**self.number, "scale": list(self.scale)}}
        elif schema:
            described = {"name": schema.__name__, "schema": schema.model_json_schema()}
            request["response_format"] = {"type": "json_schema", "json_schema": described}
        return request

    def _read(self, completion: Any, schema: Any) -> Any:
        choice = completion.choices[0]
        if not requests_score(schema):
            return schema.model_validate_json(choice.message.content) if schema else choice.message.content
        number = choice.model_extra["number"]
        if number["value"] is None:
            raise NoScore(f"{self.served} wrote no score from {self.scale[0]} to {self.scale[1]}: {number['reason']}")
        self.distribution = number
        return schema(score=number["value"], reason=reason_before(choice.message.content))


def requests_score(schema: Any) -> bool:
    return schema is not None and set(schema.model_fields) == {"reason", "score"}


def reason_before(content: str) -> str:
    """The reason in `{"reason": "..", "score": 7.5`, or an empty string if the model wrote the score first."""
    written = content.rpartition(MARKER)[0].rstrip().rstrip(",")
    start = written.find("{")
    try:
        return str(json.loads(f"{written[start:]}}}").get("reason", ""))
    except ValueError:
        return written


class NtlGEval(GEval):
    """G-Eval with an `NtlJudge`, on the range of the metric's rubric. `distribution` is the number object of the score."""

    def __init__(self, *args: Any, model: NtlJudge, **options: Any) -> None:
        super().__init__(*args, model=model, **options)
        self.model: NtlJudge = model.on_scale(self.score_range)

    @property
    def distribution(self) -> Mapping[str, Any] | None:
        return self.model.distribution
