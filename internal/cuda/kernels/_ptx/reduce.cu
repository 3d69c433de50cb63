// dst := a op b for every operation and type, and the division of an average
// (data spec, section 3). dst may be a or b.
#include "common.cuh"

template <class F> struct FloatSum {
	typedef typename F::bits T;
	__device__ static T of(T a, T b) { return add<F>(a, b); }
};
template <class F> struct FloatProd {
	typedef typename F::bits T;
	__device__ static T of(T a, T b) { return mul<F>(a, b); }
};
template <class F> struct FloatMax {
	typedef typename F::bits T;
	__device__ static T of(T a, T b) { return larger<F>(a, b); }
};
template <class F> struct FloatMin {
	typedef typename F::bits T;
	__device__ static T of(T a, T b) { return smaller<F>(a, b); }
};

// Sums and products of integers are the same bits with and without sign.
template <class I> struct IntegerSum {
	typedef I T;
	__device__ static T of(T a, T b) { return (T)(a + b); }
};
template <class I> struct IntegerProd {
	typedef I T;
	__device__ static T of(T a, T b) { return (T)((uint64)a * b); }
};
template <> struct IntegerProd<uint16> {
	typedef uint16 T;
	__device__ static T of(T a, T b) { return (T)((uint32)a * b); }
};
template <> struct IntegerProd<uint8> {
	typedef uint8 T;
	__device__ static T of(T a, T b) { return (T)((uint32)a * b); }
};
template <class I> struct IntegerMax {
	typedef I T;
	__device__ static T of(T a, T b) { return a < b ? b : a; }
};
template <class I> struct IntegerMin {
	typedef I T;
	__device__ static T of(T a, T b) { return b < a ? b : a; }
};

// Split says which of n elements are taken 16 bytes at a time: those behind the
// first boundary of 16 bytes, if all operands come to theirs together. The
// others are at the begin and at the end.
template <class T> struct Split {
	uint64 head, vecs, rest;
	__device__ Split(uint64 n, const T *dst, const T *a, const T *b) {
		uint64 p = (uint64)dst, q = (uint64)a, r = (uint64)b;
		head = n;
		if ((((p ^ q) | (p ^ r)) & 15) == 0) head = min(n, ((0 - p) & 15) / sizeof(T));
		vecs = (n - head) / (16 / sizeof(T));
		rest = n - vecs * (16 / sizeof(T));
	}
	// other is the place of the i-th element that is not in a vec.
	__device__ uint64 other(uint64 i) const { return i < head ? i : i + vecs * (16 / sizeof(T)); }
};

template <class Op> __device__ inline void reduce(typename Op::T *dst, const typename Op::T *a, const typename Op::T *b, uint64 n) {
	typedef typename Op::T T;
	Split<T> s(n, dst, a, b);
	uint4 *to = (uint4 *)(dst + s.head);
	const uint4 *x = (const uint4 *)(a + s.head), *y = (const uint4 *)(b + s.head);
	for (uint64 i = place(); i < s.vecs; i += places()) {
		Vec<T> v, w;
		v.all = x[i];
		w.all = y[i];
#pragma unroll
		for (int k = 0; k < 16 / sizeof(T); k++) v.one[k] = Op::of(v.one[k], w.one[k]);
		to[i] = v.all;
	}
	for (uint64 i = place(); i < s.rest; i += places()) {
		uint64 at = s.other(i);
		dst[at] = Op::of(a[at], b[at]);
	}
}

// Quotients are rounded once; a quotient by a number is NaN only where the
// element is one.
template <class F> struct FloatQuotient {
	typedef typename F::bits T;
	typename F::wide world;
	__device__ FloatQuotient(uint32 w) : world((typename F::wide)w) {}
	__device__ T of(T x) const { return isNaN<F>(x) ? (T)(x | F::quiet) : F::narrow(F::widen(x) / world); }
};
template <class I, class Wide> struct IntegerQuotient {
	typedef I T;
	Wide world;
	__device__ IntegerQuotient(uint32 w) : world((Wide)w) {}
	__device__ T of(T x) const { return (T)((Wide)x / world); }
};

// finalize takes a world of at most 2^31-1, so that every Wide holds it.
template <class Quotient> __device__ inline void finalize(typename Quotient::T *dst, uint64 n, uint32 world) {
	typedef typename Quotient::T T;
	Quotient q(world);
	Split<T> s(n, dst, dst, dst);
	uint4 *to = (uint4 *)(dst + s.head);
	for (uint64 i = place(); i < s.vecs; i += places()) {
		Vec<T> v;
		v.all = to[i];
#pragma unroll
		for (int k = 0; k < 16 / sizeof(T); k++) v.one[k] = q.of(v.one[k]);
		to[i] = v.all;
	}
	for (uint64 i = place(); i < s.rest; i += places()) {
		uint64 at = s.other(i);
		dst[at] = q.of(dst[at]);
	}
}

#define REDUCE(op, type, Op)                                                       \
	KERNEL reduce_##op##_##type(Op::T *dst, const Op::T *a, const Op::T *b, uint64 n) { \
		reduce<Op>(dst, a, b, n);                                                      \
	}
#define FINALIZE(type, Quotient) \
	KERNEL finalize_##type(Quotient::T *dst, uint64 n, uint32 world) { finalize<Quotient>(dst, n, world); }

#define FLOAT(type, F)              \
	REDUCE(sum, type, FloatSum<F>)  \
	REDUCE(prod, type, FloatProd<F>) \
	REDUCE(max, type, FloatMax<F>)  \
	REDUCE(min, type, FloatMin<F>)  \
	FINALIZE(type, FloatQuotient<F>)

#define COMMA ,
#define INTEGER(type, Wide)           \
	REDUCE(max, type, IntegerMax<type>) \
	REDUCE(min, type, IntegerMin<type>) \
	FINALIZE(type, IntegerQuotient<type COMMA Wide>)
#define UNSIGNED(type, Wide)            \
	REDUCE(sum, type, IntegerSum<type>)   \
	REDUCE(prod, type, IntegerProd<type>) \
	INTEGER(type, Wide)

UNSIGNED(uint8, uint32)
INTEGER(int8, int32)
UNSIGNED(uint16, uint32)
INTEGER(int16, int32)
UNSIGNED(uint32, uint32)
INTEGER(int32, int32)
UNSIGNED(uint64, uint64)
INTEGER(int64, int64)
FLOAT(float16, Float16)
FLOAT(bfloat16, BFloat16)
FLOAT(float32, Float32)
FLOAT(float64, Float64)
