package topofile

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/gopccl/gopccl/core/topo"
)

// parseTSPLIB reads a full matrix (Reinelt, "TSPLIB 95").
func parseTSPLIB(text []byte) (*File, error) {
	f := &File{Costs: true}
	n := -1
	var costs []float64
	inside := false
	line := 0
	for rest := string(text); rest != ""; {
		var s string
		s, rest, _ = strings.Cut(rest, "\n")
		line++
		s = strings.TrimSpace(s)
		if s == "" {
			continue
		}
		if c := s[0]; inside && (c >= '0' && c <= '9' || c == '-' || c == '+' || c == '.') {
			for _, word := range strings.Fields(s) {
				v, err := strconv.ParseFloat(word, 64)
				if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
					return nil, fmt.Errorf("line %d: %q is not a cost", line, word)
				}
				if len(costs) == n*n {
					return nil, fmt.Errorf("line %d: more than the %d x %d costs that DIMENSION promises", line, n, n)
				}
				costs = append(costs, v)
			}
			continue
		}
		key, value, _ := strings.Cut(s, ":")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		inside = false
		switch key {
		case "NAME":
			f.Name = value
		case "TYPE":
			if !strings.HasPrefix(value, "ATSP") && !strings.HasPrefix(value, "TSP") {
				return nil, fmt.Errorf("line %d: TYPE %s; want ATSP or TSP", line, value)
			}
		case "COMMENT", "DISPLAY_DATA_TYPE", "NODE_COORD_TYPE":
		case "DIMENSION":
			d, err := strconv.Atoi(value)
			if err != nil || d < 1 || d > MaxPeers {
				return nil, fmt.Errorf("line %d: DIMENSION %q; want 1 to %d", line, value, MaxPeers)
			}
			n = d
		case "EDGE_WEIGHT_TYPE":
			if value != "EXPLICIT" {
				return nil, fmt.Errorf("line %d: EDGE_WEIGHT_TYPE %s; only EXPLICIT is supported", line, value)
			}
		case "EDGE_WEIGHT_FORMAT":
			if value != "FULL_MATRIX" {
				return nil, fmt.Errorf("line %d: EDGE_WEIGHT_FORMAT %s; only FULL_MATRIX is supported", line, value)
			}
		case "EDGE_WEIGHT_SECTION":
			if n < 0 {
				return nil, fmt.Errorf("line %d: EDGE_WEIGHT_SECTION before DIMENSION", line)
			}
			inside = true
		case "EOF":
			rest = ""
		default:
			return nil, fmt.Errorf("line %d: %q is not understood", line, key)
		}
	}
	if n < 0 {
		return nil, errors.New("no DIMENSION")
	}
	if len(costs) != n*n {
		return nil, fmt.Errorf("%d costs, but DIMENSION promises %d x %d: the file was cut off", len(costs), n, n)
	}
	f.Matrix = topo.NewMatrix(n)
	for i := range n {
		for j := range n {
			c := costs[i*n+j]
			if i == j || c >= topo.MaxCost {
				continue
			}
			if c < 0 {
				return nil, fmt.Errorf("cost %v from %d to %d is negative", c, i+1, j+1)
			}
			f.Matrix.Set(i, j, 1000/c) // 0: infinitely fast
		}
	}
	return f, nil
}
