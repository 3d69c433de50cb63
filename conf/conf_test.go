package conf

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopccl/gopccl/core/secure"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/bounds"
	"github.com/gopccl/gopccl/internal/master"
	"github.com/gopccl/gopccl/internal/peer"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gopccl.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// The control port of PCCL is the default, and every default is legal.
func TestDefaults(t *testing.T) {
	c, err := Load(nil, nil, nil)
	require.NoError(t, err)
	require.Equal(t, "0.0.0.0:48148", c.Master.Listen) // S1-05
	require.Equal(t, 48149, c.Peer.PortBase)
	require.Equal(t, Bytes(1<<20), c.Data.FrameBytes)
	for _, s := range c.Explain() {
		require.Equal(t, "default", s.Origin, s.Key)
	}
}

// default.yaml documents every key of the struct, in its order, with its
// environment variable, its range and its choices, and knows no other key.
func TestDefaultYAMLDocumentsEveryKey(t *testing.T) {
	docs, order := map[string]string{}, []string{}
	section, comment := "", ""
	for _, line := range strings.Split(string(DefaultYAML), "\n") {
		text := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(text, "#"):
			comment += " " + strings.TrimSpace(strings.TrimPrefix(text, "#"))
		case text == "":
			comment = ""
		case strings.HasPrefix(line, "  ") && strings.HasSuffix(text, ":"): // a section in a section
			outer, _, _ := strings.Cut(section, ".")
			section = outer + "." + strings.TrimSuffix(text, ":")
			require.NotEmpty(t, comment, "section %s has no comment", section)
			comment = ""
		case strings.HasPrefix(line, " "):
			key, _, _ := strings.Cut(text, ":")
			docs[section+"."+key] = comment
			order = append(order, section+"."+key)
			comment = ""
		default:
			section, _, _ = strings.Cut(text, ":")
			require.NotEmpty(t, comment, "section %s has no comment", section)
			comment = ""
		}
	}
	require.Equal(t, Keys(), order)
	c, err := Load(nil, nil, nil)
	require.NoError(t, err)
	for _, of := range []string{"master", "peer"} {
		for _, b := range fresh(c, of).Bounds() {
			f := keyOf(t, of, b.Field)
			require.Contains(t, docs[f.key], f.amount(c, b.Amount(b.Min)), f.key)
			require.Contains(t, docs[f.key], f.amount(c, b.Amount(b.Max)), f.key)
		}
	}
	for _, f := range fields {
		doc := docs[f.key]
		require.Contains(t, doc, "["+EnvName(f.key)+"]", f.key)
		for _, tag := range []string{"min", "max"} {
			require.Contains(t, doc, f.tag.Get(tag), "%s: %s", f.key, tag)
		}
		if f.tag.Get("zero") == "off" {
			require.Contains(t, doc, "; 0 ", "%s: meaning of 0", f.key)
		}
		for _, choice := range strings.Fields(f.tag.Get("oneof")) {
			require.Contains(t, doc, choice, f.key)
		}
		require.NotEmpty(t, f.tag.Get("conf"))
	}
}

func TestPrecedence(t *testing.T) {
	first := write(t, "master:\n  listen: 10.0.0.1:1\n  round_timeout: 11s\npeer:\n  pool_size: 2\n  group: 5\n")
	second := write(t, "master:\n  round_timeout: 12s\npeer:\n  pool_size: 3\n")
	env := []string{"GOPCCL_PEER_POOL_SIZE=4", "GOPCCL_LOG_LEVEL=debug", "HOME=/x", "GOPCCL_CONFIG=ignored"}
	c, err := Load([]string{first, second}, env, []Flag{{"--log-level", "log.level", "warn"}})
	require.NoError(t, err)
	require.Equal(t, "10.0.0.1:1", c.Master.Listen)
	require.Equal(t, 12*time.Second, c.Master.RoundTimeout)
	require.Equal(t, 4, c.Peer.PoolSize)
	require.Equal(t, uint32(5), c.Peer.Group)
	require.Equal(t, "warn", c.Log.Level)

	origins := map[string]string{}
	for _, s := range c.Explain() {
		origins[s.Key] = s.Origin + " = " + s.Value
	}
	require.Equal(t, "file "+first+" = 10.0.0.1:1", origins["master.listen"])
	require.Equal(t, "file "+second+" = 12s", origins["master.round_timeout"])
	require.Equal(t, "environment GOPCCL_PEER_POOL_SIZE = 4", origins["peer.pool_size"])
	require.Equal(t, "flag --log-level = warn", origins["log.level"])
	require.Equal(t, "default = 1MiB", origins["data.frame_bytes"])
	require.Len(t, origins, len(Keys()))
}

