// Package lead says which master leads, and keeps what has to outlive it: a term, which
// fences masters from each other, and what a master has committed ([Kept]). The authority
// of one master at a time is a directory ([File]).
package lead

import (
	"context"

	"github.com/gopccl/gopccl/internal/master/fsm"
)

// MaxTerm is the highest term that a master can have.
const MaxTerm = fsm.MaxTerm

// Authority is core.Authority, and documented there.
type Authority interface {
	Lead(ctx context.Context) (term uint32, kept []byte, lost <-chan error, err error)
	Confirm(ctx context.Context) error
	Commit(ctx context.Context, kept []byte) error
	Resign() error
}
