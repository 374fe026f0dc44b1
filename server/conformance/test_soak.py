"""All kinds of requests concurrently: no 5xx, and no growth. NTL_SOAK_SECONDS sets the duration (default 30); `just soak MINUTES`
runs this alone."""

import asyncio
import collections
import os
import random
import shutil
import statistics
import subprocess
import tarfile
import time
from pathlib import Path

import httpx

from conftest import TEMPLATE

SECONDS = float(os.environ.get("NTL_SOAK_SECONDS", 30))
CLIENTS = 16
ROOT = Path(__file__).parents[2]

# Growth from the middle third to the last one that no leak explains: a 50th, and what the allocator keeps of
# the largest requests and caches still take in a soak of a minute.
GROWTH, GROWTH_MIB = 0.02, 32

COMPLETIONS, SCORE, CHAT = "/v1/completions", "/v1/score", "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"

# The sampled quantities, each with its metric.
GAUGES = {
    "mib": "process_resident_memory_bytes",
    "descriptors": "process_open_fds",
    "threads": "process_threads",
}

# Path, request for a prompt, whether the client disconnects in the middle, and the expected status.
KINDS = {
    "greedy": (COMPLETIONS, {"temperature": 0}, False, 200),
    "sampled": (COMPLETIONS, {"n": 3, "max_tokens": 8, "top_p": 0.9}, False, 200),
    "list": (COMPLETIONS, {"prompt": ["What is 3 - 4?", "Add 3 and 4."], "logprobs": 3}, False, 200),
    "beams": (COMPLETIONS, {"use_beam_search": True, "beam_width": 4, "n": 2}, False, 200),
    "stream": (COMPLETIONS, {"stream": True}, False, 200),
    "tree": (COMPLETIONS, {"number": {"nodes_max": 200}}, False, 200),
    "draws": (COMPLETIONS, {"number": {"method": "sample", "samples": 16}}, False, 200),
    "score": (SCORE, {}, False, 200),
    "vectors": (EMBEDDINGS, {"pooling": "mean"}, False, 200),
    "leaves": (COMPLETIONS, {"number": {"tolerance": 1e-12, "nodes_max": 20000}}, True, 200),
    # The other model has fewer positions.
    "leaves a stream": (COMPLETIONS, {"model": "demo", "stream": True, "max_tokens": 400, "ignore_eos": True}, True, 200),
    "chat": (CHAT, {"model": "llama", "max_tokens": 8}, False, 200),
    # The demo has no template.
    "no template": (CHAT, {"model": "demo"}, False, 400),
    "too hot": (COMPLETIONS, {"temperature": 9}, False, 400),
    "no prompt": (COMPLETIONS, {"prompt": 5}, False, 400),
    "no model": (COMPLETIONS, {"model": "other"}, False, 404),
}


