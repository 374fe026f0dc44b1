"""An evaluation with the real inspect_ai, in which a served judge rates the samples."""

import os
import subprocess
import sys
import tomllib

import inspect_ai
import pytest
from inspect_ai.dataset import Sample
from inspect_ai.log import read_eval_log

from conftest import REPOSITORY, judge_of
from ntl.integrations.inspect_ai import expected_score

RATINGS = {"4": 0.5, "5": 0.3, "2": 0.2}
SAMPLES = [Sample(input="What is 12 + 7?", target="19"), Sample(input="What is 5 + 6?", target="11")]


@pytest.fixture
def evaluate(serve, tmp_path):
    """Evaluates the samples: `answers` answers them, and `judge` rates the answers."""

    def evaluate(judge, *scorers, answers="ntl/answers"):
        url = serve(answers={">": {"19": 1.0}}, judge=judge)
        grader = inspect_ai.model.get_model("ntl/judge", base_url=url, memoize=False)
        model = inspect_ai.model.get_model(answers, base_url=url, memoize=False)
        task = inspect_ai.Task(dataset=SAMPLES, scorer=list(scorers))
        options = {"model_roles": {"grader": grader}, "log_dir": str(tmp_path), "display": "none", "log_samples": True}
        (log,) = inspect_ai.eval(task, model=model, **options)
        assert log.status == "success", log.error
        return read_eval_log(log.location)

    return evaluate


def test_a_score_is_the_expected_rating_with_its_distribution(evaluate):
    log = evaluate(judge_of(RATINGS, after="."), expected_score(scale=(1, 5)))
    assert log.results.scores[0].metrics["mean"].value == pytest.approx(3.9, abs=1e-5)
    for sample in log.samples:
        score = sample.scores["expected_score"]
        assert (score.value, score.answer) == (pytest.approx(3.9, abs=1e-5), "19")
        about = score.metadata
        assert about["spread"] == pytest.approx((0.5 * 16 + 0.3 * 25 + 0.2 * 4 - 3.9**2) ** 0.5, abs=1e-5)
        assert (about["mode"], about["median"]) == (4, 4)
        assert about["interval"] == {"low": 2, "high": 5, "coverage": 0.9, "method": "quantiles"}
        assert about["distribution"] == {text: pytest.approx(share, abs=1e-6) for text, share in RATINGS.items()}
        assert about["mass"]["closed"] == pytest.approx(1)


def test_a_rating_may_follow_reasons_and_have_two_digits(evaluate):
    judge = judge_of({"1": 0.5, "9": 0.5}, {"1": {"0": 1.0}}, before="It is right. Rating:", after=".")
    log = evaluate(judge, expected_score(scale=(1, 10), number={"after": "Rating:"}))
    score = log.samples[0].scores["expected_score"]
    assert score.value == pytest.approx(9.5, abs=1e-5) and score.explanation.startswith("It is right. Rating:")


def test_a_rating_of_little_probability_has_a_score_and_a_reason(evaluate):
    log = evaluate(judge_of({"4": 0.2, "Great!": 0.8}), expected_score(scale=(1, 5)))
    score = log.samples[0].scores["expected_score"]
    assert score.value == pytest.approx(4, abs=1e-5)
    assert 'the model would write "Great!" (0.8)' in score.metadata["reason"]


def test_a_rating_of_less_probability_than_mass_min_leaves_the_sample_unscored(evaluate):
    log = evaluate(judge_of({"4": 0.2, "Great!": 0.8}), expected_score(scale=(1, 5), number={"mass_min": 0.5}))
    score = log.samples[0].scores["expected_score"]
    assert score.value != score.value and score.reason == "grader_failed"
    assert 'the model would write "Great!" (0.8)' in score.explanation
    assert (log.results.scores[0].scored_samples, log.results.scores[0].unscored_samples) == (0, 2)


def test_the_length_of_an_answer_is_limited(serve, tmp_path):
    url = serve(answers={">": {"so ": 1.0}, "so ": {"so ": 1.0}})
    model = inspect_ai.model.get_model("ntl/answers", base_url=url, memoize=False)
    task = inspect_ai.Task(dataset=SAMPLES[:1])
    for options, length in [({}, 512), ({"max_tokens": 3}, 3)]:
        (log,) = inspect_ai.eval(task, model=model, log_dir=str(tmp_path), display="none", log_samples=True, **options)
        assert log.status == "success", log.error
        assert read_eval_log(log.location).samples[0].output.completion.count("so") == length


def test_a_grader_without_numbers_is_an_error(serve, tmp_path):
    url = serve(answers={">": {"19": 1.0}})
    model = inspect_ai.model.get_model("openai-api/other/answers", base_url=url, api_key="-", memoize=False)
    task = inspect_ai.Task(dataset=SAMPLES, scorer=expected_score(model=model))
    (log,) = inspect_ai.eval(task, model=model, log_dir=str(tmp_path), display="none")
    assert log.status == "error" and "answered without a `number`" in log.error.message


def test_models_are_named_and_found_by_the_environment(serve, tmp_path, monkeypatch):
    monkeypatch.setenv("NTL_BASE_URL", serve(answers={">": {"19": 1.0}}, named=judge_of(RATINGS)))
    task = inspect_ai.Task(dataset=SAMPLES, scorer=expected_score(scale=(1, 5)))
    options = {"model_roles": {"grader": "ntl/named"}, "log_dir": str(tmp_path), "display": "none"}
    (log,) = inspect_ai.eval(task, model="ntl/answers", **options)
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["mean"].value == pytest.approx(3.9, abs=1e-5)


def test_the_installed_package_registers_the_provider_without_an_import(tmp_path):
    project = tomllib.loads((REPOSITORY / "python/pyproject.toml").read_text())["project"]
    information = tmp_path / "ntl_server-0.1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Name: ntl-server\nVersion: 0.1.0\n")
    points = "".join(f"{name} = {value}\n" for name, value in project["entry-points"]["inspect_ai"].items())
    (information / "entry_points.txt").write_text(f"[inspect_ai]\n{points}")
    code = "import inspect_ai.model as model; print(type(model.get_model('ntl/judge').api).__name__)"
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY / "python")])
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert ended.stdout.strip() == "NtlAPI", ended.stderr
