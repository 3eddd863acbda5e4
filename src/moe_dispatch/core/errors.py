"""Expected outcomes as exceptions: each carries one message for a person and the fix.

The command line prints `str(error)` and exits with `exit_code`; a traceback is a bug in this package.
"""

from __future__ import annotations


class MoeDispatchError(Exception):
    """Something expected went wrong.

    Args:
        message: the thing, its value and what is allowed, in one sentence.
        fix: what the reader can do about it, or an empty string when the message says it all.
    """

    exit_code = 1

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n  fix: {self.fix}" if self.fix else self.message


class UsageError(MoeDispatchError):
    """The request itself cannot be meant: unknown name, contradictory options, an impossible layout."""

    exit_code = 2


class WorkloadError(UsageError):
    """A model shape, layout or routing that is unknown, no MoE, or impossible (EP does not divide the experts, ...)."""


class UnsupportedByBackend(MoeDispatchError):
    """The backend exists but cannot do what was asked (dtype, capacity, fp8, ...). Never answered by a fall-back."""


class StoreError(MoeDispatchError):
    """The record store cannot be read or written (full, read-only, foreign schema version)."""


class LaunchError(MoeDispatchError):
    """Ranks could not be started or did not find each other (port in use, rendezvous time-out)."""


class MissingDependency(MoeDispatchError):
    """An optional dependency of the requested command is absent; the fix names the extra to install."""
