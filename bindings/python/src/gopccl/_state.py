"""Shared state: named tensors that a group keeps equal."""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from gopccl import cuda
from gopccl._buffers import buffer_of, is_numpy, is_torch
from gopccl._errors import ArgumentError, PCCLError, Result
from gopccl._lib import call, extra, ffi
from gopccl._types import DataType, DeviceType, member


def _check_name(name: str) -> None:
    if "\0" in name:  # C would cut it there
        raise ArgumentError(f"tensor {name!r}: the name has a NUL character")


Path = Union[str, "os.PathLike[str]"]


def _text(f: Callable[[Any, int, Any], None], room: int) -> bytes:
    """What ``f`` writes to the buffer, capacity and place for the size that it is given; called again if it is more."""
    size = ffi.new("size_t *")
    while True:
        out = ffi.new("char[]", room)
        f(out, room, size)
        if size[0] <= room:
            found: bytes = ffi.string(out)
            return found
        room = size[0]


def latest_checkpoint(directory: Path) -> Optional[str]:
    """Path of the newest sound checkpoint in ``directory``; None if there is none at all.

    Damaged ones that are newer are named in the library's log. PCCLError with INTERNAL_ERROR if
    none is sound, or the system fails.
    """
    try:
        path = _text(lambda *out: call("gopcclFindCheckpoint", os.fsencode(directory), *out), 1 << 16)
    except PCCLError as err:
        if err.result is Result.NO_SHARED_STATE_AVAILABLE:
            return None
        raise
    return os.fsdecode(path)


class TensorInfo:
    """One tensor of a shared state: ``numel`` elements of ``dtype`` at ``data_ptr``.

    ``device_type`` says whether that is an address of the host or of a CUDA device.
    Made by one of the class methods it keeps the memory alive, and a synchronisation
    raises ArgumentError if the tensor has other memory by then (``t.data = ...``,
    ``t.resize_()``). With ``allow_content_inequality`` peers may hold different contents.
    """

    def __init__(
        self,
        name: str,
        data_ptr: int,
        *,
        numel: int,
        dtype: DataType,
        device_type: DeviceType = DeviceType.CPU,
        allow_content_inequality: bool = False,
    ) -> None:
        _check_name(name)
        if not data_ptr and numel:
            raise ArgumentError(f"tensor {name!r}: data_ptr is 0")
        if numel < 0:
            raise ArgumentError(f"tensor {name!r}: numel is {numel}")
        device: Optional[int] = None
        if member(device_type, DeviceType, f"device_type of tensor {name!r}") == DeviceType.CUDA.value:
            try:
                cuda.require("a CUDA device")
            except ArgumentError as err:
                raise ArgumentError(f"tensor {name!r}: {err}") from None
            device = cuda.device_of(data_ptr) if numel else None
            if numel and device is None:
                raise ArgumentError(f"tensor {name!r}: data_ptr {data_ptr:#x} is not CUDA device memory")
        self.name = name
        self.data_ptr = data_ptr
        self.numel = numel
        self.dtype = dtype
        self.device_type = device_type
        self.allow_content_inequality = allow_content_inequality
        self._device = device
        self._owner: Any = None
        self._tensor: Any = None  # whose memory must still be what was noted

    @classmethod
    def from_buffer(cls, tensor: Any, name: str, *, allow_content_inequality: bool = False) -> "TensorInfo":
        """Name a NumPy array, PyTorch tensor, DLPack tensor or writable buffer (contiguous, any shape)."""
        b = buffer_of(tensor, f"tensor {name!r}", writable=True)
        info = cls(
            name,
            b.address,
            numel=b.numel,
            dtype=b.dtype,
            device_type=DeviceType.CPU if b.device is None else DeviceType.CUDA,
            allow_content_inequality=allow_content_inequality,
        )
        info._owner = b.owner
        if is_torch(tensor) or is_numpy(tensor):
            info._tensor = tensor
        return info

    @classmethod
    def from_torch(cls, tensor: Any, name: str, *, allow_content_inequality: bool = False) -> "TensorInfo":
        """Name a contiguous PyTorch tensor of any shape, on the CPU or a CUDA device."""
        return cls.from_buffer(tensor, name, allow_content_inequality=allow_content_inequality)

    @classmethod
    def from_numpy(cls, tensor: Any, name: str, *, allow_content_inequality: bool = False) -> "TensorInfo":
        """Name a contiguous, writable NumPy array of any shape."""
        return cls.from_buffer(tensor, name, allow_content_inequality=allow_content_inequality)

    def check(self) -> None:
        """ArgumentError if the tensor has got other memory, or another length or type, since it was named."""
        if self._tensor is None:
            return
        b = buffer_of(self._tensor, f"tensor {self.name!r}", writable=True)
        if (b.address, b.numel, b.dtype) != (self.data_ptr, self.numel, self.dtype):
            raise ArgumentError(
                f"tensor {self.name!r} was replaced: it has {b.numel} elements of {b.dtype.name} at {b.address:#x}, "
                f"and had {self.numel} of {self.dtype.name} at {self.data_ptr:#x}; "
                "change tensors in place, or make a new TensorInfo"
            )


