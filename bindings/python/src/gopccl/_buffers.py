"""Finds address, length and element type of whatever the caller passes.

Accepted are NumPy arrays, PyTorch tensors and everything with ``__dlpack__`` on
a CPU or a CUDA device, and everything with the buffer protocol. Nothing is copied.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from typing import Any, Dict, NamedTuple, Optional, Tuple

from gopccl import cuda
from gopccl._errors import ArgumentError
from gopccl._lib import ffi
from gopccl._types import DataType


_ADDRESS = ffi.typeof("uintptr_t")


class Buffer(NamedTuple):
    """Contiguous memory: ``numel`` elements of ``dtype`` at ``address``.

    ``owner`` keeps the memory itself alive, whatever becomes of the object that it
    came from: a tensor may be given other memory at any time. ``device`` is the number of the CUDA device,
    None for memory of the host. ``stream`` is the stream behind whose work the memory
    may be used (it has ``cuda_stream`` and ``synchronize``), None the legacy default one.
    """

    address: int
    numel: int
    dtype: DataType
    owner: Any
    device: Optional[int] = None
    stream: Any = None
    moved: str = ""  # the name of an element type that the library does not know: it is moved as ``scale`` bytes
    scale: int = 1

    @property
    def type_name(self) -> str:
        """The element type, for messages."""
        return self.moved or self.dtype.name

    @property
    def elements(self) -> int:
        """The number of elements as the caller counts them."""
        return self.numel // self.scale

    def where(self) -> str:
        """The place, for messages."""
        return "the CPU" if self.device is None else f"CUDA device {self.device}"


def is_torch(obj: Any) -> bool:
    """True for a PyTorch tensor; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.Tensor)


