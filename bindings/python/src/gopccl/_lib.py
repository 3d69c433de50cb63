"""Loads the shared library and keeps what belongs to the process."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any, Optional

from cffi import FFI

from gopccl._cdef import ABI, EXTRAS

ffi: Any = FFI()
ffi.cdef(ABI)
ffi.cdef(EXTRAS)

_NAMES = {
    "win32": ("gopccl.dll", "pccl.dll"),
    "darwin": ("libgopccl.dylib", "libpccl.dylib"),
}


def find_library() -> str:
    """Path of the library: ``GOPCCL_LIBRARY`` if set, else the package's own."""
    override = os.environ.get("GOPCCL_LIBRARY")
    if override:
        return override
    here = Path(__file__).parent / "lib"
    names = _NAMES.get(sys.platform, ("libgopccl.so", "libpccl.so"))
    for name in names:
        if (here / name).exists():
            return str(here / name)
    raise ImportError(
        f"gopccl: no {names[0]} in {here}; install the package with pip (needs the Go toolchain) "
        "or name a library in GOPCCL_LIBRARY"
    )


path = find_library()
C: Any = ffi.dlopen(path)

_home = os.getpid()
_interrupts = threading.local()


def _on_interrupt(kind: Any, value: BaseException, traceback: Any) -> bool:
    _interrupts.value = value
    return True


@ffi.callback("int(void)", error=1, onerror=_on_interrupt)  # type: ignore[untyped-decorator]
def _poll() -> int:
    # Signal handlers of Python run between the bytecodes of the main thread.
    # What they raise (KeyboardInterrupt) ends up in _on_interrupt.
    for _ in range(2):
        pass
    return 0


def extra(name: str) -> Any:
    """A function that only libgopccl has; None in a plain libpccl."""
    try:
        return getattr(C, name)
    except AttributeError:  # a plain libpccl
        return None


_last_error = extra("gopcclLastError")


def last_error_message() -> str:
    """Message of this thread's last failed call; empty if the library keeps none."""
    if _last_error is None:
        return ""
    text: str = ffi.string(_last_error()).decode("utf-8", "replace")
    return text


def pending_interrupt() -> Optional[BaseException]:
    """Take the exception that a signal handler raised during this thread's last call."""
    value: Optional[BaseException] = getattr(_interrupts, "value", None)
    if value is not None:
        _interrupts.value = None
    return value


def in_home_process() -> bool:
    """False in a child made by fork: its copy of the library has lost its threads."""
    return os.getpid() == _home


def call(name: str, *args: Any) -> None:
    """Call a C function; a result other than success raises.

    The GIL is released during the call. If a signal handler raises, the call is
    cancelled and that exception is raised.
    """
    result = raw_call(name, *args)
    if result != 0:
        from gopccl._errors import PCCLError

        PCCLError.check(result, name)


def raw_call(name: str, *args: Any) -> int:
    """Call a C function and return its result code."""
    if os.getpid() != _home:
        raise RuntimeError(f"{name}: gopccl was loaded before this process was forked; import it in the child instead")
    result: int = getattr(C, name)(*args)
    interrupt = pending_interrupt()
    if interrupt is not None:
        try:
            raise interrupt
        finally:
            del interrupt  # else it and this frame keep each other, and the caller's buffers, alive
    return result


call("pcclInit")
_set_poll = extra("gopcclSetPoll")
if _set_poll is not None:
    _set_poll(_poll)
