/*
 * A process that forks has only the calling thread afterwards, and the Go
 * runtime of the library, which started when the library was loaded, has lost
 * all of its own. Calls in the child therefore go to a second copy of the
 * library with a runtime of its own.
 */
#ifndef FORK_H
#define FORK_H

#include "gopccl.h"

#define FUNCTIONS(X)                                                                               \
    X(pcclInit) X(pcclGetBuildInfo) X(pcclCreateCommunicator) X(pcclDestroyCommunicator)           \
    X(pcclConnect) X(pcclGetAttribute) X(pcclUpdateTopology) X(pcclArePeersPending)                \
    X(pcclOptimizeTopology) X(pcclAllReduce) X(pcclAllReduceAsync) X(pcclAwaitAsyncReduce)         \
    X(pcclAllReduceMultipleWithRetry) X(pcclSynchronizeSharedState) X(pcclCreateMaster)            \
    X(pcclRunMaster) X(pcclInterruptMaster) X(pcclMasterAwaitTermination) X(pcclDestroyMaster)     \
    X(gopcclLastError) X(gopcclSetPoll) X(gopcclVersion) X(gopcclGetRank) X(gopcclGetMasterPort)    \
    X(gopcclSetStream) X(gopcclFindDevice) X(gopcclGetTorn) X(gopcclSetTorn)                        \
    X(gopcclAwaitAsyncReduce) X(gopcclListAsyncReduces) X(gopcclWaitForPeers) X(gopcclDumpState)   \
    X(gopcclCollect) X(gopcclCollectAsync) X(gopcclGetGroup) X(gopcclSend) X(gopcclReceive)        \
    X(gopcclSendAsync) X(gopcclReceiveAsync) X(gopcclAwaitMessage) X(gopcclClose)                   \
    X(gopcclLeave) X(gopcclSetCredential) X(gopcclSetMasterCredential)                              \
    X(gopcclSetMasters) X(gopcclSetReattachTimeout) X(gopcclSetDefaultHeartbeat)                    \
    X(gopcclSaveCheckpoint) X(gopcclLoadCheckpoint) X(gopcclFindCheckpoint)

#define FIELD(f) __typeof__(f) *f;
struct gopccl_api {
    FUNCTIONS(FIELD)
};

/* Whether this process is the child of a fork. */
extern volatile int gopccl_forked;

/* Whether pcclInit was called, before the fork or after it. */
extern volatile int gopccl_initialized;

/* What gopcclSetPoll was given. */
int (*gopccl_poll_function(void))(void);

/* The functions of the second copy, NULL if it could not be loaded. */
const struct gopccl_api *gopccl_second_copy(void);

#endif
