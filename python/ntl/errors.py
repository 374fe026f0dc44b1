"""Exceptions of this package. All of them derive from NtlError."""

from __future__ import annotations


class NtlError(Exception):
    """Base class of all errors of this package."""


class RequestRejected(NtlError):
    """The server returned an error. `field` is the request's field that the error is about, if there is one."""

    def __init__(self, status: int, message: str, field: str | None = None, code: str | None = None) -> None:
        super().__init__(f"{message} (HTTP {status})")
        self.status = status
        self.message = message
        self.field = field
        self.code = code


class Unreachable(NtlError):
    """The server could not be reached, or sent no complete response, in all attempts."""


class UnexpectedResponse(NtlError):
    """The server's response is not one of ntl-server."""


class NoNumber(NtlError):
    """The model wrote no number. The message is the server's reason."""


class ServerFailed(NtlError):
    """A server that `serve` started ended before it was ready. The message has the last lines of its log."""
