// Package trace lets a program follow what a communicator does: as calls, and as
// lines of its log.
//
// A [Listener] hears of operations, lost connections and idleness:
//
//	opt.Trace = &trace.Listener{
//		OpEnded:    func(tag, seq uint64, err error) { ended.Add(1) },
//		BecameIdle: func() { idle.Store(true) },
//	}
//
// Log lines carry the attribute [Subsystem]. [Levels] are levels for each of
// them, which may be changed while the program runs. Neither a listener nor a log
// handler can hold the data path up: both are reached through a [Queue].
package trace
