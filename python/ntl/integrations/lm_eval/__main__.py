"""lm-evaluation-harness on ntl-server: lm-eval's `local-completions` with the length of the served model, and errors in words.

    python python/integrations/lm_eval/ntl_completions.py run --model ntl-completions --tasks ... --model_args base_url=...

`max_length` comes from the server unless `--model_args` names it. If the server rejects a request, the program prints its message and ends
with exit code 1."""

import json
import logging
import re
import sys

import requests
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.registry import register_model
from lm_eval.models.openai_completions import LocalCompletionsAPI

# lm-eval logs the body of a failed response and then raises the status alone.
FAILED = re.compile(r"API request failed! Status code: (\d+), Response text: (.*)\. Retrying\.\.\.", re.DOTALL)


@register_model("ntl-completions")
class NtlCompletions(LocalCompletionsAPI):
    def __init__(self, base_url, model=None, max_length=None, auth_token=None, **arguments):
        max_length = max_length or context_length(base_url, model, auth_token)
        super().__init__(base_url=base_url, model=model, max_length=max_length, auth_token=auth_token, **arguments)


def context_length(base_url, model, auth_token):
    """The maximum number of prompt tokens of the model."""
    url = base_url.removesuffix("/").removesuffix("/v1/completions") + "/tokenizer_info"
    headers = {"authorization": f"Bearer {auth_token}"} if auth_token else {}
    answer = requests.get(url, params={"model": model} if model else {}, headers=headers, timeout=60)
    answer.raise_for_status()
    return answer.json()["model_max_length"]


class FirstError(logging.Handler):
    """Keeps the first error that the server returned."""

    message = None

    def emit(self, record):
        failed = FAILED.fullmatch(record.getMessage())
        if failed and self.message is None:
            self.message = f"the server returned {failed[1]}: {text_of(failed[2])}"


def text_of(body):
    try:
        return json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return body


def main():
    first = FirstError()
    logging.getLogger("lm_eval").addHandler(first)
    try:
        cli_evaluate()
    except Exception:
        if first.message is None:
            raise
        # The other requests in flight have failed, too, and asyncio would log their tracebacks.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        sys.exit(f"error: {first.message}")


if __name__ == "__main__":
    main()
