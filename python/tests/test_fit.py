import json
import math
import random
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

pytest.importorskip("sklearn")

import numpy as np
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import ntl
from ntl._table import TableError, read_rows
from ntl.cli import main
from ntl.head import ALPHAS, EmbeddingRidge


class Lengths:
    """A server whose model writes the number of letters of the last row, plus `error`. It fails after `fails_after`
    prompts or `embeds` texts. The vector of a text has its number of letters as its second number."""

    def __init__(self, error=0.0, embeds=0):
        self.error = error
        self.embeds = embeds
        self.embedded = []
        self.prompts = []
        self.examples_max = math.inf
        self.fails_after = math.inf
        self.fingerprint = "f00d"

    def __call__(self, request):
        if request.url.path == "/v1/models":
            model = {"id": "lengths", "fingerprint": self.fingerprint, "dtype": "f32", "backend": "native"}
            return httpx.Response(200, json={"data": [model]})
        if request.url.path == "/v1/embeddings":
            return self.vectors(json.loads(request.content))
        prompt = json.loads(request.content)["prompt"]
        if len(self.prompts) >= self.fails_after:
            return failed(500, "it failed")
        if prompt.count("\n\n") > self.examples_max:
            return failed(400, "the prompt is too long", "prompt", "context_length_exceeded")
        self.prompts.append(prompt)
        row = prompt.rsplit("\n\n", 1)[-1].removesuffix("\n=")
        value = len(row) + self.error
        mass = {"closed": 1, "invalid": 0, "open": 0}
        number = {"value": value, "support": [{"value": value, "probability": 1}], "mass": mass}
        if "?" in row:
            number = {"value": None, "support": [], "mass": {"closed": 0, "invalid": 1, "open": 0}, "reason": "it wrote `no`"}
        return httpx.Response(200, json={"choices": [{"text": "", "number": number}], "system_fingerprint": self.fingerprint})

    def vectors(self, body):
        if self.embeds == 0:
            return failed(400, "`model` runs on remote, which returns no hidden states", "model")
        if len(self.embedded) >= self.embeds:
            return failed(500, "it failed")
        assert (body["pooling"], body["truncate_prompt_tokens"]) == ("mean", -1)
        self.embedded += body["input"]
        items = [{"embedding": [1.0, float(len(text)), text.count("a") / 7]} for text in body["input"]]
        return httpx.Response(200, json={"data": items})

    def client(self):
        return ntl.Client("http://server", transport=httpx.MockTransport(self), concurrency=1)


def failed(status, message, field=None, code=None):
    return httpx.Response(status, json={"error": {"message": message, "type": "t", "param": field, "code": code}})


@pytest.fixture
def table(tmp_path):
    """100 rows whose number is the length of the text, give or take one. Words say nothing about it."""
    random.seed(5)
    lines = ["TEXT;PRICE"]
    for _ in range(100):
        text = "".join(random.choice("abcdefghij") for _ in range(random.randrange(1, 60)))
        lines.append(f"{text};{len(text) + random.choice([-1, 0, 1])}")
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def fit(table, server, **options):
    client = server.client() if server is not None else None
    return ntl.fit(table, text="TEXT", target="PRICE", out=table.parent / "out", client=client, **options)


def test_a_model_that_is_better_on_validation_rows_is_kept_with_its_prompt_and_calibration(table):
    server = Lengths()
    found = fit(table, server, examples=[1, 3])
    assert found.beats_baseline and found.kind == "prompt"
    texts = ["abc", "a" * 30]
    assert list(found.estimator.predict(texts)) == [3, 30]
    figures = found.figures["lengths, 1 examples"]
    assert figures.rmse < 1.1 and figures.coverage == 1 and figures.width == 2
    assert figures.crps < min(figures.crps for title, figures in found.figures.items() if "lengths" not in title)
    folder = table.parent / "out"
    assert (folder / "prompt.txt").read_text().count("\n= ") == 1
    # 60 rows to learn from, 20 that choose, 20 held out: of the 80, 16 calibrate and 64 are examples.
    assert len((folder / "examples.jsonl").read_text().splitlines()) == 64
    report = (folder / "report.md").read_text()
    assert report == found.report and "**Kept: lengths, 1 examples.**" in report and "semicolon, UTF-8" in report
    loaded = ntl.load(folder, server.client())
    assert loaded.predict_interval(texts).tolist() == [[2, 4], [29, 31]]
    assert loaded.prompts(texts) == found.estimator.prompts(texts)
    server.fingerprint = "beef"
    with pytest.warns(UserWarning, match="calibrated for lengths .f00d."):
        ntl.load(folder, server.client())