def body(path, options, prompt):
    """The request body for a path and a prompt."""
    if path == SCORE:
        return {"items": [{"prompt": prompt, "target": "12"}, {"prompt": "Add 3 and 4.", "target": "7"}], **options}
    if path == EMBEDDINGS:
        return {"input": [prompt, "Add 3 and 4."], **options}
    asked = {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {"prompt": prompt}
    return asked | options


def checkpoints(folder):
    """The flags that serve two models: the demo, and a small decoder-only one with a chat template and a prefix cache."""
    with tarfile.open(ROOT / "server/demo/t5-ntl-was.tar.gz") as archive:
        archive.extractall(folder / "demo", filter="data")
    demo = next((folder / "demo").rglob("config.json")).parent
    shutil.copytree(ROOT / "models/tests/data/tiny/llama-ntl", folder / "llama")
    (folder / "llama/chat_template.jinja").write_text(TEMPLATE)
    return "--model", f"demo={demo}", "--model", f"llama={folder / 'llama'}", "--prefix-cache-bytes-max", str(1 << 20)


def slope(seen, what):
    """The growth of a gauge per hour and its standard error, by least squares."""
    times, values = [looked["hours"] for looked in seen], [looked[what] for looked in seen]
    mean_time, mean = sum(times) / len(times), sum(values) / len(values)
    spread = sum((at - mean_time) ** 2 for at in times)
    growth = sum((at - mean_time) * (value - mean) for at, value in zip(times, values)) / spread
    left = sum((value - mean - growth * (at - mean_time)) ** 2 for at, value in zip(times, values))
    return growth, (left / (len(seen) - 2) / spread) ** 0.5


def speaker_of_http_2(server):
    """A client that speaks HTTP/2 without asking first."""
    return httpx.AsyncClient(base_url=server.url, http1=False, http2=True)


async def ask(leaving, staying, chooser, statuses):
    """`leaving` is the client that disconnects. It uses HTTP/1.1: over HTTP/2 httpx stops reading such a stream without resetting it,
    so the request continues."""
    kind = chooser.choice(list(KINDS))
    path, options, leaves, _ = KINDS[kind]
    options = {"model": chooser.choice(["demo", "llama"])} | options
    prompt = f"What is {chooser.randrange(1000)} - {chooser.randrange(1000)}?"
    try:
        client = leaving if leaves else staying
        answer = client.post(path, json=body(path, options, prompt), timeout=120)
        answer = await (asyncio.wait_for(answer, 0.2) if leaves else answer)
        statuses[kind][answer.status_code] += 1
    except asyncio.TimeoutError:
        statuses[kind]["left"] += 1


def test_a_soak_fails_nothing_and_leaves_memory_and_descriptors_flat(start, report, tmp_path):
    server = start(*checkpoints(tmp_path))
    statuses, seen, began = collections.defaultdict(collections.Counter), [], time.monotonic()

    def look():
        metrics = server.metrics()
        looked = {name: int(metrics[(metric, ())]) for name, metric in GAUGES.items()}
        return looked | {"mib": round(looked["mib"] / 2**20, 1), "hours": (time.monotonic() - began) / 3600}

    async def soak(seed, end):
        chooser = random.Random(seed)
        async with httpx.AsyncClient(base_url=server.url) as client, speaker_of_http_2(server) as other:
            while time.monotonic() < end:
                await ask(client, other if seed % 4 == 0 else client, chooser, statuses)

    async def watch(end):
        while time.monotonic() < end:
            await asyncio.sleep(SECONDS / 90)
            seen.append(await asyncio.to_thread(look))

    async def both():
        end = time.monotonic() + SECONDS
        await asyncio.gather(watch(end), *(soak(seed, end) for seed in range(CLIENTS)))

    before = look()
    asyncio.run(both())
    server.wait(server.quiet, seconds=10)
    server.wait(lambda: look()["descriptors"] <= before["descriptors"] + 2, seconds=10)
    middle, last = seen[len(seen) // 3 : 2 * len(seen) // 3], seen[2 * len(seen) // 3 :]
    # Requests come and go, so what is used at most is compared; of memory, which the largest of them move up
    # and down, the median.
    most = lambda looks, what: max(look[what] for look in looks)
    median = lambda looks: statistics.median(look["mib"] for look in looks)
    report(
        seconds=SECONDS, requests=sum(counts.total() for counts in statuses.values()),
        statuses={kind: {str(status): count for status, count in statuses[kind].items()} for kind in KINDS},
        before=before, first=seen[0], middle=middle[len(middle) // 2], last=seen[-1], after=look(),
        mib=[seen_then["mib"] for seen_then in seen[::3]],
        slopes_an_hour={what: "%.2f ± %.2f" % slope(seen[len(seen) // 3 :], what) for what in GAUGES},
        median_mib_of_the_middle_and_the_last_third=[median(middle), median(last)],
        most_mib_of_the_middle_and_the_last_third=[most(middle, "mib"), most(last, "mib")],
        most_descriptors=[most(middle, "descriptors"), most(last, "descriptors")],
        most_threads=[most(middle, "threads"), most(last, "threads")],
    )
    for kind, (_, _, leaves, status) in KINDS.items():
        assert set(statuses[kind]) <= ({status, "left"} if leaves else {status}), f"{kind}: {statuses[kind]}"
    assert statuses["leaves"]["left"] > 0 and server.metric("ntl_finished_total", reason="abort") > 0
    assert server.metric("ntl_panics_total") == 0
    if shutil.which("promtool"):
        text = httpx.get(f"{server.url}/metrics").text
        check = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        assert check.returncode == 0 and not check.stdout + check.stderr, check.stdout + check.stderr
    assert median(last) < median(middle) * (1 + GROWTH) + GROWTH_MIB
    # Connections come and go with the requests, thousands of them; a leak of one in a hundred would be more
    # than this.
    assert most(last, "descriptors") <= most(middle, "descriptors") + 16
    # The runtime starts threads for work that blocks, and ends them when they have been idle.
    assert most(last, "threads") <= most(middle, "threads") + 8
