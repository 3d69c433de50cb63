package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gopccl/gopccl/tests/internal/lab"
	"github.com/gopccl/gopccl/tests/internal/process"
)

// String says what the operation is.
func (t task) String() string {
	switch {
	case t.Pattern == "":
		return size(t.Bytes)
	case t.Bytes == 0:
		return t.Pattern
	}
	return t.Pattern + ", " + size(t.Bytes)
}

// reported is what PCCL's report says of the experiments whose regions a profile has, in
// seconds for 1.073 GB.
var reported = map[string]struct{ pccl, gloo float64 }{
	"report18": {90.50, 94.44},
	"report12": {35.20, 37.58},
	"report6":  {8.30, 9.67},
}

// entry is a contestant's part of a match.
type entry struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`          // median
	Times   int     `json:"times"`            // how many operations that is the median of
	Unsound int     `json:"unsound"`          // how many others the machine was too slow for
	First   float64 `json:"first,omitempty"`  // the first of the operations from which it learned
	Failed  string  `json:"failed,omitempty"` // why it has no time
	Ideal   float64 `json:"ideal,omitempty"`  // what part of the ideal that is; 0: no ideal is known
	Dropped uint64  `json:"dropped"`          // packets an operation, by full queues
	Lost    uint64  `json:"lost"`             // packets an operation, by the path
	Late    float64 `json:"late"`             // share of packets that the machine delivered late
	steps   []step
}

// counts says whether the laboratory kept its word in enough operations, of which alone
// the time is: in as many as are wanted, or in half of them. Whether it does is up to what
// else the machine has to do, and not to the contestant.
func (e entry) counts() bool {
	return e.Failed == "" && e.Late <= lab.MaxLate && (e.Times >= e.Unsound || e.Times >= seriesRounds-1)
}

type outcome struct {
	match
	On      string  `json:"on"` // when, and on which machine
	Entries []entry `json:"entries"`
}

// best returns the fastest of a kind whose row counts: its number of connections is behind
// a comma.
func (o outcome) best(kind string) (entry, bool) {
	var list []entry
	for _, e := range o.Entries {
		if name, _, _ := strings.Cut(e.Name, ","); name == kind && e.counts() {
			list = append(list, e)
		}
	}
	if len(list) == 0 {
		return entry{}, false
	}
	return slices.MinFunc(list, func(a, b entry) int { return cmp.Compare(a.Seconds, b.Seconds) }), true
}

const (
	nameOurs = "gopccl"
	nameTLS  = "gopccl in TLS"
	// nameForward is one whose calls return before all have the result (core.Reduce.FinishForward).
	nameForward = "gopccl finishing forward"
	// nameOptimized has measured its links and optimized its ring first (core.Communicator.OptimizeTopology).
	nameOptimized = "gopccl with its ring optimized"
	namePCCL      = "PCCL 1.0.0"
	nameGloo      = "Gloo"
	namePlain     = "plain TCP"
)

// outcomes are the matches of a file, in the order of series.
type outcomes []outcome

func readOutcomes(file string) (list outcomes, err error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &list)
	}
	return list, err
}

// with returns list with o in the place of an older outcome of the same match. A row of
// that stays if it counts and that in its place does not.
func (list outcomes) with(o outcome) outcomes {
	list = slices.Clone(list)
	if at := slices.IndexFunc(list, func(old outcome) bool { return old.match == o.match }); at >= 0 {
		old := list[at].Entries
		list = slices.Delete(list, at, at+1)
		o.Entries = slices.Clone(o.Entries)
		for i, e := range o.Entries {
			k := slices.IndexFunc(old, func(old entry) bool { return old.Name == e.Name && old.counts() })
			if k >= 0 && !e.counts() {
				o.Entries[i] = old[k]
			}
		}
	}
	list = append(list, o)
	place := func(m match) int {
		if i := slices.Index(series, m); i >= 0 {
			return i
		}
		return len(series)
	}
	slices.SortStableFunc(list, func(a, b outcome) int { return cmp.Compare(place(a.match), place(b.match)) })
	return list
}

// write writes the outcomes, and beside them the page and its picture.
func (list outcomes) write(base string) error {
	b, err := json.MarshalIndent(list, "", "\t")
	if err == nil {
		err = os.WriteFile(base+".json", append(b, '\n'), 0o644)
	}
	if err == nil {
		err = os.WriteFile(base+".svg", []byte(list.svg()), 0o644)
	}
	if err == nil {
		err = os.WriteFile(base+".md", []byte(list.markdown()), 0o644)
	}
	return err
}

// note writes the lines of the outcomes to a file; "": to none.
func (list outcomes) note(file string) error {
	if file == "" {
		return nil
	}
	return os.WriteFile(file, list.lines(), 0o644)
}

// lines returns the entries that count, an object in each line, with their time by that
// of gopccl with its defaults. A match in which that does not count has none.
func (list outcomes) lines() (text []byte) {
	for _, o := range list {
		i := slices.IndexFunc(o.Entries, func(e entry) bool { return e.Name == nameOurs && e.counts() })
		for _, e := range o.Entries {
			if i < 0 || !e.counts() {
				continue
			}
			b, err := json.Marshal(struct {
				match
				entry
				Ratio float64 `json:"ratio"`
			}{o.match, e, e.Seconds / o.Entries[i].Seconds})
			if err == nil {
				text = append(append(text, b...), '\n')
			}
		}
	}
	return text
}

const preface = `# The open internet

