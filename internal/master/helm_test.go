package master

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/lead"
	"github.com/gopccl/gopccl/internal/scratch"
	"github.com/gopccl/gopccl/internal/wire"
)

// helmsman is an authority of which a test says what it does.
type helmsman struct {
	lead      chan uint32 // the term, when it leads
	lost      chan error
	committed chan []byte
	at        netip.AddrPort // of the leader
	refuses   error          // what Commit and Confirm return from then on
	resigned  chan struct{}
}

func newHelmsman() *helmsman {
	return &helmsman{lead: make(chan uint32, 1), lost: make(chan error, 1), committed: make(chan []byte, 64), resigned: make(chan struct{})}
}

func (h *helmsman) Lead(ctx context.Context) (uint32, []byte, <-chan error, error) {
	select {
	case term := <-h.lead:
		return term, nil, h.lost, nil
	case <-ctx.Done():
		return 0, nil, nil, ctx.Err()
	}
}

func (h *helmsman) Leader() netip.AddrPort { return h.at }

func (h *helmsman) Describe() []string { return []string{"term 4", "another one leads"} }

func (h *helmsman) Confirm(context.Context) error { return h.refuses }

func (h *helmsman) Commit(_ context.Context, kept []byte) error {
	if k, err := lead.Decode(kept); err != nil || len(k.Registry.Groups) > 0 && h.refuses != nil {
		return errors.Join(err, h.refuses)
	}
	h.committed <- kept
	return nil
}

func (h *helmsman) Resign() error {
	close(h.resigned)
	return nil
}

// underway is a master with an authority that serves, and what Serve has returned.
func underway(t *testing.T, opt Options) (h *harness, ended chan error) {
	s, err := New(opt)
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended = make(chan error, 1)
	go func() { ended <- s.Serve(context.Background(), ln) }()
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return &harness{t: t, s: s, addr: ln.Addr().String()}, ended
}

func soon[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came")
	}
	return v
}

// A master that does not lead turns everybody away at once, tells that it has no state,
// and remembers what an operator says; when it leads it serves, and when it may not any
// more it says so and gives the lead back.
func TestMasterWaitsForTheLead(t *testing.T) {
	at := newHelmsman()
	h, ended := underway(t, Options{Lead: Lead{Authority: at}})
	for range 3 {
		r := h.dial()
		r.send(wire.C2MRequestSessionRegistration{Ext: wire.Ext{Native: true}})
		_, err := r.nc.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
	}
	require.Empty(t, h.s.Snapshot().Groups)
	require.Nil(t, h.s.Topology())
	require.NoError(t, h.s.SetBeginAnew(true))
	at.lead <- 5
	kept, err := lead.Decode(soon(t, at.committed))
	require.NoError(t, err)
	require.Len(t, kept.Key, lead.KeySize)
	<-h.s.helm.leads
	h.grow(nil, wire.Ext{Native: true})
	after, err := lead.Decode(soon(t, at.committed))
	require.NoError(t, err)
	require.Equal(t, kept.Key, after.Key)
	require.Equal(t, uint64(5), after.Registry.Groups[0].Round>>40)
	require.Len(t, h.s.machine.early, 1)

	at.lost <- errors.New("the others have chosen another one")
	err = soon(t, ended)
	require.Equal(t, errs.NotLeading, errs.CodeOf(err))
	require.ErrorContains(t, err, "the others have chosen another one")
	require.ErrorContains(t, err, "start this one again")
	soon(t, at.resigned)
}

// A lead that is lost without a word, and a registry that cannot be written, end it, too;
// nobody hears of a ring that was not written.
func TestMasterLosesTheLead(t *testing.T) {
	t.Run("silently", func(t *testing.T) {
		at := newHelmsman()
		_, ended := underway(t, Options{Lead: Lead{Authority: at}})
		at.lead <- 0
		close(at.lost)
		require.Equal(t, errs.NotLeading, errs.CodeOf(soon(t, ended)))
		soon(t, at.resigned)
	})
	t.Run("no registry", func(t *testing.T) {
		at := newHelmsman()
		at.refuses = errors.New("the disk is full")
		h, ended := underway(t, Options{Lead: Lead{Authority: at}})
		at.lead <- 0
		<-h.s.helm.leads
		r := h.register(wire.Ext{})
		recv[wire.M2CP2PConnectionInfo](r)
		r.send(wire.C2MP2PConnectionsEstablished{Success: true})
		err := soon(t, ended)
		require.ErrorContains(t, err, "the disk is full")
		_, err = r.nc.Read(make([]byte, 1))
		require.Error(t, err, "it has heard nothing of the ring")
	})
	t.Run("told to end while it waits", func(t *testing.T) {
		at := newHelmsman()
		h, ended := underway(t, Options{Lead: Lead{Authority: at}})
		require.NoError(t, h.s.Close())
		require.NoError(t, soon(t, ended))
		soon(t, at.resigned)
	})
}