// Every key can be set in each of the three ways.
func TestEveryKeyFromEverySource(t *testing.T) {
	defaults, err := Load(nil, nil, nil)
	require.NoError(t, err)
	for _, s := range defaults.Explain() {
		section, key, _ := strings.Cut(s.Key, ".")
		path := write(t, section+":\n  "+key+": "+s.Value+"\n")
		for origin, load := range map[string]func() (*Config, error){
			"file " + path:                  func() (*Config, error) { return Load([]string{path}, nil, nil) },
			"environment " + EnvName(s.Key): func() (*Config, error) { return Load(nil, []string{EnvName(s.Key) + "=" + s.Value}, nil) },
			"flag --set " + s.Key:           func() (*Config, error) { return Load(nil, nil, []Flag{{"--set " + s.Key, s.Key, s.Value}}) },
		} {
			c, err := load()
			require.NoError(t, err, "%s: %s", origin, s.Key)
			require.Contains(t, c.Explain(), Setting{s.Key, s.Value, origin})
		}
	}
}

func TestMistakesAreNamed(t *testing.T) {
	for name, tc := range map[string]struct {
		file string
		env  []string
		flag []Flag
		want []string
	}{
		"unknown key":         {file: "master:\n  lissten: x\n", want: []string{`"master.lissten"`, `"master.listen"`, "gopccl.yaml"}},
		"unknown section":     {file: "mastre:\n  listen: x\n", want: []string{`"mastre.listen"`, `nearest: "master.listen"`}},
		"unknown variable":    {env: []string{"GOPCCL_PEER_POOLSIZE=1"}, want: []string{"GOPCCL_PEER_POOLSIZE", `"peer.pool_size"`}},
		"unknown flag key":    {flag: []Flag{{"--set", "log.levle", "x"}}, want: []string{"flag --set", `"log.level"`}},
		"section as value":    {file: "master: 5\n", want: []string{"master is a section"}},
		"value as section":    {file: "master:\n  listen:\n    host: x\n", want: []string{`"master.listen.host"`}},
		"empty section there": {file: "mister: {}\n", want: []string{`"mister"`}},
		"no value":            {file: "master:\n  listen:\n", want: []string{"master.listen has no value"}},
		"list":                {file: "peer:\n  group: [1, 2]\n", want: []string{"peer.group wants one value"}},
		"no yaml":             {file: "master: [\n", want: []string{"gopccl.yaml"}},
		"range":               {file: "peer:\n  pool_size: 1025\n", want: []string{"gopccl.yaml: peer.pool_size 1025 is not from 0 to 1024"}},
		"nothing":             {file: "peer:\n  port_base: 0\n", want: []string{"gopccl.yaml: peer.port_base 0 is nothing"}},
		"negative":            {env: []string{"GOPCCL_PEER_GROUP=-1"}, want: []string{"GOPCCL_PEER_GROUP", "from 0 to 4294967295"}},
		"port":                {env: []string{"GOPCCL_PEER_PORT_BASE=65534"}, want: []string{"from 1 to 65533"}},
		"number":              {env: []string{"GOPCCL_PEER_GROUP=ten"}, want: []string{"not a whole number"}},
		"duration":            {env: []string{"GOPCCL_MASTER_ROUND_TIMEOUT=30"}, want: []string{"not a duration"}},
		"duration range":      {env: []string{"GOPCCL_MASTER_ROUND_TIMEOUT=48h"}, want: []string{"GOPCCL_MASTER_ROUND_TIMEOUT: master.round_timeout 48h is not from 1ms to 24h"}},
		"size":                {env: []string{"GOPCCL_DATA_FRAME_BYTES=big"}, want: []string{"not a size"}},
		"size range":          {env: []string{"GOPCCL_DATA_FRAME_BYTES=1GB"}, want: []string{"from 64 to 64MiB"}},
		"bool":                {env: []string{"GOPCCL_MASTER_PCCL_REVISION_RULE=yep"}, want: []string{"neither true nor false"}},
		"choice":              {env: []string{"GOPCCL_LOG_FORMAT=jsno"}, want: []string{`nearest: "json"`, "auto, text, json"}},
		"address":             {env: []string{"GOPCCL_MASTER_LISTEN=localhost"}, want: []string{"not a HOST:PORT"}},
		"address port":        {env: []string{"GOPCCL_PEER_MASTER=h:0"}, want: []string{"no port to connect to"}},
		"name":                {env: []string{"GOPCCL_DATA_BACKEND=../x"}, want: []string{"not a name"}},
		"half a heartbeat":    {env: []string{"GOPCCL_MASTER_HEARTBEAT_INTERVAL=0"}, want: []string{"both off or both on"}},
		"hasty heartbeat":     {env: []string{"GOPCCL_MASTER_HEARTBEAT_TIMEOUT=3s"}, want: []string{"GOPCCL_MASTER_HEARTBEAT_TIMEOUT: master.heartbeat_timeout 3s is below two times master.heartbeat_interval, 2s"}},
		"late warning":        {env: []string{"GOPCCL_MASTER_VOTE_TIMEOUT=10s"}, want: []string{"master.warn_vote_after 30s exceeds master.vote_timeout, 10s"}},
		"bad affinity":        {env: []string{"GOPCCL_DATA_THREADS=pinned", "GOPCCL_DATA_AFFINITY=3-1"}, want: []string{"GOPCCL_DATA_AFFINITY", "neither a list of processors"}},
		"loose affinity":      {env: []string{"GOPCCL_DATA_AFFINITY=0"}, want: []string{"GOPCCL_DATA_AFFINITY", "and data.threads is goroutine"}},
		"no addresses":        {env: []string{"GOPCCL_PEER_ADDRESSES=eth0,,eth1"}, want: []string{"GOPCCL_PEER_ADDRESSES", "neither a list of at most 16"}},
		"many addresses":      {env: []string{"GOPCCL_PEER_ADDRESSES=" + strings.Repeat("a,", 16) + "a"}, want: []string{"GOPCCL_PEER_ADDRESSES", "at most 16"}},
		"two ports":           {env: []string{"GOPCCL_PEER_PORTS=1,2"}, want: []string{"GOPCCL_PEER_PORTS", "three different ports"}},
		"fewer announced":     {env: []string{"GOPCCL_PEER_PORTS=1,2,3", "GOPCCL_PEER_ANNOUNCE_PORTS=1"}, want: []string{"GOPCCL_PEER_ANNOUNCE_PORTS", "not as many"}},
		"equal ports":         {env: []string{"GOPCCL_PEER_PORTS=1,2,1"}, want: []string{"GOPCCL_PEER_PORTS", "three different ports"}},
		"port 0":              {env: []string{"GOPCCL_PEER_ANNOUNCE_PORTS=0,2,1"}, want: []string{"GOPCCL_PEER_ANNOUNCE_PORTS", "three different ports"}},
		"ports to nowhere":    {env: []string{"GOPCCL_PEER_ANNOUNCE_PORTS=1,2,3"}, want: []string{"GOPCCL_PEER_ANNOUNCE_PORTS", "peer.ports"}},
		"host name":           {env: []string{"GOPCCL_PEER_ANNOUNCE_HOST=example.org"}, want: []string{"GOPCCL_PEER_ANNOUNCE_HOST", "neither an IP address"}},
		"everywhere":          {env: []string{"GOPCCL_PEER_ANNOUNCE_HOST=0.0.0.0"}, want: []string{"GOPCCL_PEER_ANNOUNCE_HOST", "neither an IP address"}},
		"unknown subsystem":   {env: []string{"GOPCCL_LOG_SUBSYSTEMS=date=debug"}, want: []string{"GOPCCL_LOG_SUBSYSTEMS", "unknown subsystem"}},
		"signed minmax":       {env: []string{"GOPCCL_QUANTIZE_ALGORITHM=minmax", "GOPCCL_QUANTIZE_TYPE=int8"}, want: []string{"GOPCCL_QUANTIZE_TYPE", "int8 does not go with minmax, which writes uint8, uint16, uint32"}},
		"bytes of blocks":     {env: []string{"GOPCCL_QUANTIZE_ALGORITHM=blocks"}, want: []string{"quantize.type uint8 does not go with blocks, which writes int4"}},
		"half a byte":         {env: []string{"GOPCCL_QUANTIZE_ALGORITHM=zeropoint", "GOPCCL_QUANTIZE_TYPE=int4"}, want: []string{"GOPCCL_QUANTIZE_TYPE", "int4 does not go with zeropoint"}},
		"two at once":         {env: []string{"GOPCCL_LOG_LEVEL=loud", "GOPCCL_PEER_GROUP=x"}, want: []string{"log.level", "peer.group"}},
	} {
		t.Run(name, func(t *testing.T) {
			var files []string
			if tc.file != "" {
				files = []string{write(t, tc.file)}
			}
			_, err := Load(files, tc.env, tc.flag)
			require.ErrorIs(t, err, errs.InvalidConfig)
			for _, w := range tc.want {
				require.ErrorContains(t, err, w)
			}
		})
	}
	_, err := Load([]string{filepath.Join(t.TempDir(), "none.yaml")}, nil, nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorIs(t, err, errs.InvalidConfig)
}

func TestAddressesAndPorts(t *testing.T) {
	c, err := Load(nil, nil, nil)
	require.NoError(t, err)
	o := c.PeerOptions(nil)
	require.Nil(t, o.Addresses)
	require.Nil(t, o.Ports)
	require.Nil(t, o.Announce.Ports)
	require.Empty(t, o.Announce.Host)
	c, err = Load(nil, []string{"GOPCCL_PEER_ADDRESSES=10.1.0.7, eth2", "GOPCCL_PEER_PORTS=1,2,3", "GOPCCL_PEER_ANNOUNCE_PORTS=50001,50002,50003", "GOPCCL_PEER_ANNOUNCE_HOST=203.0.113.9"}, nil)
	require.NoError(t, err)
	o = c.PeerOptions(nil)
	require.Equal(t, []string{"10.1.0.7", "eth2"}, o.Addresses)
	require.Equal(t, []int{1, 2, 3}, o.Ports)
	require.Equal(t, []int{50001, 50002, 50003}, o.Announce.Ports)
	require.Equal(t, "203.0.113.9", o.Announce.Host)
}

func TestIdentities(t *testing.T) {
	const key = "GOPCCL_SECURITY_IDENTITIES="
	c, err := Load(nil, []string{"GOPCCL_CREDENTIAL=a.pem", key + "spiffe://example.org/train/*=peer:0+3, dns:*.run.example.org=observer,spiffe://example.org/head=master"}, nil)
	require.NoError(t, err)
	want := []secure.Mapping{
		{URI: "spiffe://example.org/train/*", Role: secure.Peer, Groups: []uint32{0, 3}},
		{URI: "dns:*.run.example.org", Role: secure.Observer},
		{URI: "spiffe://example.org/head", Role: secure.Master},
	}
	require.Equal(t, want, c.PeerOptions(nil).Security.Identities)
	require.Equal(t, want, c.MasterOptions(nil).Security.Identities)
	for _, text := range []string{"spiffe://example.org/a", "spiffe://example.org/a=king", "spiffe://example.org/a=peer:", "spiffe://example.org/a=peer:x", "a=peer", "spiffe://example.org/a=issuer"} {
		_, err = Load(nil, []string{"GOPCCL_CREDENTIAL=a.pem", key + text}, nil)
		require.Error(t, err, text)
	}
}

func TestPlainNetworks(t *testing.T) {
	c, err := Load(nil, []string{"GOPCCL_CREDENTIAL=a.pem", "GOPCCL_SECURITY_PLAIN_NETWORKS=10.0.0.0/8, fd00::/8"}, nil)
	require.NoError(t, err)
	want := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	require.Equal(t, want, c.PeerOptions(nil).Security.PlainNetworks)
	require.Equal(t, want, c.MasterOptions(nil).Security.PlainNetworks)
	for text, says := range map[string]string{"10.0.0.1/8": "a list of networks", "10.0.0.1": "a list of networks", "0.0.0.0/0": "not a network such as"} {
		_, err = Load(nil, []string{"GOPCCL_CREDENTIAL=a.pem", "GOPCCL_SECURITY_PLAIN_NETWORKS=" + text}, nil)
		require.ErrorContains(t, err, says)
	}
	_, err = Load(nil, []string{"GOPCCL_SECURITY_PLAIN_NETWORKS=10.0.0.0/8"}, nil)
	require.ErrorContains(t, err, "security.plain_networks are of no use without a credential")
}

func TestHeartbeatsCanBeSwitchedOff(t *testing.T) {
	c, err := Load(nil, []string{"GOPCCL_MASTER_HEARTBEAT_INTERVAL=0", "GOPCCL_MASTER_HEARTBEAT_TIMEOUT=0s"}, nil)
	require.NoError(t, err)
	require.Zero(t, c.Master.HeartbeatTimeout)
	require.Negative(t, c.MasterOptions(nil).HeartbeatTimeout, "the engine takes 0 for the default")
}

func TestBytesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Bytes(rapid.Int64Range(0, 1<<50).Draw(t, "bytes"))
		if rapid.Bool().Draw(t, "round") {
			b = b >> 10 << 10
		}
		got, err := ParseBytes(b.String())
		require.NoError(t, err)
		require.Equal(t, b, got)
	})
	for text, want := range map[string]Bytes{"1.5GB": 1.5e9, "4 KiB": 4096, "7B": 7, "3kB": 3000, "0": 0} {
		got, err := ParseBytes(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"", "-1", "NaN", "Inf", "KiB", "9999999999GiB"} {
		_, err := ParseBytes(text)
		require.Error(t, err, text)
	}
}