class SharedState:
    """An ordered list of tensors and the revision (a counter) of their content."""

    def __init__(self, tensor_infos: Sequence[TensorInfo]) -> None:
        if not tensor_infos:
            raise ArgumentError("tensor_infos is empty")
        self.tensor_infos: List[TensorInfo] = list(tensor_infos)
        self._revision = 0
        self._torn: Tuple[str, ...] = ()

    @property
    def revision(self) -> int:
        """Revision of the content; peers with a lower one are brought up to date."""
        return self._revision

    @revision.setter
    def revision(self, value: int) -> None:
        if not 0 <= value < 1 << 64:
            raise ArgumentError(f"revision is {value}, must be a 64 bit number, at least 0")
        self._revision = value

    @property
    def torn(self) -> Tuple[str, ...]:
        """Names of the tensors that a synchronisation which failed has left overwritten.

        With one of them the state is a mixture of two states: do not compute with it. It
        only receives, and is never elected, until a synchronisation has succeeded or
        :meth:`restored` is called.
        """
        return self._torn

    def restored(self) -> None:
        """Say that all tensors, and ``revision``, were loaded from a checkpoint: nothing is torn."""
        self._torn = ()
        self._tell(None)

    def push_revision(self) -> None:
        """Add one to the revision: once per change of the content, before the next sync."""
        self.revision += 1

    def save(self, directory: Path, *, keep: int = 0, meta: Optional[Mapping[str, str]] = None) -> str:
        """Write tensors and revision to a new file in ``directory``, which is made if need be; return its path.

        The file is whole and on stable storage then; a crash before leaves older ones as they were.
        With ``keep`` above 0 only the ``keep`` newest remain. ``meta`` is the caller's. The format is
        that of Go's ``core/checkpoint``. PCCLError with INVALID_USAGE if the state is torn, with
        INTERNAL_ERROR if the system fails.
        """
        if not 0 <= keep < 1 << 31:
            raise ArgumentError(f"keep is {keep}, must be a number of files, or 0 for all")
        about = {} if meta is None else dict(meta)
        if not all(isinstance(k, str) and isinstance(v, str) for k, v in about.items()):
            raise ArgumentError(f"meta is {about!r}, must have strings as keys and values")
        self.order()
        self._prepare()
        state, *keep_alive = self.to_c()
        text = json.dumps(about).encode()
        path = _text(lambda *out: call("gopcclSaveCheckpoint", state, os.fsencode(directory), keep, text, *out), 1 << 16)
        del keep_alive
        return os.fsdecode(path)

    def load(self, path: Path) -> Dict[str, str]:
        """Read a checkpoint into the tensors and ``revision``; return its ``meta``. Nothing is torn then.

        PCCLError with INVALID_ARGUMENT if there is no such file or it has other tensors, with INTERNAL_ERROR
        if it is damaged; nothing has changed then.
        """
        self.order()
        self._prepare()
        state, *keep_alive = self.to_c()
        try:
            text = _text(lambda *out: call("gopcclLoadCheckpoint", state, os.fsencode(path), *out), 1 << 16)
        except BaseException:
            self._failed(state)
            raise
        finally:
            del keep_alive
        self._torn, self.revision = (), state.revision
        meta: Dict[str, str] = json.loads(text)
        return meta

    def order(self) -> None:
        """Make the next synchronisation wait for PyTorch's current streams on the devices of the tensors."""
        devices = {info._device for info in self.tensor_infos if info._device is not None}
        if devices:
            cuda.order(cuda.current_stream(d) for d in devices)

    def _tell(self, torn: Any) -> None:
        """Tell the library which tensors are torn: a C array of flags, None for none."""
        if extra("gopcclSetTorn") is not None:
            state, *keep = self.to_c()
            call("gopcclSetTorn", state, ffi.NULL if torn is None else torn)
            del keep

    def _prepare(self) -> None:
        """Before a synchronisation: what is torn stays so until :meth:`restored` is called."""
        if self._torn:
            self._tell(ffi.new("bool[]", [info.name in self._torn for info in self.tensor_infos]))

    def _failed(self, state: Any) -> None:
        """After a synchronisation of ``state`` that failed."""
        if extra("gopcclGetTorn") is not None:
            flags = ffi.new("bool[]", len(self.tensor_infos))
            call("gopcclGetTorn", state, flags)
            self._torn = tuple(info.name for info, torn in zip(self.tensor_infos, flags) if torn)

    def _whole(self) -> bool:
        """After a synchronisation, however it has ended: whether the library says that nothing is torn."""
        return extra("gopcclGetTorn") is not None and not self._torn

    def to_c(self) -> Any:
        """A C ``pcclSharedState_t`` and what it points to, as a tuple that must stay alive.

        ArgumentError if a tensor was replaced since it was named.
        """
        tensor_infos = list(self.tensor_infos)
        infos = ffi.new("pcclTensorInfo_t[]", len(tensor_infos))
        keep: List[Any] = []
        for c, info in zip(infos, tensor_infos):
            _check_name(info.name)
            info.check()
            name = ffi.new("char[]", info.name.encode())
            keep.append((name, info._owner))
            c.name = name
            c.data = ffi.cast("void *", info.data_ptr)
            c.count = info.numel
            c.datatype = member(info.dtype, DataType, f"dtype of tensor {info.name!r}")
            c.device_type = member(info.device_type, DeviceType, f"device_type of tensor {info.name!r}")
            c.allow_content_inequality = info.allow_content_inequality
        state = ffi.new("pcclSharedState_t *")
        state.revision, state.count, state.infos = self._revision, len(tensor_infos), infos
        return state, infos, keep
