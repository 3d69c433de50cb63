package world

import (
	"fmt"
	"math"
	"math/bits"
)

// MaxPeers is how many peers a result can name.
const MaxPeers = 48

// Contribution of peer id to element i of operation op of a step. Element 0
// names the peer by its bit; the others are small integers, so that sums are
// exact in any order.
func Contribution(id int, step uint64, op, i int) float64 {
	if i == 0 {
		return float64(uint64(1) << id)
	}
	return float64((uint64(id+1)*2654435761 ^ step*40503 ^ uint64(i)*97 ^ uint64(op)*7919) % 1021)
}

// Contributors returns who is in a sum of contributions, as bits. Every element
// has to be the sum of the same peers: data that was reduced twice, that is of
// another operation or that came from different rings does not pass.
func Contributors(sum []float64, step uint64, op int) (set uint64, err error) {
	if !(sum[0] >= 1 && sum[0] < 1<<MaxPeers && sum[0] == math.Trunc(sum[0])) {
		return 0, fmt.Errorf("element 0 is %v, which names no set of peers", sum[0])
	}
	set = uint64(sum[0])
	for i := range sum {
		want := 0.0
		for rest := set; rest != 0; rest &= rest - 1 {
			want += Contribution(bits.TrailingZeros64(rest), step, op, i)
		}
		if want != sum[i] {
			return set, fmt.Errorf("element %d is %v, the peers %#x sum to %v", i, sum[i], set, want)
		}
	}
	return set, nil
}

// block is how many elements of a quantized result say who took part.
const block = 64

// Mark is element i of what peer id contributes to a quantized operation: a
// Walsh function that differs from peer to peer and from operation to operation,
// times something that differs from element to element. Walsh functions are
// orthogonal, so that any 64 elements of a sum tell who is in it, although every
// element has lost digits; with the factor these losses have nothing to do with
// who is in it.
func Mark(id int, step uint64, op, i int) float32 {
	if bits.OnesCount64(code(id, step, op)&uint64(i%block))&1 == 1 {
		return -height(step, op, i)
	}
	return height(step, op, i)
}

// height is between 3/4 and 5/4.
func height(step uint64, op, i int) float32 {
	x := (uint64(i)+step*1021+uint64(op)*65537)*0x9e3779b97f4a7c15 + 1
	x = (x ^ x>>29) * 0xbf58476d1ce4e5b9
	return 0.75 + float32(x>>40)/(1<<25)
}

// code is the number of a Walsh function other than the constant one: in that
// is what a quantizer loses that rounds down.
func code(id int, step uint64, op int) uint64 {
	return 1 + (uint64(id)+step*7+uint64(op)*11)%(block-1)
}

// Marked is Contributors for a quantized operation of a multiple of 64 elements.
func Marked(sum []float32, step uint64, op int) (set uint64, err error) {
	if len(sum) == 0 || len(sum)%block != 0 {
		return 0, fmt.Errorf("%d elements are not a multiple of %d", len(sum), block)
	}
	for at := 0; at < len(sum); at += block {
		var share [block]float32
		for i := range share {
			share[i] = sum[at+i] / height(step, op, at+i)
		}
		walsh(&share)
		in := uint64(0)
		for id := range block - 1 {
			switch x := share[code(id, step, op)] / block; {
			case x > 0.75 && x < 1.25:
				in |= 1 << id
			case !(x > -0.25 && x < 0.25):
				return 0, fmt.Errorf("peer %d is %.2f times in elements %d to %d", id, x, at, at+block-1)
			}
		}
		switch {
		case at == 0:
			set = in
		case in != set:
			return set, fmt.Errorf("elements %d to %d sum the peers %#x, those before %#x", at, at+block-1, in, set)
		}
	}
	if set == 0 || set >= 1<<MaxPeers {
		return 0, fmt.Errorf("the result names %#x, which is not a set of peers", set)
	}
	return set, nil
}

// walsh is the fast Walsh-Hadamard transform.
func walsh(x *[block]float32) {
	for h := 1; h < block; h *= 2 {
		for i := 0; i < block; i += 2 * h {
			for j := i; j < i+h; j++ {
				x[j], x[j+h] = x[j]+x[j+h], x[j]-x[j+h]
			}
		}
	}
}