// Whatever the sources hold, Load returns a configuration or a typed error.
func FuzzLoad(f *testing.F) {
	f.Add(string(DefaultYAML), "GOPCCL_PEER_GROUP=3")
	f.Add("a: &a [*a]", "GOPCCL__=")
	f.Add("master: {listen: {}}", "GOPCCL_A_B.C=1")
	path := filepath.Join(f.TempDir(), "fuzz.yaml")
	f.Fuzz(func(t *testing.T, file, env string) {
		require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
		c, err := Load([]string{path}, []string{env}, nil)
		if err != nil {
			require.ErrorIs(t, err, errs.InvalidConfig)
			return
		}
		require.Len(t, c.Explain(), len(Keys()))
	})
}

// Without any setting the engine gets what it would take by itself, spelled out.
func TestOptionsCarryTheSettings(t *testing.T) {
	c, err := Load(nil, []string{
		"GOPCCL_MASTER_LISTEN=127.0.0.1:7", "GOPCCL_TOPOLOGY_SOLVER=none", "GOPCCL_TOPOLOGY_BUDGET=2s",
		"GOPCCL_PEER_MASTER=10.0.0.1:9", "GOPCCL_PEER_GROUP=3", "GOPCCL_DATA_FRAME_BYTES=1MiB",
		"GOPCCL_QUANTIZE_ALGORITHM=zeropoint", "GOPCCL_QUANTIZE_TYPE=int8", "GOPCCL_MASTER_VOTE_TIMEOUT=1h",
		"GOPCCL_BACKENDS_CUDA_STAGING=3GiB", "GOPCCL_BACKENDS_CUDA_REDUCE=host", "GOPCCL_DATA_FINISH_FORWARD=true",
	}, nil)
	require.NoError(t, err)
	m := c.MasterOptions(nil)
	require.Equal(t, "127.0.0.1:7", m.Listen)
	require.Equal(t, "none", m.Solver)
	require.Equal(t, 2*time.Second, m.SolverBudget)
	require.Equal(t, time.Hour, m.VoteTimeout)
	require.Equal(t, 64<<20, m.MaxQueue)
	p := c.PeerOptions(nil)
	require.Equal(t, device.Settings{Staging: 3 << 30, Reduce: "host"}, p.Device)
	require.Equal(t, "10.0.0.1:9", p.Master)
	require.Equal(t, uint32(3), p.Group)
	require.Equal(t, 1<<20, p.FrameBytes)
	require.Equal(t, 512<<10, p.EagerBytes)
	require.True(t, p.FinishForward)
	require.Equal(t, 8*time.Second, p.UserTimeout)
	q := c.Quantization()
	require.Equal(t, "zeropoint", q.Algorithm)
	require.Equal(t, dtype.Int8, q.Type)

	c, err = Load(nil, []string{"GOPCCL_QUANTIZE_ALGORITHM=blocks", "GOPCCL_QUANTIZE_TYPE=int4"}, nil)
	require.NoError(t, err)
	q = c.Quantization()
	require.Equal(t, "blocks", q.Algorithm)
	require.Equal(t, dtype.Int4, q.Type)
}

