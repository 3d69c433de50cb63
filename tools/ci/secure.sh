#!/usr/bin/env bash
# The end-to-end tests once more, with every connection in TLS (tests/internal/issued). All of them need five minutes, so
# that make test runs those in which connections begin and end under way: kills, aborts, joins, rejoins, each kind of
# collective, messages, shared states, leaks. ALL=1 (make secure) runs all, churn and chaos. The simulation gives the state
# machines what the shells know of certificates: names, revocations, a member that claims the session of another one.
. "$(dirname "$0")/common.sh"

export GOPCCL_TEST_SECURITY=require
# Not in TLS: tests in which peers of PCCL take part in a run in plaintext. They have no TLS; TestBesidePCCLInTLS has them
# beside a run in TLS, and runs.
excluded='(Barrier|FourBits|Quantized)BesidePCCL'
gotest -count=1 -timeout 240s ./tests/sim/failover
if [ -z "${ALL:-}" ]; then
	gotest -count=1 -timeout 240s ./tests/e2e -skip "$excluded" -run 'HardKills|AbortRestores|Rejoin|TwentyJoin|EveryCollective|OfTheDead|Messages|Torn|Transfers|NoLeak|CreateReduceDestroy|CloseWith|EveryCallEnds|OutliveTheirHandshakes|StrangersDoNoHarm'
	gotest -count=1 -timeout 400s ./tests/sim -skip 'AtEveryPacket|Bugs|InTLS|Revoked' -sim.seeds=2000
else
	gotest -count=1 -timeout 30m ./tests/sim ${SOAK:+-sim.seeds="${SOAK_SEEDS:-200000}"}
	gotest -count=1 -timeout 20m ./tests/e2e -skip "$excluded" ${SOAK:+-soak}
	gotest -count=1 -timeout 60m ./tests/churn ./tests/chaos ${SOAK:+-soak}
fi
