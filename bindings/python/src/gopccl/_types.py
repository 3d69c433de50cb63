"""Enumerations and descriptors of the API."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from gopccl._errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np
    import torch


class ReduceOp(Enum):
    """How contributions are combined."""

    SUM = 0
    AVG = 1
    PROD = 2
    MAX = 3
    MIN = 4


class Attribute(Enum):
    """Numbers that a communicator knows about the run."""

    GLOBAL_WORLD_SIZE = 1
    LOCAL_WORLD_SIZE = 2
    NUM_DISTINCT_PEER_GROUPS = 3
    LARGEST_PEER_GROUP_WORLD_SIZE = 4


class SharedStateSyncStrategy(Enum):
    """Whose state wins a synchronisation."""

    ENFORCE_POPULAR = 0
    RECEIVE_ONLY = 1
    SEND_ONLY = 2


class DistributionHint(Enum):
    """Kept for compatibility; has no effect."""

    NONE = 0
    NORMAL = 1
    UNIFORM = 2


class QuantizationAlgorithm(Enum):
    """How floating point data is made smaller on the wire."""

    NONE = 0
    MIN_MAX = 1
    ZERO_POINT_SCALE = 2


class DeviceType(Enum):
    """Where a tensor lives."""

    CPU = 0
    CUDA = 1

    @classmethod
    def from_torch_device_type(cls, device_type: str) -> "DeviceType | None":
        """The member for a ``torch.device.type``, None for other devices."""
        return {"cpu": cls.CPU, "cuda": cls.CUDA}.get(device_type)


class DataType(Enum):
    """Element types."""

    UINT8 = 0
    INT8 = 1
    INT16 = 2
    UINT16 = 3
    UINT32 = 4
    INT32 = 5
    UINT64 = 6
    INT64 = 7
    FLOAT16 = 8
    BFLOAT16 = 9
    FLOAT = 10
    DOUBLE = 11

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return _SIZES[self]

    @classmethod
    def from_name(cls, name: str) -> "DataType":
        """The member for NumPy's and PyTorch's name of a type (``"float32"``); ArgumentError for others."""
        try:
            return _BY_NAME[name]
        except KeyError:
            raise ArgumentError(f"unsupported element type {name}; supported: {', '.join(_BY_NAME)}") from None

    @classmethod
    def from_torch_dtype(cls, dtype: "torch.dtype") -> "DataType":
        """The member for a ``torch.dtype``; ValueError for others."""
        return cls.from_name(str(dtype).replace("torch.", "", 1))

    @classmethod
    def from_numpy_dtype(cls, dtype: "np.dtype[Any]") -> "DataType":
        """The member for a ``numpy.dtype`` in native byte order; ValueError for others."""
        if getattr(dtype, "isnative", True) is False:
            raise ArgumentError(f"element type {dtype!r} is not in native byte order")
        name = getattr(dtype, "name", None) or getattr(dtype, "__name__", str(dtype))
        return cls.from_name(str(name))

    def to_torch_dtype(self) -> "torch.dtype":
        """The ``torch.dtype`` of this type."""
        import torch

        dtype: torch.dtype = getattr(torch, _NAMES[self])
        return dtype

    def to_numpy_dtype(self) -> "np.dtype[Any]":
        """The ``numpy.dtype`` of this type; ValueError for BFLOAT16, which NumPy lacks."""
        import numpy as np

        if self is DataType.BFLOAT16:
            raise ArgumentError("NumPy has no bfloat16")
        return np.dtype(_NAMES[self])


_BY_NAME = {
    "uint8": DataType.UINT8,
    "int8": DataType.INT8,
    "int16": DataType.INT16,
    "uint16": DataType.UINT16,
    "int32": DataType.INT32,
    "uint32": DataType.UINT32,
    "int64": DataType.INT64,
    "uint64": DataType.UINT64,
    "float16": DataType.FLOAT16,
    "bfloat16": DataType.BFLOAT16,
    "float32": DataType.FLOAT,
    "float64": DataType.DOUBLE,
}
_NAMES = {member: name for name, member in _BY_NAME.items()}
_SIZES = {
    member: {"8": 1, "16": 2, "32": 4, "64": 8}[name.lstrip("abcdefghijklmnopqrstuvwxyz")]
    for name, member in _BY_NAME.items()
}


@dataclass
class ReduceOperandDescriptor:
    """Element type of an all-reduce."""

    datatype: DataType
    distribution_hint: DistributionHint = DistributionHint.NONE


@dataclass
class QuantizationOptions:
    """Quantization of what travels; the buffers keep their type."""

    quantized_datatype: DataType = DataType.UINT8
    algorithm: QuantizationAlgorithm = QuantizationAlgorithm.MIN_MAX


@dataclass
class ReduceDescriptor:
    """One all-reduce: ``count`` elements, operation, tag, type, quantization."""

    count: int
    op: ReduceOp
    tag: int
    operand_descriptor: ReduceOperandDescriptor
    quantization_options: QuantizationOptions

    def fill(self, c: Any) -> None:
        """Write this descriptor into a C ``pcclReduceDescriptor_t``."""
        if not 0 <= self.count < 1 << 63:
            raise ArgumentError(f"count is {self.count}, must be at least 0")
        if not 0 <= self.tag < 1 << 64:
            raise ArgumentError(f"tag is {self.tag}, must be a 64 bit number, at least 0")
        c.count = self.count
        c.op = member(self.op, ReduceOp, "op")
        c.tag = self.tag
        operand, quant = self.operand_descriptor, self.quantization_options
        c.src_descriptor.datatype = member(operand.datatype, DataType, "operand_descriptor.datatype")
        c.src_descriptor.distribution_hint = member(
            operand.distribution_hint, DistributionHint, "operand_descriptor.distribution_hint"
        )
        c.quantization_options.quantized_datatype = member(
            quant.quantized_datatype, DataType, "quantization_options.quantized_datatype"
        )
        c.quantization_options.algorithm = member(
            quant.algorithm, QuantizationAlgorithm, "quantization_options.algorithm"
        )


def member(value: Any, kind: type[Enum], what: str) -> int:
    """Number of an enum member; ArgumentError names ``what`` for anything else."""
    if not isinstance(value, kind):
        raise ArgumentError(f"{what} is {value!r}, must be a {kind.__name__}")
    number: int = value.value
    return number


@dataclass
class ReduceInfo:
    """What an all-reduce did: peers that took part, payload bytes sent and received."""

    local_world_size: int = 0
    tx_bytes: int = 0
    rx_bytes: int = 0


@dataclass
class SharedStateSyncInfo:
    """Payload bytes that a synchronisation sent and received."""

    tx_bytes: int = 0
    rx_bytes: int = 0


@dataclass
class BuildInfo:
    """Properties of the loaded library."""

    has_cuda_support: bool = False
    path: str = ""
