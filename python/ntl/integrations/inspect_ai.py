"""inspect_ai: the provider `ntl/NAME` for models of ntl-server, and a scorer that uses the complete distribution of a rating."""

import os

from inspect_ai.model import ChatMessageUser, GenerateConfig, get_model, modelapi
from inspect_ai.model._providers.openai_compatible import OpenAICompatibleAPI
from inspect_ai.scorer import Score, mean, scorer, stderr

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
    The `number` object of an answer is in its message's metadata, and therefore in logs and caches. An answer has at most
    512 tokens unless `max_tokens` is given."""

    def __init__(self, model_name, base_url=None, api_key=None, config=GenerateConfig(), **arguments):
        key = api_key or os.environ.get("NTL_API_KEY", "-")
        place = {"service": "ntl", "service_base_url": "http://127.0.0.1:8000/v1"}
        super().__init__(model_name, base_url, key, config, **place, **arguments)

    def max_tokens(self):
        return MAX_TOKENS

    def chat_choices_from_completion(self, completion, tools):
        choices = super().chat_choices_from_completion(completion, tools)
        for choice, answered in zip(choices, completion.choices, strict=True):
            if number := (answered.model_extra or {}).get("number"):
                choice.message.metadata = {**(choice.message.metadata or {}), "number": number}
        return choices


@modelapi(name="ntl")
def ntl():
    return NtlAPI


@scorer(metrics=[mean(), stderr()])
def expected_score(scale=(1, 5), template=TEMPLATE, interval=0.9, number=None, model=None, model_role="grader"):
    """Returns a scorer for the expected rating of the answer on a scale of integers, or `(low, high, step)`, by a model
    `ntl/NAME`. `number` has further fields of the server's `number` object: with {"after": "Rating:"} a template may
    first request reasons. The rating is conditional on the scale. If less than half of the probability is on the scale,
    `metadata["reason"]` names the texts that the model would have written instead; with {"mass_min": 0.5} such a sample
    is unscored, and the explanation says so."""
    asked = GenerateConfig(extra_body={"number": {"scale": list(scale), "interval": interval, **(number or {})}})

    async def score(state, target):
        grader = get_model(model) if model else get_model(role=model_role)
        words = {"question": state.input_text, "answer": state.output.completion, "criterion": target.text}
        prompt = template.format(**words, low=scale[0], high=scale[1])
        output = await grader.generate([ChatMessageUser(content=prompt)], config=asked)
        rating = (output.message.metadata or {}).get("number")
        if rating is None:
            raise ValueError(f"{grader} answered without a `number`: is it a model ntl/NAME of ntl-server?")
        answer = {"answer": state.output.completion, "metadata": distribution(rating)}
        if rating["value"] is None:
            return Score.unscored(reason="grader_failed", explanation=rating["reason"], **answer)
        return Score(value=rating["value"], explanation=output.completion, **answer)

    return score


def distribution(rating):
    """Returns the metadata of a score."""
    return {
        "spread": rating["std"],
        "interval": rating.get("interval"),
        "mode": rating["mode"],
        "median": rating["median"],
        "mass": rating["mass"],
        "reason": rating["reason"],
        "distribution": {row["text"]: row["probability"] for row in rating["support"]},
    }
