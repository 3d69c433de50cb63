package atsp

// tour is a tour under change: an array of nodes, the position of each node,
// and the reduced weights of the arcs that enter and leave it.
type tour struct {
	n         int
	w         []int32 // reduced weights, row from
	wt        []int32 // the same, row to
	at        []int32 // position -> node
	pos       []int32 // node -> position
	inW, outW []int32 // weight of the arc into and out of each node
	length    int64   // sum of reduced weights

	log   []change
	saved []int32 // nodes that the logged changes overwrote
}

// change is one exchange, as far as undoing it needs.
type change struct {
	start, count int32 // range of positions that was rewritten
	delta        int64 // what it added to length
	tails        [5]int32
	k            int8
}

func (t *tour) next(i int32) int32 {
	p := t.pos[i] + 1
	if int(p) == t.n {
		p = 0
	}
	return t.at[p]
}

func (t *tour) prev(i int32) int32 {
	p := t.pos[i] - 1
	if p < 0 {
		p = int32(t.n) - 1
	}
	return t.at[p]
}

// set makes order the tour and forgets the log.
func (t *tour) set(order []int32) {
	copy(t.at, order)
	t.length = 0
	prev := order[len(order)-1]
	for p, i := range order {
		t.pos[i] = int32(p)
		c := t.w[int(prev)*t.n+int(i)]
		t.inW[i], t.outW[prev] = c, c
		t.length += int64(c)
		prev = i
	}
	t.forget()
}

func (t *tour) forget() { t.log, t.saved = t.log[:0], t.saved[:0] }

// Whose head each tail gets, by index: the next one's or the previous one's in
// a sequential exchange of three or five arcs, and the double bridge of four.
var (
	forth3 = [5]int8{1, 2, 0}
	back3  = [5]int8{2, 0, 1}
	forth5 = [5]int8{1, 2, 3, 4, 0}
	back5  = [5]int8{4, 0, 1, 2, 3}
	bridge = [5]int8{2, 3, 0, 1}
)

// single reports whether the exchange that gives the tail of arc i the head of
// arc to[i] leaves one cycle. Arcs are given by the positions of their tails.
func single(pos []int32, to *[5]int8) bool {
	k := len(pos)
	var rank, by [5]int
	for i := range k {
		for j := range i {
			if pos[j] < pos[i] {
				rank[i]++
			} else {
				rank[j]++
			}
		}
	}
	for i := range k {
		by[rank[i]] = i
	}
	for r, n := 0, 1; ; n++ {
		if r = rank[to[by[r]]] + 1; r == k {
			r = 0
		}
		if r == 0 {
			return n == k
		}
	}
}

// exchange gives tails[i] as its new successor what now follows
// tails[to[i]]. The result must be one cycle. The longest segment
// stays in place, the others move; the overwritten nodes are logged.
func (t *tour) exchange(tails []int32, to *[5]int8) {
	k, n := len(tails), int32(t.n)
	var by, rank [5]int
	var p [5]int32 // positions, ascending
	for i, x := range tails {
		r := i
		for ; r > 0 && p[r-1] > t.pos[x]; r-- {
			p[r], by[r] = p[r-1], by[r-1]
		}
		p[r], by[r] = t.pos[x], i
	}
	for r := range k {
		rank[by[r]] = r
	}
	var heads [5]int32
	for i, x := range tails {
		heads[i] = t.next(x)
	}
	// Segment r ends at p[r] and begins behind p[r-1].
	longest, most := 0, p[0]-p[k-1]+n
	for r := 1; r < k; r++ {
		if l := p[r] - p[r-1]; l > most {
			longest, most = r, l
		}
	}
	start := p[longest] + 1
	if start == n {
		start = 0
	}
	count := n - most
	base := len(t.saved)
	if start+count <= n {
		t.saved = append(t.saved, t.at[start:start+count]...)
	} else {
		t.saved = append(t.saved, t.at[start:]...)
		t.saved = append(t.saved, t.at[:start+count-n]...)
	}
	saved := t.saved[base:]
	c := change{start: start, count: count, k: int8(k)}
	copy(c.tails[:], tails)
	q := start
	for r := longest; ; {
		if r = rank[to[by[r]]] + 1; r == k {
			r = 0
		}
		if r == longest {
			break
		}
		first := p[(r+k-1)%k] + 1 - start
		if first < 0 {
			first += n
		} else if first == n {
			first = 0
		}
		size := p[r] - p[(r+k-1)%k]
		if size <= 0 {
			size += n
		}
		for _, node := range saved[first : first+size] {
			t.at[q] = node
			t.pos[node] = q
			if q++; q == n {
				q = 0
			}
		}
	}
	for i, x := range tails {
		h := heads[to[i]]
		v := t.w[int(x)*t.n+int(h)]
		c.delta += int64(v) - int64(t.outW[x])
		t.outW[x] = v
		t.inW[h] = v
	}
	t.length += c.delta
	t.log = append(t.log, c)
}

// undo takes the logged changes back.
func (t *tour) undo() {
	n := int32(t.n)
	for len(t.log) > 0 {
		c := &t.log[len(t.log)-1]
		t.log = t.log[:len(t.log)-1]
		base := len(t.saved) - int(c.count)
		q := c.start
		for _, node := range t.saved[base:] {
			t.at[q] = node
			t.pos[node] = q
			if q++; q == n {
				q = 0
			}
		}
		t.saved = t.saved[:base]
		for _, x := range c.tails[:c.k] {
			h := t.next(x)
			v := t.w[int(x)*t.n+int(h)]
			t.outW[x], t.inW[h] = v, v
		}
		t.length -= c.delta
	}
}