All-reduces of float32 over emulated wide-area networks (` + "`tests/internal/lab`" + `: real TCP between network namespaces; rates, delays, queues and losses by profile and seed). ` + "`make wan`" + ` (Linux, root) plays all matches and writes this page. Contestants take turns in one network. gopccl runs with its defaults, and once more with a credential for each process, in TLS. All-reduces of less than a megabyte it does once more finishing forward (` + "`core.Reduce.FinishForward`" + `). In some networks it plays once more with its links measured and its ring optimized first (` + "`core.Communicator.OptimizeTopology`" + `). PCCL 1.0.0 runs with as many connections as the row says, Gloo is PyTorch's; its transport in TLS is not in PyTorch's wheels (2.15.0 is built without ` + "`USE_GLOO_WITH_OPENSSL`" + `), so it has no row. Plain TCP is not a collective: every host sends the next one as many bytes as a ring all-reduce does, over so many connections, without waiting and without reducing; "paced" is at 0.90 of the slowest uplink. The other collectives, which PCCL does not have, are played beside Gloo; bytes are those of the buffer with the blocks of all, or of the one buffer. A time is that of the last member to finish.

Seconds are medians of three operations behind a first one; who takes longer than 25 s for all of them has fewer, and who takes less than 2 s more; after 75 s of a match that is 6 s instead of 25. The ideal is what any schedule needs at least, without any delay: every peer, and every site, sends the data once and receives the result once, and all of them together do nearly twice. Of other collectives it is the most that a member sends or receives, at the rate of the slowest uplink. The machine counts the packets that it delivered more than a millisecond late: an operation with more than 1 % of them does not count and another is done in its place, up to six; a row counts with three operations that do, or with half of them, and its time is of these alone. gopccl learns from operations what the network can (the plan, parts of members, connections): it has four operations behind it, and so have the others unless they take longer than 25 s; how long its first took stands below the table. A row that counts stays when a later match brings none that does. In tables that do not say that all had operations behind them, some or all of the others are of earlier matches, in which they had none, and where no first operation is named, gopccl had none either.

