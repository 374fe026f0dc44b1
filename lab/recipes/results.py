"""Evaluates trained models through ntl-server and writes the page of results: see the command `results`.

MODELS/TASK/OBJECTIVE-SEED is a model's directory, RUNS/TASK/OBJECTIVE-SEED/MODE the output of ntl-eval. Standard library only: the baselines
of rjokes run in NTL_TRAIN_PYTHON, a Python that has requirements.txt.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from functools import cache
from math import comb
from pathlib import Path
from statistics import StatisticsError, correlation, fmean, mean, median, quantiles, stdev

sys.path.insert(0, str(Path(__file__).parents[2] / "server/conformance"))
from generated import GeneratedQuestions
from pictures import dots
from served import Server
from tables import p_value, replace_below, table

# Arguments of ntl-eval for each task, given the directory of the data and the directory of the task's runs.
TASKS = {
    "sums": lambda _, runs: ["arithmetic", "--data", held_out_sums(runs)],
    "arithmetic": lambda data, _: ["arithmetic", "--data", data / "mathematics_dataset-v1.0"],
    "rjokes": lambda data, _: ["rjokes", "--data", data / "rjokes", "--prompt-tokens", "128"],
}
# Tasks whose incorrect answers have a table. Their errors span too many orders of magnitude for a picture.
WRONG = {"sums"}
NEAR, FAR = 10, 1_000
SUMS = 2_000
# Additional arguments of each mode.
MODES = {
    "text": {},
    "regress": {"rjokes": ["--range", "0,11"], "sums": ["--range=-199998,199998"]},
}
# Modes with one split only. A distribution over longer sums is so broad that its search needs a hundred times
# the CPU time of a text.
ONLY = {("sums", "regress"): "interpolate"}
OBJECTIVES = {
    "ce": "CE", "ntl-mse": "NTL-MSE", "ntl-was": "NTL-WAS", "head": "regression head", "smollm2-ce": "SmolLM2 with CE",
    "smollm2-ntl-was": "SmolLM2 with NTL-WAS",
}  # fmt: skip
# The objective that another one is compared with, unless it is "ce".
PLAIN = {"smollm2-ntl-was": "smollm2-ce"}
NTL = {"ntl-mse", "ntl-was", "smollm2-ntl-was"}
ESTIMATES = {
    "text": "greedy text", "mode": "mode", "median": "median", "trimmed_mean": "trimmed mean", "mean": "mean",
    "weighted_sum": "weighted sum",
}  # fmt: skip
METRICS = {"accuracy": "accuracy", "mae": "MAE", "rmse": "RMSE", "r2": "R²", "pearson": "Pearson"}
HIGHER = {"accuracy", "r2", "pearson"}
LEVEL = 0.05  # of the corrected p-values
RESAMPLES = 2_000
DISTRIBUTION_SCORES = {"crps": "CRPS", "log_score": "log score", "winkler": "Winkler", "coverage": "coverage of 90%"}
NOTE = {
    "rjokes": "RMSE and Pearson in the paper: T5-small with CE 2.01 and 0.41, with NTL-WAS 1.81 and 0.44, with a regression head 1.82 and 0.45; "
    "regression heads of BERT 1.62 and 0.47, RoBERTa 1.61 and 0.47, XLNet 1.74 and 0.46.",
}


class Model:
    """A trained model and its runs."""

    def __init__(self, folder, runs):
        self.folder, self.runs = folder, runs / folder.parent.name / folder.name
        self.task = folder.parent.name
        self.objective, _, self.seed = folder.name.rpartition("-")
        self.training = json.loads((folder / "training.json").read_text())

    def splits(self, mode="regress"):
        """Returns the names of the splits, which are directories below a mode's directory. A task with one split has only the empty name."""
        if (self.runs / mode / "report.json").is_file():
            return [""]
        return [path.parent.name for path in sorted((self.runs / mode).glob("*/report.json"), reverse=True)]

    @cache
    def report(self, mode, split):
        return json.loads((self.runs / mode / split / "report.json").read_text())

    @cache
    def errors(self, split):
        """Returns the absolute errors of the greedy answers that are incorrect numbers, by item."""
        samples = map(json.loads, (self.runs / "text" / split / "samples.jsonl").read_text().splitlines())
        wrong = (sample for sample in samples if not sample["accuracy"] and sample["absolute_error"] is not None)
        return {sample["doc_id"]: sample["absolute_error"] for sample in wrong}

    @cache
    def crps(self, split):
        """Returns the CRPS by item. An item has none if the server left more than a hundredth of the mass open."""
        samples = map(json.loads, (self.runs / "regress" / split / "samples.jsonl").read_text().splitlines())
        return {sample["doc_id"]: sample["crps"] for sample in samples if sample.get("crps") is not None}

    def answered(self, mode):
        """Returns the prediction and the truth of each item with a prediction, by item."""
        samples = map(json.loads, (self.runs / mode / "samples.jsonl").read_text().splitlines())
        return {sample["doc_id"]: (sample["prediction"], sample["truth"]) for sample in samples if sample["prediction"]}

    def numbers(self, split):
        """Returns the estimates of the items with a number, and the truths, each as a list."""
        samples = map(json.loads, (self.runs / "regress" / split / "samples.jsonl").read_text().splitlines())
        found = {name: [] for name in (*ESTIMATES, "truth")}
        for sample in samples:
            if sample["prediction"] and sample.get("plain_mean") is not None:
                of = sample["prediction"]
                values = (None, of["mode"], of["median"], of["mean"], sample["plain_mean"], sample["plain_mean"] * sample["mass_closed"], sample["truth"])
                for name, value in zip(found, values):
                    found[name].append(value)
        return found

    def compared(self, mode, other, other_mode, split):
        """Returns the comparison of `ntl-eval compare` between this run and the other one, by metric."""
        sides = [model.runs / name / split for model, name in ((self, mode), (other, other_mode))]
        output = subprocess.run([os.environ["NTL_EVAL"], "compare", *sides, "--resamples", str(RESAMPLES), "--json"], check=True, capture_output=True)
        return {metric["name"]: metric for metric in json.loads(output.stdout)["metrics"]}


