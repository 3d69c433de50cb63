package quorum

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

var names = []string{"a:1", "b:1", "c:1"}

func members(t *testing.T, self string) Members {
	t.Helper()
	m, err := NewMembers(names, self)
	require.NoError(t, err)
	return m
}

func machine(t *testing.T, self string, state []byte) *Machine {
	t.Helper()
	m, err := New(Config{Members: members(t, self), State: state, Rand: func(int) int { return 0 }})
	require.NoError(t, err)
	return m
}

func sent(t *testing.T, effects []Effect, to ID, kind pb.MessageType) []byte {
	t.Helper()
	for _, e := range effects {
		if s, ok := e.(Send); ok && s.To == to {
			p := &pb.Message{}
			require.NoError(t, proto.Unmarshal(s.Body, p))
			if p.GetType() == kind {
				return s.Body
			}
		}
	}
	t.Fatalf("no %v in %v", kind, effects)
	return nil
}

func saved(t *testing.T, effects []Effect) []byte {
	t.Helper()
	for i, e := range effects {
		if s, ok := e.(Save); ok {
			for _, before := range effects[:i] {
				_, sends := before.(Send)
				require.False(t, sends, "what is sent rests on what is saved")
			}
			return s.State
		}
	}
	t.Fatalf("nothing was saved: %v", effects)
	return nil
}

// stand makes a machine a candidate: it has passed the vote before the vote. It returns
// what it asks the voter.
func stand(t *testing.T, m *Machine, voter *Machine) []byte {
	t.Helper()
	var out []Effect
	for range electionTicks {
		out = m.Step(Tick{})
	}
	ask := sent(t, out, voter.members.self, pb.MsgPreVote)
	answer := sent(t, voter.Step(Message{m.members.self, ask}), m.members.self, pb.MsgPreVoteResp)
	return sent(t, m.Step(Message{voter.members.self, answer}), voter.members.self, pb.MsgVote)
}

// A master votes once in a term, even if it crashes in between.
func TestVoteSurvives(t *testing.T) {
	for _, forgets := range []bool{false, true} {
		a, b, c := machine(t, "a:1", nil), machine(t, "b:1", nil), machine(t, "c:1", nil)
		fromA, fromB := stand(t, a, c), stand(t, b, c)
		out := c.Step(Message{a.members.self, fromA})
		sent(t, out, a.members.self, pb.MsgVoteResp)
		disk := saved(t, out)
		if forgets { // the mistake
			s, err := decodeState(disk, c.members)
			require.NoError(t, err)
			require.EqualValues(t, a.members.self, s.Vote)
			s.Vote = 0
			disk = s.encode(c.members)
		}
		c = machine(t, "c:1", disk)
		answer := sent(t, c.Step(Message{b.members.self, fromB}), b.members.self, pb.MsgVoteResp)
		p := &pb.Message{}
		require.NoError(t, proto.Unmarshal(answer, p))
		require.Equal(t, !forgets, p.GetReject())
	}
}

// led returns a world with a leader.
func led(t *testing.T, masters int) (*world, int) {
	t.Helper()
	w := newWorld(3, masters, none)
	w.run(2000)
	require.Empty(t, w.wrong)
	at := w.leader()
	require.GreaterOrEqual(t, at, 0)
	return w, at
}

// A leader without a majority says so within two election times, and confirms nothing
// meanwhile. The others have a leader by then.
func TestCutOffLeader(t *testing.T) {
	w, at := led(t, 3)
	term := w.nodes[at].term
	w.part(1e6, func(from, to int) bool { return (from == at) != (to == at) })
	w.ask(at, false)
	w.ask(at, true)
	confirms, commits := w.confirms, w.commits
	w.run(2 * electionTicks * tickTime)
	require.Zero(t, w.nodes[at].term)
	require.Equal(t, confirms, w.confirms)
	require.Equal(t, commits, w.commits)
	w.run(tickTime * electionTicks)
	next := w.leader()
	require.NotEqual(t, at, next)
	require.GreaterOrEqual(t, next, 0)
	require.Greater(t, w.nodes[next].term, term)
	w.heal()
	w.run(1000)
	require.Equal(t, next, w.leader(), "who comes back disturbs nobody")
	require.Empty(t, w.wrong)
}

// Where the connection of a leader breaks, the others do not wait for its silence to last.
func TestBrokenConnection(t *testing.T) {
	w, at := led(t, 3)
	began := w.now
	w.nodes[at].m, w.nodes[at].term = nil, 0
	for i := range w.nodes {
		w.step(i, Broken{w.nodes[at].members.self})
	}
	for w.leader() < 0 && w.now-began < 2000 {
		w.run(1)
	}
	require.Less(t, w.now-began, electionTicks*tickTime)
	// One that hears it of a leader that lives changes nothing.
	next := w.leader()
	for i := range w.nodes {
		if i != next {
			w.step(i, Broken{w.nodes[next].members.self})
			break
		}
	}
	w.start(at)
	w.run(3000)
	require.Equal(t, next, w.leader())
	require.Empty(t, w.wrong)
}

