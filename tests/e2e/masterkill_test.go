package e2e

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	model "github.com/gopccl/gopccl/tests/internal/world"
)

func init() { roles["endurer"] = endurer }

// endurer is a trainer that takes no error from any call. It brings small vectors, several
// at once and in place, a large one, and a quantized one, checks every result, and goes on
// until one of all is dismissed; or it leaves after o.Steps.
func endurer(ctx context.Context, o order, say func(report)) error {
	stay, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	comm, err := enter(stay, o)
	if err != nil {
		return err
	}
	defer comm.Close()
	e := endurance{comm: comm, o: o, params: make([]float64, 500), uuid: comm.Attributes().UUID}
	e.state = &core.SharedState{Tensors: []core.Tensor{core.TensorOf("params", e.params)}}
	say(report{Event: "connected"})
	for n := 0; ; n++ {
		r := report{Event: "step"}
		stop, err := e.step(stay, n, ctx, &r)
		if err != nil {
			return fmt.Errorf("step %d (%d of this peer): %w", e.state.Revision, n, err)
		}
		if r.Mask != 0 {
			say(r)
		}
		if stop {
			return comm.Close()
		}
		if o.Steps > 0 && n == o.Steps {
			return comm.Leave(stay)
		}
	}
}

// enter is join for a peer whose master may die before it has heard of it.
func enter(ctx context.Context, o order) (*core.Communicator, error) {
	for {
		comm, err := join(ctx, o)
		if code := errs.CodeOf(err); code != errs.MasterConnectionFailed && code != errs.MasterLost {
			return comm, err
		}
	}
}

// endurance is the life of an endurer.
type endurance struct {
	comm   *core.Communicator
	o      order
	uuid   core.UUID
	state  *core.SharedState
	params []float64
}

// step does what a peer does between two revisions, and says when to stop: in the step in
// which all know that one of them has been dismissed, which ends told. A newcomer that never was
// with the others does no step then, and r stays empty.
func (e *endurance) step(ctx context.Context, n int, told context.Context, r *report) (stop bool, err error) {
	c := e.comm
	mark := func(call string, err error) error {
		r.Ends, r.Calls = append(r.Ends, time.Now().UnixMicro()), append(r.Calls, call)
		if err != nil {
			return fmt.Errorf("%s: %w", call, err)
		}
		return nil
	}
	if n > 0 {
		pending, err := c.PeersPending(ctx)
		if err := mark("peers pending", err); err != nil {
			return false, err
		}
		if pending {
			if err := mark("update", c.UpdateTopology(ctx)); err != nil {
				return false, err
			}
		}
	}
	_, err = c.SyncSharedState(ctx, e.state, core.SyncOptions{})
	if n == 0 && errors.Is(err, errs.NoSharedStateAvailable) && leftBehind(told) {
		return true, nil
	}
	if err := mark("sync", err); err != nil {
		return false, err
	}
	at := c.Attributes()
	if at.UUID != e.uuid {
		return false, fmt.Errorf("the uuid was %v and is %v", e.uuid, at.UUID)
	}
	if at.LocalWorldSize < 2 {
		if n == 0 && leftBehind(told) {
			return true, nil
		}
		return false, fmt.Errorf("alone, ring %v", at.Ring)
	}
	r.Step, r.World = e.state.Revision, at.LocalWorldSize
	for _, u := range at.Ring {
		r.Ring += u.String()[:8] + " "
	}
	word := []uint64{1 << e.o.ID, 0}
	if told.Err() != nil {
		word[1] = 1
	}
	vectors := [][]float64{e.vector(1, len(e.params)), e.vector(2, 3000), e.vector(3, 20_000)}
	reduces := []core.Reduce{core.ReduceOf(word, word, core.Sum)}
	for _, v := range vectors {
		reduces = append(reduces, core.ReduceOf(v, v, core.Sum))
	}
	handles := make([]*core.Handle, len(reduces))
	for i := range reduces {
		reduces[i].Tag = uint64(i)
		if handles[i], err = c.AllReduceAsync(ctx, reduces[i]); err != nil {
			return false, fmt.Errorf("launch of %d: %w", i, err)
		}
	}
	for i, h := range handles {
		_, err := h.Wait(ctx)
		if err := mark(fmt.Sprint("small all-reduce ", i), err); err != nil {
			return false, err
		}
	}
	large, sum := e.vector(4, 150_000), make([]float64, 150_000)
	_, err = c.AllReduce(ctx, core.ReduceOf(sum, large, core.Sum))
	if err := mark("large all-reduce", err); err != nil {
		return false, err
	}
	for i, v := range append(vectors, sum) {
		set, err := model.Contributors(v, e.state.Revision, i+1)
		if err == nil && set != word[0] {
			err = fmt.Errorf("it is the sum of %b, and of %b came words", set, word[0])
		}
		if err != nil {
			return false, fmt.Errorf("VIOLATION vector %d: %w", i, err)
		}
	}
	if err := mark("barrier", c.Barrier(ctx)); err != nil {
		return false, err
	}
	if err := mark("all-gather", e.gather(ctx)); err != nil {
		return false, err
	}
	rough, err := e.quantized(ctx)
	if err := mark("quantized all-reduce", err); err != nil {
		return false, err
	}
	if e.o.Phases && e.state.Revision%4 == 0 {
		if err := mark("optimize", c.OptimizeTopology(ctx)); err != nil {
			return false, err
		}
	}
	for i := range e.params {
		e.params[i] += vectors[0][i]
	}
	e.state.Revision++
	r.Mask, r.Hash = word[0], core.StateHash(e.state)^rough
	return word[1] > 0, nil
}

