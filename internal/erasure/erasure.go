// Package erasure makes good what is missing of a group of pieces with spares of it: of any
// pieces, as many as there are spares. It is pure.
//
// A spare is a sum of the pieces over the field of 256 elements, each times a factor that
// depends on the place of the piece in the group and the number of the spare alone. The
// factors are a Cauchy matrix, of which every square part can be inverted, with columns scaled
// so that spare 0 is the exclusive or of the pieces. So nothing else has to be agreed on:
// neither how many pieces a group has, nor how many spares. (Blömer et al., "An XOR-Based
// Erasure-Resilient Coding Scheme", 1995, section 2, for the matrix.)
package erasure

import "crypto/subtle"

const (
	// MostSpares and MostPieces bound a group.
	MostSpares, MostPieces = 128, 128

	polynomial = 0x11d // x^8 + x^4 + x^3 + x^2 + 1
)

var (
	products [256][256]byte
	inverses [256]byte
)

func init() {
	for a := range 256 {
		for b := range 256 {
			p := 0
			for x, y := a, b; y > 0; y >>= 1 {
				if y&1 != 0 {
					p ^= x
				}
				if x <<= 1; x > 255 {
					x ^= polynomial
				}
			}
			if products[a][b] = byte(p); p == 1 {
				inverses[a] = byte(b)
			}
		}
	}
}

// factor returns what the piece at a place is multiplied with in the spare of a number.
func factor(number, place int) byte {
	y := MostSpares + place
	return products[y][inverses[number^y]]
}

// Add adds a piece, at its place, to the sum that becomes the spare of that number. The sum is
// zero at first, and no shorter than data: of a shorter piece the rest is zero.
// 0 <= number < MostSpares, 0 <= place < MostPieces.
func Add(sum, data []byte, number, place int) { add(sum, data, factor(number, place)) }

// add adds data times f.
func add(sum, data []byte, f byte) {
	sum = sum[:len(data)]
	if f == 1 {
		subtle.XORBytes(sum, sum, data)
		return
	}
	times := &products[f]
	for i, v := range data {
		sum[i] ^= times[v]
	}
}

func scale(data []byte, f byte) {
	times := &products[f]
	for i, v := range data {
		data[i] = times[v]
	}
}

// Solve makes the missing pieces of sums: sums[i] is the spare of numbers[i], to which all pieces
// that are there were added once more, and becomes the piece at places[i]. The three are equally
// long, and so are the sums; no number and no place is there twice.
func Solve(sums [][]byte, numbers, places []int) {
	left := make([][]byte, len(sums)) // the matrix that the sums are the product of
	for i, number := range numbers {
		left[i] = make([]byte, len(places))
		for k, place := range places {
			left[i][k] = factor(number, place)
		}
	}
	for k := range sums {
		// Elimination needs no exchange of rows: the leading parts can be inverted, too.
		by := inverses[left[k][k]]
		scale(left[k], by)
		scale(sums[k], by)
		for i := range sums {
			if f := left[i][k]; i != k && f != 0 {
				add(left[i], left[k], f)
				add(sums[i], sums[k], f)
			}
		}
	}
}
