//go:build !linux

package lab

import (
	"github.com/gopccl/gopccl/tests/internal/lab/netem"
	"github.com/gopccl/gopccl/tests/internal/netns"
)

// Lab is a running network.
type Lab struct{ Hosts []*netns.Host }

// Start returns ErrUnavailable.
func Start(*Profile, uint64) (*Lab, error) { return nil, ErrUnavailable }

// Close does nothing.
func (*Lab) Close() error { return nil }

// Change does nothing.
func (*Lab) Change(func(*netem.Net)) {}

// Stats returns nothing.
func (*Lab) Stats() Stats { return Stats{} }

// Precede does nothing here.
func Precede() {}
