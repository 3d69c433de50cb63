//go:build cgo

#include "signals.h"

#ifdef _WIN32
void gopccl_prepare_signals(void) {}
#else
#include <signal.h>
#include <stddef.h>

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
