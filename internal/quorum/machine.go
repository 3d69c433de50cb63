package quorum

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

const (
	// electionTicks is how long a leader may be silent; it is as many ticks longer at most.
	electionTicks = 6
	// brokenTicks bounds the same where the connection of the leader has ended.
	brokenTicks = 3
	// kept is how many registries stay in the log behind the last one, for masters that
	// are a little behind.
	kept = 2
	// MaxTerm is the last term: numbers of masters have room for no more.
	MaxTerm = 1<<20 - 1
)

// Config of New.
type Config struct {
	Members Members
	// State is what the last Save said, nil: there was none.
	State []byte
	// Former are other masters whose State is taken over: all of them have ended, and all
	// of Members begin with the state of the last leader. The zero value: there are none.
	Former []string
	// Rand returns a number from 0 to n-1.
	Rand func(n int) int
}

// Event is what a machine is stepped with: Tick, Message, Commit, Confirm, Broken or Yield.
type Event interface{ event() }

// Events.
type (
	// Tick says that 50 ms have passed.
	Tick struct{}
	// Message came from another master.
	Message struct {
		From ID
		Body []byte
	}
	// Commit makes a registry what the next leader finds. Numbers are the caller's, and
	// none is used twice. What is asked of a machine that does not lead in Term is
	// forgotten.
	Commit struct {
		Number   uint64
		Term     uint32
		Registry []byte
	}
	// Confirm asks whether this machine still leads in Term.
	Confirm struct {
		Number uint64
		Term   uint32
	}
	// Broken says that the connection from another master has ended.
	Broken struct{ From ID }
	// Yield gives the lead to another master: at once to one that is up to date, or
	// to the one that stands for election when this one falls silent.
	Yield struct{}
)

func (Tick) event()    {}
func (Message) event() {}
func (Commit) event()  {}
func (Confirm) event() {}
func (Broken) event()  {}
func (Yield) event()   {}

// Effect is what Step wants done, in order: Save, Send, Leads, Lost, Committed, Confirmed
// or Failed.
type Effect interface{ effect() }

// Effects.
type (
	// Save has to be on the disk before anything behind it is done.
	Save struct{ State []byte }
	// Send may get lost.
	Send struct {
		To   ID
		Body []byte
	}
	// Leads says that this master leads, and what the last leader has committed (nil:
	// nothing).
	Leads struct {
		Term     uint32
		Registry []byte
	}
	// Lost says that it leads no longer. What was asked of it and not answered never will be.
	Lost struct{ Why string }
	// Committed answers Commit.
	Committed struct{ Number uint64 }
	// Confirmed answers Confirm: it led when a majority heard of the question.
	Confirmed struct{ Number uint64 }
	// Failed says that the machine cannot go on. It takes no further event.
	Failed struct{ Err error }
)

func (Save) effect()      {}
func (Send) effect()      {}
func (Leads) effect()     {}
func (Lost) effect()      {}
func (Committed) effect() {}
func (Confirmed) effect() {}
func (Failed) effect()    {}

// Machine is one master's part. It is for one goroutine at a time.
type Machine struct {
	members Members
	rand    func(n int) int
	node    *raft.RawNode
	log     *raft.MemoryStorage
	conf    *pb.ConfState

	applied  uint64 // index of registry
	registry []byte
	wait     int    // ticks until it stands for election
	leads    uint32 // the term in which it has said Leads, 0: it does not lead
	silent   int    // it leads, and wants to be replaced, for so many ticks; 0: it does not
	commits  []uint64
	over     bool
	out      []Effect
}

// New returns a machine that goes on where the state ends. Errors: of a state that is
// damaged, or that other masters have written.
func New(c Config) (*Machine, error) {
	m := &Machine{members: c.Members, rand: c.Rand, log: raft.NewMemoryStorage(), conf: &pb.ConfState{}}
	for _, id := range c.Members.IDs() {
		m.conf.Voters = append(m.conf.Voters, uint64(id))
	}
	s := state{}
	if c.State != nil {
		var err error
		if s, err = decodeState(c.State, c.Members, c.Former...); err != nil {
			return nil, err
		}
	}
	if err := s.fill(m.log, m.conf); err != nil {
		return nil, err
	}
	m.applied, m.registry = s.Index, s.Registry
	var err error
	m.node, err = raft.NewRawNode(&raft.Config{
		ID: uint64(c.Members.Self()), ElectionTick: electionTicks, HeartbeatTick: 1, Storage: m.log, Applied: s.Index,
		MaxSizePerMsg: 1 << 20, MaxInflightMsgs: 16, CheckQuorum: true, PreVote: true,
		DisableProposalForwarding: true, Logger: quiet{},
	})
	if err != nil {
		return nil, err
	}
	m.rest()
	return m, nil
}

