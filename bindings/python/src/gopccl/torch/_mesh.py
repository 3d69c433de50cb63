"""A device mesh whose replica dimension comes and goes, while its shard dimension is fixed."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh

from gopccl.torch._core import Core
from gopccl.torch._group import GopcclGroup
from gopccl.torch._work import Failure

_TIMEOUT = timedelta(minutes=5)


class ReplicaMesh:
    """The replica dimension of an ``ElasticMesh``: size and rank are those of the group at the moment of asking."""

    ndim = 1

    def __init__(self, group: GopcclGroup, name: str) -> None:
        self._group = group
        self.mesh_dim_names = (name,)

    def size(self, mesh_dim: Optional[int] = None) -> int:
        """The number of replicas."""
        return self._group.size()

    def get_group(self, mesh_dim: Union[int, str, None] = None) -> GopcclGroup:
        """The group of this shard in all replicas."""
        return self._group

    def get_local_rank(self, mesh_dim: Union[int, str, None] = None) -> int:
        """The place of this replica among them."""
        return self._group.rank()


class ElasticMesh:
    """Replicas (sites, say) that join and die, each of a fixed number of shards.

    ``shard_mesh`` is a one-dimensional ``DeviceMesh`` inside of this replica, which
    ``fully_shard`` takes: ``mesh["shard"]``. Every shard has a process group of its own with
    the same shard of the other replicas: ``mesh["replica"]``, which has one member until
    the first :meth:`reconfigure`. It is not part of PyTorch's world, which is one replica.

    All shards of a replica make the same calls. A replica of which one shard has died
    must end as a whole.
    """

    ndim = 2

    def __init__(
        self, shard_mesh: DeviceMesh, names: Tuple[str, str] = ("replica", "shard"), timeout: timedelta = _TIMEOUT
    ) -> None:
        if shard_mesh.ndim != 1:
            raise ValueError(f"gopccl: ElasticMesh: the shard mesh has {shard_mesh.ndim} dimensions, must have one")
        if len(set(names)) != 2:
            raise ValueError(f"gopccl: ElasticMesh: names are {names!r}, must be two different ones")
        self.mesh_dim_names = names
        self._shards = shard_mesh
        self._inside = shard_mesh.get_group()
        self._core = Core(None, 0, 1, timeout, elastic=True)
        self._replicas = ReplicaMesh(GopcclGroup(self._core), names[0])
        self._why = ""  # what was wrong the last time
        self._torn = False  # a sync that failed has overwritten some of this replica

    def __getitem__(self, name: str) -> Any:
        """``"shard"``: the fixed mesh; ``"replica"``: a view of the elastic dimension."""
        return self._shards if self._dim(name) else self._replicas

    def _dim(self, which: Union[int, str]) -> int:
        if which in self.mesh_dim_names:
            return self.mesh_dim_names.index(str(which))
        if which in (0, 1):
            return int(which)
        raise KeyError(f"gopccl: ElasticMesh: {which!r} is not a dimension of {self.mesh_dim_names}")

    @property
    def shape(self) -> Tuple[int, int]:
        """Replicas and shards."""
        return self._replicas.size(), self._shards.size()

    def size(self, mesh_dim: Union[int, str, None] = None) -> int:
        """The size of one dimension, or of the whole."""
        replicas, shards = self.shape
        return replicas * shards if mesh_dim is None else self.shape[self._dim(mesh_dim)]

    def get_group(self, mesh_dim: Union[int, str]) -> Any:
        """The process group of one dimension."""
        return self._inside if self._dim(mesh_dim) else self._replicas.get_group()

    def get_local_rank(self, mesh_dim: Union[int, str]) -> int:
        """The place of this process in one dimension."""
        return self._shards.get_local_rank() if self._dim(mesh_dim) else self._replicas.get_local_rank()

    # Membership.

    def handle(self) -> str:
        """What the other replicas need to meet this one, the same on all of its shards; for one ``reconfigure``."""
        every: List[Any] = [None] * self._shards.size()
        dist.all_gather_object(every, self._core.handle(), group=self._inside)
        return json.dumps({"v": 1, "shards": every})

    def reconfigure(self, uuid: int, handles: Sequence[str], timeout: Optional[timedelta] = None) -> None:
        """Form the replica groups again, of the replicas whose handles are given, in this order.

        What the first shard passes counts for all of this replica, and all replicas pass the
        same; ``uuid`` is a number that none of them has used before. Raises
        ``DistBackendError`` on every shard if it failed on one; call it again then.
        """
        told: List[Any] = [(uuid, list(handles), timeout)]
        dist.broadcast_object_list(told, group=self._inside, group_src=0)
        uuid, texts, timeout = told[0]
        opts = c10d.ReconfigureOptions()
        opts.uuid = uuid
        opts.handles = [self._own(text) for text in texts]
        if timeout is not None:
            opts.timeout = timeout
        if not self._everywhere(lambda: self._core.reconfigure(opts).wait()):
            raise Failure(f"gopccl: reconfigure: not all shards have met {len(texts)} replicas: {self._why}")

    def _own(self, text: str) -> str:
        """This shard's handle in that of a replica."""
        try:
            d = json.loads(text)
            shards = d["shards"] if d["v"] == 1 else None
        except (ValueError, KeyError, TypeError):
            shards = None
        n = self._shards.size()
        if not isinstance(shards, list) or len(shards) != n:
            raise ValueError(f"gopccl: reconfigure: {text[:80]!r} is not the handle of a replica with {n} shards")
        return str(shards[self._shards.get_local_rank()])

    def _everywhere(self, f: Callable[[], Any]) -> bool:
        """Call ``f``; whether it has raised on no shard of this replica. If it has on one, the groups of all are revoked."""
        error: Optional[Exception] = None
        try:
            f()
        except Exception as err:
            error = err
        every: List[Any] = [None] * self._shards.size()
        dist.all_gather_object(every, None if error is None else str(error), group=self._inside)
        said = [e for e in every if e is not None]
        self._why = said[0] if said else ""
        if said:
            self._core.abort()
        if error is not None and not isinstance(error, RuntimeError):
            raise error
        return not said

    # What training does with it. A failure of one shard's group is one of all: the verdict of
    # a group is the same on all its members, and inside of a replica the shards exchange it.

    def average(self, tensors: Sequence[Tensor]) -> bool:
        """Average tensors over the replicas, in place; True if that was done, on every shard of every replica.

        False: some replica has died, and nothing has changed; reconfigure and try again. Takes
        gradients or parameters (of a ``DTensor``: ``to_local()``), and a copy of them in memory.
        """
        copies = [t.detach().clone(memory_format=torch.contiguous_format) for t in tensors]

        def reduce() -> None:
            works = [self._replicas.get_group().allreduce([c], dist.ReduceOp.AVG) for c in copies if c.numel()]
            for w in works:
                w.wait()

        if self._replicas.size() > 1 and not self._everywhere(reduce):
            return False
        with torch.no_grad():
            for t, c in zip(tensors, copies):
                t.detach().copy_(c)
        return True

    def sync(self, tensors: Sequence[Tensor], step: int) -> int:
        """Give tensors the content that those of the replica with the highest step have; return that step.

        For behind each ``reconfigure``: a newcomer has nothing, and of the others one may have
        finished a step that was ended for the rest. Of several the first counts. Raises
        ``DistBackendError`` on every shard if a replica has died meanwhile. A replica that was
        half overwritten then counts for nothing until a sync has succeeded: do not train on.
        """
        group = self._replicas.get_group()
        found, begun = [step], [False]

        def copy() -> None:
            mine = torch.tensor([-1 if self._torn else step], dtype=torch.int64)
            steps = [torch.zeros_like(mine) for _ in range(group.size())]
            group.allgather([steps], [mine]).wait()
            numbers = [int(s) for s in steps]
            found[0] = max(numbers)
            if found[0] < 0:
                raise Failure("no replica has a whole state")
            root = numbers.index(found[0])
            begun[0] = root != group.rank()
            works = [group.broadcast([t.detach()], root) for t in tensors if t.numel()]
            for w in works:
                w.wait()

        if self._everywhere(copy):
            self._torn = False
            return found[0]
        every: List[Any] = [None] * self._shards.size()
        dist.all_gather_object(every, begun[0], group=self._inside)
        self._torn = self._torn or any(every)
        raise Failure(f"gopccl: sync: {self._why}")

    def abort(self) -> None:
        """End every operation between replicas with an error, at once; ``reconfigure`` repairs."""
        self._core.abort()

    def close(self) -> None:
        """Leave the other replicas."""
        self._core.shutdown()