def test_a_plain_model_that_no_language_model_beats_is_kept_and_the_report_says_by_how_much(table):
    found = fit(table, Lengths(error=100), examples=[2])
    assert not found.beats_baseline and found.kind in ("median", "tfidf-ridge")
    assert "No language model was better on the rows that choose" in found.report
    scores = {title: figures.crps for title, figures in found.figures.items()}
    assert scores["lengths, 2 examples"] > 5 * scores["median"]
    assert "% more than" in found.report
    loaded = ntl.load(table.parent / "out")
    texts = ["abc", "a b c"]
    assert loaded.predict(texts) == pytest.approx(found.estimator.predict(texts))
    assert loaded.predict_interval(texts) == pytest.approx(found.estimator.predict_interval(texts))
    # A later call replaces the files of the earlier one.
    better = Lengths()
    better.fingerprint = "beef"
    assert fit(table, better, examples=[2]).kind == "prompt"
    assert fit(table, None).kind != "prompt"
    assert not (table.parent / "out" / "examples.jsonl").exists()


def test_a_regression_on_vectors_that_is_better_is_kept_for_the_same_model(table):
    server = Lengths(error=100, embeds=math.inf)
    found = fit(table, server, examples=[2])
    assert found.beats_baseline and found.kind == "embedding-ridge"
    figures = found.figures["lengths, ridge on embeddings"]
    assert figures.rmse < 1.2 and 0.75 <= figures.coverage <= 1 and figures.width < 4
    folder = table.parent / "out"
    assert sorted(path.name for path in folder.iterdir()) == ["fit.json", "report.md", "responses.sqlite"]
    assert "**Kept: lengths, ridge on embeddings.**" in found.report
    assert "`ntl-server` alone cannot predict with them" in found.report
    texts = ["abc", "b" * 30]
    loaded = ntl.load(folder, server.client())
    assert loaded.predict(texts) == pytest.approx([3, 30], abs=1)
    assert loaded.predict(texts).tolist() == found.estimator.predict(texts).tolist()
    assert loaded.predict_interval(texts).tolist() == found.estimator.predict_interval(texts).tolist()
    assert loaded.predict_distribution(texts) == found.estimator.predict_distribution(texts)
    server.fingerprint = "beef"
    with pytest.raises(ntl.NtlError, match="vectors of lengths .f00d., and the server has lengths .beef."):
        ntl.load(folder, server.client())


def test_a_regression_on_vectors_that_is_worse_than_words_is_not_kept(table):
    lines = [f"{'sofa' if index % 2 else 'lamp'};{500 * (index % 2) + index % 7}" for index in range(100)]
    table.write_text("\n".join(["TEXT;PRICE", *lines]))
    server = Lengths(embeds=math.inf)
    server.vectors = lambda body: httpx.Response(200, json={"data": [{"embedding": [0.5]} for _ in body["input"]]})
    found = fit(table, server, examples=[])
    assert not found.beats_baseline and found.kind == "tfidf-ridge"
    assert found.figures["lengths, ridge on embeddings"].crps > 10 * found.figures["TF-IDF ridge"].crps
    assert "No language model was better" in found.report


def test_a_model_without_vectors_is_ruled_out_for_the_regression_only(table):
    found = fit(table, Lengths(), examples=[2])
    assert found.kind == "prompt" and "| lengths, ridge on embeddings | `model` runs on remote" in found.report
    with pytest.raises(ntl.RequestRejected, match="it failed"):
        fit(table, Lengths(embeds=1), examples=[])


def test_prompts_that_are_too_long_are_ruled_out_and_shorter_ones_are_not(table):
    server = Lengths()
    server.examples_max = 2
    found = fit(table, server, examples=[2, 3])
    assert found.kind == "prompt" and "| lengths, 3 examples | the prompt is too long (HTTP 400) |" in found.report