def held_out_sums(runs):
    """Writes sums that no training saw, unless they are there, and returns their directory. One split is like training, one has longer numbers."""
    folder = runs / "held-out"
    folder.mkdir(parents=True, exist_ok=True)
    for split, task in (("interpolate", "long_sums"), ("extrapolate", "longer_sums")):
        file = folder / f"arithmetic_test_{split}.txt"
        if not file.is_file():
            rows = GeneratedQuestions(SUMS, split="test", tasks={task: 1.0})
            file.write_text("".join(f"{row['question']}\n{row['answer']}\n" for row in rows))
    return folder


def trained(folder, runs, tasks, kept):
    """Returns all models of the tasks in a directory, in the order of the objectives. With `kept` answers, a model needs no weights."""
    records = folder.glob("*/*/training.json")
    found = [Model(path.parent, runs) for path in records if kept or (path.parent / "model.safetensors").is_file()]
    known = [model for model in found if model.task in tasks and model.objective in OBJECTIVES]
    return sorted(known, key=lambda model: (model.task, list(OBJECTIVES).index(model.objective), model.seed))


def evaluate(model, data, limit):
    """Runs ntl-eval in every mode. It does not request answers again that it already has."""
    with Server("--model", f"{model.folder.name}={model.folder}", program=os.environ["NTL_SERVER"]) as server:
        for mode, more in MODES.items():
            only = ONLY.get((model.task, mode))
            out = model.runs / mode / (only or "")
            going_on = ["--resume"] if list(out.rglob("journal.jsonl")) else []
            limited = ["--limit", str(limit)] if limit else []
            task = [*TASKS[model.task](data, model.runs.parent), *more.get(model.task, []), *(["--split", only] if only else [])]
            command = [os.environ["NTL_EVAL"], *task, "--endpoint", server.url, "--mode", mode, "--out", out]
            subprocess.run([*command, *limited, *going_on], check=True, stdout=subprocess.DEVNULL)


def from_baselines(data, runs, limit, *options):
    """Returns the output of baselines.py for the first `limit` jokes. It is kept in RUNS, like the runs of ntl-eval."""
    kept = runs / "rjokes" / ("-".join(["baselines", str(limit), *options]).replace("---", "-") + ".json")
    if not kept.is_file():
        python, program = os.environ.get("NTL_TRAIN_PYTHON", sys.executable), Path(__file__).with_name("baselines.py")
        files = [data / "rjokes/dev.tsv.gz", data / "rjokes/test.tsv.gz"]
        found = subprocess.run([python, program, *files, "--limit", str(limit), *options], check=True, stdout=subprocess.PIPE)
        kept.write_bytes(found.stdout)
    return json.loads(kept.read_text())


