"""Adapters whose tool is not installed say which packages they need."""

import importlib
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "tool", "packages"),
    [
        ("ntl.integrations.deepeval", "deepeval", "deepeval openai"),
        ("ntl.integrations.inspect_ai", "inspect_ai", "inspect_ai openai"),
        ("ntl.integrations.lm_eval.__main__", "lm_eval", "'lm_eval[api]'"),
    ],
)
def test_an_adapter_names_the_packages_that_it_lacks(monkeypatch, module, tool, packages):
    # None in `sys.modules` makes the import fail, also if the package is installed.
    for name in [tool, *(loaded for loaded in sys.modules if loaded.startswith(f"{tool}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ImportError) as raised:
        importlib.import_module(module)
    assert str(raised.value).endswith(f": pip install {packages}")


def test_the_client_loads_no_adapter():
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, ntl; print([name for name in sys.modules if 'integrations' in name])"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert loaded.stdout.strip() == "[]"
