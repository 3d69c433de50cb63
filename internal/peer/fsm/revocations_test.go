package fsm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// A peer in TLS asks for revocation lists, and hands on what it is told, whatever it
// waits for; in plaintext nobody could say who is on one.
func TestRevocations(t *testing.T) {
	list := wire.M2CRevocations{DER: "list"}
	r := newRig(t, Config{Secure: true})
	r.register(true, wire.Ext{Native: true})
	require.True(t, r.m.hello().Ext.Revocations)
	require.Equal(t, []Effect{Revocations{DER: "list"}}, r.in(list))

	r = newRig(t, Config{})
	r.register(true, wire.Ext{Native: true})
	require.False(t, r.m.hello().Ext.Revocations)
	r.in(list)
	require.Equal(t, statusOver, r.m.status)
}
