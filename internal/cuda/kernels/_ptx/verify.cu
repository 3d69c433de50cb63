// What measurements need: expf over all patterns, and a kernel that reads.
#include "common.cuh"

// Tally counts what expf gave.
struct Tally {
	uint64 sum; // of the patterns
	uint64 nan, inf, finite;
	uint64 parity; // of the patterns, by exclusive or
	__device__ void join(const Tally &t) {
		sum += t.sum;
		nan += t.nan;
		inf += t.inf;
		finite += t.finite;
		parity ^= t.parity;
	}
};

// expf_tally evaluates expf of each step-th pattern from first on, count of them,
// and writes one Tally per block.
KERNEL expf_tally(Tally *blocks, uint64 first, uint64 step, uint64 count) {
	__shared__ Tally all[256];
	Tally t = {};
	for (uint64 i = place(); i < count; i += places()) {
		uint32 r = __float_as_uint(expf(__uint_as_float((uint32)(first + i * step))));
		t.sum += r;
		t.parity ^= r;
		uint32 magnitude = r & 0x7fffffff;
		if (magnitude > 0x7f800000)
			t.nan++;
		else if (magnitude == 0x7f800000)
			t.inf++;
		else
			t.finite++;
	}
	all[threadIdx.x] = t;
	for (uint32 half = 128; half > 0; half /= 2) {
		__syncthreads();
		if (threadIdx.x < half) {
			t.join(all[threadIdx.x + half]);
			all[threadIdx.x] = t;
		}
	}
	if (threadIdx.x == 0) blocks[blockIdx.x] = t;
}

// read_parity writes the exclusive or of the words of vecs, by block: the least
// that can be done with memory that is read.
KERNEL read_parity(uint32 *blocks, const uint4 *src, uint64 vecs) {
	__shared__ uint32 all[256];
	uint32 r = 0;
	uint64 i = place(), step = places();
	for (; i + 3 * step < vecs; i += 4 * step) {
		uint4 v[4];
#pragma unroll
		for (int k = 0; k < 4; k++) v[k] = src[i + k * step];
#pragma unroll
		for (int k = 0; k < 4; k++) r ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
	}
	for (; i < vecs; i += step) {
		uint4 v = src[i];
		r ^= v.x ^ v.y ^ v.z ^ v.w;
	}
	all[threadIdx.x] = r;
	for (uint32 half = 128; half > 0; half /= 2) {
		__syncthreads();
		if (threadIdx.x < half) {
			r ^= all[threadIdx.x + half];
			all[threadIdx.x] = r;
		}
	}
	if (threadIdx.x == 0) blocks[blockIdx.x] = r;
}