// A list of plugins is read with its defaults, and the strongest file has it.
func TestPlugins(t *testing.T) {
	sum := strings.Repeat("a5", 32)
	weak := write(t, "plugins:\n  - {name: gone, kind: solver, command: x}\n")
	path := write(t, `
plugins:
  - name: moonshot
    kind: solver
    command: ./moonshot
    args: [--threads, 4]
    sha256: `+sum+`
    mtls: false
    start_timeout: 3s
    time_limit: 1m
    memory_limit: 2GiB
  - {name: absmax, kind: quantizer, command: absmax}
topology:
  solver: moonshot
quantize:
  algorithm: absmax
`)
	c, err := Load([]string{weak, path}, nil, nil)
	require.NoError(t, err)
	require.Equal(t, "moonshot", c.Topology.Solver)
	require.Equal(t, []Plugin{
		{"moonshot", "solver", "./moonshot", []string{"--threads", "4"}, sum, false, 3 * time.Second, time.Minute, 2 << 30},
		{"absmax", "quantizer", "absmax", nil, "", true, 10 * time.Second, 0, 0},
	}, c.Plugins)
	explained := map[string]Setting{}
	for _, s := range c.Explain() {
		explained[s.Key] = s
	}
	require.Equal(t, Setting{"plugins.moonshot.memory_limit", "2GiB", "file " + path}, explained["plugins.moonshot.memory_limit"])

	require.Equal(t, "absmax", c.Quantize.Algorithm)

	_, err = Load([]string{path, write(t, "plugins: []\n")}, nil, nil)
	require.ErrorContains(t, err, `"absmax" is not one of none, minmax, zeropoint, blocks`)
	c, err = Load([]string{path, write(t, "plugins: []\nquantize:\n  algorithm: none\n")}, nil, nil)
	require.NoError(t, err)
	require.Empty(t, c.Plugins)
}