// leftBehind says whether a newcomer is alone because the others were dismissed and have
// gone before it was let in. Word of that may still be on its way to it.
func leftBehind(told context.Context) bool {
	select {
	case <-told.Done():
		return true
	case <-time.After(20 * time.Second):
		return false
	}
}

func (e *endurance) vector(tag, n int) []float64 {
	v := make([]float64, n)
	for i := range v {
		v[i] = model.Contribution(e.o.ID, e.state.Revision, tag, i)
	}
	return v
}

// gather has every member tell its number and the revision.
func (e *endurance) gather(ctx context.Context) error {
	world := e.comm.Attributes().LocalWorldSize
	mine, all := []uint64{uint64(e.o.ID), e.state.Revision}, make([]uint64, 2*world)
	if _, err := core.AllGather(ctx, e.comm, all, mine); err != nil {
		return err
	}
	told := uint64(0)
	for i := 0; i < len(all); i += 2 {
		told |= 1 << all[i]
		if all[i+1] != e.state.Revision {
			return fmt.Errorf("VIOLATION peer %d is at %d", all[i], all[i+1])
		}
	}
	if bits.OnesCount64(told) != world {
		return fmt.Errorf("VIOLATION %b has told of a world of %d", told, world)
	}
	return nil
}

// quantized does a quantized all-reduce and returns a hash of the result.
func (e *endurance) quantized(ctx context.Context) (uint64, error) {
	v := make([]float32, 40_000)
	for i := range v {
		v[i] = float32(math.Sin(float64(i*(e.o.ID+1)) + float64(e.state.Revision)))
	}
	r := core.ReduceOf(v, v, core.Avg)
	r.Quantize = core.Quantize{Algorithm: "minmax", Type: dtype.Uint8}
	_, err := e.comm.AllReduce(ctx, r)
	h := fnv.New64a()
	_, _ = h.Write(dtype.AsBytes(v))
	return h.Sum64(), err
}

// killings is a run in which the master dies again and again.
type killings struct {
	t      testing.TB
	master *child
	addr   string
	crew   []*child
	kills  []int64         // in microseconds since 1970
	back   []time.Duration // from a kill until the next master listened
	all    sync.WaitGroup
	// measured says that the peers measure their links, so that the ring changes.
	measured bool
	up       chan int // peers that have connected

	mu    sync.Mutex
	more  sync.Cond         // there are more of steps or bad
	steps map[uint64]report // the first that came of each
	rings map[uint64]string // of each set of peers
	ends  [][]int64         // of each peer's calls
	calls [][]string        // ... which they were
	// orderly has the master end by itself, as one does that gets SIGTERM.
	orderly bool
	bad     []string
}

// newKillings starts the master.
func newKillings(t *testing.T, m order) *killings {
	m.Role, m.ID, m.Master = "master", 63, freeAddresses(t, 1)[0]
	master := start(t, m)
	k := newCrew(t, master.await("listening", patience).Addr)
	k.master = master
	return k
}

// newCrew returns a run whose masters are at addr, before there are peers.
func newCrew(t *testing.T, addr string) *killings {
	k := &killings{t: t, addr: addr, up: make(chan int, 1024), steps: map[uint64]report{}, rings: map[uint64]string{}}
	k.more.L = &k.mu
	return k
}

// end dismisses the peers and waits for them.
func (k *killings) end() {
	k.t.Helper()
	for _, c := range k.crew {
		c.Dismiss()
	}
	k.all.Wait()
	require.Empty(k.t, k.failed())
}

