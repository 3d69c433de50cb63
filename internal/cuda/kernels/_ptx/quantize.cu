// The quantizers minmax and zeropoint (data spec, sections 4.4 and 4.5): what
// their parameters are computed from, and both directions.
#include "common.cuh"

// Quad is four elements that a thread reads or writes at once.
template <class T> struct __align__(4 * sizeof(T)) Quad {
	T one[4];
	enum : uint64 { mask = 4 * sizeof(T) - 1 };
};
// Eight bytes per thread are enough for memory; more cost registers.
template <> struct Quad<double> { double one[4]; };
template <> struct Quad<uint64> { uint64 one[4]; };
template <> struct Quad<int64> { int64 one[4]; };

// Quads says which of n elements are taken four at a time; the others are at
// the begin and at the end. T is the type of p, which leads.
template <class T, class Q, bool narrow = sizeof(T) < 8 && sizeof(Q) < 8> struct Quads {
	uint64 head, quads, rest;
	__device__ Quads(uint64 n, const T *p, const T *same, const Q *q) {
		head = min(n, ((0 - (uint64)p) & Quad<T>::mask) / sizeof(T));
		if ((((uint64)p ^ (uint64)same) & Quad<T>::mask) != 0 || ((uint64)(q + head) & Quad<Q>::mask) != 0) head = n;
		quads = (n - head) / 4;
		rest = n - 4 * quads;
	}
	__device__ uint64 other(uint64 i) const { return i < head ? i : i + 4 * quads; }
};
template <class T, class Q> struct Quads<T, Q, false> {
	enum : uint64 { head = 0, quads = 0 };
	uint64 rest;
	__device__ Quads(uint64 n, const T *, const T *, const Q *) : rest(n) {}
	__device__ uint64 other(uint64 i) const { return i; }
};

// quantize writes code.of(src[i]) to dst[i].
template <class T, class Q, class Code> __device__ inline void quantize(Q *dst, const T *src, uint64 n, const Code &code) {
	Quads<T, Q> s(n, src, src, dst);
	Quad<Q> *to = (Quad<Q> *)(dst + s.head);
	const Quad<T> *from = (const Quad<T> *)(src + s.head);
	for (uint64 i = place(); i < s.quads; i += places()) {
		Quad<T> v = from[i];
		Quad<Q> r;
#pragma unroll
		for (int k = 0; k < 4; k++) r.one[k] = code.of(v.one[k]);
		to[i] = r;
	}
	for (uint64 i = place(); i < s.rest; i += places()) {
		uint64 at = s.other(i);
		dst[at] = code.of(src[at]);
	}
}

// combine is acc op v. The numbers of the operations are those of the wire.
template <class F> __device__ inline typename F::bits combine(uint32 op, typename F::bits acc, typename F::bits v) {
	switch (op) {
	case 1: // sum
		return add<F>(acc, v);
	case 3: // prod
		return mul<F>(acc, v);
	case 4: // max
		return larger<F>(acc, v);
	case 5: // min
		return smaller<F>(acc, v);
	}
	return v;
}

// known gives every NaN the one pattern that dequantized values have.
template <class F> __device__ inline typename F::bits known(typename F::wide v) {
	return v == v ? F::narrow(v) : (typename F::bits)(F::sign | F::inf | F::quiet);
}

// dequantize writes acc[i] op code.of(q[i]) to dst[i]. dst may be acc; with op 0
// acc is not read.
template <class F, class Q, class Code>
__device__ inline void dequantize(typename F::bits *dst, const typename F::bits *acc, const Q *q, uint64 n, uint32 op, const Code &code) {
	typedef typename F::bits T;
	Quads<T, Q> s(n, dst, acc, q);
	Quad<T> *to = (Quad<T> *)(dst + s.head);
	const Quad<T> *old = (const Quad<T> *)(acc + s.head);
	const Quad<Q> *from = (const Quad<Q> *)(q + s.head);
	for (uint64 i = place(); i < s.quads; i += places()) {
		Quad<Q> v = from[i];
		Quad<T> r = {};
		if (op != 0) r = old[i];
#pragma unroll
		for (int k = 0; k < 4; k++) r.one[k] = combine<F>(op, r.one[k], known<F>(code.of(v.one[k])));
		to[i] = r;
	}
	for (uint64 i = place(); i < s.rest; i += places()) {
		uint64 at = s.other(i);
		dst[at] = combine<F>(op, op != 0 ? acc[at] : (T)0, known<F>(code.of(q[at])));
	}
}

// MinMaxCode: from low to high, to 0 up to the largest Q.
template <class T, class Q> struct MinMaxCode {
	T low, span;
	double scale, base; // the reciprocal of the span; low
	__device__ Q of(T x) const {
		const Q top = (Q)~0u;
		double v = span == 0 ? (double)(x - low) : ((double)x - base) * scale;
		v *= (double)top;
		return v >= (double)top ? top : v > 0 ? (Q)(uint32)v : (Q)0; // NaN gives 0
	}
};
template <class T, class Q> struct MinMaxValue {
	T low, span;
	double inverse; // of the largest Q
	__device__ T of(Q q) const { return low + (T)((double)q * inverse) * span; }
};

