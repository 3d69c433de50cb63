package fsm

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// askSync answers whether a synchronisation could begin now. One that would
// wait for what goes on in the background could.
func (m *Machine) askSync(ev AskSync) {
	err := error(nil)
	if unusable := m.usable(kindSync); unusable != nil {
		err = unusable
	} else if err = m.mayVote(ev.Strategy, ev.Torn); err == nil && !m.blocked(ev) {
		err = m.busy(kindSync)
	}
	m.done(ev.Call, err)
}

// mayVote refuses strategies that do not exist or do not go with a torn state:
// it can only receive. A PCCL master does not know that it must not be elected.
func (m *Machine) mayVote(strategy wire.Strategy, torn bool) error {
	name := kindNames[kindSync]
	const hint = "load a checkpoint into the tensors and say so, or receive the state of another peer"
	switch {
	case strategy > wire.SendOnly:
		return errs.New(errs.InvalidArgument, name, fmt.Errorf("unknown strategy %d", strategy))
	case torn && strategy == wire.SendOnly:
		return errs.New(errs.InvalidUsage, name, errors.New("the tensors are a mixture of two states, which must not be sent")).WithHint(hint)
	case torn && strategy != wire.ReceiveOnly && !m.view.MasterNative:
		return errs.New(errs.InvalidUsage, name,
			errors.New("the tensors are a mixture of two states, and a PCCL master might elect it")).WithHint(hint)
	}
	return nil
}

// checkSync refuses what would get the group kicked (quirk Q71) or cannot be a vote.
func (m *Machine) checkSync(c CallSync) error {
	name := kindNames[kindSync]
	if len(c.Entries) == 0 {
		return errs.New(errs.InvalidArgument, name, errors.New("a shared state needs at least one entry"))
	}
	if err := m.mayVote(c.Strategy, c.Torn); err != nil {
		return err
	}
	seen := make(map[string]bool, len(c.Entries))
	for _, e := range c.Entries {
		if seen[e.Key] {
			return errs.New(errs.InvalidArgument, name, fmt.Errorf("key %q is given twice", e.Key))
		}
		seen[e.Key] = true
	}
	return nil
}

// startSync votes. The window of distribution opens before the vote, so that
// a faster requester is not turned away.
func (m *Machine) startSync() {
	f := m.flow
	f.to(stepElection)
	m.emit(Serve{Call: f.call})
	m.send(m.stateVote())
}

// stateVote is the vote of the synchronisation under way.
func (m *Machine) stateVote() wire.C2MSyncSharedState {
	f := m.flow
	entries := slices.Clone(f.sync.Entries)
	for i := range entries {
		entries[i].NumElements = 0 // quirk Q20
		if entries[i].AllowInequality {
			entries[i].Hash, entries[i].HashType = 0, wire.HashSimple
		}
	}
	return wire.C2MSyncSharedState{
		Revision: f.sync.Revision, Strategy: f.sync.Strategy, Entries: entries,
		Ext: wire.Ext{Torn: f.sync.Torn && m.view.MasterNative},
	}
}

// elected takes the result of the election for this peer.
func (m *Machine) elected(p wire.M2CSyncSharedState) {
	f := m.flow
	f.result, f.decision, f.verdict = SyncResult{Revision: f.sync.Revision}, p.Ext.Resuming.Decision, p
	f.verdict.Ext = wire.Ext{
		Reason: p.Ext.Reason, Distributors: p.Ext.Distributors,
		Resuming: wire.Resuming{NextRevision: p.Ext.Resuming.NextRevision},
	}
	if !p.IsOutdated {
		m.confirm(wire.Ext{})
		return
	}
	if len(p.Hashes) != len(p.Keys) || len(p.HashTypes) != len(p.Keys) {
		m.end(errs.Protocol, "the master sent lists of different lengths")
		return
	}
	own := make(map[string]bool, len(f.sync.Entries))
	for _, e := range f.sync.Entries {
		own[e.Key] = true
	}
	fetch := Fetch{Call: f.call}
	for i, k := range p.Keys {
		if !own[k] {
			m.end(errs.Protocol, fmt.Sprintf("the master asks for key %q, which this peer does not have", k))
			return
		}
		if slices.Contains(fetch.Keys, k) {
			continue // quirk Q53
		}
		fetch.Keys = append(fetch.Keys, k)
		fetch.Hashes = append(fetch.Hashes, p.Hashes[i])
		fetch.HashTypes = append(fetch.HashTypes, p.HashTypes[i])
	}
	for _, a := range append([]netip.AddrPort{p.Distributor}, p.Ext.Distributors...) {
		if a.IsValid() && !a.Addr().IsUnspecified() && a.Port() != 0 && !slices.Contains(fetch.Distributors, a) {
			fetch.Distributors = append(fetch.Distributors, a)
		}
	}
	if len(fetch.Distributors) == 0 {
		why := "no peer holds the elected state"
		if p.Ext.Reason != "" {
			why = p.Ext.Reason
		}
		m.notFetched(errs.New(errs.NoSharedStateAvailable, "", errors.New(why)))
		return
	}
	f.to(stepFetching)
	m.emit(fetch)
}

// confirm tells the master that this peer is through.
func (m *Machine) confirm(x wire.Ext) {
	m.flow.to(stepSynced)
	m.send(wire.C2MDistSharedStateComplete{Ext: x})
}

func (m *Machine) fetched(ev Fetched) {
	f := m.flow
	if f == nil || f.step != stepFetching || f.call != ev.Call {
		return
	}
	if m.status == statusOver {
		m.abandon()
		return
	}
	if ev.Err != nil {
		m.notFetched(ev.Err)
		return
	}
	f.result = SyncResult{Revision: ev.Revision, Outdated: true}
	m.confirm(wire.Ext{})
}

// notFetched ends a synchronisation whose every holder failed. A PCCL master knows
// no way back from here (control spec, section 9.3): the others wait until this peer
// has left.
func (m *Machine) notFetched(cause error) {
	f := m.flow
	f.cause = errs.New(errs.TransferFailed, kindNames[kindSync], cause).WithPhase(stepNames[stepFetching])
	if m.view.MasterNative {
		m.confirm(wire.Ext{Failed: true})
		return
	}
	f.to(stepSynced) // the work of the fetch is over
	m.end(errs.TransferFailed, "the shared state could not be fetched, and a PCCL master lets no peer continue without it")
}

func (m *Machine) synced(p wire.M2CSyncSharedStateComplete) {
	f := m.endFlow()
	m.resume.next, m.resume.synced = p.NextRevision, f.decision
	m.resume.met = m.resume.met || len(m.view.Ring) > 1
	if f.query == m.query {
		m.answered = false // those who voted for this have gone on behind the question
	}
	if f.cause != nil {
		m.done(f.call, f.cause)
		return
	}
	m.emit(Done{Call: f.call, Sync: f.result})
}