def cost(folder, questions, scratch, rounds=5):
    """Returns the time of a number divided by the time of a greedy answer, for each round, by number of concurrent requests.

    Each round measures both, so that a change of the machine's load affects both.
    """
    prompts = scratch / "prompts.txt"
    prompts.write_text("\n".join(questions) + "\n")
    rates = {}
    with Server("--model", folder, program=os.environ["NTL_SERVER"]) as server:
        for _ in range(rounds):
            for kind in ("text", "number"):
                command = [os.environ["NTL_BENCH"], "load", "--endpoint", server.url, "--kind", kind, "--prompts", prompts]
                command += ["--concurrency", "1,16", "--requests", "200", "--json"]
                found = subprocess.run(command, check=True, capture_output=True)
                for summary in json.loads(found.stdout):
                    rates.setdefault((kind, summary["load"]), []).append(summary["requests_per_second"])
    return {load: [t / n for t, n in zip(rates["text", load], rates["number", load])] for kind, load in rates if kind == "text"}


def costs_of(models, folder, data, scratch):
    """Returns the costs of the first seed of each arithmetic model, and of the demo checkpoint in the same directory on its own sums."""
    lines = (data / "mathematics_dataset-v1.0/arithmetic_test_interpolate.txt").read_text().splitlines()
    timed = [model for model in models if (model.task, model.seed) == ("arithmetic", models[0].seed)]
    costs = {OBJECTIVES[model.objective]: cost(model.folder, lines[:400:2], scratch) for model in timed}
    if (folder / "demo/model.safetensors").is_file():
        sums = (Path(__file__).parents[2] / "server/demo/sums.jsonl").read_text().splitlines()
        costs["demo checkpoint, its own sums"] = cost(folder / "demo", [json.loads(line)["question"] for line in sums[:200]], scratch)
    return costs


def figure(value):
    if value is None:
        return "–"
    if abs(value) >= 1e6:
        return f"{value:.1e}"
    return f"{value:.4f}" if abs(value) < 1 else f"{value:,.3f}" if abs(value) < 100 else f"{value:,.1f}"


def over_seeds(values):
    """Returns the mean and, if there are several seeds, the standard deviation. Says how many seeds have a value, unless all have one."""
    values = list(values)
    found = [value for value in values if value is not None]
    if not found:
        return "–"
    missing = f" ({len(found)} of {len(values)})" if len(found) < len(values) else ""
    return figure(mean(found)) + (f" ± {figure(stdev(found))}" if len(found) > 1 else "") + missing


def estimates_of(model, split):
    """Returns the values by estimate and metric, greedy text first. A regression head has one number."""
    found = {"text": {name: model.report("text", split)["metrics"].get(name, {}).get("value") for name in METRICS}}
    report = model.report("regress", split)
    scores = report.get("estimates", {})
    for estimate in list(ESTIMATES)[1:]:
        values = {name: scores[name]["values"].get(estimate, {}).get("value") for name in METRICS if name in scores}
        if values:
            found[estimate] = values
    # Reports of earlier versions have no correlation of any estimate if one of them is always the same.
    missing = [estimate for estimate in found if "pearson" in METRICS and found[estimate].get("pearson") is None and estimate != "text"]
    numbers = model.numbers(split) if missing else {}
    for estimate in missing:
        found[estimate]["pearson"] = correlation_of(numbers[estimate], numbers["truth"])
    return {"text": found["text"]} if model.objective == "head" else found


def correlation_of(numbers, truths):
    """Returns Pearson's correlation, or None if all numbers are equal."""
    try:
        return correlation(numbers, truths)
    except StatisticsError:
        return None


def label_of(objective, estimate):
    return "the number" if objective == "head" else ESTIMATES[estimate]


def estimates_table(models, split, baselines):
    """Returns the metrics of every estimate, of the best constants, and of `baselines` (metrics by name)."""
    groups = {}
    for model in models:
        for estimate, values in estimates_of(model, split).items():
            groups.setdefault((model.objective, estimate), []).append(values)
    column = {name: {key: [run.get(name) for run in runs] for key, runs in groups.items()} for name in METRICS}
    best = {}
    for name, cells in column.items():
        means = {key: mean(values) for key, values in cells.items() if None not in values}
        best[name] = (max if name in HIGHER else min)(means, key=means.get) if means else None
    rows = []
    for key in groups:
        objective, estimate = key
        cells = [over_seeds(column[name][key]) for name in METRICS]
        cells = [f"**{cell}**" if best[name] == key else cell for name, cell in zip(METRICS, cells)]
        rows.append([f"{OBJECTIVES[objective]}, {label_of(objective, estimate)}", *cells])
    constants = models[0].report("regress", split)["baselines"]
    for constant in ("constant_mode", "constant_median", "constant_mean"):
        if constant in constants:
            values = [constants[constant].get(name, {}).get("value") for name in METRICS]
            rows.append([f"always the truths' {constant.removeprefix('constant_')}", *map(figure, values)])
    rows += [[f"baseline: {name}", *(figure(found.get(metric)) for metric in METRICS)] for name, found in baselines.items()]
    return table(["", *METRICS.values()], rows)