// replace ends the master and starts another one at its address.
func (k *killings) replace() {
	if k.orderly {
		k.master.Dismiss()
	} else {
		k.master.kill()
	}
	now, last := time.Now().UnixMicro(), int64(0)
	k.mu.Lock()
	if len(k.kills) > 0 {
		last = k.kills[len(k.kills)-1]
	}
	k.kills = append(k.kills, now)
	k.mu.Unlock()
	for r := range k.master.lines { // until it is gone
		if r.Event == "listening" && last > 0 {
			k.back = append(k.back, time.Duration(r.Ends[0]-last)*time.Microsecond)
		}
	}
	o := k.master.order
	o.Master = k.addr
	k.master = start(k.t, o)
}

// add starts a peer and notes what it reports.
func (k *killings) add(o order) *child {
	o.Role, o.Master, o.ID, o.Patience = "endurer", k.addr, len(k.crew), time.Minute
	c := start(k.t, o)
	k.mu.Lock()
	k.crew, k.ends, k.calls = append(k.crew, c), append(k.ends, nil), append(k.calls, nil)
	k.mu.Unlock()
	k.all.Add(1)
	go func() {
		defer k.all.Done()
		last := report{}
		for last = range c.lines {
			k.note(last)
		}
		if last.Event != "done" {
			k.complain("peer %d ended after %q: %s\n%s", o.ID, last.Event, last.Text, c.log())
		}
	}()
	return c
}

func (k *killings) complain(format string, args ...any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.bad = append(k.bad, fmt.Sprintf(format, args...))
	k.more.Broadcast()
}

// note compares what a peer reports with what the others have.
func (k *killings) note(r report) {
	if r.Event == "connected" {
		k.up <- r.ID
	}
	if r.Event != "step" {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ends[r.ID], k.calls[r.ID] = append(k.ends[r.ID], r.Ends...), append(k.calls[r.ID], r.Calls...)
	defer k.more.Broadcast()
	if first, known := k.steps[r.Step]; !known {
		k.steps[r.Step] = r
	} else if first.Mask != r.Mask || first.Hash != r.Hash || first.Ring != r.Ring {
		k.bad = append(k.bad, fmt.Sprintf("step %d: peer %d has %b %x %s, peer %d %b %x %s", r.Step,
			first.ID, first.Mask, first.Hash, first.Ring, r.ID, r.Mask, r.Hash, r.Ring))
	}
	if ring, known := k.rings[r.Mask]; k.measured {
		return
	} else if !known {
		k.rings[r.Mask] = r.Ring
	} else if ring != r.Ring {
		k.bad = append(k.bad, fmt.Sprintf("step %d: the ring of %b was %s and is %s", r.Step, r.Mask, ring, r.Ring))
	}
}

// failed returns what has gone wrong so far.
func (k *killings) failed() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return strings.Join(k.bad, "\n")
}

// pauses returns how long the kills that had no other one behind them were felt: from the
// kill until a call returns at the last of the peers, less what such a call takes. The call
// behind that one counts, too, if it takes longer: a first one may have had its answer
// already.
func (k *killings) pauses() (list []time.Duration) {
	of := map[string][]int64{}
	for id, ends := range k.ends {
		for i := 1; i < len(ends); i++ {
			of[k.calls[id][i]] = append(of[k.calls[id][i]], ends[i]-ends[i-1])
		}
	}
	usual := map[string]int64{}
	for call, gaps := range of {
		slices.Sort(gaps)
		usual[call] = gaps[len(gaps)/2]
	}
	for n, at := range k.kills {
		longest, over := int64(0), int64(math.MaxInt64)
		if n+1 < len(k.kills) {
			over = k.kills[n+1]
		}
		for id, ends := range k.ends {
			i, _ := slices.BinarySearch(ends, at)
			if i == 0 || i == len(ends) {
				continue
			}
			if ends[i] > over {
				longest = -1
				break
			}
			for j := i; j < min(i+2, len(ends)) && ends[j] <= over; j++ {
				longest = max(longest, ends[j]-max(at, ends[j-1])-usual[k.calls[id][j]])
			}
		}
		if longest >= 0 {
			list = append(list, time.Duration(longest)*time.Microsecond)
		}
	}
	return list
}

// progress waits until there is a step that none has reported before, or a failure.
func (k *killings) progress() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for n := len(k.steps); len(k.steps) == n && len(k.bad) == 0; {
		k.more.Wait()
	}
}

// plan is what happens to a run beside the killings.
type plan struct {
	peers, kills, joins, leaves int
	state                       bool // the master has a directory
	measure                     bool // the peers optimize
	secure                      bool // all is in TLS
	orderly                     bool // the master is told to end
}

