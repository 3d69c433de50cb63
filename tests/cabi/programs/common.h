/* What the C programs share: a check that ends the program, an address, two peers of one run in two threads. */
#ifndef COMMON_H
#define COMMON_H

#include <pccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(want, call)                                                                         \
    do {                                                                                           \
        int got_ = (int)(call);                                                                    \
        if (got_ != (int)(want)) {                                                                 \
            fprintf(stderr, "%s:%d: %s is %d, want %d\n", __FILE__, __LINE__, #call, got_, (int)(want)); \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define OK(call) EXPECT(pcclSuccess, call)
#define TRUE(what) EXPECT(1, !!(what))

static ccoip_socket_address_t loopback(int port) {
    ccoip_socket_address_t a;
    memset(&a, 0, sizeof a);
    a.inet.protocol = inetIPv4;
    a.inet.ipv4.data[0] = 127;
    a.inet.ipv4.data[3] = 1;
    a.port = (uint16_t)port;
    return a;
}

static pcclComm_t *communicator(ccoip_socket_address_t master) {
    pcclCommCreateParams_t p;
    pcclComm_t *c = NULL;
    p.master_address = master;
    p.peer_group = 0;
    p.p2p_connection_pool_size = 2;
    OK(pcclCreateCommunicator(&p, &c));
    TRUE(c != NULL);
    return c;
}

static int attribute(const pcclComm_t *c, pcclAttribute_t which) {
    int v = -1;
    OK(pcclGetAttribute(c, which, &v));
    return v;
}

/* Lets others in until the world has the size. */
static void wait_for_world(pcclComm_t *c, int size) {
    while (attribute(c, PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE) < size) {
        bool pending = false;
        OK(pcclArePeersPending(c, &pending));
        if (pending) OK(pcclUpdateTopology(c));
    }
}

static void *connect_thread(void *c) {
    OK(pcclConnect((pcclComm_t *)c));
    return NULL;
}

/* Connects two communicators of this process to one run that has no other peers. */
static inline void connect_both(pcclComm_t *a, pcclComm_t *b) {
    pthread_t t;
    OK(pcclConnect(a));
    TRUE(pthread_create(&t, NULL, connect_thread, b) == 0);
    wait_for_world(a, 2);
    TRUE(pthread_join(t, NULL) == 0);
}

static pcclReduceDescriptor_t descriptor(size_t count, pcclRedOp_t op, uint64_t tag, pcclDataType_t type) {
    pcclReduceDescriptor_t d;
    d.count = count;
    d.op = op;
    d.tag = tag;
    d.src_descriptor.datatype = type;
    d.src_descriptor.distribution_hint = pcclDistributionNone;
    d.quantization_options.quantized_datatype = type;
    d.quantization_options.algorithm = pcclQuantNone;
    return d;
}

#endif