def is_numpy(obj: Any) -> bool:
    """True for a NumPy array; does not import numpy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(obj, numpy.ndarray)


def buffer_of(obj: Any, what: str, *, writable: bool, moved: bool = False) -> Buffer:
    """The memory of ``obj``; ArgumentError naming ``what`` if it cannot be used as it is.

    With ``moved`` nobody computes with the elements: those of a type that the library does
    not know, such as bool and complex numbers, are described as bytes.
    """
    if isinstance(obj, Buffer):
        return obj
    try:
        if is_torch(obj):
            return _from_torch(obj, moved)
        if is_numpy(obj):
            return _from_numpy(obj, writable, moved)
        if _has_buffer(obj):
            return _from_memory(obj, writable)
        if hasattr(obj, "__dlpack__"):
            return _from_dlpack(obj)
    except ArgumentError as err:
        raise ArgumentError(f"{what}: {err}") from None
    raise ArgumentError(
        f"{what}: a {type(obj).__name__} has no buffer protocol and no DLPack; "
        "pass a NumPy array, a PyTorch tensor or such an object"
    )


# Element types seen before: looking them up by name takes a while.
_known: Dict[Any, DataType] = {}


def _from_torch(t: Any, moved: bool = False) -> Buffer:
    device: Optional[int] = None
    if t.device.type == "cuda":
        cuda.require(str(t.device))
        device = t.device.index
    elif t.device.type != "cpu":
        raise ArgumentError(f"the tensor is on {t.device}; copy it to the CPU first")
    if str(t.layout) != "torch.strided":
        raise ArgumentError(f"the tensor has layout {t.layout}, must be torch.strided")
    if not t.is_contiguous():
        raise ArgumentError(f"the tensor is not contiguous (shape {tuple(t.shape)}, strides {t.stride()})")
    dtype = _known.get(t.dtype)
    if dtype is None:
        try:
            dtype = _known[t.dtype] = DataType.from_torch_dtype(t.dtype)
        except ArgumentError:
            if not moved:
                raise
            name, size = str(t.dtype), t.element_size()
            stream = None if device is None else cuda.current_stream(device)
            return Buffer(t.data_ptr(), t.numel() * size, DataType.UINT8, t.untyped_storage(), device, stream, name, size)
    if device is not None:
        return Buffer(t.data_ptr(), t.numel(), dtype, t.untyped_storage(), device, cuda.current_stream(device))
    return Buffer(t.data_ptr(), t.numel(), dtype, t.untyped_storage())


def _from_numpy(a: Any, writable: bool, moved: bool = False) -> Buffer:
    if not a.flags.c_contiguous:
        raise ArgumentError(f"the array is not contiguous (shape {a.shape}, strides {a.strides} bytes)")
    if writable and not a.flags.writeable:
        raise ArgumentError("the array is read-only")
    address = a.__array_interface__["data"][0]
    dtype = _known.get(a.dtype)
    if dtype is None:
        try:
            dtype = _known[a.dtype] = DataType.from_numpy_dtype(a.dtype)
        except ArgumentError:
            if not moved or a.dtype.hasobject or a.dtype.itemsize == 0:
                raise
            return Buffer(address, a.nbytes, DataType.UINT8, _held_array(a), moved=str(a.dtype), scale=a.dtype.itemsize)
    return Buffer(address, a.size, dtype, _held_array(a))


def _held_array(a: Any) -> Any:
    try:
        export = ffi.from_buffer(a)
    except ValueError:  # the buffer protocol has no name for the type, as for bfloat16
        export = ffi.from_buffer(a.reshape(-1).view("u1"))
    return export, weakref.ref(a)  # NumPy does not resize what has a weak reference, not even without refcheck


def _has_buffer(obj: Any) -> bool:
    try:
        with memoryview(obj):
            return True
    except _NO_BUFFER:
        return False


# What exporters raise that have no buffer protocol, no contiguous memory, or no name for their element type.
_NO_BUFFER = (TypeError, BufferError, ValueError)


# Element types by the format of a memoryview, as _from_memory found them.
_formats: Dict[str, DataType] = {}


def plain_pair(send: Any, recv: Any) -> Optional[Tuple[Any, Any, int, DataType]]:
    """Memory of both, number of elements and their type, if nothing has to be said about them.

    The quick way for what has the buffer protocol and was seen before: None sends
    the caller to buffer_of, which takes more and explains what is wrong.
    """
    try:
        a, b = memoryview(send), memoryview(recv)
    except _NO_BUFFER:
        return None
    form = a.format
    dtype = _formats.get(form)
    if dtype is None or form != b.format or a.nbytes != b.nbytes or b.readonly:
        return None
    if not (a.c_contiguous and b.c_contiguous):
        return None
    # Not of the views: a collector that meets them in a cycle cannot free them while they are used.
    return ffi.from_buffer(send), ffi.from_buffer(recv), a.nbytes // a.itemsize, dtype


_FLOATS = {"e": DataType.FLOAT16, "f": DataType.FLOAT, "d": DataType.DOUBLE}


def _from_memory(obj: Any, writable: bool) -> Buffer:
    view = memoryview(obj)
    if not view.c_contiguous:
        raise ArgumentError(f"the buffer is not contiguous (shape {view.shape}, strides {view.strides} bytes)")
    if writable and view.readonly:
        raise ArgumentError("the buffer is read-only")
    code = view.format.lstrip("@=")
    if sys.byteorder == "little":
        code = code.lstrip("<")
    if code in _FLOATS:
        dtype = _FLOATS[code]
    elif code in ("b", "h", "i", "l", "q", "n"):
        dtype = DataType.from_name(f"int{8 * view.itemsize}")
    elif code in ("B", "H", "I", "L", "Q", "N", "c"):
        dtype = DataType.from_name(f"uint{8 * view.itemsize}")
    else:
        raise ArgumentError(f"unsupported element format {view.format!r}")
    _formats[view.format] = dtype
    held = ffi.from_buffer(obj)
    return Buffer(int(ffi.cast(_ADDRESS, held)), view.nbytes // view.itemsize, dtype, held)


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_DL_CPU = (1, 3, 11)  # plain, CUDA host (pinned), ROCm host
_DL_CUDA = (2, 13)  # plain, managed
_DL_LEGACY_STREAM = 1  # the exporter makes the legacy default stream wait for its own
_DL_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}


def _from_dlpack(obj: Any) -> Buffer:
    kind, number = map(int, obj.__dlpack_device__())
    device: Optional[int] = None
    # The capsule stays unconsumed: its own destructor frees the export when the Buffer goes.
    if kind in _DL_CUDA:
        cuda.require(f"CUDA device {number}")
        device = number
        capsule = obj.__dlpack__(stream=_DL_LEGACY_STREAM)
    elif kind in _DL_CPU:
        capsule = obj.__dlpack__()
    else:
        raise ArgumentError(f"the tensor is on DLPack device {(kind, number)}; copy it to the CPU first")
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    t = ctypes.cast(pointer(capsule, b"dltensor"), ctypes.POINTER(_DLTensor)).contents
    shape = [t.shape[i] for i in range(t.ndim)]
    count = 1
    for n in shape:
        count *= n
    if t.strides and count > 1:
        expect = 1
        for i in reversed(range(t.ndim)):
            if shape[i] != 1 and t.strides[i] != expect:
                raise ArgumentError(f"the tensor is not contiguous (shape {tuple(shape)})")
            expect *= shape[i]
    if t.lanes != 1 or t.code not in _DL_KINDS:
        raise ArgumentError(f"unsupported DLPack element type (code {t.code}, {t.bits} bits, {t.lanes} lanes)")
    dtype = DataType.from_name(f"{_DL_KINDS[t.code]}{t.bits}")
    return Buffer((t.data or 0) + t.byte_offset, count, dtype, (obj, capsule), device)
