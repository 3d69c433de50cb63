// Drives the original library for a test. Commands come on standard input, one line each, and every command is
// answered on standard output by one line: the command, the result code of the library, then values. Tensors follow
// their line as raw bytes (host order) of the length that the line says.
//
//   master IP PORT                  create and run a master            -> master R
//   mstop                           interrupt, await, destroy it       -> mstop R
//   comm IP PORT GROUP POOL         create a communicator              -> comm R
//   connect | update | optimize | destroy                              -> connect R ...
//   pending                         are peers pending                  -> pending R 0|1
//   attr N                          attribute N of the public enum     -> attr R VALUE
//   reduce OPERATION                blocking all-reduce                -> reduce R WORLD TX RX, result
//   launch OPERATION                asynchronous all-reduce            -> launch R
//   await TAG                       its end                            -> await R WORLD TX RX BYTES, result
//   retry MAX N, N x OPERATION      all reduce multiple with retry     -> retry R WORLD TX RX, N results
//   sync REVISION STRATEGY N, N x "NAME TYPE ALLOW BYTES", tensor      -> sync R REVISION TX RX, N tensors
//   bench TYPE COUNT WARMUP ROUNDS  times all-reduces in this process  -> bench R WORLD TX RX CPU_NS N NS...
//   quit
//
// OPERATION is "in|out TAG OP TYPE QUANTIZED_TYPE ALGORITHM BYTES", then the input. Numbers are those of pccl.h.
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

// The public interface of PCCL 1.0.0 as far as it is used here.
struct address { int version; uint8_t ipv4[4], ipv6[16]; uint16_t port; };
struct comm_params { struct address master; uint32_t group, pool; };
struct reduce_info { uint32_t world; uint64_t tx, rx; };
struct reduce_desc { size_t count; int op; uint64_t tag; int type, hint, quantized_type, algorithm; };
struct reduce_op { void *send, *recv; struct reduce_desc desc; };
struct reduce_handle { void *comm; uint64_t tag; };
struct tensor { const char *name; void *data; size_t count; int type, device; bool allow_inequality; };
struct shared_state { uint64_t revision; size_t count; struct tensor *tensors; };
struct sync_info { uint64_t tx, rx; };

int pcclInit(void);
int pcclCreateMaster(struct address, void **);
int pcclRunMaster(void *);
int pcclInterruptMaster(void *);
int pcclMasterAwaitTermination(void *);
int pcclDestroyMaster(void *);
int pcclCreateCommunicator(const struct comm_params *, void **);
int pcclDestroyCommunicator(void *);
int pcclConnect(void *);
int pcclUpdateTopology(void *);
int pcclOptimizeTopology(const void *);
int pcclArePeersPending(const void *, bool *);
int pcclGetAttribute(const void *, int, int *);
int pcclAllReduce(const void *, void *, const struct reduce_desc *, const void *, struct reduce_info *);
int pcclAllReduceAsync(const void *, void *, const struct reduce_desc *, const void *, struct reduce_handle *);
int pcclAwaitAsyncReduce(const struct reduce_handle *, struct reduce_info *);
int pcclAllReduceMultipleWithRetry(const struct reduce_op *, size_t, const void *, struct reduce_info *, int);
int pcclSynchronizeSharedState(const void *, struct shared_state *, int, struct sync_info *);

static const size_t type_size[12] = {1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};

static void die(const char *why) {
    fprintf(stderr, "driver: %s\n", why);
    _exit(2);
}

// Input by read(2), output by write(2): the library may call exit() from a thread of its own, which would wait for a
// thread that is inside stdio, and then a dying process looks like a living one.
static uint8_t inbuf[1 << 16];
static size_t in_at, in_have;

static void fill(void) {
    ssize_t n = read(0, inbuf, sizeof inbuf);
    if (n <= 0) _exit(0);
    in_at = 0;
    in_have = (size_t)n;
}

static char *read_line(char *line, size_t cap) {
    for (size_t n = 0;; n++) {
        if (in_at == in_have) fill();
        if (n == cap) die("line too long");
        line[n] = (char)inbuf[in_at++];
        if (line[n] == '\n') {
            line[n] = 0;
            return line;
        }
    }
}

static void read_bytes(void *to, size_t n) {
    uint8_t *p = to;
    while (n) {
        if (in_at == in_have) fill();
        size_t k = in_have - in_at < n ? in_have - in_at : n;
        memcpy(p, inbuf + in_at, k);
        in_at += k, p += k, n -= k;
    }
}

