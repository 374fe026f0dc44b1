"""Everything at once for a while: no 5xx, and nothing that grows. NTL_SOAK_SECONDS says how long (default 30)."""

import asyncio
import collections
import os
import random
import shutil
import subprocess
import time

import httpx

SECONDS = float(os.environ.get("NTL_SOAK_SECONDS", 30))
CLIENTS = 16

COMPLETIONS, SCORE, CHAT = "/v1/completions", "/v1/score", "/v1/chat/completions"

# Path, what is asked of a prompt, whether its client leaves in the middle, and the status it should get.
KINDS = {
    "greedy": (COMPLETIONS, {"temperature": 0}, False, 200),
    "sampled": (COMPLETIONS, {"n": 3, "max_tokens": 8, "top_p": 0.9}, False, 200),
    "list": (COMPLETIONS, {"prompt": ["What is 3 - 4?", "Add 3 and 4."], "logprobs": 3}, False, 200),
    "beams": (COMPLETIONS, {"use_beam_search": True, "beam_width": 4, "n": 2}, False, 200),
    "stream": (COMPLETIONS, {"stream": True}, False, 200),
    "tree": (COMPLETIONS, {"number": {"nodes_max": 200}}, False, 200),
    "draws": (COMPLETIONS, {"number": {"method": "sample", "samples": 16}}, False, 200),
    "score": (SCORE, {}, False, 200),
    "leaves": (COMPLETIONS, {"number": {"tolerance": 1e-12, "nodes_max": 20000}}, True, 200),
    "leaves a stream": (COMPLETIONS, {"stream": True, "max_tokens": 400, "ignore_eos": True}, True, 200),
    # The demo has no template.
    "chat": (CHAT, {}, False, 400),
    "too hot": (COMPLETIONS, {"temperature": 9}, False, 400),
    "no prompt": (COMPLETIONS, {"prompt": 5}, False, 400),
    "no model": (COMPLETIONS, {"model": "other"}, False, 404),
}


def body(path, options, prompt):
    """What is sent to a path about a prompt."""
    if path == SCORE:
        return {"items": [{"prompt": prompt, "target": "12"}, {"prompt": "Add 3 and 4.", "target": "7"}], **options}
    asked = {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {"prompt": prompt}
    return asked | options


async def ask(client, chooser, statuses):
    kind = chooser.choice(list(KINDS))
    path, options, leaves, _ = KINDS[kind]
    prompt = f"What is {chooser.randrange(1000)} - {chooser.randrange(1000)}?"
    try:
        answer = client.post(path, json=body(path, options, prompt), timeout=120)
        answer = await (asyncio.wait_for(answer, 0.2) if leaves else answer)
        statuses[kind][answer.status_code] += 1
    except asyncio.TimeoutError:
        statuses[kind]["left"] += 1


def test_a_soak_fails_nothing_and_leaves_memory_and_descriptors_flat(start, report):
    server = start()
    statuses, seen = collections.defaultdict(collections.Counter), []

    def look():
        metrics = server.metrics()
        mib = metrics[("process_resident_memory_bytes", ())] / 2**20
        return {"mib": round(mib, 1), "descriptors": int(metrics[("process_open_fds", ())])}

    async def soak(seed, end):
        chooser = random.Random(seed)
        async with httpx.AsyncClient(base_url=server.url) as client:
            while time.monotonic() < end:
                await ask(client, chooser, statuses)

    async def watch(end):
        while time.monotonic() < end:
            await asyncio.sleep(SECONDS / 30)
            seen.append(await asyncio.to_thread(look))

    async def both():
        end = time.monotonic() + SECONDS
        await asyncio.gather(watch(end), *(soak(seed, end) for seed in range(CLIENTS)))

    before = look()
    asyncio.run(both())
    server.wait(server.quiet, seconds=10)
    server.wait(lambda: look()["descriptors"] <= before["descriptors"] + 2, seconds=10)
    middle, last = seen[len(seen) // 3 : 2 * len(seen) // 3], seen[2 * len(seen) // 3 :]
    # What is used at most is compared, since requests come and go.
    most = lambda looks, what: max(look[what] for look in looks)
    report(
        seconds=SECONDS, requests=sum(counts.total() for counts in statuses.values()),
        statuses={kind: {str(status): count for status, count in statuses[kind].items()} for kind in KINDS},
        before=before, first=seen[0], middle=middle[len(middle) // 2], last=seen[-1], after=look(),
        mib=[seen_then["mib"] for seen_then in seen[::3]],
        most_mib_of_the_middle_and_the_last_third=[most(middle, "mib"), most(last, "mib")],
        most_descriptors=[most(middle, "descriptors"), most(last, "descriptors")],
    )
    for kind, (_, _, leaves, status) in KINDS.items():
        assert set(statuses[kind]) <= ({status, "left"} if leaves else {status}), f"{kind}: {statuses[kind]}"
    assert statuses["leaves"]["left"] > 0 and server.metric("ntl_finished_total", reason="abort") > 0
    assert server.metric("ntl_panics_total") == 0
    if shutil.which("promtool"):
        text = httpx.get(f"{server.url}/metrics").text
        check = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        assert check.returncode == 0 and not check.stdout + check.stderr, check.stdout + check.stderr
    assert most(last, "mib") < most(middle, "mib") * 1.1 + 16
    # Connections come and go with the requests, thousands of them; a leak of one in a hundred would be more than this.
    assert most(last, "descriptors") <= most(middle, "descriptors") + 16
