"""The numbers of real engines, compared with those of the same directory served natively. `just remote-check` runs it.

`engines.py` starts the engines of NTL_ENGINES; without it the tests are skipped. NTL_REMOTE_PROMPTS is the number of prompts (30)."""

import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

import engines

PROMPTS = int(os.environ.get("NTL_REMOTE_PROMPTS", 30))
# The engines' own difference of log-probabilities in f32, and therefore of probabilities.
ROUNDING = 1e-4
# The relative difference of values that it causes.
VALUE_ROUNDING = 1e-4

SHOTS = """Rate the sentiment of each text from 1 (very negative) to 9 (very positive).
Text: I hate waiting in line for hours.
Rating: 2
Text: What a wonderful sunny day!
Rating: 8
"""
CHATS = (
    [{"role": "user", "content": "How many legs has a spider?"}],
    [
        {"role": "system", "content": "Answer with a number."},
        {"role": "user", "content": "Zwölf\n+ 3?  "},
        {"role": "assistant", "content": "15"},
        {"role": "user", "content": "日本 🙂 <b>\t1.5</b>"},
    ],
)
SCORED = [
    {"prompt": "Q: What is 3 + 4?\nA:", "target": " 7"},
    {"prompt": "Count: 8, 9, 10,", "target": " 11, 12.5 and more"},
    {"prompt": "The sun is", "candidates": [" hot", " cold and dark", " 5"]},
]
FLAT = {
    "type": "object",
    "required": ["name", "rooms", "stars"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "rooms": {"type": "integer", "minimum": 1, "maximum": 9},
        "stars": {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 5}, "minItems": 2, "maxItems": 2},
    },
}
HOMES = ("A flat with 3 rooms", "An old house by the sea with many rooms", "A tiny room without a window", "A hotel: \"quiet\", 4 stars")
TEXTS = ("The staff was friendly", "The soup was cold", "I would come again", "The film is too long", "It works", "Nobody answered")


def requests():
    """Five requests are three ratings, an arithmetic problem and a free number."""
    for number in range(PROMPTS):
        text, small, large = TEXTS[number % len(TEXTS)], 2 + number % 17, 21 + number % 60
        rating = {"prompt": f"{SHOTS}Text: {text}, {number}.\nRating:", "number": {"scale": [1, 9]}}
        sums = f"Q: What is 3 + 4?\nA: 7\nQ: What is {small} + {large}?\nA:"
        counted = f"Count: {', '.join(str(3 * number + step) for step in range(1, 5))},"
        yield (
            rating,
            {"prompt": sums, "number": {"scale": [0, 99], "tolerance": 0.01}},
            rating,
            {"prompt": counted, "number": {"tolerance": 0.02, "nodes_max": 100}},
            rating,
        )[number % 5]


@pytest.mark.parametrize("engine", ["llama_cpp", "vllm", "ntl"])
def test_an_engine_gives_the_numbers_of_the_same_directory_served_natively(engine, report, start):
    model = engines.model()
    # The engine may be another ntl-server.
    ntl = lambda: contextlib.nullcontext(start("--model", f"model={model}").url)
    with ntl() if engine == "ntl" else engines.engine(engine) as url:
        server = start("--model", f"native={model}", "--model", f"engine={url}", "--tokenizer", f"engine={model}")
        compare_chats(engine, url, server)
        differences = compare_scores(server)
        structured = [compare_structured(server, home) for home in HOMES]
        began = time.monotonic()
        with ThreadPoolExecutor(engines.CONCURRENT) as pool:
            pairs = list(pool.map(lambda body: Pair(server, body), requests()))
        # One by one: llama.cpp may write another text while it computes other requests.
        for pair in pairs:
            pair.compare_texts()
        report(
            engine=engine,
            prompts=len(pairs),
            seconds=round(time.monotonic() - began),
            nodes=sum(pair.remote["nodes"] for pair in pairs),
            requests=int(server.metric("ntl_upstream_requests_total", model="engine")),
            compared_values=sum(pair.values for pair in pairs),
            largest_difference_of_probabilities=max(pair.apart for pair in pairs),
            largest_difference_beyond_open_mass=max(pair.beyond_open for pair in pairs),
            compared_bounds=sum(pair.bounds for pair in pairs),
            largest_excess_over_bounds=max(pair.outside for pair in pairs),
            largest_difference_of_scores=max(differences),
            fields_of_structured_texts=sum(len(fields) for fields in structured),
            largest_difference_of_their_values=max(max(fields) for fields in structured),
            equal_greedy_texts=sum(pair.gap is None for pair in pairs),
            gaps_where_texts_differ=[pair.gap for pair in pairs if pair.gap is not None],
        )
    assert max(differences) <= ROUNDING
    assert all(len(fields) == 3 and max(fields) <= VALUE_ROUNDING for fields in structured), structured
    for pair in pairs:
        assert pair.beyond_open <= ROUNDING, pair
        assert pair.outside <= VALUE_ROUNDING, pair
        assert pair.gap is None or pair.gap <= ROUNDING, pair
    assert all(pair.remote["bounds"]["value"] for pair in pairs if "scale" in pair.body["number"])


