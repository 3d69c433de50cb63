//go:build cgo

// The exported functions. They keep handles numbers: a number in a Go pointer
// could end the process when the collector meets it.

#ifdef _WIN32
#include <windows.h>
#else
#include <pthread.h>
#include <time.h>
#endif
#include <stdlib.h>
#include <string.h>

#include "_cgo_export.h"
#include "fork.h"
#include "signals.h"

// The message of a thread's last failure is on the heap: a library that is
// loaded at run time gets only some hundred bytes of static thread storage.
static _Thread_local char *last_error;

#ifdef _WIN32
static void free_at_exit(char *p) { (void)p; }
#else
static pthread_key_t exit_key;
static pthread_once_t exit_once = PTHREAD_ONCE_INIT;
static void make_exit_key(void) { pthread_key_create(&exit_key, free); }
static void free_at_exit(char *p) {
    pthread_once(&exit_once, make_exit_key);
    pthread_setspecific(exit_key, p);
}
#endif

enum { ERROR_SIZE = 2048 };

void gopccl_set_error(const char *text, size_t n) {
    if (last_error == NULL) {
        if (n == 0 || (last_error = malloc(ERROR_SIZE)) == NULL) return;
        free_at_exit(last_error);
    }
    if (n >= ERROR_SIZE) n = ERROR_SIZE - 1;
    if (n > 0) memcpy(last_error, text, n);
    last_error[n] = 0;
}

#ifdef _WIN32
char **gopccl_environ(void) { return _environ; }
#else
extern char **environ;
char **gopccl_environ(void) { return environ; }
#endif

static int (*poll_function)(void);
static int polling;               /* threads inside of it, or about to be */
static _Thread_local int in_poll; /* of them, this one */

static void rest_a_while(void) {
#ifdef _WIN32
    Sleep(1);
#else
    struct timespec t = {0, 1000000};
    nanosleep(&t, NULL);
#endif
}

void gopcclSetPoll(int (*poll)(void)) {
    __atomic_store_n(&poll_function, poll, __ATOMIC_SEQ_CST);
    if (gopccl_forked) {
        const struct gopccl_api *copy = gopccl_second_copy();
        if (copy && copy->gopcclSetPoll) copy->gopcclSetPoll(poll);
        return; /* the parent's threads are not here */
    }
    /* A thread that polls sees the new function, or is counted. */
    while (in_poll == 0 && __atomic_load_n(&polling, __ATOMIC_SEQ_CST) > 0) rest_a_while();
}

int gopccl_polls(void) { return __atomic_load_n(&poll_function, __ATOMIC_ACQUIRE) != NULL; }

int gopccl_poll(void) {
    int (*poll)(void);
    int answer;
    __atomic_add_fetch(&polling, 1, __ATOMIC_SEQ_CST);
    in_poll++;
    poll = __atomic_load_n(&poll_function, __ATOMIC_SEQ_CST);
    answer = poll ? poll() : 0;
    in_poll--;
    __atomic_sub_fetch(&polling, 1, __ATOMIC_SEQ_CST);
    return answer;
}

int (*gopccl_poll_function(void))(void) { return __atomic_load_n(&poll_function, __ATOMIC_ACQUIRE); }

// The stream is the thread's, as the current stream of PyTorch is.
static _Thread_local void *stream;

void gopcclSetStream(void *cuda_stream) {
    stream = cuda_stream;
    if (gopccl_forked) {
        const struct gopccl_api *copy = gopccl_second_copy();
        if (copy && copy->gopcclSetStream) copy->gopcclSetStream(cuda_stream);
    }
}

uintptr_t gopccl_stream(void) { return (uintptr_t)stream; }

#define HANDLE(h) ((uintptr_t)(h))

#define REDIRECT(f, arguments)                                                                     \
    if (gopccl_forked) {                                                                           \
        const struct gopccl_api *copy = gopccl_second_copy();                                      \
        return copy ? copy->f arguments : pcclInternalError;                                       \
    }

pcclResult_t pcclInit(void) {
    REDIRECT(pcclInit, ())
    gopccl_initialized = 1;
    gopccl_prepare_signals();
    return (pcclResult_t)gopccl_init();
}

