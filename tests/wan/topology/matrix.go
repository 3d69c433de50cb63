package main

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"time"

	"github.com/gopccl/gopccl/core/topo"
)

//go:embed testdata/*.json
var data embed.FS

// load returns the matrix of n peers: the first ones of the smallest file that
// has as many.
func load(n int) (string, topo.Matrix, error) {
	name := "gcp6-europe-s1000"
	switch {
	case n > 8:
		name = "gcp12-namerica-s1010"
	case n > 6:
		name = "gcp12-namerica-s1012"
	}
	raw, err := data.ReadFile("testdata/" + name + ".json")
	if err != nil {
		return name, topo.Matrix{}, err
	}
	var file struct {
		Mbps [][]*float64 `json:"mbps"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		return name, topo.Matrix{}, err
	}
	if n > len(file.Mbps) {
		return name, topo.Matrix{}, fmt.Errorf("%s has %d peers", name, len(file.Mbps))
	}
	m := topo.NewMatrix(n)
	for i := range n {
		for j := range n {
			if v := file.Mbps[i][j]; v != nil && i != j {
				m.Set(i, j, *v)
			}
		}
	}
	return name, m, nil
}

// scale makes the slowest link of the best ring mbps fast. Links that are more
// than ten times as fast are limited to that: no ring is better for more.
func scale(ctx context.Context, m topo.Matrix, mbps float64) (best float64, scaled topo.Matrix, err error) {
	solver, err := topo.Lookup("exact")
	if err != nil {
		return 0, m, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	sol, err := solver.Solve(ctx, topo.Problem{Matrix: m}, func(topo.Solution) {})
	if err != nil {
		return 0, m, err
	}
	scaled = topo.NewMatrix(m.N)
	for i, v := range m.Mbps {
		scaled.Mbps[i] = min(v*mbps/sol.Bottleneck, 10*mbps)
	}
	best, _, _ = scaled.Value(sol.Ring)
	return best, scaled, nil
}
