package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/core/topo/topofile"
)

// HeldOut makes instances of the kinds of the public ones from a seed, with
// 128 to 316 peers: solvers may be tuned on those, never on these. What is the
// best of them is not known; Refer looks for it.
func HeldOut(seed uint64) []Instance {
	rnd := rand.New(rand.NewPCG(seed, 0x68656c64))
	var all []Instance
	add := func(kind, name string, n int, costs bool, m topo.Matrix) {
		name = fmt.Sprintf("%s%d-h%d", name, n, seed)
		all = append(all, Instance{Kind: kind, path: name, File: &topofile.File{Name: name, Matrix: m, Costs: costs}})
	}
	size := func() int { return 128 + rnd.IntN(189) }
	for _, k := range []struct {
		name       string
		home, nats float64
	}{{"dc", 0, 0}, {"dc", 0, 0}, {"dc", 0, 0}, {"mixed", 0.35, 0}, {"nat", 0.35, 0.7}} {
		n := size()
		add("wan", k.name, n, false, wideArea(rnd, n, k.home, k.nats))
	}
	for _, k := range []struct {
		name string
		make func(*rand.Rand, int) [][]int
	}{{"amat", amat}, {"tmat", tmat}, {"crane", crane}, {"disk", disk}, {"shop", shop}, {"super", superstring}, {"rtilt", rtilt}} {
		n := size()
		m := topo.NewMatrix(n)
		for i, row := range k.make(rnd, n) {
			for j, c := range row {
				if i != j {
					m.Set(i, j, 1000/float64(c))
				}
			}
		}
		add("atsp-syn", k.name, n, true, m)
	}
	return all
}

// Refer looks for the best values of the instance, with a budget that should
// be far above those that are compared with it.
func (in *Instance) Refer(ctx context.Context, s topo.Solver, seed uint64, budget time.Duration, clock func() time.Duration) error {
	objectives := []topo.Objective{topo.Sum}
	if in.Kind == "wan" {
		objectives = append(objectives, topo.BottleneckThenSum)
	}
	for _, o := range objectives {
		limited, cancel := limit(ctx, budget, clock)
		got, err := s.Solve(limited, topo.Problem{Matrix: in.Matrix, Objective: o, Seed: seed}, func(topo.Solution) {})
		cancel()
		if err = errors.Join(err, ctx.Err()); err != nil {
			return fmt.Errorf("%s: %w", in.Name, err)
		}
		if o == topo.Sum {
			in.Sum, in.Bottleneck = in.File.Sum(got.Sum), in.File.Bottleneck(got.Bottleneck)
		} else {
			in.Bottleneck, in.SumAt = in.File.Bottleneck(got.Bottleneck), in.File.Sum(got.Sum)
		}
	}
	return nil
}

// lognormal returns a factor around 1.
func lognormal(rnd *rand.Rand, sigma float64) float64 { return math.Exp(sigma * rnd.NormFloat64()) }

// wideArea returns the rates between clusters in data centres around the globe
// and, as part of all, homes with slow uploads, of which nats are behind NAT:
// such do not reach one another, nor some of the servers.
func wideArea(rnd *rand.Rand, n int, home, nats float64) topo.Matrix {
	type site struct{ x, y, z, nic float64 }
	type peer struct {
		site      int
		home, nat bool
		closed    bool // a server behind a firewall
		up, down  float64
	}
	// Regions lie close together on few continents; places on the unit sphere.
	var continents [5][2]float64
	for k := range continents {
		continents[k] = [2]float64{rnd.Float64() * 2 * math.Pi, (rnd.Float64() - 0.3) * 1.2}
	}
	sites := make([]site, 7+rnd.IntN(7))
	weight := make([]float64, len(sites))
	total := 0.0
	for k := range sites {
		c := continents[rnd.IntN(len(continents))]
		lon, lat := c[0]+0.25*rnd.NormFloat64(), c[1]+0.15*rnd.NormFloat64()
		sites[k] = site{math.Cos(lat) * math.Cos(lon), math.Cos(lat) * math.Sin(lon), math.Sin(lat), []float64{1000, 2500, 10000, 10000}[rnd.IntN(4)]}
		weight[k] = lognormal(rnd, 1.2)
		total += weight[k]
	}
	// What one connection gets falls with the distance; each direction between
	// two sites is different from the other.
	base := make([]float64, len(sites)*len(sites))
	for a := range sites {
		for b := range sites {
			dot := sites[a].x*sites[b].x + sites[a].y*sites[b].y + sites[a].z*sites[b].z
			km := 6371 * math.Acos(min(1, max(-1, dot)))
			base[a*len(sites)+b] = 1.2e6 / max(100, km) * lognormal(rnd, 0.3)
		}
	}
	peers := make([]peer, n)
	for i := range peers {
		p := peer{up: math.Inf(1), down: math.Inf(1)}
		for x := rnd.Float64() * total; p.site < len(sites)-1 && x > weight[p.site]; p.site++ {
			x -= weight[p.site]
		}
		p.home = rnd.Float64() < home
		if p.home {
			p.site = rnd.IntN(len(sites))
			p.up, p.down = 20*lognormal(rnd, 0.6), 200*lognormal(rnd, 0.5)
			if rnd.Float64() < 0.3 {
				p.up = 200 + 700*rnd.Float64()
				p.down = p.up
			}
			p.nat = rnd.Float64() < nats
		} else {
			p.closed = nats > 0 && rnd.Float64() < 0.1
		}
		peers[i] = p
	}
	m := topo.NewMatrix(n)
	for i, p := range peers {
		for j, q := range peers {
			if i == j || p.nat && (q.nat && rnd.Float64() < 0.9 || q.closed) || nats > 0 && rnd.Float64() < 0.01 {
				continue
			}
			v := min(base[p.site*len(sites)+q.site]*lognormal(rnd, 0.2), sites[p.site].nic*lognormal(rnd, 0.04))
			if p.site == q.site && !p.home && !q.home {
				v = sites[p.site].nic * (1 - 0.06*rnd.Float64())
			}
			v = min(v, p.up*lognormal(rnd, 0.08), q.down*lognormal(rnd, 0.08))
			digits := math.Pow(10, 3-math.Floor(math.Log10(v)))
			m.Set(i, j, math.Round(v*digits)/digits)
		}
	}
	return m
}

