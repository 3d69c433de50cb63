package fsm

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

func (w *world) count(kind string) (n int) {
	for _, f := range w.facts {
		if f.Kind == kind {
			n++
		}
	}
	return n
}

// Refused registrations end the connection.
func TestRefusedAgainAndAgain(t *testing.T) {
	w := newWorld(t, Config{})
	w.member(0, true) // on the loopback interface
	w.facts = nil
	c := w.connectAt("10.0.0.9:1")
	for range 10000 {
		w.send(c, wire.C2MRequestSessionRegistration{P2PPort: 1})
	}
	require.Equal(t, maxRefusals, w.count("refused"))
	w.isClosed(c, "registration refused 3 times")
	require.Len(t, w.inbox[c], maxRefusals)
}

// Lines that a peer can repeat at will are counted, and the count is stated.
func TestLinesOfOnePeer(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(3, true)
	impossible := wire.C2MReportPeerBandwidth{To: w.ids[cs[1]], Mbps: -1}
	for range 10000 {
		w.send(cs[0], impossible)
	}
	require.Equal(t, clientLines.burst, w.count("bandwidth"))
	w.send(cs[2], impossible) // others are heard
	require.Equal(t, clientLines.burst+1, w.count("bandwidth"))
	w.now += clientLines.every
	w.send(cs[0], impossible)
	require.Contains(t, w.facts[len(w.facts)-1].Text, fmt.Sprintf("(and %d more)", 10000-clientLines.burst))
	w.send(cs[0], impossible)
	w.leave(cs[0])
	require.Contains(t, w.factOf("left").Text, "(and 1 more)")
}

// Lines about the collectives of a group are counted as well.
func TestLinesOfAGroup(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(2, true)
	for i := range uint64(1000) {
		for _, c := range cs {
			w.send(c, initiate(i))
		}
		for _, c := range cs {
			w.send(c, complete(i, true))
		}
	}
	require.Equal(t, groupLines.burst, w.count("abort"))
}

// Strangers that come and go hide nothing.
func TestLinesOfStrangers(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(2, true)
	for i := range 1000 {
		c := w.connectAt(fmt.Sprintf("10.0.0.9:%d", i+1))
		w.send(c, wire.C2MCheckPeersPending{})
		w.isClosed(c, "before the registration")
	}
	require.Equal(t, strangerLines.burst, w.count("kick"))
	w.send(cs[0], wire.C2MOptimizeTopologyWorkComplete{}) // not allowed
	require.Equal(t, strangerLines.burst+1, w.count("kick"))
}

func TestBucket(t *testing.T) {
	b, r := bucket{}, rate{2, time.Second}
	now := time.Minute
	require.True(t, b.take(now, r))
	require.True(t, b.take(now, r))
	require.False(t, b.take(now, r))
	require.False(t, b.take(now+999*time.Millisecond, r))
	require.True(t, b.take(now+time.Second, r))
	require.False(t, b.take(now+time.Second, r))
	require.True(t, b.take(now+2*time.Second, r))
	require.True(t, b.take(now+time.Hour, r))
	require.True(t, b.take(now+time.Hour, r))
	require.False(t, b.take(now+time.Hour, r))
	require.Equal(t, 4, b.more)
}