// One master at a time has a directory; the next one has a higher term and the same key.
func TestMastersOfOneDirectory(t *testing.T) {
	dir := scratch.Dir(t)
	first, ended := underway(t, Options{Lead: Lead{State: dir}})
	<-first.s.helm.leads
	_, second := underway(t, Options{Lead: Lead{State: dir}})
	err := soon(t, second)
	require.Equal(t, errs.InvalidUsage, errs.CodeOf(err))
	require.ErrorContains(t, err, "another master leads with "+dir)
	first.grow(nil, wire.Ext{})
	require.NoError(t, first.s.Close())
	require.NoError(t, soon(t, ended))

	next, _ := underway(t, Options{Lead: Lead{State: dir}})
	<-next.s.helm.leads
	require.Equal(t, first.s.helm.key, next.s.helm.key)
	require.NotEmpty(t, next.s.helm.key)
	next.grow(nil, wire.Ext{})

	_, err = New(Options{Lead: Lead{State: dir, Authority: newHelmsman()}})
	require.ErrorContains(t, err, "second authority")
}

// A peer that comes back may have much to report; a master that ends tells it so, and the
// connection then.
func TestPeersComeBackAndAreToldOfTheEnd(t *testing.T) {
	h, ended := underway(t, Options{})
	r := h.dial()
	me := wire.UUID{1}
	r.send(wire.C2MRequestSessionRegistration{P2PPort: 1, SharedStatePort: 2, BenchmarkPort: 3, Ext: wire.Ext{
		Native: true, Resuming: wire.Resuming{Resume: true, Identity: wire.Identity{UUID: me}},
	}})
	require.True(t, recv[wire.M2CSessionRegistrationResponse](r).Accepted)
	report := wire.C2MReport{Round: wire.StoodRound{Decision: 1, Ring: []wire.UUID{me}, World: 1, Groups: 1}}
	report.Call.Step = wire.StepElection
	for i := range 4000 {
		report.Call.Vote.Entries = append(report.Call.Vote.Entries, wire.StateEntry{Key: fmt.Sprintf("layers.%d.weights", i), DType: dtype.Float32})
	}
	require.Greater(t, len(wire.Append(nil, report)), waitingLimit)
	r.send(report)
	recv[wire.M2CResumed](r)
	recv[wire.M2CSyncSharedState](r)
	go h.s.Close()
	recv[wire.M2CLeaving](r)
	_, err := r.nc.Read(make([]byte, 1))
	require.Error(t, err)
	require.NoError(t, soon(t, ended))
}

// A master that began with an old copy of the directory ends when it hears of a later
// master, and the next one of the directory comes after that.
func TestOldCopyOfTheDirectory(t *testing.T) {
	dir := scratch.Dir(t)
	h, ended := underway(t, Options{Lead: Lead{State: dir}})
	<-h.s.helm.leads
	me := h.dial()
	me.send(wire.C2MRequestSessionRegistration{P2PPort: 1, SharedStatePort: 2, BenchmarkPort: 3, Ext: wire.Ext{
		Native: true, Resuming: wire.Resuming{Resume: true},
	}})
	token := recv[wire.M2CSessionRegistrationResponse](me).Ext.Resuming.Identity
	require.NoError(t, h.s.Close())
	require.NoError(t, soon(t, ended))
	h, ended = underway(t, Options{Lead: Lead{State: dir}})
	<-h.s.helm.leads
	r := h.dial()
	r.send(wire.C2MRequestSessionRegistration{P2PPort: 1, SharedStatePort: 2, BenchmarkPort: 3, Ext: wire.Ext{
		Native: true, Resuming: wire.Resuming{Resume: true, Term: 17, Identity: token},
	}})
	err := soon(t, ended)
	require.Equal(t, errs.NotLeading, errs.CodeOf(err))
	require.ErrorContains(t, err, "old copy")
	require.ErrorContains(t, err, "start it again")
	at := lead.NewFile(dir)
	term, b, _, err := at.Lead(context.Background())
	require.NoError(t, err)
	defer at.Resign()
	require.EqualValues(t, 18, term)
	require.NotEmpty(t, b)
}

// A master with a directory takes those who come while its disk is slow: nobody else can lead
// with that.
func TestNewcomersWaitForASlowDisk(t *testing.T) {
	at := newHelmsman()
	s, err := New(Options{Lead: Lead{State: scratch.Dir(t)}})
	require.NoError(t, err)
	s.helm.authority = at
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(context.Background(), ln) }()
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	h := &harness{t: t, s: s, addr: ln.Addr().String()}
	r := h.dial()
	r.send(wire.C2MRequestSessionRegistration{Ext: wire.Ext{Native: true}})
	require.NoError(t, r.nc.SetReadDeadline(time.Now().Add(2*standby)))
	_, err = r.nc.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "it is not turned away")
	require.NoError(t, r.nc.SetReadDeadline(time.Time{}))
	at.lead <- 1
	require.True(t, recv[wire.M2CSessionRegistrationResponse](r).Accepted)
}