static int answers;  // the real standard output; the library logs to descriptor 1, which is standard error here

static void write_bytes(const void *from, size_t n) {
    const uint8_t *p = from;
    while (n) {
        ssize_t k = write(answers, p, n);
        if (k < 0) _exit(0);
        p += k, n -= (size_t)k;
    }
}

// A buffer with the alignment that the shared state of the library needs.
static void *new_buffer(size_t n) {
    void *p = aligned_alloc(64, (n + 127) / 64 * 64);
    if (!p) die("out of memory");
    return p;
}

static void read_operation(const char *words, struct reduce_op *o) {
    char place[8];
    unsigned long long tag;
    size_t bytes;
    memset(o, 0, sizeof *o);
    if (sscanf(words, "%7s %llu %d %d %d %d %zu", place, &tag, &o->desc.op, &o->desc.type, &o->desc.quantized_type,
               &o->desc.algorithm, &bytes) != 7 || o->desc.type < 0 || o->desc.type > 11)
        die("bad operation");
    o->desc.tag = tag;
    o->desc.count = bytes / type_size[o->desc.type];
    o->send = new_buffer(bytes);
    read_bytes(o->send, bytes);
    o->recv = o->send;
    if (strcmp(place, "in")) {
        o->recv = new_buffer(bytes);
        memset(o->recv, 0xee, bytes);
    }
}

static size_t bytes_of(const struct reduce_op *o) { return o->desc.count * type_size[o->desc.type]; }

static void free_operation(struct reduce_op *o) {
    if (o->recv != o->send) free(o->recv);
    free(o->send);
}

// Asynchronous operations that were launched and not awaited.
struct pending { struct reduce_op op; struct reduce_handle handle; struct pending *next; };
static struct pending *pending;

static int launch(const char *words, void *comm) {
    struct pending *p = malloc(sizeof *p);
    if (!p) die("out of memory");
    read_operation(words, &p->op);
    int r = pcclAllReduceAsync(p->op.send, p->op.recv, &p->op.desc, comm, &p->handle);
    if (r) {
        free_operation(&p->op);
        free(p);
        return r;
    }
    p->next = pending;
    pending = p;
    return 0;
}

static void await(uint64_t tag) {
    struct pending **at = &pending;
    while (*at && (*at)->op.desc.tag != tag) at = &(*at)->next;
    struct pending *p = *at;
    if (!p) {
        dprintf(answers, "await 3 0 0 0 0\n");
        return;
    }
    struct reduce_info info = {0};
    int r = pcclAwaitAsyncReduce(&p->handle, &info);
    dprintf(answers, "await %d %u %llu %llu %zu\n", r, info.world, (unsigned long long)info.tx,
            (unsigned long long)info.rx, bytes_of(&p->op));
    write_bytes(p->op.recv, bytes_of(&p->op));
    *at = p->next;
    free_operation(&p->op);
    free(p);
}

static void retry(size_t n, int max_in_flight, void *comm) {
    char line[256];
    struct reduce_op *ops = calloc(n + 1, sizeof *ops);
    if (!ops) die("out of memory");
    for (size_t k = 0; k < n; k++) read_operation(read_line(line, sizeof line), &ops[k]);
    struct reduce_info info = {0};
    int r = pcclAllReduceMultipleWithRetry(ops, n, comm, &info, max_in_flight);
    dprintf(answers, "retry %d %u %llu %llu\n", r, info.world, (unsigned long long)info.tx, (unsigned long long)info.rx);
    for (size_t k = 0; k < n; k++) {
        write_bytes(ops[k].recv, bytes_of(&ops[k]));
        free_operation(&ops[k]);
    }
    free(ops);
}

