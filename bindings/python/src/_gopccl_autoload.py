"""Entry point ``torch.backends``: makes ``init_process_group("gopccl")`` work without an import.

PyTorch (2.5 and later) calls it at the end of ``import torch``. The library is
loaded only when a process group is made.
"""

from __future__ import annotations

from typing import Any


def _create_group(*args: Any) -> Any:
    from gopccl.torch import create_group

    return create_group(*args)


def _create_backend(*args: Any) -> Any:
    from gopccl.torch import create_backend

    return create_backend(*args)


def register() -> None:
    """Tell torch.distributed about the backend, and about its form for one of several devices."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    for name, create in (("gopccl", _create_group), ("gopccl-device", _create_backend)):
        if name not in dist.Backend.backend_list:
            dist.Backend.register_backend(name, create, extended_api=True, devices=["cpu", "cuda"])
