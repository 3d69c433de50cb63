"""Fault-tolerant collectives and shared state over TCP, compatible with PCCL 1.0.0.

A peer connects, keeps its parameters as shared state, all-reduces, and goes on
when peers join, leave or die::

    comm = gopccl.Communicator("203.0.113.5:48148")
    comm.connect()
    while training:
        if comm.are_peers_pending():
            comm.update_topology()
        comm.sync_shared_state(state)
        comm.all_reduce(grad, grad, op=gopccl.ReduceOp.AVG)
        state.push_revision()

``import pccl`` gives the same under the name that programs for pypccl use.
"""

from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version

from gopccl import cuda
from gopccl._collect import Group
from gopccl._comm import Communicator, ReduceOpDescriptor, dump_state
from gopccl._errors import ArgumentError, PCCLError, Result
from gopccl._flight import AsyncReduceHandle
from gopccl._message import MessageHandle
from gopccl._node import MasterNode
from gopccl._state import SharedState, TensorInfo, latest_checkpoint
from gopccl._types import (
    Attribute,
    DataType,
    DeviceType,
    DistributionHint,
    QuantizationAlgorithm,
    QuantizationOptions,
    ReduceDescriptor,
    ReduceInfo,
    ReduceOp,
    ReduceOperandDescriptor,
    SharedStateSyncInfo,
    SharedStateSyncStrategy,
)

try:
    __version__ = _version("gopccl")
except _PackageNotFoundError:
    __version__ = "dev"

__all__ = [
    "ArgumentError",
    "AsyncReduceHandle",
    "Attribute",
    "Communicator",
    "DataType",
    "DeviceType",
    "DistributionHint",
    "Group",
    "MasterNode",
    "MessageHandle",
    "PCCLError",
    "QuantizationAlgorithm",
    "QuantizationOptions",
    "ReduceDescriptor",
    "ReduceInfo",
    "ReduceOp",
    "ReduceOpDescriptor",
    "ReduceOperandDescriptor",
    "Result",
    "SharedState",
    "SharedStateSyncInfo",
    "SharedStateSyncStrategy",
    "TensorInfo",
    "cuda",
    "dump_state",
    "latest_checkpoint",
]
