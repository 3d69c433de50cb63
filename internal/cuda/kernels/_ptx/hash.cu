// SimpleHash (hashes, section 1): up to 960 blocks of 256 accumulators, then one
// block over their hashes and the bytes behind the last whole vec. Sizes have 64
// bits, and any address will do.
#include "common.cuh"

__device__ inline uint32 mix(uint32 a, uint32 b) {
	a ^= b + 0x9e3779b1;
	return (a << 7 | a >> 25) * 0x85ebca6b;
}

// warpTree gives lane 0 the tree over the values of the 32 lanes. What the
// lanes beyond the half compute is not used.
__device__ inline uint32 warpTree(uint32 v) {
#pragma unroll
	for (int off = 16; off > 0; off /= 2) v = mix(v, __shfl_down_sync(0xffffffff, v, off));
	return v;
}

// blockTree gives thread 0 the tree over the accumulators of 256 threads.
__device__ inline uint32 blockTree(uint32 v) {
	__shared__ uint32 rows[8];
	v = warpTree(v);
	if (threadIdx.x % 32 == 0) rows[threadIdx.x / 32] = v;
	__syncthreads();
	if (threadIdx.x < 32) v = warpTree(threadIdx.x < 8 ? rows[threadIdx.x] : 0);
	return v;
}

__device__ inline uint32 mixVec(uint32 a, uint4 v) { return mix(mix(mix(mix(a, v.x), v.y), v.z), v.w); }

// wordAt reads a little-endian word at any address, the address being a
// multiple of the size of T.
template <class T> __device__ inline uint32 wordAt(const uint8 *p);
template <> __device__ inline uint32 wordAt<uint32>(const uint8 *p) { return *(const uint32 *)p; }
template <> __device__ inline uint32 wordAt<uint8>(const uint8 *p) { return p[0] | p[1] << 8 | p[2] << 16 | (uint32)p[3] << 24; }

template <class T> __device__ inline uint4 vecAt(const uint8 *p) {
	return make_uint4(wordAt<T>(p), wordAt<T>(p + 4), wordAt<T>(p + 8), wordAt<T>(p + 12));
}
template <> __device__ inline uint4 vecAt<uint4>(const uint8 *p) { return *(const uint4 *)p; }

// accumulate takes every 256th vec from p up to end. Reads run ahead of the
// chain of multiplications.
template <class T> __device__ inline uint32 accumulate(const uint8 *p, const uint8 *end) {
	const uint64 row = 256 * 16;
	uint32 a = 0;
	for (; (int64)(end - p) > (int64)(3 * row); p += 4 * row) {
		uint4 v[4];
#pragma unroll
		for (int k = 0; k < 4; k++) v[k] = vecAt<T>(p + k * row);
#pragma unroll
		for (int k = 0; k < 4; k++) a = mixVec(a, v[k]);
	}
	for (; p < end; p += row) a = mixVec(a, vecAt<T>(p));
	return a;
}

// hash_blocks writes the hash of block g of src to hashes[g]; there are per
// vecs in a block, but for the last ones, and vecs in all.
KERNEL hash_blocks(uint32 *hashes, const uint8 *src, uint64 vecs, uint64 per) {
	uint64 from = min(blockIdx.x * per, vecs), to = min(from + per, vecs);
	const uint8 *p = src + 16 * (from + threadIdx.x), *end = src + 16 * to;
	uint32 a;
	if (((uint64)src & 15) == 0)
		a = accumulate<uint4>(p, end);
	else if (((uint64)src & 3) == 0)
		a = accumulate<uint32>(p, end);
	else
		a = accumulate<uint8>(p, end);
	a = blockTree(a);
	if (threadIdx.x == 0) hashes[blockIdx.x] = a;
}

// hash_finish writes the hash of the whole to dst: of the blocks, and of the
// bytes of tail, less than a vec. It is one block.
KERNEL hash_finish(uint32 *dst, const uint32 *hashes, uint32 blocks, const uint8 *tail, uint32 bytes) {
	uint32 h = 0;
	if (blocks > 0) {
		for (uint32 g = threadIdx.x; g < blocks; g += 256) h = mix(h, hashes[g]);
		h = blockTree(h);
	}
	if (threadIdx.x != 0) return;
	for (; bytes >= 4; bytes -= 4, tail += 4) h = mix(h, wordAt<uint8>(tail));
	if (bytes > 0) {
		uint32 last = 0;
		for (uint32 k = 0; k < bytes; k++) last |= (uint32)tail[k] << 8 * k;
		h = mix(h, last);
	}
	*dst = h;
}
