package reduce

import "time"

// Which operation a frame is for.

// Skip says that the operation with this sequence number never starts here,
// though frames of it may come.
func (e *Engine) Skip(seq uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pass(seq)
	e.started.Broadcast()
}

// Between says whether the time is one in which no operation can run or start,
// such as a round: frames that wait for their operation then, or come
// meanwhile, belong to none that ever starts here.
func (e *Engine) Between(on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.between = on; on {
		e.rounds++ // whoever waits may look only when it is over
	}
	e.started.Broadcast()
}

// pass notes a sequence number: of what is below it and does not run, nothing
// will start. e.mu is held.
func (e *Engine) pass(seq uint64) {
	if !e.any || seq > e.highest {
		e.any, e.highest = true, seq
	}
}

// find returns the running operation that a frame from r belongs to, and binds
// it to r. A frame whose sequence number is beyond all that were started or
// skipped waits for the start; late says that it waited too long. nil: the frame is stale.
func (e *Engine) find(r *receiver, tag, seq uint64, striped bool) (x sink, late bool) {
	var dead *Op
	defer func() {
		if dead != nil {
			dead.failLink(r.peer, "the previous peer of the ring closed one of its connections")
		}
	}()
	e.mu.Lock()
	defer e.mu.Unlock()
	var deadline time.Time
	rounds := e.rounds
	for {
		if op := e.ops[opKey{tag, seq}]; op != nil {
			if op.prev != r.peer || op.in.bound && (op.split() != striped || !striped && op.in.receiver != r) {
				return nil, false
			}
			if striped && op.bind(e.rx[r.peer], r) {
				dead = op
			}
			op.in.receiver, op.in.bound = r, true
			return op, false
		}
		if seq>>63 != 0 || e.closed || e.between || e.rounds != rounds || e.any && seq <= e.highest || r.closed.Load() {
			return nil, false
		}
		if deadline.IsZero() {
			deadline = time.Now().Add(e.cfg.FutureWait)
			t := time.AfterFunc(e.cfg.FutureWait, func() {
				e.mu.Lock()
				e.started.Broadcast()
				e.mu.Unlock()
			})
			defer t.Stop()
		} else if !time.Now().Before(deadline) {
			return nil, true
		}
		e.early++
		e.started.Wait()
		e.early--
	}
}

// findEager returns the operation that a frame with an epoch is for, or keep if
// it is not launched yet; neither: the frame is stale. A frame that is here
// already is added to what came early, if it is to be kept.
func (e *Engine) findEager(r *receiver, tag, epoch uint64, frame *early) (x sink, keep bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := &e.ahead
	var until time.Time
	for {
		switch {
		case e.closed || r.closed.Load() || epoch < a.epoch || epoch > a.next || epoch == a.epoch && a.spoiled[tag]:
			return nil, false
		case epoch > a.epoch || a.ops[tag] == nil || a.ops[tag].in.done.Load():
			// All of the last operation with this tag has come.
			if frame == nil && !e.wanted(r) {
				now := time.Now()
				if until.IsZero() {
					until = now.Add(lingerTime)
					r.setAlarm()
					defer r.alarm.Stop()
				}
				if now.Before(until) {
					e.started.Wait()
					continue
				}
			}
			if frame != nil {
				e.keep(earlyKey{r.peer, tag, epoch}, frame)
			}
			return nil, true
		}
		op := a.ops[tag]
		if op.prev != r.peer || op.in.bound && (op.split() || op.in.receiver != r) {
			return nil, false
		}
		if !op.eager.replaying {
			op.in.receiver, op.in.bound = r, true
			return op, false
		}
		e.started.Wait()
	}
}

// wanted reports whether anything may be needed that comes behind what r reads.
// e.mu is held.
func (e *Engine) wanted(r *receiver) bool {
	if e.between {
		return true
	}
	for _, op := range e.ops {
		if op.prev == r.peer && !op.in.done.Load() {
			return true
		}
	}
	return false
}

// setAlarm wakes r from its wait for a launch. e.mu is held.
func (r *receiver) setAlarm() {
	if r.alarm != nil {
		r.alarm.Reset(lingerTime)
		return
	}
	r.alarm = time.AfterFunc(lingerTime, func() {
		r.e.mu.Lock()
		defer r.e.mu.Unlock()
		r.e.started.Broadcast()
	})
}
