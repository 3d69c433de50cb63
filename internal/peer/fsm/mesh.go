package fsm

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// meshState says whether the members of the group are connected with each other.
type meshState uint8

const (
	meshNone      meshState = iota // the master has not asked for it since the round
	meshPreparing                  // the members connect
	meshDirect                     // it stands
	meshRefused                    // it cannot be had until the next round
)

// mesh is what this peer knows of it (docs/spec/extensions.md, "Mesh").
type mesh struct {
	state    meshState
	change   uint64
	answered bool // the work is done, and the master knows
	stands   bool // ... with connections to all
	asked    bool // a call has had the master asked for it
	wanted   bool // C2M 88 is out
	told     wire.C2MMeshPrepared
	calls    []CallID
	kept     bool // there are connections of one that stood or was made before the round
}

// prepareMesh connects to the members that are not neighbours; false if the packet
// is not allowed now.
func (m *Machine) prepareMesh(p wire.M2CPrepareMesh) bool {
	inRound := m.flow != nil && (m.flow.step == stepConnecting || m.flow.step == stepRing)
	if !m.view.Collectives || !m.view.Connected || inRound || m.mesh.state != meshNone || len(p.Peers) >= len(m.view.Members) {
		return false
	}
	listed := make(map[wire.UUID]bool, len(p.Peers))
	for _, e := range p.Peers {
		if e.UUID == m.view.UUID || listed[e.UUID] || !e.Addr.IsValid() || !slices.Contains(m.view.Members, e.UUID) {
			return false
		}
		listed[e.UUID] = true
	}
	m.mesh = mesh{state: meshPreparing, change: p.Change, kept: m.mesh.kept, calls: m.mesh.calls, wanted: m.mesh.wanted}
	e := PrepareMesh{Change: p.Change, Peers: slices.Clone(p.Peers)}
	if m.view.MasterPlans {
		e.Ways = slices.DeleteFunc(slices.Clone(m.view.Members), func(u wire.UUID) bool { return u == m.view.UUID })
	}
	if len(e.Peers)+len(e.Ways) == 0 {
		m.meshPrepared(MeshPrepared{Change: p.Change})
		return true
	}
	m.emit(e)
	return true
}

// wantMesh asks for a mesh in a group with a distant peer, in which it shortens
// small all-reduces (docs/spec/extensions.md, "Direct exchange"). Two members are connected
// anyway: they are told to use it, if the master knows what it means for two.
func (m *Machine) wantMesh() {
	if n := len(m.view.Members); m.view.MasterPlans && m.view.Collectives && (n > 2 || n == 2 && m.view.MasterPairs) {
		m.mesh.wanted = true
		m.send(wire.C2MWantMesh{})
	}
}

// exchanges reports whether an all-reduce that is commenced now, or begins eagerly,
// uses the mesh, and how one does that has a plan of its own. All members know the same of it: the size
// and the form are those that they vote for, and the master tells the rest with a
// change of the ring.
func (m *Machine) exchanges(op *operation) (mesh bool, large *plan.Option) {
	size := uint64(op.vote.DType.Size())
	if op.vote.Form.Algorithm != wire.FormAsIs || op.vote.Count > math.MaxInt64/size {
		return false, nil
	}
	bytes := op.vote.Count * size
	large = m.view.Large.For(bytes)
	return large != nil || m.mesh.state == meshDirect && bytes <= m.view.Direct.Most, large
}

// isLarge reports whether an all-reduce that is commenced now has a plan for large ones.
func (m *Machine) isLarge(op *operation) bool {
	_, large := m.exchanges(op)
	return large != nil && op.vote.Count >= plan.LeastLarge/uint64(op.vote.DType.Size())
}

func (m *Machine) meshPrepared(ev MeshPrepared) {
	if !m.alive() || m.mesh.state != meshPreparing || m.mesh.change != ev.Change || m.mesh.answered {
		return
	}
	m.mesh.answered, m.mesh.stands = true, len(ev.Failed) == 0
	for _, u := range ev.Failed {
		m.log(true, u, "member of the group could not be reached: collectives use the ring")
	}
	p := wire.C2MMeshPrepared{Change: ev.Change, FailedPeers: slices.Clone(ev.Failed)}
	if m.view.MasterPlans {
		p.Ways = slices.Clone(ev.Ways)
	}
	m.mesh.told = p
	m.send(p)
}

// takeMesh lets the operations that are commenced from now on use the mesh, or
// not; false if the packet is not allowed now.
func (m *Machine) takeMesh(p wire.M2CMesh) bool {
	expected := m.mesh.state == meshPreparing && m.mesh.change == p.Change
	switch p.Planner {
	case wire.MeshNone:
		if !m.view.Collectives || !expected && m.mesh.state != meshNone {
			return false
		}
		m.stopMesh()
		calls := m.mesh.calls
		m.mesh = mesh{state: meshRefused, change: p.Change}
		m.emit(MeshSettled{})
		m.answerMesh(calls, nil)
		m.unneeded = true
		m.release()
		return true
	case wire.MeshDirect:
		if !expected || !m.mesh.stands {
			return false
		}
		m.mesh.state, m.view.Mesh = meshDirect, true
		m.emit(MeshSettled{Direct: true})
		calls := m.mesh.calls
		m.mesh.calls = nil
		m.answerMesh(calls, nil)
		return true
	}
	return false
}

// stopMesh ends the work of a PrepareMesh effect.
func (m *Machine) stopMesh() {
	if m.mesh.state == meshPreparing && !m.mesh.answered {
		m.emit(StopMesh{Change: m.mesh.change})
	}
}

// askMesh waits for the master's word about the mesh.
func (m *Machine) askMesh(c CallMesh) {
	const op = "send"
	if err := m.usable(kindReduce); err != nil {
		err.Op = op
		m.done(c.Call, err)
		return
	}
	switch {
	case m.flow != nil:
		m.done(c.Call, errs.New(errs.Busy, op, fmt.Errorf("%s is running", kindNames[m.flow.kind])))
	case !m.view.Collectives:
		m.done(c.Call, errs.New(errs.Unsupported, op, errors.New(m.view.Lacks)))
	case m.mesh.state.settled():
		m.done(c.Call, nil)
	default:
		m.mesh.calls = append(m.mesh.calls, c.Call)
		if m.mesh.state == meshNone && !m.mesh.asked {
			m.mesh.asked, m.mesh.wanted = true, true
			m.send(wire.C2MWantMesh{})
		}
	}
}

func (m *Machine) answerMesh(calls []CallID, err error) {
	for _, c := range calls {
		m.done(c, err)
	}
}

// cancelMesh answers a call that was given up, if it is one of those that wait; the mesh
// is made all the same.
func (m *Machine) cancelMesh(c CallID) bool {
	i := slices.Index(m.mesh.calls, c)
	if i >= 0 {
		m.mesh.calls = slices.Delete(m.mesh.calls, i, i+1)
		m.done(c, errs.New(errs.Canceled, "send", nil))
	}
	return i >= 0
}

// connected reports whether there may be connections between members that are not
// neighbours, which a mesh needs or is going to need.
func (m *mesh) connected() bool {
	return m.state == meshPreparing || m.state == meshDirect || m.kept
}

// settled reports whether the master has said what becomes of the mesh.
func (s meshState) settled() bool { return s == meshDirect || s == meshRefused }