def measured(pairs):
    """Returns the metrics of pairs of a prediction and the truth, from the same estimates as ntl-eval."""
    numbers, truths = [prediction["mean"] for prediction, _ in pairs], [truth for _, truth in pairs]
    return {
        "mae": mean(abs(prediction["median"] - truth) for prediction, truth in pairs),
        "rmse": mean((number - truth) ** 2 for number, truth in zip(numbers, truths)) ** 0.5, "pearson": correlation_of(numbers, truths),
    }  # fmt: skip


def repeated_table(models, repeated, baselines, new):
    """Returns metrics over all items and without the `repeated` ones. `new` has the baselines of these items, `baselines` of all."""
    groups = {}
    for model in models:
        for mode in MODES if model.objective != "head" else ["regress"]:
            pairs = model.answered(mode)
            both = measured(pairs.values()), measured([pair for item, pair in pairs.items() if item not in repeated])
            label = label_of(model.objective, "text") if mode == "text" or model.objective == "head" else "numbers"
            groups.setdefault(f"{OBJECTIVES[model.objective]}, {label}", []).append(both)
    groups |= {f"baseline: {name}": [(baselines[name], new[name])] for name in baselines}
    names = ("mae", "rmse", "pearson")
    rows = [[label, *(over_seeds([run[part][name] for run in runs]) for name in names for part in (0, 1))] for label, runs in groups.items()]
    return table(["", *(METRICS[name] + part for name in names for part in ("", ", new"))], rows)


def picture(models, split):
    """Draws the RMSE of every estimate and seed, and of the best constant."""
    groups = {}
    for model in models:
        rows = groups.setdefault(OBJECTIVES[model.objective], {})
        for estimate, values in estimates_of(model, split).items():
            if values.get("rmse") is not None:
                rows.setdefault(label_of(model.objective, estimate), []).append(values["rmse"])
    constant = models[0].report("regress", split)["baselines"]["constant_mean"]["rmse"]["value"]
    return dots(f"RMSE, {models[0].task} {split}".rstrip(), groups, constant, "always the truths' mean")


def distribution_table(models, split):
    rows = []
    for objective in dict.fromkeys(model.objective for model in models if model.objective != "head"):
        reports = [model.report("regress", split) for model in models if model.objective == objective]
        crps, *cells = [over_seeds([report["metrics"].get(name, {}).get("value") for report in reports]) for name in DISTRIBUTION_SCORES]
        counts = [report["metrics"].get("crps", {}).get("n", 0) for report in reports]
        items = " to ".join(f"{n:,}" for n in sorted({min(counts), max(counts)}))
        rows.append([OBJECTIVES[objective], crps, items, *cells, over_seeds([report.get("mass_closed") for report in reports])])
    crps, *others = DISTRIBUTION_SCORES.values()
    return table(["", crps, f"items with a {crps}", *others, "closed mass"], rows)


def with_plain(models):
    """Returns the models of other objectives, each with the model of plain cross entropy and the same seed, if there is one."""
    by_name = {(model.objective, model.seed): model for model in models}
    found = [(model, by_name.get((PLAIN.get(model.objective, "ce"), model.seed))) for model in models if model.objective != "ce"]
    return [(model, plain) for model, plain in found if plain]


def crps_table(models, split):
    """Compares the CRPS of the items for which both models have one. Intervals are from a bootstrap of these items."""
    rows = []
    for model, plain in with_plain(models):
        if model.objective not in NTL:
            continue
        scores, others = model.crps(split), plain.crps(split)
        items = sorted(scores.keys() & others.keys())
        if not items:
            continue
        differences = [scores[item] - others[item] for item in items]
        draw = random.Random(0)
        cuts = quantiles((fmean(draw.choices(differences, k=len(items))) for _ in range(RESAMPLES)), n=40)
        means = [figure(fmean(values)) for values in ([found[item] for item in items] for found in (others, scores))]
        between = f"{figure(fmean(differences))} ({figure(cuts[0])} to {figure(cuts[-1])})"
        rows.append([f"{OBJECTIVES[model.objective]}, seed {model.seed}", f"{len(items):,}", *means, between])
    return table(["", "items", "CE", "NTL", "difference"], rows) if rows else ""


