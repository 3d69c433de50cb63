"""gopccl under the name that programs written for pypccl import."""

import gopccl as _gopccl
from gopccl import *
from gopccl import __version__ as __version__

__all__ = list(_gopccl.__all__)
