"""The notebooks run with the demo checkpoint, and what their texts say about the results is true."""

import os
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
CELL_SECONDS = 300
# For each notebook: a last cell, which fails if a statement of its texts is wrong.
CLAIMS = {
    "prices": """
assert covered(own) < 0.2 and 0.82 <= covered(calibrated) <= 0.98
rmse = table["RMSE"]
assert abs(rmse["TF-IDF ridge"] / rmse["median"] - 1) < 0.15
assert rmse["demo model, sum"] < 0.5 * rmse["TF-IDF ridge"]
assert 1 < rmse["demo model, sum"] / rmse["linear regression on both columns"] < 1.3
assert rmse["demo model, sentences"] > rmse["median"]
assert covered(intervals) > 0.8 and np.diff(intervals).mean() > 4 * np.diff(calibrated).mean()
""",
    "judge": """
pearson = on_reviews["Pearson"]
assert pearson["mean"] > pearson["median"] > 0 and pearson["mean"] > pearson["mode"] + 0.05
assert on_reviews["different scores"][["median", "mode"]].max() <= 5
assert of_intervals["coverage"].min() > 0.9 and of_intervals.loc["own"].equals(of_intervals.loc["calibrated"])
assert on_people["Pearson"].abs().max() < 0.3
assert all(float(found.split(" to ")[0]) < 0 < float(found.split(" to ")[1]) for found in on_people["95% interval"])
assert on_products.loc["own", "coverage"] < 0.8 < on_products.loc["calibrated", "coverage"]
assert on_products.loc["calibrated", "width"] > max(4, 1.6 * on_products.loc["constant", "width"])
""",
    "decisions": """
assert answers["choice"].choice == "3" and known.mass.closed > 0.9 and unknown.mass.closed < 1e-6
assert ranking["probability of at most two stars"] > max(ranking["mode"] + 0.05, ranking["logistic regression on words"])
assert costs["probability at least 1/4"] == min(costs.values())
""",
}


def test_every_notebook_is_tested_and_has_no_outputs():
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(CLAIMS)
    for name in CLAIMS:
        notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
        nbformat.validate(notebook)
        assert not [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]


@pytest.mark.parametrize("name", CLAIMS)
def test_a_notebook_runs_and_its_statements_are_true(name, program, tmp_path, monkeypatch):
    (tmp_path / "ntl-server").symlink_to(Path(program).resolve())
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    # The kernel of this environment, without files of the user.
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(CLAIMS[name]))
    where = {"metadata": {"path": str(NOTEBOOKS)}}
    nbclient.NotebookClient(notebook, timeout=CELL_SECONDS, kernel_name="python3", resources=where).execute()
    pictures = [output for cell in notebook.cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
    assert len(pictures) >= 2