def shown(difference):
    """Returns 1 if `ntl-eval compare` shows that B is better, -1 if B is worse, 0 if it shows neither. Uses the corrected p-value."""
    if difference["p_holm"] is None or difference["p_holm"] > LEVEL:
        return 0
    return 1 if (difference["difference"] > 0) == (difference["better"] == "higher") else -1


def outcome(differences):
    """Returns the average difference, the numbers of seeds for which B is better and worse, and the corrected p-values, as text."""
    better, worse = (sum(shown(difference) == sign for difference in differences) for sign in (1, -1))
    p = ", ".join(p_value(d["p_holm"], d["p_holm_is_bound"], 2) for d in differences if d["p_holm"] is not None)
    return f"{over_seeds([d['difference'] for d in differences])} (better {better}, worse {worse} of {len(differences)}; p {p})"


def comparison_table(models, split):
    """Compares numbers with greedy text of the same model, and objectives with cross entropy for the same seed."""
    rows = []

    def add(label, pairs):
        found = [a.compared(mode, b, other_mode, split) for a, mode, b, other_mode in pairs]
        if found:
            cells = [[one[name] for one in found if name in one] for name in METRICS]
            rows.append([label, *(outcome(cell) if cell else "–" for cell in cells)])

    for objective in dict.fromkeys(model.objective for model in models if model.objective != "head"):
        own = [model for model in models if model.objective == objective]
        add(f"{OBJECTIVES[objective]}: numbers less greedy text", [(model, "text", model, "regress") for model in own])
    paired = with_plain(models)
    for label, mode, plain_mode in (
        ("greedy text: {} less {}", "text", "text"),
        ("numbers: {} less {}", "regress", "regress"),
        ("greedy text of {} less numbers of {}", "text", "regress"),
    ):
        for objective in dict.fromkeys(model.objective for model, _ in paired):
            if mode == plain_mode or objective in NTL:
                pairs = [(plain, plain_mode, model, mode) for model, plain in paired if model.objective == objective]
                add(label.format(OBJECTIVES[objective], OBJECTIVES[PLAIN.get(objective, "ce")]), pairs)
    return table(["", *METRICS.values()], rows) if rows else ""


def sign_test(closer, farther):
    """Returns the two-sided p-value of the sign test."""
    n = closer + farther
    return min(1.0, 2 * sum(comb(n, k) for k in range(min(closer, farther) + 1)) / 2**n)


def wrong_table(models, split):
    """Describes the errors of the incorrect greedy answers by objective, and where the model and the CE model of the same seed are both wrong."""
    rows, plain = [], {model.seed: model for model in models if model.objective == "ce"}
    for objective in dict.fromkeys(model.objective for model in models if model.objective != "head"):
        own = [model for model in models if model.objective == objective]
        found = [list(model.errors(split).values()) for model in own]
        shares = [len(errors) / model.report("text", split)["n"] for errors, model in zip(found, own)]
        near, far = ([mean(limit(error) for error in errors) for errors in found] for limit in (lambda error: error <= NEAR, lambda error: error > FAR))
        cells = [over_seeds(values) for values in (shares, map(median, found), near, far)]
        signs = []
        for model in own:
            if objective != "ce" and model.seed in plain:
                errors, others = model.errors(split), plain[model.seed].errors(split)
                shared = errors.keys() & others.keys()
                closer, farther = (sum(sign * errors[item] < sign * others[item] for item in shared) for sign in (1, -1))
                signs.append(f"{closer} to {farther} (p {sign_test(closer, farther):.2g})")
        rows.append([OBJECTIVES[objective], *cells, ", ".join(signs) or "–"])
    header = ["", "wrong numbers", "median error", f"off by at most {NEAR}", f"off by more than {FAR:,}", "both wrong: closer than CE to farther, by seed"]
    return table(header, rows)


