package demo

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/examples/trainers"
)

// story is a run of three peers, one of which is killed, and a joiner.
func story() *Record {
	r := &Record{Started: 3}
	at := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	for p := range 3 {
		r.Add(at(0.1), p, trainers.Event{Kind: trainers.Joined, Peer: "aa<&>", Hash: "h0", Loss: 4.5})
	}
	r.Add(at(1), 0, trainers.Event{Kind: trainers.Stepped, Step: 1, World: 3, Hash: "h1", Loss: 4, Tx: 100})
	r.Add(at(1.1), 1, trainers.Event{Kind: trainers.Stepped, Step: 1, World: 3, Hash: "h1", Loss: 4, Tx: 50})
	r.Kill(at(1.5), 2, 1)
	r.Add(at(1.6), 0, trainers.Event{Kind: trainers.Retry, Step: 1, World: 2, Retried: 2, Tx: 150})
	r.Add(at(1.6), 1, trainers.Event{Kind: trainers.Retry, Step: 1, World: 2, Retried: 2, Tx: 50})
	r.Add(at(2), 0, trainers.Event{Kind: trainers.Stepped, Step: 2, World: 2, Hash: "h2", Loss: 3, Retried: 2, Tx: 200})
	r.Add(at(2.1), 3, trainers.Event{Kind: trainers.Joined, Step: 2, World: 3, Hash: "h2", Loss: 3})
	r.Add(at(3), 0, trainers.Event{Kind: trainers.Ended, Step: 2, World: 3, Hash: "h2", Loss: 2.5, Tx: 200})
	return r
}

func TestRecordCounts(t *testing.T) {
	r := story()
	require.Empty(t, r.Verdict())
	require.Equal(t, 1, r.Joins)
	require.Equal(t, 1, r.Kills)
	require.Equal(t, 2, r.Aborted(), "an operation that two survivors repeat was aborted once")
	require.Equal(t, 5, r.Compared)
	require.Equal(t, 4.5, r.Before)
	require.Equal(t, 2.5, r.After)
	require.Len(t, r.Points, 3)
	require.Equal(t, uint64(250), r.Sent, "each peer's counter counts once")
	repeats := 0
	for _, m := range r.Marks {
		if m.Kind == "retry" {
			repeats++
		}
	}
	require.Equal(t, 1, repeats, "one line for all survivors")
	require.True(t, r.Lives[2].Killed)
	require.False(t, r.Lives[0].Killed)
}

func TestVerdictNamesEveryProblem(t *testing.T) {
	r := story()
	r.Add(4*time.Second, 1, trainers.Event{Kind: trainers.Stepped, Step: 2, Hash: "other"})
	require.ErrorContains(t, errors.New(strings.Join(r.Verdict(), "\n")), "step 2: peer 2 has other, peer 1 has h2")

	r = story()
	r.After = r.Before
	require.ErrorContains(t, errors.New(strings.Join(r.Verdict(), "\n")), "did not fall")

	r = story()
	r.Mark(Mark{Kind: "trouble", Text: "peer 1 ended too early"})
	require.Contains(t, r.Verdict(), "peer 1 ended too early")

	r = &Record{Before: 2, After: 1}
	require.Contains(t, r.Verdict(), "no two peers ever reported the same step")
}

// The page is well-formed, escapes what peers report, and refers to nothing
// outside of itself.
func TestPageStandsAlone(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, story().Page(&b, time.Unix(0, 0).UTC()))
	page := b.String()
	body := page[strings.Index(page, "<main>") : strings.Index(page, "</main>")+len("</main>")]
	dec := xml.NewDecoder(strings.NewReader(body))
	for {
		if _, err := dec.Token(); err == io.EOF {
			break
		} else {
			require.NoError(t, err)
		}
	}
	for _, outside := range []string{"http:", "https:", "src=", "href=", "url(", "<script", "@import"} {
		require.NotContains(t, page, outside)
	}
	require.NotContains(t, page, "%!", "a format directive without its value")
	require.Contains(t, page, "aa&lt;&amp;&gt;")
	require.Contains(t, page, "prefers-color-scheme: dark")
	for _, class := range []string{`class="loss"`, `class="world"`, `class="life killed"`, "tagbox kill", "tagbox join", "tagbox retry"} {
		require.Contains(t, page, class)
	}
}

// A record of nothing still makes a page.
func TestPageOfNothing(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, (&Record{}).Page(&b, time.Unix(0, 0)))
	require.NotContains(t, b.String(), "NaN")
	require.NotContains(t, b.String(), "Inf")
}

func TestTicksAreRound(t *testing.T) {
	require.Equal(t, []float64{0, 10, 20, 30, 40, 50, 60}, ticks(0, 60, 8))
	require.Equal(t, []float64{2, 2.5, 3, 3.5, 4, 4.5}, ticks(2, 4.6, 6))
	require.Nil(t, ticks(1, 1, 5))
}

func TestSummary(t *testing.T) {
	var b bytes.Buffer
	Summary(&b, story(), "")
	require.Contains(t, b.String(), "parity violations               0")
	require.Contains(t, b.String(), "same bits after every step")
	b.Reset()
	r := story()
	r.Violations = []string{"step 7"}
	Summary(&b, r, "")
	require.Contains(t, b.String(), "WRONG: step 7")
}
