package plan

import (
	"compress/gzip"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// What pack returns takes no more room than there is, and the prices of the room prove
// that nothing is better: no column is worth more than they say, and all room together is
// worth what the parts are.
func TestPackIsProved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows, columns := rapid.IntRange(1, 12).Draw(t, "rows"), rapid.IntRange(1, 12).Draw(t, "columns")
		a := make([][]float64, rows)
		for i := range a {
			a[i] = make([]float64, columns)
			for j := range a[i] {
				a[i][j] = float64(rapid.IntRange(0, 6).Draw(t, "cost")) / 4
			}
		}
		for j := range columns {
			a[rapid.IntRange(0, rows-1).Draw(t, "bound")][j] = 1
		}
		x, price := pack(a, columns)
		gain, worth := 0.0, 0.0
		for i := range a {
			room := 0.0
			for j := range x {
				require.GreaterOrEqual(t, x[j], 0.0)
				room += a[i][j] * x[j]
			}
			require.LessOrEqual(t, room, 1+1e-7)
			worth += price[i]
		}
		for j := range x {
			gain += x[j]
			costs := 0.0
			for i := range a {
				costs += a[i][j] * price[i]
			}
			require.GreaterOrEqual(t, costs, 1-1e-7)
		}
		require.InDelta(t, gain, worth, 1e-6)
	})
}

// A column that nothing bounds is bounded by the first row. There may be no rows.
func TestPackWithoutBounds(t *testing.T) {
	x, price := pack([][]float64{{0, 1}, {0, 1}}, 2)
	require.InDelta(t, 1, x[0]+x[1], 1e-9)
	require.InDelta(t, 1, price[0]+price[1], 1e-9)
	x, price = pack(nil, 2)
	require.Equal(t, []float64{0, 0}, x)
	require.Empty(t, price)
}

// everyTree returns all trees of n members with that owner, as lists of parents.
func everyTree(n, owner int) (list [][]int) {
	next := make([]int, n)
	var fill func(i int)
	fill = func(i int) {
		if i == n {
			t := Tree{Up: append([]int(nil), next...)}
			if t.Down = t.Up; t.check(n) == nil {
				list = append(list, t.Up)
			}
			return
		}
		if i == owner {
			next[i] = -1
			fill(i + 1)
			return
		}
		for k := range n {
			if k != i {
				next[i] = k
				fill(i + 1)
			}
		}
	}
	fill(0)
	return list
}

// most is what bytes cost the dearest resource, where the wire takes as long as they need.
func (m *model) bytes(s *Scheme) float64 {
	all, _ := m.load(s)
	most := 0.0
	for _, v := range all {
		most = max(most, v)
	}
	return most
}

// Of the plans that are compared one is nearly as good as the best of all that there are,
// with any trees in any parts.
func TestSearchFindsTheBest(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	worst := 1.0
	for turn := range 200 {
		n := 3 + turn%2
		p := even(n, time.Duration(1+rng.IntN(40))*time.Millisecond, 0)
		p.Rates = make([]float64, n*n)
		for i := range p.Rates {
			if p.Rates[i] = 10 * float64(1+rng.IntN(50)); rng.IntN(3) == 0 {
				p.Rates[i] /= 10
			}
		}
		m := newModel(p)
		var columns [][]load
		all := m.costs()
		for o := range n {
			for _, up := range everyTree(n, o) {
				for _, down := range everyTree(n, o) {
					columns = append(columns, m.column([]Tree{{Up: up, Down: down}}, all))
				}
			}
		}
		plain := m.costs()
		for i := range plain {
			plain[i] = 1
		}
		best := m.balance(columns, plain, false).most
		require.LessOrEqual(t, m.bound(), best*(1+1e-6), "the bound is none")
		found := math.Inf(1)
		for _, s := range m.schemes() {
			found = min(found, m.bytes(s))
		}
		for _, s := range m.relayed(nil) {
			found = min(found, m.bytes(s))
		}
		worst = max(worst, found/best)
	}
	t.Logf("at worst %.3f of the best", worst)
	require.Less(t, worst, 1.15)
}

// readMatrix returns a problem with the rates of a file, in which all ways are as long.
// Where the file has no rate there is no way.
func readMatrix(t testing.TB, name string) Problem {
	f, err := os.Open("../../tests/bench/topology/data/wan/" + name + ".json.gz")
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	var m struct {
		N    int
		Mbps [][]*float64
	}
	require.NoError(t, json.NewDecoder(z).Decode(&m))
	p := even(m.N, 15*time.Millisecond, 0)
	p.Rates = make([]float64, m.N*m.N)
	for i := range m.N {
		for k, v := range m.Mbps[i] {
			switch {
			case v != nil:
				p.Rates[i*m.N+k] = *v
			case i != k:
				p.Rates[i*m.N+k] = -1
				p.Delay[i*m.N+k] = -1
			}
		}
	}
	return p
}

// Where the best ring takes nearly twice of what any schedule has to take, a plan is found
// that takes little more than that, also where members cannot reach all others.
func TestPlansForManyPeers(t *testing.T) {
	for name, ring := range map[string]float64{"mixed32-s1101": 8.64, "nat32-s1102": 11.28, "mixed64-s1111": 10.12, "nat64-s1112": 9.41} {
		p := readMatrix(t, name)
		o := Large(p)
		at := o.For(256 << 20)
		require.NotNil(t, at, name)
		require.NoError(t, at.Scheme.Check(p.N))
		m := newModel(p)
		require.True(t, m.passes(at.Scheme.Trees), name)
		best := 2 * float64(p.N-1) / float64(p.N) / (ring * 1e6 / 8)
		t.Logf("%s: %q takes %.3f of the bound, the best ring %.3f", name, at.Scheme.Name, m.bytes(at.Scheme)/m.bound(), best/m.bound())
		require.Less(t, m.bytes(at.Scheme)/m.bound(), 1.15, name)
		require.Greater(t, best/m.bound(), 1.7, name)
		require.Less(t, len(o.Encode()), 48<<10)
		_, err := ParseOptions(o.Encode(), p.N)
		require.NoError(t, err)
	}
}

func BenchmarkLarge(b *testing.B) {
	for _, name := range []string{"gcp12-namerica-s1010", "gcp18-na-eu-s1021", "mixed32-s1101", "nat32-s1102", "dc32-s1100", "mixed64-s1111", "nat64-s1112", "dc64-s1110"} {
		p := readMatrix(b, name)
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				Large(p)
			}
		})
	}
}

// A way that does not exist is in no plan.
func TestWaysThatDoNotExist(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(3, 9).Draw(t, "n")
		rate := make([]float64, n)
		for i := range rate {
			rate[i] = float64(rapid.IntRange(1, 50).Draw(t, "rate"))
		}
		p := hosts(rate, rate, 15*time.Millisecond)
		for i := range n * n {
			if i/n != i%n && rapid.IntRange(0, 3).Draw(t, "closed") == 0 {
				p.Rates[i], p.Delay[i] = -1, -1
			}
		}
		m := newModel(p)
		if m == nil {
			return
		}
		for _, s := range m.schemes() {
			require.NoError(t, s.Check(n))
			require.True(t, m.passes(s.Trees), s.Name)
			require.GreaterOrEqual(t, m.line(s).Delay, 2*15*time.Millisecond)
		}
	})
}
