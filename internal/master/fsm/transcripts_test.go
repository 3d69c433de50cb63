package fsm

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

type scenario struct {
	Name    string `json:"scenario"`
	Title   string
	PCCLBug bool `json:"pccl_bug"`
	Events  []struct {
		Op, Client, Local, Packet, Hex string
		Fields                         struct{ UUID string }
	}
}

func scenarios(t *testing.T) []scenario {
	f, err := os.Open("testdata/master_transcripts.json.gz")
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	var doc struct{ Scenarios []scenario }
	require.NoError(t, json.NewDecoder(z).Decode(&doc))
	require.Len(t, doc.Scenarios, 98)
	return doc.Scenarios
}

// pcclRule lists the transcripts of PCCL's revision rule (quirk Q70).
var pcclRule = []string{"revision_rule/3"}

// Every transcript of the compiled PCCL master that shows no bug is replayed:
// the same packets go to each client, byte for byte.
func TestTranscripts(t *testing.T) {
	for _, s := range scenarios(t) {
		if right := corrected[s.Name]; right != nil {
			t.Run(s.Name, right)
			continue
		}
		require.False(t, s.PCCLBug, "%s: no test says what is right here", s.Name)
		t.Run(s.Name, func(t *testing.T) {
			replay(t, s, Config{PCCLRevisionRule: slices.Contains(pcclRule, s.Name)}) // S1-10
		})
		t.Run("pccl rule/"+s.Name, func(t *testing.T) { replay(t, s, Config{PCCLRevisionRule: true}) })
	}
}

func replay(t *testing.T, s scenario, cfg Config) {
	w := newWorld(t, cfg)
	ids := map[string]ClientID{}
	var drawn []wire.UUID
	w.uuid = func() wire.UUID {
		u := drawn[0]
		drawn = drawn[1:]
		return u
	}
	for i, e := range s.Events {
		at := fmt.Sprintf("event %d: %s %s %s", i, e.Op, e.Client, e.Packet)
		c := ids[e.Client]
		switch e.Op {
		case "connect":
			ids[e.Client] = w.connectAt(netip.AddrPortFrom(netip.MustParseAddr(e.Local), 40000+uint16(i)).String())
		case "send":
			if e.Packet == "RequestSessionRegistration" {
				drawn = []wire.UUID{s.answer(t, i)}
			}
			w.send(c, decodeHex(t, wire.C2M, e.Hex))
		case "recv":
			p := w.pop(c)
			require.NotNil(t, p, at+" (closed: "+w.closed[c]+")")
			expect := decodeHex(t, wire.M2C, e.Hex)
			if r, ok := expect.(wire.M2COptimizeTopologyResponse); ok {
				got, ok := p.(wire.M2COptimizeTopologyResponse)
				require.True(t, ok, at)
				require.ElementsMatch(t, r.Requests, got.Requests, at)
				continue
			}
			if r, ok := expect.(wire.M2CP2PConnectionInfo); ok { // quirk Q52
				r.GlobalWorldSize -= uint64(w.waiting())
				e.Hex = hex.EncodeToString(wire.Append(nil, r))
			}
			require.Equal(t, e.Hex, hex.EncodeToString(wire.Append(nil, p)), "%s: got %+v", at, p)
		case "nothing_more":
			w.quiet(c)
		case "close":
			w.leave(c)
		case "closed_by_master":
			require.Contains(t, w.closed, c, at)
		default:
			t.Fatal(e.Op)
		}
	}
}

// answer is the uuid in the answer to the registration that event i sends.
func (s scenario) answer(t *testing.T, i int) (u wire.UUID) {
	for _, e := range s.Events[i+1:] {
		if e.Client == s.Events[i].Client && e.Packet == "SessionRegistrationResponse" && e.Op == "recv" {
			n, err := hex.Decode(u[:], []byte(strings.ReplaceAll(e.Fields.UUID, "-", "")))
			require.NoError(t, err)
			require.Len(t, u, n)
			return u
		}
	}
	return u
}

func decodeHex(t *testing.T, proto wire.Proto, s string) wire.Packet {
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	p, err := wire.Read(bytes.NewReader(b), proto, wire.MaxPacket)
	require.NoError(t, err)
	return p
}
