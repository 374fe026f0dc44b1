"""Numbers with their distributions from language models on an ntl-server.

    import ntl

    with ntl.serve() as client:
        stars = client.number("How many stars: decent room, opinions are divided?")
        print(stars.mean, stars.interval(0.9))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .client import AsyncClient, Client
from .columns import predict
from .decisions import (
    Choice,
    ChoiceAnswer,
    Interval,
    Number,
    NumberAnswer,
    OptionSet,
    Predicate,
    PredicateAnswer,
    Refusal,
    Score,
    ScoreAnswer,
)
from .distribution import Distribution, Mass, Sampled, mean_crps
from .errors import NoNumber, NtlError, RequestRejected, ServerFailed, UnexpectedResponse, Unreachable
from .results import Candidate, CandidateScores, ChatAnswer, TargetScore
from .runs import log_run
from .server import serve

if TYPE_CHECKING:
    from .classifier import DecisionClassifier
    from .fitting import Fit, fit, load
    from .regressor import NumberRegressor

__all__ = [
    "AsyncClient",
    "Candidate",
    "CandidateScores",
    "ChatAnswer",
    "Choice",
    "ChoiceAnswer",
    "Client",
    "DecisionClassifier",
    "Distribution",
    "Fit",
    "Interval",
    "Mass",
    "NoNumber",
    "NtlError",
    "Number",
    "NumberAnswer",
    "NumberRegressor",
    "OptionSet",
    "Predicate",
    "PredicateAnswer",
    "Refusal",
    "RequestRejected",
    "Sampled",
    "Score",
    "ScoreAnswer",
    "ServerFailed",
    "TargetScore",
    "UnexpectedResponse",
    "Unreachable",
    "fit",
    "load",
    "log_run",
    "mean_crps",
    "predict",
    "serve",
]


# They need scikit-learn and numpy, so they are loaded when they are used.
ESTIMATORS = {
    "DecisionClassifier": ".classifier",
    "Fit": ".fitting",
    "NumberRegressor": ".regressor",
    "fit": ".fitting",
    "load": ".fitting",
}


def __getattr__(name: str) -> Any:
    if name not in ESTIMATORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(ESTIMATORS[name], __name__), name)
    except ImportError as error:
        raise ImportError(f"ntl.{name} needs scikit-learn and numpy: pip install 'ntl-server[sklearn]'") from error
