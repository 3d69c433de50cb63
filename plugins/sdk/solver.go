package sdk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/plugins/proto"
)

// ServeSolver serves s and does not return. The context that s gets ends a
// little before the host's patience does, so that the last answer arrives.
func ServeSolver(s topo.Solver) {
	serve("solver", func(g *grpc.Server) { proto.RegisterSolverServer(g, &solver{s: s, stuck: exitStuck}) })
}

// stuckAfter is how long a solver may go on after its context ended.
const stuckAfter = 2 * time.Second

func exitStuck() {
	fmt.Fprintf(os.Stderr, "the solver went on for %v after its context ended\n", stuckAfter)
	os.Exit(3)
}

type solver struct {
	proto.UnimplementedSolverServer
	s     topo.Solver
	stuck func()
}

// Solve implements proto.SolverServer.
func (v *solver) Solve(m *proto.Problem, out grpc.ServerStreamingServer[proto.Solution]) (err error) {
	p, err := problem(m)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	ctx := out.Context()
	if b := time.Duration(m.BudgetMs) * time.Millisecond; b > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, b-min(20*time.Millisecond, b/10))
		defer cancel()
	}
	returned := make(chan struct{})
	defer close(returned)
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-returned:
		case <-time.After(stuckAfter):
			v.stuck()
		}
	})
	defer stop()
	defer func() {
		if r := recover(); r != nil {
			err = status.Errorf(codes.Internal, "the solver panicked: %v", r)
		}
	}()

	var mu sync.Mutex // a solver may break its promise to call better from one goroutine
	send := func(s topo.Solution) {
		mu.Lock()
		defer mu.Unlock()
		_ = out.Send(message(s)) // a receiver that is gone has ended ctx
	}
	best, err := v.s.Solve(ctx, p, send)
	var none *topo.NoRingError
	switch {
	case errors.As(err, &none):
		return out.Send(&proto.Solution{NoRing: true, NoRingProved: none.Proved, Reason: none.Reason, Remove: indices(none.Remove)})
	case errors.Is(err, topo.ErrNoRing):
		return out.Send(&proto.Solution{NoRing: true})
	case err != nil:
		return err
	}
	send(best)
	return nil
}

// problem reads m, which may say anything.
func problem(m *proto.Problem) (topo.Problem, error) {
	n := int(m.Peers)
	if n > proto.MaxPeers || len(m.Mbps) != n*n {
		return topo.Problem{}, fmt.Errorf("%w: %d values for %d peers (at most %d)", topo.ErrMatrix, len(m.Mbps), m.Peers, proto.MaxPeers)
	}
	p := topo.Problem{Matrix: topo.Matrix{N: n, Mbps: m.Mbps}, Objective: topo.Objective(m.Objective), Seed: m.Seed}
	for _, i := range m.Start {
		p.Start = append(p.Start, int(i))
	}
	return p, p.Check()
}

func message(s topo.Solution) *proto.Solution {
	return &proto.Solution{
		Ring: indices(s.Ring), SumLowerBound: s.SumLowerBound, BottleneckBound: s.BottleneckBound, Optimal: s.Optimal,
	}
}

func indices(list []int) []uint32 {
	out := make([]uint32, len(list))
	for k, i := range list {
		out[k] = uint32(i)
	}
	return slices.Clip(out)
}
