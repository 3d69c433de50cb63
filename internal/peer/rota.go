package peer

// rota says when posted operations are picked up: in one batch whenever there
// is nothing else to do, and in one batch after every frequency pieces of
// progress while there is.
type rota struct {
	frequency, batch int
	turns            int // pieces of progress so far
	// progress does one piece of what is under way, false if there is nothing.
	progress func() bool
	// pick picks up at most n of what was posted and reports whether some are
	// left. With try it must not wait.
	pick func(n int, try bool) (left bool)
}

// run makes progress until there is nothing more to do and picks up: one batch
// at the end, with all everything. It reports whether something posted is left.
func (r *rota) run(all bool) (left bool) {
	for {
		for r.progress() {
			if r.turns++; r.turns%r.frequency == 0 {
				r.pick(r.batch, true)
			}
		}
		if left = r.pick(r.batch, false); !left || !all {
			return left
		}
	}
}
