// Package conf reads the configuration of gopccl into one typed, validated
// struct. A setting comes from the strongest of four sources: flags, environment
// variables (GOPCCL_SECTION_KEY), files, and the defaults of default.yaml, which
// documents every key with its unit and range.
//
// It is the only package that knows koanf.
package conf

import (
	_ "embed"
	"time"

	"github.com/gopccl/gopccl/core/secure"
)

// DefaultYAML is the commented list of all settings with their defaults.
//
//go:embed default.yaml
var DefaultYAML []byte

// Config holds every setting. The tags are read by Load: conf is the key; of and
// option say which field of core.MasterOptions or core.Options it becomes, whose
// Check has the rules (option defaults to the name of the field here, of to the
// section's); min, max and oneof bound what becomes none, or is written in another
// unit; zero=off makes 0 mean none, zero=default the default.
type Config struct {
	Master   Master   `conf:"master" of:"master"`
	Peer     Peer     `conf:"peer" of:"peer"`
	Data     Data     `conf:"data" of:"peer"`
	CUDA     CUDA     `conf:"backends.cuda" of:"peer"`
	Quantize Quantize `conf:"quantize"`
	Topology Topology `conf:"topology" of:"master"`
	Security Security `conf:"security" of:"peer"`
	Log      Log      `conf:"log"`
	Dump     Dump     `conf:"dump"`
	Plugins  []Plugin // of the key plugins; the strongest file that has it counts

	origins map[string]string
}

// Master configures the coordinator. Masters and EtcdURLs say what Peers, Self and
// Etcd are.
type Master struct {
	Listen            string        `conf:"listen" is:"address"`
	HeartbeatInterval time.Duration `conf:"heartbeat_interval" zero:"off"`
	HeartbeatTimeout  time.Duration `conf:"heartbeat_timeout" zero:"off"`
	RegisterTimeout   time.Duration `conf:"register_timeout" zero:"off"`
	RoundTimeout      time.Duration `conf:"round_timeout" zero:"off"`
	VoteTimeout       time.Duration `conf:"vote_timeout" zero:"off"`
	PhaseTimeout      time.Duration `conf:"phase_timeout" zero:"off"`
	WarnVoteAfter     time.Duration `conf:"warn_vote_after" zero:"off"`
	MaxConnections    int           `conf:"max_connections"`
	MaxQueue          Bytes         `conf:"max_queue"`
	WriteTimeout      time.Duration `conf:"write_timeout" zero:"off"`
	PCCLRevisionRule  bool          `conf:"pccl_revision_rule"`
	LostState         string        `conf:"lost_state" oneof:"wait anew"`
	State             string        `conf:"state"`
	Peers             string        `conf:"peers"`
	Self              string        `conf:"self"`
	FormerPeers       string        `conf:"former_peers"`
	LostMembers       string        `conf:"lost_members" oneof:"wait drop"`
	Etcd              string        `conf:"etcd"`
	EtcdPassword      string        `conf:"etcd_password"`
	EtcdCA            string        `conf:"etcd_ca"`
	EtcdCert          string        `conf:"etcd_cert"`
	EtcdKey           string        `conf:"etcd_key"`
	Enroll            string        `conf:"enroll"`
}

// Peer configures one trainer's end.
type Peer struct {
	Master            string        `conf:"master" is:"masters"`
	Group             uint32        `conf:"group" min:"0" max:"4294967295"`
	PoolSize          int           `conf:"pool_size" zero:"default"`
	Flows             int           `conf:"flows" zero:"default"`
	Addresses         string        `conf:"addresses" is:"addresses"`
	PortBase          int           `conf:"port_base"`
	Ports             string        `conf:"ports" is:"ports"`
	AnnouncePorts     string        `conf:"announce_ports" option:"Announce.Ports" is:"ports"`
	AnnounceHost      string        `conf:"announce_host" option:"Announce.Host" is:"host"`
	HeartbeatInterval time.Duration `conf:"heartbeat_interval"`
	HeartbeatTimeout  time.Duration `conf:"heartbeat_timeout"`
	ReattachTimeout   time.Duration `conf:"reattach_timeout" zero:"off"`
	DialTimeout       time.Duration `conf:"dial_timeout"`
	HandshakeTimeout  time.Duration `conf:"handshake_timeout"`
	Hasher            string        `conf:"hasher" option:"Hash.Hasher" is:"name"`
	HashWorkers       int           `conf:"hash_workers" option:"Hash.Workers" zero:"default"`
	WarnStuckAfter    time.Duration `conf:"warn_stuck_after" zero:"off"`
}

