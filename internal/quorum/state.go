package quorum

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// entryRegistry is the first byte of an entry that is a registry.
const entryRegistry = 1

// stateMagic is the first line of a state. The digest of the rest follows in hexadecimal,
// and the rest is JSON.
const stateMagic = "gopccl quorum state 1\n"

// state is what a master must not forget.
type state struct {
	Members  string  `json:"masters"`
	Term     uint64  `json:"term"`
	Vote     uint64  `json:"vote"`
	Commit   uint64  `json:"commit"`
	Index    uint64  `json:"index"` // of Registry in the log
	Of       uint64  `json:"of"`    // the term of it
	Registry []byte  `json:"registry"`
	Entries  []entry `json:"entries"` // behind it
}

type entry struct {
	Term uint64 `json:"term"`
	Data []byte `json:"data"`
}

// state returns the state of the machine.
func (m *Machine) state() state {
	hard, _, _ := m.log.InitialState()
	snap, _ := m.log.Snapshot()
	s := state{
		Term: hard.GetTerm(), Vote: hard.GetVote(), Commit: hard.GetCommit(),
		Index: snap.GetMetadata().GetIndex(), Of: snap.GetMetadata().GetTerm(), Registry: snap.GetData(),
	}
	last, _ := m.log.LastIndex()
	if last > s.Index {
		entries, err := m.log.Entries(s.Index+1, last+1, 1<<62)
		check(err)
		for _, e := range entries {
			s.Entries = append(s.Entries, entry{e.GetTerm(), e.GetData()})
		}
	}
	return s
}

func (s state) encode(members Members) []byte {
	s.Members = members.Names()
	body, err := json.Marshal(s)
	check(err)
	return append(fmt.Appendf([]byte(stateMagic), "%x\n", sha256.Sum256(body)), body...)
}

// decodeState trusts nothing: the disk may have lost the end, and an operator may have
// named the directory of another run.
func decodeState(b []byte, members Members, former ...string) (s state, err error) {
	if s, err = parseState(b); err != nil {
		return s, err
	}
	if len(former) > 0 && s.Members == strings.Join(slices.Sorted(slices.Values(former)), ",") {
		s.Members, s.Vote = members.Names(), 0 // nobody stands for election in a term that has been
	}
	if s.Members != members.Names() {
		return s, fmt.Errorf("it is of the masters %s, and not of %s", s.Members, members.Names())
	}
	return s, s.check(members)
}

// parseState reads what encode has written.
func parseState(b []byte) (s state, err error) {
	rest, ours := bytes.CutPrefix(b, []byte(stateMagic))
	if !ours {
		return s, errors.New("it is not the state of a master among several, or of a later version")
	}
	sum, body, ok := bytes.Cut(rest, []byte("\n"))
	if !ok || string(sum) != fmt.Sprintf("%x", sha256.Sum256(body)) {
		return s, errors.New("it is damaged: the digest differs")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return s, fmt.Errorf("it is damaged: %w", err)
	}
	return s, nil
}

// Peek returns what the state of a master says, of whichever masters it is: who they are, the
// term, and the last entry of its log with a registry, which the others may not have. It
// trusts nothing.
func Peek(b []byte) (members string, term, last uint64, registry []byte, err error) {
	s, err := parseState(b)
	if err != nil {
		return "", 0, 0, nil, err
	}
	last, registry = s.Index, s.Registry
	for i, e := range s.Entries {
		if len(e.Data) > 0 && e.Data[0] == entryRegistry {
			last, registry = s.Index+uint64(i)+1, e.Data[1:]
		}
	}
	return s.Members, s.Term, last, registry, nil
}

// check says whether a machine can have written s.
func (s state) check(members Members) error {
	last, term := s.Index+uint64(len(s.Entries)), s.Of
	sound := s.Term <= MaxTerm && s.Index < 1<<62 && s.Commit >= s.Index && s.Commit <= last && (s.Index == 0) == (s.Of == 0)
	for _, e := range s.Entries {
		sound = sound && e.Term >= max(1, term)
		term = e.Term
	}
	if !sound || term > s.Term || s.Vote != 0 && !members.Has(ID(s.Vote)) {
		return errors.New("it is damaged")
	}
	return nil
}

// fill makes a log what s says.
func (s state) fill(log *raft.MemoryStorage, conf *pb.ConfState) error {
	err := log.ApplySnapshot(&pb.Snapshot{
		Data: s.Registry, Metadata: &pb.SnapshotMetadata{ConfState: conf, Index: new(s.Index), Term: new(s.Of)},
	})
	if err != nil {
		return err
	}
	entries := make([]*pb.Entry, len(s.Entries))
	for i, e := range s.Entries {
		entries[i] = &pb.Entry{Type: pb.EntryNormal.Enum(), Term: new(e.Term), Index: new(s.Index + uint64(i) + 1), Data: e.Data}
	}
	if err := log.Append(entries); err != nil {
		return err
	}
	if s.Term == 0 {
		return nil
	}
	return log.SetHardState(&pb.HardState{Term: new(s.Term), Vote: new(s.Vote), Commit: new(s.Commit)})
}