def test_vectors_are_requested_once_also_after_an_interruption(table):
    server = Lengths(embeds=64)
    with pytest.raises(ntl.RequestRejected, match="it failed"):
        fit(table, server, examples=[])
    server.embeds = math.inf
    found = fit(table, server, examples=[])
    assert len(server.embedded) == len(set(server.embedded)) > 90
    assert fit(table, server, examples=[]).report == found.report
    assert len(server.embedded) == len(set(server.embedded))


def test_the_regression_standardises_and_chooses_its_penalty_on_rows_that_do_not_calibrate():
    random = np.random.default_rng(3)
    vectors = random.normal(size=(300, 20)) * np.logspace(-3, 3, 20) + 5
    numbers = vectors @ (1 / np.logspace(-3, 3, 20)) + random.normal(size=300)
    by_text = {str(index): vector for index, vector in enumerate(vectors)}
    found = EmbeddingRidge(Vectors(by_text), seed=4).fit(list(by_text)[:200], numbers[:200])
    errors = np.sort(found.errors_)
    assert len(errors) == 40
    # The rows that calibrate are those with these errors; a pipeline of scikit-learn learns from the others.
    residuals = numbers[:200] - found.predict(list(by_text)[:200])
    learn = [index for index in range(200) if np.abs(errors - residuals[index]).min() > 1e-9]
    pipeline = make_pipeline(StandardScaler(), RidgeCV(ALPHAS)).fit(vectors[learn], numbers[learn])
    assert len(learn) == 160
    assert found.predict(list(by_text)) == pytest.approx(pipeline.predict(vectors))
    assert found.radius_ == np.sort(np.abs(errors))[math.ceil(41 * 0.9) - 1]


def test_intervals_of_the_regression_contain_their_share_of_new_rows():
    random = np.random.default_rng(0)
    covered = []
    for seed in range(40):
        vectors = random.normal(size=(220, 5))
        numbers = vectors.sum(axis=1) + random.standard_t(3, size=220)
        by_text = {str(index): vector for index, vector in enumerate(vectors)}
        texts = list(by_text)
        found = EmbeddingRidge(Vectors(by_text), coverage=0.8, seed=seed).fit(texts[:120], numbers[:120])
        low, high = found.predict_interval(texts[120:]).T
        covered.append(((low <= numbers[120:]) & (numbers[120:] <= high)).mean())
    # Split conformal prediction promises between 0.8 and 0.8 + 1/25 on average.
    assert 0.78 < np.mean(covered) < 0.86


class Vectors:
    """A client whose model has these vectors."""

    def __init__(self, by_text):
        self.by_text = by_text

    def embed(self, texts, **_):
        return [tuple(self.by_text[text]) for text in texts]


def test_a_served_model_gives_the_vectors(client, table):
    found = fit_with(client, table)
    assert "ridge on embeddings |" in found.report and "error" not in found.report
    state = json.loads((table.parent / "out" / "fit.json").read_text())
    assert state["kind"] == found.kind
    model = EmbeddingRidge(client).fit(["What is 3 + 4?", "7", "9 apples"] * 10, [7, 7, 9] * 10)
    assert model.predict(["What is 3 + 4?", "9 apples"]) == pytest.approx([7, 9], abs=0.1)


def fit_with(client, table):
    return ntl.fit(table, text="TEXT", target="PRICE", out=table.parent / "out", client=client, examples=[])


def test_an_interrupted_call_continues(table):
    server = Lengths()
    server.fails_after = 30
    with pytest.raises(ntl.RequestRejected):
        fit(table, server, examples=[1, 2])
    server.fails_after = math.inf
    found = fit(table, server, examples=[1, 2])
    assert len(server.prompts) == len(set(server.prompts)) > 30
    assert fit(table, server, examples=[1, 2]).report == found.report
    assert len(server.prompts) == len(set(server.prompts))


def test_a_model_without_a_number_for_a_row_is_ruled_out_with_the_reason(table):
    table.write_text(table.read_text().replace("a", "?"))
    found = fit(table, Lengths(), examples=[0])
    assert found.kind != "prompt" and "No language model could be used" in found.report and "it wrote `no`" in found.report


