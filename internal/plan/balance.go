package plan

import (
	"cmp"
	"slices"
)

// load is what a unit of data costs one resource.
type load struct {
	resource int
	cost     float64
}

// column is what trees cost that share a part of the data equally.
func (m *model) column(trees []Tree, all costs) (list []load) {
	clear(all)
	for i := range trees {
		m.each(&trees[i], func(r int, c float64) { all[r] += c / float64(len(trees)) })
	}
	for r, c := range all {
		if c > 0 {
			list = append(list, load{r, c})
		}
	}
	return list
}

// balanced are parts of the data, of which the sum is 1: with the first ones few columns
// have a part, with the even ones resources that decide nothing have as little to do as
// can be. most is what all of it costs the dearest resource, and price what each adds to
// that: 0 for those that have room.
type balanced struct {
	part, even []float64
	most       float64
	price      costs
}

const (
	// balanceTurns bounds how often rows are added that turn out to be too dear, and
	// columns that turn out to be cheaper.
	balanceTurns = 12
	// evenSteps is how closely those resources are made equal that decide nothing.
	evenSteps = 6
	// evenLoss is what that may cost, and evenSlack how far a resource is from the least
	// that it has to do at most.
	evenLoss, evenSlack = 0.002, 0.02
)

// balance returns the parts of columns with which the dearest resource costs least, each
// made dearer by its factor, and those that are even as well. It is a linear program. Of all its rows, those that matter
// are found by solving it without the others.
func (m *model) balance(columns [][]load, factor costs, evenly bool) balanced {
	n := m.N
	p := packing{columns: columns, factor: factor, row: slices.Repeat([]int{-1}, len(factor)), scale: 1}
	dearest := 0.0
	for _, c := range columns {
		for _, l := range c {
			if l.resource < 2*n || l.resource >= 2*n+n*n {
				p.add(l.resource)
			}
			dearest = max(dearest, l.cost*factor[l.resource])
		}
	}
	p.scale = 1 / dearest
	x, price, sum := p.solve(m, nil)
	b := balanced{even: x, most: 1 / (sum * p.scale), price: price}
	b.part = normal(x)
	if !evenly {
		b.even = b.part
		return b
	}
	// Of all parts that are as good, those are better with which the other members are
	// through sooner: what is known of them may be wrong. Whatever the parts, a member sends
	// all data once, and receives it once.
	once := func(r int) float64 {
		c := 0.0
		switch {
		case r < n:
			c = 1 / m.up[r]
		case r < 2*n:
			c = 1 / m.down[r-n]
		}
		return c * factor[r] / b.most
	}
	low, high := 0.0, 1.0
	for range evenSteps {
		if m.stopped() {
			break
		}
		room := (low + high) / 2
		x, _, even := p.solve(m, func(r int) float64 {
			if price[r] > 1e-9 || r >= 2*n {
				return 1
			}
			return min(max(room, (1+evenSlack)*once(r)), 1)
		})
		if even < sum*(1-evenLoss) {
			low = room
			continue
		}
		high, b.even = room, x
	}
	b.even = normal(b.even)
	return b
}

// normal returns parts whose sum is 1.
func normal(part []float64) []float64 {
	total := 0.0
	for _, v := range part {
		total += v
	}
	list := make([]float64, len(part))
	for i, v := range part {
		list[i] = v / total
	}
	return list
}

// packing is a problem for pack: as much data as has room.
type packing struct {
	columns [][]load
	factor  costs
	scale   float64
	rows    []int // resources
	row     []int // of each resource, -1: it is in no row
}

func (p *packing) add(resource int) {
	if p.row[resource] < 0 {
		p.row[resource] = len(p.rows)
		p.rows = append(p.rows, resource)
	}
}

// solve returns how much data goes by each column and in all, if every resource has room for 1
// or as much as room says, and what room is worth by resource. Rows are added until none
// is missing.
func (p *packing) solve(m *model, room func(r int) float64) (x []float64, price costs, sum float64) {
	if room == nil {
		room = func(int) float64 { return 1 }
	}
	price = make(costs, len(p.factor))
	for range balanceTurns {
		a := make([][]float64, len(p.rows))
		for i := range a {
			a[i] = make([]float64, len(p.columns))
		}
		for j, c := range p.columns {
			for _, l := range c {
				if i := p.row[l.resource]; i >= 0 {
					a[i][j] = l.cost * p.factor[l.resource] * p.scale / room(l.resource)
				}
			}
		}
		var y []float64
		x, y = pack(a, len(p.columns))
		clear(price)
		for i, r := range p.rows {
			price[r] = y[i]
		}
		all := make(costs, len(p.factor))
		sum = 0
		for j, c := range p.columns {
			sum += x[j]
			for _, l := range c {
				all[l.resource] += x[j] * l.cost * p.factor[l.resource] * p.scale
			}
		}
		var missing []int
		worst := 1.0
		for r, v := range all {
			v /= room(r)
			worst = max(worst, v)
			if v > 1+1e-6 && p.row[r] < 0 {
				missing = append(missing, r)
			}
		}
		if len(missing) == 0 {
			return x, price, sum
		}
		slices.SortFunc(missing, func(r, s int) int { return cmp.Or(cmp.Compare(all[s], all[r]), cmp.Compare(r, s)) })
		for _, r := range missing[:min(len(missing), m.N)] {
			p.add(r)
		}
		sum /= worst // if this was the last turn
	}
	return x, price, sum
}
