package trace

import (
	"sync"
	"time"

	"github.com/gopccl/gopccl/core/errs"
)

// Queue makes calls of functions that belong to somebody else: a log handler, a
// listener. They may write to a pipe that nobody reads, or wait for whatever they
// like, so they are made in their order on a goroutine of their own, with no lock
// held, and nobody waits for them. What comes while limit calls wait is dropped
// and counted. The goroutine is there only while calls wait. A nil Queue makes
// no calls.
type Queue struct {
	limit    int
	dropped  func(n uint64)    // tells of calls that were dropped; on the goroutine
	panicked func(*errs.Error) // a call has panicked; on the goroutine

	mu     sync.Mutex
	calls  []func()
	lost   uint64        // dropped and not told of yet
	made   uint64        // calls that have returned
	idle   chan struct{} // closed when the goroutine ends; nil: there is none
	closed bool
}

// NewQueue returns a queue of limit calls. dropped (nil: nobody) hears of those
// that found no room, before the next call; panicked (nil: nobody) of a panic,
// after which the queue goes on.
func NewQueue(limit int, dropped func(n uint64), panicked func(*errs.Error)) *Queue {
	return &Queue{limit: limit, dropped: dropped, panicked: panicked}
}

// Put queues a call and never waits; false: it is dropped.
func (q *Queue) Put(f func()) bool {
	if q == nil {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	if len(q.calls) >= q.limit {
		q.lost++
		return false
	}
	q.calls = append(q.calls, f)
	if q.idle == nil {
		q.idle = make(chan struct{})
		go q.run(q.idle)
	}
	return true
}

// run makes calls until none waits.
func (q *Queue) run(idle chan struct{}) {
	for {
		q.mu.Lock()
		calls, lost := q.calls, q.lost
		q.calls, q.lost = nil, 0
		if len(calls) == 0 && lost == 0 || q.closed {
			q.idle = nil
			q.mu.Unlock()
			close(idle)
			return
		}
		q.mu.Unlock()
		for _, f := range calls {
			if q.over() {
				break
			}
			q.call(f)
			q.mu.Lock()
			q.made++
			q.mu.Unlock()
		}
		if lost > 0 && q.dropped != nil {
			q.call(func() { q.dropped(lost) })
		}
	}
}

// returned is how many calls have returned.
func (q *Queue) returned() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.made
}

func (q *Queue) over() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

func (q *Queue) call(f func()) {
	defer errs.Catch("call back", func(err *errs.Error) {
		if q.panicked != nil {
			q.panicked(err)
		}
	})
	f()
}

// Flush waits until no call waits or runs, at most for patience, and reports
// whether that is so.
func (q *Queue) Flush(patience time.Duration) bool {
	if q == nil {
		return true
	}
	q.mu.Lock()
	idle := q.idle
	q.mu.Unlock()
	if idle == nil {
		return true
	}
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-idle:
		return true
	case <-t.C:
		return false
	}
}

// Close is Flush, after which no call is made any more: what still waits is
// dropped, and a call that runs is the last.
func (q *Queue) Close(patience time.Duration) bool {
	done := q.Flush(patience)
	if q != nil {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.closed, q.calls = true, nil
	}
	return done
}
