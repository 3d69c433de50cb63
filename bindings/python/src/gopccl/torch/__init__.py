"""PyTorch as its users know it: a ``torch.distributed`` backend and helpers for elastic training.

``torch.distributed.init_process_group("gopccl")`` works after ``import gopccl.torch``;
with PyTorch 2.5 and later, and the package installed, no import is needed.
"""

from _gopccl_autoload import register as _register

from gopccl.torch._diloco import DiLoCo
from gopccl.torch._group import GopcclGroup, create_backend, create_group
from gopccl.torch._helpers import TrainingState, all_reduce, all_reduce_gradients
from gopccl.torch._mesh import ElasticMesh

_register()

__all__ = ["DiLoCo", "ElasticMesh", "GopcclGroup", "TrainingState", "all_reduce", "all_reduce_gradients", "create_backend", "create_group"]
