"""What the loaded library can do with CUDA."""

from gopccl._lib import call, ffi


def is_available() -> bool:
    """True if the library takes CUDA tensors."""
    info = ffi.new("pcclBuildInfo_t *")
    call("pcclGetBuildInfo", info)
    return bool(info.has_cuda_support)
