"""The master of a run, in this process."""

from __future__ import annotations

import itertools
import os
from typing import Any, Dict, Optional, Union

from gopccl import _address, _lib
from gopccl._comm import secure
from gopccl._lib import call, ffi


class _Coordinator:
    """What the library holds of a master, until it was destroyed."""

    def __init__(self, c: Any) -> None:
        self.c = c
        self.over = False
        self.key = next(_keys)
        _coordinators[self.key] = self

    def destroy(self) -> None:
        """End the master; if a signal handler raises meanwhile, it can be called again."""
        if self.over:
            return
        if _lib.in_home_process():
            _lib.raw_call("pcclDestroyMaster", self.c)
        self.over = True
        _coordinators.pop(self.key, None)


_keys = itertools.count(1)
_coordinators: Dict[int, _Coordinator] = {}
_set_heartbeat = _lib.extra("gopcclSetDefaultHeartbeat")


def _destroy_all() -> None:
    for c in list(_coordinators.values()):
        c.destroy()


_lib.at_exit(_destroy_all)  # behind that of the communicators, which were imported before


class MasterNode:
    """Coordinator of a run, listening at ``listen_address`` (HOST:PORT).

    With ``credential``, the path of a file (``gopccl keys issue --role master``),
    connections are in TLS. ``enroll`` is the directory from which newcomers with a join
    token get their credentials, and peers the next one. None: as the configuration and
    the environment say.

    Usable as a context manager; leaving it closes. What is not closed is closed when
    the interpreter ends.
    """

    def __init__(
        self,
        listen_address: str,
        *,
        credential: Union[None, str, "os.PathLike[str]"] = None,
        enroll: Union[None, str, "os.PathLike[str]"] = None,
    ) -> None:
        self._held: Optional[_Coordinator] = None
        ip, port = _address.parse(listen_address, "listen_address")
        address = ffi.new("ccoip_socket_address_t *")
        _address.fill(address, ip, port)
        out = ffi.new("pcclMasterInstance_t **")
        call("pcclCreateMaster", address[0], out)
        self._held = _Coordinator(out[0])
        secure("gopcclSetMasterCredential", self._handle, credential, enroll)

    @property
    def _handle(self) -> Any:
        return ffi.NULL if self._held is None else self._held.c

    def _default_heartbeat(self, interval: int, silence: int) -> None:
        """Milliseconds between heartbeats, and until who is silent is dropped, unless the configuration or the environment has them."""
        if _set_heartbeat is not None:
            call("gopcclSetDefaultHeartbeat", self._handle, interval, silence)

    def run(self) -> None:
        """Serve in the background; INVALID_USAGE if the port is taken."""
        call("pcclRunMaster", self._handle)

    @property
    def port(self) -> int:
        """Port that the running master listens on; port 0 of ``listen_address`` asks the system for one."""
        out = ffi.new("uint16_t *")
        call("gopcclGetMasterPort", self._handle, out)
        return int(out[0])

    def wait(self) -> None:
        """Block until the master has ended."""
        call("pcclMasterAwaitTermination", self._handle)

    def interrupt(self) -> None:
        """Tell the master to end; returns at once."""
        call("pcclInterruptMaster", self._handle)

    def close(self) -> None:
        """End the master and free it; a second call does nothing.

        If a signal handler raises meanwhile, the master ends without the caller, and
        close can be called again to wait for it.
        """
        if self._held is not None:
            self._held.destroy()
            self._held = None

    def __enter__(self) -> "MasterNode":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