#define MINMAX(F, type, q)                                                                                                    \
	KERNEL minmax_quantize_##type##_##q(q *dst, const F::wide *src, uint64 n, F::wide low, F::wide span, double scale, double base) { \
		MinMaxCode<F::wide, q> code = {low, span, scale, base};                                                               \
		quantize<F::wide, q>(dst, src, n, code);                                                                              \
	}                                                                                                                         \
	KERNEL minmax_dequantize_##type##_##q(F::bits *dst, const F::bits *acc, const q *src, uint64 n, uint32 op, F::wide low, F::wide span, double inverse) { \
		MinMaxValue<F::wide, q> code = {low, span, inverse};                                                                  \
		dequantize<F, q>(dst, acc, src, n, op, code);                                                                         \
	}

MINMAX(Float32, float32, uint8)
MINMAX(Float32, float32, uint16)
MINMAX(Float32, float32, uint32)
MINMAX(Float64, float64, uint8)
MINMAX(Float64, float64, uint16)
MINMAX(Float64, float64, uint32)

// ZeroPointCode counts steps from the lower end of Q, of at most 32 bits.
template <class T, class Q> struct ZeroPointCode {
	double inverse, base; // of the scale; steps from the lower end to zero
	uint32 zero;          // what NaN becomes
	__device__ Q of(T x) const {
		const bool sign = (Q)-1 < (Q)0;
		const uint32 span = sizeof(Q) == 4 ? 0xffffffff : (1u << 8 * sizeof(Q) % 32) - 1;
		const uint32 lowest = sign ? 0 - (span / 2 + 1) : 0;
		double v = (double)x * inverse + base + 0.5;
		if (v >= (double)span) return (Q)(lowest + span);
		if (v > 0) return (Q)(lowest + (uint32)v);
		return v == v ? (Q)lowest : (Q)zero;
	}
};

// Int64: the zero point is added in integers, since a double does not hold the sum.
template <class T> struct ZeroPointCode<T, int64> {
	double inverse;
	int64 zero;
	__device__ int64 of(T x) const {
		double v = (double)x * inverse;
		int64 r = 0; // NaN
		if (v >= 9223372036854775808.0) {
			r = 0x7fffffffffffffff;
		} else if (v >= -9223372036854775808.0) {
			r = (int64)v;
			double rest = v - (double)r; // ties go away from zero
			if (rest >= 0.5) r++;
			if (rest <= -0.5) r--;
		} else if (v < 0) {
			r = (int64)(1ull << 63);
		}
		int64 sum = (int64)((uint64)r + (uint64)zero);
		if (((r ^ sum) & (zero ^ sum)) >= 0) return sum;
		return r < 0 ? (int64)(1ull << 63) : 0x7fffffffffffffff;
	}
};

// The distance to the zero point wraps. From uint8 to float32 PCCL computes it
// in 32 bits.
template <class T, class Q> struct ZeroPointValue {
	int64 zero;
	T scale;
	__device__ T of(Q q) const {
		if (sizeof(T) == 4 && sizeof(Q) == 1 && (Q)-1 > (Q)0) return (T)(int32)((uint32)q - (uint32)zero) * scale;
		return (T)(int64)((uint64)(int64)q - (uint64)zero) * scale;
	}
};

#define ZEROPOINT_QUANTIZE(F, type, q)                                                                             \
	KERNEL zeropoint_quantize_##type##_##q(q *dst, const F::wide *src, uint64 n, double inverse, double base, uint32 zero) { \
		ZeroPointCode<F::wide, q> code = {inverse, base, zero};                                                    \
		quantize<F::wide, q>(dst, src, n, code);                                                                   \
	}
#define ZEROPOINT_DEQUANTIZE(F, type, q)                                                                                              \
	KERNEL zeropoint_dequantize_##type##_##q(F::bits *dst, const F::bits *acc, const q *src, uint64 n, uint32 op, int64 zero, float scale) { \
		ZeroPointValue<F::wide, q> code = {zero, (F::wide)scale};                                                                     \
		dequantize<F, q>(dst, acc, src, n, op, code);                                                                                 \
	}
#define ZEROPOINT(F, type, q)      \
	ZEROPOINT_QUANTIZE(F, type, q) \
	ZEROPOINT_DEQUANTIZE(F, type, q)
#define ZEROPOINTS(F, type)                                                                                     \
	ZEROPOINT(F, type, uint8)                                                                                   \
	ZEROPOINT(F, type, int8)                                                                                    \
	ZEROPOINT(F, type, uint16)                                                                                  \
	ZEROPOINT(F, type, int16)                                                                                   \
	ZEROPOINT(F, type, uint32)                                                                                  \
	ZEROPOINT(F, type, int32)                                                                                   \
	ZEROPOINT_DEQUANTIZE(F, type, int64)                                                                        \
	KERNEL zeropoint_quantize_##type##_int64(int64 *dst, const F::wide *src, uint64 n, double inverse, int64 zero) { \
		ZeroPointCode<F::wide, int64> code = {inverse, zero};                                                   \
		quantize<F::wide, int64>(dst, src, n, code);                                                            \
	}

ZEROPOINTS(Float32, float32)
ZEROPOINTS(Float64, float64)
