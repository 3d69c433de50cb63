"""CUDA memory: what the loaded library can do with it, and the streams that calls are ordered with.

Nothing here needs PyTorch; where it is loaded, its current streams count.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any, Iterable, List, Optional

from gopccl._errors import ArgumentError
from gopccl._lib import call, extra, ffi

_BUILT: Optional[bool] = None


def is_available() -> bool:
    """True if the library takes CUDA tensors; there may still be none."""
    global _BUILT
    if _BUILT is None:
        info = ffi.new("pcclBuildInfo_t *")
        call("pcclGetBuildInfo", info)
        _BUILT = bool(info.has_cuda_support)
    return _BUILT


def device_of(address: int) -> Optional[int]:
    """Number of the CUDA device whose memory ``address`` is in; None for other memory."""
    if extra("gopcclFindDevice") is None:
        raise ArgumentError("this library cannot tell where memory is; use libgopccl")
    out = ffi.new("int *")
    call("gopcclFindDevice", ffi.cast("void *", address), out)
    number: int = out[0]
    return number if number >= 0 else None


def require(where: str) -> None:
    """ArgumentError if the library does not take CUDA tensors; ``where`` names the tensor's device."""
    if not is_available():
        raise ArgumentError(
            f"the tensor is on {where}, and this library was built without CUDA; "
            "copy it to the CPU first, or build gopccl for Linux or Windows without GOFLAGS=-tags=nocuda"
        )


def current_stream(device: Optional[int]) -> Any:
    """PyTorch's current stream on a device (None: the current one), or None: the legacy default stream."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return torch.cuda.current_stream(device)


def _handle(stream: Any) -> int:
    return int(stream.cuda_stream) if stream is not None else 0


def order(streams: Iterable[Any]) -> None:
    """Make this thread's next call wait for what is queued on ``streams`` (None: the legacy default stream).

    The library orders a call behind one stream. If there are several, or the library is
    a plain libpccl, which knows the default stream alone, they are waited for here.
    """
    set_stream = extra("gopcclSetStream")
    distinct = {_handle(s): s for s in streams}
    if len(distinct) == 1 and set_stream is not None:
        set_stream(ffi.cast("void *", next(iter(distinct))))
        return
    for s in distinct.values():
        if s is not None:
            s.synchronize()
    if set_stream is not None:
        set_stream(ffi.NULL)


def streams_of(tensors: Iterable[Any]) -> List[Any]:
    """PyTorch's current streams of the CUDA devices that PyTorch tensors, or lists of them, are on, one per device."""
    found = {}
    for t in itertools.chain.from_iterable(t if isinstance(t, list) else [t] for t in tensors):
        if t.device.type == "cuda" and t.device.index not in found:
            found[t.device.index] = current_stream(t.device.index)
    return [s for s in found.values() if s is not None]