pcclResult_t pcclGetBuildInfo(pcclBuildInfo_t *info) {
    REDIRECT(pcclGetBuildInfo, (info))
    return (pcclResult_t)gopccl_build_info(info);
}

pcclResult_t pcclCreateCommunicator(const pcclCommCreateParams_t *params, pcclComm_t **comm_out) {
    REDIRECT(pcclCreateCommunicator, (params, comm_out))
    gopccl_prepare_signals();
    uintptr_t h = 0;
    int r = gopccl_create((pcclCommCreateParams_t *)params, comm_out != NULL, &h);
    if (r == 0) *comm_out = (pcclComm_t *)h;
    return (pcclResult_t)r;
}

pcclResult_t pcclDestroyCommunicator(pcclComm_t *communicator) {
    REDIRECT(pcclDestroyCommunicator, (communicator))
    return (pcclResult_t)gopccl_destroy(HANDLE(communicator));
}

pcclResult_t pcclConnect(pcclComm_t *communicator) {
    REDIRECT(pcclConnect, (communicator))
    gopccl_prepare_signals();
    return (pcclResult_t)gopccl_connect(HANDLE(communicator));
}

pcclResult_t pcclGetAttribute(const pcclComm_t *communicator, pcclAttribute_t attribute, int *p_attribute_out) {
    REDIRECT(pcclGetAttribute, (communicator, attribute, p_attribute_out))
    return (pcclResult_t)gopccl_attribute(HANDLE(communicator), (int)attribute, p_attribute_out);
}

pcclResult_t pcclUpdateTopology(pcclComm_t *communicator) {
    REDIRECT(pcclUpdateTopology, (communicator))
    return (pcclResult_t)gopccl_update(HANDLE(communicator));
}

pcclResult_t pcclArePeersPending(const pcclComm_t *communicator, bool *pending_out) {
    REDIRECT(pcclArePeersPending, (communicator, pending_out))
    return (pcclResult_t)gopccl_pending(HANDLE(communicator), pending_out);
}

pcclResult_t pcclOptimizeTopology(const pcclComm_t *communicator) {
    REDIRECT(pcclOptimizeTopology, (communicator))
    return (pcclResult_t)gopccl_optimize(HANDLE(communicator));
}

pcclResult_t pcclAllReduce(const void *sendbuff, void *recvbuff, const pcclReduceDescriptor_t *descriptor,
                           const pcclComm_t *communicator, pcclReduceInfo_t *reduce_info_out) {
    REDIRECT(pcclAllReduce, (sendbuff, recvbuff, descriptor, communicator, reduce_info_out))
    return (pcclResult_t)gopccl_reduce((void *)sendbuff, recvbuff, (pcclReduceDescriptor_t *)descriptor,
                                       HANDLE(communicator), reduce_info_out);
}

pcclResult_t pcclAllReduceAsync(const void *sendbuff, void *recvbuff, const pcclReduceDescriptor_t *descriptor,
                                const pcclComm_t *communicator, pcclAsyncReduceOp_t *reduce_handle_out) {
    REDIRECT(pcclAllReduceAsync, (sendbuff, recvbuff, descriptor, communicator, reduce_handle_out))
    int r = gopccl_launch((void *)sendbuff, recvbuff, (pcclReduceDescriptor_t *)descriptor,
                          HANDLE(communicator), reduce_handle_out != NULL);
    if (r == 0) {
        reduce_handle_out->comm = (pcclComm_t *)communicator;
        reduce_handle_out->tag = descriptor->tag;
    }
    return (pcclResult_t)r;
}

pcclResult_t pcclAwaitAsyncReduce(const pcclAsyncReduceOp_t *reduce_handle, pcclReduceInfo_t *reduce_info_out) {
    REDIRECT(pcclAwaitAsyncReduce, (reduce_handle, reduce_info_out))
    uintptr_t comm = reduce_handle ? HANDLE(reduce_handle->comm) : 0;
    return (pcclResult_t)gopccl_await(comm, reduce_handle ? reduce_handle->tag : 0, reduce_info_out);
}

