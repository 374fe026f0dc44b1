"""The prompt of a judge. Without a rubric it is the default one of `ntl-eval judge`."""

from __future__ import annotations

from collections.abc import Sequence

from ._text import filled

TASK = (
    "Grade an answer with a score from {low} to {high}. {low} means that the answer is wrong or useless, {high} that "
    "it is correct, complete and clear.\n\n"
)
QUESTION = "[Question]\n{input}\n\n"
REFERENCE = "[Right answer]\n{reference}\n\n"
ANSWER = "[Answer]\n{answer}\n\nWrite only the score.\nScore:"


def default_rubric(has_reference: bool) -> str:
    return TASK + QUESTION + (REFERENCE if has_reference else "") + ANSWER


def judge_prompt(input: str, answer: str, reference: str | None, rubric: str | None, scale: Sequence[float]) -> str:
    """The rubric with its fields `{input}`, `{answer}`, `{reference}`, `{low}` and `{high}` replaced."""
    if len(scale) not in (2, 3):
        raise ValueError(f"scale must be (low, high) or (low, high, step), not {tuple(scale)}")
    fields = {"input": input, "answer": answer, "low": f"{scale[0]:g}", "high": f"{scale[1]:g}"}
    if reference is not None:
        fields["reference"] = reference
    return filled(rubric if rubric is not None else default_rubric(reference is not None), fields)
