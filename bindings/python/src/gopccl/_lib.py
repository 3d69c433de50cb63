"""Loads the shared library and keeps what belongs to the process."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, List, Optional

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


# The library may be inside of it whenever the interpreter ends: it is never freed.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_poll))


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
    """Call a C function and return its result code.

    What a signal handler raises meanwhile is raised here, also if the call has
    succeeded: what it did is done.
    """
    if os.getpid() != _home:
        raise RuntimeError(f"{name}: gopccl was loaded before this process was forked; import it in the child instead")
    _interrupts.value = None  # one of an earlier call that nobody asked for is not this one's
    result: int = getattr(C, name)(*args)
    if _ending and threading.current_thread().daemon:
        _stop_here()
    interrupt = pending_interrupt()
    if interrupt is not None:
        try:
            raise interrupt
        finally:
            del interrupt  # else it and this frame keep each other, and the caller's buffers, alive
    return result


# What has to be closed before the interpreter ends, in order.
_at_exit: List[Callable[[], None]] = []
_ending = False


def at_exit(f: Callable[[], None]) -> None:
    """Have ``f`` called when the interpreter ends, before the library is left alone."""
    _at_exit.append(f)


def _stop_here() -> None:
    # The interpreter is about to end, and with it daemon threads: this one is told
    # nothing of a call that ended because the communicator was closed under it.
    while True:
        time.sleep(3600)


def _end() -> None:
    """Leave nothing of the library's behind that uses the interpreter or its objects.

    Threads of the library that polled while the interpreter is taken apart would
    crash, and operations in flight would send memory that is free by then.
    """
    global _ending
    if not in_home_process():
        return
    _ending = True
    if _set_poll is not None:
        _set_poll(ffi.NULL)
    for f in _at_exit:
        try:
            f()
        except BaseException:  # a second Ctrl-C, say: the others are closed all the same
            pass


call("pcclInit")
_set_poll = extra("gopcclSetPoll")
if _set_poll is not None:
    _set_poll(_poll)
atexit.register(_end)