def test_words_predict_better_than_the_median_if_the_number_depends_on_them(tmp_path):
    random.seed(1)
    lines = ["PRICE,TEXT"]
    for _ in range(200):
        words = random.sample(["sofa", "lamp", "desk", "chair"], 2)
        price = sum({"sofa": 500, "lamp": 20, "desk": 150, "chair": 60}[word] for word in words) + random.gauss(0, 5)
        lines.append(f'{price},"{words[0]}, {words[1]}"')
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines))
    found = fit(path, None)
    ridge, median = found.figures["TF-IDF ridge"], found.figures["median"]
    assert found.kind == "tfidf-ridge" and ridge.rmse < 0.2 * median.rmse and ridge.crps < 0.2 * median.crps
    assert 0.75 <= ridge.coverage <= 1 and ridge.width < 40
    assert abs(ntl.load(tmp_path / "out").predict(["sofa, lamp"])[0] - 520) < 15
    quantiles = found.estimator.predict_quantiles(["desk, chair"], [0.1, 0.5, 0.9])
    assert quantiles.shape == (1, 3) and quantiles[0, 0] < 210 < quantiles[0, 2]


def test_a_table_of_pandas_or_polars_is_read_like_a_file(table):
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    of_file = fit(table, None).figures
    for rows in (pandas.read_csv(table, sep=";"), polars.read_csv(table, separator=";")):
        assert fit_table(rows, table).figures == of_file
    broken = pandas.read_csv(table, sep=";").astype({"PRICE": float})
    broken.loc[3, "PRICE"] = math.nan
    with pytest.raises(ValueError, match="row 3 of the table, column PRICE"):
        fit_table(broken, table)


def fit_table(rows, table):
    return ntl.fit(rows, text="TEXT", target="PRICE", out=table.parent / "out")


@pytest.mark.parametrize(
    ("content", "options", "problem"),
    [
        ("TEXT,COST\na,1", {}, "no column PRICE; it has TEXT, COST"),
        ("TEXT,PRICE\na,1\nb,two", {}, "line 3, column PRICE: `two` is not a number"),
        ('TEXT,PRICE\na,"1,200"', {}, "line 2, column PRICE: `1,200`.*separators of thousands"),
        ("TEXT;PRICE\na;1.200,5", {"decimal": ","}, "line 2, column PRICE: `1.200,5`"),
        ("TEXT,PRICE\na,inf", {}, "line 2, column PRICE: `inf` is not a finite number"),
        ("TEXT,PRICE\na,\n", {}, "line 2, column PRICE: it is empty"),
        ("TEXT,PRICE\n ,1\n", {}, "line 2, column TEXT: it is empty"),
        ("TEXT,PRICE\na,1\nb,2,3", {}, "line 3: it has 3 columns, and the header has 2"),
        ('TEXT,PRICE\n"a,1', {}, "line 2: unexpected end of data"),
        ("TEXT,PRICE,PRICE\na,1,2", {}, "the column PRICE 2 times"),
        ("TEXT,PRICE\n", {}, "no rows"),
        ("", {}, "no columns"),
        ("TEXT,PRICE\na,1", {"encoding": "latin-99"}, "no encoding 'latin-99'"),
    ],
)
def test_errors_of_files_name_the_line_and_the_column(tmp_path, content, options, problem):
    path = tmp_path / "rows.csv"
    path.write_text(content)
    with pytest.raises(TableError, match=problem):
        read_rows(path, "TEXT", "PRICE", **options)


def test_delimiters_and_encodings_are_found(tmp_path):
    path = tmp_path / "rows.csv"
    for delimiter in ",;\t|":
        path.write_text(f'ID{delimiter}TEXT{delimiter}PRICE\n1{delimiter}"a\n{delimiter} ""b"""{delimiter} 2.5e1\n\n')
        rows = read_rows(path, "TEXT", "PRICE")
        assert (rows.texts, rows.numbers, rows.delimiter) == ([f'a\n{delimiter} "b"'], [25], delimiter)
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        path.write_bytes("TEXT;PRICE\nCafé;2,5\n".encode(encoding))
        rows = read_rows(path, "TEXT", "PRICE", decimal=",")
        assert (rows.texts, rows.numbers) == (["Café"], [2.5])
    path.write_bytes("TEXT;PRICE\nx;1\nCafé;2\n".encode("cp1252"))
    with pytest.raises(TableError, match=r"rows.csv, line 3: it is not text in UTF-8; .*cp1252"):
        read_rows(path, "TEXT", "PRICE")
    assert read_rows(path, "TEXT", "PRICE", encoding="cp1252").texts == ["x", "Café"]


