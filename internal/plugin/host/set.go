package host

import (
	"context"
	"fmt"
	"reflect"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/topo"
)

// Set keeps the plugins of a configuration running. Its methods are safe for
// concurrent use.
type Set struct {
	fallback topo.Solver

	mu      sync.Mutex
	given   map[string]Spec
	plugins map[string]*SolverPlugin
}

// NewSet returns an empty set whose solvers fall back to fallback.
func NewSet(fallback topo.Solver) *Set {
	return &Set{fallback: fallback, given: map[string]Spec{}, plugins: map[string]*SolverPlugin{}}
}

// Apply makes the solver plugins that run those of specs: new ones start, those
// that are gone end, changed ones are replaced, the others are left alone. If
// one cannot be started (an *errs.Error with code InvalidConfig) nothing changes.
// It returns what a caller no longer uses: call it when solvers were swapped.
func (s *Set) Apply(specs []Spec) (retire func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	given, plugins := map[string]Spec{}, map[string]*SolverPlugin{}
	var started []*SolverPlugin
	for _, spec := range specs {
		if spec.Kind != Solver {
			continue
		}
		if _, dup := given[spec.Name]; dup {
			err = errs.New(errs.InvalidConfig, "run plugins", fmt.Errorf("two plugins are called %q", spec.Name))
			break
		}
		given[spec.Name] = spec
		if old, ok := s.given[spec.Name]; ok && reflect.DeepEqual(old, spec) {
			plugins[spec.Name] = s.plugins[spec.Name]
			continue
		}
		p, startErr := StartSolver(spec, s.fallback)
		if startErr != nil {
			err = startErr
			break
		}
		started = append(started, p)
		plugins[spec.Name] = p
	}
	if err != nil {
		closeAll(started)
		return func() {}, err
	}
	var old []*SolverPlugin
	for name, p := range s.plugins {
		if plugins[name] != p {
			old = append(old, p)
		}
	}
	s.given, s.plugins = given, plugins
	return func() { closeAll(old) }, nil
}

// Solver returns the running plugin called name, nil if there is none.
func (s *Set) Solver(name string) *SolverPlugin {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plugins[name]
}

// Names returns the names of the plugins in alphabetical order.
func (s *Set) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for n := range s.plugins {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// Close ends all plugins and waits until nothing of them is left.
func (s *Set) Close() error {
	s.mu.Lock()
	var all []*SolverPlugin
	for _, p := range s.plugins {
		all = append(all, p)
	}
	s.given, s.plugins = map[string]Spec{}, map[string]*SolverPlugin{}
	s.mu.Unlock()
	closeAll(all)
	return nil
}

func closeAll(list []*SolverPlugin) {
	var wg sync.WaitGroup
	for _, p := range list {
		wg.Go(func() { p.Close() })
	}
	wg.Wait()
}

// Switch is a topo.Solver that can be exchanged while it is in use: calls that
// run finish with the old one.
type Switch struct{ now atomic.Pointer[topo.Solver] }

// NewSwitch returns a switch to s.
func NewSwitch(s topo.Solver) *Switch {
	w := &Switch{}
	w.Set(s)
	return w
}

// Set makes the following calls go to s.
func (w *Switch) Set(s topo.Solver) { w.now.Store(&s) }

// Name is the name of the solver in force.
func (w *Switch) Name() string { return (*w.now.Load()).Name() }

// Solve implements topo.Solver.
func (w *Switch) Solve(ctx context.Context, p topo.Problem, better func(topo.Solution)) (topo.Solution, error) {
	return (*w.now.Load()).Solve(ctx, p, better)
}