pcclResult_t gopcclAwaitAsyncReduce(const pcclAsyncReduceOp_t *reduce_handle, gopcclVerdict_t *verdict_out) {
    REDIRECT(gopcclAwaitAsyncReduce, (reduce_handle, verdict_out))
    uintptr_t comm = reduce_handle ? HANDLE(reduce_handle->comm) : 0;
    return (pcclResult_t)gopccl_verdict(comm, reduce_handle ? reduce_handle->tag : 0, verdict_out);
}

pcclResult_t gopcclListAsyncReduces(const pcclComm_t *communicator, gopcclAsyncReduce_t *list, size_t capacity,
                                    size_t *count_out) {
    REDIRECT(gopcclListAsyncReduces, (communicator, list, capacity, count_out))
    return (pcclResult_t)gopccl_list(HANDLE(communicator), list, capacity, count_out);
}

pcclResult_t pcclAllReduceMultipleWithRetry(const pcclReduceOpDescriptor_t *descriptors, size_t count,
                                            const pcclComm_t *communicator, pcclReduceInfo_t *reduce_info_out,
                                            int max_in_flight) {
    REDIRECT(pcclAllReduceMultipleWithRetry, (descriptors, count, communicator, reduce_info_out, max_in_flight))
    return (pcclResult_t)gopccl_retry((pcclReduceOpDescriptor_t *)descriptors, count, HANDLE(communicator),
                                      reduce_info_out, max_in_flight);
}

pcclResult_t pcclSynchronizeSharedState(const pcclComm_t *communicator, pcclSharedState_t *shared_state,
                                        pcclSharedStateSyncStrategy_t strategy,
                                        pcclSharedStateSyncInfo_t *sync_info_out) {
    REDIRECT(pcclSynchronizeSharedState, (communicator, shared_state, strategy, sync_info_out))
    return (pcclResult_t)gopccl_sync(HANDLE(communicator), shared_state, (int)strategy, sync_info_out);
}

pcclResult_t pcclCreateMaster(ccoip_socket_address_t listen_address, pcclMasterInstance_t **p_master_handle_out) {
    REDIRECT(pcclCreateMaster, (listen_address, p_master_handle_out))
    uintptr_t h = 0;
    int r = gopccl_create_master(&listen_address, p_master_handle_out != NULL, &h);
    if (r == 0) *p_master_handle_out = (pcclMasterInstance_t *)h;
    return (pcclResult_t)r;
}

pcclResult_t pcclRunMaster(pcclMasterInstance_t *master_instance) {
    REDIRECT(pcclRunMaster, (master_instance))
    gopccl_prepare_signals();
    return (pcclResult_t)gopccl_run_master(HANDLE(master_instance));
}

pcclResult_t pcclInterruptMaster(pcclMasterInstance_t *master_instance) {
    REDIRECT(pcclInterruptMaster, (master_instance))
    return (pcclResult_t)gopccl_interrupt_master(HANDLE(master_instance));
}

pcclResult_t pcclMasterAwaitTermination(pcclMasterInstance_t *master_instance) {
    REDIRECT(pcclMasterAwaitTermination, (master_instance))
    return (pcclResult_t)gopccl_await_master(HANDLE(master_instance));
}

pcclResult_t pcclDestroyMaster(pcclMasterInstance_t *master_instance) {
    REDIRECT(pcclDestroyMaster, (master_instance))
    return (pcclResult_t)gopccl_destroy_master(HANDLE(master_instance));
}

const char *gopcclLastError(void) {
    if (gopccl_forked) {
        const struct gopccl_api *copy = gopccl_second_copy();
        return copy ? copy->gopcclLastError() : "gopccl: the library was loaded before the process was forked";
    }
    return last_error ? last_error : "";
}

const char *gopcclVersion(void) {
    if (gopccl_forked) {
        const struct gopccl_api *copy = gopccl_second_copy();
        return copy ? copy->gopcclVersion() : "";
    }
    return gopccl_version();
}

pcclResult_t gopcclWaitForPeers(const pcclComm_t *communicator, size_t n) {
    REDIRECT(gopcclWaitForPeers, (communicator, n))
    return (pcclResult_t)gopccl_wait_for_peers(HANDLE(communicator), n);
}

pcclResult_t gopcclSetCredential(pcclComm_t *communicator, const char *path, const char *join) {
    REDIRECT(gopcclSetCredential, (communicator, path, join))
    return (pcclResult_t)gopccl_set_credential(HANDLE(communicator), (char *)path, (char *)join);
}