// A leader that ends in good order is replaced at once.
func TestYield(t *testing.T) {
	w, at := led(t, 5)
	w.ask(at, true)
	w.run(100)
	began := w.now
	w.step(at, Yield{})
	for (w.leader() < 0 || w.leader() == at) && w.now-began < 2000 {
		w.run(1)
	}
	require.Less(t, w.now-began, 2*tickTime)
	require.Empty(t, w.wrong)
}

// A leader that resigns is replaced, even if nobody can take over at once.
func TestYieldWithoutHeir(t *testing.T) {
	w, at := led(t, 3)
	for i := range w.nodes {
		w.nodes[i].stopped = i != at
	}
	w.step(at, Yield{})
	w.run(200)
	for i, n := range w.nodes {
		if n.stopped = false; i == (at+1)%3 {
			n.m = nil // the other two are enough
		}
	}
	w.run(2000)
	require.Equal(t, (at+2)%3, w.leader())
	require.Empty(t, w.wrong)
}

// A leader that resigns while it is cut off loses the lead all the same: the others have a
// new one, and its peers have to look for that.
func TestYieldAlone(t *testing.T) {
	w, at := led(t, 3)
	for i := range w.nodes {
		w.nodes[i].stopped = i != at
	}
	w.step(at, Yield{})
	for w.nodes[at].m.leads != 0 && w.now < 100*tickTime {
		w.run(1)
	}
	require.Zero(t, w.nodes[at].m.leads)
	w.run(2000)
	require.Zero(t, w.nodes[at].m.leads)
	require.Empty(t, w.wrong)
}

// A master that was away for long gets the last registry, and not each that it missed.
func TestComesBackLate(t *testing.T) {
	w, at := led(t, 3)
	away := (at + 1) % 3
	w.nodes[away].m = nil
	for range 50 {
		w.ask(at, true)
		w.run(20)
	}
	behind := w.nodes[at].m.Status().Behind
	require.Len(t, behind, 3)
	w.start(away)
	w.run(1000)
	require.Equal(t, w.nodes[at].m.Status().Applied, w.nodes[away].m.Status().Applied)
	require.Equal(t, w.nodes[at].m.registry, w.nodes[away].m.registry)
	require.Equal(t, []uint64{0, 0, 0}, w.nodes[at].m.Status().Behind)
	require.Empty(t, w.wrong)
}

// What is damaged, foreign or of other masters is refused.
func TestStateIsChecked(t *testing.T) {
	w, at := led(t, 3)
	w.ask(at, true)
	w.run(200)
	n := w.nodes[at]
	good := string(n.disk)
	others, err := NewMembers(names, "a:1")
	require.NoError(t, err)
	for what, c := range map[string]struct{ state, text string }{
		"empty":         {"", "not the state of a master"},
		"later version": {"gopccl quorum state 2\n", "or of a later version"},
		"cut":           {good[:len(good)-1], "digest differs"},
		"flipped":       {strings.Replace(good, `"term":`, `"tern":`, 1), "digest differs"},
	} {
		_, err := New(Config{Members: n.members, State: []byte(c.state), Rand: w.rng.IntN})
		require.ErrorContains(t, err, c.text, what)
	}
	_, err = New(Config{Members: others, State: []byte(good), Rand: w.rng.IntN})
	require.ErrorContains(t, err, "it is of the masters master0:48147,master1:48147,master2:48147, and not of a:1,b:1,c:1")
	s, err := decodeState([]byte(good), n.members)
	require.NoError(t, err)
	for i, spoil := range []func(*state){
		func(s *state) { s.Term = MaxTerm + 1 },
		func(s *state) { s.Term = 0 },
		func(s *state) { s.Vote = 3 },
		func(s *state) { s.Commit = 1 << 40 },
		func(s *state) { s.Index = 1 << 63 },
		func(s *state) { s.Entries = append(s.Entries, entry{Term: 1 << 30}) },
	} {
		bad := s
		spoil(&bad)
		_, err := New(Config{Members: n.members, State: bad.encode(n.members), Rand: w.rng.IntN})
		require.ErrorContains(t, err, "damaged", i)
	}
}

