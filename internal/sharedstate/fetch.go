package sharedstate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/sockets"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// Want is one outdated tensor and the hash that its content has to have.
type Want struct {
	Key      string
	Hash     uint64
	HashType wire.HashType
}

// FetchConfig says what Fetch gets from where.
type FetchConfig struct {
	// Distributors are the holders of the elected state, first to try first.
	// Unspecified addresses are passed over.
	Distributors []netip.AddrPort
	// Want lists the outdated tensors. None is fine: only the revision is
	// fetched then. A key may come twice (quirk Q53); its last hash counts.
	Want []Want
	// Tensors is the caller's state. Fetch writes to the Data of wanted ones
	// only, and to nothing after it has returned.
	Tensors []Tensor
	// Legacy says that holders may be PCCL peers (see Entries, quirk Q34).
	Legacy bool
	// DialTimeout bounds connecting to one holder, StallTimeout the silence of
	// a holder. Defaults 10 s and 30 s.
	DialTimeout, StallTimeout time.Duration
	// Progress, if not nil, is called as bytes arrive, by the goroutine of
	// Fetch: bytes done of the bytes wanted, and the tensor that is being
	// received. A tensor that has to be fetched again lowers done.
	Progress func(done, total uint64, key string)
	// Dial opens a connection. Default: TCP, tuned by platform.TuneP2P.
	Dial func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
	// Hasher checks what lies on the host; nil is the built-in one. Workers bounds
	// the goroutines that hash one tensor, 0 means one per core.
	Hasher  digest.Hasher
	Workers int
}

// Result of a Fetch. It is valid, apart from Revision, if Fetch fails as well.
type Result struct {
	// Revision of the state that the holders handed out.
	Revision uint64
	// RxBytes counts the bytes of tensors received, repetitions included.
	RxBytes uint64
	// Retries counts the attempts after the first.
	Retries int
}

const (
	// attemptsPerHolder is how often one holder may fail without having given
	// anything before it is passed over.
	attemptsPerHolder = 2
	// A holder whose window is not open is asked again this often, this far apart.
	notOpenTries = 20
	notOpenPause = 100 * time.Millisecond
	// maxCauses bounds the errors that are kept for the final one; the last count.
	maxCauses = 16
	// retryPause is what the first round over all holders is followed by.
	retryPause = 200 * time.Millisecond
)

// item is the state of one wanted tensor.
type item struct {
	want    Want
	content      // where the content goes
	free    bool // any content will do
	done    bool // received and verified
	torn    bool // something was written
	wrong   bool // the content received last has the wrong hash
}

// fetch is one run of Fetch.
type fetch struct {
	cfg     FetchConfig
	items   []*item
	res     Result
	haveRev bool
	total   uint64
	done    uint64 // bytes of tensors received and not yet found wrong
	causes  []error
	pauseAt func(ctx context.Context, d time.Duration) error
}

// Fetch brings the wanted tensors up to date (data spec, section 7). Each
// holder is asked, in turn, for what is still missing, at least twice; what
// one has delivered is kept when it fails. Content is written straight into
// the tensors and then hashed; wrong content is fetched again and never
// accepted.
//
// On failure the tensors are partially overwritten: Incomplete tells which.
// Errors are *errs.Error: InvalidArgument (a wanted key that no tensor has),
// InvalidUsage (a tensor too large for a PCCL holder), both before anything is
// written; NoSharedStateAvailable (no holder named), Canceled (ctx ended),
// DeviceFailed (a device of this machine), HashMismatch (the best that any holder gave for a tensor has a wrong hash),
// TransferFailed.
func Fetch(ctx context.Context, cfg FetchConfig) (Result, error) {
	f := &fetch{cfg: cfg.withDefaults(), pauseAt: pause}
	return f.run(ctx)
}

func (c FetchConfig) withDefaults() FetchConfig {
	if c.DialTimeout <= 0 {
		c.DialTimeout = 10 * time.Second
	}
	if c.StallTimeout <= 0 {
		c.StallTimeout = 30 * time.Second
	}
	if c.Dial == nil {
		c.Dial = dial
	}
	if c.Progress == nil {
		c.Progress = func(uint64, uint64, string) {}
	}
	return c
}

func dial(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	return sockets.Dial(ctx, addr, platform.Options{Congestion: platform.CongestionAuto})
}

const opFetch = "sync shared state"

