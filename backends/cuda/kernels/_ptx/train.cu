// One step of Nesterov momentum on float32, each operation rounded once, as a
// trainer does it on the processor.
#include "common.cuh"

// nesterov_step: velocity := momentum * velocity + gradient, and
// params := params - rate * (gradient + momentum * velocity).
KERNEL nesterov_step(float *params, float *velocity, const float *gradient, uint64 n, float rate, float momentum) {
	for (uint64 i = place(); i < n; i += places()) {
		float g = gradient[i], v = momentum * velocity[i] + g;
		velocity[i] = v;
		params[i] = params[i] - rate * (g + momentum * v);
	}
}

// difference_float32: dst := a - b, a pseudo-gradient. dst may be a or b.
KERNEL difference_float32(float *dst, const float *a, const float *b, uint64 n) {
	for (uint64 i = place(); i < n; i += places()) dst[i] = a[i] - b[i];
}
