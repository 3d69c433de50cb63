// What the interpreter's tests run: compiled by NVRTC 12.9 for compute_52 with
// -fmad=false into sample.ptx.

extern "C" __global__ void add(float *d, const float *a, const float *b, unsigned long long n) {
	for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (unsigned long long)blockDim.x)
		d[i] = a[i] + b[i];
}

extern "C" __global__ void mixed(float4 *d, const float4 *a, const float4 *b, unsigned long long n) {
	for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (unsigned long long)blockDim.x) {
		float4 x = a[i], y = __ldg(b + i);
		x.x += y.x;
		x.y *= y.y;
		x.z /= y.z;
		x.w = sqrtf(y.w) + fmaxf(x.w, y.w);
		d[i] = x;
	}
}

// A sum over one block: shuffles within warps, shared memory between them.
extern "C" __global__ void sum(unsigned long long *out, const unsigned char *a, unsigned long long n) {
	__shared__ unsigned long long s[32];
	unsigned long long t = 0;
	for (unsigned long long i = threadIdx.x; i < n; i += blockDim.x)
		t = t * 31 + (a[i] ^ (i >> 3));
	for (int o = 16; o; o >>= 1)
		t += __shfl_down_sync(~0u, t, o);
	if ((threadIdx.x & 31) == 0)
		s[threadIdx.x >> 5] = t;
	__syncthreads();
	if (threadIdx.x < 32) {
		t = threadIdx.x < (blockDim.x + 31) / 32 ? s[threadIdx.x] : 0;
		for (int o = 16; o; o >>= 1)
			t += __shfl_xor_sync(~0u, t, o);
		if (!threadIdx.x)
			*out = t;
	}
}

extern "C" __global__ void divide(long long *d, const long long *a, const long long *b, int n) {
	int i = threadIdx.x;
	if (i < n)
		d[i] = a[i] / b[i] + a[i] % b[i] + ((unsigned)a[i] / 7u) + __umul64hi(a[i], b[i]);
}

__device__ __noinline__ float function(float x, int k) {
	if (k > 3)
		return x * 2;
	return expf(x);
}

// Calls of functions in a divergent place.
extern "C" __global__ void calls(float *d, const float *a, int n) {
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		d[i] = function(a[i], i & 7) + (float)(int)a[i] + rintf(a[i]);
}

__constant__ int table[4] = {1, 2, 3, 4};
__device__ int counter = 40;

// Dynamic shared memory, constants, variables, local memory, atomics.
extern "C" __global__ void memories(unsigned *d, int *most, int n) {
	extern __shared__ unsigned q[];
	q[threadIdx.x] = d[threadIdx.x];
	__syncthreads();
	atomicAdd(d, q[threadIdx.x ^ 1] + table[threadIdx.x & 3]);
	atomicMax(most, (int)threadIdx.x * n);
	int own[8];
	for (int i = 0; i < 8; i++)
		own[i] = q[i] + 1;
	d[32 + threadIdx.x] = own[q[threadIdx.x] & 7];
	d[64 + threadIdx.x] = atomicAdd(&counter, 1);
}
