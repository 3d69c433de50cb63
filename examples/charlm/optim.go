package charlm

import "math"

// Optimizer moves parameters by one step against a gradient.
type Optimizer interface {
	// Step applies one gradient to params; both have the optimizer's length.
	Step(params, grad []float32)
}

// The optimizers round after every operation (the conversions to float32 forbid
// the compiler to fuse a multiplication with an addition, which it does on some
// processors): peers that apply the same gradient hold the same bits, whatever
// they run on.

// AdamW is Adam with decoupled weight decay. M and V, the running means, are as
// long as the parameters; a trainer may share them like the parameters.
type AdamW struct {
	Rate, Beta1, Beta2, Epsilon, Decay float32
	M, V                               []float32
	Steps                              uint64 // steps taken so far
}

// NewAdamW returns the optimizer for n parameters with the usual constants.
func NewAdamW(n int, rate float32) *AdamW {
	return &AdamW{
		Rate: rate, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8, Decay: 0.01,
		M: make([]float32, n), V: make([]float32, n),
	}
}

// Step applies one gradient to params.
func (o *AdamW) Step(params, grad []float32) {
	o.Steps++
	unbias1 := 1 / (1 - power(float64(o.Beta1), o.Steps))
	unbias2 := 1 / (1 - power(float64(o.Beta2), o.Steps))
	rate := float32(float64(o.Rate) * unbias1)
	scale := float32(unbias2)
	keep := 1 - float32(o.Rate*o.Decay)
	m, v, grad := o.M[:len(params)], o.V[:len(params)], grad[:len(params)]
	for i, g := range grad {
		m[i] = float32(o.Beta1*m[i]) + float32((1-o.Beta1)*g)
		v[i] = float32(o.Beta2*v[i]) + float32((1-o.Beta2)*float32(g*g))
		root := float32(math.Sqrt(float64(float32(v[i] * scale))))
		params[i] = float32(params[i]*keep) - float32(rate*m[i])/(root+o.Epsilon)
	}
}

// Nesterov is gradient descent with Nesterov momentum, the outer optimizer of
// DiLoCo. Velocity is as long as the parameters and belongs to the shared state.
type Nesterov struct {
	Rate, Momentum float32
	Velocity       []float32
}

// NewNesterov returns the optimizer for n parameters.
func NewNesterov(n int, rate, momentum float32) *Nesterov {
	return &Nesterov{Rate: rate, Momentum: momentum, Velocity: make([]float32, n)}
}

// Step applies one (pseudo-)gradient to params.
func (o *Nesterov) Step(params, grad []float32) {
	velocity, grad := o.Velocity[:len(params)], grad[:len(params)]
	for i, g := range grad {
		velocity[i] = float32(o.Momentum*velocity[i]) + g
		params[i] -= float32(o.Rate * (g + float32(o.Momentum*velocity[i])))
	}
}

// power returns base to the n by repeated squaring: multiplications only, hence
// the same bits everywhere.
func power(base float64, n uint64) float64 {
	result := 1.0
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			result *= base
		}
		base *= base
	}
	return result
}
