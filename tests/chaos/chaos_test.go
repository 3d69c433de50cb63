package main

import (
	"flag"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/tests/internal/issued"
	"github.com/gopccl/gopccl/tests/internal/world"
)

var soak = flag.Bool("soak", false, "ten thousand clients instead of some hundreds")

func TestMain(m *testing.M) {
	world.Serve()
	os.Exit(m.Run())
}

// A run of four, with honest peers that join and leave, among hostile and
// mistaken clients of all kinds at every port: no result is wrong, nobody honest
// is dropped or kept out, memory and descriptors stay as they are, and the steps
// go on as beside a run that nobody visits.
func TestStrangersFromTheInternet(t *testing.T) {
	o := options{
		clients: 300, rate: 10, alone: 8 * time.Second, compute: 100 * time.Millisecond,
		// What is counted here is some hundred steps on a machine with other work.
		share: 0.8, kinds: kinds, seed: uint64(time.Now().UnixNano() % 1000),
	}
	if *soak {
		o.clients, o.rate, o.alone, o.share = 10_000, 60, 30*time.Second, 0.95
	}
	// Clients that look like peers of PCCL cannot be tried before the members wait
	// for them (docs/spec/extensions.md, "Preflight"), and those that then keep silent
	// cost a round its bound: the command shows how much, and the share is not theirs.
	require.NoError(t, o.choose("", "never reports,silent newcomer,groups"))
	if issued.On() {
		o.as = guises
	}
	r := passes(t, o)
	if !issued.On() {
		require.Positive(t, r.heard.bytes("", secure.Control), "what is counted")
	}
}

func passes(t *testing.T, o options) *result {
	t.Logf("seed %d", o.seed)
	r, err := run(t.Context(), o)
	t.Logf("\n%s%s\n%s%v", header, r.row("all", ""), r.blame(), &r.heard)
	require.NoError(t, err)
	require.NoError(t, r.conditions())
	return r
}

// A run in TLS, to which the same clients come: strangers, in plaintext and in TLS, members
// of another group and a peer that is revoked. Nobody but the members of the other group,
// at the master and in bandwidth tests, is answered a byte of the protocol.
func TestIntrudersFromTheInternet(t *testing.T) {
	o := options{
		clients: 200, rate: 20, alone: 3 * time.Second, compute: 100 * time.Millisecond,
		share: 0.6, kinds: kinds, seed: uint64(time.Now().UnixNano() % 1000), as: guises,
	}
	if *soak {
		o.clients, o.rate, o.alone, o.share = 10_000, 60, 30*time.Second, 0.95
	}
	r := passes(t, o)
	require.Positive(t, r.heard.bytes(guiseGroup, secure.Control), "what is counted")
}

// Records of a handshake and alerts are TLS's own, and everything else is not.
func TestRecords(t *testing.T) {
	alert, hello := []byte{21, 3, 3, 0, 2, 2, 40}, append([]byte{22, 3, 1, 0, 9}, make([]byte, 9)...)
	whole := slices.Concat(hello, []byte{20, 3, 3, 0, 1, 1}, alert)
	for name, tc := range map[string]struct {
		said []byte
		want int64
	}{
		"nothing":          {nil, 0},
		"a handshake":      {whole, 0},
		"data":             {slices.Concat(whole, []byte{23, 3, 3, 0, 1, 7}), 6},
		"our protocol":     {[]byte{0, 0, 0, 0, 0, 0, 0, 2}, 8},
		"another version":  {[]byte{21, 4, 9}, 3},
		"a cut record":     {alert[:6], 0},
		"data in a record": {slices.Concat(alert, []byte("HTTP/1.1")), 8},
	} {
		var atOnce, single records
		require.Equal(t, tc.want, atOnce.other(tc.said), name)
		n := int64(0)
		for i := range tc.said {
			n += single.other(tc.said[i : i+1])
		}
		require.Equal(t, tc.want, n, "%s, byte by byte", name)
	}
}

// The conditions are none that every run meets.
func TestConditionsHaveTeeth(t *testing.T) {
	good := func() *result {
		r := &result{options: options{share: 0.95}}
		for i := range r.phases {
			r.phases[i] = phase{steps: 96, in: 3}
			r.twin[i] = phase{steps: 100}
		}
		r.as = guises
		r.heard.add(guiseGroup, secure.Control, 100)
		r.usage = []usage{{name: "master", start: 10 << 20, peak: 30 << 20, files: 20, open: 21}}
		return r
	}
	require.NoError(t, good().conditions())
	for what, change := range map[string]func(*result){
		"a wrong result":                   func(r *result) { r.books.Wrong = 1 },
		"an honest peer dropped":           func(r *result) { r.books.Dropped = 1 },
		"steps that are missing":           func(r *result) { r.phases[1].steps = 90 },
		"no newcomers":                     func(r *result) { r.phases[1].in = 0 },
		"memory that grows for a while":    func(r *result) { r.usage[0].peak += memoryGrowth },
		"a stranger that is answered":      func(r *result) { r.heard.add(guiseStranger, secure.Control, 1) },
		"a member at another group's data": func(r *result) { r.heard.add(guiseGroup, secure.Data, 1) },
		"descriptors that are not closed":  func(r *result) { r.usage[0].open += fileGrowth },
	} {
		r := good()
		change(r)
		require.Error(t, r.conditions(), what)
	}
}

// The seconds without a step are laid at the door of those who were there.
func TestBlame(t *testing.T) {
	r := &result{}
	now := time.Unix(1000, 0)
	for i, steps := range []int{9, 9, 0, 0, 9} {
		here := []string{"loud"}
		if steps == 0 {
			here = []string{"loud", "slow"}
		}
		r.second(now.Add(time.Duration(i)*time.Second), steps, func() []string { return here })
	}
	blame := r.blame()
	require.Contains(t, blame, "2 of 5 seconds")
	require.Regexp(t, `(?s)slow +2 of the 2 .*loud +2 of the 5`, blame)
}

func TestChoose(t *testing.T) {
	var o options
	require.NoError(t, o.choose("http,deaf", "deaf"))
	require.Len(t, o.kinds, 1)
	require.Error(t, o.choose("gremlins", ""))
	require.Error(t, o.choose("http", "http"))
	as, err := chooseGuises("group,revoked")
	require.NoError(t, err)
	require.Equal(t, []string{guiseGroup, guiseRevoked}, as)
	_, err = chooseGuises("ghost")
	require.ErrorContains(t, err, "ghost")
	seen := map[string]bool{}
	for _, k := range kinds {
		require.False(t, seen[k.name], k.name)
		seen[k.name] = true
	}
}
