"""inspect_ai: the provider `ntl/NAME` for models of ntl-server, and a scorer that uses the complete distribution of a rating."""
# pyright: reportMissingImports=false

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

try:
    from inspect_ai.model import ChatMessageUser, GenerateConfig, Model, ModelAPI, get_model, modelapi
    from inspect_ai.model._providers.openai_compatible import OpenAICompatibleAPI
    from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
    from inspect_ai.solver import TaskState
except ImportError as error:
    raise ImportError("ntl.integrations.inspect_ai needs two packages: pip install inspect_ai openai") from error

TEMPLATE = """Rate an answer to a task.

Task: {question}

Answer: {answer}

What a good answer is: {criterion}

Rate the answer from {low} (worst) to {high} (best). Write the number alone.
"""
# The longest answer. Without a limit, a model that does not end its answer writes until its context is full.
MAX_TOKENS = 512


class NtlAPI(OpenAICompatibleAPI):
    """Chat models of ntl-server at NTL_BASE_URL (http://127.0.0.1:8000/v1), with NTL_API_KEY if the server requires one.

    The `number` object of an answer is in its message's metadata, and therefore in logs and caches. An answer has at
    most 512 tokens unless `max_tokens` is given.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        **arguments: Any,
    ) -> None:
        key = api_key or os.environ.get("NTL_API_KEY", "-")
        service = {"service": "ntl", "service_base_url": "http://127.0.0.1:8000/v1"}
        super().__init__(model_name, base_url, key, config or GenerateConfig(), **service, **arguments)

    def max_tokens(self) -> int:
        return MAX_TOKENS

    def chat_choices_from_completion(self, completion: Any, tools: Any) -> Any:
        choices = super().chat_choices_from_completion(completion, tools)
        for choice, answered in zip(choices, completion.choices, strict=True):
            if number := (answered.model_extra or {}).get("number"):
                choice.message.metadata = {**(choice.message.metadata or {}), "number": number}
        return choices


@modelapi(name="ntl")
def ntl() -> type[ModelAPI]:
    return NtlAPI


@scorer(metrics=[mean(), stderr()])
def expected_score(
    scale: Sequence[float] = (1, 5),
    template: str = TEMPLATE,
    interval: float = 0.9,
    number: Mapping[str, Any] | None = None,
    model: str | Model | None = None,
    model_role: str = "grader",
) -> Scorer:
    """A scorer for the expected rating of the answer by a model `ntl/NAME`.

    The rating is conditional on the scale. If less than half of the probability is on the scale, `metadata["reason"]`
    names the texts that the model would have written instead; with number={"mass_min": 0.5} such a sample is unscored,
    and the explanation says so.

    Parameters
    ----------
    scale: the range of integers, or (low, high, step).
    template: the question, with `{question}`, `{answer}`, `{criterion}` (the target), `{low}` and `{high}`.
    interval: the coverage of the interval in the metadata.
    number: further fields of the request's `number` object; with {"after": "Rating:"} a template may first request
        reasons.
    model: the judge; by default, the model with the role `model_role`.
    """
    fields = {"scale": list(scale), "interval": interval, **(number or {})}
    config = GenerateConfig(extra_body={"number": fields})

    async def score(state: TaskState, target: Target) -> Score:
        grader = get_model(model) if model else get_model(role=model_role)
        words = {"question": state.input_text, "answer": state.output.completion, "criterion": target.text}
        prompt = template.format(**words, low=scale[0], high=scale[1])
        output = await grader.generate([ChatMessageUser(content=prompt)], config=config)
        rating = (output.message.metadata or {}).get("number")
        if rating is None:
            raise ValueError(f"{grader} answered without a `number`: is it a model ntl/NAME of ntl-server?")
        answer = {"answer": state.output.completion, "metadata": distribution(rating)}
        if rating["value"] is None:
            return Score.unscored(reason="grader_failed", explanation=rating["reason"], **answer)
        return Score(value=rating["value"], explanation=output.completion, **answer)

    return score


def distribution(rating: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a score."""
    return {
        "spread": rating["std"],
        "interval": rating.get("interval"),
        "mode": rating["mode"],
        "median": rating["median"],
        "mass": rating["mass"],
        "reason": rating["reason"],
        "distribution": {row["text"]: row["probability"] for row in rating["support"]},
    }
