"""lm-evaluation-harness: the task group `ntl`, and a program with the model `ntl-completions`.

    python -m ntl.integrations.lm_eval run --tasks ntl --model_args model=NAME,base_url=http://127.0.0.1:8000/v1/completions
"""

from pathlib import Path

# The directory of the task group, for lm-eval's `--include_path`.
TASKS = Path(__file__).parent / "tasks"
