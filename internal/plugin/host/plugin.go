// Package host runs plugins: it starts their programs, watches and restarts
// them, and makes what they offer a topo.Solver, quant.Quantizer or
// backend.Backend. A plugin that crashes, hangs, lies or takes too much is
// named in the log and costs nothing else: the built-in answers instead.
//
// The last line of every way out is Plugin.Close (or Set.Close), which leaves no
// process behind; if this process dies without it, the system or the plugin
// itself ends the plugin.
package host

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core/errs"
)

// Plugin is a program that is kept running. Its methods are safe for
// concurrent use.
type Plugin struct {
	spec   Spec
	kind   kind
	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{}

	mu      sync.Mutex
	up      *instance // nil while there is none
	down    error     // why, if so
	changed chan struct{}
	starts  int
	calls   sync.WaitGroup // of goroutines that outlive a call
	closed  bool
}

// How plugins are watched and restarted.
const (
	firstPause  = 100 * time.Millisecond
	steadyAfter = time.Minute // a life of this length resets the pause
	memoryEvery = 100 * time.Millisecond
	// A plugin without a call that has used the processor for wasted, and in two looks
	// idleEvery apart, has not obeyed a cancellation. It has if it uses less than a
	// part in quietPart for two looks in a row.
	idleEvery = time.Second
	looks     = 2
	wasted    = 1500 * time.Millisecond
	quietPart = 20
)

var (
	errClosed   = errors.New("it was closed")
	errStarting = errors.New("it has not started yet")
)

// Start begins to keep the plugin of spec running and returns at once: Wait
// tells whether it serves. Errors: *errs.Error with code InvalidConfig if spec
// cannot work here, its executable having another digest included.
func Start(spec Spec) (*Plugin, error) { return start(spec, kind{}) }

// kind is what some kinds of plugins need beside a process; both may be nil.
type kind struct {
	// prepare gives cmd what the plugin inherits and the instance what stays here.
	prepare func(*instance, *exec.Cmd) error
	// accept looks at an instance that runs, before it is used.
	accept func(*instance) error
}

func start(spec Spec, k kind) (*Plugin, error) {
	spec, err := spec.complete()
	if err != nil {
		return nil, err
	}
	if err := spec.checkDigest(); err != nil {
		return nil, spec.fail(errs.InvalidConfig, "check executable", err).WithHint("gopccl plugins list prints digests")
	}
	if spec.MemoryLimit > 0 && !limitsMemory {
		spec.Logger.Warn("memory of plugins is not limited on this system", "kind", "plugin-limit")
	}
	p := &Plugin{spec: spec, kind: k, ended: make(chan struct{}), down: errStarting, changed: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	go p.supervise()
	return p, nil
}

// Spec returns what the plugin was started with, completed.
func (p *Plugin) Spec() Spec { return p.spec }

// Starts returns how often the program was started with success.
func (p *Plugin) Starts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.starts
}

// PID returns the process id of the running plugin, 0 if there is none.
func (p *Plugin) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.up == nil {
		return 0
	}
	return p.up.proc.cmd.Process.Pid
}

// Wait waits until the plugin serves. It returns the last error if ctx ends
// before, or if the plugin cannot be started for good.
func (p *Plugin) Wait(ctx context.Context) error {
	_, err := p.await(ctx)
	return err
}

func (p *Plugin) await(ctx context.Context) (*instance, error) {
	for {
		p.mu.Lock()
		in, down, changed := p.up, p.down, p.changed
		p.mu.Unlock()
		if in != nil {
			return in, nil
		}
		if errors.Is(down, errClosed) || errors.Is(down, errDigest) {
			return nil, p.spec.fail(errs.InvalidUsage, "wait", down)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, p.spec.fail(errs.Timeout, "wait", down)
		}
	}
}

