package sockets

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func at(text string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(text)) }

// The oldest one of the network that has most makes room, and no other one.
func TestCrowded(t *testing.T) {
	c := NewCrowd(4, nil)
	var ended []string
	enter := func(name, from string) *Place {
		return c.Enter(at(from), func() { ended = append(ended, name) })
	}
	first := enter("a1", "10.0.0.1:1")
	enter("b1", "[2001:db8::1]:1")
	enter("b2", "[2001:db8::ffff:2]:1") // the same /64
	enter("c1", "[2001:db8:0:1::1]:1")
	enter("a2", "10.0.0.1:2")
	require.Equal(t, []string{"b1"}, ended)
	enter("c2", "[2001:db8:0:1::2]:1")
	require.Equal(t, []string{"b1", "a1"}, ended)
	require.True(t, first.Leave(), "it made room")
	require.True(t, first.Leave())
	enter("c3", "[2001:db8:0:1::3]:1")
	require.Equal(t, []string{"b1", "a1", "c1"}, ended)
	last := enter("d1", "10.0.0.9:1")
	require.Equal(t, []string{"b1", "a1", "c1", "c2"}, ended)
	require.False(t, last.Leave())
	require.False(t, last.Leave())
	enter("d2", "10.0.0.9:2")
	require.Len(t, ended, 4, "its place was free")
	ended = nil
	c.End()
	require.ElementsMatch(t, []string{"a2", "b2", "c3", "d2"}, ended)
}

// Strangers elsewhere take no place of networks that have members.
func TestMembersHavePlaces(t *testing.T) {
	home := netip.MustParsePrefix("10.0.0.1/32")
	c := NewCrowd(2, func(from netip.Prefix) bool { return from == home })
	ended := 0
	member := c.Enter(at("10.0.0.1:1"), func() { t.Error("a member made room") })
	for range 10 {
		c.Enter(at("10.0.0.2:1"), func() { ended++ })
	}
	require.Equal(t, 8, ended)
	for range 2 {
		c.Enter(at("10.0.0.1:1"), func() { t.Error("a stranger's place was free") }).Leave()
	}
	require.False(t, member.Leave())
}

// Making room holds up no other connection.
func TestMakingRoomHoldsUpNobody(t *testing.T) {
	c := NewCrowd(1, nil)
	ending, leave := make(chan struct{}), make(chan struct{})
	c.Enter(at("10.0.0.1:1"), func() { close(ending); <-leave })
	over := make(chan struct{})
	go func() {
		defer close(over)
		c.Enter(at("10.0.0.1:2"), func() {})
	}()
	<-ending
	c.Enter(at("10.0.0.1:3"), func() {})
	close(leave)
	<-over
}
