package peer

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/trace"
	"github.com/gopccl/gopccl/internal/bounds"
	"github.com/gopccl/gopccl/internal/guard"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/mesh"
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// Options of a session are core.Options, and documented there.
type Options struct {
	Master                              string
	Group                               uint32
	PoolSize                            int
	Flows                               int
	ListenHost                          string
	Ports                               []int
	Announce                            Announce
	Security                            guard.Options
	Addresses                           []string
	PortBase                            int
	Backend                             string
	FrameBytes                          int
	EagerBytes                          int
	Threads, Affinity                   string
	Post                                Post
	Hash                                digest.Settings
	HeartbeatInterval, HeartbeatTimeout time.Duration
	DialTimeout, HandshakeTimeout       time.Duration
	UserTimeout                         time.Duration
	Congestion                          string
	Probe                               Probe
	Device                              device.Settings
	Trace                               *trace.Listener
	Logger                              *slog.Logger
	Patience
	Network
}

// Patience is what a session waits for.
type Patience struct {
	WarnStuckAfter time.Duration
	FinishForward  bool
}

// Network is how others are reached.
type Network struct {
	ReattachTimeout time.Duration

	registerTime time.Duration // shorter in tests; 0: as the list of masters says
	Dial         func(ctx context.Context, network, addr string) (net.Conn, error)
	// RoundTrip is for tests: it says how far a peer is, or the master (zero), instead of
	// the system.
	RoundTrip func(wire.UUID) (time.Duration, bool)
	// Rate is for tests: what a measurement of the link to a peer gives, in Mbit/s.
	Rate func(wire.UUID) float64
}

// Post says how posted operations are picked up.
type Post struct {
	Preset           string
	Frequency, Batch int
}

// Announce says where others reach this peer.
type Announce struct {
	Ports []int
	Host  string
}

// Probe bounds one bandwidth measurement.
type Probe struct {
	Duration    time.Duration
	Connections int
}