// endure runs peers whose master is killed again and again, and of which some come and
// go. It returns how long calls paused.
func endure(t *testing.T, p plan) []time.Duration {
	m, credential := order{}, func(string) string { return "" }
	if p.secure {
		a := newKeys(t)
		m.Credential = a.file("head", secure.Master)
		credential = func(name string) string { return a.file(name, secure.Peer) }
	}
	if p.state {
		m.State = t.TempDir()
	}
	k := newKillings(t, m)
	k.measured, k.orderly = p.measure, p.orderly
	for range p.peers {
		k.add(order{World: p.peers, Phases: p.measure, Credential: credential(fmt.Sprint("gpu-", len(k.crew)))})
	}
	for range p.peers {
		<-k.up
	}
	for n := range p.kills {
		if p.joins > 0 && n%max(1, p.kills/p.joins) == 0 {
			k.add(order{Phases: p.measure, Credential: credential(fmt.Sprint("gpu-", len(k.crew)))})
		}
		if p.leaves > 0 && n%max(1, p.kills/p.leaves) == 0 {
			k.add(order{Steps: 2 + rand.IntN(5), Phases: p.measure, Credential: credential(fmt.Sprint("gpu-", len(k.crew)))})
		}
		if n%4 > 0 { // every fourth comes while the one before may not have begun
			k.progress()
		}
		time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond) // what is under way when it dies is up to chance
		k.replace()
		if k.failed() != "" {
			break
		}
	}
	if p.joins > 0 { // one comes while the others go: it may find nobody
		k.add(order{Phases: p.measure, Credential: credential(fmt.Sprint("gpu-", len(k.crew)))})
	}
	return k.conclude()
}

// conclude ends the run and returns how long calls took.
func (k *killings) conclude() []time.Duration {
	k.t.Helper()
	k.progress()
	k.end()
	k.t.Logf("%d kills, %d steps", len(k.kills), len(k.steps))
	if slices.Sort(k.back); len(k.back) > 0 {
		k.t.Logf("a master listened %v after the one before was killed (median)", k.back[len(k.back)/2])
	}
	return k.pauses()
}

// The master is killed and started again, and no call of any peer fails: with its registry
// and without, in TLS, while the ring is measured, and while peers come
// and leave. Several newcomers that are first at a master without a
// registry begin a run of their own, so none comes there (TestNewcomerIsFirst).
// With -soak it is 1,000 times.
func TestMasterKills(t *testing.T) {
	kills := counts(250)
	var list []time.Duration
	for _, p := range []plan{
		{peers: 4, kills: kills},
		{peers: 4, kills: kills, joins: 1, leaves: 2 + kills/10, state: true},
		{peers: 8, kills: kills, joins: 1, state: true, measure: true},
		{peers: 3, kills: kills, joins: 1, state: true, secure: true},
	} {
		pauses := endure(t, p) // S1-11
		tell(t, pauses)
		list = append(list, pauses...)
	}
	tell(t, list)
}

// The master is told to end, as by SIGTERM, and another one is started: 200 times with -soak.
// No operation is aborted, since a peer takes no error from any call.
func TestMasterDrains(t *testing.T) {
	n := counts(200)
	tell(t, endure(t, plan{peers: 4, kills: n, joins: 1, leaves: n / 10, state: true, orderly: true}))
}

// tell prints what a run's pauses were.
func tell(t *testing.T, list []time.Duration) {
	t.Helper()
	slices.Sort(list)
	t.Logf("%d pauses: median %v, p99 %v, longest %v", len(list), list[len(list)/2], list[len(list)*99/100], list[len(list)-1])
}

// The master dies together with a peer: the others miss nothing but that peer.
func TestMasterAndPeerDie(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		m := start(t, order{Role: "master", ID: 63, Master: freeAddresses(t, 1)[0], State: dir})
		addr := m.await("listening", patience).Addr
		leads(t, addr)
		var cs []*child
		for id := range 4 {
			cs = append(cs, start(t, order{Role: "trainer", Master: addr, ID: id, Count: 20_000, World: 4, Patience: time.Minute}))
		}
		for _, c := range cs {
			c.await("step", patience)
		}
		m.kill()
		cs[3].kill()
		died := time.Now()
		for range m.lines { // until it is gone
		}
		start(t, order{Role: "master", ID: 63, Master: addr, State: dir})
		for _, c := range cs[:3] {
			for c.await("step", patience).World != 3 {
			}
		}
		t.Logf("the survivors went on after %v", time.Since(died))
		for _, c := range cs[:3] {
			c.kill()
		}
	}
}
