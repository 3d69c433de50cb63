package collective

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// apart is a group of n members in sites, as a planner sees it.
func apart(n, sites int, mbps func(i int) float64) plan.Problem {
	p := plan.Problem{N: n, Delay: make([]time.Duration, n*n), Rates: make([]float64, n*n)}
	for i := range n {
		p.Ring = append(p.Ring, i)
		for k := range n {
			if i == k {
				continue
			}
			p.Delay[i*n+k] = 40 * time.Millisecond
			if i*sites/n == k*sites/n {
				p.Delay[i*n+k] = 2 * time.Millisecond
			}
			if mbps != nil {
				p.Rates[i*n+k] = min(mbps(i), mbps(k))
			}
		}
	}
	return p
}

// plansOf returns the plans of small and large all-reduces, each once.
func plansOf(t *testing.T, p plan.Problem) (list []*plan.Scheme) {
	for _, o := range []plan.Options{plan.Small(p, false), plan.Large(p)} {
		for i := range o.List {
			if s := o.List[i].Scheme; s != nil && !slices.Contains(list, s) {
				list = append(list, s)
			}
		}
	}
	require.NotEmpty(t, list)
	return list
}

// Plans of many members run over the connections that they need, and no others: all
// members get the same bits, those of the plan.
func TestPlansOfManyMembers(t *testing.T) {
	slow := func(i int) float64 { return []float64{20, 300, 500}[i%3] }
	ran := map[string]bool{}
	for _, p := range []plan.Problem{apart(16, 16, nil), apart(18, 3, nil), apart(12, 12, slow), apart(9, 3, slow)} {
		rng := rand.New(rand.NewPCG(uint64(p.N), 7))
		for _, s := range plansOf(t, p) {
			w := newWorld(t, shape{n: p.N, mesh: true, ways: s.Ways(p.N), frame: 512})
			w.runScheme(rng, s, 1+rng.IntN(3), 6000)
			w.close()
			ran[s.Name] = true
		}
	}
	t.Log(ran)
}

// A connection of a plan that ends takes the operation with it at the member that waits for
// it, which names the other one; when the others have been told, all have what they had
// before.
func TestLossInAPlanOfManyMembers(t *testing.T) {
	p := apart(12, 3, nil)
	for _, s := range plansOf(t, p) {
		ways := s.Ways(p.N)
		for member := range 2 {
			w := newWorld(t, shape{n: p.N, mesh: true, ways: ways, frame: 64})
			rng := rand.New(rand.NewPCG(uint64(member), 9))
			k := draw(rng, w, plan.AllReduce, 20000)
			k.fill(w, rng)
			for i := range k.specs {
				k.specs[i].Scheme, k.specs[i].Stripes, k.specs[i].Preserve = s, 1, true
			}
			k.want = make([][]byte, p.N)
			pair := [2]int{member, ways[member][rng.IntN(len(ways[member]))]}
			w.out[pair][0].(*transporttest.Conn).CutAfter(40)
			op := w.start(k.specs)
			from := verdict(t, op.errs[pair[0]])
			if from == nil { // it sends that one so little
				op.errs[pair[0]] <- nil
			} else {
				require.ErrorIs(t, from, errs.RankConnectionLost)
				require.ErrorContains(t, from, w.ids[pair[1]].String())
			}
			for i, o := range op.ops {
				o.Abort(errTest)
				if i != pair[0] {
					verdict(t, op.errs[i])
				}
			}
			op.finish(true)
			k.restored(t, true, "%s, %v", s.Name, pair)
			w.balanced(t)
			w.close()
		}
	}
}

// Of 128 members that are 50 ms from each other, a tiny all-reduce takes some delays.
// The time is what this machine makes of it, with all of them in one process.
func Test128Members(t *testing.T) {
	const n = 128
	p := apart(n, n, nil)
	for i := range p.Delay {
		p.Delay[i] = 50 * time.Millisecond
	}
	o := plan.Small(p, false)
	at := o.For(4)
	require.NotNil(t, at)
	// One tree of it, so that there are no thousands of connections in one process.
	scheme := &plan.Scheme{Name: "star", Trees: at.Scheme.Trees[:1]}
	w := newWorld(t, shape{n: n, mesh: true, ways: scheme.Ways(n), link: memoryLink(transporttest.Options{Delay: 50 * time.Millisecond, Buffer: 4 << 10})})
	rng := rand.New(rand.NewPCG(1, 1))
	for range 3 {
		began := time.Now()
		w.runScheme(rng, scheme, 1, 16)
		t.Logf("%q: %v", scheme.Name, time.Since(began))
	}
}
