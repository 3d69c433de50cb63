//go:build cgo

#include "signals.h"

#include <stddef.h>

#ifdef _WIN32
#include <io.h>

void gopccl_prepare_signals(void) {}

long gopccl_write_error(const void *p, size_t n) { return _write(2, p, (unsigned)n); }
#else
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

// Writes to standard error. If nobody reads it any more, this thread's SIGPIPE is
// taken before the program sees it.
long gopccl_write_error(const void *p, size_t n) {
    sigset_t pipe, before, waits;
    size_t done = 0;
    long got = 0;
    int had;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    if (pthread_sigmask(SIG_BLOCK, &pipe, &before) != 0) return -1;
    had = sigpending(&waits) == 0 && sigismember(&waits, SIGPIPE);
    while (done < n) {
        got = write(2, (const char *)p + done, n - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        done += (size_t)got;
    }
    if (got < 0 && errno == EPIPE && !had) {
        int sig;
        if (sigpending(&waits) == 0 && sigismember(&waits, SIGPIPE)) sigwait(&pipe, &sig);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return done == n ? (long)n : -1;
}

// Go runs on small stacks of its own, on the caller's thread as well. A signal
// handler of the program must not run there: it is told to take the alternate
// stack, as the Go runtime tells those that it finds when it starts.
void gopccl_prepare_signals(void) {
    int sig;
    for (sig = 1; sig < NSIG; sig++) {
        struct sigaction a;
        if (sigaction(sig, NULL, &a) != 0 || (a.sa_flags & SA_ONSTACK)) continue;
        if (!(a.sa_flags & SA_SIGINFO) && (a.sa_handler == SIG_DFL || a.sa_handler == SIG_IGN)) continue;
        a.sa_flags |= SA_ONSTACK;
        sigaction(sig, &a, NULL);
    }
}
#endif
