#!/usr/bin/env python3
"""Does lm-evaluation-harness score a served checkpoint as its own Hugging Face backend scores the folder?

    python3 -m venv lm && lm/bin/pip install "lm_eval[api,hf]==0.4.13"
    NTL_SERVER=target/release/ntl-server lm/bin/python server/conformance/lm_eval_beside_hf.py FOLDER... [--flags=FLAGS]

Each FOLDER is a decoder-only checkpoint. Three tasks are written to local files: sums to answer (`generate_until`), sums with
four answers to choose from (`multiple_choice`), and solved sums to read (`loglikelihood_rolling`). They run with lm-eval's
`hf` in float32 on the CPU, and with a server of the directory through `local-completions`, in its three ways:

    folder   tokenizer=FOLDER,tokenizer_backend=huggingface,add_bos_token=True     beside hf as it comes
    server   tokenizer_backend=remote (what it takes by itself)                     beside hf with add_bos_token=False
    strings  tokenizer_backend=None,tokenized_requests=False (can only generate)    beside hf as it comes

Each pair sends the same ids: `hf` prepends the tokenizer's special tokens (`<s>` for a Llama), and `local-completions` does so
only with `add_bos_token`, and never with the server's tokenizer. The comparison covers, item by item: the ids of
prompts, the generated texts, the log-likelihood of each choice and of each text (at most 1e-3 apart), whether a choice is the greedy
text; and at the end all scores. Prints one line of JSON for each directory; exits with 1 if anything differs.

Two differences are accepted. A vocabulary may be padded beyond its tokenizer's tokens; the server never writes such an id, and `hf`
is configured not to. And, counted: `hf` decodes the generated ids without the prompt, so that SentencePiece-style decoders remove
their first space (`11`), while the server's text continues the prompt (` 11`). A task that compares
whole texts needs lm-eval's filter `remove_whitespace`, as the one here has.

FLAGS are more flags of the server, such as `--flags="--backend mistralrs"`.
"""

import argparse
import json
import os
import random
import shlex
import sys
import tempfile
from pathlib import Path

from served import Server