// Data configures how tensors travel.
type Data struct {
	FrameBytes    Bytes         `conf:"frame_bytes"`
	EagerBytes    Bytes         `conf:"eager_bytes" zero:"off"`
	FinishForward bool          `conf:"finish_forward"`
	Backend       string        `conf:"backend" is:"name"`
	Congestion    string        `conf:"congestion" is:"name"`
	UserTimeout   time.Duration `conf:"user_timeout"`

	Threads         string `conf:"threads" oneof:"goroutine pinned"`
	Affinity        string `conf:"affinity" is:"processors"`
	Preset          string `conf:"preset" option:"Post.Preset" oneof:"latency balanced throughput"`
	AppendFrequency int    `conf:"append_frequency" option:"Post.Frequency" zero:"default"`
	AppendBatch     int    `conf:"append_batch" option:"Post.Batch" zero:"default"`
}

// CUDA configures how tensors of NVIDIA devices are served; it is of use in
// programs that are built with CUDA.
type CUDA struct {
	Staging Bytes  `conf:"staging" option:"Device.Staging" zero:"default"`
	Reduce  string `conf:"reduce" option:"Device.Reduce" oneof:"auto host device"`
}

// Quantize configures what all-reduced tensors look like on the wire.
type Quantize struct {
	Algorithm string `conf:"algorithm" is:"name"`
	Type      string `conf:"type" oneof:"uint8 int8 uint16 int16 uint32 int32 uint4 int4"`
}

// Topology configures bandwidth tests (peers) and the ring solver (master).
type Topology struct {
	Duration    time.Duration `conf:"duration" of:"peer" option:"Probe.Duration"`
	Connections int           `conf:"connections" of:"peer" option:"Probe.Connections"`
	Solver      string        `conf:"solver" option:"Solver" is:"name"`
	Budget      time.Duration `conf:"budget" option:"SolverBudget"`
	Objective   string        `conf:"objective" option:"Objective" oneof:"bottleneck sum"`
	Background  time.Duration `conf:"background" option:"SearchBudget" zero:"off"`
	Noise       int           `conf:"noise" option:"Noise" min:"1" max:"1000"`
	MaxAge      time.Duration `conf:"max_age" option:"MaxLinkAge" zero:"off"`
	Adopt       string        `conf:"adopt" option:"WaitForRounds" oneof:"collective round"`
	Patience    time.Duration `conf:"patience" option:"Patience"`
}

// Security configures whom masters and peers believe, and with what they prove who
// they are.
type Security struct {
	Mode       string      `conf:"mode" option:"Security.Mode" oneof:"auto off allow require"`
	Credential string      `conf:"credential" option:"Security.File"`
	Join       secure.Join `conf:"join" option:"Security.Join"`
	Revoked    string      `conf:"revoked" option:"Security.Revoked"`
	Identities string      `conf:"identities" option:"Security.Identities" is:"identities"`

	PlainNetworks string `conf:"plain_networks" option:"Security.PlainNetworks" is:"networks"`
	PCCLListen    string `conf:"pccl_listen" option:"Security.PCCLListen"`
	PCCLNetworks  string `conf:"pccl_networks" option:"Security.PCCLNetworks" is:"networks"`
	PCCLGroups    string `conf:"pccl_groups" option:"Security.PCCLGroups" is:"groups"`
}

// Log configures the log lines of the program.
type Log struct {
	Format string `conf:"format" oneof:"auto text json"`
	Level  string `conf:"level" oneof:"debug info warn error"`

	Subsystems string `conf:"subsystems" is:"levels"`
}

// Levels returns what trace.Levels.Set takes.
func (l *Log) Levels() string {
	if l.Subsystems == noLevels {
		return l.Level
	}
	return l.Level + "," + l.Subsystems
}

// Dump configures state dumps of programs that use the C library.
type Dump struct {
	Signal int `conf:"signal" min:"0" max:"64"`
}

// Plugin is one program that gopccl runs beside itself.
type Plugin struct {
	Name         string        `conf:"name" is:"name"`
	Kind         string        `conf:"kind" oneof:"solver quantizer backend"`
	Command      string        `conf:"command"`
	Args         []string      `conf:"args"`
	SHA256       string        `conf:"sha256" is:"sha256"`
	MTLS         bool          `conf:"mtls"`
	StartTimeout time.Duration `conf:"start_timeout" min:"100ms" max:"10m"`
	TimeLimit    time.Duration `conf:"time_limit" min:"10ms" max:"168h" zero:"off"`
	MemoryLimit  Bytes         `conf:"memory_limit" min:"16MiB" max:"1TiB" zero:"off"`
}
