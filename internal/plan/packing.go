package plan

import "math"

// pack solves a packing problem: it returns the x >= 0 with the largest sum of which no
// row of a (none is negative) takes more than 1, and what a little more room in each row
// would be worth. It is the simplex method on a tableau in which what is in and what is
// out of the basis change places. A column that no row bounds counts as one that the
// first does.
func pack(a [][]float64, columns int) (x, price []float64) {
	rows := len(a)
	x, price = make([]float64, columns), make([]float64, rows)
	if rows == 0 || columns == 0 {
		return x, price
	}
	t := make([][]float64, rows+1) // the last row is what is gained, the last column the room
	for i := range rows {
		t[i] = append(append(make([]float64, 0, columns+1), a[i]...), 1)
	}
	t[rows] = make([]float64, columns+1)
	for j := range columns {
		t[rows][j] = -1
		free := true
		for i := range rows {
			free = free && t[i][j] <= 0
		}
		if free {
			t[0][j] = 1
		}
	}
	basic, out := make([]int, rows), make([]int, columns) // columns, then rows
	for i := range basic {
		basic[i] = columns + i
	}
	for j := range out {
		out[j] = j
	}
	for turn := range packTurns {
		enter := entering(t[rows][:columns], out, turn > packTurns/2)
		if enter < 0 {
			break
		}
		leave := leaving(t[:rows], enter, columns, basic)
		if leave < 0 {
			break
		}
		pivot(t, leave, enter)
		basic[leave], out[enter] = out[enter], basic[leave]
	}
	for i, v := range basic {
		if v < columns {
			x[v] = max(t[i][columns], 0)
		}
	}
	for j, v := range out {
		if v >= columns {
			price[v-columns] = max(t[rows][j], 0)
		}
	}
	return x, price
}

// packTurns bounds the steps of pack: what it has by then is lawful, but may not be the best.
const packTurns = 4000

const packZero = 1e-11

// entering returns the column that gains most, or with careful the first that gains: that
// one ends where others go in a circle.
func entering(gain []float64, out []int, careful bool) int {
	at := -1
	for j, g := range gain {
		switch {
		case g >= -1e-9:
		case at < 0, careful && out[j] < out[at], !careful && g < gain[at]:
			at = j
		}
	}
	return at
}

// leaving returns the row that bounds a column first.
func leaving(t [][]float64, enter, room int, basic []int) int {
	at, least := -1, math.Inf(1)
	for i := range t {
		if t[i][enter] <= packZero {
			continue
		}
		if r := t[i][room] / t[i][enter]; r < least || r == least && basic[i] < basic[at] {
			at, least = i, r
		}
	}
	return at
}

func pivot(t [][]float64, row, column int) {
	p := t[row]
	by := 1 / p[column]
	for j := range p {
		p[j] *= by
	}
	p[column] = by
	for i := range t {
		f := t[i][column]
		if i == row || f == 0 {
			continue
		}
		q := t[i]
		for j := range q {
			q[j] -= float64(f * p[j])
		}
		q[column] = -float64(f * by)
	}
}
