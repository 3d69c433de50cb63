package conf

import (
	"log/slog"
	"time"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/topo"
)

// Masters returns the addresses of all masters of the run, and which one this is; nil: it
// is alone.
func (c *Config) Masters() (all []string, self string) {
	if c.Master.Peers == noneText {
		return nil, ""
	}
	return words(c.Master.Peers), c.Master.Self
}

// FormerMasters returns the addresses of the masters before a change, nil: there was none.
func (c *Config) FormerMasters() []string { return words(c.Master.FormerPeers) }

// EtcdURLs returns where etcd says which master leads; "": nowhere.
func (c *Config) EtcdURLs() string {
	if c.Master.Etcd == noneText {
		return ""
	}
	return c.Master.Etcd
}

// EtcdFiles returns the files with which this master is known to etcd; "": there is none.
func (c *Config) EtcdFiles() (password, ca, cert, key string) {
	or := func(name string) string {
		if name == noneText {
			return ""
		}
		return name
	}
	return or(c.Master.EtcdPassword), or(c.Master.EtcdCA), or(c.Master.EtcdCert), or(c.Master.EtcdKey)
}

// EtcdSelf returns where peers find this master, as it tells the others of an etcd; "": it
// does not say.
func (c *Config) EtcdSelf() string {
	if c.Master.Self == noneText {
		return ""
	}
	return c.Master.Self
}

// MasterOptions returns what core.NewMaster takes. log may be nil.
func (c *Config) MasterOptions(log *slog.Logger) core.MasterOptions {
	var o core.MasterOptions
	o.Listen = c.Master.Listen
	o.HeartbeatInterval = orOff(c.Master.HeartbeatInterval)
	o.HeartbeatTimeout = orOff(c.Master.HeartbeatTimeout)
	o.RegisterTimeout = orOff(c.Master.RegisterTimeout)
	o.RoundTimeout = orOff(c.Master.RoundTimeout)
	o.VoteTimeout = orOff(c.Master.VoteTimeout)
	o.PhaseTimeout = orOff(c.Master.PhaseTimeout)
	o.WarnVoteAfter = orOff(c.Master.WarnVoteAfter)
	o.WriteTimeout = orOff(c.Master.WriteTimeout)
	o.MaxConnections = c.Master.MaxConnections
	o.MaxQueue = int(c.Master.MaxQueue)
	o.PCCLRevisionRule = c.Master.PCCLRevisionRule
	o.BeginAnew = c.Master.LostState == "anew"
	o.DropLost = c.Master.LostMembers == "drop"
	if o.State = c.Master.State; o.State == noneText {
		o.State = ""
	}
	if o.Solver = c.Topology.Solver; o.Solver == "auto" {
		o.Solver = "" // the engine's own rule: none where no solver is linked
	}
	o.SolverBudget = c.Topology.Budget
	o.SearchBudget = orOff(c.Topology.Background)
	o.Objective = topo.Objective(c.Topology.Objective)
	o.Noise = float64(c.Topology.Noise) / 100
	o.MaxLinkAge = orOff(c.Topology.MaxAge)
	o.WaitForRounds = c.Topology.Adopt == "round"
	o.Patience = c.Topology.Patience
	o.Security = c.security()
	if o.Enroll = c.Master.Enroll; o.Enroll == noneText {
		o.Enroll = ""
	}
	o.Logger = log
	return o
}

// PeerOptions returns what core.Connect takes. log may be nil.
func (c *Config) PeerOptions(log *slog.Logger) core.Options {
	var o core.Options
	o.Master = c.Peer.Master
	o.Group = c.Peer.Group
	o.PoolSize = c.Peer.PoolSize
	o.Flows = c.Peer.Flows
	o.Addresses = words(c.Peer.Addresses)
	o.PortBase = c.Peer.PortBase
	o.Ports, _ = portList(c.Peer.Ports) // Load has checked both
	o.Announce.Ports, _ = portList(c.Peer.AnnouncePorts)
	if o.Announce.Host = c.Peer.AnnounceHost; o.Announce.Host == noneText {
		o.Announce.Host = ""
	}
	o.HeartbeatInterval = c.Peer.HeartbeatInterval
	o.HeartbeatTimeout = c.Peer.HeartbeatTimeout
	o.ReattachTimeout = orOff(c.Peer.ReattachTimeout)
	o.DialTimeout = c.Peer.DialTimeout
	o.HandshakeTimeout = c.Peer.HandshakeTimeout
	o.Hash.Hasher = c.Peer.Hasher
	o.Hash.Workers = c.Peer.HashWorkers
	o.WarnStuckAfter = orOff(c.Peer.WarnStuckAfter)
	o.FrameBytes = int(c.Data.FrameBytes)
	if o.EagerBytes = int(c.Data.EagerBytes); o.EagerBytes == 0 {
		o.EagerBytes = -1
	}
	o.FinishForward = c.Data.FinishForward
	o.Backend = c.Data.Backend
	o.Congestion = c.Data.Congestion
	o.UserTimeout = c.Data.UserTimeout
	o.Threads = c.Data.Threads
	if o.Affinity = c.Data.Affinity; o.Affinity == anyProcessor {
		o.Affinity = ""
	}
	o.Post.Preset = c.Data.Preset
	o.Post.Frequency = c.Data.AppendFrequency
	o.Post.Batch = c.Data.AppendBatch
	o.Device.Staging = int64(c.CUDA.Staging)
	o.Device.Reduce = c.CUDA.Reduce
	o.Probe.Duration = c.Topology.Duration
	o.Probe.Connections = c.Topology.Connections
	o.Security = c.security()
	o.Logger = log
	return o
}

func (c *Config) security() core.SecurityOptions {
	o := core.SecurityOptions{Mode: c.Security.Mode}
	if c.Security.Credential != noneText {
		o.File = c.Security.Credential
	}
	if c.Security.Join != noneText {
		o.Join = c.Security.Join
	}
	if c.Security.Revoked != noneText {
		o.Revoked = c.Security.Revoked
	}
	if c.Security.PCCLListen != noneText {
		o.PCCLListen = c.Security.PCCLListen
	}
	o.PlainNetworks, _ = networks(c.Security.PlainNetworks) // Load has checked them
	o.PCCLNetworks, _ = networks(c.Security.PCCLNetworks)
	o.PCCLGroups, _ = groups(c.Security.PCCLGroups)
	o.Identities, _ = identities(c.Security.Identities)
	return o
}

// Quantization returns how to quantize an all-reduce.
func (c *Config) Quantization() core.Quantize {
	t, err := dtype.ParseWireType(c.Quantize.Type)
	if err != nil { // Load has checked it
		panic(err)
	}
	return core.Quantize{Algorithm: c.Quantize.Algorithm, Type: t}
}

// orOff writes 0, which means off here, as the engine does: it takes 0 for its
// own default.
func orOff(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}
