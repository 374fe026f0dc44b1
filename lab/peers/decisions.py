"""Compares the time of many questions about one text: /v1/decisions of ntl-server, and vLLM and llama.cpp.

    decisions.py --ours URL [--vllm URL [--systemone]] [--llama URL] [--questions 1,8,64] [--tokens 200,2000]

Each URL is the root of a server that has the same model loaded. The texts are new in every measurement, so that
no server knows them. The sides alternate, and every second round reverses their order:

* `together`: one request of ntl-server with all questions;
* `separate`: one request of ntl-server per question, --concurrency of them at a time;
* `prefill`: ntl-server writes one token after a prompt that has the text once, and then what follows it in the
  prompt of every question;
* `vllm`, `llama`: one request per question, with the prompt of ntl-server. It requests one token and the 20
  most probable alternatives, from which users of these engines read labels.
* `systemone`: one request of vLLM's own route /v1/systemone with all questions. vLLM has it for few
  architectures, such as Qwen3.

Prints a table of medians in seconds, with the smallest and largest time. Standard library only.
"""

import argparse
import json
import random
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from statistics import median

WORDS = "river stone market letter window garden doctor harbor winter copper lesson bridge orange silver corner".split()
TIMEOUT = 3_000


def post(url, path, body):
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        return json.load(response)


def get(url, path):
    with urllib.request.urlopen(url + path, timeout=TIMEOUT) as response:
        return json.load(response)


def text_of(tokens, chance):
    """Returns a text of about this many tokens."""
    return " ".join(chance.choice(WORDS) for _ in range(tokens))


def questions_of(count, chance):
    """Returns different questions with yes or no as answers."""
    pairs = [(first, second) for first in WORDS for second in WORDS if first != second]
    return [
        {"type": "predicate", "instructions": f"Does the word {first} occur more often in the text than the word {second}?"}
        for first, second in chance.sample(pairs, count)
    ]


def prompts_of(ours, body):
    """Returns the token ids of the prompts that ntl-server makes of a request."""
    answer = post(ours, "/v1/decisions", {**body, "x_dry_run": True})
    return [prompt["token_ids"] for prompt in answer["prompts"]]


def shared(prompts):
    """Returns the number of tokens with which all prompts begin."""
    length = min(map(len, prompts)) - 1
    same = (index for index in range(length) if len({prompt[index] for prompt in prompts}) > 1)
    return next(same, length) if len(prompts) > 1 else 0


def in_parallel(concurrency, work, items):
    with ThreadPoolExecutor(concurrency) as pool:
        list(pool.map(work, items))


class Sides:
    def __init__(self, arguments):
        self.arguments = arguments
        self.models = {url: get(url, "/v1/models")["data"][0]["id"] for url in (arguments.ours, arguments.vllm) if url}

    def together(self, body, _):
        post(self.arguments.ours, "/v1/decisions", body)

    def separate(self, body, _):
        single = [{**body, "questions": [question]} for question in body["questions"]]
        in_parallel(self.arguments.concurrency, lambda body: post(self.arguments.ours, "/v1/decisions", body), single)

    def prefill(self, _, prompts):
        common = shared(prompts)
        parts = [prompts[0][:common], *(prompt[common:] for prompt in prompts)]
        body = {"model": self.models[self.arguments.ours], "prompt": sum(parts, []), "max_tokens": 1, "temperature": 0}
        post(self.arguments.ours, "/v1/completions", body)

    def vllm(self, _, prompts):
        body = {"model": self.models.get(self.arguments.vllm), "max_tokens": 1, "logprobs": 20, "temperature": 0}
        ask = lambda prompt: post(self.arguments.vllm, "/v1/completions", {**body, "prompt": prompt})
        in_parallel(self.arguments.concurrency, ask, prompts)

    def systemone(self, body, _):
        questions = {f"q{index}": {**question, "type": "noul"} for index, question in enumerate(body["questions"])}
        post(self.arguments.vllm, "/v1/systemone", {"state": body["input"], "questions": questions})

    def llama(self, _, prompts):
        body = {"n_predict": 1, "n_probs": 20, "temperature": 0, "cache_prompt": True}
        ask = lambda prompt: post(self.arguments.llama, "/completion", {**body, "prompt": prompt})
        in_parallel(self.arguments.llama_concurrency, ask, prompts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser.add_argument("--ours", required=True)
    parser.add_argument("--vllm")
    parser.add_argument("--systemone", action="store_true", help="also measure vLLM's own route")
    parser.add_argument("--llama")
    parser.add_argument("--questions", type=numbers, default=[1, 8, 64])
    parser.add_argument("--tokens", type=numbers, default=[200, 2000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=64, help="requests at a time (default: 64)")
    parser.add_argument("--llama-concurrency", type=int, default=1, help="requests at a time to llama.cpp, at most its slots (default: 1)")
    parser.add_argument("--seed", type=int, default=time.time_ns(), help="of the texts (default: another one each time)")
    arguments = parser.parse_args()
    sides = Sides(arguments)
    names = ["together", "separate", "prefill"]
    names += [name for name in ("vllm", "systemone", "llama") if getattr(arguments, name)]
    print("| tokens of the text | questions | tokens of all prompts | each once |", " | ".join(names), "|")
    print("|---:|---:|---:|---:|" + "---:|" * len(names))
    chance = random.Random(arguments.seed)
    for tokens in arguments.tokens:
        for count in arguments.questions:
            seconds = {name: [] for name in names}
            for turn in range(arguments.rounds + 1):
                for name in names if turn % 2 else reversed(names):
                    body = {"input": text_of(tokens, chance), "questions": questions_of(count, chance)}
                    prompts = prompts_of(arguments.ours, body)
                    began = time.perf_counter()
                    getattr(sides, name)(body, prompts)
                    # The first turn only warms up.
                    if turn:
                        seconds[name].append(time.perf_counter() - began)
            total = sum(map(len, prompts))
            once = total - shared(prompts) * (count - 1)
            cells = [f"{median(times):.3f} ({min(times):.3f} to {max(times):.3f})" for times in seconds.values()]
            print(f"| {tokens} | {count} | {total} | {once} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
