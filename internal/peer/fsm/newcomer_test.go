package fsm

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// another is the answer of a master that has given this peer another uuid.
func another(n int) wire.M2CSessionRegistrationResponse {
	p := ofTerm(3)
	p.UUID, p.Ext.Resuming.Identity.UUID = uid(n), uid(n)
	return p
}

// letIn has the rig be let in by a run of two others.
func (r *rig) letIn() {
	r.t.Helper()
	p := r.info([]int{5, 6})
	p.Peers = endpoints(2)
	p.GlobalWorldSize, p.LocalWorldSize, p.LargestGroupSize = 2, 2, 2
	r.in(p)
	r.step(Established{Round: want[Establish](r).Round})
	r.in(wire.M2CP2PConnectionsEstablished{Success: true, Ring: uids(2, 5)})
}

// A peer that is alone and gets another uuid waits to be let in, and no call fails: those that
// asked for it are answered then, others go on behind it.
func TestStartsOver(t *testing.T) {
	for name, begin := range map[string]func(r *rig) CallID{
		"idle": func(*rig) CallID { return 0 },
		"in a ring": func(r *rig) CallID {
			c := r.update()
			r.round(1, 2)
			r.ok(c)
			return 0
		},
		"vote": func(r *rig) CallID { return r.update() },
		"ring": func(r *rig) CallID {
			c := r.update()
			r.in(r.info([]int{1}))
			r.step(Established{Round: want[Establish](r).Round})
			return c
		},
		"election": func(r *rig) CallID { return r.sync("a") },
		"synced": func(r *rig) CallID {
			c := r.sync("a")
			r.in(wire.M2CSyncSharedState{})
			return c
		},
		"asking": func(r *rig) CallID {
			c := r.newCall()
			r.step(CallPending{Call: c})
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := connectedAs(t, canResume, resumes, true, 1)
			c := begin(r)
			r.step(MasterGone{Err: io.EOF})
			require.False(t, want[Reattach](r).Hello.Ext.Resuming.Met)
			r.step(Attached{Packet: another(5)})
			r.silent()
			want[Reattached](r)
			v := r.m.View()
			require.Equal(t, uid(5), v.UUID)
			require.Equal(t, uids(5), v.Ring)
			require.True(t, v.Connected)
			switch name {
			case "synced":
				r.ok(c)
			case "asking":
				require.True(t, r.ok(c).Pending)
			}
			ask := r.newCall()
			r.step(CallPending{Call: ask})
			require.True(t, r.ok(ask).Pending, "the next call is to be an update")
			r.silent()

			// Another master: it is a newcomer there, too.
			r.step(MasterGone{Err: io.EOF})
			p := another(5)
			p.Ext.Resuming.Term = 4
			r.step(Attached{Packet: p})
			report := r.lastSent[0].(wire.C2MReport)
			require.Zero(t, report.Round.Decision)
			require.Empty(t, report.Round.Ring)
			require.Zero(t, report.Call.Step)
			r.in(wire.M2CResumed{})

			u := CallID(0)
			if name != "vote" && name != "ring" {
				u = r.update()
				r.silent()
			}
			r.letIn()
			require.Equal(t, uids(2, 5), r.m.View().Ring)
			switch name {
			case "vote", "ring":
				r.ok(c)
			case "election": // it votes behind the round, and the update is behind it
				require.IsType(t, wire.C2MSyncSharedState{}, r.lastSent[0])
				r.in(wire.M2CSyncSharedState{})
				r.in(wire.M2CSyncSharedStateComplete{})
				r.ok(c)
			default:
				r.ok(u)
			}
		})
	}
}

// Who has something in flight with others has no place as a newcomer: the session ends.
func TestDoesNotStartOver(t *testing.T) {
	for name, begin := range map[string]func(r *rig){
		"in a collective": func(r *rig) { r.launch(1) },
		"after one":       func(r *rig) { r.succeed(r.launch(1), 1) },
		"measuring":       func(r *rig) { r.optimize() },
		"connecting": func(r *rig) {
			r.update()
			r.in(r.info([]int{1, 2}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := connectedAs(t, canResume, resumes, true, 1, 2)
			begin(r)
			r.step(MasterGone{Err: io.EOF})
			r.step(Attached{Packet: another(5)})
			require.Equal(t, statusOver, r.m.status, name)
			require.ErrorContains(t, r.m.ended, "does not know this session")
		})
	}
}

// A peer that asks to leave when it is told to start over has left.
func TestLeavesInsteadOfStartingOver(t *testing.T) {
	granted := resumes
	granted.Collectives, granted.Plans = wire.CollectivesVersion, wire.PlansVersion
	r := connectedAs(t, canResume, granted, true, 1)
	c := r.newCall()
	r.step(CallLeave{Call: c})
	r.step(MasterGone{Err: io.EOF})
	r.step(Attached{Packet: another(5)})
	r.ok(c)
	require.ErrorIs(t, r.m.ended, errs.Closed)
}
