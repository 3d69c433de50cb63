package main

import (
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
		m.DumpState(w)
	}
	core.DumpState(w)
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
