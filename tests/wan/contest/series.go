package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/gopccl/gopccl/tests/internal/moves"
)

// match is one table: contestants in turns in one network.
type match struct {
	Profile    string `json:"profile"`
	Congestion string `json:"congestion"`
	Bytes      int    `json:"bytes"`
	Pattern    string `json:"pattern,omitempty"` // empty: an all-reduce
}

func (m match) String() string {
	if m.Pattern != "" {
		return fmt.Sprintf("%s/%s/%s/%d", m.Profile, m.Congestion, m.Pattern, m.Bytes)
	}
	return fmt.Sprintf("%s/%s/%d", m.Profile, m.Congestion, m.Bytes)
}

// lineup says who plays beside gopccl.
type lineup struct {
	plain     string // connections of plain TCP, comma separated, with a p behind if they are paced
	original  string // connections of PCCL 1.0.0, with an o behind if its ring is optimized
	gloo      bool
	secure    bool // gopccl in TLS
	forward   bool // gopccl that finishes forward
	optimized bool // gopccl that has measured its links and optimized its ring first
}

// In a match of the series every contestant has seriesRounds operations, the first not
// counted; one that has taken longer than seriesPatience for them has at least two, and one
// that has taken less than seriesLeast more. After seriesMost patience is a half.
// All have up to seriesLearn operations before, from which gopccl learns; how long its
// first one took stands on the page.
const (
	seriesLearn    = 4
	seriesRounds   = 4
	seriesPatience = 25 * time.Second
	seriesLeast    = 2 * time.Second
	seriesMost     = 75 * time.Second
)

// series is what `make wan` plays: sizes and contestants that keep most matches under six
// minutes.
var series = append([]match{
	{Profile: "regional", Congestion: "cubic", Bytes: 64 << 20},
	{Profile: "regional", Congestion: "cubic", Bytes: 16 << 20},
	{Profile: "regional", Congestion: "cubic", Bytes: 400_000},
	{Profile: "regional", Congestion: "bbr", Bytes: 16 << 20},
	{Profile: "regional", Congestion: "bbr", Bytes: 400_000},
	{Profile: "intercontinental", Congestion: "cubic", Bytes: 64 << 20},
	{Profile: "intercontinental", Congestion: "cubic", Bytes: 16 << 20},
	{Profile: "intercontinental", Congestion: "cubic", Bytes: 400_000},
	{Profile: "intercontinental", Congestion: "bbr", Bytes: 64 << 20},
	{Profile: "intercontinental", Congestion: "bbr", Bytes: 16 << 20},
	{Profile: "intercontinental", Congestion: "bbr", Bytes: 400_000},
	{Profile: "intercontinental8", Congestion: "cubic", Bytes: 400_000},
	{Profile: "intercontinental16", Congestion: "cubic", Bytes: 400_000},
	{Profile: "lossy", Congestion: "cubic", Bytes: 2 << 20},
	{Profile: "lossy", Congestion: "cubic", Bytes: 400_000},
	{Profile: "lossy", Congestion: "bbr", Bytes: 16 << 20},
	{Profile: "lossy", Congestion: "bbr", Bytes: 2 << 20},
	{Profile: "lossy", Congestion: "bbr", Bytes: 400_000},
	{Profile: "home", Congestion: "cubic", Bytes: 4 << 20},
	{Profile: "mixed", Congestion: "cubic", Bytes: 8 << 20},
	{Profile: "sites", Congestion: "cubic", Bytes: 16 << 20},
	{Profile: "sites20", Congestion: "cubic", Bytes: 16 << 20},
	{Profile: "sites20", Congestion: "cubic", Bytes: 4 << 20},
	{Profile: "perflow", Congestion: "cubic", Bytes: 64 << 20},
	{Profile: "perflow", Congestion: "cubic", Bytes: 8 << 20},
	{Profile: "pairs", Congestion: "cubic", Bytes: 16 << 20},
	{Profile: "satellite", Congestion: "cubic", Bytes: 512 << 10},
	{Profile: "report6", Congestion: "cubic", Bytes: 4 << 20},
	{Profile: "report12", Congestion: "cubic", Bytes: 2 << 20},
	{Profile: "report18", Congestion: "cubic", Bytes: 1 << 20},
}, others("regional", "cubic", 16<<20, 400_000)...)

// others are the matches in the collectives besides all-reduce, in one network.
func others(profile, congestion string, sizes ...int) (list []match) {
	for _, t := range (game{patterns: moves.Names(), sizes: sizes}).tasks() {
		list = append(list, match{profile, congestion, t.Bytes, t.Pattern})
	}
	return list
}

// lineup returns who plays a match of the series. What is known to take minutes does not:
// one connection where each gets a twentieth of the host, or 64 MiB, and PCCL and Gloo with 64 MiB
// over long ways.
func (m match) lineup() lineup {
	switch {
	case m.Pattern != "":
		return lineup{gloo: true}
	case m.Profile == "intercontinental8", m.Profile == "intercontinental16":
		return lineup{plain: "1,16", original: "1", gloo: true, forward: true}
	case strings.HasPrefix(m.Profile, "report"):
		return lineup{original: "1,1o", gloo: true, optimized: true}
	case m.Profile == "perflow" && m.Bytes > 16<<20:
		return lineup{plain: "16,32"}
	case m.Profile == "intercontinental" && m.Bytes > 16<<20:
		return lineup{plain: "16,4p"}
	case m.Bytes > 16<<20:
		return lineup{plain: "1,16,4p", original: "1", gloo: true}
	case m.Profile == "pairs":
		return lineup{plain: "1,4,16", original: "1", gloo: true, optimized: true}
	case m.Profile == "mixed", m.Profile == "perflow", m.Profile == "sites20":
		return lineup{plain: "1,4,16", original: "1", gloo: true}
	}
	return lineup{plain: "1,4,16,1p,4p", original: "1", gloo: true, secure: m.Profile == "regional" && m.Congestion == "cubic" && m.Bytes < 1<<20, forward: m.Bytes < 1<<20}
}

// together returns how many matches at the head of a list are played in one network, by
// the same processes.
func together(list []match) int {
	n := 1
	for n < len(list) && list[n].Profile == list[0].Profile && list[n].Congestion == list[0].Congestion && list[n].lineup() == list[0].lineup() {
		n++
	}
	return n
}
