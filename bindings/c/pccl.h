/*
 * The C interface of PCCL 1.0.0, implemented by gopccl: same functions, layouts,
 * numbers and results.
 *
 * Memory. Every buffer, descriptor and name stays the caller's. The library
 * reads and writes it during the call only, with one exception: the two buffers
 * of pcclAllReduceAsync belong to the library until pcclAwaitAsyncReduce or
 * pcclDestroyCommunicator has returned. Buffers need no alignment.
 *
 * Threads. Every function may be called from any thread. Calls that the
 * protocol does not let overlap return pcclInvalidUsage or pcclPendingAsyncOps.
 * pcclDestroyCommunicator ends the calls that other threads have running on
 * the communicator.
 *
 * Handles are numbers that are used once: NULL, destroyed and foreign ones give
 * pcclInvalidArgument.
 *
 * All peers of a group make the same calls in the same order; a call that
 * changes membership or state waits until all make it.
 */
#ifndef PCCL_H
#define PCCL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ccoip_inet.h"

#if defined(_WIN32) && defined(GOPCCL_BUILD)
#define PCCL_EXPORT __declspec(dllexport)
#elif defined(_WIN32)
#define PCCL_EXPORT __declspec(dllimport)
#else
#define PCCL_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum pcclResult_t {
    pcclSuccess = 0,
    pcclNotInitialized = 1,           /* pcclInit was not called */
    pcclInternalError = 2,            /* a fault of the library, see the log */
    pcclInvalidArgument = 3,          /* NULL, an unknown number, a foreign handle */
    pcclInvalidUsage = 4,             /* not now: not connected, already running, ... */
    pcclTooFewPeers = 5,              /* alone in the group */
    pcclMasterConnectionFailed = 6,
    pcclRankConnectionFailed = 7,     /* never returned */
    pcclRankConnectionLost = 8,       /* aborted; in-place buffers are as before: retry */
    pcclNoSharedStateAvailable = 9,   /* never returned */
    pcclPendingAsyncOps = 10,         /* an asynchronous all-reduce was not awaited */
    pcclUpdateTopologyFailed = 11,    /* master lost, or kicked by it */
    pcclTopologyOptimizationFailed = 12
} pcclResult_t;

/* These numbers are not those on the wire. */
typedef enum pcclDataType_t {
    pcclUint8 = 0,
    pcclInt8 = 1,
    pcclInt16 = 2,
    pcclUint16 = 3,
    pcclUint32 = 4,
    pcclInt32 = 5,
    pcclUint64 = 6,
    pcclInt64 = 7,
    pcclFloat16 = 8,
    pcclBFloat16 = 9,
    pcclFloat = 10,
    pcclDouble = 11
} pcclDataType_t;

typedef enum pcclDeviceType_t {
    pcclDeviceCpu = 0,
    pcclDeviceCuda = 1 /* pcclInvalidArgument in a library without CUDA, or if data is not device memory */
} pcclDeviceType_t;

typedef enum pcclRedOp_t {
    pcclSum = 0,
    pcclAvg = 1,
    pcclProd = 2,
    pcclMax = 3,
    pcclMin = 4
} pcclRedOp_t;

typedef enum pcclAttribute_t {
    PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE = 1, /* of all groups; with a PCCL master waiting peers included */
    PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE = 2,
    PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS = 3,
    PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE = 4
} pcclAttribute_t;

typedef enum pcclSharedStateSyncStrategy_t {
    PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR = 0, /* the content that most peers hold */
    PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY = 1,    /* this peer's content does not stand for election */
    PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY = 2        /* this peer's content stands for election, others receive */
} pcclSharedStateSyncStrategy_t;

typedef enum pcclDistributionHint_t { /* has no effect */
    pcclDistributionNone = 0,
    pcclDistributionNormal = 1,
    pcclDistributionUniform = 2
} pcclDistributionHint_t;

typedef enum pcclQuantizationAlgorithm_t {
    pcclQuantNone = 0,
    pcclQuantMinMax = 1,
    pcclQuantZeroPointScale = 2
} pcclQuantizationAlgorithm_t;

typedef struct pcclComm_t pcclComm_t;
typedef struct pcclMasterInstanceState_t pcclMasterInstance_t;

typedef struct pcclBuildInfo_t {
    bool has_cuda_support; /* built with it; there may still be none */
} pcclBuildInfo_t;

typedef struct pcclCommCreateParams_t {
    ccoip_socket_address_t master_address;
    uint32_t peer_group;
    uint32_t p2p_connection_pool_size; /* connections to the next peer; 0: as many as help */
} pcclCommCreateParams_t;

typedef struct pcclReduceOperandDescriptor_t {
    pcclDataType_t datatype;
    pcclDistributionHint_t distribution_hint;
} pcclReduceOperandDescriptor_t;

/* quantized_datatype is the type on the wire; it counts only with an algorithm. */
typedef struct pcclQuantizationOptions_t {
    pcclDataType_t quantized_datatype;
    pcclQuantizationAlgorithm_t algorithm;
} pcclQuantizationOptions_t;

typedef struct pcclReduceDescriptor_t {
    size_t count; /* elements */
    pcclRedOp_t op;
    uint64_t tag; /* names the operation until it was awaited, same on every peer */
    pcclReduceOperandDescriptor_t src_descriptor;
    pcclQuantizationOptions_t quantization_options;
} pcclReduceDescriptor_t;

typedef struct pcclReduceSingleDescriptor_t {
    void *sendbuf;
    void *recvbuf;
    pcclReduceDescriptor_t descriptor;
} pcclReduceOpDescriptor_t;

/* What an operation moved; filled in after success only. */
typedef struct pcclReduceInfo_t {
    uint32_t local_world_size;
    uint64_t tx_bytes;
    uint64_t rx_bytes;
} pcclReduceInfo_t;

