// What the parameters of the quantizers are computed from: the bounds of a
// chunk (data spec, section 4.4), and sums over segments of it (section 4.5).
#include "common.cuh"

// Bounds are those of some elements. first is twice the place of the first zero
// among them, plus one if it is negative; all ones if there is none: comparisons
// one by one keep the zero that came first, and lanes do not know which did.
struct Bounds {
	double low, high;
	uint64 first;
	__device__ void join(const Bounds &b) {
		if (b.low < low) low = b.low;
		if (high < b.high) high = b.high;
		if (b.first < first) first = b.first;
	}
};

// blockBounds gives thread 0 the bounds of 256 threads.
__device__ inline Bounds blockBounds(Bounds b) {
	__shared__ Bounds all[256];
	all[threadIdx.x] = b;
	for (uint32 half = 128; half > 0; half /= 2) {
		__syncthreads();
		if (threadIdx.x < half) {
			b.join(all[threadIdx.x + half]);
			all[threadIdx.x] = b;
		}
	}
	return b;
}

__device__ inline bool negative(float x) { return (__float_as_uint(x) & Float32::sign) != 0; }
__device__ inline bool negative(double x) { return __double_as_longlong(x) < 0; }

// Widening moves two bounds apart until the elements lie between them. NaN does
// not move them.
template <class T> struct Widening {
	T low, high;
	uint64 first;
	__device__ void take(T x, uint64 at) {
		if (x < low) low = x;
		if (high < x) high = x;
		if (x == 0) {
			uint64 key = 2 * at + negative(x);
			if (key < first) first = key;
		}
	}
};

// minmax_scan writes the bounds of each block's elements. The bounds start at
// the largest and the smallest normal number (quirk Q30).
template <class T> __device__ inline void scan(Bounds *blocks, const T *src, uint64 n, T largest, T smallest) {
	Widening<T> w = {largest, smallest, ~0ull};
	const uint64 per = 16 / sizeof(T);
	uint64 head = min(n, ((0 - (uint64)src) & 15) / sizeof(T)), vecs = (n - head) / per;
	const uint4 *from = (const uint4 *)(src + head);
	for (uint64 i = place(); i < vecs; i += places()) {
		Vec<T> v;
		v.all = from[i];
#pragma unroll
		for (int k = 0; k < per; k++) w.take(v.one[k], head + i * per + k);
	}
	for (uint64 i = place(); i < n - vecs * per; i += places()) {
		uint64 at = i < head ? i : i + vecs * per;
		w.take(src[at], at);
	}
	Bounds b = {(double)w.low, (double)w.high, w.first};
	b = blockBounds(b);
	if (threadIdx.x == 0) blocks[blockIdx.x] = b;
}

KERNEL minmax_scan_float32(Bounds *blocks, const float *src, uint64 n) {
	scan<float>(blocks, src, n, __uint_as_float(0x7f7fffff), __uint_as_float(0x00800000));
}

KERNEL minmax_scan_float64(Bounds *blocks, const double *src, uint64 n) {
	scan<double>(blocks, src, n, __longlong_as_double(0x7fefffffffffffff), __longlong_as_double(0x0010000000000000));
}

// minmax_bounds joins the bounds of all blocks. It is one block.
KERNEL minmax_bounds(Bounds *dst, const Bounds *blocks, uint32 count) {
	Bounds b = blocks[0];
	for (uint32 i = threadIdx.x; i < count; i += 256) b.join(blocks[i]);
	b = blockBounds(b);
	if (threadIdx.x == 0) *dst = b;
}

// Moments are the sum of the elements of a segment, and that of their squared
// distances from its mean.
struct Moments {
	double sum, squares;
};

// total adds the sums of sixteen lanes by halves; lane 0's is used.
__device__ inline double total(double s) {
#pragma unroll
	for (int half = 8; half > 0; half /= 2) s = s + __shfl_down_sync(0xffffffff, s, half, 16);
	return __shfl_sync(0xffffffff, s, 0, 16);
}

// zeropoint_moments writes the moments of each segment of 2048 elements. Sixteen
// lanes share a segment, element i being lane i mod 16's; those behind the last
// sixteen are all the first lane's.
template <class T> __device__ inline void moments(Moments *dst, const T *src, uint64 n) {
	const uint64 length = 2048;
	uint64 segments = (n + length - 1) / length;
	uint32 lane = threadIdx.x % 16;
	// All lanes of a warp stay in the loop, for the sake of the shuffles.
	for (uint64 first = (place() - threadIdx.x) / 16; first < segments; first += places() / 16) {
		uint64 at = first + threadIdx.x / 16;
		uint64 count = at < segments ? min(length, n - at * length) : 0;
		uint32 whole = (uint32)count / 16 * 16;
		const T *x = src + at * length;
		double s = 0;
		for (uint32 i = lane; i < whole; i += 16) s += (double)x[i];
		if (lane == 0)
			for (uint32 i = whole; i < count; i++) s += (double)x[i];
		double sum = total(s), mean = sum / (double)count;
		s = 0;
		for (uint32 i = lane; i < whole; i += 16) {
			double d = (double)x[i] - mean;
			s += d * d;
		}
		if (lane == 0)
			for (uint32 i = whole; i < count; i++) {
				double d = (double)x[i] - mean;
				s += d * d;
			}
		double squares = total(s);
		if (lane == 0 && count > 0) {
			dst[at].sum = sum;
			dst[at].squares = squares;
		}
	}
}

KERNEL zeropoint_moments_float32(Moments *dst, const float *src, uint64 n) { moments<float>(dst, src, n); }
KERNEL zeropoint_moments_float64(Moments *dst, const double *src, uint64 n) { moments<double>(dst, src, n); }
