"""`candidates` of /v1/score: each has the log-probability that it has alone, and many of one prompt are cheap."""

import concurrent.futures
import statistics
import time

import httpx
import pytest

from conftest import KEY

ROUNDS = 5
# Their digits are tokens, so they begin alike in many ways, and some have more tokens than others.
CANDIDATES = [str(number) for number in range(80, 130)]
QUESTIONS = {
    "short": "What is 63 + 41?",
    "long": " ".join(f"There are {number} beans in bag {number + 7}." for number in range(8)) + " How many beans are in bag 9?",
}


def score(client, model, item):
    answer = client.post("/v1/score", json={"model": model, "items": [item], "losses": []})
    assert answer.status_code == 200, answer.text
    return answer.json()["data"][0]


def timed(work):
    began = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("served", ["encoder-decoder", "decoder-only"])
def test_fifty_candidates_are_scored_as_alone_in_less_than_a_quarter_of_the_time(request, report, served, question):
    server, model = {
        "encoder-decoder": lambda: (request.getfixturevalue("server"), "t5-ntl-was"),
        "decoder-only": lambda: (request.getfixturevalue("chatting"), "llama"),
    }[served]()
    prompt = QUESTIONS[question]
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as client:

        def alone(candidate):
            return score(client, model, {"prompt": prompt, "target": candidate})

        def together():
            return score(client, model, {"prompt": prompt, "candidates": CANDIDATES})["candidates"]

        def one_by_one():
            return [alone(candidate) for candidate in CANDIDATES]

        def at_once():
            with concurrent.futures.ThreadPoolExecutor(16) as threads:
                return list(threads.map(alone, CANDIDATES))

        walls = {work.__name__: [] for work in (together, one_by_one, at_once)}
        for _ in range(ROUNDS):
            scored, seconds = timed(together)
            walls["together"].append(seconds)
            for work in (one_by_one, at_once):
                targets, seconds = timed(work)
                walls[work.__name__].append(seconds)
    assert [one["token_ids"] for one in scored] == [target["token_ids"] for target in targets]
    wanted = [sum(target["token_logprobs"]) for target in targets]
    worst = max(abs(one["logprob"] - want) for one, want in zip(scored, wanted, strict=True))
    medians = {name: statistics.median(seconds) for name, seconds in walls.items()}
    milliseconds = {name: round(1000 * seconds, 1) for name, seconds in medians.items()}
    report(candidates=len(CANDIDATES), worst_difference=worst, milliseconds=milliseconds)
    assert worst < 1e-6
    assert 4 * medians["together"] < medians["one_by_one"]
