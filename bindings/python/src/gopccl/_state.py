"""Shared state: named tensors that a group keeps equal."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

from gopccl import cuda
from gopccl._buffers import buffer_of
from gopccl._errors import ArgumentError
from gopccl._lib import ffi
from gopccl._types import DataType, DeviceType, member


class TensorInfo:
    """One tensor of a shared state: ``numel`` elements of ``dtype`` at ``data_ptr``.

    ``device_type`` says whether that is an address of the host or of a CUDA device. Made by one of the class methods it keeps the tensor alive. With
    ``allow_content_inequality`` peers may hold different contents.
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
                raise ArgumentError(f"tensor {name!r}: data_ptr {data_ptr:#x} is no memory of a CUDA device")
        self.name = name
        self.data_ptr = data_ptr
        self.numel = numel
        self.dtype = dtype
        self.device_type = device_type
        self.allow_content_inequality = allow_content_inequality
        self._device = device
        self._owner: Any = None

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
        return info

    @classmethod
    def from_torch(cls, tensor: Any, name: str, *, allow_content_inequality: bool = False) -> "TensorInfo":
        """Name a contiguous PyTorch tensor of any shape, on the CPU or a CUDA device."""
        return cls.from_buffer(tensor, name, allow_content_inequality=allow_content_inequality)

    @classmethod
    def from_numpy(cls, tensor: Any, name: str, *, allow_content_inequality: bool = False) -> "TensorInfo":
        """Name a contiguous, writable NumPy array of any shape."""
        return cls.from_buffer(tensor, name, allow_content_inequality=allow_content_inequality)


class SharedState:
    """An ordered list of tensors and the revision (a counter) of their content."""

    def __init__(self, tensor_infos: Sequence[TensorInfo]) -> None:
        if not tensor_infos:
            raise ArgumentError("tensor_infos is empty")
        self.tensor_infos: List[TensorInfo] = list(tensor_infos)
        self._revision = 0

    @property
    def revision(self) -> int:
        """Revision of the content; peers with a lower one are brought up to date."""
        return self._revision

    @revision.setter
    def revision(self, value: int) -> None:
        if not 0 <= value < 1 << 64:
            raise ArgumentError(f"revision is {value}, must be a 64 bit number, at least 0")
        self._revision = value

    def push_revision(self) -> None:
        """Add one to the revision: once per change of the content, before the next sync."""
        self.revision += 1

    def order(self) -> None:
        """Make the next synchronisation wait for PyTorch's current streams on the devices of the tensors."""
        devices = {info._device for info in self.tensor_infos if info._device is not None}
        if devices:
            cuda.order(cuda.current_stream(d) for d in devices)

    def to_c(self) -> Any:
        """A C ``pcclSharedState_t`` and what it points to, as a tuple that must stay alive."""
        infos = ffi.new("pcclTensorInfo_t[]", len(self.tensor_infos))
        keep = []
        for c, info in zip(infos, self.tensor_infos):
            name = ffi.new("char[]", info.name.encode())
            keep.append(name)
            c.name = name
            c.data = ffi.cast("void *", info.data_ptr)
            c.count = info.numel
            c.datatype = member(info.dtype, DataType, f"dtype of tensor {info.name!r}")
            c.device_type = member(info.device_type, DeviceType, f"device_type of tensor {info.name!r}")
            c.allow_content_inequality = info.allow_content_inequality
        state = ffi.new("pcclSharedState_t *")
        state.revision, state.count, state.infos = self._revision, len(self.tensor_infos), infos
        return state, infos, keep
