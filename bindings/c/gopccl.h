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
 * that changes the phase the run. A launch that had to wait is taken back. An
 * all-reduce that this peer is through with cannot be taken from the others: the
 * call waits for the slowest of them, and succeeds if they do.
 * Awaiting an all-reduce or the end of a master, and destroying, only stop
 * waiting: what is destroyed ends without the caller, and the call can be
 * repeated. NULL: none. When gopcclSetPoll returns, no thread is inside the
 * function that was there before, nor will be, unless poll itself has called it.
 */
PCCL_EXPORT void gopcclSetPoll(int (*poll)(void));

/*
 * What an operation did. known is set last, and only when the operation was
 * awaited: a caller that is interrupted behind the call finds the verdict here.
 */
typedef struct gopcclVerdict_t {
    bool known;
    pcclResult_t result;
    pcclReduceInfo_t info; /* after success only */
} gopcclVerdict_t;

/* pcclAwaitAsyncReduce, which tells a verdict from a call that stopped waiting. */
PCCL_EXPORT pcclResult_t gopcclAwaitAsyncReduce(const pcclAsyncReduceOp_t *reduce_handle,
                                                gopcclVerdict_t *verdict_out);

/* An asynchronous operation that was not awaited yet. */
typedef struct gopcclAsyncReduce_t {
    uint64_t tag;
    bool ended; /* the verdict is known: the buffers are the caller's again */
} gopcclAsyncReduce_t;

/*
 * Lists what was launched and not awaited, in order, as much as fits; count_out
 * is how many there are. It never waits. Results: pcclInvalidArgument.
 */
PCCL_EXPORT pcclResult_t gopcclListAsyncReduces(const pcclComm_t *communicator, gopcclAsyncReduce_t *list,
                                                size_t capacity, size_t *count_out);

/* What a collective does with the blocks of the members. */
typedef enum gopcclKind_t {
    gopcclAllGather = 1,     /* src: the own block; dst: those of all */
    gopcclReduceScatter = 2, /* src: a block for each member; dst: the own one, reduced over all members */
    gopcclBroadcast = 3,     /* src: the root's buffer; dst: that of the others (the root's: NULL, src, or a copy) */
    gopcclReduce = 4,        /* dst of the root: src, reduced over all members */
    gopcclGather = 5,        /* src: the own block; dst of the root: those of all */
    gopcclScatter = 6,       /* src of the root: a block for each member; dst: the own one */
    gopcclAllToAll = 7,      /* src: a block for each member; dst: one from each */
    gopcclBarrier = 8        /* no data: returns when every member has called it */
} gopcclKind_t;

/*
 * One collective other than an all-reduce. Every member of the group must be a
 * gopccl peer that has them, and the master too (gopcclGetGroup says so). Clear it
 * (memset, or = {0}), then set size and what the kind needs. Kind, tag, root,
 * datatype, op, quantization and the counts that all know must be the same on every member.
 *
 * Members are named by their index in gopcclGetGroup, which does not change with
 * the ring; blocks lie in this order, without gaps. In place, the own block is at
 * the same address in src and dst; an all-to-all has no such form. Any other
 * overlap is pcclInvalidArgument. Buffers that the kind does not name for this member
 * are not looked at, and may be NULL. Both are memory of the host or, in a library with
 * CUDA, of devices, as those of an all-reduce (gopcclSetStream).
 *
 * quantizer makes what an all-gather or reduce-scatter sends smaller: "minmax",
 * "zeropoint", "blocks" or that of a plugin, of float and double. A sum is encoded
 * at every hop. A block that is gathered is encoded by its owner alone, who gets
 * in dst what the others decode: all members have the same bits.
 *
 * After a failure all that was input is as before, bit by bit. What is output alone
 * is undefined unless preserve is set, which costs a copy of what is overwritten.
 */
typedef struct gopcclCollective_t {
    size_t size;       /* sizeof(gopcclCollective_t) */
    gopcclKind_t kind;
    uint32_t root;     /* index of the member; of broadcast, reduce, gather and scatter */
    uint64_t tag;      /* among those in flight, all-reduces included; a barrier takes none */
    const void *src;
    void *dst;
    size_t src_count;  /* elements of src */
    size_t dst_count;  /* elements of dst */
    const size_t *counts;      /* elements of the blocks, by member; NULL: all are equal */
    const size_t *send_counts; /* those of src and dst of an all-to-all; NULL: equal */
    const size_t *recv_counts;
    size_t members;    /* length of each of these lists: the size of the group */
    pcclDataType_t datatype;
    pcclRedOp_t op;    /* of reduce and reduce-scatter */
    bool preserve;
    const char *quantizer;      /* see below; NULL or "none": none */
    const char *quantized_type; /* element type on the wire, as "uint8" or "int4"; NULL: the narrowest it has */
} gopcclCollective_t;