def page(models, costs, pictures, jokes):
    """Returns the page as Markdown and writes its pictures to the directory `pictures` unless it is None.

    `jokes(*options)` returns the output of baselines.py.
    """
    rows = []
    for task in TASKS:
        for objective in dict.fromkeys(model.objective for model in models if model.task == task):
            own = [model for model in models if (model.task, model.objective) == (task, objective)]
            facts = [model.training for model in own]
            hours = sum(fact["seconds"] for fact in facts) / 3600
            rows.append([
                f"{task}, {OBJECTIVES[objective]}", ", ".join(model.seed for model in own), f"{facts[0]['parameters']:,}",
                " / ".join(f"{fact['steps']:,}" for fact in facts), str(facts[0]["batch"]), f"{hours:.1f}",
            ])  # fmt: skip
    parts = ["## Models\n", table(["", "seeds", "parameters", "steps", "batch", "hours in all"], rows)]
    for task in TASKS:
        own = [model for model in models if model.task == task]
        for split in own[0].splits() if own else []:
            n = own[0].report("regress", split)["n"]
            title = f"{task} {split}".rstrip()
            parts.append(f"## {title}\n")
            parts.append(f"{n:,} items. Means over the seeds ± their standard deviation. {NOTE.get(task, '')}".rstrip() + "\n")
            if pictures and task not in WRONG:
                name = title.replace(" ", "-") + ".svg"
                (pictures / name).write_text(picture(own, split), encoding="utf-8")
                parts.append(f"![RMSE by objective and estimate, {title}]({pictures.name}/{name})\n")
            baselines = jokes() if task == "rjokes" else {}
            parts += [estimates_table(own, split, baselines), distribution_table(own, split)]
            if shared := crps_table(own, split):
                parts += ["CRPS of the items for which both models of a seed have one, with the 95% interval of the difference:\n", shared]
            parts += ["Paired comparisons over the same items:\n", comparison_table(own, split)]
            if task == "rjokes":
                repeated = jokes("--repeated")
                parts.append(f"All {n:,} jokes, and the {n - len(repeated):,} *new* ones, whose words are not a joke of `dev`:\n")
                parts.append(repeated_table(own, set(repeated), baselines, jokes("--new")))
        for split in own[0].splits("text") if own and task in WRONG else []:
            n = own[0].report("text", split)["n"]
            parts += [f"How far off incorrect greedy answers are ({split}, {n:,} items, absolute errors):\n", wrong_table(own, split)]
    if costs:
        header = ["", "1 request: number / greedy text", "16 concurrent requests"]
        rows = [[name, *(f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" for ratios in found.values())]
                for name, found in costs.items()]  # fmt: skip
        parts += ["## What a number costs\n", "Time of a number (tolerance 1e-3) as a multiple of a greedy answer's.\n", table(header, rows)]
    return "\n".join(parts)


MARK = "<!-- Below: written by lab/recipes/results. -->\n"


def main():
    parser = argparse.ArgumentParser(prog="lab/recipes/results", description="Evaluates trained models and writes the page of results.")
    parser.add_argument("models", type=Path, metavar="MODELS", help="OUTPUT of lab/recipes/queue")
    parser.add_argument("data", type=Path, metavar="DATA", help="directory of the data, as for lab/recipes/queue")
    parser.add_argument("runs", type=Path, metavar="RUNS", help="directory for the runs of ntl-eval")
    parser.add_argument("--task", choices=TASKS, help="evaluate the models of this task only")
    parser.add_argument("--page", type=Path, metavar="FILE", help="replace the text below the mark in this page; without it, print")
    parser.add_argument("--limit", type=int, metavar="N", help="evaluate N items only")
    parser.add_argument("--without-cost", action="store_true", help="do not measure the cost of a number")
    parser.add_argument("--kept", action="store_true", help="request no answers: RUNS has all, and MODELS needs only each training.json")
    args = parser.parse_args()
    models = trained(args.models, args.runs, [args.task] if args.task else TASKS, args.kept)
    if not models:
        parser.exit(1, f"results: no trained model{f' of {args.task}' if args.task else ''} in {args.models}\n")
    for model in [] if args.kept else models:
        print(f"== {model.task} {model.folder.name}", file=sys.stderr)
        evaluate(model, args.data, args.limit)
    costs = {} if args.without_cost or args.kept else costs_of(models, args.models, args.data, args.runs)

    def jokes(*options):
        rated = next(model for model in models if model.task == "rjokes").report("regress", "")["n"]
        return from_baselines(args.data, args.runs, rated, *options)

    if args.page is None:
        print(page(models, costs, None, jokes))
        return
    pictures = args.page.with_suffix("")
    pictures.mkdir(exist_ok=True)
    text = page(models, costs, pictures, jokes)
    replace_below(MARK, args.page, text)


if __name__ == "__main__":
    main()