// The classes of Cirasella, Johnson, McGeoch and Zhang, "The asymmetric
// traveling salesman problem: algorithms, instance generators, and tests"
// (ALENEX 2001), rows from, columns to.

// fill computes all costs; none is 0, which would be an infinite rate.
func fill(n int, cost func(i, j int) int) [][]int {
	c := make([][]int, n)
	for i := range c {
		c[i] = make([]int, n)
		for j := range c[i] {
			if i != j {
				c[i][j] = max(1, cost(i, j))
			}
		}
	}
	return c
}

// amat: every cost by itself.
func amat(rnd *rand.Rand, n int) [][]int {
	return fill(n, func(int, int) int { return rnd.IntN(100000) })
}

// tmat: the same, closed under shortest paths.
func tmat(rnd *rand.Rand, n int) [][]int {
	c := amat(rnd, n)
	for k := range n {
		for i := range n {
			for j := range n {
				if i != j {
					c[i][j] = min(c[i][j], c[i][k]+c[k][j])
				}
			}
		}
	}
	return c
}

const field = 100000 // side of the square of the geometric classes

func points(rnd *rand.Rand, n int) [][2]float64 {
	p := make([][2]float64, n)
	for i := range p {
		p[i] = [2]float64{field * rnd.Float64(), field * rnd.Float64()}
	}
	return p
}

// crane: from where one load is put down to where the next is picked up, which
// moves little between a load's ends.
func crane(rnd *rand.Rand, n int) [][]int {
	from := points(rnd, n)
	reach := field / math.Sqrt(float64(n)) * 2
	to := make([][2]float64, n)
	for i, p := range from {
		to[i] = [2]float64{p[0] + reach*(rnd.Float64()-0.5), p[1] + reach*(rnd.Float64()-0.5)}
	}
	return fill(n, func(i, j int) int { return int(math.Hypot(to[i][0]-from[j][0], to[i][1]-from[j][1])) })
}

// disk: the head seeks from track to track while the disk turns; a reader that comes
// late waits for the next turn.
func disk(rnd *rand.Rand, n int) [][]int {
	p := points(rnd, n)
	return fill(n, func(i, j int) int {
		seek := math.Abs(p[i][1]-p[j][1]) / 10
		wait := math.Mod(p[j][0]-p[i][0]-seek, field)
		if wait < 0 {
			wait += field
		}
		return int(seek + wait)
	})
}

// shop: jobs that run through all machines without a pause; the cost is by how
// much the next one has to start later.
func shop(rnd *rand.Rand, n int) [][]int {
	const machines = 50
	ends := make([][machines + 1]int, n) // when a job leaves each machine
	for i := range ends {
		for k := range machines {
			ends[i][k+1] = ends[i][k] + rnd.IntN(1001)
		}
	}
	return fill(n, func(i, j int) int {
		late := 0
		for k := range machines {
			late = max(late, ends[i][k+1]-ends[j][k])
		}
		return late
	})
}

// superstring: by how much a string of 20 bits makes a superstring longer
// after another one.
func superstring(rnd *rand.Rand, n int) [][]int {
	const bits = 20
	s := make([]uint32, n)
	for i := range s {
		s[i] = rnd.Uint32() & (1<<bits - 1)
	}
	return fill(n, func(i, j int) int {
		overlap := bits - 1
		for s[i]&(1<<overlap-1) != s[j]>>(bits-overlap) {
			overlap--
		}
		return bits - overlap
	})
}

// rtilt: holes in a board that is tilted: the drill moves along both axes at
// once, and along one of them three times as fast downhill as uphill.
func rtilt(rnd *rand.Rand, n int) [][]int {
	p := points(rnd, n)
	return fill(n, func(i, j int) int {
		dx, dy := math.Abs(p[i][0]-p[j][0]), p[j][1]-p[i][1]
		if dy < 0 {
			dy = -dy / 2
		} else {
			dy *= 1.5
		}
		return int(max(dx, dy))
	})
}
