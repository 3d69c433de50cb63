package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"

	"github.com/gopccl/gopccl/core"
)

// dumps are what a state dump shows beside the communicators of the process.
var dumps struct {
	mu   sync.Mutex
	more map[*core.Master]bool
}

// showInDump adds m to state dumps until the returned function is called.
func showInDump(m *core.Master) (remove func()) {
	dumps.mu.Lock()
	defer dumps.mu.Unlock()
	if dumps.more == nil {
		dumps.more = map[*core.Master]bool{}
	}
	dumps.more[m] = true
	return func() {
		dumps.mu.Lock()
		defer dumps.mu.Unlock()
		delete(dumps.more, m)
	}
}

// dumpState writes every communicator and master of this process.
func dumpState(w io.Writer) {
	dumps.mu.Lock()
	defer dumps.mu.Unlock()
	for m := range dumps.more {
		writeMaster(w, m)
	}
	core.DumpState(w)
}

func writeMaster(w io.Writer, m *core.Master) {
	st := m.Status()
	fmt.Fprintf(w, "gopccl: master at %s: %d clients, %d connections that did not register, %d collectives so far",
		m.Addr(), len(st.Clients), st.Unregistered, st.Collectives)
	if st.RoundActive {
		fmt.Fprint(w, ", in a connection round")
	}
	fmt.Fprintln(w)
	for _, g := range st.Groups {
		fmt.Fprintf(w, "  group %d: %d members, %d wait to be let in\n", g.ID, g.Members, g.Waiting)
	}
	for _, c := range st.Clients {
		fmt.Fprintf(w, "  client %s at %s, group %d: %v, %v", c.UUID, c.Remote, c.Group, c.Phase, c.State)
		for _, o := range c.Collectives {
			fmt.Fprintf(w, ", tag %d %v", o.Tag, o.State)
		}
		fmt.Fprintln(w)
	}
}

// dumpOnSignal writes a dump to w at every signal that asks for one (SIGUSR1;
// none on Windows) until stop is called.
func dumpOnSignal(w io.Writer) (stop func()) {
	return onSignals(dumpSignals, func() { dumpState(w) })
}

// onSignals calls f after every one of signals, one call at a time, until stop
// is called.
func onSignals(signals []os.Signal, f func()) (stop func()) {
	if len(signals) == 0 {
		return func() {}
	}
	asked, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(asked, signals...)
	go func() {
		defer close(done)
		for range asked {
			f()
		}
	}()
	return func() {
		signal.Stop(asked)
		close(asked)
		<-done
	}
}
