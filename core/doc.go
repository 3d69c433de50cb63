// Package core is what a trainer imports: fault-tolerant all-reduce and shared
// state over TCP, compatible with PCCL 1.0.0 on the wire.
//
// # The life of a peer
//
// Every trainer process is a peer. A [Master], which never sees a tensor, tells
// the peers who belongs to the run and in which order they form a ring. A peer
// connects, keeps its parameters as shared state, all-reduces its gradients, and
// goes on when others join, leave or die:
//
//	comm, err := core.Connect(ctx, core.Options{Master: "203.0.113.5:48148"})
//	if err != nil {
//		return err
//	}
//	defer comm.Close()
//
//	state := &core.SharedState{Tensors: []core.Tensor{core.TensorOf("weights", weights)}}
//	for state.Revision < steps {
//		pending, err := comm.PeersPending(ctx)
//		if err != nil {
//			return err
//		}
//		if pending { // let in those who wait
//			if err := comm.UpdateTopology(ctx); err != nil {
//				return err
//			}
//		}
//		// A newcomer gets the state of the others; for all others this is a comparison.
//		if _, err := comm.SyncSharedState(ctx, state, core.SyncOptions{}); err != nil {
//			return err
//		}
//		computeGradient(gradient, weights)
//		// Repeated among the survivors if a peer dies meanwhile.
//		rs := []core.Reduce{core.ReduceOf(gradient, gradient, core.Avg)}
//		if _, err := comm.AllReduceMultipleWithRetry(ctx, rs, 1); err != nil {
//			return err
//		}
//		apply(weights, gradient)
//		state.Revision++
//	}
//
// All peers of a group make the same calls in the same order. A call that
// changes the membership ([Communicator.UpdateTopology],
// [Communicator.OptimizeTopology]) or the state ([Communicator.SyncSharedState])
// waits until every peer makes it.
//
// # What it is made of
//
// Reduce kernels, quantizers and ring solvers are looked up by name. Import
// backends/defaults, quantizers/defaults and (for a master) solvers/defaults for
// their effect, or packages of your own: without a backend Connect fails.
//
// # Errors
//
// Every error is an *[Error]. Its code says what to do: errors.Is(err,
// errs.RankConnectionLost) is a failure to retry with the survivors,
// errs.TooFewPeers says that this peer is alone, errs.MasterLost that the run is
// over until a master is started again. Package core/errs lists the codes. No
// argument makes a call panic.
//
// # Memory
//
// Buffers stay the caller's. An all-reduce may read and write its buffers from
// the launch until the verdict, a synchronisation from the call until it
// returns; the caller touches them at other times only. Nothing is kept after that.
package core
