"""Requests to a served model, and answers that are kept as they arrive."""

import json
import re
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor, as_completed

from rows import write_rows

NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")
ATTEMPTS = 20
WAIT = 15


def post(url, route, body):
    """Returns a response. Waits while the server is overloaded or starts again, since other programs may use it."""
    request = urllib.request.Request(url + route, json.dumps(body).encode(), {"Content-Type": "application/json"})
    for _ in range(ATTEMPTS):
        try:
            with urllib.request.urlopen(request) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code not in (429, 503, 504):
                raise RuntimeError(error.read().decode()) from error
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(WAIT)
    raise RuntimeError(f"{url} stays overloaded or away")


def asked(url, prompt, is_chat, **fields):
    """Returns the choices for a prompt, which is the message of a user or a text to continue."""
    body = {"messages": [{"role": "user", "content": prompt}]} if is_chat else {"prompt": prompt}
    return post(url, "/v1/chat/completions" if is_chat else "/v1/completions", body | fields)["choices"]


def text_of(choice):
    return choice["message"]["content"] or "" if "message" in choice else choice["text"]


def first_number(text, low, high):
    """Returns the first number of a text, or None if it has none or if that is not from low to high."""
    found = NUMBER.search(text)
    if not found:
        return None
    value = float(found[0].replace(",", ""))
    return value if low <= value <= high else None


def distribution_of(number, digits=6):
    """Returns the values and probabilities of a response's number, conditional on its closed mass."""
    return [[entry["value"], round(entry["probability"] / number["mass"]["closed"], digits)] for entry in number["support"]]


def keep(path, jobs, answer, workers):
    """Writes an answer for each job to PATH, a file that ends with .jsonl.gz, in the order of the jobs.

    `jobs` has the arguments of `answer` by key. PATH without .gz has the answers that arrived before an interruption.
    """
    if path.is_file():
        return
    partial = path.with_suffix("")
    partial.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in partial.read_text().splitlines()] if partial.is_file() else []
    found = {line["key"]: line for line in lines}
    with ThreadPoolExecutor(workers) as pool, partial.open("a") as file:
        waiting = {pool.submit(answer, *arguments): key for key, arguments in jobs.items() if key not in found}
        for done in as_completed(waiting):
            key = waiting[done]
            found[key] = {"key": key} | done.result()
            file.write(json.dumps(found[key]) + "\n")
            file.flush()
    write_rows(path, (found[key] for key in jobs))
    partial.unlink()