func TestBadPlugins(t *testing.T) {
	for text, want := range map[string]string{
		"plugins: 3": "wants a list",
		"plugins: {name: x, kind: solver, command: y}": `there is no setting "plugins.`,
		"plugins: [3]":                                                                                  "number 1: wants keys",
		"plugins: [{}]":                                                                                 "number 1: name is missing",
		"plugins: [{name: x}]":                                                                          `"x": kind is missing`,
		"plugins: [{name: x, kind: solver}]":                                                            `"x": command is missing`,
		"plugins: [{name: x, kind: router, command: y}]":                                                `"router" is not one of`,
		"plugins: [{name: 'a b', kind: solver, command: y}]":                                            "is not a name",
		"plugins: [{name: x, kind: solver, command: y, comand: z}]":                                     `nearest: "command"`,
		"plugins: [{name: x, kind: solver, command: y, args: z}]":                                       "args wants a list",
		"plugins: [{name: x, kind: solver, command: y, args: [[z]]}]":                                   "args wants words",
		"plugins: [{name: x, kind: solver, command: [y]}]":                                              "command wants one value",
		"plugins: [{name: x, kind: solver, command: y, sha256: 12}]":                                    "64 hexadecimal digits",
		"plugins: [{name: x, kind: solver, command: y, memory_limit: 1B}]":                              "out of range",
		"plugins: [{name: x, kind: solver, command: y, time_limit: soon}]":                              "is not a duration",
		"plugins:\n  - {name: x, kind: solver, command: y}\n  - {name: x, kind: backend, command: z}\n": "taken by another",
	} {
		_, err := Load([]string{write(t, text+"\n")}, nil, nil)
		require.ErrorIs(t, err, errs.InvalidConfig, text)
		require.ErrorContains(t, err, want, text)
	}
	_, err := Load(nil, []string{"GOPCCL_PLUGINS_X=1"}, nil)
	require.ErrorIs(t, err, errs.InvalidConfig)
	_, err = Load(nil, nil, []Flag{{"--set plugins", "plugins", "x"}})
	require.ErrorContains(t, err, "files only")
}