const (
	maxWithPCCL = 16   // operations in flight with PCCL peers (quirk Q19)
	maxEvents   = 8192 // calls that wait for a slow trace listener
	maxAppend   = 1024 // bounds the numbers of Post
	// maxPortBase leaves room for a few peers.
	maxPortBase = 65533
	// Bounds of the pinned memory of a platform.
	minStaging, maxStaging = 1 << 20, 1 << 40
	// roundTime bounds the connecting of a round where the master does not say
	// how long it waits; those of gopccl do after 12 s.
	roundTime = 9 * time.Second
	// registerTime bounds the wait for the answer to a registration. PCCL's
	// master answers no peer while its solver runs.
	registerTime = 30 * time.Second
	// recoveryTime is longer than a gopccl master lets newcomers wait that begins
	// with what others have.
	recoveryTime = 12 * time.Second
	// minDuration and maxDuration of an option: a shorter or longer value is a
	// mistake in the unit.
	minDuration, maxDuration = time.Millisecond, 24 * time.Hour
)

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if o.PortBase == 0 {
		o.PortBase = 48149
	}
	def(&o.HeartbeatInterval, time.Second)
	def(&o.HeartbeatTimeout, 8*time.Second)
	def(&o.DialTimeout, 5*time.Second)
	def(&o.HandshakeTimeout, 5*time.Second)
	def(&o.UserTimeout, 8*time.Second)
	def(&o.ReattachTimeout, time.Minute)
	def(&o.Probe.Duration, 3*time.Second)
	def(&o.WarnStuckAfter, 30*time.Second)
	if o.EagerBytes == 0 {
		o.EagerBytes = 512 << 10
	}
	if o.Probe.Connections == 0 {
		o.Probe.Connections = 4
	}
	if o.Threads == "" {
		o.Threads = "goroutine"
	}
	if o.Post.Preset == "" {
		o.Post.Preset = "balanced"
	}
	if o.Post.Frequency == 0 {
		o.Post.Frequency = presets[o.Post.Preset].frequency
	}
	if o.Post.Batch == 0 {
		o.Post.Batch = presets[o.Post.Preset].batch
	}
	if o.Congestion == "" {
		o.Congestion = "auto"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// dialer returns the program's dialer, or that of the transport.
func (o *Options) dialer() func(ctx context.Context, network, addr string) (net.Conn, error) {
	if o.Dial != nil {
		return o.Dial
	}
	return transport.Dial
}

// Bounds are the ranges of the numbers in o: what Check lets through. 0 takes
// the default. They point into o.
func (o *Options) Bounds() []bounds.Bound {
	return []bounds.Bound{
		bounds.Int("PoolSize", &o.PoolSize, 0, mesh.MaxPool),
		bounds.Int("Flows", &o.Flows, 0, mesh.MaxPool),
		bounds.Int("PortBase", &o.PortBase, 1, maxPortBase).OrOff(),
		bounds.Int("Hash.Workers", &o.Hash.Workers, 0, 1024),
		bounds.Int("FrameBytes", &o.FrameBytes, link.MinFrameBytes, link.MaxFrameBytes),
		bounds.Int("EagerBytes", &o.EagerBytes, 1, fsm.MaxEager).OrOff(),
		bounds.Int("Post.Frequency", &o.Post.Frequency, 1, maxAppend),
		bounds.Int("Post.Batch", &o.Post.Batch, 1, maxAppend),
		bounds.Int("Probe.Connections", &o.Probe.Connections, 1, mesh.MaxPool),
		bounds.Int64("Device.Staging", &o.Device.Staging, minStaging, maxStaging),
		bounds.Time("HeartbeatInterval", &o.HeartbeatInterval, minDuration, maxDuration/2),
		bounds.Time("HeartbeatTimeout", &o.HeartbeatTimeout, 2*minDuration, maxDuration),
		bounds.Time("ReattachTimeout", &o.ReattachTimeout, minDuration, maxDuration).OrOff(),
		bounds.Time("DialTimeout", &o.DialTimeout, minDuration, maxDuration),
		bounds.Time("HandshakeTimeout", &o.HandshakeTimeout, minDuration, maxDuration),
		bounds.Time("UserTimeout", &o.UserTimeout, minDuration, maxDuration),
		bounds.Time("Probe.Duration", &o.Probe.Duration, minDuration, maxDuration),
		bounds.Time("WarnStuckAfter", &o.WarnStuckAfter, minDuration, 7*24*time.Hour).OrOff(),
	}
}

// Check refuses what can never work, on any machine: *errs.Error with code
// InvalidArgument, whose cause is bounds.Errors, every rule that o breaks.
// No other package has rules for these values.
func (o Options) Check() error {
	var e bounds.Errors
	e.Check(o.Bounds())
	o = o.withDefaults()
	if o.HeartbeatTimeout < 2*o.HeartbeatInterval {
		e.Break("%v %v is below two times %v, %v", bounds.Field("HeartbeatTimeout"), amount("HeartbeatTimeout", o.HeartbeatTimeout),
			bounds.Field("HeartbeatInterval"), amount("HeartbeatInterval", o.HeartbeatInterval))
	}
	if _, err := bounds.Endpoints(o.Master, maxMasters); err != nil {
		e.Break("%v %q: %v", bounds.Field("Master"), o.Master, err)
	}
	o.checkPorts(&e)
	if len(o.Addresses) > wire.MaxAddresses {
		e.Break("%v: %d are more than %d", bounds.Field("Addresses"), len(o.Addresses), wire.MaxAddresses)
	}
	if len(o.Addresses) > 0 && o.ListenHost != "" {
		e.Break("%v %v are not reached by a listener on %v %q alone", bounds.Field("Addresses"), o.Addresses, bounds.Field("ListenHost"), o.ListenHost)
	}
	if _, err := o.announceHost(); err != nil {
		e.Break("%v %q is not an IP address that others can connect to", bounds.Field("Announce.Host"), o.Announce.Host)
	}
	if _, err := o.listenAt(); err != nil {
		e.Break("%v %q is not an IP address", bounds.Field("ListenHost"), o.ListenHost)
	}
	o.checkThreads(&e)
	o.Security.Check(&e)
	if err := e.Err(); err != nil {
		return errs.New(errs.InvalidArgument, "connect", err)
	}
	return nil
}

func (o Options) checkPorts(e *bounds.Errors) {
	const ports, announced = bounds.Field("Ports"), bounds.Field("Announce.Ports")
	for _, p := range []struct {
		field bounds.Field
		ports []int
	}{{ports, o.Ports}, {announced, o.Announce.Ports}} {
		if p.ports != nil && !mesh.ValidPorts(p.ports) {
			e.Break("%v %v is neither one port nor three different ones, from 1 to 65535", p.field, p.ports)
		}
	}
	switch {
	case o.Announce.Ports == nil:
	case o.Ports == nil:
		e.Break("%v %v forward to %v, and none are set", announced, o.Announce.Ports, ports)
	case len(o.Ports) != len(o.Announce.Ports):
		e.Break("%v %v forward to %v %v, which are not as many", announced, o.Announce.Ports, ports, o.Ports)
	}
}

func (o Options) checkThreads(e *bounds.Errors) {
	if o.Threads != "goroutine" && o.Threads != "pinned" {
		e.Break("%v %q is neither goroutine nor pinned", bounds.Field("Threads"), o.Threads)
	}
	if o.Affinity != "" && o.Threads != "pinned" {
		e.Break("%v %q binds pinned threads, and %v is %s", bounds.Field("Affinity"), o.Affinity, bounds.Field("Threads"), o.Threads)
	}
	if _, err := platform.ParseCPUs(o.Affinity); err != nil {
		e.Break("%v %q: %v", bounds.Field("Affinity"), o.Affinity, err)
	}
	if presets[o.Post.Preset].batch == 0 {
		e.Break("%v %q is not latency, balanced or throughput", bounds.Field("Post.Preset"), o.Post.Preset)
	}
	if r := o.Device.Reduce; r != "" && r != "auto" && r != "host" && r != "device" {
		e.Break("%v %q is not auto, host or device", bounds.Field("Device.Reduce"), r)
	}
}

func amount(f bounds.Field, d time.Duration) bounds.Amount {
	return bounds.Amount{Of: f, N: int64(d), Time: true}
}

// checkHere is Check with what only this machine knows. It returns the address to
// listen on, the zero Addr for all.
func (o Options) checkHere() (netip.Addr, error) {
	if err := o.Check(); err != nil {
		return netip.Addr{}, err
	}
	cpus, _ := platform.ParseCPUs(o.Affinity) // checked
	if err := platform.TryAffinity(cpus); err != nil {
		return netip.Addr{}, errs.New(errs.InvalidArgument, "connect", err)
	}
	return o.listenAt()
}

// listenAt returns ListenHost as an address, the zero Addr for all.
func (o Options) listenAt() (a netip.Addr, err error) {
	if o.ListenHost == "" {
		return a, nil
	}
	return netip.ParseAddr(o.ListenHost)
}

// announceHost returns Announce.Host as an address, the zero Addr if there is none.
func (o Options) announceHost() (a netip.Addr, err error) {
	if o.Announce.Host == "" {
		return a, nil
	}
	a, err = netip.ParseAddr(o.Announce.Host)
	if err != nil || a.IsUnspecified() || a.IsMulticast() || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("announced host %q is not an IP address that others can connect to", o.Announce.Host)
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

// threads returns what the connections run on; the options have been checked.
func (o Options) threads() (link.Threads, []int) {
	if o.Threads != "pinned" {
		return link.Goroutines, nil
	}
	cpus, _ := platform.ParseCPUs(o.Affinity)
	return link.Pinned, cpus
}