// first waits until the plugin serves or failed to start once.
func (p *Plugin) first(ctx context.Context) error {
	for {
		p.mu.Lock()
		up, down, changed := p.up != nil, p.down, p.changed
		p.mu.Unlock()
		if up {
			return nil
		}
		if !errors.Is(down, errStarting) {
			return down
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// current returns the running instance, or why there is none.
func (p *Plugin) current() (*instance, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.up == nil {
		return nil, p.down
	}
	return p.up, nil
}

// begin counts a goroutine that Close has to wait for; false if it is too late.
func (p *Plugin) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.calls.Add(1)
	return true
}

// Close ends the plugin and waits until nothing of it is left.
func (p *Plugin) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	<-p.ended
	p.calls.Wait()
	return nil
}

func (p *Plugin) set(in *instance, down error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.up, p.down = in, down
	if in != nil {
		p.starts++
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// supervise is the life of a plugin.
func (p *Plugin) supervise() {
	defer close(p.ended)
	log := p.spec.Logger
	pause := firstPause
	for p.ctx.Err() == nil {
		in, err := p.launch()
		if err == nil {
			began := time.Now()
			p.set(in, nil)
			log.Info("plugin runs", "kind", "plugin-up", "pid", in.proc.cmd.Process.Pid)
			err = p.watch(in)
			p.set(nil, err)
			if grace := stopGrace; p.ctx.Err() != nil {
				in.end(grace, errClosed)
				log.Info("plugin ended", "kind", "plugin-down")
				break
			}
			in.end(0, err)
			if time.Since(began) > steadyAfter {
				pause = firstPause
			}
		}
		p.set(nil, err)
		if p.ctx.Err() != nil {
			break
		}
		if errors.Is(err, errDigest) {
			log.Error("plugin is not started: "+err.Error(), "kind", "plugin-down")
			<-p.ctx.Done()
			break
		}
		log.Warn("plugin failed: "+err.Error(), "kind", "plugin-down", "restart_in", pause.String())
		select {
		case <-time.After(pause):
		case <-p.ctx.Done():
		}
		pause = min(2*pause, p.spec.LongestPause)
	}
	p.set(nil, errClosed)
}

// launch starts an instance, with what its kind needs.
func (p *Plugin) launch() (*instance, error) {
	in, err := launch(p.ctx, p.spec, p.kind.prepare)
	if err == nil && p.kind.accept != nil {
		if err = p.kind.accept(in); err != nil {
			in.end(0, err)
		}
	}
	return in, err
}

// watch returns why the instance has to be replaced.
func (p *Plugin) watch(in *instance) error {
	health := time.NewTicker(p.spec.healthEvery)
	defer health.Stop()
	memory := time.NewTicker(memoryEvery)
	defer memory.Stop()
	if p.spec.MemoryLimit == 0 {
		memory.Stop()
	}
	idle := time.NewTicker(idleEvery)
	defer idle.Stop()
	var runaway runaway
	var asked chan error
	for {
		select {
		case <-in.proc.exited:
			in.mu.Lock()
			defer in.mu.Unlock()
			if in.reason != nil {
				return in.reason
			}
			return fmt.Errorf("its process ended: %s", in.proc.exit())
		case <-p.ctx.Done():
			return errClosed
		case <-memory.C:
			if m := in.proc.group.memory(in.proc.cmd, in.proc.shared); m > p.spec.MemoryLimit {
				return fmt.Errorf("it holds %d MiB of memory, its limit is %d MiB", m>>20, p.spec.MemoryLimit>>20)
			}
		case <-idle.C:
			if runaway.look(in) {
				return errors.New("it keeps computing after its calls were canceled")
			}
		case <-health.C:
			if asked == nil { // one question at a time
				asked = make(chan error, 1)
				go func(answer chan<- error) {
					ctx, cancel := context.WithTimeout(p.ctx, p.spec.healthTimeout)
					defer cancel()
					answer <- in.ping(ctx)
				}(asked)
			}
		case err := <-asked:
			asked = nil
			if err != nil && p.ctx.Err() == nil {
				return fmt.Errorf("it failed its health check: %w", err)
			}
		}
	}
}

// runaway finds a plugin that computes for nobody: gRPC ends a canceled call on
// the host's side whatever the plugin does, so only the processor time that it
// goes on using tells: how much in all, since beside others that compute it gets
// little at a time. Where the system does not count it nothing is found.
type runaway struct {
	cpu    time.Duration // at the last look
	at     time.Time
	looked bool
	used   time.Duration // since the first look
	busy   int           // looks
	quiet  int           // looks in a row
}

// look reports whether the instance has to go.
func (r *runaway) look(in *instance) bool {
	if !in.canceled.Load() || in.running.Load() > 0 {
		*r = runaway{}
		return false
	}
	cpu, ok := in.proc.group.cpu(in.proc.cmd)
	if !ok {
		in.canceled.Store(false)
		return false
	}
	now := time.Now()
	if r.looked {
		r.used += cpu - r.cpu
		if cpu-r.cpu > now.Sub(r.at)/quietPart {
			r.busy, r.quiet = r.busy+1, 0
		} else {
			r.quiet++
		}
	}
	r.cpu, r.at, r.looked = cpu, now, true
	if r.quiet >= looks {
		in.canceled.Store(false)
	}
	return r.busy >= looks && r.used >= wasted
}
