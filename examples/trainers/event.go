package trainers

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// Kinds of events.
const (
	Joined  = "joined"  // let into the run; Loss is the validation loss of what it starts from
	World   = "world"   // the membership changed
	Synced  = "synced"  // the shared state was synchronised; Strategy says how
	Reduce  = "reduce"  // about to launch the all-reduce of this step
	Retry   = "retry"   // operations of this step failed and were run again
	Stepped = "step"    // the shared state moved on by one step
	Ended   = "ended"   // all steps are done
	Left    = "left"    // the trainer was told to leave
	Warning = "warning" // something that a person should look at; Text says what
)

// Event is what a trainer tells about itself, one JSON object a line with -json.
type Event struct {
	Kind     string  `json:"event"`
	Peer     string  `json:"peer"`               // first digits of the peer's uuid
	Step     uint64  `json:"step"`               // steps that the shared state has taken
	Revision uint64  `json:"revision"`           // of the shared state
	World    int     `json:"world"`              // peers in the group
	Loss     float64 `json:"loss,omitempty"`     // validation loss, nats per character
	Inner    int     `json:"inner,omitempty"`    // local steps before it
	Train    float64 `json:"train,omitempty"`    // mean training loss of this peer's share
	Hash     string  `json:"hash,omitempty"`     // digest of the shared state
	Tx       uint64  `json:"tx"`                 // bytes sent so far, as PCCL counts
	Rx       uint64  `json:"rx"`                 // bytes received so far
	Retried  int     `json:"retried"`            // operations run again so far
	Strategy string  `json:"strategy,omitempty"` // of a synchronisation
	Fetched  bool    `json:"fetched,omitempty"`  // whether it brought new content
	Text     string  `json:"text,omitempty"`     // of a warning
}

// String is the line for people.
func (e Event) String() string {
	switch e.Kind {
	case Stepped, Joined, Ended, Left:
		return fmt.Sprintf("%-6s step %4d  world %d  loss %.4f  hash %s  in %s  out %s  retried %d",
			e.Kind, e.Step, e.World, e.Loss, e.Hash, Size(e.Rx), Size(e.Tx), e.Retried)
	case Warning:
		return "warning: " + e.Text
	case Synced:
		return fmt.Sprintf("%-6s step %4d  world %d  %s  fetched %v", e.Kind, e.Step, e.World, e.Strategy, e.Fetched)
	}
	return fmt.Sprintf("%-6s step %4d  world %d", e.Kind, e.Step, e.World)
}

// Size writes a number of bytes for people.
func Size(n uint64) string {
	switch {
	case n < 1e6:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	case n < 1e9:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.2f GB", float64(n)/1e9)
}

// Lines returns a reporter that writes every event to w: as JSON, or for people
// and then without what happens at every step.
func Lines(w io.Writer, asJSON bool) func(Event) {
	var mu sync.Mutex
	return func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		if asJSON {
			line, err := json.Marshal(e)
			if err == nil {
				w.Write(append(line, '\n'))
			}
		} else if e.Kind != Reduce && (e.Kind != Synced || e.Fetched) {
			fmt.Fprintln(w, e)
		}
	}
}
