"""Results of the library and the exceptions made of them."""

from __future__ import annotations

from enum import Enum


class Result(Enum):
    """Result codes, numbered as in PCCL 1.0.0."""

    SUCCESS = 0
    NOT_INITIALIZED = 1
    INTERNAL_ERROR = 2
    INVALID_ARGUMENT = 3
    INVALID_USAGE = 4
    TOO_FEW_PEERS = 5
    MASTER_CONNECTION_FAILED = 6
    RANK_CONNECTION_FAILED = 7
    RANK_CONNECTION_LOST = 8
    NO_SHARED_STATE_AVAILABLE = 9
    PENDING_ASYNC_OPS = 10
    UPDATE_TOPOLOGY_FAILED = 11
    TOPOLOGY_OPTIMIZATION_FAILED = 12


class PCCLError(Exception):
    """A call of the library failed.

    ``result`` is the code, ``func_name`` the C function, ``detail`` the
    library's full message (operation, phase, peer, cause, hint); it may be empty.
    """

    def __init__(self, result: Result, func_name: str, detail: str = "") -> None:
        super().__init__(result, func_name, detail)
        self.result = result
        self.func_name = func_name
        self.detail = detail

    def __str__(self) -> str:
        text = f"{self.func_name} failed with error: {self.result.name}"
        return f"{text}: {self.detail or self.result.name}"

    @staticmethod
    def check(result: int, func_name: str) -> None:
        """Raise the error of a result code; SUCCESS (0) passes."""
        if result == 0:
            return
        from gopccl import _lib

        try:
            code = Result(result)
        except ValueError:
            code = Result.INTERNAL_ERROR
        raise PCCLError(code, func_name, _lib.last_error_message())


class ArgumentError(ValueError, AssertionError):
    """An argument is wrong; the text names it.

    Programs written for pypccl catch AssertionError in some places and
    ValueError in others: this is both.
    """
