"""Numbers with their distributions from language models on an ntl-server.

    import ntl

    with ntl.serve() as client:
        stars = client.number("How many stars: decent room, opinions are divided?")
        print(stars.mean, stars.interval(0.9))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .client import AsyncClient, Client
from .distribution import Distribution, Mass, mean_crps
from .errors import NoNumber, NtlError, RequestRejected, ServerFailed, UnexpectedResponse, Unreachable
from .server import serve

if TYPE_CHECKING:
    from .regressor import NumberRegressor

__all__ = [
    "AsyncClient",
    "Client",
    "Distribution",
    "Mass",
    "NoNumber",
    "NtlError",
    "NumberRegressor",
    "RequestRejected",
    "ServerFailed",
    "UnexpectedResponse",
    "Unreachable",
    "mean_crps",
    "serve",
]


def __getattr__(name: str) -> Any:
    """Loads the estimator only when it is used: it needs scikit-learn and numpy."""
    if name == "NumberRegressor":
        from .regressor import NumberRegressor

        return NumberRegressor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