![parts of the ideal](internet.svg)
`

// rivals are the kinds with which gopccl is compared.
var rivals = []string{namePlain, namePCCL, nameGloo}

// summary is a table with a line for each match, and says where gopccl is behind.
func (list outcomes) summary() string {
	var b, behind strings.Builder
	b.WriteString("\n## Seconds\n\nOf each kind the fastest row that counts.\n\n| | ideal | gopccl | plain TCP | PCCL 1.0.0 | Gloo |\n|---|---|---|---|---|---|\n")
	for _, o := range list {
		ours, ok := o.best(nameOurs)
		ideal, own := "", "does not count"
		if ok {
			own = fmt.Sprintf("%.3f", ours.Seconds)
		}
		if i := slices.IndexFunc(o.Entries, func(e entry) bool { return e.Ideal > 0 }); i >= 0 {
			ideal = fmt.Sprintf("%.3f", o.Entries[i].Ideal*o.Entries[i].Seconds)
		}
		fmt.Fprintf(&b, "| %s, %v, %s | %s | %s |", o.Profile, task{o.Bytes, o.Pattern}, o.Congestion, ideal, own)
		var faster []string
		for _, kind := range rivals {
			e, found := o.best(kind)
			if !found {
				b.WriteString(" |")
				continue
			}
			_, connections, _ := strings.Cut(e.Name, ", ")
			if connections != "" {
				connections = " (" + connections + ")"
			}
			fmt.Fprintf(&b, " %.3f%s |", e.Seconds, connections)
			if ok && e.Seconds < ours.Seconds {
				faster = append(faster, fmt.Sprintf("%s takes %.2f of our time", e.Name, e.Seconds/ours.Seconds))
			}
		}
		b.WriteString("\n")
		if len(faster) > 0 {
			fmt.Fprintf(&behind, "- %s, %v, %s: %s.\n", o.Profile, task{o.Bytes, o.Pattern}, o.Congestion, strings.Join(faster, "; "))
		}
	}
	b.WriteString("\n## Where gopccl is behind\n\n")
	if behind.Len() == 0 {
		b.WriteString("Nowhere in these tables.\n")
	}
	b.WriteString(behind.String())
	if missing := list.missing(); len(missing) > 0 {
		fmt.Fprintf(&b, "\n## Not played yet\n\n`make wan` plays these, too, and `make wan ONLY=` and the begin of a name a part: %s.\n", strings.Join(missing, ", "))
	}
	return b.String()
}

// missing are the names of the matches of the series without an outcome.
func (list outcomes) missing() (names []string) {
	for _, m := range series {
		if !slices.ContainsFunc(list, func(o outcome) bool { return o.match == m }) {
			names = append(names, m.String())
		}
	}
	return names
}

func (list outcomes) markdown() string {
	var b strings.Builder
	b.WriteString(preface)
	b.WriteString(list.summary())
	profile := ""
	for _, o := range list {
		if o.Profile != profile {
			profile = o.Profile
			fmt.Fprintf(&b, "\n## %s\n\n", profile)
			if p, err := lab.Load(profile); err == nil && p.About != "" {
				fmt.Fprintf(&b, "%s\n", p.About)
			}
		}
		fmt.Fprintf(&b, "\n%v, %s:\n\n| | seconds | of the ideal | dropped, lost packets | operations | late |\n|---|---|---|---|---|---|\n", task{o.Bytes, o.Pattern}, o.Congestion)
		for _, e := range o.Entries {
			b.WriteString(e.row(""))
		}
		fmt.Fprintf(&b, "\n%s\n", strings.TrimSpace(o.verdict()+" "+o.On+"."))
	}
	return b.String()
}

// row is a line of a table; what comes first is in lead.
func (e entry) row(lead string) string {
	if e.Failed != "" {
		return fmt.Sprintf("|%s %s | failed: %s | | | | |\n", lead, e.Name, e.Failed)
	}
	ideal := ""
	if e.Ideal > 0 {
		ideal = fmt.Sprintf("%.2f", e.Ideal)
	}
	late := fmt.Sprintf("%.2f %%", 100*e.Late)
	if !e.counts() {
		late += ", does not count"
	}
	times := fmt.Sprint(e.Times)
	if e.Unsound > 0 {
		times += fmt.Sprintf(" of %d", e.Times+e.Unsound)
	}
	return fmt.Sprintf("|%s %s | %.3f | %s | %d, %d | %s | %s |\n", lead, e.Name, e.Seconds, ideal, e.Dropped, e.Lost, times, late)
}

// verdict compares gopccl with the best of each kind.
func (o outcome) verdict() string {
	ours, ok := o.best(nameOurs)
	if !ok {
		return ""
	}
	var parts []string
	for _, kind := range rivals {
		if e, ok := o.best(kind); ok {
			parts = append(parts, fmt.Sprintf("%.2f times that of %s", ours.Seconds/e.Seconds, e.Name))
		}
	}
	var text []string
	if len(parts) > 0 {
		text = append(text, "Time of gopccl: "+strings.Join(parts, ", ")+".")
	}
	if ours.First > 0 {
		text = append(text, fmt.Sprintf("Its first operation, for which it knew nothing, took %.3f s.", ours.First))
	}
	if !slices.ContainsFunc(o.Entries, func(e entry) bool { return e.Failed == "" && e.First == 0 }) {
		text = append(text, "All had operations behind them.")
	}
	if e, ok := o.best(nameTLS); ok {
		text = append(text, fmt.Sprintf("In TLS gopccl reaches %.2f of what it reaches in plaintext.", ours.Seconds/e.Seconds))
	}
	if r, ok := reported[o.Profile]; ok {
		pccl, a := o.best(namePCCL)
		gloo, b := o.best(nameGloo)
		if a && b {
			text = append(text, fmt.Sprintf("Gloo took %.2f times as long as PCCL, and in its report %.2f times.", gloo.Seconds/pccl.Seconds, r.gloo/r.pccl))
		}
	}
	return strings.Join(text, " ")
}

// machine says when and on what a match is played.
func machine() string {
	return time.Now().Format(time.DateOnly) + ", " + strings.Replace(process.Machine(), ", loopback", "", 1)
}

func size(bytes int) string {
	switch {
	case bytes >= 1<<20 && bytes%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", bytes>>20)
	case bytes >= 1<<10 && bytes%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", bytes>>10)
	case bytes >= 1000 && bytes%1000 == 0:
		return fmt.Sprintf("%d KB", bytes/1000)
	}
	return fmt.Sprintf("%d bytes", bytes)
}
