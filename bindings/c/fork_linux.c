//go:build cgo

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fork.h"

volatile int gopccl_forked;
volatile int gopccl_initialized;

static char file[PATH_MAX]; /* of this library */
static pthread_mutex_t mutex;
static struct gopccl_api copy;
static int loaded; /* 1: copy is valid, -1: it could not be had */

static void in_child(void) {
    gopccl_forked = 1;
    loaded = 0; /* a copy that was loaded before has lost its threads, too */
    pthread_mutex_init(&mutex, NULL);
}

__attribute__((constructor)) static void at_load(void) {
    Dl_info info;
    if (dladdr((void *)at_load, &info) == 0 || realpath(info.dli_fname, file) == NULL) file[0] = 0;
    pthread_atfork(NULL, NULL, in_child);
}

/* The loader takes a file once; a copy in memory is another file. */
static int copy_of(const char *path) {
    char block[1 << 16];
    ssize_t n;
    int in = open(path, O_RDONLY | O_CLOEXEC);
    int out = in < 0 ? -1 : (int)syscall(SYS_memfd_create, "libpccl", 1U /* close on exec */);
    while (out >= 0 && (n = read(in, block, sizeof block)) != 0) {
        if (n < 0 || write(out, block, (size_t)n) != n) {
            close(out);
            out = -1;
        }
    }
    if (in >= 0) close(in);
    return out;
}

static int load(void) {
    char name[32];
    void *lib;
    int fd = copy_of(file);
    if (fd < 0) return -1;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    close(fd);
    if (lib == NULL) return -1;
#define LOOK_UP(f) copy.f = (__typeof__(f) *)dlsym(lib, #f);
    FUNCTIONS(LOOK_UP)
    if (copy.pcclInit == NULL) return -1;
    if (gopccl_initialized) copy.pcclInit();
    if (copy.gopcclSetPoll) copy.gopcclSetPoll(gopccl_poll_function());
    return 1;
}

const struct gopccl_api *gopccl_second_copy(void) {
    int ok;
    pthread_mutex_lock(&mutex);
    if (loaded == 0) {
        loaded = load();
        if (loaded < 0)
            fprintf(stderr, "libpccl: this process was forked after the library was loaded, and %s cannot be loaded again: %s\n",
                    file, "load it after the fork");
    }
    ok = loaded > 0;
    pthread_mutex_unlock(&mutex);
    return ok ? &copy : NULL;
}
