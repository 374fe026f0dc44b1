"""From labelled rows to a predictor: compares uses of a language model with plain models, and keeps the best one.

The rows are divided at random: some are held out for the figures of the report, some choose, and the others are learnt
from. The chosen predictor then learns from all rows that are not held out.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ._fit_report import Choice, Figures, Report
from ._lora import Lora, LoraRegressor, check_base
from ._table import Rows, TableError, read_rows
from ._text import is_table, texts_of
from .client import Client
from .columns import served
from .errors import NoNumber, NtlError, RequestRejected
from .head import CALIBRATING, CALIBRATING_MAX, EmbeddingRidge
from .regressor import NumberRegressor
from .simple import Median, PlainModel, TextModel, WordRidge

VERSION = 1
ROWS_MIN = 30
HELD_OUT, HELD_OUT_MAX = 0.2, 200
CHOOSING, CHOOSING_MAX = 0.2, 100
STATE, EXAMPLES, REPORT, PROMPT, CACHE = "fit.json", "examples.jsonl", "report.md", "prompt.txt", "responses.sqlite"
ADAPTER, TRIAL_ADAPTER, MERGED = "adapter", "trial-adapter", "model"
PLAIN: Mapping[str, type[PlainModel]] = {model.kind: model for model in (Median, WordRidge)}
Estimator = NumberRegressor | TextModel


@dataclass(frozen=True)
class Fit:
    """The result of `fit`. `figures` are about the held-out rows, by the names of the report."""

    estimator: Estimator
    kind: str
    beats_baseline: bool
    figures: Mapping[str, Figures]
    report: str
    folder: Path


@dataclass(frozen=True)
class _Candidate:
    title: str
    kind: str
    new: Callable[[int], Estimator]
    """Creates the estimator for this number of rows, of which some calibrate; 0 for none."""


def fit(
    rows: Any,
    *,
    text: str,
    target: str,
    out: str | os.PathLike[str],
    client: Client | None = None,
    examples: Sequence[int] = (4, 16),
    lora: str | os.PathLike[str] | None = None,
    server: str | None = None,
    template: str | None = None,
    coverage: float = 0.9,
    options: Mapping[str, Any] | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    decimal: str = ".",
    seed: int = 0,
    progress: bool = False,
) -> Fit:
    """Chooses and calibrates a predictor of numbers for labelled texts, and writes it to the directory `out`.

    Parameters
    ----------
    rows: a table of pandas or polars, or a file of separated values with a header line.
    text, target: the columns of the texts and of the numbers.
    out: a new directory, or the directory of an earlier call, whose responses are not requested again.
    client: the `ntl.Client` of the language model. Without one, only the plain models and `lora` are compared.
    examples: the numbers of examples in the prompts that are compared. Without any, and with a model that writes no
        numbers, only a ridge regression on the model's vectors is compared with the plain models.
    lora: the directory of a decoder in the format of Hugging Face. A LoRA adapter of it is trained and compared as well,
        which needs torch, transformers and peft. Each prediction starts a server of the result.
    server: the program for these servers; by default, `ntl-server` of the wheel or in the PATH.
    template: the text of one row in a prompt with the field `{text}`, up to the number.
    coverage: the share of outcomes that intervals should contain.
    options: further fields of the request's `number` object.
    delimiter, encoding, decimal: of the file. By default they are found, and the decimal sign is a point.
    seed: of the division of the rows, and of the training.
    progress: whether lines on standard error report the progress.

    A file that cannot be read is a `ValueError` that names the file, the line and the column.
    """
    if lora is not None:
        check_base(Path(lora))
    table, source = _read(rows, text, target, delimiter, encoding, decimal)
    count = len(table.texts)
    if count < ROWS_MIN:
        raise TableError(f"{source} has {count} rows; at least {ROWS_MIN} are needed to compare predictors")
    folder = _folder(out)
    order = list(range(count))
    random.Random(seed).shuffle(order)
    held_out = min(round(HELD_OUT * count), HELD_OUT_MAX)
    choosing = min(round(CHOOSING * count), CHOOSING_MAX)
    test, choose, learn = order[:held_out], order[held_out : held_out + choosing], order[held_out + choosing :]
    model = served(client) if client is not None else None
    settings = {"template": template, "coverage": coverage, "options": options, "seed": seed}
    candidates = _plain(coverage, seed)
    if client is not None and model is not None:
        name = str(model["id"])
        candidates.append(_head(client, name, coverage, seed, folder, progress))
        candidates += _prompts(client, name, examples, settings, folder, progress)
    if lora is not None:
        candidates.append(_lora(Path(lora).resolve(), settings, folder, server, progress))

    choices = []
    for candidate in candidates:
        _say(progress, f"{candidate.title}: {len(choose)} rows that choose")
        choices.append(_choice(candidate, table, learn, choose))
    baseline = min(choices[: len(PLAIN)], key=_mean)
    challenger = min([choice for choice in choices[len(PLAIN) :] if choice.scores], key=_mean, default=None)
    figures, fitted, problems = {}, {}, {}
    for choice, candidate in zip(choices, candidates):
        if candidate.kind in PLAIN or choice is challenger:
            _say(progress, f"{candidate.title}: {len(learn + choose)} rows to learn from, {len(test)} held-out rows")
            try:
                estimator = candidate.new(len(learn + choose)).fit(*table_part(table, learn + choose))
                figures[choice.title] = _figures(estimator, *table_part(table, test))
                fitted[choice.title] = estimator
            except NtlError as error:
                if not _rules_out(error):
                    raise
                problems[choice.title] = str(error)
    beats = challenger is not None and challenger.title in fitted and challenger.mean < baseline.mean
    kept = challenger if challenger is not None and beats else baseline
    estimator = fitted[kept.title]
    report = Report(
        source=source,
        text=text,
        target=target,
        rows=(len(learn), len(choose), len(test)),
        delimiter=table.delimiter,
        encoding=table.encoding,
        coverage=coverage,
        choices=choices,
        baseline=baseline,
        challenger=challenger,
        kept=kept,
        figures=figures,
        problems=problems,
        merged=folder / MERGED,
        seed=seed,
    ).markdown()
    if isinstance(estimator, LoraRegressor):
        model = estimator.served_
    else:
        shutil.rmtree(folder / MERGED, ignore_errors=True)
    _write(folder, estimator, report, {"text": text, "target": target, "model": model}, table.texts[test[0]])
    return Fit(estimator, _kind(estimator), beats, figures, report, folder)


def load(folder: str | os.PathLike[str], client: Client | None = None) -> Estimator:
    """The predictor of a directory that `fit` wrote.

    A prompt or a regression on vectors needs the server of the same model; by default, one on this machine. Another model
    is a warning for a prompt, which was chosen and calibrated for the first one, and an error for a regression, since
    vectors of different models have nothing in common. It is also an error for a trained adapter.
    """
    path = Path(folder)
    try:
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NtlError(f"{path / STATE} cannot be read: {error}") from error
    if state.get("version") != VERSION:
        raise NtlError(f"{path / STATE} has the version {state.get('version')}; this package reads {VERSION}")
    if state["kind"] in PLAIN:
        return PLAIN[state["kind"]]().restore(state["state"])
    client = client if client is not None else Client()
    model, wanted = served(client), state["model"]
    is_same = model["fingerprint"] == wanted["fingerprint"]
    was, now = f"{wanted['id']} ({wanted['fingerprint']})", f"{model['id']} ({model['fingerprint']})"
    if state["kind"] == EmbeddingRidge.kind:
        if not is_same:
            raise NtlError(f"{path} has weights for the vectors of {was}, and the server has {now}")
        return EmbeddingRidge(client).restore(state["state"])
    if not is_same and state["kind"] == LoraRegressor.kind:
        raise NtlError(f"{path} needs a server of {path / MERGED}, {was}, and the server has {now}")
    if not is_same:
        warnings.warn(f"the prompt was chosen and calibrated for {was}, and the server has {now}", stacklevel=2)
    return _restored(state["state"], path, client)


def table_part(table: Rows, indices: Sequence[int]) -> tuple[list[str], list[float]]:
    """The texts and the numbers of some rows."""
    return [table.texts[index] for index in indices], [table.numbers[index] for index in indices]


def _read(
    rows: Any, text: str, target: str, delimiter: str | None, encoding: str | None, decimal: str
) -> tuple[Rows, str]:
    """The rows, and the name of their source."""
    if not is_table(rows):
        table = read_rows(rows, text, target, delimiter=delimiter, encoding=encoding, decimal=decimal)
        return table, os.fspath(rows)
    for column in (text, target):
        if column not in rows.columns:
            raise TableError(f"the table has no column {column}; it has {', '.join(map(str, rows.columns))}")
    texts, numbers = texts_of(rows[text], None), [float(number) for number in rows[target].to_list()]
    for index, (row_text, number) in enumerate(zip(texts, numbers)):
        if not row_text.strip():
            raise TableError(f"row {index} of the table, column {text}: it is empty")
        if not np.isfinite(number):
            raise TableError(f"row {index} of the table, column {target}: {number} is not a finite number")
    return Rows(texts, numbers, None, None), "the table"


def _folder(out: str | os.PathLike[str]) -> Path:
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise NtlError(f"{folder} is not a directory")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if names and not names & {STATE, CACHE, TRIAL_ADAPTER}:
        raise NtlError(f"{folder} has other files; name a new directory")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _plain(coverage: float, seed: int) -> list[_Candidate]:
    candidates = []
    for kind, model in PLAIN.items():

        def new(rows: int, model: type[PlainModel] = model) -> PlainModel:
            return model(coverage, seed)

        candidates.append(_Candidate(model.title, kind, new))
    return candidates


def _head(client: Client, name: str, coverage: float, seed: int, folder: Path, progress: bool) -> _Candidate:
    def new(rows: int) -> EmbeddingRidge:
        return EmbeddingRidge(client, coverage, seed, cache=folder / CACHE, verbose=progress)

    return _Candidate(f"{name}, ridge on embeddings", EmbeddingRidge.kind, new)


def _prompts(
    client: Client, name: str, examples: Sequence[int], settings: Mapping[str, Any], folder: Path, progress: bool
) -> list[_Candidate]:
    candidates = []
    for count in examples:

        def new(rows: int, count: int = count) -> NumberRegressor:
            return NumberRegressor(
                client,
                examples=count,
                calibration=_calibrating(rows),
                cache=folder / CACHE,
                verbose=progress,
                **settings,
            )

        candidates.append(_Candidate(f"{name}, {count} examples", "prompt", new))
    return candidates


def _lora(base: Path, settings: Mapping[str, Any], folder: Path, server: str | None, progress: bool) -> _Candidate:
    def new(rows: int) -> LoraRegressor:
        estimator = LoraRegressor(
            examples=0, calibration=_calibrating(rows), cache=folder / CACHE, verbose=progress, **settings
        )
        estimator.lora = Lora(base, folder / (ADAPTER if rows else TRIAL_ADAPTER), folder / MERGED, server)
        return estimator

    return _Candidate(f"{base.name}, LoRA", LoraRegressor.kind, new)


def _calibrating(rows: int) -> float:
    """The share of these rows that calibrate a prompt; 0 for none."""
    return min(CALIBRATING, CALIBRATING_MAX / rows) if rows else 0.0


def _choice(candidate: _Candidate, table: Rows, learn: Sequence[int], choose: Sequence[int]) -> Choice:
    """The CRPS of a candidate on the rows that choose."""
    try:
        estimator = candidate.new(0).fit(*table_part(table, learn))
        texts, numbers = table_part(table, choose)
        scores = [found.crps(number) for found, number in zip(estimator.predict_distribution(texts), numbers)]
    except NtlError as error:
        if not _rules_out(error):
            raise
        return Choice(candidate.title, candidate.kind, (), str(error))
    return Choice(candidate.title, candidate.kind, tuple(scores))


def _rules_out(error: NtlError) -> bool:
    """Returns true if the candidate cannot be used: its model writes no number, cannot read a prompt, or lacks vectors."""
    if isinstance(error, RequestRejected):
        return error.field == "model" or error.code == "context_length_exceeded"
    return isinstance(error, NoNumber)


def _mean(choice: Choice) -> float:
    return choice.mean


def _figures(estimator: Estimator, texts: list[str], numbers: list[float]) -> Figures:
    found = estimator.predict_distribution(texts)
    with warnings.catch_warnings():
        # The report shows the coverage of intervals that too few rows calibrate.
        warnings.simplefilter("ignore")
        intervals = estimator.predict_interval(texts)
    truth = np.array(numbers)
    return Figures(
        rmse=float(np.sqrt(np.mean((estimator.predict(texts) - truth) ** 2))),
        scores=tuple(one.crps(number) for one, number in zip(found, numbers)),
        coverage=float(np.mean((intervals[:, 0] <= truth) & (truth <= intervals[:, 1]))),
        width=float(np.mean(intervals[:, 1] - intervals[:, 0])),
    )


def _kind(estimator: Estimator) -> str:
    return estimator.kind if isinstance(estimator, (TextModel, LoraRegressor)) else "prompt"


def _write(folder: Path, estimator: Estimator, report: str, facts: Mapping[str, Any], text: str) -> None:
    (folder / REPORT).write_text(report, encoding="utf-8")
    for name in (EXAMPLES, PROMPT):
        (folder / name).unlink(missing_ok=True)
    kept: dict[str, Any] = {"text": facts["text"], "target": facts["target"]}
    if isinstance(estimator, (NumberRegressor, EmbeddingRidge)):
        kept["model"] = {name: facts["model"][name] for name in ("id", "fingerprint")}
        estimator.cache, estimator.verbose = None, False
    if isinstance(estimator, TextModel):
        kept["state"] = estimator.state()
    else:
        kept["state"] = _prompt_state(estimator)
        pairs = zip(estimator.texts_, estimator.answers_)
        lines = [json.dumps({"text": shown, "answer": answer}, ensure_ascii=False) + "\n" for shown, answer in pairs]
        (folder / EXAMPLES).write_text("".join(lines), encoding="utf-8")
        (folder / PROMPT).write_text(estimator.prompts([text])[0], encoding="utf-8")
    state = {"version": VERSION, "kind": _kind(estimator), **kept}
    (folder / STATE).write_text(json.dumps(state, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _prompt_state(regressor: NumberRegressor) -> dict[str, Any]:
    names = ("template", "examples", "selection", "coverage", "objective", "options", "seed")
    settings = {name: getattr(regressor, name) for name in names}
    return {
        "settings": {**settings, "template": regressor.template or "{text}" + regressor.ending},
        "range": list(regressor.range_),
        "decimals": regressor.decimals_,
        "offset": regressor.offset_,
    }


def _restored(state: Mapping[str, Any], folder: Path, client: Client) -> NumberRegressor:
    regressor = NumberRegressor(client, **state["settings"])
    regressor.range_, regressor.decimals_ = tuple(state["range"]), state["decimals"]
    regressor.offset_ = state["offset"]
    rows = [json.loads(line) for line in (folder / EXAMPLES).read_text(encoding="utf-8").splitlines()]
    regressor._keep([row["text"] for row in rows], [row["answer"] for row in rows])
    return regressor


def _say(progress: bool, message: str) -> None:
    if progress:
        print(message, file=sys.stderr)
