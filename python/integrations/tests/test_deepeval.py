"""G-Eval of the real deepeval: compares its own score with the score from `number`, for the same model."""

from typing import Literal

import pytest
from deepeval import evaluate
from deepeval.evaluate import CacheConfig, DisplayConfig
from deepeval.metrics import GEval
from deepeval.metrics.g_eval import Rubric
from deepeval.models import OpenAIModel
from deepeval.test_case import LLMTestCase, SingleTurnParams
from pydantic import BaseModel

from conftest import OPENING, REASON, judge_of
from ntl.integrations.deepeval import NoScore, NtlGEval, NtlJudge

# deepeval only reads log-probabilities from models whose names it knows.
NAME = "gpt-4.1"
CASE = LLMTestCase(input="What is 12 + 7?", actual_output="19, since 12 + 7 = 19.")
METRIC = {
    "name": "Correctness",
    "evaluation_steps": ["Check whether the actual output answers the input."],
    "evaluation_params": [SingleTurnParams.INPUT, SingleTurnParams.ACTUAL_OUTPUT],
    "rubric": [
        Rubric(score_range=(1, 5), expected_outcome="Wrong."),
        Rubric(score_range=(6, 10), expected_outcome="Right."),
    ],
}
TEN = {"1": {"0": 0.9, "}": 0.1}}

# For each judge: the first digit, the transitions after a 1, the mean of its scores, and deepeval's own
# score.
JUDGES = {
    "no ten": ({"7": 0.2, "8": 0.5, "9": 0.3}, {}, 8.1, 8.1),
    "nine or ten": ({"9": 0.5, "8": 0.1, "1": 0.4}, TEN, 8.94, 5.7),
    "ten": ({"1": 0.6, "8": 0.3, "9": 0.1}, TEN, 8.76, 10.0),
    "one": ({"1": 0.5, "2": 0.5}, {"1": {"0": 0.2, "}": 0.8}}, 2.4, 1.5),
    "many": ({"9": 0.35, "8": 0.3, "7": 0.25, "6": 0.09, "5": 0.005, "4": 0.005}, {}, 7.885, 7.919191919),
}


def one_to_ten(metric):
    """Converts deepeval's score, which is scaled to 0 to 1."""
    return 1 + 9 * metric.score


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("async_mode", [False, True], ids=["sync", "async"])
def test_a_score_is_the_mean_of_all_scores_and_deepeval_reads_one_token(serve, report, judge, async_mode):
    first, then, mean, one_token = JUDGES[judge]
    url = serve(**{NAME: judge_of(first, then, before=OPENING)})
    ours = NtlGEval(model=NtlJudge(NAME, url), async_mode=async_mode, **METRIC)
    ours.measure(CASE, _show_indicator=False)
    costs = {"cost_per_input_token": 0, "cost_per_output_token": 0}
    theirs = GEval(model=OpenAIModel(NAME, "-", url, **costs), async_mode=async_mode, **METRIC)
    theirs.measure(CASE, _show_indicator=False)
    report(f"{judge}: mean {mean}, ours {one_to_ten(ours):.4f}, deepeval's own {one_to_ten(theirs):.4f}")
    assert one_to_ten(ours) == pytest.approx(mean, abs=1e-5)
    assert one_to_ten(theirs) == pytest.approx(one_token, abs=1e-5)
    assert ours.reason == theirs.reason == REASON
    assert ours.distribution["mass"]["closed"] == pytest.approx(1)
    assert ours.distribution["interval"]["coverage"] == 0.9


def test_a_judge_that_writes_no_score_is_an_error_that_says_what_it_wrote(serve):
    url = serve(judge=judge_of({"1": 0.7, "5": 0.3}, {"1": {"2": 1.0}}, before=OPENING), mute={">": {"Fine.": 1.0}})
    lenient = NtlGEval(model=NtlJudge("judge", url), async_mode=False, **METRIC)
    lenient.measure(CASE, _show_indicator=False)
    assert one_to_ten(lenient) == pytest.approx(5, abs=1e-4)
    assert lenient.distribution["reason"].startswith("less than half of the mass, ")
    metric = NtlGEval(model=NtlJudge("judge", url, number={"mass_min": 0.5}), async_mode=False, **METRIC)
    with pytest.raises(NoScore, match=r'no score from 1 to 10: closed mass .* is below mass_min 0.5; .* "12" \(0.7\)'):
        metric.measure(CASE, _show_indicator=False)
    mute = NtlGEval(model=NtlJudge("mute", url), async_mode=False, **METRIC)
    with pytest.raises(NoScore, match="no text contained the marker"):
        mute.measure(CASE, _show_indicator=False)


def test_answers_of_other_kinds_are_guided_by_their_schema(serve):
    class Verdict(BaseModel):
        verdict: Literal["yes", "no"]

    judge = NtlJudge("judge", serve(judge={">": {"Well, yes.": 0.9, '{"verdict": "yes"}': 0.1}}))
    assert judge.generate("Is it so?") == "Well, yes."
    assert judge.generate("Is it so?", schema=Verdict) == Verdict(verdict="yes")


def test_the_length_of_an_answer_is_limited(serve):
    endless = {">": {"so ": 1.0}, "so ": {"so ": 1.0}}
    url = serve(judge=endless)
    assert NtlJudge("judge", url).generate("Is it so?") == "so " * 512
    assert NtlJudge("judge", url, max_tokens=3).generate("Is it so?") == "so " * 3


def test_a_score_that_comes_first_has_no_reason(serve):
    url = serve(judge=judge_of({"4": 1.0}, before='{"score":'))
    metric = NtlGEval(model=NtlJudge("judge", url), async_mode=False, **METRIC)
    metric.measure(CASE, _show_indicator=False)
    assert (one_to_ten(metric), metric.reason) == (pytest.approx(4), "")


def test_an_evaluation_of_many_cases_has_the_score_of_each(serve, tmp_path, monkeypatch):
    # deepeval writes its files to the current directory.
    monkeypatch.chdir(tmp_path)
    judge = NtlJudge("judge", serve(judge=judge_of({"7": 0.5, "8": 0.5}, before=OPENING)))
    quiet = {"display_config": DisplayConfig(print_results=False, show_indicator=False)}
    done = evaluate([CASE] * 8, [NtlGEval(model=judge, **METRIC)], cache_config=CacheConfig(write_cache=False), **quiet)
    scored = [result.metrics_data[0] for result in done.test_results]
    assert [1 + 9 * one.score for one in scored] == [pytest.approx(7.5, abs=1e-5)] * 8
    assert {one.reason for one in scored} == {REASON}
