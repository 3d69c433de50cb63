// One step of Nesterov momentum on float32, each operation rounded once, as
// charlm takes it on the processor.

// nesterov_step: velocity := momentum * velocity + gradient, and
// params := params - rate * (gradient + momentum * velocity).
extern "C" __global__ void __launch_bounds__(256) nesterov_step(float *params, float *velocity, const float *gradient,
	unsigned long long n, float rate, float momentum) {
	unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
	if (i >= n) return;
	float g = gradient[i], v = momentum * velocity[i] + g;
	velocity[i] = v;
	params[i] = params[i] - rate * (g + momentum * v);
}
