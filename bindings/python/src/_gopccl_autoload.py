"""Entry point ``torch.backends``: makes ``init_process_group("gopccl")`` work without an import.

PyTorch (2.5 and later) calls it at the end of ``import torch``. The library is
loaded only when a process group is made.
"""

from __future__ import annotations

from typing import Any


def _create(*args: Any) -> Any:
    from gopccl.torch import create_backend

    return create_backend(*args)


def register() -> None:
    """Tell torch.distributed about the backend."""
    import torch.distributed as dist

    if dist.is_available() and "gopccl" not in dist.Backend.backend_list:
        dist.Backend.register_backend("gopccl", _create, devices=["cpu", "cuda"])
