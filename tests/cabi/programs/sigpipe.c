/*
 * A host that lets the signal of a broken pipe end it, as the system does by default, beside processes that die in the
 * middle of things, KILLS times.
 * sigpipe neighbour PORT KILLS: it has the master and one peer; the other peer dies.
 * sigpipe master PORT KILLS: it has the master alone; one of two peers dies.
 * sigpipe victim PORT, sigpipe client PORT: those peers.
 */
#define _XOPEN_SOURCE 700
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common.h"

extern char **environ;

enum { ELEMENTS = 1 << 20 };
static float values[ELEMENTS];

static void pause_for(long microseconds) {
    struct timespec t = {0, 0};
    t.tv_nsec = microseconds * 1000;
    nanosleep(&t, NULL);
}

/* Takes part until it is killed. */
static int victim(int port) {
    pcclComm_t *c;
    alarm(60);
    OK(pcclInit());
    c = communicator(loopback(port));
    OK(pcclConnect(c));
    for (;;) {
        pcclReduceDescriptor_t d = descriptor(ELEMENTS, pcclSum, 1, pcclFloat);
        if (pcclAllReduce(values, values, &d, c, NULL) != pcclSuccess) return 0;
    }
}

/* Lets others in and reduces with the peers that are there until it is killed. */
static int client(int port) {
    pcclComm_t *c;
    alarm(60);
    OK(pcclInit());
    c = communicator(loopback(port));
    OK(pcclConnect(c));
    for (;;) {
        pcclReduceDescriptor_t d = descriptor(1000, pcclSum, 1, pcclFloat);
        bool pending = false;
        if (pcclArePeersPending(c, &pending) != pcclSuccess) return 0;
        if (pending && pcclUpdateTopology(c) != pcclSuccess) return 0;
        pcclAllReduce(values, values, &d, c, NULL);
    }
}

static pid_t spawn(char *program, char *role, char *port) {
    char *args[4];
    pid_t pid;
    args[0] = program, args[1] = role, args[2] = port, args[3] = NULL;
    TRUE(posix_spawn(&pid, program, NULL, NULL, args, environ) == 0);
    return pid;
}

static void end(pid_t pid) { TRUE(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid); }

static volatile int stop;

/* Reduces beside the main thread's waiting. */
static void *reduce(void *c) {
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
        pcclReduceDescriptor_t d = descriptor(ELEMENTS, pcclSum, 1, pcclFloat);
        if (pcclAllReduce(values, values, &d, c, NULL) != pcclSuccess) break;
    }
    return NULL;
}

static void neighbours(char **argv) {
    pcclComm_t *c = communicator(loopback(atoi(argv[2])));
    int kills;
    OK(pcclConnect(c));
    for (kills = atoi(argv[3]); kills > 0; kills--) {
        pid_t pid = spawn(argv[0], "victim", argv[2]);
        pthread_t t;
        wait_for_world(c, 2);
        stop = 0;
        TRUE(pthread_create(&t, NULL, reduce, c) == 0);
        pause_for(1000 + kills * 37 % 20 * 1000);
        end(pid);
        __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
        TRUE(pthread_join(t, NULL) == 0);
        while (attribute(c, PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE) > 1) OK(pcclUpdateTopology(c));
    }
    OK(pcclDestroyCommunicator(c));
}

enum { CLIENTS = 3 };

static void clients(char **argv) {
    pid_t pids[CLIENTS];
    int i, kills = atoi(argv[3]);
    for (i = 0; i < CLIENTS; i++) pids[i] = spawn(argv[0], "client", argv[2]);
    for (; kills > 0; kills--) {
        pause_for(15000 + kills * 37 % 20 * 1000);
        i = kills % CLIENTS;
        end(pids[i]);
        pids[i] = spawn(argv[0], "client", argv[2]);
    }
    for (i = 0; i < CLIENTS; i++) end(pids[i]);
}

int main(int argc, char **argv) {
    pcclMasterInstance_t *m = NULL;
    struct sigaction now;
    TRUE(argc == 3 || argc == 4);
    if (strcmp(argv[1], "victim") == 0) return victim(atoi(argv[2]));
    if (strcmp(argv[1], "client") == 0) return client(atoi(argv[2]));
    OK(pcclInit());
    OK(pcclCreateMaster(loopback(atoi(argv[2])), &m));
    OK(pcclRunMaster(m));
    /* Whatever the library has found or made of it: the program wants the default. */
    TRUE(signal(SIGPIPE, SIG_DFL) != SIG_ERR);
    if (strcmp(argv[1], "master") == 0)
        clients(argv);
    else
        neighbours(argv);
    OK(pcclDestroyMaster(m));
    TRUE(sigaction(SIGPIPE, NULL, &now) == 0 && now.sa_handler == SIG_DFL);
    puts("passed");
    return 0;
}
