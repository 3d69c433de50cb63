package failover

import (
	"time"

	mfsm "github.com/gopccl/gopccl/internal/master/fsm"
)

// registry is what a master finds of the one before it.
type registry = mfsm.Registry

// startMaster begins a master of the next term. The first one has term 0.
func (r *run) startMaster() {
	if r.clients != nil {
		r.term++
	}
	r.clients, r.taken, r.answers, r.making = map[mfsm.ClientID]*peer{}, 0, nil, nil
	r.master = mfsm.New(secured(mfsm.Config{
		NewUUID: r.newUUID, HeartbeatInterval: time.Second, HeartbeatTimeout: 8 * time.Second,
		RegisterTimeout: 10 * time.Second, RoundTimeout: 20 * time.Second, Switch: r.plan.switches, PlannedInStep: -1,
		Term: r.term, Authority: true, Registry: r.last, Resume: true,
	}))
}

// answerMaster does what the master wants from its shell.
func (r *run) answerMaster(e mfsm.Effect) {
	switch e := e.(type) {
	case mfsm.Commit:
		r.last = e.Registry
		r.answers = append(r.answers, mfsm.Committed{Number: e.Number})
	case mfsm.MakePlans:
		r.making = append(r.making, e)
	case mfsm.Confirm:
		r.answers = append(r.answers, mfsm.Confirmed(e))
	}
}