typedef struct pcclAsyncReduceOp_t {
    pcclComm_t *comm;
    uint64_t tag;
} pcclAsyncReduceOp_t;

typedef struct pcclTensorInfo_t {
    const char *name; /* unique in the state */
    void *data;
    size_t count; /* elements */
    pcclDataType_t datatype;
    pcclDeviceType_t device_type;
    bool allow_content_inequality; /* true: the content is neither compared nor checked */
} pcclTensorInfo_t;

/* Raise revision by one before every synchronization but the first. */
typedef struct pcclSharedState_t {
    uint64_t revision;
    size_t count; /* of infos */
    pcclTensorInfo_t *infos;
} pcclSharedState_t;

typedef struct pcclSharedStateSyncInfo_t {
    uint64_t tx_bytes;
    uint64_t rx_bytes;
} pcclSharedStateSyncInfo_t;

/* To be called before any function on communicators; repeated calls do nothing. */
PCCL_EXPORT pcclResult_t pcclInit(void);

PCCL_EXPORT pcclResult_t pcclGetBuildInfo(pcclBuildInfo_t *info);

/* Communicators. Create does not connect. */
PCCL_EXPORT pcclResult_t pcclCreateCommunicator(const pcclCommCreateParams_t *params, pcclComm_t **comm_out);

/* Leaves the run. Running operations are aborted for all peers, their buffers are the caller's again. */
PCCL_EXPORT pcclResult_t pcclDestroyCommunicator(pcclComm_t *communicator);

/* Returns when the peers of the run have let this one in; may be repeated after a failure. */
PCCL_EXPORT pcclResult_t pcclConnect(pcclComm_t *communicator);

PCCL_EXPORT pcclResult_t pcclGetAttribute(const pcclComm_t *communicator, pcclAttribute_t attribute,
                                          int *p_attribute_out);

/* Lets waiting peers in. */
PCCL_EXPORT pcclResult_t pcclUpdateTopology(pcclComm_t *communicator);

/* Whether peers wait to be let in; may run beside all-reduces. */
PCCL_EXPORT pcclResult_t pcclArePeersPending(const pcclComm_t *communicator, bool *pending_out);

/* Measures bandwidths and adopts a better ring. */
PCCL_EXPORT pcclResult_t pcclOptimizeTopology(const pcclComm_t *communicator);

/*
 * recvbuff may be sendbuff; any other overlap is refused. reduce_info_out may be NULL.
 * In a library with CUDA both may be memory of a device: it is found by its address.
 * They are used behind what was queued on the legacy default stream before the call.
 * After a failure an in-place buffer is as before; recvbuff is undefined otherwise.
 */
PCCL_EXPORT pcclResult_t pcclAllReduce(const void *sendbuff, void *recvbuff, const pcclReduceDescriptor_t *descriptor,
                                       const pcclComm_t *communicator, pcclReduceInfo_t *reduce_info_out);

/*
 * Starts an all-reduce. The buffers belong to the library until it has been awaited.
 * A tag whose operation was not awaited yet gives pcclInvalidArgument, also in pcclAllReduce.
 */
PCCL_EXPORT pcclResult_t pcclAllReduceAsync(const void *sendbuff, void *recvbuff,
                                            const pcclReduceDescriptor_t *descriptor, const pcclComm_t *communicator,
                                            pcclAsyncReduceOp_t *reduce_handle_out);

/*
 * Waits for an operation, once; threads that wait at the same time get the same. pcclInvalidUsage: no
 * operation with this tag was launched, or it has been awaited. reduce_info_out may be NULL.
 */
PCCL_EXPORT pcclResult_t pcclAwaitAsyncReduce(const pcclAsyncReduceOp_t *reduce_handle,
                                              pcclReduceInfo_t *reduce_info_out);

/*
 * Reduces all, at most max_in_flight at a time, and repeats with the survivors
 * what a leaving peer aborted. The sums go to reduce_info_out, which may be NULL.
 */
PCCL_EXPORT pcclResult_t pcclAllReduceMultipleWithRetry(const pcclReduceOpDescriptor_t *descriptors, size_t count,
                                                        const pcclComm_t *communicator,
                                                        pcclReduceInfo_t *reduce_info_out, int max_in_flight);

/*
 * Makes the state equal on all peers of the group. A peer that was outdated
 * gets content and revision of the elected state. sync_info_out may be NULL.
 * Whatever makes it fail while content is received, tensors may be overwritten in
 * part and the revision is what it was: the state is a mixture, which is never
 * elected, until a call succeeds or the program has loaded the tensors again.
 */
PCCL_EXPORT pcclResult_t pcclSynchronizeSharedState(const pcclComm_t *communicator, pcclSharedState_t *shared_state,
                                                    pcclSharedStateSyncStrategy_t strategy,
                                                    pcclSharedStateSyncInfo_t *sync_info_out);

/* Masters. They do not need pcclInit. */
PCCL_EXPORT pcclResult_t pcclCreateMaster(ccoip_socket_address_t listen_address,
                                          pcclMasterInstance_t **p_master_handle_out);

/* Listens and returns at once; once per master. */
PCCL_EXPORT pcclResult_t pcclRunMaster(pcclMasterInstance_t *master_instance);

/* Asks a running master to end. */
PCCL_EXPORT pcclResult_t pcclInterruptMaster(pcclMasterInstance_t *master_instance);

/* Returns when the master has ended. */
PCCL_EXPORT pcclResult_t pcclMasterAwaitTermination(pcclMasterInstance_t *master_instance);

/* Ends the master if it runs. */
PCCL_EXPORT pcclResult_t pcclDestroyMaster(pcclMasterInstance_t *master_instance);

#ifdef __cplusplus
}
#endif

#endif
