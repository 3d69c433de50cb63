package peer

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/trace"
	"github.com/gopccl/gopccl/internal/mesh"
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/reduce"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// Options of a session are core.Options, and documented there: one converts to
// the other.
type Options struct {
	Master                              string
	Group                               uint32
	PoolSize                            int
	Flows                               int
	ListenHost                          string
	Ports                               []int
	AnnouncePorts                       []int
	AnnounceHost                        string
	Addresses                           []string
	PortBase                            int
	Backend                             string
	FrameBytes                          int
	EagerBytes                          int
	Threads, Affinity                   string
	Preset                              string
	AppendFrequency, AppendBatch        int
	HashWorkers                         int
	HeartbeatInterval, HeartbeatTimeout time.Duration
	DialTimeout, HandshakeTimeout       time.Duration
	UserTimeout                         time.Duration
	Congestion                          string
	ProbeDuration                       time.Duration
	ProbeConnections                    int
	WarnStuckAfter                      time.Duration
	Device                              device.Settings
	Trace                               *trace.Listener
	Logger                              *slog.Logger
	Dial                                func(ctx context.Context, network, addr string) (net.Conn, error)
}

const (
	maxWithPCCL = 16   // operations in flight with PCCL peers (quirk Q19)
	maxEvents   = 8192 // calls that wait for a slow trace listener
	maxAppend   = 1024 // bounds AppendFrequency and AppendBatch
	// roundTime bounds the connecting of a round where the master does not say
	// how long it waits; those of gopccl do after 12 s.
	roundTime = 9 * time.Second
	// registerTime bounds the wait for the answer to a registration. PCCL's
	// master answers nobody while its solver runs.
	registerTime = 30 * time.Second
	// maxDuration of an option; what is longer is a mistake in the unit.
	maxDuration = 24 * time.Hour
)

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if o.PoolSize <= 0 {
		o.PoolSize = 1
	}
	if o.PortBase == 0 {
		o.PortBase = 48149
	}
	def(&o.HeartbeatInterval, time.Second)
	def(&o.HeartbeatTimeout, 8*time.Second)
	def(&o.DialTimeout, 5*time.Second)
	def(&o.HandshakeTimeout, 5*time.Second)
	def(&o.UserTimeout, 8*time.Second)
	def(&o.ProbeDuration, 3*time.Second)
	def(&o.WarnStuckAfter, 30*time.Second)
	if o.EagerBytes == 0 {
		o.EagerBytes = 512 << 10
	}
	if o.ProbeConnections <= 0 {
		o.ProbeConnections = 4
	}
	if o.Threads == "" {
		o.Threads = "goroutine"
	}
	if o.Preset == "" {
		o.Preset = "balanced"
	}
	if o.AppendFrequency == 0 {
		o.AppendFrequency = presets[o.Preset].frequency
	}
	if o.AppendBatch == 0 {
		o.AppendBatch = presets[o.Preset].batch
	}
	if o.Congestion == "" {
		o.Congestion = "auto"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// dialer returns the program's dialer, or one of TCP.
func (o *Options) dialer() func(ctx context.Context, network, addr string) (net.Conn, error) {
	if o.Dial != nil {
		return o.Dial
	}
	return (&net.Dialer{}).DialContext
}

// check refuses what can never work and returns the address to listen on, the
// zero Addr for all. The options have their defaults.
func (o Options) check() (listen netip.Addr, err error) {
	_, _, err = net.SplitHostPort(o.Master)
	switch {
	case err != nil:
		return listen, fmt.Errorf("master address %q is not HOST:PORT", o.Master)
	case o.PoolSize > mesh.MaxPool:
		return listen, fmt.Errorf("pool size %d is above %d", o.PoolSize, mesh.MaxPool)
	case o.Flows < 0:
		return listen, fmt.Errorf("%d connections for one operation are negative", o.Flows)
	case o.Ports != nil && !threePorts(o.Ports):
		return listen, fmt.Errorf("listen ports %v are not three different ones from 1 to 65535", o.Ports)
	case o.AnnouncePorts != nil && !threePorts(o.AnnouncePorts):
		return listen, fmt.Errorf("announced ports %v are not three different ones from 1 to 65535", o.AnnouncePorts)
	case o.AnnouncePorts != nil && o.Ports == nil:
		return listen, fmt.Errorf("announced ports %v forward to listen ports, and none are set", o.AnnouncePorts)
	case len(o.Addresses) > wire.MaxAddresses:
		return listen, fmt.Errorf("%d addresses are more than %d", len(o.Addresses), wire.MaxAddresses)
	case len(o.Addresses) > 0 && o.ListenHost != "":
		return listen, fmt.Errorf("addresses %v are not reached by a listener on %s alone", o.Addresses, o.ListenHost)
	case o.PortBase > 65000:
		return listen, fmt.Errorf("port base %d leaves no ports", o.PortBase)
	case o.FrameBytes < 0:
		return listen, fmt.Errorf("frame size %d is negative", o.FrameBytes)
	case o.EagerBytes > fsm.MaxEager:
		return listen, fmt.Errorf("eager all-reduces of %d bytes are above %d", o.EagerBytes, fsm.MaxEager)
	case o.Threads != "goroutine" && o.Threads != "pinned":
		return listen, fmt.Errorf("threads %q are not goroutine or pinned", o.Threads)
	case o.Affinity != "" && o.Threads != "pinned":
		return listen, fmt.Errorf("affinity %q binds pinned threads, and threads are %q", o.Affinity, o.Threads)
	case presets[o.Preset].batch == 0:
		return listen, fmt.Errorf("unknown preset %q: it is latency, balanced or throughput", o.Preset)
	case o.AppendFrequency < 1 || o.AppendFrequency > maxAppend:
		return listen, fmt.Errorf("append frequency %d is not between 1 and %d", o.AppendFrequency, maxAppend)
	case o.AppendBatch < 1 || o.AppendBatch > maxAppend:
		return listen, fmt.Errorf("append batch %d is not between 1 and %d", o.AppendBatch, maxAppend)
	case o.ProbeConnections > mesh.MaxPool:
		return listen, fmt.Errorf("%d connections of a bandwidth test are above %d", o.ProbeConnections, mesh.MaxPool)
	case o.HeartbeatTimeout < 2*o.HeartbeatInterval:
		return listen, fmt.Errorf("heartbeat timeout %v is below two intervals of %v", o.HeartbeatTimeout, o.HeartbeatInterval)
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{
		{"heartbeat interval", o.HeartbeatInterval},
		{"heartbeat timeout", o.HeartbeatTimeout},
		{"dial timeout", o.DialTimeout},
		{"handshake timeout", o.HandshakeTimeout},
		{"user timeout", o.UserTimeout},
		{"probe duration", o.ProbeDuration},
	} {
		if d.d < 0 || d.d > maxDuration {
			return listen, fmt.Errorf("%s %v is not between 0 and %v", d.name, d.d, maxDuration)
		}
	}
	if o.AnnounceHost != "" {
		if _, err = o.announceHost(); err != nil {
			return listen, err
		}
	}
	if cpus, err := platform.ParseCPUs(o.Affinity); err != nil {
		return listen, err
	} else if err := platform.TryAffinity(cpus); err != nil {
		return listen, err
	}
	if o.ListenHost != "" {
		if listen, err = netip.ParseAddr(o.ListenHost); err != nil {
			return listen, fmt.Errorf("listen host %q is not an IP address", o.ListenHost)
		}
	}
	return listen, nil
}

// threePorts reports whether the ports are those of three listeners.
func threePorts(ports []int) bool {
	if len(ports) != 3 || ports[0] == ports[1] || ports[0] == ports[2] || ports[1] == ports[2] {
		return false
	}
	return min(ports[0], ports[1], ports[2]) > 0 && max(ports[0], ports[1], ports[2]) <= 65535
}

// announceHost returns AnnounceHost as an address, the zero Addr if there is none.
func (o Options) announceHost() (a netip.Addr, err error) {
	if o.AnnounceHost == "" {
		return a, nil
	}
	a, err = netip.ParseAddr(o.AnnounceHost)
	if err != nil || a.IsUnspecified() || a.IsMulticast() || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("announced host %q is not an IP address that others can connect to", o.AnnounceHost)
	}
	return a.Unmap(), nil
}

func (o Options) deviceSettings() device.Settings {
	d := o.Device
	if d.Logger == nil {
		d.Logger = o.Logger.With(trace.Subsystem, trace.SubData)
	}
	return d
}

// threads returns how the engine runs; the options have been checked.
func (o Options) threads() (reduce.Threads, []int) {
	if o.Threads != "pinned" {
		return reduce.Goroutines, nil
	}
	cpus, _ := platform.ParseCPUs(o.Affinity)
	return reduce.Pinned, cpus
}