// rest makes the machine wait for a leader for the full time.
func (m *Machine) rest() { m.wait = electionTicks + m.rand(electionTicks) }

// Step takes an event and returns what is to be done.
func (m *Machine) Step(ev Event) (effects []Effect) {
	if m.over {
		return nil
	}
	defer func() {
		if p := recover(); p != nil { // the library refuses what cannot be
			m.over = true
			effects = []Effect{Failed{fmt.Errorf("the log of the masters is damaged: %v", p)}}
		}
	}()
	m.out = nil
	switch ev := ev.(type) {
	case Tick:
		m.tick()
	case Message:
		m.message(ev)
	case Commit:
		if m.leads != 0 && m.leads == ev.Term && m.node.Propose(append([]byte{entryRegistry}, ev.Registry...)) == nil {
			m.commits = append(m.commits, ev.Number)
		}
	case Confirm:
		if m.leads != 0 && m.leads == ev.Term {
			m.node.ReadIndex(binary.BigEndian.AppendUint64(nil, ev.Number))
		}
	case Broken:
		if s := m.node.BasicStatus(); s.Lead == uint64(ev.From) {
			_ = m.node.ForgetLeader() // of a follower it is never an error
			m.wait = min(m.wait, 1+m.rand(brokenTicks))
		}
	case Yield:
		m.yield()
	}
	m.ready()
	return m.out
}

func (m *Machine) tick() {
	leads := m.node.BasicStatus().RaftState == raft.StateLeader
	if leads && m.silent > 0 {
		m.silent++
	}
	// One that nobody replaces, since nobody hears of it, has to find that nobody answers:
	// it would hold peers that another one already leads.
	if leads && (m.silent == 0 || m.silent > 2*electionTicks) {
		m.node.Tick()
		return
	}
	m.node.TickQuiesced() // and its own promise not to vote for others expires
	if leads {
		return
	}
	if m.wait--; m.wait <= 0 {
		m.rest()
		_ = m.node.Campaign() // the only error is of one that cannot vote
	}
}

func (m *Machine) message(ev Message) {
	p, err := m.decode(ev)
	if err != nil {
		return // it is as if it had been lost
	}
	_ = m.node.Step(p) // errors are of messages that need no answer
	switch p.GetType() {
	case pb.MsgApp, pb.MsgHeartbeat, pb.MsgSnap:
		if s := m.node.BasicStatus(); s.Lead == uint64(ev.From) {
			m.rest()
		}
	}
}

// decode lets through what a member can have sent to this one.
func (m *Machine) decode(ev Message) (*pb.Message, error) {
	p := &pb.Message{}
	if err := proto.Unmarshal(ev.Body, p); err != nil {
		return nil, err
	}
	bad := errors.New("no message of another master")
	if p.GetFrom() != uint64(ev.From) || p.GetTo() != uint64(m.members.Self()) || ev.From == m.members.Self() ||
		!m.members.Has(ev.From) || p.GetTerm() == 0 || p.GetTerm() > MaxTerm || len(p.Responses) > 0 {
		return nil, bad
	}
	for _, e := range p.Entries {
		if e == nil || e.GetType() != pb.EntryNormal {
			return nil, bad
		}
	}
	switch p.GetType() {
	case pb.MsgHeartbeat:
		if last, _ := m.log.LastIndex(); p.GetCommit() > last {
			return nil, bad
		}
	case pb.MsgSnap:
		meta := p.GetSnapshot().GetMetadata()
		if meta.GetIndex() == 0 || meta.GetTerm() == 0 || !proto.Equal(meta.GetConfState(), m.conf) {
			return nil, bad
		}
	case pb.MsgApp, pb.MsgAppResp, pb.MsgVote, pb.MsgVoteResp, pb.MsgHeartbeatResp, pb.MsgPreVote, pb.MsgPreVoteResp, pb.MsgTimeoutNow:
	default:
		return nil, bad
	}
	return p, nil
}

// yield picks the master that has most of the log.
func (m *Machine) yield() {
	if m.leads == 0 {
		return
	}
	m.silent = 1
	var to, most uint64
	m.node.WithProgress(func(id uint64, _ raft.ProgressType, pr raftProgress) {
		if id != uint64(m.members.Self()) && pr.RecentActive && (pr.Match > most || pr.Match == most && id < to) {
			to, most = id, pr.Match
		}
	})
	if to != 0 {
		m.node.TransferLeader(to)
	}
}