pcclResult_t gopcclSetMasterCredential(pcclMasterInstance_t *master_instance, const char *path, const char *enroll) {
    REDIRECT(gopcclSetMasterCredential, (master_instance, path, enroll))
    return (pcclResult_t)gopccl_set_master_credential(HANDLE(master_instance), (char *)path, (char *)enroll);
}

pcclResult_t gopcclSetMasters(pcclComm_t *communicator, const char *masters) {
    REDIRECT(gopcclSetMasters, (communicator, masters))
    return (pcclResult_t)gopccl_set_masters(HANDLE(communicator), (char *)masters);
}

pcclResult_t gopcclSetReattachTimeout(pcclComm_t *communicator, uint64_t milliseconds) {
    REDIRECT(gopcclSetReattachTimeout, (communicator, milliseconds))
    return (pcclResult_t)gopccl_set_reattach_timeout(HANDLE(communicator), milliseconds);
}

pcclResult_t gopcclSetDefaultHeartbeat(pcclMasterInstance_t *master_instance, uint64_t interval, uint64_t timeout) {
    REDIRECT(gopcclSetDefaultHeartbeat, (master_instance, interval, timeout))
    return (pcclResult_t)gopccl_set_default_heartbeat(HANDLE(master_instance), interval, timeout);
}

pcclResult_t gopcclLeave(const pcclComm_t *communicator) {
    REDIRECT(gopcclLeave, (communicator))
    return (pcclResult_t)gopccl_leave(HANDLE(communicator));
}

pcclResult_t gopcclCollect(const pcclComm_t *communicator, const gopcclCollective_t *collective,
                           pcclReduceInfo_t *info_out) {
    REDIRECT(gopcclCollect, (communicator, collective, info_out))
    return (pcclResult_t)gopccl_collect(HANDLE(communicator), (gopcclCollective_t *)collective, info_out);
}

pcclResult_t gopcclCollectAsync(const pcclComm_t *communicator, const gopcclCollective_t *collective,
                                pcclAsyncReduceOp_t *handle_out) {
    REDIRECT(gopcclCollectAsync, (communicator, collective, handle_out))
    uint64_t tag = 0;
    int r = gopccl_collect_async(HANDLE(communicator), (gopcclCollective_t *)collective, handle_out != NULL, &tag);
    if (r == 0) {
        handle_out->comm = (pcclComm_t *)communicator;
        handle_out->tag = tag;
    }
    return (pcclResult_t)r;
}

pcclResult_t gopcclGetGroup(const pcclComm_t *communicator, gopcclGroup_t *group_out, uint8_t (*members)[16],
                            size_t capacity) {
    REDIRECT(gopcclGetGroup, (communicator, group_out, members, capacity))
    return (pcclResult_t)gopccl_group(HANDLE(communicator), group_out, (uint8_t *)members, capacity);
}

pcclResult_t gopcclClose(const pcclComm_t *communicator) {
    REDIRECT(gopcclClose, (communicator))
    return (pcclResult_t)gopccl_close(HANDLE(communicator));
}

pcclResult_t gopcclSend(const pcclComm_t *communicator, const gopcclMessage_t *message) {
    REDIRECT(gopcclSend, (communicator, message))
    return (pcclResult_t)gopccl_send(HANDLE(communicator), (gopcclMessage_t *)message);
}

pcclResult_t gopcclReceive(const pcclComm_t *communicator, const gopcclMessage_t *message, int *from_out) {
    REDIRECT(gopcclReceive, (communicator, message, from_out))
    return (pcclResult_t)gopccl_receive(HANDLE(communicator), (gopcclMessage_t *)message, from_out);
}

pcclResult_t gopcclSendAsync(const pcclComm_t *communicator, const gopcclMessage_t *message,
                             pcclAsyncReduceOp_t *handle_out) {
    REDIRECT(gopcclSendAsync, (communicator, message, handle_out))
    uint64_t tag = 0;
    int r = gopccl_send_async(HANDLE(communicator), (gopcclMessage_t *)message, handle_out != NULL, &tag);
    if (r == 0) {
        handle_out->comm = (pcclComm_t *)communicator;
        handle_out->tag = tag;
    }
    return (pcclResult_t)r;
}

