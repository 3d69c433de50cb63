package peer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// maxVain bounds the retries that change nothing.
const maxVain = 16

// AllReduceMultipleWithRetry reduces every r, at most maxInFlight at a time
// (default 16), and retries those that failed with the survivors until all are
// done. It returns errs.TooFewPeers when this peer is the last of its group,
// errs.Mismatch if peers pass different arguments, and errs.RankConnectionLost
// when operations fail 16 times in a row although no peer came or left. The sums of
// the counters are returned, and, with an error too, which operations are done
// (ReduceInfo.Done): in place, to reduce those again would count every
// contribution twice. Buffers of the others are as before.
func (s *Session) AllReduceMultipleWithRetry(ctx context.Context, rs []Reduce, maxInFlight int) (ReduceInfo, error) {
	const name = "all-reduce multiple"
	if len(rs) == 0 {
		return ReduceInfo{}, errs.New(errs.InvalidArgument, name, errors.New("no operations"))
	}
	tags := make(map[uint64]bool, len(rs))
	for _, r := range rs {
		if tags[r.Tag] {
			return ReduceInfo{}, errs.New(errs.InvalidArgument, name, fmt.Errorf("tag %d is used twice", r.Tag))
		}
		tags[r.Tag] = true
	}
	if maxInFlight <= 0 {
		maxInFlight = maxWithPCCL
	}
	total := ReduceInfo{Done: make([]bool, len(rs))}
	left := make([]int, len(rs)) // what is not done, by place in rs
	for i := range left {
		left[i] = i
	}
	vain, ring := 0, s.View().Ring
	for len(left) > 0 {
		again, info, failure, err := s.reduceOnce(ctx, rs, left, maxInFlight, total.Done)
		total.TxBytes += info.TxBytes
		total.RxBytes += info.RxBytes
		total.Retries += info.Retries
		if info.WorldSize > 0 {
			total.WorldSize = info.WorldSize
		}
		if err != nil {
			return total, partly(err, name, total.Done)
		}
		// All peers see the same verdicts and rings, so they give up together.
		now := s.View().Ring
		if vain++; len(again) < len(left) || !sameMembers(ring, now) {
			vain, ring = 0, now
		}
		if vain == maxVain {
			err := errs.New(errs.RankConnectionLost, name,
				fmt.Errorf("failed %d times in a row although the group did not change: %w", vain, failure)).
				WithHint("pass the same quantization on every peer and see the peers' logs")
			return total, partly(err, name, total.Done)
		}
		left = again
	}
	return total, nil
}

// CollectWithRetry does the collective that describe returns for the members there are,
// again after each failure that a round repairs. It gives up as
// AllReduceMultipleWithRetry does.
func (s *Session) CollectWithRetry(ctx context.Context, describe func(View) (Collective, error)) (ReduceInfo, error) {
	vain, ring, retries := 0, s.View().Ring, 0
	for {
		call, err := describe(s.View())
		if err != nil {
			return ReduceInfo{Retries: retries}, err
		}
		info, err := s.CollectAndWait(ctx, call)
		info.Retries = retries
		if err == nil || !s.retryable(err) {
			return info, err
		}
		retries++
		now := s.View().Ring
		if vain++; !sameMembers(ring, now) {
			vain, ring = 0, now
		}
		if vain == maxVain {
			return info, errs.New(errs.RankConnectionLost, call.name(),
				fmt.Errorf("failed %d times in a row although the group did not change: %w", vain, err)).
				WithHint("see the peers' logs")
		}
	}
}

// partly adds to err how much is done.
func partly(err error, name string, done []bool) error {
	n := 0
	for _, yes := range done {
		if yes {
			n++
		}
	}
	if n == 0 {
		return err
	}
	return errs.New(errs.CodeOf(err), name, err).WithPhase(fmt.Sprintf("%d of %d operations are done", n, len(done)))
}

// sameMembers compares rings as sets.
func sameMembers(a, b []wire.UUID) bool {
	if len(a) != len(b) {
		return false
	}
	for _, u := range a {
		if !slices.Contains(b, u) {
			return false
		}
	}
	return true
}

// reduceOnce launches those of rs that left names, in order, awaits them in order
// and notes what is done. After the first failure nothing more is launched: every
// peer sees the same verdicts, so every peer retries the same operations, which
// again names. failure is the last one that may be retried.
func (s *Session) reduceOnce(ctx context.Context, rs []Reduce, left []int, maxInFlight int, done []bool) (again []int, info ReduceInfo, failure, fatal error) {
	ops := make([]*Operation, 0, len(left))
	failed := false
	for awaited := 0; ; awaited++ {
		for !failed && len(ops) < len(left) && len(ops)-awaited < maxInFlight {
			op, err := s.AllReduceAsync(ctx, rs[left[len(ops)]])
			if err != nil {
				fatal, failed = err, true
				break
			}
			ops = append(ops, op)
		}
		if awaited == len(ops) {
			break
		}
		i, err := ops[awaited].wait(ctx)
		if err == nil {
			done[left[awaited]] = true
			info.TxBytes += i.TxBytes
			info.RxBytes += i.RxBytes
			info.WorldSize = i.WorldSize
			continue
		}
		failed = true
		if s.retryable(err) {
			info.Retries++
			failure = err
			again = append(again, left[awaited])
		} else if fatal == nil {
			fatal = err
		}
	}
	return append(again, left[len(ops):]...), info, failure, fatal
}

// retryable says that the operation failed because the ring changed, and that
// the session goes on.
func (s *Session) retryable(err error) bool {
	return errs.CodeOf(err) == errs.RankConnectionLost && s.View().Connected
}