// Other masters go on where the last leader of the former ones ended.
func TestMastersAreReplaced(t *testing.T) {
	w, at := led(t, 3)
	w.ask(at, true)
	w.run(200)
	term, registry, disk := w.nodes[at].term, w.nodes[at].m.registry, w.nodes[at].disk
	former := []string{"master2:48147", "master0:48147", "master1:48147"}
	next := newWorld(4, 5, none)
	for _, n := range next.nodes {
		var err error
		n.m, err = New(Config{Members: n.members, State: disk, Former: former, Rand: next.rng.IntN})
		require.NoError(t, err)
		n.disk = disk
	}
	next.run(2000)
	require.GreaterOrEqual(t, next.leader(), 0)
	require.Greater(t, next.nodes[next.leader()].term, term)
	require.Equal(t, registry, next.nodes[next.leader()].m.registry)
	require.Empty(t, next.wrong)
	members, seen, entry, kept, err := Peek(disk)
	require.NoError(t, err)
	require.Equal(t, "master0:48147,master1:48147,master2:48147", members)
	require.Equal(t, w.nodes[at].m.applied, entry)
	require.Equal(t, registry, kept)
	require.GreaterOrEqual(t, uint32(seen), term)
	_, _, _, _, err = Peek(disk[:len(disk)-1])
	require.ErrorContains(t, err, "damaged")
	_, err = New(Config{Members: next.nodes[0].members, State: disk, Former: former[:2], Rand: next.rng.IntN})
	require.ErrorContains(t, err, "it is of the masters master0:48147,master1:48147,master2:48147, and not of ")
}

func TestMembers(t *testing.T) {
	a, err := NewMembers([]string{"a:1", "b:1", "[::1]:1"}, "a:1")
	require.NoError(t, err)
	b, err := NewMembers([]string{"b:1", "[::1]:1", "a:1"}, "b:1")
	require.NoError(t, err)
	require.Equal(t, a.Names(), b.Names())
	require.Equal(t, a.IDs(), b.IDs())
	require.NotEqual(t, a.Self(), b.Self())
	require.Equal(t, "b:1", a.Name(b.Self()))
	for list, text := range map[string]string{
		"a:1,b:1":             "there are 2 masters; want 3 to 9",
		"a:1,b:1,c:1,c:1":     "master c:1 is named twice",
		"a:1,b:1,c":           "want HOST:PORT",
		"a:1,b:1,c:0":         "want a port from 1 to 65535",
		"a:1,b:1,::1:7":       "an IPv6 address in brackets",
		"b:1,c:1,d:1":         `"a:1" is not one of the masters`,
		"a:1,b:1,c:1,:1":      "want HOST:PORT",
		"a:1,b:1,c:1,d:70000": "want a port from 1 to 65535",
	} {
		_, err := NewMembers(strings.Split(list, ","), "a:1")
		require.ErrorContains(t, err, text, list)
	}
}

// No bytes of a member make a machine panic, or answer what was not asked.
func FuzzMessage(f *testing.F) {
	w := newWorld(5, 3, none)
	for kind := range pb.MessageType_name {
		p := &pb.Message{
			Type: pb.MessageType(kind).Enum(), To: new(uint64(w.nodes[0].members.self)), From: new(uint64(w.nodes[1].members.self)),
			Term: new(uint64(2)), Index: new(uint64(1)), LogTerm: new(uint64(1)), Commit: new(uint64(9)),
			Entries: []*pb.Entry{{Term: new(uint64(2)), Index: new(uint64(2)), Data: []byte{entryRegistry}}},
		}
		b, err := proto.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, uint8(3))
	}
	f.Fuzz(func(t *testing.T, b []byte, ticks uint8) {
		w := newWorld(5, 3, none)
		w.run(1000)
		for i, n := range w.nodes {
			for _, e := range n.m.Step(Message{w.nodes[1].members.self, b}) {
				switch e := e.(type) {
				case Committed, Confirmed:
					t.Fatalf("master %d: %v", i, e)
				case Save:
					n.disk = e.State
				}
			}
			for range ticks {
				n.m.Step(Tick{})
			}
			if n.disk != nil {
				if _, err := decodeState(n.disk, n.members); err != nil {
					t.Fatal(fmt.Errorf("master %d: %w", i, err))
				}
			}
		}
	})
}

// The digest hides most of what a fuzzer changes: damaged contents with a right one.
func FuzzState(f *testing.F) {
	m, err := NewMembers(names, "a:1")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint64(3), uint64(0), uint64(4), uint64(3), uint64(2), []byte("x"), uint64(3))
	f.Fuzz(func(t *testing.T, term, vote, commit, index, of uint64, registry []byte, next uint64) {
		s := state{Term: term, Vote: vote, Commit: commit, Index: index, Of: of, Registry: registry, Entries: []entry{{next, registry}}}
		b := s.encode(m)
		machine, err := New(Config{Members: m, State: b, Rand: func(int) int { return 0 }})
		if err != nil {
			return
		}
		for range 30 {
			for _, e := range machine.Step(Tick{}) {
				if f, failed := e.(Failed); failed {
					t.Fatal(f.Err)
				}
			}
		}
	})
}