/*
 * Does a collective and waits. info_out may be NULL. Results as of pcclAllReduce;
 * pcclInvalidUsage also if a member or the master does not have collectives:
 * gopcclLastError names it. After pcclRankConnectionLost ask gopcclGetGroup for the
 * members that are left, and retry.
 */
PCCL_EXPORT pcclResult_t gopcclCollect(const pcclComm_t *communicator, const gopcclCollective_t *collective,
                                       pcclReduceInfo_t *info_out);

/*
 * Launches a collective. collective and the lists of counts are the caller's when it
 * returns, src and dst the library's until the verdict. pcclAwaitAsyncReduce and
 * gopcclAwaitAsyncReduce await it, and gopcclListAsyncReduces lists it, as an
 * asynchronous all-reduce. The tag of a barrier's handle is UINT64_MAX.
 */
PCCL_EXPORT pcclResult_t gopcclCollectAsync(const pcclComm_t *communicator, const gopcclCollective_t *collective,
                                            pcclAsyncReduceOp_t *handle_out);

/* The group of a communicator as collectives see it, as of the last round. */
typedef struct gopcclGroup_t {
    size_t size;      /* members of the group */
    int index;        /* this peer's index among the members; -1 without collectives */
    bool collectives; /* every member and the master have those besides all-reduce */
    bool mesh;        /* all are connected with each other: a gather, scatter or all-to-all has asked for it */
} gopcclGroup_t;

/*
 * Writes the group, and into members the unique numbers (16 bytes each) of its
 * members in the order of collectives, as much as fits; NULL with capacity 0: none.
 * Nothing is written into members without collectives. Results as of pcclGetAttribute.
 */
PCCL_EXPORT pcclResult_t gopcclGetGroup(const pcclComm_t *communicator, gopcclGroup_t *group_out,
                                        uint8_t (*members)[16], size_t capacity);

/* As peer of a receive: a message of any member. */
enum { gopcclAnyPeer = -1 };

/*
 * One message from one member of the group to another. It needs what collectives need,
 * and no member may have eager start turned off (peer.eager_bytes). Clear it, then set
 * size and the rest. data is memory of the host or, in a library with CUDA, of a device. Such
 * a call waits until what was queued on the stream before it (gopcclSetStream) is done and,
 * of what is sent, until all of it is on the host.
 */
typedef struct gopcclMessage_t {
    size_t size;  /* sizeof(gopcclMessage_t) */
    int peer;     /* the other end, by its index (gopcclGetGroup) */
    uint64_t tag; /* the same at both ends; any number of messages may have it */
    void *data;   /* what is sent, which is not written to, or where it is received */
    size_t bytes; /* the same at both ends, else both get pcclInvalidArgument */
} gopcclMessage_t;

/*
 * Sends a message, and returns when the other end has received all of it. Two members
 * that send to each other have to receive at the same time: see gopcclSendAsync. Messages
 * of one sender with one tag are received in the order in which they were sent. No vote is
 * taken, and no other member hears of it.
 *
 * Results: pcclRankConnectionLost if the other end has left, given up or cannot be reached,
 * or if a round has begun; update the topology, ask gopcclGetGroup for the members that are
 * left, and repeat it. pcclTooFewPeers, pcclInvalidArgument. pcclInvalidUsage while a round
 * runs, if 1024 messages to that member were not received, or if somebody has no messages:
 * gopcclLastError says what it is.
 */
PCCL_EXPORT pcclResult_t gopcclSend(const pcclComm_t *communicator, const gopcclMessage_t *message);

/*
 * Receives a message, and writes the index of its sender into from_out, which may be NULL.
 * After a failure the memory is undefined. Results as of gopcclSend; a receive from any
 * member is pcclRankConnectionLost if one has left.
 */
PCCL_EXPORT pcclResult_t gopcclReceive(const pcclComm_t *communicator, const gopcclMessage_t *message,
                                       int *from_out);

/*
 * Begins to send or to receive a message. message is the caller's when it returns, data the
 * library's until the message is awaited, which gopcclAwaitMessage does, and every function
 * that awaits an asynchronous all-reduce, with 0 as info; gopcclListAsyncReduces lists it. The tag of the
 * handle is not that of the message: the library counts down from UINT64_MAX - 1 and takes
 * those that are free. To send waits until there is a connection to the other end: the first
 * message to a member that is not a neighbour has all members connect with each other.
 */