pcclResult_t gopcclReceiveAsync(const pcclComm_t *communicator, const gopcclMessage_t *message,
                                pcclAsyncReduceOp_t *handle_out) {
    REDIRECT(gopcclReceiveAsync, (communicator, message, handle_out))
    uint64_t tag = 0;
    int r = gopccl_receive_async(HANDLE(communicator), (gopcclMessage_t *)message, handle_out != NULL, &tag);
    if (r == 0) {
        handle_out->comm = (pcclComm_t *)communicator;
        handle_out->tag = tag;
    }
    return (pcclResult_t)r;
}

pcclResult_t gopcclAwaitMessage(const pcclAsyncReduceOp_t *handle, gopcclReceipt_t *receipt_out) {
    REDIRECT(gopcclAwaitMessage, (handle, receipt_out))
    return (pcclResult_t)gopccl_receipt(handle ? HANDLE(handle->comm) : 0, handle ? handle->tag : 0, receipt_out);
}

size_t gopcclDumpState(char *buffer, size_t size) {
    if (gopccl_forked) {
        const struct gopccl_api *copy = gopccl_second_copy();
        if (copy && copy->gopcclDumpState) return copy->gopcclDumpState(buffer, size);
        if (buffer && size > 0) *buffer = 0;
        return 0;
    }
    return gopccl_dump(buffer, size);
}

pcclResult_t gopcclGetRank(const pcclComm_t *communicator, uint8_t *uuid_out, int *rank_out) {
    REDIRECT(gopcclGetRank, (communicator, uuid_out, rank_out))
    return (pcclResult_t)gopccl_rank(HANDLE(communicator), uuid_out, rank_out);
}

pcclResult_t gopcclGetMasterPort(pcclMasterInstance_t *master_instance, uint16_t *port_out) {
    REDIRECT(gopcclGetMasterPort, (master_instance, port_out))
    return (pcclResult_t)gopccl_master_port(HANDLE(master_instance), port_out);
}

pcclResult_t gopcclFindDevice(const void *ptr, int *device_out) {
    REDIRECT(gopcclFindDevice, (ptr, device_out))
    return (pcclResult_t)gopccl_find_device((void *)ptr, device_out);
}

pcclResult_t gopcclGetTorn(const pcclSharedState_t *shared_state, bool *torn_out) {
    REDIRECT(gopcclGetTorn, (shared_state, torn_out))
    return (pcclResult_t)gopccl_get_torn((pcclSharedState_t *)shared_state, torn_out);
}

pcclResult_t gopcclSetTorn(const pcclSharedState_t *shared_state, const bool *torn) {
    REDIRECT(gopcclSetTorn, (shared_state, torn))
    return (pcclResult_t)gopccl_set_torn((pcclSharedState_t *)shared_state, (bool *)torn);
}

pcclResult_t gopcclSaveCheckpoint(const pcclSharedState_t *shared_state, const char *directory, size_t keep,
                                  const char *meta, char *path_out, size_t capacity, size_t *size_out) {
    REDIRECT(gopcclSaveCheckpoint, (shared_state, directory, keep, meta, path_out, capacity, size_out))
    return (pcclResult_t)gopccl_save_checkpoint((pcclSharedState_t *)shared_state, (char *)directory, keep,
                                                (char *)meta, path_out, capacity, size_out);
}

pcclResult_t gopcclLoadCheckpoint(pcclSharedState_t *shared_state, const char *path, char *meta_out,
                                  size_t capacity, size_t *size_out) {
    REDIRECT(gopcclLoadCheckpoint, (shared_state, path, meta_out, capacity, size_out))
    return (pcclResult_t)gopccl_load_checkpoint(shared_state, (char *)path, meta_out, capacity, size_out);
}

pcclResult_t gopcclFindCheckpoint(const char *directory, char *path_out, size_t capacity, size_t *size_out) {
    REDIRECT(gopcclFindCheckpoint, (directory, path_out, capacity, size_out))
    return (pcclResult_t)gopccl_find_checkpoint((char *)directory, path_out, capacity, size_out);
}
