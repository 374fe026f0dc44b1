"""The program `ntl`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .client import Client
from .errors import NtlError
from .runs import TRACKERS, log_run
from .server import serve


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    try:
        parsed.run(parsed)
    except (NtlError, ImportError, OSError, ValueError) as error:
        print(f"ntl: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("ntl", description="Numbers with their distributions from language models.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    fit = commands.add_parser(
        "fit",
        help="choose and calibrate a predictor for labelled rows",
        description="Compares prompts, vectors and adapters of language models with plain models on labelled rows, writes "
        "the best one with a report to OUT, and prints the report. An interrupted call continues with the same arguments.",
    )
    fit.set_defaults(run=_fit)
    fit.add_argument("rows", metavar="FILE", help="separated values with a header line")
    fit.add_argument("--text", required=True, metavar="COLUMN", help="column of the texts")
    fit.add_argument("--target", required=True, metavar="COLUMN", help="column of the numbers")
    fit.add_argument("--out", required=True, metavar="DIR", help="directory for the result")
    where = fit.add_mutually_exclusive_group()
    where.add_argument("--endpoint", metavar="URL", help="a running server; its key comes from NTL_API_KEY")
    where.add_argument("--model", metavar="MODEL", help="checkpoint to serve meanwhile, as for ntl-server --model")
    fit.add_argument("--name", metavar="NAME", help="model of the endpoint, if it has several")
    fit.add_argument(
        "--server", metavar="PROGRAM", help="ntl-server of --model and --lora (default: the installed one)"
    )
    fit.add_argument(
        "--examples", type=int, nargs="*", default=[4, 16], metavar="N", help="examples per prompt to compare (4 16)"
    )
    fit.add_argument(
        "--lora", metavar="DIR", help="decoder of which a LoRA adapter is trained too; needs ntl-server[lora]"
    )
    fit.add_argument("--template", metavar="TEXT", help="prompt of one row with {text}, up to the number")
    fit.add_argument("--coverage", type=float, default=0.9, metavar="SHARE", help="coverage of intervals (0.9)")
    fit.add_argument("--delimiter", metavar="CHARACTER", help="default: found in the header line")
    fit.add_argument("--encoding", metavar="NAME", help="default: UTF-8, or UTF-16 with a byte order mark")
    fit.add_argument("--decimal", choices=[".", ","], default=".", help="decimal sign of the numbers (.)")
    fit.add_argument("--seed", type=int, default=0, help="seed of the division of the rows (0)")
    fit.add_argument("--quiet", action="store_true", help="no progress on standard error")
    log = commands.add_parser(
        "log",
        help="write a finished run of ntl-eval to W&B or MLflow",
        description="Writes the reports in a run's directory to a tracker, as one run for each task and model.",
    )
    log.set_defaults(run=_log)
    log.add_argument("folder", metavar="RUN", help="directory of a run, or of several")
    log.add_argument("--to", required=True, choices=TRACKERS, help="package that writes it, with its usual settings")
    log.add_argument("--project", default="ntl-eval", metavar="NAME", help="project or experiment (ntl-eval)")
    return parser


def _log(parsed: argparse.Namespace) -> None:
    for name in log_run(parsed.folder, parsed.to, project=parsed.project):
        print(name)


def _fit(parsed: argparse.Namespace) -> None:
    from . import fit

    with _client(parsed) as client:
        found = fit(
            parsed.rows,
            text=parsed.text,
            target=parsed.target,
            out=parsed.out,
            client=client,
            examples=parsed.examples,
            lora=parsed.lora,
            server=parsed.server,
            template=parsed.template,
            coverage=parsed.coverage,
            delimiter=parsed.delimiter,
            encoding=parsed.encoding,
            decimal=parsed.decimal,
            seed=parsed.seed,
            progress=not parsed.quiet,
        )
    print(found.report)


@contextmanager
def _client(parsed: argparse.Namespace) -> Iterator[Client | None]:
    if parsed.endpoint is not None:
        with Client(parsed.endpoint, parsed.name, api_key=os.environ.get("NTL_API_KEY")) as client:
            yield client
    elif parsed.model is not None:
        with serve(parsed.model, server=parsed.server) as client:
            yield client
    else:
        yield None
