package fsm

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

type captured struct {
	c2m bool
	p   wire.Packet
}

// loadStreams returns what each master connection of a capture carried, packet
// by packet in capture order (testdata: the master connections of captured
// sessions of PCCL 1.0.0 processes).
func loadStreams(t *testing.T, trace string) [][]captured {
	raw, err := os.ReadFile("testdata/master_streams.json")
	require.NoError(t, err)
	var all map[string][]struct {
		Client string
		Events [][2]string
	}
	require.NoError(t, json.Unmarshal(raw, &all))
	var out [][]captured
	for _, conn := range all[trace] {
		var l []captured
		protos := map[string]wire.Proto{"c2s": wire.C2M, "s2c": wire.M2C}
		streams := map[string]*bytes.Buffer{"c2s": {}, "s2c": {}}
		for _, e := range conn.Events {
			b, err := hex.DecodeString(e[1])
			require.NoError(t, err)
			s := streams[e[0]]
			s.Write(b)
			for {
				r := bytes.NewReader(s.Bytes())
				p, err := wire.Read(r, protos[e[0]], wire.MaxPacket)
				if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
					break
				}
				require.NoError(t, err)
				s.Next(s.Len() - r.Len())
				l = append(l, captured{c2m: e[0] == "c2s", p: p})
			}
		}
		out = append(out, l)
	}
	require.NotEmpty(t, out)
	return out
}

// TestReplayOfCaptures plays what PCCL's master sent to a PCCL peer and makes
// the calls that this peer made: the machine sends the same packets in the
// same order (control spec, section 15). The scripted third peer of abort3 is
// no library and is left out.
func TestReplayOfCaptures(t *testing.T) {
	for trace, conns := range map[string]int{"basic3": 3, "abort3": 2, "groups4": 4, "kick3": 3} {
		for i, stream := range loadStreams(t, trace)[:conns] {
			t.Run(fmt.Sprintf("%s/%d", trace, i), func(t *testing.T) { replay(t, stream) })
		}
	}
}

func replay(t *testing.T, stream []captured) {
	reg := stream[0].p.(wire.C2MRequestSessionRegistration)
	r := newRig(t, Config{
		Group: reg.PeerGroup, P2PPort: reg.P2PPort,
		SharedStatePort: reg.SharedStatePort, BenchmarkPort: reg.BenchmarkPort,
	})
	var (
		out      []wire.Packet // sent and not yet matched
		answered = map[CallID]bool{}
		probing  CallID
		fetching CallID
		byTag    = map[uint64]OpID{}
		ended    = map[OpID]bool{}
	)
	var step func(ev Event)
	step = func(ev Event) {
		for _, e := range r.step(ev) {
			switch e := e.(type) {
			case Send:
				out = append(out, e.Packet)
			case Done:
				answered[e.Call] = true
			case Establish:
				step(Established{Round: e.Round})
			case AbortData:
				ended[e.Op] = true
				step(DataEnded{Op: e.Op, Err: errors.New("aborted")})
			case Probe:
				probing = e.Call
			case Fetch:
				fetching = e.Call
			}
		}
	}
	for at, c := range stream {
		if !c.c2m {
			require.Empty(t, out, "before packet %d", at)
			step(PacketIn{Packet: c.p})
			continue
		}
		if len(out) == 0 {
			switch p := c.p.(type) {
			case wire.C2MRequestSessionRegistration:
				step(CallConnect{Call: r.newCall()})
			case wire.C2MRequestEstablishP2PConnections:
				if p.AcceptNewPeers {
					step(CallUpdate{Call: r.newCall()})
				}
			case wire.C2MCheckPeersPending:
				step(CallPending{Call: r.newCall()})
			case wire.C2MOptimizeTopology:
				step(CallOptimize{Call: r.newCall()})
			case wire.C2MReportPeerBandwidth:
				step(Measured{Call: probing, To: p.To, Mbps: p.Mbps})
			case wire.C2MOptimizeTopologyWorkComplete:
				step(ProbesDone{Call: probing})
			case wire.C2MSyncSharedState:
				step(CallSync{Call: r.newCall(), Revision: p.Revision, Strategy: p.Strategy, Entries: p.Entries})
			case wire.C2MDistSharedStateComplete:
				step(Fetched{Call: fetching, Revision: 1})
			case wire.C2MCollectiveCommsInitiate:
				r.op++
				byTag[p.Tag] = r.op
				step(CallCollective{Call: r.newCall(), Op: r.op, Tag: p.Tag, Count: p.Count, DType: p.DType, RedOp: p.Op})
				step(CallAwait{Call: r.newCall(), Op: r.op})
			case wire.C2MCollectiveCommsComplete:
				require.False(t, ended[byTag[p.Tag]])
				var err error
				if p.WasAborted {
					err = errors.New("lost")
				}
				step(DataEnded{Op: byTag[p.Tag], Err: err})
			}
		}
		require.NotEmpty(t, out, "packet %d: %#v", at, c.p)
		got := out[0]
		out = out[1:]
		if p, ok := got.(wire.C2MRequestSessionRegistration); ok {
			require.True(t, p.Ext.Native)
			p.Ext = wire.Ext{}
			got = p
		}
		require.Equal(t, wire.AppendBody(nil, c.p), wire.AppendBody(nil, got), "packet %d: %#v", at, got)
	}
	require.Empty(t, out)
	step(CallClose{Call: r.newCall()})
	for c := CallID(1); c <= r.call; c++ {
		require.True(t, answered[c], "call %d", c)
	}
}