def test_a_directory_with_other_files_is_not_written_to(table):
    (table.parent / "out").mkdir()
    (table.parent / "out" / "thesis.tex").write_text("")
    with pytest.raises(ntl.NtlError, match="other files"):
        fit(table, None)
    with pytest.raises(ntl.NtlError, match=r"fit.json cannot be read"):
        ntl.load(table.parent / "out")
    table.write_text("\n".join(table.read_text().splitlines()[:20]))
    with pytest.raises(ValueError, match="19 rows; at least 30"):
        fit(table, None)


def test_the_program_fits_with_a_server_and_prints_the_report(client, table, capsys):
    sums = [(a, b) for a in range(8) for b in range(8)]
    table.write_text("\n".join(["TEXT,PRICE", *(f"What is {a} + {b}?,{a + b}" for a, b in sums)]))
    arguments = ["fit", str(table), "--text", "TEXT", "--target", "PRICE", "--out", str(table.parent / "out")]
    endpoint = client._settings["base_url"]
    assert main([*arguments, "--endpoint", endpoint, "--examples", "0", "--template", "{text}"]) == 0
    captured = capsys.readouterr()
    assert "**Kept: " in captured.out and "0 examples" in captured.out and "held-out rows" in captured.err
    # The demo model was trained on sums.
    loaded = ntl.load(table.parent / "out", client)
    assert isinstance(loaded, ntl.NumberRegressor)
    assert loaded.predict(["What is 3 + 4?"]).tolist() == pytest.approx([7], abs=0.5)
    assert main([*arguments[:-1], str(table)]) == 1
    assert "is not a directory" in capsys.readouterr().err


def test_the_program_serves_a_checkpoint_meanwhile(program, table, capsys):
    checkpoint = Path(__file__).parents[2] / "models/tests/data/reference/t5-ntl-was"
    table.write_text("\n".join(["TEXT,PRICE", *(f"What is {a} + {a}?,{2 * a}" for a in range(40))]))
    arguments = ["fit", str(table), "--text", "TEXT", "--target", "PRICE", "--out", str(table.parent / "out")]
    served = ["--model", str(checkpoint), "--server", program, "--examples", "0", "--template", "{text}", "--quiet"]
    assert main([*arguments, *served]) == 0
    captured = capsys.readouterr()
    assert "0 examples" in captured.out and captured.err == ""


def test_an_encoder_has_vectors_but_no_prompts(program, table, capsys):
    checkpoint = Path(__file__).parents[2] / "models/tests/data/heads/bert-classes"
    table.write_text("\n".join(["TEXT,PRICE", *(f"What is {a} + {a}?,{2 * a}" for a in range(40))]))
    arguments = ["fit", str(table), "--text", "TEXT", "--target", "PRICE", "--out", str(table.parent / "out")]
    assert main([*arguments, "--model", str(checkpoint), "--server", program, "--examples", "0", "16", "--quiet"]) == 0
    candidates = capsys.readouterr().out.partition("rows that choose\n\n")[2].splitlines()
    ridge, none, many = (line for line in candidates if line.startswith("| bert-classes, "))
    assert float(ridge.split("|")[2]) > 0
    assert all("`model` predicts 3 labels, neither a text nor a number" in line for line in (none, many))


def test_without_scikit_learn_the_error_names_the_extra():
    code = "import sys; sys.modules['sklearn'] = None; from ntl.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["fit", "rows.csv", "--text", "a", "--target", "b", "--out", "out"]
    ended = subprocess.run([sys.executable, "-c", code, *arguments], check=False, capture_output=True, text=True)
    assert ended.returncode == 1 and "pip install 'ntl-server[sklearn]'" in ended.stderr