// default.yaml documents every key of a plugin.
func TestDefaultYAMLDocumentsPlugins(t *testing.T) {
	_, text, ok := strings.Cut(string(DefaultYAML), "# Programs that gopccl runs")
	require.True(t, ok)
	for _, f := range pluginFields {
		_, doc, ok := strings.Cut(text, "#   "+f.key+" ")
		require.True(t, ok, f.key)
		doc = strings.Join(strings.Fields(strings.ReplaceAll(doc, "#", "")), " ")
		for _, tag := range []string{"min", "max"} {
			require.Contains(t, doc, f.tag.Get(tag), f.key)
		}
		for _, choice := range strings.Fields(f.tag.Get("oneof")) {
			require.Contains(t, doc, choice, f.key)
		}
	}
}

// keyOf returns the key that becomes a field of options.
func keyOf(t *testing.T, of string, name bounds.Field) field {
	i := slices.IndexFunc(fields, func(f field) bool { return f.of == of && f.option == name })
	require.GreaterOrEqual(t, i, 0, "no key becomes %s of %s options", name, of)
	return fields[i]
}

type options interface {
	Check() error
	Bounds() []bounds.Bound
}

// fresh returns the options that c becomes, as the engine sees them.
func fresh(c *Config, of string) options {
	var o options = &peer.Options{}
	from := reflect.ValueOf(c.PeerOptions(nil))
	if of == "master" {
		o, from = &master.Options{}, reflect.ValueOf(c.MasterOptions(nil))
	}
	for _, f := range reflect.VisibleFields(from.Type()) {
		if !f.Anonymous && f.Type.Kind() != reflect.Func {
			to := reflect.ValueOf(o).Elem().FieldByName(f.Name)
			to.Set(from.FieldByIndex(f.Index).Convert(to.Type()))
		}
	}
	return o
}