def post(url, body):
    answer = httpx.post(url, json=body, timeout=600)
    assert answer.status_code == 200, answer.text
    return answer.json()


def compare_chats(engine, url, server):
    """Fails unless the engine's chat template makes the same ids as the one of the directory."""
    for messages in CHATS:
        if engine == "llama_cpp":
            prompt = post(f"{url}/apply-template", {"messages": messages})["prompt"]
            theirs = post(f"{url}/tokenize", {"content": prompt, "add_special": False, "parse_special": True})
        else:
            theirs = post(f"{url}/tokenize", {"model": "model", "messages": messages})
        ours = post(f"{server.url}/tokenize", {"model": "engine", "messages": messages})
        assert ours["tokens"] == theirs["tokens"]


def compare_scores(server):
    """The differences of losses and of the log-probabilities of candidates."""
    losses = ["ce", "ntl-was", "ntl-mse", "ntl-mae"]
    score = lambda model: post(f"{server.url}/v1/score", {"model": model, "items": SCORED, "losses": losses})["data"]
    differences = []
    for native, remote in zip(score("native"), score("engine")):
        pairs = [(loss, remote["losses"][name]) for name, loss in native.get("losses", {}).items()]
        pairs += [
            (ours["logprob"], theirs["logprob"]) for ours, theirs in zip(native.get("candidates", []), remote.get("candidates", []))
        ]
        assert pairs
        for ours, theirs in pairs:
            assert (ours is None) == (theirs is None)
            differences += [abs(ours - theirs)] if ours is not None else []
    return differences


def compare_structured(server, home):
    """The relative differences of the means of all numbers in a structured text, which must be equal except for them."""
    schema = {"type": "json_schema", "json_schema": {"name": "flat", "schema": FLAT}}
    number = {"objective": "median", "nodes_max": 400, "digits_max": 1, "decimals_max": 1}
    body = {"prompt": f"{home}. As JSON:\n", "response_format": schema, "number": number, "max_tokens": 120, "temperature": 0}
    native, remote = (
        post(f"{server.url}/v1/completions", {"model": model, **body})["choices"][0] for model in ("native", "engine")
    )
    assert (native["text"], native["finish_reason"]) == (remote["text"], remote["finish_reason"])
    places = [[(field["path"], field["token_range"]) for field in choice["numbers"]] for choice in (native, remote)]
    assert places[0] == places[1]
    means = [[field["number"]["mean"] for field in choice["numbers"]] for choice in (native, remote)]
    return [abs(ours - theirs) / (1 + abs(ours)) for ours, theirs in zip(*means)]


class Pair:
    """A number and a greedy text, natively and by an engine."""

    def __init__(self, server, body):
        self.body, self.server = body, server
        self.native, self.remote = (self.post(model, body)["number"] for model in ("native", "engine"))
        closer = {"tolerance": body["number"].get("tolerance", 1e-3) / 5, "nodes_max": 200}
        self.exact = self.post("native", {**body, "number": {**body["number"], **closer}})["number"]
        supports = [{leaf["value"]: leaf["probability"] for leaf in number["support"]} for number in (self.native, self.remote)]
        common = supports[0].keys() & supports[1].keys()
        self.values = len(common)
        self.apart = max((abs(supports[0][value] - supports[1][value]) for value in common), default=0.0)
        # Each closed probability lacks at most the open mass of its side.
        self.beyond_open = max(0.0, self.apart - max(self.native["mass"]["open"], self.remote["mass"]["open"]))
        self.outside = self.excess_over_bounds()

    def __repr__(self):
        return repr((self.body, self.native, self.exact, self.remote))

    def post(self, model, body):
        return post(f"{self.server.url}/v1/completions", {"model": model, **body})["choices"][0]

    def excess_over_bounds(self):
        """The largest distance of the engine's bounds from closer native ones, which contain the exact estimates as well."""
        sides = [[bounds["value"], bounds["median"], *bounds["quantiles"]] for bounds in (self.exact["bounds"], self.remote["bounds"])]
        known = [(exact, remote) for exact, remote in zip(*sides) if exact and remote]
        self.bounds = len(known)
        apart = (max(remote[0] - exact[1], exact[0] - remote[1]) / (1 + abs(exact[0])) for exact, remote in known)
        return max(apart, default=0.0)

    def compare_texts(self):
        """Sets `gap` to the native difference of log-probabilities of the two best tokens where the greedy texts differ first, or None."""
        self.gap = None
        greedy = {"prompt": self.body["prompt"], "max_tokens": 16, "temperature": 0}
        native, text = self.post("native", {**greedy, "logprobs": 2}), self.post("engine", greedy)["text"]
        if native["text"] == text:
            return
        tokens = native["logprobs"]
        offsets = tokens["text_offset"]
        ends = [*(offset - offsets[0] for offset in offsets[1:]), len(native["text"])]
        at = next((at for at, end in enumerate(ends) if native["text"][:end] != text[:end]), len(ends) - 1)
        best, second = sorted(tokens["top_logprobs"][at].values(), reverse=True)[:2]
        self.gap = best - second