static void synchronize(uint64_t revision, int strategy, size_t n, void *comm) {
    char line[512], name[256];
    struct tensor *tensors = calloc(n + 1, sizeof *tensors);
    size_t *bytes = calloc(n + 1, sizeof *bytes);
    if (!tensors || !bytes) die("out of memory");
    for (size_t k = 0; k < n; k++) {
        int allow;
        read_line(line, sizeof line);
        if (sscanf(line, "%255s %d %d %zu", name, &tensors[k].type, &allow, &bytes[k]) != 4) die("bad tensor");
        tensors[k].name = strdup(name);
        tensors[k].allow_inequality = allow;
        tensors[k].count = bytes[k] / type_size[tensors[k].type];
        tensors[k].data = new_buffer(bytes[k]);
        read_bytes(tensors[k].data, bytes[k]);
    }
    struct shared_state state = {revision, n, tensors};
    struct sync_info info = {0};
    int r = pcclSynchronizeSharedState(comm, &state, strategy, &info);
    dprintf(answers, "sync %d %llu %llu %llu\n", r, (unsigned long long)state.revision, (unsigned long long)info.tx,
            (unsigned long long)info.rx);
    for (size_t k = 0; k < n; k++) {
        write_bytes(tensors[k].data, bytes[k]);
        free(tensors[k].data);
        free((char *)tensors[k].name);
    }
    free(tensors);
    free(bytes);
}

static uint64_t nanoseconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// Sums of COUNT elements, out of place, CONCURRENT at a time, each under a tag of its own. The time of a round is that
// of the calls.
static int bench_round(struct reduce_op *ops, int concurrent, void *comm, struct reduce_info *info) {
    if (concurrent == 1) return pcclAllReduce(ops->send, ops->recv, &ops->desc, comm, info);
    struct reduce_handle handles[64];
    int r = 0;
    for (int k = 0; k < concurrent && !r; k++)
        r = pcclAllReduceAsync(ops[k].send, ops[k].recv, &ops[k].desc, comm, &handles[k]);
    for (int k = 0; k < concurrent && !r; k++) r = pcclAwaitAsyncReduce(&handles[k], info);
    return r;
}

static void bench(int type, size_t count, int warmup, int rounds, int quantized, int algorithm, int concurrent, void *comm) {
    size_t bytes = count * type_size[type];
    if (concurrent < 1 || concurrent > 64) die("1 to 64 operations at a time");
    struct reduce_op *ops = calloc((size_t)concurrent, sizeof *ops);
    uint64_t *took = calloc((size_t)rounds + 1, sizeof *took), cpu = 0;
    if (!took || !ops) die("out of memory");
    for (int k = 0; k < concurrent; k++) {
        ops[k].desc = (struct reduce_desc){.count = count, .tag = (uint64_t)k, .type = type, .quantized_type = quantized, .algorithm = algorithm};
        ops[k].send = new_buffer(bytes), ops[k].recv = new_buffer(bytes);
        memset(ops[k].send, 0, bytes);
        memset(ops[k].recv, 0, bytes);
        if (type == 8)  // float: something to quantize
            for (size_t i = 0; i < count; i++) ((float *)ops[k].send)[i] = (float)(i % 1000) / 1000;
    }
    struct reduce_info info = {0};
    int r = 0, done = 0;
    for (int k = -warmup; k < rounds && !r; k++) {
        if (k == 0) cpu = nanoseconds(CLOCK_PROCESS_CPUTIME_ID);
        uint64_t began = nanoseconds(CLOCK_MONOTONIC);
        r = bench_round(ops, concurrent, comm, &info);
        if (k >= 0 && !r) took[done++] = nanoseconds(CLOCK_MONOTONIC) - began;
    }
    cpu = nanoseconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    dprintf(answers, "bench %d %u %llu %llu %llu %d", r, info.world, (unsigned long long)info.tx,
            (unsigned long long)info.rx, (unsigned long long)cpu, done);
    for (int k = 0; k < done; k++) dprintf(answers, " %llu", (unsigned long long)took[k]);
    dprintf(answers, "\n");
    for (int k = 0; k < concurrent; k++) free_operation(&ops[k]);
    free(ops);
    free(took);
}

// The hash of shared state, a function that the original exports beside those
// of its header; a library that has the header's functions alone links, too.
uint64_t _ZN5ccoip10hash_utils14simplehash_cpuEPKvm(const void *, size_t) __attribute__((weak));

static void hash(size_t bytes, int rounds) {
    if (!_ZN5ccoip10hash_utils14simplehash_cpuEPKvm) die("the library exports no hash");
    uint8_t *data = new_buffer(bytes);
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)(i * 2654435761u >> 24);
    uint64_t *took = calloc((size_t)rounds + 1, sizeof *took);
    if (!took) die("out of memory");
    for (int k = 0; k <= rounds; k++) {  // one more, which warms up
        uint64_t began = nanoseconds(CLOCK_MONOTONIC);
        value = _ZN5ccoip10hash_utils14simplehash_cpuEPKvm(data, bytes);
        took[k] = nanoseconds(CLOCK_MONOTONIC) - began;
    }
    dprintf(answers, "hash 0 %llu %d", (unsigned long long)value, rounds);
    for (int k = 1; k <= rounds; k++) dprintf(answers, " %llu", (unsigned long long)took[k]);
    dprintf(answers, "\n");
    free(took);
    free(data);
}