// What the configuration takes the options take, and the other way round, at both
// sides of every bound; the one names keys, the other fields.
func TestOneLawOfBounds(t *testing.T) {
	defaults, err := Load(nil, nil, nil)
	require.NoError(t, err)
	// away switches off, or moves out of the way, what is bound to a value.
	away := func(of string, f bounds.Field, v int64) (also map[bounds.Field]int64) {
		switch {
		case f == "HeartbeatInterval":
			return map[bounds.Field]int64{"HeartbeatTimeout": min(max(2*v, int64(2*time.Millisecond)), int64(24*time.Hour))}
		case f == "HeartbeatTimeout":
			return map[bounds.Field]int64{"HeartbeatInterval": min(max(v/2, int64(time.Millisecond)), int64(12*time.Hour))}
		case of == "master" && (f == "VoteTimeout" || f == "PhaseTimeout"):
			return map[bounds.Field]int64{"WarnVoteAfter": int64(time.Millisecond)}
		}
		return nil
	}
	for _, of := range []string{"master", "peer"} {
		for i, b := range fresh(defaults, of).Bounds() {
			key := keyOf(t, of, b.Field)
			for _, v := range []int64{b.Min - 1, b.Min, b.Max, b.Max + 1} {
				if v <= 0 {
					continue // 0 is the default here and none there; both are said apart
				}
				o := fresh(defaults, of)
				o.Bounds()[i].Set(v)
				env := []string{EnvName(key.key) + "=" + key.amount(defaults, b.Amount(v))}
				for other, w := range away(of, b.Field, v) {
					for _, ob := range o.Bounds() {
						if ob.Field == other {
							ob.Set(w)
							env = append(env, EnvName(keyOf(t, of, other).key)+"="+key.amount(defaults, ob.Amount(w)))
						}
					}
				}
				_, inConf := Load(nil, env, nil)
				inOptions := o.Check()
				require.Equal(t, inOptions == nil, inConf == nil, "%s %d: options %v, configuration %v", b.Field, v, inOptions, inConf)
				require.Equal(t, v >= b.Min && v <= b.Max, inOptions == nil, "%s %d: %v", b.Field, v, inOptions)
				if inOptions != nil {
					require.ErrorContains(t, inOptions, string(b.Field)+" ")
					require.ErrorContains(t, inConf, EnvName(key.key)+": "+key.key+" ")
				}
			}
		}
	}
}