PCCL_EXPORT pcclResult_t gopcclSendAsync(const pcclComm_t *communicator, const gopcclMessage_t *message,
                                         pcclAsyncReduceOp_t *handle_out);
PCCL_EXPORT pcclResult_t gopcclReceiveAsync(const pcclComm_t *communicator, const gopcclMessage_t *message,
                                            pcclAsyncReduceOp_t *handle_out);

/* What became of a message. known is set last, as in gopcclVerdict_t. */
typedef struct gopcclReceipt_t {
    bool known;
    pcclResult_t result;
    int peer; /* the index of the other end; -1 if there was none, or the handle is of a collective */
} gopcclReceipt_t;

/* gopcclAwaitAsyncReduce, which tells the other end of a message. */
PCCL_EXPORT pcclResult_t gopcclAwaitMessage(const pcclAsyncReduceOp_t *handle, gopcclReceipt_t *receipt_out);

/*
 * Has the connections of a peer in TLS. path is that of its credential
 * (gopccl keys issue). join is a join token (gopccl keys token), or @ and the path
 * of a file that has it: with it the peer gets a credential from the master, and
 * writes it to path, unless it is there already. What is NULL stays as the
 * configuration and the environment say (GOPCCL_CREDENTIAL, GOPCCL_JOIN); the
 * texts are copied. To be called before pcclConnect, which reads the files.
 * Results: pcclInvalidArgument (both NULL, or join is not a token),
 * pcclInvalidUsage (it is connected).
 */
PCCL_EXPORT pcclResult_t gopcclSetCredential(pcclComm_t *communicator, const char *path, const char *join);

/*
 * Has the connections of a master in TLS. path is that of its credential
 * (gopccl keys issue --role master), enroll the directory from which newcomers
 * with a join token get theirs, and peers the next one. What is NULL stays as
 * configured. To be called before pcclRunMaster, which reads the files. Results as
 * of gopcclSetCredential.
 */
PCCL_EXPORT pcclResult_t gopcclSetMasterCredential(pcclMasterInstance_t *master_instance, const char *path,
                                                   const char *enroll);

/*
 * Names the masters of a run that has several, HOST:PORT with commas between them, in place
 * of the address that the communicator was created with, and of a list in the configuration
 * or the environment. Hosts are IPv4 addresses, IPv6 addresses in brackets, or names. The
 * communicator connects to the one that leads, and goes on with the next one that does
 * (gopcclSetReattachTimeout). To be called before pcclConnect. Results: pcclInvalidArgument
 * (not such a list, or more than 16), pcclInvalidUsage (it is connected).
 */
PCCL_EXPORT pcclResult_t gopcclSetMasters(pcclComm_t *communicator, const char *masters);

/*
 * Says how long a communicator goes on without a master: calls wait, and operations in
 * flight go on, until the master is started again, or another one of the run leads. 0 ends
 * it with its master, for programs that connect again by themselves; at most a day. It is
 * a minute unless the configuration or the environment says otherwise
 * (GOPCCL_PEER_REATTACH_TIMEOUT). To be called before pcclConnect. Results:
 * pcclInvalidArgument, pcclInvalidUsage (it is connected).
 */
PCCL_EXPORT pcclResult_t gopcclSetReattachTimeout(pcclComm_t *communicator, uint64_t milliseconds);

/*
 * Says how often a master and its gopccl peers tell each other that they live, and after what
 * silence a peer is dropped, and its master given up: in milliseconds, where neither the
 * configuration nor the environment says it (GOPCCL_MASTER_HEARTBEAT_INTERVAL and
 * GOPCCL_MASTER_HEARTBEAT_TIMEOUT). Otherwise that is 2 s and 8 s. A peer that is stopped for
 * longer ends as one that has died: its operations fail, and it has to connect again. To be
 * called before pcclRunMaster. Results: pcclInvalidArgument (below a millisecond, a timeout
 * below two intervals, or above a day), pcclInvalidUsage (the master runs, or has run).
 */
PCCL_EXPORT pcclResult_t gopcclSetDefaultHeartbeat(pcclMasterInstance_t *master_instance, uint64_t interval,
                                                   uint64_t timeout);

/*
 * Returns when the group of this peer has at least n members, at once if it has;
 * until then it lets in who waits to be let in. All peers of the run must call it,
 * or pcclArePeersPending and pcclUpdateTopology, at the same place. In front of
 * every step it makes a trainer pause while its group is too small. While the
 * group is large enough it lets nobody in: ask pcclArePeersPending at every step as
 * well, for newcomers and for other groups that wait. Results as of
 * pcclUpdateTopology.
 */
