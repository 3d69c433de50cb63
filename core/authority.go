package core

import "context"

// Authority says which of several masters leads their run, and keeps what a master leaves
// to the next one. MasterOptions.State is the authority of masters that run one after the
// other on one directory. Only one method at a time is called, but Resign, which is called
// when the others have returned.
type Authority interface {
	// Lead returns when this master leads, or ctx ends: its term, which is greater than
	// that of every master before it and below 1<<20, and what the master before it has
	// committed last (nil: nothing). lost yields why it may lead no longer, or is closed;
	// nil: it never may not. The bytes are the master's then.
	Lead(ctx context.Context) (term uint32, kept []byte, lost <-chan error, err error)
	// Confirm returns nil if this master led after the call began. It is asked before a
	// peer is dropped. Another answer ends the master.
	Confirm(ctx context.Context) error
	// Commit returns nil when kept is what the next master finds, also after a crash. It
	// is called when members change, and not for collectives. The bytes are the
	// authority's then. They have a key in them, so nobody but masters may read them. An
	// error ends the master.
	Commit(ctx context.Context, kept []byte) error
	// Resign gives the lead up. Lead may be called again then.
	Resign() error
}
