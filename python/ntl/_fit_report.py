"""The one-page report of `ntl.fit`, in Markdown."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

RESAMPLES = 2000
# The predictors that need a server.
NOTES = {
    "prompt": "`prompt.txt` shows one of the prompts.",
    "lora": "`ntl-server --model {merged}` serves it, and `prompt.txt` shows one of the prompts.",
    "embedding-ridge": "It computes the vectors of texts (`/v1/embeddings`), and `ntl.load` applies the weights in `fit.json`. "
    "`ntl-server` alone cannot predict with them.",
}
NAMES = {"\t": "tab", ",": "comma", ";": "semicolon", "|": "bar"}


@dataclass(frozen=True)
class Choice:
    """A candidate's CRPS for each row that chooses; none, with the reason, if it cannot be used."""

    title: str
    kind: str
    scores: tuple[float, ...]
    problem: str | None = None

    @property
    def mean(self) -> float:
        return fmean(self.scores)


@dataclass(frozen=True)
class Figures:
    """Figures of the held-out rows. `scores` has the CRPS of each, and `width` is the mean width of intervals."""

    rmse: float
    scores: tuple[float, ...]
    coverage: float
    width: float

    @property
    def crps(self) -> float:
        return fmean(self.scores)


@dataclass(frozen=True)
class Report:
    source: str
    text: str
    target: str
    # The rows to learn from, the rows that choose, and the held-out rows.
    rows: tuple[int, int, int]
    delimiter: str | None
    encoding: str | None
    coverage: float
    choices: Sequence[Choice]
    baseline: Choice
    challenger: Choice | None
    kept: Choice
    figures: Mapping[str, Figures]
    problems: Mapping[str, str]
    # The directory that is served if an adapter is kept.
    merged: Path
    seed: int

    def markdown(self) -> str:
        parts = [
            f"# {self.target} from {self.text}",
            self._rows(),
            f"**Kept: {self.kept.title}.** {self._verdict()}",
            f"## On {self.rows[2]} held-out rows",
            self._held_out(),
            f"## On the {self.rows[1]} rows that choose",
            self._choosing(),
            "## Use",
            self._use(),
        ]
        return "\n\n".join(parts) + "\n"

    def _rows(self) -> str:
        learn, choose, held_out = self.rows
        file = ""
        if self.delimiter is not None and self.encoding is not None:
            delimiter = NAMES.get(self.delimiter, self.delimiter)
            file = f" (delimiter: {delimiter}, {self.encoding.removesuffix('-sig').upper()})"
        return (
            f"{self.source}{file} has {sum(self.rows)} rows with a text and a number. {learn} were learnt from while "
            f"{choose} chose among the candidates. The kept predictor learnt from both. {held_out} rows were held out."
        )

    def _verdict(self) -> str:
        best, baseline = self.challenger, self.baseline
        if best is None:
            problems = [f"{choice.title}: {choice.problem}" for choice in self.choices if choice.problem]
            tried = f"No language model could be used ({'; '.join(problems)})." if problems else "No language model was tried."
            return f"{tried} It has the lowest CRPS of the plain models on the rows that choose."
        ratio = best.mean / baseline.mean - 1 if baseline.mean > 0 else math.inf
        if best.title in self.problems:
            return f"{best.title} was better on the rows that choose, but it cannot be used: {self.problems[best.title]}."
        if self.kept is best:
            return (
                f"On the rows that choose, its CRPS is {_shown(best.mean)}, {-ratio:.0%} less than {_shown(baseline.mean)} "
                f"of the best plain model ({baseline.title})."
            )
        return (
            f"No language model was better on the rows that choose. The best one, {best.title}, has a CRPS of "
            f"{_shown(best.mean)}, {ratio:.0%} more than {_shown(baseline.mean)} of {baseline.title}."
        )

    def _held_out(self) -> str:
        reference = self.figures[self.baseline.title]
        lines = [
            f"| model | RMSE | CRPS | CRPS minus that of {self.baseline.title}, 95% interval | coverage | mean width |",
            "|---|---:|---:|---:|---:|---:|",
        ]
        for title, figures in self.figures.items():
            difference = "" if title == self.baseline.title else self._difference(figures, reference)
            name = f"**{title}**" if title == self.kept.title else title
            lines.append(
                f"| {name} | {_shown(figures.rmse)} | {_shown(figures.crps)} | {difference} | {figures.coverage:.0%} "
                f"| {_shown(figures.width)} |"
            )
        lines += ["", f"Lower is better. Intervals should contain {self.coverage:.0%} of the numbers. {self._likely()}"]
        return "\n".join(lines)

    def _difference(self, figures: Figures, reference: Figures) -> str:
        """The mean difference per row, with its interval by the bootstrap."""
        differences = np.array(figures.scores) - np.array(reference.scores)
        random = np.random.default_rng(self.seed)
        means = differences[random.integers(len(differences), size=(RESAMPLES, len(differences)))].mean(axis=1)
        low, high = np.quantile(means, [0.025, 0.975])
        return f"{_shown(float(differences.mean()))} ({_shown(float(low))} to {_shown(float(high))})"

    def _likely(self) -> str:
        """The shares that this many rows show by chance, with a probability of about 95%."""
        distance = 1.96 * math.sqrt(self.coverage * (1 - self.coverage) / self.rows[2])
        low, high = self.coverage - distance, min(1.0, self.coverage + distance)
        return f"With {self.rows[2]} rows, shares from {low:.0%} to {high:.0%} are likely."

    def _choosing(self) -> str:
        lines = ["| candidate | CRPS |", "|---|---:|"]
        for choice in self.choices:
            lines.append(f"| {choice.title} | {choice.problem or _shown(choice.mean)} |")
        return "\n".join(lines)

    def _use(self) -> str:
        client = ", ntl.Client()" if self.kept.kind in NOTES else ""
        lines = [
            "```python",
            "import ntl",
            "",
            f"model = ntl.load(FOLDER{client})",
            "model.predict(texts), model.predict_interval(texts)",
            "```",
        ]
        if self.kept.kind in NOTES:
            note = NOTES[self.kept.kind].replace("{merged}", shlex.quote(str(self.merged)))
            lines += ["", f"The server has to serve the same model. {note}"]
        return "\n".join(lines)


def _shown(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
