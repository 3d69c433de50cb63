"""A process group for torchft (package ``torchft-nightly``), which must be installed.

Give ``ProcessGroupGopccl`` to a ``torchft.Manager`` where it takes a ``ProcessGroupGloo``::

    manager = torchft.Manager(pg=ProcessGroupGopccl(timeout=timedelta(seconds=30)), ...)

A peer that dies ends the operations of the others at once, with tensors as they were,
and reduce_scatter and all_to_all work.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, List, Optional

from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torchft.process_group import ProcessGroup  # type: ignore[import-not-found]

from gopccl.torch._core import Core
from gopccl.torch._group import GopcclGroup
from gopccl.torch._session import Session
from gopccl.torch._work import Failure, GopcclWork

__all__ = ["ProcessGroupGopccl"]


def _worded(err: BaseException) -> BaseException:
    """An error in torchft's words: it tells a peer that is gone from others by the text."""
    text = str(err)
    if not isinstance(err, Failure) or any(known in text for known in ("timed out after", "aborted", "no members yet")):
        return err
    return Failure(f"Connection closed by peer: {text}")


class _Work(GopcclWork):
    def finish(self, error: Optional[BaseException] = None) -> None:
        super().finish(None if error is None else _worded(error))


class _Core(Core):
    def session(self, what: str) -> Session:
        try:
            return super().session(what)
        except Failure as err:
            raise _worded(err) from None

    def submit(self, what: str, *args: Any) -> GopcclWork:
        try:
            return super().submit(what, *args)
        except Failure as err:
            raise _worded(err) if "closed by peer" not in str(err) else err from None

    def _new_work(self, *args: Any) -> GopcclWork:
        return _Work(*args)


class ProcessGroupGopccl(ProcessGroup):  # type: ignore[misc]
    """A process group that a torchft manager reconfigures.

    ``timeout`` is that of operations and of reconfigurations that have none of their own.
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        super().__init__(0, 1)
        self._timeout = timeout
        self._group: Optional[GopcclGroup] = None  # since the first handle, or the one behind a shutdown

    def _made(self) -> GopcclGroup:
        if self._group is None:
            self._group = GopcclGroup(_Core(None, 0, 1, self._timeout, elastic=True))
        return self._group

    @property
    def _here(self) -> GopcclGroup:
        if self._group is None:
            raise Failure("gopccl: process group not initialized: reconfigure it")
        return self._group

    # The life of the group.

    def get_reconfigure_handle(self) -> str:
        """What the others need to meet this process; torchft's fields, and ours."""
        return json.dumps(
            {
                "id": self._handle_id(),
                "store": "",
                "global_rank": self._global_rank,
                "gopccl": self._made().get_reconfigure_handle(),
            }
        )

    def reconfigure(self, opts: Any) -> GopcclWork:
        """Form the group again, of the processes whose handles are given, in order; returns when it is there."""
        if not isinstance(opts.handles, list):
            raise ValueError("gopccl: reconfigure: torchft's process groups require a list of handles")
        own = c10d.ReconfigureOptions()
        own.uuid = opts.uuid
        own.timeout = self._timeout if opts.timeout is None else opts.timeout
        handles: List[str] = []
        for text in opts.handles:
            d = json.loads(text)
            if "gopccl" not in d:
                raise RuntimeError(f"gopccl: reconfigure: peer {d.get('id')!r} has a process group of another kind")
            handles.append(d["gopccl"])
        own.handles = handles
        work = self._made().reconfigure(own)
        work.wait()
        return work

    def abort(self) -> None:
        """End every operation with an error, at once."""
        if self._group is not None:
            self._group.abort()

    def shutdown(self) -> None:
        """Leave the group; a reconfigure begins another."""
        group, self._group = self._group, None
        if group is not None:
            group.shutdown()

    def errored(self) -> Optional[Exception]:
        """Why the group has to be reconfigured, if it has."""
        why = None if self._group is None else self._group._core.why
        return None if why is None else RuntimeError(f"gopccl: the process group was aborted: {why}")

    def set_timeout(self, timeout: timedelta) -> None:
        """The time that later operations may take."""
        self._timeout = timeout
        if self._group is not None:
            self._group.set_timeout(timeout)

    def size(self) -> int:
        """The number of ranks of the group as it is now."""
        return 1 if self._group is None else self._group.size()

    def rank(self) -> int:
        """The rank of this process in the group as it is now."""
        return 0 if self._group is None else self._group.rank()

    getSize = size  # noqa: N815 (PyTorch's names)
    getRank = rank  # noqa: N815

    def getBackendName(self) -> str:  # noqa: N802
        """Name of the backend."""
        return "torchft-gopccl"

    # The collectives.

    def allgather(self, output_tensors: List[List[Tensor]], input_tensor: List[Tensor], opts: Any = None) -> GopcclWork:
        """Every rank's input to every rank's list."""
        return self._here.allgather(output_tensors, input_tensor, opts)

    def allgather_into_tensor_coalesced(self, outputs: List[Tensor], inputs: List[Tensor], opts: Any = None) -> GopcclWork:
        """Output i becomes all ranks' input i, concatenated."""
        return self._here.all_gather_single_coalesced(outputs, inputs, opts)

    def allreduce(self, tensors: List[Tensor], opts: Any = None) -> GopcclWork:
        """Reduce in place; ``opts`` may be an operation."""
        return self._here.allreduce(tensors, opts)

    def allreduce_coalesced(self, tensors: List[Tensor], opts: Any = None) -> GopcclWork:
        """Reduce several in place."""
        return self._here.allreduce_coalesced(tensors, opts)

    def alltoall_base(self, output: Tensor, input: Tensor, into: List[int], out: List[int], opts: Any = None) -> GopcclWork:
        """Rows to the ranks, ``out`` for each; ``into`` come from each."""
        return self._here.all_to_all_single(output, input, into, out, opts)

    def barrier(self, opts: Any = None) -> GopcclWork:
        """Ends when every rank has come to it."""
        return self._here.barrier(opts)

    def broadcast(self, tensors: List[Tensor], opts: Any = None) -> GopcclWork:
        """The root's tensors to all."""
        return self._here.broadcast(tensors, opts)

    def broadcast_one(self, tensor: Tensor, root: int) -> GopcclWork:
        """One tensor of a root to all."""
        return self._here.broadcast([tensor], root)

    def reduce_scatter(self, outputs: List[Tensor], inputs: List[List[Tensor]], opts: Any = None) -> GopcclWork:
        """The own block of the reduction."""
        return self._here.reduce_scatter(outputs, inputs, opts)

    def reduce_scatter_tensor_coalesced(self, outputs: List[Tensor], inputs: List[Tensor], opts: Any = None) -> GopcclWork:
        """The own blocks of several reductions."""
        return self._here.reduce_scatter_single_coalesced(outputs, inputs, opts)

    def send(self, tensors: List[Tensor], dst_rank: int, tag: int) -> GopcclWork:
        """Send a tensor to a rank."""
        return self._here.send(tensors, dst_rank, tag)

    def recv(self, tensors: List[Tensor], src_rank: int, tag: int) -> GopcclWork:
        """Receive a tensor from a rank."""
        return self._here.recv(tensors, src_rank, tag)
