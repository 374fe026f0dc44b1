"""Everything at once for a while: no 5xx, and nothing that grows. NTL_SOAK_SECONDS says how long (default 30)."""

import asyncio
import os
import random
import time

import httpx

SECONDS = float(os.environ.get("NTL_SOAK_SECONDS", 30))
CLIENTS = 16


def body(random):
    """Some request: what it asks for, and whether its client leaves in the middle."""
    prompt = f"What is {random.randrange(1000)} - {random.randrange(1000)}?"
    return random.choice([
        ({"prompt": prompt, "temperature": 0}, False),
        ({"prompt": prompt, "n": 3, "max_tokens": 8}, False),
        ({"prompt": [prompt, "Add 3 and 4."], "logprobs": 3}, False),
        ({"prompt": prompt, "stream": True}, False),
        ({"prompt": prompt, "number": {"nodes_max": 200}}, False),
        ({"prompt": prompt, "number": {"method": "sample", "samples": 16}}, False),
        ({"prompt": prompt, "number": {"tolerance": 1e-12, "nodes_max": 20000}}, True),
        ({"prompt": prompt, "temperature": 9}, False),
        ({"prompt": 5}, False),
        ({"prompt": prompt, "model": "other"}, False),
    ])


async def ask(client, random, statuses):
    asked, leaves = body(random)
    try:
        answer = await client.post("/v1/completions", json=asked, timeout=0.2 if leaves else 120)
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
    except httpx.TimeoutException:
        statuses["left"] = statuses.get("left", 0) + 1


def test_a_soak_fails_nothing_and_leaves_memory_and_descriptors_flat(start, report):
    server = start()
    statuses, memory = {}, []

    async def soak(seed, end):
        chooser = random.Random(seed)
        async with httpx.AsyncClient(base_url=server.url) as client:
            while time.monotonic() < end:
                await ask(client, chooser, statuses)

    async def watch(end):
        while time.monotonic() < end:
            await asyncio.sleep(SECONDS / 30)
            memory.append(await asyncio.to_thread(server.metric, "process_resident_memory_bytes"))

    async def both():
        end = time.monotonic() + SECONDS
        await asyncio.gather(watch(end), *(soak(seed, end) for seed in range(CLIENTS)))

    descriptors = server.metric("process_open_fds")
    asyncio.run(both())
    server.wait(server.quiet, seconds=10)
    server.wait(lambda: server.metric("process_open_fds") <= descriptors + 2, seconds=10)
    third = len(memory) // 3
    # What is used at most is compared, since requests come and go.
    early, late = max(memory[third : 2 * third]), max(memory[2 * third :])
    report(statuses={str(status): count for status, count in statuses.items()}, early_mib=early / 2**20, late_mib=late / 2**20)
    assert set(statuses) <= {200, 400, 404, "left"} and statuses.get("left", 0) > 0
    assert server.metric("ntl_panics_total") == 0
    assert late < early * 1.1 + 16 * 2**20
