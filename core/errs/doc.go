// Package errs holds the error type of gopccl and the codes that classify it.
//
// Every call returns an *[Error], which names the operation, its phase, the peer,
// the cause and what to do. Ask for the code with errors.Is:
//
//	_, err := comm.AllReduce(ctx, r)
//	switch {
//	case err == nil:
//	case errors.Is(err, errs.RankConnectionLost): // a peer was lost: retry with the others
//	case errors.Is(err, errs.TooFewPeers): // nobody else is left: go on alone, or wait
//	case errors.Is(err, errs.MasterLost), errors.Is(err, errs.Kicked): // connect again
//	default: // a mistake of the program, or of the machine: read it
//	}
//
// What a failed synchronisation has done to the tensors is in an *[Incomplete],
// which errors.As finds.
//
// The first thirteen codes are the results of PCCL 1.0.0 (control spec,
// section 13.5) with the same numbers; the others are ours. No code changes its
// number or its meaning.
package errs
