"""lm-evaluation-harness on ntl-server: lm-eval's `local-completions` with the length of the served model, and errors in words.

    python -m ntl.integrations.lm_eval run --tasks ntl --model_args model=NAME,base_url=...

`run` has the model `ntl-completions` and the task group `ntl` unless `--model` and `--include_path` are given.
`max_length` comes from the server unless `--model_args` names it. If the server rejects a request, the program
prints its message and ends with exit code 1."""
# pyright: reportMissingImports=false

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Sequence
from typing import Any

import httpx

from . import TASKS

try:
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.registry import register_model
    from lm_eval.models.openai_completions import LocalCompletionsAPI
except ImportError as error:
    raise ImportError("ntl.integrations.lm_eval needs lm-evaluation-harness: pip install 'lm_eval[api]'") from error

# lm-eval logs the body of a failed response and then raises the status alone.
FAILED = re.compile(r"API request failed! Status code: (\d+), Response text: (.*)\. Retrying\.\.\.", re.DOTALL)


@register_model("ntl-completions")
class NtlCompletions(LocalCompletionsAPI):
    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        max_length: int | None = None,
        auth_token: str | None = None,
        **arguments: Any,
    ) -> None:
        max_length = max_length or context_length(base_url, model, auth_token)
        super().__init__(base_url=base_url, model=model, max_length=max_length, auth_token=auth_token, **arguments)


def context_length(base_url: str, model: str | None, auth_token: str | None) -> int:
    """The maximum number of prompt tokens of the model."""
    url = base_url.removesuffix("/").removesuffix("/v1/completions") + "/tokenizer_info"
    headers = {"authorization": f"Bearer {auth_token}"} if auth_token else {}
    response = httpx.get(url, params={"model": model} if model else {}, headers=headers, timeout=60)
    response.raise_for_status()
    return int(response.json()["model_max_length"])


class FirstError(logging.Handler):
    """Keeps the first error that the server returned."""

    message: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        failed = FAILED.fullmatch(record.getMessage())
        if failed and self.message is None:
            self.message = f"the server returned {failed[1]}: {text_of(failed[2])}"


def text_of(body: str) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body


def with_defaults(arguments: Sequence[str]) -> list[str]:
    """The arguments of `lm_eval`, with those that `run` lacks."""
    completed = list(arguments)
    if completed[:1] == ["run"]:
        for flag, value in (("--model", "ntl-completions"), ("--include_path", str(TASKS))):
            if not any(argument == flag or argument.startswith(f"{flag}=") for argument in arguments):
                completed += [flag, value]
    return completed


def main() -> None:
    first = FirstError()
    logging.getLogger("lm_eval").addHandler(first)
    sys.argv[1:] = with_defaults(sys.argv[1:])
    try:
        # Without lm-eval, pyright takes this module for it.
        cli_evaluate()  # pyright: ignore[reportCallIssue]
    except Exception:
        if first.message is None:
            raise
        # The other requests in flight have failed, too, and asyncio would log their tracebacks.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        sys.exit(f"error: {first.message}")


if __name__ == "__main__":
    main()