func fail(code errs.Code, cause error) *errs.Error {
	return errs.New(code, opFetch, cause).WithPhase("fetch")
}

func (f *fetch) run(ctx context.Context) (Result, error) {
	if err := f.plan(); err != nil {
		return f.res, err
	}
	var holders []netip.AddrPort
	for _, a := range f.cfg.Distributors {
		if a.IsValid() && a.Port() != 0 && !a.Addr().IsUnspecified() {
			holders = append(holders, a)
		}
	}
	if len(holders) == 0 {
		return f.res, fail(errs.NoSharedStateAvailable, errors.New("the master named no holder"))
	}

	fails := make([]int, len(holders))
	for h, left, first := 0, len(holders), true; left > 0; h = (h + 1) % len(holders) {
		if fails[h] >= attemptsPerHolder {
			continue
		}
		if !first {
			f.res.Retries++
			// After each holder had its turn, a moment for things to recover.
			if h == 0 {
				if err := f.pauseAt(ctx, retryPause); err != nil {
					return f.res, f.failed(ctx, holders[h])
				}
			}
		}
		first = false
		before := f.missing()
		err := f.from(ctx, holders[h])
		if err == nil && f.missing() == 0 {
			return f.res, nil
		}
		if len(f.causes) == maxCauses {
			f.causes = f.causes[1:]
		}
		f.causes = append(f.causes, fmt.Errorf("holder %s: %w", holders[h], err))
		if ctx.Err() != nil || here(err) {
			return f.res, f.failed(ctx, holders[h])
		}
		if f.missing() == before || before == 0 {
			if fails[h]++; fails[h] == attemptsPerHolder {
				left--
			}
		}
	}
	return f.res, f.failed(ctx, holders[len(holders)-1])
}

// plan checks the request and prepares its items.
func (f *fetch) plan() error {
	tensors := make(map[string]*Tensor, len(f.cfg.Tensors))
	for i := range f.cfg.Tensors {
		t := &f.cfg.Tensors[i]
		if _, dup := tensors[t.Key]; !dup {
			tensors[t.Key] = t
		}
	}
	seen := make(map[string]*item, len(f.cfg.Want))
	for _, w := range f.cfg.Want {
		if it := seen[w.Key]; it != nil {
			it.want = w
			continue
		}
		t := tensors[w.Key]
		if t == nil {
			return fail(errs.InvalidArgument, fmt.Errorf("wanted key %q is none of the %d tensors", w.Key, len(tensors)))
		}
		it := &item{want: w, content: t.content(f.cfg.Legacy), free: t.AllowInequality}
		if f.cfg.Legacy && uint64(it.bytes()) >= 1<<32 {
			return fail(errs.InvalidUsage, fmt.Errorf("tensor %q has %d bytes, PCCL holders send less than 4 GiB", w.Key, it.bytes())).
				WithHint("split the tensor")
		}
		seen[w.Key] = it
		f.items = append(f.items, it)
		f.total += uint64(it.bytes())
	}
	return nil
}

// missing counts the tensors that are not done.
func (f *fetch) missing() int {
	n := 0
	for _, it := range f.items {
		if !it.done {
			n++
		}
	}
	return n
}

// here reports whether err is about a device of this machine: no other holder
// would help.
func here(err error) bool {
	return errors.Is(err, errs.DeviceFailed) || errors.Is(err, errs.InvalidArgument)
}

// failed makes the final error.
func (f *fetch) failed(ctx context.Context, last netip.AddrPort) error {
	inc := &errs.Incomplete{Err: errors.Join(f.causes...)}
	code := errs.TransferFailed
	for _, it := range f.items {
		switch {
		case it.done:
			inc.Done = append(inc.Done, it.want.Key)
		case it.torn:
			inc.Torn = append(inc.Torn, it.want.Key)
			if it.wrong {
				code = errs.HashMismatch
			}
		default:
			inc.Untouched = append(inc.Untouched, it.want.Key)
		}
	}
	if n := len(f.causes); n > 0 && here(f.causes[n-1]) {
		code = errs.DeviceFailed
	}
	if err := ctx.Err(); err != nil {
		code = errs.Canceled
		inc.Err = errors.Join(context.Cause(ctx), inc.Err)
	}
	return fail(code, inc).WithPeer(last.String()).WithHint("load a checkpoint, or synchronise again: a torn state only receives")
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
