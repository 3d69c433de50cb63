package errs

import "fmt"

// Incomplete says what a synchronisation that was not confirmed has done to the
// caller's tensors; errors.As finds it in the error of SyncSharedState. A state
// with done or torn tensors is neither the old nor the new one.
type Incomplete struct {
	// Done tensors have the new, verified content.
	Done []string
	// Torn tensors were overwritten in part, or with content whose hash is wrong.
	Torn []string
	// Untouched tensors were wanted and still have their old content.
	Untouched []string
	// Err is the cause: one error per attempt to fetch (the last 16). May be nil.
	Err error
}

// Error counts the tensors and names the torn ones.
func (e *Incomplete) Error() string {
	all := len(e.Done) + len(e.Torn) + len(e.Untouched)
	s := fmt.Sprintf("%d of %d tensors fetched", len(e.Done), all)
	for i, k := range e.Torn {
		if i == 3 {
			s += fmt.Sprintf(" and %d more", len(e.Torn)-i)
			break
		}
		if i == 0 {
			s += ", partially overwritten: "
		} else {
			s += ", "
		}
		s += fmt.Sprintf("%q", k)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *Incomplete) Unwrap() error { return e.Err }
