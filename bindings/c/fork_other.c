//go:build cgo && !linux

#include "fork.h"

volatile int gopccl_forked;
volatile int gopccl_initialized;

const struct gopccl_api *gopccl_second_copy(void) { return 0; }

#ifndef _WIN32
#include <pthread.h>

static void in_child(void) { gopccl_forked = 1; }

__attribute__((constructor)) static void at_load(void) { pthread_atfork(0, 0, in_child); }
#endif
