// A library with the calls of the CUDA driver that does nothing but write down
// what it was called with, and answer what it was told to.
// It has what a driver for CUDA_VERSION has, as cudaTypedefs.h says.
#include <stdint.h>
#include <string.h>

enum { args = 11, most = 64 };

static struct {
	char name[40];
	uint64_t arg[args];
	uint8_t seen[256]; // what an argument pointed to
} calls[most];
static int count;
static char failing[40];
static int result;

void standin_reset(const char *name, int r) {
	count = 0;
	memset(calls, 0, sizeof calls);
	strncpy(failing, name, sizeof failing - 1);
	result = r;
}
int standin_count(void) { return count; }
const char *standin_name(int i) { return calls[i].name; }
uint64_t standin_arg(int i, int k) { return calls[i].arg[k]; }
void standin_seen(int i, uint8_t *into) { memcpy(into, calls[i].seen, sizeof calls[i].seen); }

static int note(const char *name, const uint64_t *a) {
	int i = count < most ? count++ : most - 1;
	strncpy(calls[i].name, name, sizeof calls[i].name - 1);
	memcpy(calls[i].arg, a, sizeof calls[i].arg);
	return strcmp(name, failing) == 0 ? result : 0;
}
static uint8_t *seen(void) { return calls[count - 1].seen; }

#define CALL(name, body) \
	int name(uint64_t a0, uint64_t a1, uint64_t a2, uint64_t a3, uint64_t a4, uint64_t a5, \
		 uint64_t a6, uint64_t a7, uint64_t a8, uint64_t a9, uint64_t a10) { \
		uint64_t a[args] = {a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10}; \
		int r = note(#name, a); \
		if (r == 0 || r == 218) { body; } \
		return r; \
	}
#define I32(p, v) *(int32_t *)(p) = (v)
#define I64(p, v) *(int64_t *)(p) = (v)

#ifndef CUDA_VERSION
#define CUDA_VERSION 12040
#endif
static int version = CUDA_VERSION;
void standin_version(int v) { version = v; }

CALL(cuInit, )
CALL(cuDriverGetVersion, I32(a0, version))
CALL(cuDeviceGetCount, I32(a0, 3))
CALL(cuDeviceGet, I32(a0, 70 + (int)a1))
CALL(cuDeviceGetName, strncpy((char *)a0, "Stand-in 9000", a1))
CALL(cuDeviceGetAttribute, I32(a0, 1000 + (int)a1))
CALL(cuDevicePrimaryCtxRetain, I64(a0, 0xc0de0001))
CALL(cuDevicePrimaryCtxRelease, )
#if CUDA_VERSION >= 11000
CALL(cuDevicePrimaryCtxRelease_v2, )
#endif
CALL(cuCtxPushCurrent_v2, )
CALL(cuCtxPopCurrent_v2, I64(a0, 0xc0de0002))
CALL(cuCtxGetCurrent, I64(a0, 0xc0de0003))
CALL(cuCtxGetDevice, I32(a0, 2))
#if CUDA_VERSION >= 10010
CALL(cuThreadExchangeStreamCaptureMode, {
	memcpy(seen(), (void *)a0, 4);
	I32(a0, 1);
})
#endif
CALL(cuModuleLoadDataEx, {
	uint32_t *o = (uint32_t *)a3;
	void **v = (void **)a4;
	strncpy((char *)seen(), (char *)a1, 100);
	I32(seen() + 128, o[0]);
	I32(seen() + 132, o[1]);
	I64(seen() + 136, (int64_t)v[1]);
	if (r == 0)
		I64(a0, 0xc0de0004);
	else
		strcpy((char *)v[0], "line 7: no such instruction");
})
CALL(cuModuleUnload, )
CALL(cuModuleGetFunction, {
	strncpy((char *)seen(), (char *)a2, 100);
	I64(a0, 0xc0de0005);
})
CALL(cuLaunchKernel, {
	uint64_t *e = (uint64_t *)a10;
	I64(seen(), e[0]);
	I64(seen() + 8, e[2]);
	I64(seen() + 16, e[4]);
	I64(seen() + 24, *(uint64_t *)e[3]);
	memcpy(seen() + 32, (void *)e[1], *(uint64_t *)e[3]);
})
CALL(cuMemGetInfo_v2, {
	I64(a0, 5ll << 33);
	I64(a1, 6ll << 33);
})
CALL(cuMemAlloc_v2, I64(a0, 0x700000000000))
CALL(cuMemFree_v2, )
static uint8_t host[4096];
CALL(cuMemHostAlloc, I64(a0, (int64_t)host))
CALL(cuMemFreeHost, )
// The address says what it is: device memory, memory of the host, managed or
// unified memory, managed memory that prefers the host, with and without a
// context; all others are unknown.
CALL(cuPointerGetAttributes, {
	void **v = (void **)a2;
	memcpy(seen(), (void *)a1, a0 * 4);
	uint64_t kind = a3 >> 40;
	I64(v[0], kind == 1 || kind == 5 ? 0xc0de0006 : 0);
	I32(v[1], kind == 1 ? 2 : kind == 2 ? 1 : kind == 3 ? 2 : kind == 4 ? 4 : kind >= 5 ? 2 : 0);
	*(uint8_t *)v[2] = kind == 3 || kind >= 5;
	I32(v[3], kind >= 5 ? -1 : kind ? 1 : -2);
	I64(v[4], a3 - 16);
	I64(v[5], 8ll << 32);
})
CALL(cuMemcpyHtoDAsync_v2, memcpy(seen(), (void *)a1, a2))
CALL(cuMemcpyDtoHAsync_v2, memset((void *)a0, 0x5a, a2))
CALL(cuMemcpyDtoDAsync_v2, )
CALL(cuMemsetD8Async, )
CALL(cuStreamCreate, I64(a0, 0xc0de0007))
CALL(cuStreamDestroy_v2, )
CALL(cuStreamSynchronize, )
CALL(cuStreamWaitEvent, )
#if CUDA_VERSION >= 10000
CALL(cuStreamIsCapturing, I32(a1, a0 == 77 ? 2 : a0 == 10))
#endif
CALL(cuEventCreate, I64(a0, 0xc0de0008))
CALL(cuEventDestroy_v2, )
CALL(cuEventRecord, )
CALL(cuEventQuery, )
CALL(cuEventSynchronize, )
CALL(cuGetErrorName, {
	if (a0 == 998)
		I64(a1, (int64_t) "CUDA_ERROR_OF_TOMORROW");
	else
		I64(a1, 0);
})
CALL(cuEventElapsedTime, *(float *)a0 = 1.5f)
