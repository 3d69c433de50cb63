package master

import (
	"bufio"
	"encoding/json"
	"io"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// status asks a master over a connection of its own.
func (h *harness) status() (b Bulletin) {
	h.t.Helper()
	r := h.dial()
	r.send(wire.C2MAskStatus{})
	require.NoError(h.t, json.Unmarshal([]byte(recv[wire.M2CStatus](r).JSON), &b))
	r.nc.Close()
	return b
}

// A master that does not lead says so, and where the one is that does, to operators and to
// peers of gopccl; to others it says nothing.
func TestFollowerPointsToTheLeader(t *testing.T) {
	at := newHelmsman()
	at.at = netip.MustParseAddrPort("127.0.0.1:4711")
	h, _ := underway(t, Options{Lead: Lead{Authority: at}})
	require.Equal(t, Bulletin{Role: Follows, Masters: at.Describe(), Leader: at.at.String()}, h.status())

	r := h.dial()
	r.send(wire.C2MRequestSessionRegistration{Ext: wire.Ext{Native: true}})
	answer := recv[wire.M2CSessionRegistrationResponse](r)
	require.False(t, answer.Accepted)
	require.Equal(t, []netip.AddrPort{at.at}, answer.Ext.Resuming.Leader)
	_, err := r.nc.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	for _, b := range [][]byte{
		wire.Append(nil, wire.C2MRequestSessionRegistration{}), // PCCL
		wire.Append(nil, wire.C2MAskTopology{}),
		[]byte("GET / HTTP/1.1\r\n\r\n"),
	} {
		r := h.dial()
		_, err := r.nc.Write(b)
		require.NoError(t, err)
		_, err = r.nc.Read(make([]byte, 1))
		require.Error(t, err)
	}

	at.lead <- 5
	<-h.s.helm.leads
	var b Bulletin
	for b.Role != Leads { // one that was made before may be given out once more
		b = h.status()
	}
	require.EqualValues(t, 5, b.Term)
	h.grow(nil, wire.Ext{Native: true})
	for b.Clients == 0 {
		b = h.status()
	}
	require.Equal(t, []GroupBulletin{{Members: 1}}, b.Groups)
	require.Equal(t, 1, b.Total)
}

// Where a master is told to be must be a place that the one who asks can reach.
func TestLeadersOfOtherNetworks(t *testing.T) {
	for _, c := range []struct {
		from, at string
		want     bool
	}{
		{"127.0.0.1", "127.0.0.1", true},
		{"10.0.0.1", "127.0.0.1", false},
		{"10.0.0.1", "10.1.0.1", true},
		{"127.0.0.1", "10.1.0.1", true},
		{"1.2.3.4", "192.168.0.1", false},
		{"1.2.3.4", "1.2.3.5", true},
		{"10.0.0.1", "1.2.3.5", true},
		{"fe80::1", "fe80::2", true},
		{"2001:db8::1", "fe80::2", false},
		{"2001:db8::1", "2001:db8::2", true},
	} {
		require.Equal(t, c.want, reaches(netip.MustParseAddr(c.from), netip.MustParseAddr(c.at)), "%v", c)
	}
	require.False(t, reaches(netip.MustParseAddr("127.0.0.1"), netip.Addr{}))
}

// Those who ask again and again over one connection, and do not read, are answered as often
// as they read.
func TestManyQuestionsOfOneConnection(t *testing.T) {
	h := serve(t, Options{})
	r := h.dial()
	var asks []byte
	for range 1000 {
		asks = wire.Append(asks, wire.C2MAskStatus{})
	}
	_, err := r.nc.Write(asks)
	require.NoError(t, err)
	require.NotEmpty(t, recv[wire.M2CStatus](r).JSON)
	r.send(wire.C2MAskTopology{}) // behind them
	answers := bufio.NewReader(r.nc)
	for n := 1; ; n++ {
		p, err := wire.Read(answers, wire.M2C, wire.MaxPacket)
		require.NoError(t, err)
		if _, over := p.(wire.M2CTopology); over {
			require.LessOrEqual(t, n, 1000)
			return
		}
	}
}
