"""C declarations of the library, in the form that cffi reads.

``ABI`` is the interface of PCCL 1.0.0: names, layouts and numbers are fixed.
``EXTRAS`` are additions that only ``libgopccl`` has.
"""

ABI = """
typedef enum { inetIPv4 = 0, inetIPv6 = 1 } ccoip_inet_protocol_t;
typedef struct { uint8_t data[4]; } ccoip_ipv4_address_t;
typedef struct { uint8_t data[16]; } ccoip_ipv6_address_t;
typedef struct {
    ccoip_inet_protocol_t protocol;
    ccoip_ipv4_address_t ipv4;
    ccoip_ipv6_address_t ipv6;
} ccoip_inet_address_t;
typedef struct { ccoip_inet_address_t inet; uint16_t port; } ccoip_socket_address_t;

typedef int pcclResult_t;
typedef int pcclDataType_t;
typedef int pcclDeviceType_t;
typedef int pcclRedOp_t;
typedef int pcclAttribute_t;
typedef int pcclSharedStateSyncStrategy_t;
typedef int pcclDistributionHint_t;
typedef int pcclQuantizationAlgorithm_t;

typedef struct pcclComm_t pcclComm_t;
typedef struct pcclMasterInstanceState_t pcclMasterInstance_t;

typedef struct {
    ccoip_socket_address_t master_address;
    uint32_t peer_group;
    uint32_t p2p_connection_pool_size;
} pcclCommCreateParams_t;
typedef struct { uint32_t local_world_size; uint64_t tx_bytes; uint64_t rx_bytes; } pcclReduceInfo_t;
typedef struct {
    pcclDataType_t datatype;
    pcclDistributionHint_t distribution_hint;
} pcclReduceOperandDescriptor_t;
typedef struct {
    pcclDataType_t quantized_datatype;
    pcclQuantizationAlgorithm_t algorithm;
} pcclQuantizationOptions_t;
typedef struct {
    size_t count;
    pcclRedOp_t op;
    uint64_t tag;
    pcclReduceOperandDescriptor_t src_descriptor;
    pcclQuantizationOptions_t quantization_options;
} pcclReduceDescriptor_t;
typedef struct { void *sendbuf; void *recvbuf; pcclReduceDescriptor_t descriptor; } pcclReduceOpDescriptor_t;
typedef struct { pcclComm_t *comm; uint64_t tag; } pcclAsyncReduceOp_t;
typedef struct {
    const char *name;
    void *data;
    size_t count;
    pcclDataType_t datatype;
    pcclDeviceType_t device_type;
    bool allow_content_inequality;
} pcclTensorInfo_t;
typedef struct { uint64_t revision; size_t count; pcclTensorInfo_t *infos; } pcclSharedState_t;
typedef struct { uint64_t tx_bytes; uint64_t rx_bytes; } pcclSharedStateSyncInfo_t;
typedef struct { bool has_cuda_support; } pcclBuildInfo_t;

pcclResult_t pcclInit(void);
pcclResult_t pcclGetBuildInfo(pcclBuildInfo_t *);
pcclResult_t pcclCreateCommunicator(const pcclCommCreateParams_t *, pcclComm_t **);
pcclResult_t pcclDestroyCommunicator(pcclComm_t *);
pcclResult_t pcclConnect(pcclComm_t *);
pcclResult_t pcclGetAttribute(const pcclComm_t *, pcclAttribute_t, int *);
pcclResult_t pcclUpdateTopology(pcclComm_t *);
pcclResult_t pcclArePeersPending(const pcclComm_t *, bool *);
pcclResult_t pcclOptimizeTopology(const pcclComm_t *);
pcclResult_t pcclAllReduce(const void *, void *, const pcclReduceDescriptor_t *,
                           const pcclComm_t *, pcclReduceInfo_t *);
pcclResult_t pcclAllReduceAsync(const void *, void *, const pcclReduceDescriptor_t *,
                                const pcclComm_t *, pcclAsyncReduceOp_t *);
pcclResult_t pcclAwaitAsyncReduce(const pcclAsyncReduceOp_t *, pcclReduceInfo_t *);
pcclResult_t pcclAllReduceMultipleWithRetry(const pcclReduceOpDescriptor_t *, size_t,
                                            const pcclComm_t *, pcclReduceInfo_t *, int);
pcclResult_t pcclSynchronizeSharedState(const pcclComm_t *, pcclSharedState_t *,
                                        pcclSharedStateSyncStrategy_t, pcclSharedStateSyncInfo_t *);
pcclResult_t pcclCreateMaster(ccoip_socket_address_t, pcclMasterInstance_t **);
pcclResult_t pcclRunMaster(pcclMasterInstance_t *);
pcclResult_t pcclInterruptMaster(pcclMasterInstance_t *);
pcclResult_t pcclMasterAwaitTermination(pcclMasterInstance_t *);
pcclResult_t pcclDestroyMaster(pcclMasterInstance_t *);
"""

