package main

import "math"

// assign solves the assignment problem: every peer gets a successor of its own
// at the least total cost, +Inf being forbidden (shortest augmenting paths after
// Jonker and Volgenant, 1987). It returns the total and the potentials u and v:
// cost(i,j) - u[i] - v[j] >= 0, what an arc costs beyond the least total at
// least. ok is false if there is no assignment.
func assign(n int, cost func(i, j int) float64) (total float64, u, v []float64, ok bool) {
	// Rows and columns are numbered from 1; column 0 is where a row waits.
	pu, pv := make([]float64, n+1), make([]float64, n+1)
	row := make([]int, n+1) // of a column
	via := make([]int, n+1)
	for i := 1; i <= n; i++ {
		row[0] = i
		least := make([]float64, n+1)
		used := make([]bool, n+1)
		for j := range least {
			least[j] = math.Inf(1)
		}
		j0 := 0
		for {
			used[j0] = true
			i0, delta, j1 := row[j0], math.Inf(1), -1
			for j := 1; j <= n; j++ {
				if used[j] {
					continue
				}
				if c := cost(i0-1, j-1) - pu[i0] - pv[j]; c < least[j] {
					least[j], via[j] = c, j0
				}
				if least[j] < delta {
					delta, j1 = least[j], j
				}
			}
			if j1 < 0 {
				return 0, nil, nil, false
			}
			for j := 0; j <= n; j++ {
				if used[j] {
					pu[row[j]] += delta
					pv[j] -= delta
				} else {
					least[j] -= delta
				}
			}
			if j0 = j1; row[j0] == 0 {
				break
			}
		}
		for j0 != 0 {
			row[j0] = row[via[j0]]
			j0 = via[j0]
		}
	}
	for j := 1; j <= n; j++ {
		total += cost(row[j]-1, j-1)
	}
	return total, pu[1:], pv[1:], true
}
