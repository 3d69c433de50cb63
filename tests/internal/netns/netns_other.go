//go:build !linux

package netns

import (
	"errors"
	"net"
	"net/netip"
	"os/exec"
)

// ErrUnavailable: this system has no network namespaces.
var ErrUnavailable = errors.New("network namespaces need Linux")

// Network is a switch with hosts.
type Network struct{ Hosts []*Host }

// Host is one namespace.
type Host struct {
	Index int
	Addr  netip.Addr
}

// New returns ErrUnavailable.
func New(int) (*Network, error) { return nil, ErrUnavailable }

// NewIsolated returns ErrUnavailable.
func NewIsolated(int) (*Network, error) { return &Network{}, ErrUnavailable }

// Tunnel returns ErrUnavailable.
func (*Host) Tunnel(int) (int, error) { return -1, ErrUnavailable }

// Join returns ErrUnavailable.
func (*Network) Join() error { return ErrUnavailable }

// Close does nothing.
func (*Network) Close() {}

// Do returns ErrUnavailable.
func (*Host) Do(func() error) error { return ErrUnavailable }

// Start returns ErrUnavailable.
func (*Host) Start(*exec.Cmd) error { return ErrUnavailable }

// Shape returns ErrUnavailable.
func (*Host) Shape(Shape) error { return ErrUnavailable }

// ShapeIn returns ErrUnavailable.
func (*Host) ShapeIn(int, Shape) error { return ErrUnavailable }

// Sysctl returns ErrUnavailable.
func (*Host) Sysctl(string, string) error { return ErrUnavailable }

// Dialer returns one without a source port.
func Dialer(int) *net.Dialer { return &net.Dialer{} }
