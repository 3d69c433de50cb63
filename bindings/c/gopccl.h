/*
 * What libgopccl has beyond PCCL's interface, for bindings to other languages.
 * libpccl exports none of it.
 */
#ifndef GOPCCL_H
#define GOPCCL_H

#include "pccl.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Why the last call of this thread failed: operation, peer, cause and hint, in
 * UTF-8; "" after success. Valid until the thread's next call.
 */
PCCL_EXPORT const char *gopcclLastError(void);

/*
 * Blocking calls of the whole process call poll from their own thread, several
 * times a second, while they wait. If it returns anything but 0, the call is
 * cancelled and fails: as if its peer had left the operation, and for a call
 * that changes the phase the run. Awaiting an all-reduce only stops waiting and
 * can be repeated. NULL: none.
 */
PCCL_EXPORT void gopcclSetPoll(int (*poll)(void));

/* The version of the library. */
PCCL_EXPORT const char *gopcclVersion(void);

/*
 * The unique number of this peer (16 bytes) and its place in the ring of its
 * group, as of the last round. Either pointer may be NULL. Results as of
 * pcclGetAttribute.
 */
PCCL_EXPORT pcclResult_t gopcclGetRank(const pcclComm_t *communicator, uint8_t *uuid_out, int *rank_out);

/* The address that a running master listens on; port 0 asks the system for one. */
PCCL_EXPORT pcclResult_t gopcclGetMasterPort(pcclMasterInstance_t *master_instance, uint16_t *port_out);

/*
 * The CUDA stream (CUstream, cudaStream_t) of this thread's calls from now on;
 * NULL, as at first, is the legacy default stream. A call on device memory
 * waits for what was queued on the stream before it, and its result is complete
 * for every stream when it, or awaiting it, returns. The stream must exist until
 * then. Calls on host memory do not look at it.
 */
PCCL_EXPORT void gopcclSetStream(void *stream);

/*
 * The number of the CUDA device whose memory ptr points to, or -1: any other
 * memory, or a library without CUDA.
 */
PCCL_EXPORT pcclResult_t gopcclFindDevice(const void *ptr, int *device_out);

#ifdef __cplusplus
}
#endif

#endif