EXTRAS = """
const char *gopcclLastError(void);
void gopcclSetPoll(int (*)(void));
const char *gopcclVersion(void);
pcclResult_t gopcclGetRank(const pcclComm_t *, uint8_t *, int *);
pcclResult_t gopcclGetMasterPort(pcclMasterInstance_t *, uint16_t *);
void gopcclSetStream(void *);
pcclResult_t gopcclFindDevice(const void *, int *);
pcclResult_t gopcclGetTorn(const pcclSharedState_t *, bool *);
pcclResult_t gopcclSetTorn(const pcclSharedState_t *, const bool *);
pcclResult_t gopcclSaveCheckpoint(const pcclSharedState_t *, const char *, size_t, const char *, char *, size_t, size_t *);
pcclResult_t gopcclLoadCheckpoint(pcclSharedState_t *, const char *, char *, size_t, size_t *);
pcclResult_t gopcclFindCheckpoint(const char *, char *, size_t, size_t *);
typedef struct { bool known; pcclResult_t result; pcclReduceInfo_t info; } gopcclVerdict_t;
pcclResult_t gopcclAwaitAsyncReduce(const pcclAsyncReduceOp_t *, gopcclVerdict_t *);
typedef struct { uint64_t tag; bool ended; } gopcclAsyncReduce_t;
pcclResult_t gopcclClose(const pcclComm_t *);
pcclResult_t gopcclSetCredential(pcclComm_t *, const char *, const char *);
pcclResult_t gopcclSetMasterCredential(pcclMasterInstance_t *, const char *, const char *);
pcclResult_t gopcclSetMasters(pcclComm_t *, const char *);
pcclResult_t gopcclSetReattachTimeout(pcclComm_t *, uint64_t);
pcclResult_t gopcclSetDefaultHeartbeat(pcclMasterInstance_t *, uint64_t, uint64_t);
pcclResult_t gopcclWaitForPeers(const pcclComm_t *, size_t);
pcclResult_t gopcclLeave(const pcclComm_t *);
size_t gopcclDumpState(char *, size_t);
typedef struct {
    size_t size;
    int kind;
    uint32_t root;
    uint64_t tag;
    const void *src;
    void *dst;
    size_t src_count;
    size_t dst_count;
    const size_t *counts;
    const size_t *send_counts;
    const size_t *recv_counts;
    size_t members;
    pcclDataType_t datatype;
    pcclRedOp_t op;
    bool preserve;
    const char *quantizer;
    const char *quantized_type;
} gopcclCollective_t;
pcclResult_t gopcclCollect(const pcclComm_t *, const gopcclCollective_t *, pcclReduceInfo_t *);
pcclResult_t gopcclCollectAsync(const pcclComm_t *, const gopcclCollective_t *, pcclAsyncReduceOp_t *);
typedef struct { size_t size; int index; bool collectives; bool mesh; } gopcclGroup_t;
pcclResult_t gopcclGetGroup(const pcclComm_t *, gopcclGroup_t *, uint8_t (*)[16], size_t);
typedef struct { size_t size; int peer; uint64_t tag; void *data; size_t bytes; } gopcclMessage_t;
pcclResult_t gopcclSend(const pcclComm_t *, const gopcclMessage_t *);
pcclResult_t gopcclReceive(const pcclComm_t *, const gopcclMessage_t *, int *);
pcclResult_t gopcclSendAsync(const pcclComm_t *, const gopcclMessage_t *, pcclAsyncReduceOp_t *);
pcclResult_t gopcclReceiveAsync(const pcclComm_t *, const gopcclMessage_t *, pcclAsyncReduceOp_t *);
typedef struct { bool known; pcclResult_t result; int peer; } gopcclReceipt_t;
pcclResult_t gopcclAwaitMessage(const pcclAsyncReduceOp_t *, gopcclReceipt_t *);
pcclResult_t gopcclListAsyncReduces(const pcclComm_t *, gopcclAsyncReduce_t *, size_t, size_t *);
"""
