/*
 * clogged PORT: standard error is a pipe that nobody reads and that is full. Everything is logged, so everything has
 * something to say, and every call returns.
 */
#define _XOPEN_SOURCE 700
#include <fcntl.h>
#include <unistd.h>

#include "common.h"

int main(int argc, char **argv) {
    pcclMasterInstance_t *m = NULL;
    pcclComm_t *a, *b;
    int ends[2], flags, i;
    char page[4096] = {0};
    TRUE(argc == 2);
    TRUE(pipe(ends) == 0 && dup2(ends[1], 2) == 2);
    flags = fcntl(2, F_GETFL);
    TRUE(fcntl(2, F_SETFL, flags | O_NONBLOCK) == 0);
    while (write(2, page, sizeof page) > 0) continue;
    while (write(2, page, 1) > 0) continue;
    TRUE(fcntl(2, F_SETFL, flags) == 0);
    alarm(40);

    OK(pcclInit());
    OK(pcclCreateMaster(loopback(atoi(argv[1])), &m));
    OK(pcclRunMaster(m));
    a = communicator(loopback(atoi(argv[1])));
    b = communicator(loopback(atoi(argv[1])));
    connect_both(a, b);
    for (i = 0; i < 100; i++) EXPECT(pcclInvalidArgument, pcclConnect(NULL));
    OK(pcclDestroyCommunicator(b));
    while (attribute(a, PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE) > 1) OK(pcclUpdateTopology(a));
    {
        float v[8] = {0};
        pcclReduceDescriptor_t d = descriptor(8, pcclSum, 1, pcclFloat);
        EXPECT(pcclTooFewPeers, pcclAllReduce(v, v, &d, a, NULL));
    }
    OK(pcclDestroyCommunicator(a));
    OK(pcclDestroyMaster(m));
    puts("passed");
    return 0;
}