TOLERANCE = 1e-3
METRICS = {"generate": ["exact_match"], "choose": ["acc", "acc_norm"], "read": ["word_perplexity", "bits_per_byte"]}
TASKS = {
    "generate": {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 24, "do_sample": False, "temperature": 0.0},
        "filter_list": [{"name": "stripped", "filter": [{"function": "remove_whitespace"}, {"function": "take_first"}]}],
    },
    "choose": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{place}}",
        "doc_to_choice": "{{choices}}",
    },
    "read": {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}"},
}
# The options of `local-completions`, the options of `hf` that send the same ids, and the tasks that support
# them.
WAYS = {
    "folder": ({"tokenizer_backend": "huggingface", "add_bos_token": True}, {}, list(TASKS)),
    "server": ({"tokenizer_backend": "remote"}, {"add_bos_token": False}, list(TASKS)),
    "strings": ({"tokenizer_backend": None, "tokenized_requests": False}, {}, ["generate"]),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--items", type=int, default=120)
    parser.add_argument("--flags", type=shlex.split, default=[])
    return parser.parse_args()


def documents(count):
    """Additions with the correct answer, three incorrect ones, and a text of two solved ones; always the same."""
    draw = random.Random(1)
    made = []
    for _ in range(count):
        (a, b, c), sign = (draw.randint(-99, 99), draw.randint(0, 99), draw.randint(0, 99)), draw.choice("+-")
        answer = a + b if sign == "+" else a - b
        choices = [answer, answer + draw.randint(1, 9), answer - draw.randint(1, 9), draw.randint(-999, 999)]
        draw.shuffle(choices)
        made.append({
            "question": f"Q: What is {a} {sign} {b}? A:",
            "answer": str(answer),
            "choices": [str(choice) for choice in choices],
            "place": choices.index(answer),
            "text": f"Q: What is {a} {sign} {b}? A: {answer}\nQ: What is {b} + {c}? A: {b + c}",
        })
    return made


def write_tasks(folder, count):
    """A task's files, as lm-eval's users write them."""
    data = folder / "items.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in documents(count)))
    for name, task in TASKS.items():
        place = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test"}
        # JSON is YAML.
        metrics = {"metric_list": [{"metric": metric} for metric in METRICS[name]]}
        (folder / f"{name}.yaml").write_text(json.dumps({"task": name, **place, **task, **metrics}))


def evaluate(model, names, folder):
    """Scores of the tasks, and the model's response to each item."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    tasks = TaskManager(include_path=str(folder), include_defaults=False)
    done = lm_eval.simple_evaluate(model=model, tasks=names, task_manager=tasks, bootstrap_iters=0)
    scores = {
        f"{name} {metric.split(',')[0]}": value
        for name in names
        for metric, value in done["results"][name].items()
        if "," in metric and "stderr" not in metric
    }
    said = {
        name: [sample["resps"] for sample in sorted(done["samples"][name], key=lambda sample: sample["doc_id"])]
        for name in names
    }
    return scores, said


def flat(responses):
    """The responses to an item, one per request."""
    return [response[0] for response in responses]


def compare(ours, theirs):
    """Counts the differences between two evaluations of the same tasks, with the largest of each kind."""
    (our_scores, our_items), (their_scores, their_items) = ours, theirs
    found = {"items": {name: len(items) for name, items in their_items.items()}}
    pairs = {name: list(zip(our_items[name], items, strict=True)) for name, items in their_items.items()}
    texts = [(flat(a)[0], flat(b)[0]) for a, b in pairs["generate"]]
    found["texts_without_their_space"] = sum(a != b and a.removeprefix(" ") == b for a, b in texts)
    found["texts_different"] = sum(b not in (a, a.removeprefix(" ")) for a, b in texts)
    found["example"] = next(([a, b] for a, b in texts if b not in (a, a.removeprefix(" "))), list(texts[0]))
    choices = [pair for a, b in pairs.get("choose", []) for pair in zip(flat(a), flat(b), strict=True)]
    if choices:
        found["choices"] = len(choices)
        found["greedy_choices"] = sum(b[1] for _, b in choices)
        found["greedy_flags_different"] = sum(a[1] != b[1] for a, b in choices)
        found["worst_choice"] = max(abs(a[0] - b[0]) for a, b in choices)
        found["worst_text"] = max(abs(flat(a)[0] - flat(b)[0]) for a, b in pairs["read"])
    found["scores"] = {name: [our_scores[name], score] for name, score in their_scores.items()}
    return found


def differs(found):
    """Returns whether a comparison found more than rounding."""
    counts = ("prompts_different", "texts_different", "greedy_flags_different")
    apart = max(found.get("worst_choice", 0), found.get("worst_text", 0))
    # A perplexity is as far apart as its log-likelihoods; every other score counts items.
    scores = any(
        abs(a - b) > (TOLERANCE * b if name.startswith("read") else 0) for name, (a, b) in found["scores"].items()
    )
    return scores or not apart <= TOLERANCE or any(found.get(count) for count in counts)


def prompts_different(ours, theirs, count):
    """How many prompts the two would send as different ids."""
    prompts = [document[field] for document in documents(count) for field in ("question", "text")]
    return sum(
        ours.tok_encode(prompt, add_special_tokens=ours.add_bos_token) != theirs.tok_encode(prompt) for prompt in prompts
    )


def hugging_face(folder, **options):
    """lm-eval's `hf`, which writes ids of tokens alone, as the server does."""
    from lm_eval.models.huggingface import HFLM

    model = HFLM(pretrained=str(folder), device="cpu", dtype="float32", batch_size=1, **options)
    padding = list(range(len(model.tokenizer), model.model.config.vocab_size))
    model.model.generation_config.suppress_tokens = padding or None
    return model


def beside(folder, options, tasks):
    """All comparisons for a checkpoint."""
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    cached, report = {}, {"checkpoint": folder.name, "flags": options.flags}
    with Server("--model", f"served={folder.resolve()}", *options.flags) as server:
        for way, (api, hf, names) in WAYS.items():
            theirs = hugging_face(folder, **hf)
            if str(hf) not in cached:
                cached[str(hf)] = evaluate(theirs, list(TASKS), tasks)
            scores, items = cached[str(hf)]
            api = {"tokenizer": str(folder), **api} if way == "folder" else api
            url = f"{server.url}/v1/completions"
            ours = LocalCompletionsAPI(
                model="served", base_url=url, num_concurrent=8, max_length=theirs.max_length, **api
            )
            mine = {name: score for name, score in scores.items() if name.split()[0] in names}, {n: items[n] for n in names}
            found = compare(evaluate(ours, names, tasks), mine)
            if way != "strings":
                found["prompts_different"] = prompts_different(ours, theirs, options.items)
            report[way] = {"same": not differs(found), **found}
    return report


def main():
    options = arguments()
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}
    same = True
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_HOME"] = folder
        write_tasks(Path(folder), options.items)
        for checkpoint in options.folders:
            report = beside(checkpoint, options, Path(folder))
            print(json.dumps(report), flush=True)
            same &= all(report[way]["same"] for way in WAYS)
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
