package lab

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/tests/internal/lab/netem"
)

func TestParse(t *testing.T) {
	p, err := Parse("x", strings.NewReader(`
		hosts 4 # three peers and a master
		host * up 100 down 200 queue 80ms
		host 3 up 1000
		pair * * delay 15ms loss 0.5
		between 0 1 delay 5ms jitter 1ms burst 3 reorder
		pair 2 0 rate 10 queue 20ms down
		site 1 2 inside 1000 500us out 50
		flow limit 10`))
	require.NoError(t, err)
	require.Len(t, p.Hosts, 4)
	require.Equal(t, 100e6, p.Hosts[0].Up.Rate)
	require.Equal(t, 200e6, p.Hosts[3].Down.Rate)
	require.Equal(t, 1000e6, p.Hosts[3].Up.Rate)
	require.Equal(t, 80*time.Millisecond, p.Hosts[1].Down.Buffer)
	require.Equal(t, 15*time.Millisecond, p.Paths[3][0].Delay)
	require.InDelta(t, 0.005, p.Paths[3][0].Loss, 1e-9)
	require.Equal(t, p.Paths[0][1], p.Paths[1][0])
	require.Equal(t, 5*time.Millisecond, p.Paths[1][0].Delay)
	require.True(t, p.Paths[0][1].Reorder)
	require.True(t, p.Paths[2][0].Down)
	require.False(t, p.Paths[0][2].Down)
	require.Equal(t, 500*time.Microsecond, p.Paths[2][1].Delay)
	require.Equal(t, 10e6, p.Flow.Rate)
	require.Equal(t, []netem.Site{{Hosts: []int{1, 2}, Out: netem.Queue{Rate: 50e6}, In: netem.Queue{Rate: 50e6}}}, p.Config(1).Sites)
	require.Zero(t, p.Paths[1][1])
}

func TestParseSaysWhatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "has no hosts",
		"host 0 up 5":                "before the number of hosts",
		"hosts 1":                    "not a number of hosts",
		"hosts 2\nhost 2 up 5":       "line 2: \"2\" is not a host",
		"hosts 2\nhost 0 up -5":      "up: \"-5\" is not a number",
		"hosts 2\nhost 0 up NaN":     "not a number",
		"hosts 2\npair 0 1 delay 15": "delay: \"15\" is not a time",
		"hosts 2\npair 0 1 loss 101": "more than all packets",
		"hosts 2\npair 0 1 speed 5":  "\"speed\" is not known here",
		"hosts 2\npair 0 1 delay":    "has no value",
		"hosts 2\nsite 0 1 inside 5": "want: site",
		"hosts 3\nsite 0 1 inside 9 1ms out 5\nsite 1 2 inside 9 1ms out 5": "line 3: host 1 is at another site",
		"hosts 2\nflow 10":  "want: flow limit",
		"hosts 2\nrouter 5": "not a statement",
	} {
		_, err := Parse("x", strings.NewReader(text))
		require.ErrorContains(t, err, want, "%q", text)
	}
}

func TestProfilesComeAlong(t *testing.T) {
	require.NotEmpty(t, Names())
	for _, name := range Names() {
		p, err := Load(name)
		require.NoError(t, err)
		require.NotEmpty(t, p.Hosts)
	}
	_, err := Load("attic")
	require.ErrorContains(t, err, "regional")
}

// A drawn network is the same for the same seed, and one that this machine can carry.
func TestDrawn(t *testing.T) {
	for seed := range uint64(300) {
		p, err := Drawn(seed)
		require.NoError(t, err)
		same, err := Load(p.Name)
		require.NoError(t, err)
		require.Equal(t, p, same)
		peers := len(p.Hosts) - 1
		require.GreaterOrEqual(t, peers, 3)
		require.LessOrEqual(t, peers, 8)
		sum := 0.0
		for i, h := range p.Hosts[:peers] {
			sum += h.Up.Rate
			require.Greater(t, h.Up.Rate, 1e6)
			require.GreaterOrEqual(t, h.Down.Rate, h.Up.Rate)
			require.GreaterOrEqual(t, h.Up.Buffer, 10*time.Millisecond)
			for j := range p.Hosts {
				path := p.Paths[i][j]
				require.Equal(t, path, p.Paths[j][i])
				if i != j {
					require.Positive(t, path.Delay)
					require.Less(t, path.Loss, 0.02)
				}
			}
		}
		require.LessOrEqual(t, sum, 1.01*mostDrawn*1e6)
	}
	_, err := Load("drawn")
	require.ErrorContains(t, err, "drawn1")
}