PCCL_EXPORT pcclResult_t gopcclWaitForPeers(const pcclComm_t *communicator, size_t n);

/*
 * Leaves the run between two operations of the others: it waits until operations that
 * were launched have their verdicts, and until the others can go on without this peer.
 * No all-reduce of theirs is aborted for it. Afterwards the communicator can be
 * destroyed, and nothing else. pcclNoSharedStateAvailable: this peer is the only one
 * that has the group's shared state, and stays; synchronise once more, or destroy the
 * communicator to give the state up. pcclInvalidUsage: another call runs, or the run is
 * lost.
 */
PCCL_EXPORT pcclResult_t gopcclLeave(const pcclComm_t *communicator);

/*
 * Leaves the run as pcclDestroyCommunicator does, and keeps the communicator: what was
 * launched can be awaited, and answers at once. That says which operations had come to
 * their end before, and which were aborted and have their buffers back. Every other call
 * gets pcclInvalidUsage, and pcclDestroyCommunicator frees it. Results as of that one.
 */
PCCL_EXPORT pcclResult_t gopcclClose(const pcclComm_t *communicator);

/*
 * Writes the state of every communicator and running master of this process as
 * text into buffer, at most size - 1 bytes and a 0, and returns how long the whole
 * text is: call it with NULL and 0 first, or with a large buffer. For people, not
 * for programs: the text changes. It waits for no peer, so it works while another
 * thread hangs in a call. A setting, dump.signal, has it written to standard error
 * at a signal (GOPCCL_DUMP_SIGNAL=10 in the environment; not on Windows).
 */
PCCL_EXPORT size_t gopcclDumpState(char *buffer, size_t size);

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

/*
 * Which tensors of shared_state a synchronisation that failed has overwritten in
 * part, or completely but without confirmation: torn_out has shared_state->count
 * elements. With one of them the state is a mixture of two. Do not compute with
 * it: synchronise with a peer that has a sound state, or load a checkpoint. Until
 * then the master does not elect it; beside a PCCL master only the strategy
 * receive-only is taken. Memory is known by its address. A tensor counts as torn
 * until a synchronisation has succeeded, its content is not what was left any
 * more, or gopcclSetTorn says that it is sound.
 */
PCCL_EXPORT pcclResult_t gopcclGetTorn(const pcclSharedState_t *shared_state, bool *torn_out);

/*
 * Says which tensors of shared_state are torn, whatever their content looks like;
 * NULL: none, for example after all of them were loaded from a checkpoint.
 */
PCCL_EXPORT pcclResult_t gopcclSetTorn(const pcclSharedState_t *shared_state, const bool *torn);

/*
 * Writes shared_state and its revision to a new file in directory, which is
 * created if need be: whole and on stable storage when it returns pcclSuccess, else
 * not at all. With keep above 0 only the keep newest checkpoints remain. meta is the
 * caller's: a JSON object whose values are strings, or NULL. Texts are UTF-8.
 *
 * The path of the file goes to path_out if it fits into capacity bytes with its
 * NUL, and its size to size_out; either may be NULL. The files are those of the Go
 * package core/checkpoint. Results: pcclInvalidArgument, pcclInvalidUsage (the
 * state is torn), pcclInternalError (the system, a device).
 */
PCCL_EXPORT pcclResult_t gopcclSaveCheckpoint(const pcclSharedState_t *shared_state, const char *directory, size_t keep,
                                              const char *meta, char *path_out, size_t capacity, size_t *size_out);

/*
 * Reads a checkpoint into the tensors of shared_state and its revision; nothing is
 * torn then. The tensors must have the names, types, flags and sizes of those that were
 * saved. Nothing is written before the file is known to be sound and to fit. Its meta
 * data goes to meta_out as path_out above ("{}" if it has none); if it does not fit, all
 * else is done, and the call can be repeated. Results: pcclInvalidArgument (no such
 * file, or other tensors), pcclInternalError (damaged; the system, a device).
 */
PCCL_EXPORT pcclResult_t gopcclLoadCheckpoint(pcclSharedState_t *shared_state, const char *path, char *meta_out,
                                              size_t capacity, size_t *size_out);

/*
 * Writes the path of the newest sound checkpoint of directory to path_out, as above.
 * Damaged ones that are newer are named in the log. Results: pcclInvalidArgument,
 * pcclNoSharedStateAvailable (there is none at all), pcclInternalError (none is sound,
 * or the system).
 */
PCCL_EXPORT pcclResult_t gopcclFindCheckpoint(const char *directory, char *path_out, size_t capacity,
                                              size_t *size_out);

#ifdef __cplusplus
}
#endif

#endif