// The rules between fields are the options', too, with the words of the keys.
func TestOneLawOfCombinations(t *testing.T) {
	for _, tc := range []struct {
		env  []string
		ok   bool
		want string
	}{
		{[]string{"GOPCCL_MASTER_HEARTBEAT_INTERVAL=4s", "GOPCCL_MASTER_HEARTBEAT_TIMEOUT=8s"}, true, ""},
		{[]string{"GOPCCL_PEER_HEARTBEAT_INTERVAL=4s", "GOPCCL_PEER_HEARTBEAT_TIMEOUT=9s"}, true, ""},
		{[]string{"GOPCCL_PEER_HEARTBEAT_INTERVAL=4s", "GOPCCL_PEER_HEARTBEAT_TIMEOUT=7999ms"}, false, "peer.heartbeat_timeout 7.999s is below two times peer.heartbeat_interval, 4s"},
		{[]string{"GOPCCL_MASTER_PHASE_TIMEOUT=30s"}, true, ""},
		{[]string{"GOPCCL_MASTER_PHASE_TIMEOUT=29s"}, false, "master.warn_vote_after 30s exceeds master.phase_timeout, 29s"},
		{[]string{"GOPCCL_TOPOLOGY_NOISE=1000"}, true, ""},
		{[]string{"GOPCCL_TOPOLOGY_NOISE=1001"}, false, "topology.noise"},
		{[]string{"GOPCCL_PEER_PORT_BASE=-1"}, true, ""},
	} {
		_, err := Load(nil, tc.env, nil)
		require.Equal(t, tc.ok, err == nil, "%v: %v", tc.env, err)
		if !tc.ok {
			require.ErrorContains(t, err, tc.want)
		}
	}
}
