// Package proto is what hosts and plugins agree on: the gRPC services (generated
// from plugin.proto) and the handshake.
package proto

import (
	"context"
	"errors"

	plugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
)

// Handshake is what both ends present. Version 1 is the only one so far; a
// change that old plugins cannot follow takes the next number.
var Handshake = plugin.HandshakeConfig{
	ProtocolVersion:  1,
	MagicCookieKey:   "GOPCCL_PLUGIN",
	MagicCookieValue: "1",
}

// Environment variables that a host sets for a plugin beside those of go-plugin.
const (
	// EnvWatch is "stdin" if the end of the standard input means that the host is gone.
	EnvWatch = "GOPCCL_PLUGIN_WATCH"
	// EnvMemory is the memory limit in bytes, absent without one.
	EnvMemory = "GOPCCL_PLUGIN_MEMORY"
)

// MaxPeers bounds n of a Problem: the matrix of 4096 peers takes 128 MiB.
const MaxPeers = 4096

// MaxMessage bounds a message of a plugin: rings and descriptions are small.
const MaxMessage = 1 << 20

// Service is a go-plugin plugin whose client is the connection itself and whose
// server is what Register adds; hosts leave Register nil.
type Service struct {
	plugin.NetRPCUnsupportedPlugin
	Register func(*grpc.Server)
}

// GRPCServer registers the service.
func (s Service) GRPCServer(_ *plugin.GRPCBroker, g *grpc.Server) error {
	if s.Register == nil {
		return errors.New("no service to register")
	}
	s.Register(g)
	return nil
}

// GRPCClient returns c.
func (Service) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, c *grpc.ClientConn) (any, error) {
	return c, nil
}