static struct address parse_address(const char *ip, unsigned port) {
    struct address a = {.version = 0, .port = (uint16_t)port};
    if (sscanf(ip, "%hhu.%hhu.%hhu.%hhu", &a.ipv4[0], &a.ipv4[1], &a.ipv4[2], &a.ipv4[3]) != 4) die("bad address");
    return a;
}

int main(void) {
    void *comm = NULL, *master = NULL;
    answers = dup(1);
    dup2(2, 1);
    dprintf(answers, "init %d\n", pcclInit());
    for (;;) {
        char line[512], command[16] = "", ip[32] = "";
        int a = 0, b = 0, c = 0, at = 0;
        unsigned port = 0;
        size_t n = 0;
        unsigned long long u = 0;
        read_line(line, sizeof line);
        sscanf(line, "%15s %n", command, &at);
        const char *words = line + at;
        int r = -1;
        if (!strcmp(command, "quit")) {
            return 0;
        } else if (!strcmp(command, "master")) {
            sscanf(words, "%31s %u", ip, &port);
            r = pcclCreateMaster(parse_address(ip, port), &master);
            if (!r) r = pcclRunMaster(master);
        } else if (!strcmp(command, "mstop")) {
            r = pcclInterruptMaster(master);
            if (!r) r = pcclMasterAwaitTermination(master);
            if (!r) r = pcclDestroyMaster(master);
        } else if (!strcmp(command, "comm")) {
            struct comm_params p = {0};
            sscanf(words, "%31s %u %u %u", ip, &port, &p.group, &p.pool);
            p.master = parse_address(ip, port);
            r = pcclCreateCommunicator(&p, &comm);
        } else if (!strcmp(command, "connect")) {
            r = pcclConnect(comm);
        } else if (!strcmp(command, "update")) {
            r = pcclUpdateTopology(comm);
        } else if (!strcmp(command, "optimize")) {
            r = pcclOptimizeTopology(comm);
        } else if (!strcmp(command, "destroy")) {
            r = pcclDestroyCommunicator(comm);
            comm = NULL;
        } else if (!strcmp(command, "pending")) {
            bool yes = false;
            r = pcclArePeersPending(comm, &yes);
            dprintf(answers, "pending %d %d\n", r, yes);
            continue;
        } else if (!strcmp(command, "attr")) {
            int value = -1;
            r = pcclGetAttribute(comm, atoi(words), &value);
            dprintf(answers, "attr %d %d\n", r, value);
            continue;
        } else if (!strcmp(command, "reduce")) {
            struct reduce_op o;
            struct reduce_info info = {0};
            read_operation(words, &o);
            r = pcclAllReduce(o.send, o.recv, &o.desc, comm, &info);
            dprintf(answers, "reduce %d %u %llu %llu\n", r, info.world, (unsigned long long)info.tx,
                    (unsigned long long)info.rx);
            write_bytes(o.recv, bytes_of(&o));
            free_operation(&o);
            continue;
        } else if (!strcmp(command, "launch")) {
            r = launch(words, comm);
        } else if (!strcmp(command, "await")) {
            await(strtoull(words, NULL, 10));
            continue;
        } else if (!strcmp(command, "retry")) {
            sscanf(words, "%d %zu", &a, &n);
            retry(n, a, comm);
            continue;
        } else if (!strcmp(command, "sync")) {
            sscanf(words, "%llu %d %zu", &u, &a, &n);
            synchronize(u, a, n, comm);
            continue;
        } else if (!strcmp(command, "bench")) {
            int quantized = 0, algorithm = 0, concurrent = 1;
            sscanf(words, "%d %zu %d %d %d %d %d", &a, &n, &b, &c, &quantized, &algorithm, &concurrent);
            bench(a, n, b, c, quantized, algorithm, concurrent, comm);
            continue;
        } else if (!strcmp(command, "hash")) {
            sscanf(words, "%zu %d", &n, &a);
            hash(n, a);
            continue;
        } else {
            die("unknown command");
        }
        dprintf(answers, "%s %d\n", command, r);
    }
}