// ready does what the library wants done, until it wants nothing.
func (m *Machine) ready() {
	for m.node.HasReady() {
		rd := m.node.Ready()
		m.store(rd)
		m.send(rd.Messages)
		m.step(rd)
		m.node.Advance(rd)
	}
	if s := m.node.BasicStatus(); m.leads != 0 && (s.RaftState != raft.StateLeader || s.GetTerm() != uint64(m.leads)) {
		why := "no majority of the masters answers"
		if s.GetTerm() > uint64(m.leads) {
			why = "another master stands for election"
		}
		if s.Lead != 0 && s.RaftState != raft.StateLeader {
			why = "master " + m.members.Name(ID(s.Lead)) + " leads"
		}
		m.leads, m.silent, m.commits = 0, 0, nil
		m.out = append(m.out, Lost{why})
	}
	m.compact()
}

// store keeps what rd says, and has it saved if it must not be forgotten.
func (m *Machine) store(rd raft.Ready) {
	must := rd.MustSync
	if !raft.IsEmptySnap(rd.Snapshot) {
		check(m.log.ApplySnapshot(rd.Snapshot))
		m.applied, m.registry = rd.Snapshot.GetMetadata().GetIndex(), rd.Snapshot.GetData()
		must = true
	}
	check(m.log.Append(rd.Entries))
	if !raft.IsEmptyHardState(rd.HardState) {
		check(m.log.SetHardState(rd.HardState))
	}
	if must {
		m.out = append(m.out, Save{m.state().encode(m.members)})
	}
}

func (m *Machine) send(messages []*pb.Message) {
	for _, p := range messages {
		if p.GetTo() == uint64(m.members.Self()) || m.silent > 0 && p.GetType() == pb.MsgHeartbeat {
			continue
		}
		body, err := proto.Marshal(p)
		check(err)
		m.out = append(m.out, Send{ID(p.GetTo()), body})
		switch {
		case p.GetType() == pb.MsgVoteResp && !p.GetReject():
			m.rest()
		case p.GetType() == pb.MsgSnap:
			// Whether it arrives shows when the log goes on behind it.
			m.node.ReportSnapshot(p.GetTo(), raft.SnapshotFinish)
		}
	}
}

// step takes what the masters have agreed on.
func (m *Machine) step(rd raft.Ready) {
	s := m.node.BasicStatus()
	leads := s.RaftState == raft.StateLeader
	for _, e := range rd.CommittedEntries {
		own := leads && e.GetTerm() == s.GetTerm()
		m.applied = e.GetIndex()
		switch data := e.GetData(); {
		case len(data) > 0 && data[0] == entryRegistry:
			m.registry = data[1:]
			if own && m.leads != 0 && len(m.commits) > 0 {
				m.out = append(m.out, Committed{m.commits[0]})
				m.commits = m.commits[1:]
			}
		case own && m.leads == 0: // the empty entry with which a leader begins
			m.leads = uint32(e.GetTerm())
			m.out = append(m.out, Leads{m.leads, m.registry})
		}
	}
	for _, r := range rd.ReadStates {
		if m.leads != 0 && len(r.RequestCtx) == 8 {
			m.out = append(m.out, Confirmed{binary.BigEndian.Uint64(r.RequestCtx)})
		}
	}
}

// compact forgets registries that have been replaced.
func (m *Machine) compact() {
	first, err := m.log.FirstIndex()
	check(err)
	if m.applied < first+2*kept {
		return
	}
	_, err = m.log.CreateSnapshot(m.applied, m.conf, m.registry)
	check(err)
	check(m.log.Compact(m.applied - kept))
}

// check is for errors that a bug alone can cause.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

// Status says what the machine knows of all masters.
type Status struct {
	Term    uint64
	Leads   bool
	Leader  ID // 0: unknown
	Applied uint64
	// Behind are, of a leader, the entries that the others do not have yet, in the order of
	// Members.IDs; math.MaxUint64: it does not answer.
	Behind []uint64
}

// Leader returns which master leads, 0 if this one does not know.
func (m *Machine) Leader() ID { return ID(m.node.BasicStatus().Lead) }

// Status returns the status.
func (m *Machine) Status() Status {
	b := m.node.BasicStatus()
	s := Status{Term: b.GetTerm(), Leads: m.leads != 0, Leader: ID(b.Lead), Applied: m.applied}
	if b.RaftState != raft.StateLeader {
		return s
	}
	last, _ := m.log.LastIndex()
	of := map[uint64]uint64{}
	m.node.WithProgress(func(id uint64, _ raft.ProgressType, pr raftProgress) {
		of[id] = last - min(pr.Match, last)
		if !pr.RecentActive && id != b.ID {
			of[id] = math.MaxUint64
		}
	})
	for _, id := range m.members.IDs() {
		s.Behind = append(s.Behind, of[uint64(id)])
	}
	return s
}
