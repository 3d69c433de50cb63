#!/usr/bin/env bash
# What passes on the machine passes in a network namespace as containers have them, and the wide-area network that
# measurements run in is as slow as it is told to be. make wan-test runs the rest.
. "$(dirname "$0")/common.sh"

[ "$(uname -s)" = Linux ] || elsewhere "the network of a container" "Linux"
unshare --net true 2>/dev/null || {
	skip "tests/internal/netns" "no right to make network namespaces" "run make test as root"
	exit 0
}
gotest -count=1 -tags wan -timeout 240s -run 'TestInAContainersNetwork$' ./tests/internal/netns
if (: <>/dev/net/tun) 2>/dev/null; then
	gotest -count=1 -tags wan -timeout 240s ./tests/internal/lab
	gotest -count=1 -tags wan -timeout 240s -run 'TestOperationsOutliveABlackout$|TestUnequalHostsTakeUnequalShares$' ./tests/wan/contest
	gotest -count=1 -tags wan -timeout 240s -run 'TestChurnOverAWideArea$' ./tests/churn
else
	elsewhere "tests/internal/lab and operations over it" "Linux, as root and with /dev/net/tun"
fi
