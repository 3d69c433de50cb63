// What the kernels share. They are compiled by tools/ci/ptx.sh, without
// contraction of products and sums, so that each operation rounds once.

typedef unsigned char uint8;
typedef signed char int8;
typedef unsigned short uint16;
typedef short int16;
typedef unsigned int uint32;
typedef int int32;
typedef unsigned long long uint64;
typedef long long int64;

#define KERNEL extern "C" __global__ void __launch_bounds__(256)

// place is the number of this thread in the grid, places how many there are.
__device__ inline uint64 place() { return blockIdx.x * (uint64)blockDim.x + threadIdx.x; }
__device__ inline uint64 places() { return gridDim.x * (uint64)blockDim.x; }

// Vec is what a thread reads at once.
template <class T> union Vec {
	uint4 all;
	T one[16 / sizeof(T)];
};

// Float32, Float64, Float16 and BFloat16 say how the patterns of a format are
// computed with: in which wider format, and what its special patterns are.
struct Float32 {
	typedef uint32 bits;
	typedef float wide;
	enum : uint32 { sign = 0x80000000, inf = 0x7f800000, quiet = 0x00400000 };
	__device__ static float widen(uint32 b) { return __uint_as_float(b); }
	__device__ static uint32 narrow(float f) { return __float_as_uint(f); }
};

struct Float64 {
	typedef uint64 bits;
	typedef double wide;
	enum : uint64 { sign = 1ull << 63, inf = 0x7ffull << 52, quiet = 1ull << 51 };
	__device__ static double widen(uint64 b) { return __longlong_as_double((int64)b); }
	__device__ static uint64 narrow(double f) { return (uint64)__double_as_longlong(f); }
};

struct Float16 {
	typedef uint16 bits;
	typedef float wide;
	enum : uint16 { sign = 0x8000, inf = 0x7c00, quiet = 0x0200 };
	__device__ static float widen(uint16 b) {
		float f;
		asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(b));
		return f;
	}
	__device__ static uint16 narrow(float f) {
		uint16 b;
		asm("cvt.rn.f16.f32 %0, %1;" : "=h"(b) : "f"(f));
		return b;
	}
};

struct BFloat16 {
	typedef uint16 bits;
	typedef float wide;
	enum : uint16 { sign = 0x8000, inf = 0x7f80, quiet = 0x0040 };
	__device__ static float widen(uint16 b) { return __uint_as_float((uint32)b << 16); }
	// The tie goes to the even pattern. Who calls it has taken NaNs out.
	__device__ static uint16 narrow(float f) {
		uint32 b = __float_as_uint(f);
		return (uint16)((b + 0x7fff + (b >> 16 & 1)) >> 16);
	}
};

// isNaN is of the pattern, so that no comparison of floats has to be trusted with it.
template <class F> __device__ inline bool isNaN(typename F::bits b) {
	return (typename F::bits)(b & (F::sign - 1)) > F::inf;
}

// nan is the NaN that a op b gives: the first operand that is one, made quiet,
// else the negative one without payload. This is what amd64 processors make; a
// device makes one and the same whatever the operands.
template <class F> __device__ inline typename F::bits nan(typename F::bits a, typename F::bits b) {
	typedef typename F::bits T;
	if (isNaN<F>(a)) return (T)(a | F::quiet);
	if (isNaN<F>(b)) return (T)(b | F::quiet);
	return (T)(F::sign | F::inf | F::quiet);
}

template <class F> __device__ inline typename F::bits add(typename F::bits a, typename F::bits b) {
	typename F::wide r = F::widen(a) + F::widen(b);
	return r == r ? F::narrow(r) : nan<F>(a, b);
}

template <class F> __device__ inline typename F::bits mul(typename F::bits a, typename F::bits b) {
	typename F::wide r = F::widen(a) * F::widen(b);
	return r == r ? F::narrow(r) : nan<F>(a, b);
}

// larger and smaller keep a where the comparison is false: NaN, and zeros.
template <class F> __device__ inline typename F::bits larger(typename F::bits a, typename F::bits b) {
	return F::widen(a) < F::widen(b) ? b : a;
}

template <class F> __device__ inline typename F::bits smaller(typename F::bits a, typename F::bits b) {
	return F::widen(b) < F::widen(a) ? b : a;
}
